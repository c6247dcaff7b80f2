//! The rest of Barrel's suite, beside its queries: documents, changes and subscriptions; by the library, and over HTTP with a connection that is
//! kept and with a new one for each request, as Barrel's own client had it.
//!
//! Nobody waits for the disk, as there. Everything is done for what it is meant to do, and looked at; what Barrel's harness did instead (its
//! documents had other ids than it asked for) is there as *literal*.

mod way;

use std::time::Instant;

use super::{BATCH_COUNT, Bench};
use crate::Result;
use crate::harness::{Contender, Heading, Samples, Unit, hold};
use crate::served::Served;
use crate::workload::{Corpus, Users};
use way::{Direct, Http, Way};

/// Changes of a batch.
const CHANGE_COUNT: usize = 100;
/// Writes that subscribers hear of in a turn.
const NOTICE_COUNT: usize = 100;
/// Questions of a turn, and of one whose answer is long.
const QUESTION_COUNT: usize = 100;
const LONG_COUNT: usize = 5;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let served = Served::start(&bench.place.fresh("suite")?, "none")?;
    let corpus = Corpus::generate(Users, bench.scale.query_counts[0]);
    let mut ways: Vec<Box<dyn Way>> = vec![
        Box::new(Direct::open(&bench.place.fresh("suite.stemma")?)?),
        Box::new(Http::open(served.site(), "http", false)?),
        Box::new(Http::open(served.site(), "http-new-connections", true)?),
    ];
    for batch in corpus.batches(BATCH_COUNT) {
        ways.iter_mut().try_for_each(|way| way.load(&batch))?;
    }
    let mut suite = Suite { bench, ways, document_count: corpus.len() };
    suite.documents()?;
    suite.queries()?;
    suite.changes()?;
    suite.subscription()
}

struct Suite<'a> {
    bench: &'a mut Bench,
    /// Each with a database of its own; the library's is the first.
    ways: Vec<Box<dyn Way>>,
    /// Documents that stay.
    document_count: usize,
}

impl Suite<'_> {
    /// A row of what one turn of `each` way adds to its samples; it is told which turn it is.
    fn row(
        &mut self,
        name: &str,
        rows: Option<u64>,
        way_count: usize,
        each: impl Fn(&mut dyn Way, usize, &mut Samples) -> Result<()>,
    ) -> Result<()> {
        let heading = self.bench.heading(name, self.document_count as u64, false, Unit::Microseconds);
        let heading = Heading { experiment: "barrel", rows, ..heading };
        let each = &each;
        let contenders = self.ways[..way_count].iter_mut().map(|way| {
            let name = way.name();
            Contender::new(name, move |turn, samples: &mut Samples| each(&mut **way, turn, samples))
        });
        let row = hold(heading, self.bench.scale.repetition_count, contenders.collect())?;
        if self.bench.wants(name) { self.bench.push(row) } else { Ok(()) }
    }

    /// The same where a turn does one thing with so many documents, one after the other, from number `first` on.
    fn each_document(
        &mut self,
        name: &str,
        count: usize,
        first: impl Fn(usize) -> usize,
        act: impl Fn(&mut dyn Way, usize) -> Result<()>,
    ) -> Result<()> {
        self.row(name, None, self.ways.len(), |way, turn, samples| {
            for number in first(turn)..first(turn) + count {
                let start = Instant::now();
                act(way, number)?;
                samples.push(start.elapsed().as_nanos() as f64);
            }
            Ok(())
        })
    }

    fn documents(&mut self) -> Result<()> {
        let (count, known) = (self.bench.scale.synced_count.min(self.document_count), self.document_count);
        let new = |turn: usize| known + turn * count;
        for way in &mut self.ways {
            (known..new(self.bench.scale.repetition_count)).try_for_each(|number| way.make(number))?;
        }
        self.each_document("insert", count, new, |way, number| way.insert(number))?;
        self.each_document("read", count, |_| 0, |way, number| way.read(number))?;
        self.each_document("update: read and replace", count, |_| 0, |way, number| way.update(number))?;
        self.each_document("delete", count, new, |way, number| way.delete(number))?;
        let nobody = |_| known;
        self.each_document("read, literal: what is not there", count, nobody, |way, number| way.miss(number))?;
        for way in &mut self.ways {
            // Each was written once by each turn, and nothing else is left.
            let turns = self.bench.scale.repetition_count;
            way.check(known, count, turns)?;
        }
        Ok(())
    }

    fn queries(&mut self) -> Result<()> {
        let known = self.document_count;
        // Every third is active.
        let active_count = known.div_ceil(3);
        for (name, is_active, limit, row_count, count) in [
            ("query: type, limit 100", false, 100, 100.min(known), QUESTION_COUNT),
            ("query: type and status, limit 100", true, 100, 100.min(active_count), QUESTION_COUNT),
            ("query: type, all", false, known, known, LONG_COUNT),
        ] {
            self.row(name, Some(row_count as u64), self.ways.len(), |way, _, samples| {
                for _ in 0..count {
                    let start = Instant::now();
                    let found = way.find(is_active, limit)?;
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
        self.row("changes: all", None, self.ways.len(), |way, _, samples| {
            let total = way.change_count()?;
            let start = Instant::now();
            let found = way.changes(None, usize::MAX)?.count;
            samples.push(start.elapsed().as_nanos() as f64);
            if found == total { Ok(()) } else { Err(format!("{found} changes instead of {total}").into()) }
        })?;
        self.row("changes: 100 at a time", Some(CHANGE_COUNT as u64), self.ways.len(), |way, _, samples| {
            let (total, mut found, mut since) = (way.change_count()?, 0, None);
            loop {
                let start = Instant::now();
                let batch = way.changes(since.as_deref(), CHANGE_COUNT)?;
                // The last one may be short.
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

    /// A write and the notice of it together, as Barrel has it: by the library to the same thread, over HTTP by a WebSocket.
    fn subscription(&mut self) -> Result<()> {
        self.row("subscription: a write and its notice", None, 2, |way, turn, samples| {
            way.notices(turn * NOTICE_COUNT, NOTICE_COUNT)?.into_iter().for_each(|cost| samples.push(cost));
            Ok(())
        })
    }
}
