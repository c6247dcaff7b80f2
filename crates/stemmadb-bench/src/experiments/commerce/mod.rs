//! The shop experiment, after BonsaiDb's commerce benchmark: shoppers' operations in Stemma, PostgreSQL and SQLite, all
//! durable.
//!
//! `--only` selects sizes and plans, such as `small balanced`. Row names have the form `operation: size, agents` or
//! `total: size plan, agents`; the report has a table for each first part.

mod disk;
mod notice;
mod page;
mod plots;
mod serve;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use disk::Disk;
use serve::{ServeTimes, ShopSession};

use super::Bench;
use crate::engine::shop::{
    PostgresServer, PostgresShop, PostgresVariant, Shop, SqliteShop, StemmaHttpShop, StemmaShop, Transport,
};
use crate::harness::{Heading, ResultRow, Samples, Unit, remove, sync_file_system};
use crate::workload::shop::{
    BALANCED, OPERATIONS, Operation, Plan, PlanKind, READ_HEAVY, SIZES, Size, Stock, WRITE_HEAVY,
};
use crate::{Failure, Result};

pub(crate) use page::page;
pub(crate) use plots::figures as plots;

const SEED: u64 = 0;
const KINDS: [PlanKind; 3] = [BALANCED, READ_HEAVY, WRITE_HEAVY];
const AGENT_COUNTS: [usize; 3] = [1, 2, 4];
/// Shoppers in the untimed verification pass.
const VERIFIED_COUNT: usize = 100;

/// Shoppers served per turn of a contender: some tens of milliseconds, so that disturbances of the disk affect all
/// contenders alike.
const TURN_COUNT: usize = 20;

/// First part of the names of rows about whole runs.
const TOTAL: &str = "total";
const EVERYTHING: &str = "everything";
const LOAD: &str = "load";
/// A lower bound rather than a contender; measured with one agent only.
const BARE_FLUSH: &str = "bare-flush";

/// Prefix of the rows in which all contenders are servers reached over the loopback network.
pub(crate) const NETWORK: &str = "network ";

/// Target for the total over the network, as a ratio to PostgreSQL.
const NETWORK_TARGET: f64 = 2.0;

/// Targets as ratios: whole runs to PostgreSQL, single steps to PostgreSQL and SQLite.
const TOTAL_TARGET: f64 = 5.0;
const STEP_TARGET: f64 = 1.0;

/// A measured engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Stemma,
    StemmaHttp,
    Postgres(PostgresVariant),
    PostgresTcp,
    Sqlite,
}

const CONTENDERS: [Contender; 4] = [
    Contender::Stemma,
    Contender::Postgres(PostgresVariant::Tuned),
    Contender::Sqlite,
    Contender::Postgres(PostgresVariant::Literal),
];

/// The contenders over the network; Stemma is first.
const SERVERS: [Contender; 2] = [Contender::StemmaHttp, Contender::PostgresTcp];

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Stemma => "stemma",
            Contender::StemmaHttp => "stemma-http",
            Contender::PostgresTcp => "postgresql-tcp",
            Contender::Postgres(PostgresVariant::Tuned) => "postgresql",
            Contender::Postgres(PostgresVariant::Literal) => "postgresql-literal",
            Contender::Sqlite => "sqlite",
        }
    }

    /// Loads a new shop at `path` and runs its maintenance; returns the load time alone, in nanoseconds.
    fn open<'a>(
        self,
        path: &Path,
        server: Option<&'a PostgresServer>,
        stock: &Stock,
    ) -> Result<(Box<dyn Shop + 'a>, f64)> {
        let start = Instant::now();
        let elapsed = || start.elapsed().as_nanos() as f64;
        match self {
            Contender::Stemma => {
                let shop = StemmaShop::open(path, stock)?;
                let cost = elapsed();
                Ok((Box::new(shop), cost))
            }
            Contender::StemmaHttp => {
                let shop = StemmaHttpShop::open(path, stock)?;
                let cost = elapsed();
                Ok((Box::new(shop), cost))
            }
            Contender::Postgres(_) | Contender::PostgresTcp => {
                let (variant, transport) = match self {
                    Contender::Postgres(variant) => (variant, Transport::Socket),
                    _ => (PostgresVariant::Tuned, Transport::Tcp),
                };
                let shop = PostgresShop::open(server.ok_or("no server was started")?, variant, transport, stock)?;
                let cost = elapsed();
                shop.run_maintenance()?;
                Ok((Box::new(shop), cost))
            }
            Contender::Sqlite => {
                let shop = SqliteShop::open(path, stock)?;
                let cost = elapsed();
                shop.run_maintenance()?;
                Ok((Box::new(shop), cost))
            }
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let server = PostgresServer::start(&bench.scratch)?;
    let version = server.version()?;
    bench.results.add_version(&version);
    let mut embedded = Commerce::new(bench, Some(&server), &CONTENDERS, "");
    embedded.run(&SIZES)?;
    let sizes = &SIZES[..bench.scale.network_size_count];
    Commerce::new(bench, Some(&server), &SERVERS, NETWORK).run(sizes)?;
    let (stock, _) = SIZES[0].generate(SEED, &BALANCED, 1);
    notice::run(bench, &server, &stock)
}

struct Commerce<'a> {
    bench: &'a mut Bench,
    server: Option<&'a PostgresServer>,
    /// Stemma is first.
    contenders: &'a [Contender],
    /// Prefix of the row names.
    prefix: &'static str,
    /// Total nanoseconds of all runs, by number of agents and contender.
    everything: BTreeMap<usize, Vec<f64>>,
    /// Estimated nanoseconds of all flushes, in all runs with one agent.
    flushes: f64,
}

/// Samples by contender.
type SamplesByContender = Vec<Samples>;

impl<'a> Commerce<'a> {
    fn new(
        bench: &'a mut Bench,
        server: Option<&'a PostgresServer>,
        contenders: &'a [Contender],
        prefix: &'static str,
    ) -> Self {
        Commerce { bench, server, contenders, prefix, everything: BTreeMap::new(), flushes: 0.0 }
    }

    fn run(&mut self, sizes: &[Size]) -> Result<()> {
        for size in sizes {
            self.size(size)?;
        }
        for (agent_count, costs) in std::mem::take(&mut self.everything) {
            let samples: SamplesByContender = costs.into_iter().map(|cost| Samples::from_costs([cost])).collect();
            let documents = sizes.iter().map(Size::document_count).sum();
            let bound = (agent_count == 1).then(|| Samples::from_costs([self.flushes]));
            self.push_total(
                format!("{TOTAL}: {EVERYTHING}, {}", agents(agent_count)),
                documents,
                &samples,
                bound.as_ref(),
            )?;
        }
        Ok(())
    }

    fn size(&mut self, size: &Size) -> Result<()> {
        let mut loads = self.empty_samples();
        let mut flushes = Samples::default();
        let mut steps: BTreeMap<(Operation, usize), SamplesByContender> = BTreeMap::new();
        let is_selected =
            |kind: &PlanKind| self.bench.is_selected(&format!("{}{} {}", self.prefix, size.name, kind.name));
        let kinds: Vec<PlanKind> = KINDS.into_iter().filter(is_selected).collect();
        if kinds.is_empty() {
            return Ok(());
        }
        for kind in kinds {
            let (stock, plans) = size.generate(SEED, &kind, self.bench.scale.shopper_count);
            self.verify(size, &kind, &stock, &plans)?;
            for agent_count in AGENT_COUNTS {
                for operation in OPERATIONS {
                    let samples = steps.entry((operation, agent_count)).or_insert_with(|| self.empty_samples());
                    samples.iter_mut().for_each(Samples::begin_repetition);
                }
                let mut totals = self.empty_samples();
                let (times, disk) = self
                    .serve_in_turns(&stock, &plans, agent_count, &mut loads)
                    .map_err(|error| format!("{} {}, {}: {error}", size.name, kind.name, agents(agent_count)))?;
                for (number, times) in times.into_iter().enumerate() {
                    let total = times.elapsed.as_nanos() as f64;
                    totals[number].push(total);
                    let of_all = vec![0.0; self.contenders.len()];
                    self.everything.entry(agent_count).or_insert(of_all)[number] += total;
                    for (operation, cost) in times.costs {
                        steps.get_mut(&(operation, agent_count)).expect("begun above")[number].push(cost as f64);
                    }
                }
                let bound = disk.map(|disk| {
                    flushes.begin_repetition();
                    disk.costs.iter().for_each(|cost| flushes.push(*cost));
                    self.flushes += disk.total;
                    Samples::from_costs([disk.total])
                });
                let row = format!("{TOTAL}: {} {}, {}", size.name, kind.name, agents(agent_count));
                self.push_total(row, size.document_count(), &totals, bound.as_ref())?;
            }
        }
        for ((operation, agent_count), samples) in steps {
            let bound = (agent_count == 1 && operation.writes()).then_some(&flushes);
            self.push_steps(operation, size, agent_count, &samples, bound)?;
        }
        let heading = self.heading(format!("{LOAD}: {}", size.name), size.document_count(), Unit::Milliseconds);
        self.push(heading, &loads, None, None)
    }

    /// Returns an empty sample list for each contender.
    fn empty_samples(&self) -> SamplesByContender {
        vec![Samples::default(); self.contenders.len()]
    }

    /// Opens all shops and serves the shoppers in alternating turns. With one agent, flushes of a plain file are
    /// measured after each turn.
    fn serve_in_turns(
        &self,
        stock: &Stock,
        plans: &[Plan],
        agent_count: usize,
        loads: &mut SamplesByContender,
    ) -> Result<(Vec<ServeTimes>, Option<Disk>)> {
        let mut shops = Vec::new();
        for (contender, loads) in self.contenders.iter().zip(loads) {
            let (shop, load) = self.open(*contender, stock)?;
            loads.push_repetition(load);
            shops.push(shop);
        }
        let is_alone = agent_count == 1;
        let mut disk = is_alone.then(|| Disk::open(&self.bench.scratch.fresh_path("flushed")?)).transpose()?;
        sync_file_system(self.bench.scratch.path());
        let named = |number: usize, error: Failure| format!("{}: {error}", self.contenders[number].name());
        let mut sessions =
            shops.iter().map(|shop| ShopSession::open(&**shop, agent_count)).collect::<Result<Vec<_>>>()?;
        for (turn, plans) in plans.chunks(TURN_COUNT).enumerate() {
            for offset in 0..sessions.len() {
                // Rotate the order, so that no contender always follows the same one.
                let number = (turn + offset) % sessions.len();
                sessions[number].serve(stock, plans).map_err(|error| named(number, error))?;
            }
            disk.as_mut().map_or(Ok(()), |disk| disk.turn(plans))?;
        }
        let close = |(number, session): (usize, ShopSession<'_>)| {
            session.close(stock, plans).map_err(|error| named(number, error).into())
        };
        let times = sessions.into_iter().enumerate().map(close).collect::<Result<_>>()?;
        shops.into_iter().try_for_each(|shop| shop.close())?;
        Ok((times, disk))
    }

    fn open(&self, contender: Contender, stock: &Stock) -> Result<(Box<dyn Shop + '_>, f64)> {
        let name = format!("shop-{}", contender.name());
        // SQLite keeps two files beside the database.
        for suffix in ["-wal", "-shm"] {
            remove(&self.bench.scratch.path().join(format!("{name}{suffix}")))?;
        }
        contender.open(&self.bench.scratch.fresh_path(&name)?, self.server, stock)
    }

    /// Checks every contender's answers and stored data in an untimed pass.
    fn verify(&self, size: &Size, kind: &PlanKind, stock: &Stock, plans: &[Plan]) -> Result<()> {
        let plans = &plans[..plans.len().min(VERIFIED_COUNT)];
        for contender in self.contenders {
            let (shop, _) = self.open(*contender, stock)?;
            serve::verify(&*shop, stock, plans)
                .map_err(|error| format!("{}: {} {}: {error}", contender.name(), size.name, kind.name))?;
            shop.close()?;
        }
        Ok(())
    }

    fn heading(&self, row: String, documents: u64, unit: Unit) -> Heading {
        let row = format!("{}{row}", self.prefix);
        Heading { experiment: "commerce", ..self.bench.heading(&row, documents, true, unit) }
    }

    fn push_total(
        &mut self,
        row: String,
        documents: u64,
        nanoseconds: &SamplesByContender,
        bound: Option<&Samples>,
    ) -> Result<()> {
        let heading = self.heading(row, documents, Unit::Milliseconds);
        let target = if self.prefix == NETWORK { NETWORK_TARGET } else { TOTAL_TARGET };
        self.push(heading, nanoseconds, bound, Some(target))
    }

    fn push_steps(
        &mut self,
        operation: Operation,
        size: &Size,
        agent_count: usize,
        samples: &SamplesByContender,
        bound: Option<&Samples>,
    ) -> Result<()> {
        // With very few shoppers, some operations may not occur.
        if samples.iter().any(Samples::is_empty) {
            return Ok(());
        }
        let row = format!("{}: {}, {}", operation.name(), size.name, agents(agent_count));
        let heading = self.heading(row, size.document_count(), Unit::Microseconds);
        self.push(heading, samples, bound, Some(STEP_TARGET))
    }

    /// Returns the contenders that targets refer to: for steps PostgreSQL and SQLite, for totals PostgreSQL.
    fn target_peers(&self, is_step: bool) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |contender| match contender {
            Contender::Postgres(PostgresVariant::Tuned) | Contender::PostgresTcp => true,
            Contender::Sqlite => is_step,
            Contender::Stemma | Contender::StemmaHttp | Contender::Postgres(PostgresVariant::Literal) => false,
        })
    }

    fn push(
        &mut self,
        mut heading: Heading,
        samples: &SamplesByContender,
        bound: Option<&Samples>,
        target: Option<f64>,
    ) -> Result<()> {
        let is_distribution = heading.unit == Unit::Microseconds;
        let names: Vec<&str> = self.contenders.iter().map(|contender| contender.name()).collect();
        if let Some(target) = target {
            heading.targets = self.target_peers(is_distribution).map(|peer| (peer.name(), target)).collect();
        }
        let peers: Vec<_> = names.iter().copied().zip(samples).skip(1).collect();
        let bounded: Vec<_> = peers.iter().copied().chain(bound.map(|bound| (BARE_FLUSH, bound))).collect();
        let row = ResultRow::new(heading, &samples[0], &bounded);
        let row = if is_distribution { row.with_histograms(names[0], &samples[0], &peers) } else { row };
        self.bench.push(row)
    }
}

fn agents(count: usize) -> String {
    format!("{count} {}", if count == 1 { "agent" } else { "agents" })
}

#[cfg(test)]
mod tests;
