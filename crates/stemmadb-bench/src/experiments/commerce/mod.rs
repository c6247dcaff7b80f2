//! The shop experiment, after BonsaiDb's commerce benchmark: shoppers' operations in Stemma, PostgreSQL, SQLite and, if
//! asked for, BonsaiDb, all durable.
//!
//! `--only` selects sizes and plans, such as `small balanced`. Row names have the form `operation: size plan, agents`
//! or `total: size plan, agents`; the report has a table for each first part.

mod disk;
mod notice;
mod page;
mod plots;
mod serve;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use disk::Disk;
use serve::{ServeTimes, ShopSession};

use super::Bench;
use crate::engine::shop::{
    BONSAI_VERSION, BonsaiAccess, BonsaiProgram, BonsaiShop, PostgresServer, PostgresShop, PostgresVariant, Shop,
    SqliteShop, StemmaHttpShop, StemmaShop, StemmaWireShop, Transport,
};
use crate::harness::{Heading, ResultRow, Samples, Unit, remove, sync_file_system};
use crate::workload::shop::{BALANCED, Operation, Plan, PlanKind, READ_HEAVY, Size, Stock, WRITE_HEAVY};
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

/// Targets as ratios: whole runs to PostgreSQL, single steps to PostgreSQL and SQLite.
const TOTAL_TARGET: f64 = 5.0;
const STEP_TARGET: f64 = 1.0;

/// Targets over the network, as ratios to PostgreSQL: whole runs, and steps that read.
const NETWORK_TOTAL_TARGET: f64 = 1.5;
const NETWORK_READ_TARGET: f64 = 2.0;

/// A measured engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Stemma,
    StemmaWire,
    StemmaHttp,
    Postgres(PostgresVariant),
    PostgresTcp,
    Sqlite,
    Bonsai(BonsaiAccess),
}

/// The contenders in one process; Stemma is first, BonsaiDb last.
const CONTENDERS: [Contender; 5] = [
    Contender::Stemma,
    Contender::Postgres(PostgresVariant::Tuned),
    Contender::Sqlite,
    Contender::Postgres(PostgresVariant::Literal),
    Contender::Bonsai(BonsaiAccess::Embedded),
];

/// The contenders over the network; Stemma is first, BonsaiDb last.
const SERVERS: [Contender; 4] =
    [Contender::StemmaWire, Contender::PostgresTcp, Contender::StemmaHttp, Contender::Bonsai(BonsaiAccess::WebSocket)];

/// The programs that contenders need.
#[derive(Clone, Copy, Default)]
struct Programs<'a> {
    postgres: Option<&'a PostgresServer>,
    bonsai: Option<&'a BonsaiProgram>,
}

impl Programs<'_> {
    /// Returns the contenders that take part: all, or all but BonsaiDb.
    fn contenders<'c>(&self, all: &'c [Contender]) -> &'c [Contender] {
        if self.bonsai.is_some() { all } else { &all[..all.len() - 1] }
    }
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Stemma => "stemma",
            Contender::StemmaWire => "stemma-wire",
            Contender::StemmaHttp => "stemma-http",
            Contender::PostgresTcp => "postgresql-tcp",
            Contender::Postgres(PostgresVariant::Tuned) => "postgresql",
            Contender::Postgres(PostgresVariant::Literal) => "postgresql-literal",
            Contender::Sqlite => "sqlite",
            Contender::Bonsai(BonsaiAccess::Embedded) => "bonsaidb",
            Contender::Bonsai(BonsaiAccess::WebSocket) => "bonsaidb-websocket",
        }
    }

    /// Loads a new shop at `path` and runs its maintenance; returns the load time alone, in nanoseconds.
    fn open<'a>(self, path: &Path, programs: Programs<'a>, stock: &Stock) -> Result<(Box<dyn Shop + 'a>, f64)> {
        let start = Instant::now();
        let elapsed = || start.elapsed().as_nanos() as f64;
        match self {
            Contender::Stemma => {
                let shop = StemmaShop::open(path, stock)?;
                let cost = elapsed();
                Ok((Box::new(shop), cost))
            }
            Contender::StemmaWire => {
                let shop = StemmaWireShop::open(path, stock)?;
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
                let shop =
                    PostgresShop::open(programs.postgres.ok_or("no server was started")?, variant, transport, stock)?;
                let cost = elapsed();
                shop.run_maintenance()?;
                Ok((Box::new(shop), cost))
            }
            Contender::Bonsai(access) => {
                let program = programs.bonsai.ok_or("BonsaiDb was not built")?;
                let (shop, cost) = BonsaiShop::open(program, access, path, stock)?;
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
    let bonsai = bench.with_bonsaidb.then(BonsaiProgram::build).transpose()?;
    let server = PostgresServer::start(&bench.scratch)?;
    let version = server.version()?;
    bench.results.add_version(&version);
    if bonsai.is_some() {
        bench.results.add_version(BONSAI_VERSION);
    }
    let programs = Programs { postgres: Some(&server), bonsai: bonsai.as_ref() };
    let mut embedded = Commerce::new(bench, programs, programs.contenders(&CONTENDERS), "");
    let sizes = embedded.bench.scale.shop_sizes();
    embedded.run(&sizes)?;
    let over_network = &sizes[..bench.scale.network_size_count];
    Commerce::new(bench, programs, programs.contenders(&SERVERS), NETWORK).run(over_network)?;
    let (stock, _) = sizes[0].generate(SEED, &BALANCED, 1);
    notice::run(bench, &server, &stock)
}

struct Commerce<'a> {
    bench: &'a mut Bench,
    programs: Programs<'a>,
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
    fn new(bench: &'a mut Bench, programs: Programs<'a>, contenders: &'a [Contender], prefix: &'static str) -> Self {
        Commerce { bench, programs, contenders, prefix, everything: BTreeMap::new(), flushes: 0.0 }
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
        let is_selected =
            |kind: &PlanKind| self.bench.is_selected(&format!("{}{} {}", self.prefix, size.name, kind.name));
        let kinds: Vec<PlanKind> = KINDS.into_iter().filter(is_selected).collect();
        if kinds.is_empty() {
            return Ok(());
        }
        for kind in kinds {
            let (stock, plans) = size.generate(SEED, &kind, self.bench.scale.shopper_count);
            self.verify(size, &kind, &stock, &plans)?;
            for agent_count in agent_counts(self.bench.results.core_count()) {
                let (times, disk) = self
                    .serve_in_turns(&stock, &plans, agent_count, &mut loads)
                    .map_err(|error| format!("{} {}, {}: {error}", size.name, kind.name, agents(agent_count)))?;
                self.push_run(size, &kind, agent_count, &times, disk.as_ref())?;
            }
        }
        let heading = self.heading(format!("{LOAD}: {}", size.name), size.document_count(), Unit::Milliseconds);
        self.push(heading, &loads, None, None)
    }

    /// Adds the rows of one run: its total, and each operation.
    fn push_run(
        &mut self,
        size: &Size,
        kind: &PlanKind,
        agent_count: usize,
        times: &[ServeTimes],
        disk: Option<&Disk>,
    ) -> Result<()> {
        let mut totals = self.empty_samples();
        let mut steps: BTreeMap<Operation, SamplesByContender> = BTreeMap::new();
        for (number, times) in times.iter().enumerate() {
            let total = times.elapsed.as_nanos() as f64;
            totals[number].push(total);
            let of_all = vec![0.0; self.contenders.len()];
            self.everything.entry(agent_count).or_insert(of_all)[number] += total;
            for (operation, cost) in &times.costs {
                steps.entry(*operation).or_insert_with(|| self.empty_samples())[number].push(*cost as f64);
            }
        }
        let name = format!("{} {}, {}", size.name, kind.name, agents(agent_count));
        self.flushes += disk.map_or(0.0, |disk| disk.total);
        let bound = disk.map(|disk| Samples::from_costs([disk.total]));
        self.push_total(format!("{TOTAL}: {name}"), size.document_count(), &totals, bound.as_ref())?;
        let flushes = disk.map(|disk| Samples::from_costs(disk.costs.iter().copied()));
        // With few shoppers, some operations don't occur.
        for (operation, samples) in steps {
            let row = format!("{}: {name}", operation.name());
            let heading = self.heading(row, size.document_count(), Unit::Microseconds);
            let heading = Heading { note: Some(format!("{} operations", samples[0].count())), ..heading };
            let target = match self.prefix {
                NETWORK if !operation.writes() => NETWORK_READ_TARGET,
                _ => STEP_TARGET,
            };
            self.push(heading, &samples, flushes.as_ref().filter(|_| operation.writes()), Some(target))?;
        }
        Ok(())
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
        contender.open(&self.bench.scratch.fresh_path(&name)?, self.programs, stock)
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
        let target = if self.prefix == NETWORK { NETWORK_TOTAL_TARGET } else { TOTAL_TARGET };
        self.push(heading, nanoseconds, bound, Some(target))
    }

    /// Returns the contenders that targets refer to: for steps PostgreSQL and SQLite, for totals PostgreSQL.
    fn target_peers(&self, is_step: bool) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |contender| match contender {
            Contender::Postgres(PostgresVariant::Tuned) | Contender::PostgresTcp => true,
            Contender::Sqlite => is_step,
            Contender::Stemma | Contender::StemmaWire | Contender::StemmaHttp => false,
            Contender::Postgres(PostgresVariant::Literal) | Contender::Bonsai(_) => false,
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
        let row = match is_distribution {
            true => row.with_histograms(names[0], &samples[0], &peers).with_distributions(&samples[0], &bounded),
            false => row,
        };
        self.bench.push(row)
    }
}

/// Returns the numbers of agents: always those of [`AGENT_COUNTS`], and two per core as in the original's plot.
fn agent_counts(core_count: usize) -> BTreeSet<usize> {
    AGENT_COUNTS.into_iter().chain([2 * core_count]).collect()
}

fn agents(count: usize) -> String {
    format!("{count} {}", if count == 1 { "agent" } else { "agents" })
}

#[cfg(test)]
mod tests;
