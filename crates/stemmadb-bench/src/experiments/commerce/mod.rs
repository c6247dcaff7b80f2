//! A shop, after BonsaiDb's commerce benchmark: what shoppers do, in Stemma, PostgreSQL and SQLite, durable everywhere.
//!
//! `--only` picks sizes and plans, such as `small balanced`. The rows' names have two parts, `operation: size, agents` or
//! `total: size plan, agents`; the page has a table for each first part.

mod disk;
mod notice;
mod page;
mod plots;
mod serve;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use disk::Disk;
use serve::{Desk, Served};

use super::Bench;
use crate::engine::shop::{Form, PostgresServer, PostgresShop, Reach, Shop, SqliteShop, StemmaHttpShop, StemmaShop};
use crate::harness::{Heading, Row, Samples, Unit, remove, settle};
use crate::workload::shop::{
    BALANCED, OPERATIONS, Operation, Plan, PlanKind, READ_HEAVY, SIZES, Size, Stock, WRITE_HEAVY,
};
use crate::{Failure, Result};

pub(crate) use page::page;
pub(crate) use plots::figures as plots;

const SEED: u64 = 0;
const KINDS: [PlanKind; 3] = [BALANCED, READ_HEAVY, WRITE_HEAVY];
const AGENT_COUNTS: [usize; 3] = [1, 2, 4];
/// Shoppers of the untimed pass in which everything is looked at.
const VERIFIED_COUNT: usize = 100;

/// Shoppers that one contender serves before it is the next one's turn: some tens of milliseconds, so that whatever the disk does
/// meanwhile hits all of them.
const TURN_COUNT: usize = 20;

/// Part of the name of every row about all steps of a run, and of all runs.
const TOTAL: &str = "total";
const EVERYTHING: &str = "everything";
const LOAD: &str = "load";
/// Not a contender but a bound, where one agent works alone.
const BARE_FLUSH: &str = "bare-flush";

/// What the names of rows begin with where everybody is a server that is reached over the network, which is this machine's own.
const NETWORK: &str = "network ";

/// So many times faster than in PostgreSQL it should be there.
const NETWORK_TARGET: f64 = 2.0;

/// All steps together should be so many times faster than in PostgreSQL, and none of them slower than there or in SQLite.
const TOTAL_TARGET: f64 = 5.0;
const STEP_TARGET: f64 = 1.0;

/// One who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Stemma,
    StemmaHttp,
    Postgres(Form),
    PostgresTcp,
    Sqlite,
}

const CONTENDERS: [Contender; 4] =
    [Contender::Stemma, Contender::Postgres(Form::Tuned), Contender::Sqlite, Contender::Postgres(Form::Literal)];

/// Those who are reached over the network; ours is the first.
const SERVERS: [Contender; 2] = [Contender::StemmaHttp, Contender::PostgresTcp];

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Stemma => "stemma",
            Contender::StemmaHttp => "stemma-http",
            Contender::PostgresTcp => "postgresql-tcp",
            Contender::Postgres(Form::Tuned) => "postgresql",
            Contender::Postgres(Form::Literal) => "postgresql-literal",
            Contender::Sqlite => "sqlite",
        }
    }

    /// Loads a new shop at `path` and tidies it up; also how long the load alone took, in nanoseconds.
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
                let (form, reach) = match self {
                    Contender::Postgres(form) => (form, Reach::Socket),
                    _ => (Form::Tuned, Reach::Tcp),
                };
                let shop = PostgresShop::open(server.ok_or("no server was started")?, form, reach, stock)?;
                let cost = elapsed();
                shop.tidy()?;
                Ok((Box::new(shop), cost))
            }
            Contender::Sqlite => {
                let shop = SqliteShop::open(path, stock)?;
                let cost = elapsed();
                shop.tidy()?;
                Ok((Box::new(shop), cost))
            }
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let server = PostgresServer::start(&bench.place)?;
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
    /// Ours is the first.
    contenders: &'a [Contender],
    /// What the names of rows begin with.
    prefix: &'static str,
    /// Nanoseconds of all runs together, by number of agents: of each contender.
    everything: BTreeMap<usize, Vec<f64>>,
    /// Nanoseconds of a bare flush for each step that writes, in all runs of one agent.
    flushes: f64,
}

/// The samples of each contender.
type OfEach = Vec<Samples>;

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
            let samples: OfEach = costs.into_iter().map(|cost| Samples::of([cost])).collect();
            let documents = sizes.iter().map(Size::document_count).sum();
            let bound = (agent_count == 1).then(|| Samples::of([self.flushes]));
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
        let mut loads = self.nobodys();
        let mut flushes = Samples::default();
        let mut steps: BTreeMap<(Operation, usize), OfEach> = BTreeMap::new();
        let is_wanted = |kind: &PlanKind| self.bench.wants(&format!("{}{} {}", self.prefix, size.name, kind.name));
        let kinds: Vec<PlanKind> = KINDS.into_iter().filter(is_wanted).collect();
        if kinds.is_empty() {
            return Ok(());
        }
        for kind in kinds {
            let (stock, plans) = size.generate(SEED, &kind, self.bench.scale.shopper_count);
            self.verify(size, &kind, &stock, &plans)?;
            for agent_count in AGENT_COUNTS {
                for operation in OPERATIONS {
                    let samples = steps.entry((operation, agent_count)).or_insert_with(|| self.nobodys());
                    samples.iter_mut().for_each(Samples::begin_repetition);
                }
                let mut totals = self.nobodys();
                let (served, disk) = self
                    .race(&stock, &plans, agent_count, &mut loads)
                    .map_err(|error| format!("{} {}, {}: {error}", size.name, kind.name, agents(agent_count)))?;
                for (number, served) in served.into_iter().enumerate() {
                    let total = served.elapsed.as_nanos() as f64;
                    totals[number].push(total);
                    let of_all = vec![0.0; self.contenders.len()];
                    self.everything.entry(agent_count).or_insert(of_all)[number] += total;
                    for (operation, cost) in served.costs {
                        steps.get_mut(&(operation, agent_count)).expect("begun above")[number].push(cost as f64);
                    }
                }
                let bound = disk.map(|disk| {
                    flushes.begin_repetition();
                    disk.costs.iter().for_each(|cost| flushes.push(*cost));
                    self.flushes += disk.total;
                    Samples::of([disk.total])
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

    /// One list of samples for each contender, empty.
    fn nobodys(&self) -> OfEach {
        vec![Samples::default(); self.contenders.len()]
    }

    /// Opens all shops, and serves a few shoppers in each in turn until all were served in all. Where one agent works alone, the disk has
    /// its turn too.
    fn race(
        &self,
        stock: &Stock,
        plans: &[Plan],
        agent_count: usize,
        loads: &mut OfEach,
    ) -> Result<(Vec<Served>, Option<Disk>)> {
        let mut shops = Vec::new();
        for (contender, loads) in self.contenders.iter().zip(loads) {
            let (shop, load) = self.open(*contender, stock)?;
            loads.push_repetition(load);
            shops.push(shop);
        }
        let is_alone = agent_count == 1;
        let mut disk = is_alone.then(|| Disk::open(&self.bench.place.fresh("flushed")?)).transpose()?;
        settle(self.bench.place.path());
        let named = |number: usize, error: Failure| format!("{}: {error}", self.contenders[number].name());
        let mut desks = shops.iter().map(|shop| Desk::open(&**shop, agent_count)).collect::<Result<Vec<_>>>()?;
        for (turn, plans) in plans.chunks(TURN_COUNT).enumerate() {
            for place in 0..desks.len() {
                // Nobody always comes after the same one.
                let number = (turn + place) % desks.len();
                desks[number].serve(stock, plans).map_err(|error| named(number, error))?;
            }
            disk.as_mut().map_or(Ok(()), |disk| disk.turn(plans))?;
        }
        let close =
            |(number, desk): (usize, Desk<'_>)| desk.close(stock, plans).map_err(|error| named(number, error).into());
        let served = desks.into_iter().enumerate().map(close).collect::<Result<_>>()?;
        shops.into_iter().try_for_each(|shop| shop.close())?;
        Ok((served, disk))
    }

    fn open(&self, contender: Contender, stock: &Stock) -> Result<(Box<dyn Shop + '_>, f64)> {
        let name = format!("shop-{}", contender.name());
        // A database may have files beside its own.
        for suffix in ["-wal", "-shm"] {
            remove(&self.bench.place.path().join(format!("{name}{suffix}")))?;
        }
        contender.open(&self.bench.place.fresh(&name)?, self.server, stock)
    }

    /// Everyone gives the same answers, and has written what it says.
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

    fn push_total(&mut self, row: String, documents: u64, nanoseconds: &OfEach, bound: Option<&Samples>) -> Result<()> {
        let heading = self.heading(row, documents, Unit::Milliseconds);
        let target = if self.prefix == NETWORK { NETWORK_TARGET } else { TOTAL_TARGET };
        self.push(heading, nanoseconds, bound, Some(target))
    }

    fn push_steps(
        &mut self,
        operation: Operation,
        size: &Size,
        agent_count: usize,
        samples: &OfEach,
        bound: Option<&Samples>,
    ) -> Result<()> {
        // Too few shoppers may never get so far.
        if samples.iter().any(Samples::is_empty) {
            return Ok(());
        }
        let row = format!("{}: {}, {}", operation.name(), size.name, agents(agent_count));
        let heading = self.heading(row, size.document_count(), Unit::Microseconds);
        self.push(heading, samples, bound, Some(STEP_TARGET))
    }

    /// Whom to compare with: everyone who does the same for a step; PostgreSQL for all of them together.
    fn judges(&self, is_step: bool) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |contender| match contender {
            Contender::Postgres(Form::Tuned) | Contender::PostgresTcp => true,
            Contender::Sqlite => is_step,
            Contender::Stemma | Contender::StemmaHttp | Contender::Postgres(Form::Literal) => false,
        })
    }

    fn push(
        &mut self,
        mut heading: Heading,
        samples: &OfEach,
        bound: Option<&Samples>,
        target: Option<f64>,
    ) -> Result<()> {
        let is_distribution = heading.unit == Unit::Microseconds;
        let names: Vec<&str> = self.contenders.iter().map(|contender| contender.name()).collect();
        if let Some(target) = target {
            heading.targets = self.judges(is_distribution).map(|judge| (judge.name(), target)).collect();
        }
        let peers: Vec<_> = names.iter().copied().zip(samples).skip(1).collect();
        let bounded: Vec<_> = peers.iter().copied().chain(bound.map(|bound| (BARE_FLUSH, bound))).collect();
        let row = Row::new(heading, &samples[0], &bounded);
        let row = if is_distribution { row.with_histograms(names[0], &samples[0], &peers) } else { row };
        self.bench.push(row)
    }
}

fn agents(count: usize) -> String {
    format!("{count} {}", if count == 1 { "agent" } else { "agents" })
}

#[cfg(test)]
mod tests;
