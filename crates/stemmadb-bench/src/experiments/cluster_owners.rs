//! Processes that own a database each, whose logs are in the same Cassandra cluster.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use stemmadb_cassandra::{Cluster, ClusterOptions};

use super::cluster::{INSERTS, KEYSPACE, NODE_VARIABLE, PlainInserts, RATE, TURN, document, heading, open};
use super::{Bench, SEED, insert_edit};
use crate::Result;
use crate::harness::{Contender, ResultRow, Samples, Unit, alternate};
use crate::workload::{Corpus, Records};

/// Processes, and the writers that they share.
const OWNER_COUNTS: [usize; 4] = [1, 2, 4, 8];
const WRITER_COUNT: usize = 64;

/// Inserts by several owners at the same time.
pub(super) fn owners(bench: &mut Bench, plain: &PlainInserts) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    for count in OWNER_COUNTS {
        let row = format!("insert, {WRITER_COUNT} writers, owner processes: {count}");
        if !bench.is_selected(&row) {
            continue;
        }
        let start = |number| {
            let path = bench.scratch.fresh_path(&format!("owner-{number}.stemma"))?;
            Owner::start(&path, WRITER_COUNT / count, bench.scale.document_count)
        };
        let owners = RefCell::new((0..count).map(start).collect::<Result<Vec<_>>>()?);
        let latencies = RefCell::new(Samples::default());
        let turn = |run: usize, samples: &mut Samples| -> Result<()> {
            let (mut owners, mut latencies) = (owners.borrow_mut(), latencies.borrow_mut());
            latencies.begin_repetition();
            let begun = Instant::now();
            owners.iter_mut().try_for_each(|owner| owner.begin_turn(run))?;
            let mut insert_count = 0;
            for owner in &mut *owners {
                let of_owner = owner.end_turn()?;
                insert_count += of_owner.len();
                of_owner.into_iter().for_each(|latency| latencies.push(latency));
            }
            samples.push(begun.elapsed().as_nanos() as f64 / insert_count.max(1) as f64);
            Ok(())
        };
        let mut contenders = [
            Contender::new("stemma", turn),
            Contender::new(INSERTS, |run, samples: &mut Samples| plain.turn(&corpus, WRITER_COUNT, run, samples)),
        ];
        let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
        drop(contenders);
        let rate = heading(bench, &row, RATE, Vec::new());
        bench.push(ResultRow::new(rate, &samples[0], &[(INSERTS, &samples[1])]))?;
        let latency = heading(bench, &format!("{row}: latency"), Unit::Milliseconds, Vec::new());
        bench.push(ResultRow::new(latency, &latencies.into_inner(), &[]))?;
    }
    Ok(())
}

/// A process that owns a database. It ends when it is dropped.
struct Owner {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Owner {
    fn start(path: &Path, writer_count: usize, document_count: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("owner-child")
            .arg(path)
            .args([writer_count as u64, document_count].map(|count| count.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the owner has no output")?;
        let mut owner = Owner { child, lines: BufReader::new(output).lines() };
        owner.line()?;
        Ok(owner)
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().ok_or("an owner has failed")??)
    }

    fn begin_turn(&mut self, run: usize) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().ok_or("the owner has no input")?, "{run}")?)
    }

    /// Waits for the end of the turn; returns the latencies of its inserts, in nanoseconds.
    fn end_turn(&mut self) -> Result<Vec<f64>> {
        Ok(self.line()?.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// Entry point of an owner: opens a database, and inserts for a turn for each line of stdin, which has its number.
pub(crate) fn owner_child(path: &Path, writer_count: usize, document_count: u64) -> Result<()> {
    let cluster = Cluster::connect(ClusterOptions::new([std::env::var(NODE_VARIABLE)?], KEYSPACE))?;
    let database = open(&cluster, path)?;
    let corpus = Corpus::generate(Records::new(SEED), document_count);
    println!("ready");
    for line in std::io::stdin().lines() {
        let run: usize = line?.trim().parse()?;
        let (begun, next) = (Instant::now(), AtomicUsize::new(0));
        let write = || -> Result<Vec<String>> {
            let mut latencies = Vec::new();
            while begun.elapsed() < TURN {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let (id, json) = document(&corpus, number);
                let sent = Instant::now();
                database.edit(insert_edit(&format!("{run}-{number}-{id}"), json)?)?;
                latencies.push(sent.elapsed().as_nanos().to_string());
            }
            Ok(latencies)
        };
        let latencies = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..writer_count).map(|_| scope.spawn(write)).collect();
            let ended = writers.into_iter().map(|writer| writer.join().map_err(|_| "a writer failed")?);
            ended.collect::<Result<Vec<_>>>()
        })?;
        println!("{}", latencies.concat().join(" "));
    }
    Ok(())
}
