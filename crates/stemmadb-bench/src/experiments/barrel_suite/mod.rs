//! The rest of Barrel's suite: documents, changes and subscriptions, by the library and over HTTP, with a persistent
//! connection and with a new one per request (as Barrel's client does); and in a database with four shards.
//!
//! Nothing is flushed, as in the original. Every operation's effect is verified. The row *literal* repeats what
//! Barrel's harness did by mistake: it read ids that do not exist.

mod driver;
mod library;

use std::time::Instant;

use super::{BATCH_COUNT, Bench};
use crate::Result;
use crate::harness::{Contender, Heading, Samples, Unit, measure_row};
use crate::server::ServerProcess;
use crate::workload::{Corpus, Users};
use driver::{Driver, HttpDriver};
use library::LibraryDriver;

/// Changes per batch.
const CHANGE_COUNT: usize = 100;
/// Shards of the databases that have some, as in Barrel's table.
const SHARD_COUNT: usize = 4;
/// Notifications per turn.
const NOTICE_COUNT: usize = 100;
/// Queries per turn, with a short and with a long result.
const QUESTION_COUNT: usize = 100;
const LONG_COUNT: usize = 5;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let server = ServerProcess::start(&bench.scratch.fresh_path("suite")?, "none")?;
    let corpus = Corpus::generate(Users, bench.scale.query_counts.first());
    let shard = |number| bench.scratch.fresh_path(&format!("suite-{number}.stemma"));
    let shards = (0..SHARD_COUNT).map(shard).collect::<Result<Vec<_>>>()?;
    let mut drivers: Vec<Box<dyn Driver>> = vec![
        Box::new(LibraryDriver::open(&bench.scratch.fresh_path("suite.stemma")?)?),
        Box::new(HttpDriver::open(server.endpoint(), "http", "", false)?),
        Box::new(HttpDriver::open(server.endpoint(), "http-new-connections", "", true)?),
        Box::new(LibraryDriver::open_shards(&shards)?),
        Box::new(HttpDriver::open(server.endpoint(), "http-4-shards", "?shards=4", false)?),
    ];
    for batch in corpus.batches(BATCH_COUNT) {
        drivers.iter_mut().try_for_each(|driver| driver.load(&batch))?;
    }
    let mut suite = Suite { bench, drivers, document_count: corpus.len() };
    suite.documents()?;
    suite.queries()?;
    suite.changes()?;
    suite.subscription()
}

struct Suite<'a> {
    bench: &'a mut Bench,
    /// Each driver has its own database; the library is first.
    drivers: Vec<Box<dyn Driver>>,
    /// Documents that are never deleted.
    document_count: usize,
}

impl Suite<'_> {
    /// Measures one row; `each` runs a driver's turn and receives the turn number.
    fn row(
        &mut self,
        name: &str,
        rows: Option<u64>,
        driver_count: usize,
        each: impl Fn(&mut dyn Driver, usize, &mut Samples) -> Result<()>,
    ) -> Result<()> {
        let heading = self.bench.heading(name, self.document_count as u64, false, Unit::Microseconds);
        let heading = Heading { experiment: "barrel", rows, ..heading };
        let each = &each;
        let contenders = self.drivers[..driver_count].iter_mut().map(|driver| {
            let name = driver.name();
            Contender::new(name, move |turn, samples: &mut Samples| each(&mut **driver, turn, samples))
        });
        let row = measure_row(heading, self.bench.scale.repetition_count, contenders.collect())?;
        if self.bench.is_selected(name) { self.bench.push(row) } else { Ok(()) }
    }

    /// Measures one operation on `count` consecutive documents per turn, starting at `first(turn)`.
    fn each_document(
        &mut self,
        name: &str,
        count: usize,
        first: impl Fn(usize) -> usize,
        act: impl Fn(&mut dyn Driver, usize) -> Result<()>,
    ) -> Result<()> {
        self.row(name, None, self.drivers.len(), |driver, turn, samples| {
            for number in first(turn)..first(turn) + count {
                let start = Instant::now();
                act(driver, number)?;
                samples.push(start.elapsed().as_nanos() as f64);
            }
            Ok(())
        })
    }

    fn documents(&mut self) -> Result<()> {
        let (count, known) = (self.bench.scale.synced_count.min(self.document_count), self.document_count);
        let new = |turn: usize| known + turn * count;
        for driver in &mut self.drivers {
            (known..new(self.bench.scale.repetition_count)).try_for_each(|number| driver.prepare(number))?;
        }
        self.each_document("insert", count, new, |driver, number| driver.insert(number))?;
        self.each_document("read", count, |_| 0, |driver, number| driver.read(number))?;
        self.each_document("update: read and replace", count, |_| 0, |driver, number| driver.update(number))?;
        self.each_document("delete", count, new, |driver, number| driver.delete(number))?;
        let missing = |_| known;
        self.each_document("read, literal: missing documents", count, missing, |driver, number| {
            driver.read_missing(number)
        })?;
        for driver in &mut self.drivers {
            // Every turn updated each of them once, and all inserted documents were deleted.
            let turns = self.bench.scale.repetition_count;
            driver.check(known, count, turns)?;
        }
        Ok(())
    }

    fn queries(&mut self) -> Result<()> {
        let known = self.document_count;
        // Every third user is active.
        let active_count = known.div_ceil(3);
        for (name, is_active, limit, row_count, count) in [
            ("query: type, limit 100", false, 100, 100.min(known), QUESTION_COUNT),
            ("query: type and status, limit 100", true, 100, 100.min(active_count), QUESTION_COUNT),
            ("query: type, all", false, known, known, LONG_COUNT),
        ] {
            self.row(name, Some(row_count as u64), self.drivers.len(), |driver, _, samples| {
                for _ in 0..count {
                    let start = Instant::now();
                    let found = driver.find(is_active, limit)?;
                    samples.push(start.elapsed().as_nanos() as f64);
                    if found != row_count {
                        return Err(format!("{found} documents instead of {row_count}").into());
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn changes(&mut self) -> Result<()> {
        self.row("changes: all", None, self.drivers.len(), |driver, _, samples| {
            let total = driver.change_count()?;
            let start = Instant::now();
            let found = driver.changes(None, usize::MAX)?.count;
            samples.push(start.elapsed().as_nanos() as f64);
            if found == total { Ok(()) } else { Err(format!("{found} changes instead of {total}").into()) }
        })?;
        self.row("changes: 100 at a time", Some(CHANGE_COUNT as u64), self.drivers.len(), |driver, _, samples| {
            let (total, mut found, mut since) = (driver.change_count()?, 0, None);
            loop {
                let start = Instant::now();
                let batch = driver.changes(since.as_deref(), CHANGE_COUNT)?;
                // The last batch may be short.
                if batch.count == CHANGE_COUNT {
                    samples.push(start.elapsed().as_nanos() as f64);
                }
                found += batch.count;
                if batch.count < CHANGE_COUNT {
                    break;
                }
                since = Some(batch.reached);
            }
            if found == total { Ok(()) } else { Err(format!("{found} changes instead of {total}").into()) }
        })
    }

    /// Measures a write together with its notification, as Barrel does: in the same thread by the library, by WebSocket
    /// over HTTP.
    fn subscription(&mut self) -> Result<()> {
        self.row("subscription: write and notification", None, 2, |driver, turn, samples| {
            driver.notices(turn * NOTICE_COUNT, NOTICE_COUNT)?.into_iter().for_each(|cost| samples.push(cost));
            Ok(())
        })
    }
}
