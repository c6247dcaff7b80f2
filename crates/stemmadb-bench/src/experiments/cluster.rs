//! A database whose log is in a Cassandra cluster, beside plain quorum inserts of the same documents into the same
//! cluster, and beside a database on the local disk.
//!
//! `STEMMA_CASSANDRA` names a node of the cluster.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use stemmadb::{Database, Edit, Options, field};
use stemmadb_cassandra::{Cluster, ClusterOptions};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::{BATCH_COUNT, Bench, SEED, insert_edit};
use crate::Result;
use crate::harness::{Contender, Heading, Random, ResultRow, Samples, Stopwatch, Unit, alternate, process_kib};
use crate::workload::{Corpus, OF_TEN, Records};

pub(super) const NODE_VARIABLE: &str = "STEMMA_CASSANDRA";
pub(super) const KEYSPACE: &str = "stemma_bench";

/// The names of the peers.
pub(super) const INSERTS: &str = "cassandra-inserts";
const EMBEDDED: &str = "embedded";

/// Targets: inserts beside plain ones, reads beside those of a database on the disk.
const INSERT_TARGET: f64 = 5.0;
const READ_TARGET: f64 = 1.0 / 1.2;

/// Clients that write at the same time, and how many databases share them.
const WRITERS_AND_SHARDS: [(usize, usize); 5] = [(64, 1), (64, 2), (64, 4), (64, 8), (512, 1)];
/// The most requests that the plain inserts have under way beside batches.
const IN_FLIGHT_COUNT: usize = 256;
/// How many databases append at the same time, and how many are opened to see how much memory one takes.
const APPENDING_COUNT: usize = 8;
const OPEN_COUNT: usize = 50;
/// How long a turn of inserts takes.
pub(super) const TURN: Duration = Duration::from_secs(3);
/// Rows from which the report computes what many databases need.
pub(crate) const APPENDS: &str = "appends of 8 databases at the same time";
pub(crate) const MEMORY: &str = "memory of an open database";
pub(crate) const TAKE_OVER: &str = "take over with nothing local";
/// The bytes of a document in the log, in one of its copies.
const STORED: &str = "stored for each document and copy";
/// Reads by id for one sample.
const GET_COUNT: usize = 1_000;

pub(super) const RATE: Unit = Unit::PerSecond("documents/s");

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let node = std::env::var(NODE_VARIABLE)
        .map_err(|_| format!("{NODE_VARIABLE} names no node: run `just cluster up`, and set it to 127.0.0.1:9042"))?;
    let cluster = Cluster::connect(ClusterOptions::new([&node], KEYSPACE))?;
    // First, before the allocator has memory of other rows.
    memory(bench, &cluster)?;
    let plain = PlainInserts::new(&node)?;
    single_inserts(bench, &cluster, &plain)?;
    many_writers(bench, &cluster, &plain)?;
    super::cluster_owners::owners(bench, &plain)?;
    bulk_inserts(bench, &cluster, &plain)?;
    appends(bench, &cluster)?;
    reads(bench, &cluster)
}

pub(super) fn heading(bench: &Bench, row: &str, unit: Unit, targets: Vec<(&'static str, f64)>) -> Heading {
    Heading { experiment: "cluster", targets, ..bench.heading(row, bench.scale.document_count, true, unit) }
}

/// A database with a new log in the cluster.
pub(super) fn open(cluster: &Cluster, path: &Path) -> Result<Database> {
    let name = Uuid::new_v4().simple().to_string();
    Ok(Database::open_with(path, Options::new().log_storage(cluster.log(&name)))?)
}

/// Documents that are inserted into a table, one statement each.
pub(super) struct PlainInserts {
    runtime: Runtime,
    session: Session,
    insert: PreparedStatement,
}

impl PlainInserts {
    fn new(node: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let (session, insert) = runtime.block_on(async {
            let profile = ExecutionProfile::builder().consistency(Consistency::Quorum).build();
            let builder = SessionBuilder::new().known_node(node);
            let session = builder.default_execution_profile_handle(profile.into_handle()).build().await?;
            session.use_keyspace(KEYSPACE, false).await?;
            let create = "CREATE TABLE IF NOT EXISTS plain (id text PRIMARY KEY, body blob)";
            session.query_unpaged(create, ()).await?;
            let insert = session.prepare("INSERT INTO plain (id, body) VALUES (?, ?)").await?;
            Ok::<_, crate::Failure>((session, insert))
        })?;
        Ok(PlainInserts { runtime, session, insert })
    }

    /// Inserts documents for the time of a turn, with so many under way; adds the mean cost of one.
    pub(super) fn turn(&self, corpus: &Corpus, in_flight: usize, run: usize, samples: &mut Samples) -> Result<()> {
        let (begun, next) = (Instant::now(), AtomicUsize::new(0));
        self.runtime.block_on(async {
            let worker = async || -> Result<()> {
                while begun.elapsed() < TURN {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (id, json) = document(corpus, number);
                    let values = (format!("{run}-{number}-{id}"), json.as_bytes());
                    self.session.execute_unpaged(&self.insert, values).await?;
                }
                Ok(())
            };
            futures_util::future::try_join_all((0..in_flight).map(|_| worker())).await
        })?;
        samples.push(begun.elapsed().as_nanos() as f64 / next.into_inner() as f64);
        Ok(())
    }
}

pub(super) fn document(corpus: &Corpus, number: usize) -> (&str, &str) {
    let at = number % corpus.len();
    corpus.documents(at..at + 1)[0]
}

/// Inserts documents for the time of a turn, with so many threads in each database; adds the mean cost of one.
fn insert_for_a_turn(
    databases: &[Database],
    threads: usize,
    corpus: &Corpus,
    run: usize,
    samples: &mut Samples,
) -> Result<()> {
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let write = |database: &Database| -> Result<()> {
        while begun.elapsed() < TURN {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (id, json) = document(corpus, number);
            database.edit(insert_edit(&format!("{run}-{number}-{id}"), json)?)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = databases
            .iter()
            .flat_map(|database| (0..threads).map(move |_| scope.spawn(move || write(database))))
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer failed")?)
    })?;
    samples.push(begun.elapsed().as_nanos() as f64 / next.into_inner() as f64);
    Ok(())
}

/// One writer: each insert waits for the cluster.
fn single_inserts(bench: &mut Bench, cluster: &Cluster, plain: &PlainInserts) -> Result<()> {
    let row = "insert, 1 writer: latency";
    if !bench.is_selected(row) {
        return Ok(());
    }
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    let database = [open(cluster, &bench.scratch.fresh_path("single.stemma")?)?];
    let mut contenders = [
        Contender::new("stemma", |run, samples: &mut Samples| insert_for_a_turn(&database, 1, &corpus, run, samples)),
        Contender::new(INSERTS, |run, samples: &mut Samples| plain.turn(&corpus, 1, run, samples)),
    ];
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Milliseconds, Vec::new());
    bench.push(ResultRow::new(heading, &samples[0], &[(INSERTS, &samples[1])]))
}

/// Many writers, whose documents share appends, in one database and in several.
fn many_writers(bench: &mut Bench, cluster: &Cluster, plain: &PlainInserts) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    for (writer_count, shard_count) in WRITERS_AND_SHARDS {
        let row = format!("insert, {writer_count} writers, shards: {shard_count}");
        if !bench.is_selected(&row) {
            continue;
        }
        let open = |number| open(cluster, &bench.scratch.fresh_path(&format!("shard-{number}.stemma"))?);
        let databases = (0..shard_count).map(open).collect::<Result<Vec<_>>>()?;
        let threads = writer_count / shard_count;
        let mut contenders = [
            Contender::new("stemma", |run, samples: &mut Samples| {
                insert_for_a_turn(&databases, threads, &corpus, run, samples)
            }),
            Contender::new(INSERTS, |run, samples: &mut Samples| plain.turn(&corpus, writer_count, run, samples)),
        ];
        let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
        drop(contenders);
        let targets = if shard_count == 1 { vec![(INSERTS, INSERT_TARGET)] } else { Vec::new() };
        let heading = heading(bench, &row, RATE, targets);
        bench.push(ResultRow::new(heading, &samples[0], &[(INSERTS, &samples[1])]))?;
    }
    Ok(())
}

/// How many appends the cluster takes: one document each, in several databases at the same time.
fn appends(bench: &mut Bench, cluster: &Cluster) -> Result<()> {
    if !bench.is_selected(APPENDS) {
        return Ok(());
    }
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    let open = |number| open(cluster, &bench.scratch.fresh_path(&format!("appending-{number}.stemma"))?);
    let databases = (0..APPENDING_COUNT).map(open).collect::<Result<Vec<_>>>()?;
    let turn = |run, samples: &mut Samples| insert_for_a_turn(&databases, 1, &corpus, run, samples);
    let samples = alternate(bench.scale.repetition_count, &mut [Contender::new("stemma", turn)])?;
    let heading = heading(bench, APPENDS, Unit::PerSecond("appends/s"), Vec::new());
    bench.push(ResultRow::new(heading, &samples[0], &[]))
}

/// The memory of an open database with a few documents.
fn memory(bench: &mut Bench, cluster: &Cluster) -> Result<()> {
    if !bench.is_selected(MEMORY) {
        return Ok(());
    }
    let resident =
        || process_kib(std::process::id(), "RssAnon").ok_or("the system does not say how much memory we use");
    let (mut samples, mut kept) = (Samples::default(), Vec::new());
    for repetition in 0..bench.scale.repetition_count {
        samples.begin_repetition();
        let before = resident()?;
        let open = |number| {
            let name = format!("open-{repetition}-{number}.stemma");
            let database = open(cluster, &bench.scratch.fresh_path(&name)?)?;
            database.insert("a", &serde_json::json!({"number": number}))?;
            Ok(database)
        };
        let databases = (0..OPEN_COUNT).map(open).collect::<Result<Vec<Database>>>()?;
        samples.push(resident()?.saturating_sub(before) as f64 / databases.len() as f64);
        // What they have must not be used again by the next ones.
        kept.extend(databases);
    }
    let heading = Heading { documents: 1, ..heading(bench, MEMORY, Unit::Amount("KiB"), Vec::new()) };
    bench.push(ResultRow::new(heading, &samples, &[]))
}

/// Batches of documents.
fn bulk_inserts(bench: &mut Bench, cluster: &Cluster, plain: &PlainInserts) -> Result<()> {
    let row = "insert, in batches";
    if !bench.is_selected(row) {
        return Ok(());
    }
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    let database = open(cluster, &bench.scratch.fresh_path("bulk.stemma")?)?;
    let batches: Vec<_> = corpus.batches(BATCH_COUNT).collect();
    let bulk = |run: usize, samples: &mut Samples| -> Result<()> {
        let (begun, mut count) = (Instant::now(), 0);
        for batch in batches.iter().cycle() {
            if begun.elapsed() > TURN {
                break;
            }
            let edit = |(at, (id, json)): (usize, &(&str, &str))| -> Result<Edit> {
                insert_edit(&format!("{run}-{}-{id}", count + at), json)
            };
            let edits = batch.iter().enumerate().map(edit).collect::<Result<Vec<_>>>()?;
            for outcome in database.bulk(edits)? {
                outcome?;
                count += 1;
            }
        }
        samples.push(begun.elapsed().as_nanos() as f64 / count as f64);
        Ok(())
    };
    let mut contenders = [
        Contender::new("stemma", bulk),
        Contender::new(INSERTS, |run, samples: &mut Samples| plain.turn(&corpus, IN_FLIGHT_COUNT, run, samples)),
    ];
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, RATE, vec![(INSERTS, INSERT_TARGET)]);
    bench.push(ResultRow::new(heading, &samples[0], &[(INSERTS, &samples[1])]))
}

/// What the log takes in the cluster, as each of three copies.
fn stored(bench: &mut Bench, database: &Database, document_count: usize) -> Result<()> {
    let bytes = Samples::from_costs([database.info()?.log_bytes as f64 / document_count as f64]);
    let heading = heading(bench, STORED, Unit::Amount("bytes"), Vec::new());
    bench.push(ResultRow::new(heading, &bytes, &[]))
}

/// Reads and queries, beside a database on the disk; and a take-over.
fn reads(bench: &mut Bench, cluster: &Cluster) -> Result<()> {
    let rows = ["get by id", "find one of ten", TAKE_OVER, "take over with an old directory"];
    if !rows.iter().any(|row| bench.is_selected(row)) {
        return Ok(());
    }
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    let log = Uuid::new_v4().simple().to_string();
    let path = bench.scratch.fresh_path("owned.stemma")?;
    let open_at = |path: &Path| Database::open_with(path, Options::new().log_storage(cluster.log(&log)));
    let (owned, embedded) = (open_at(&path)?, Database::open(bench.scratch.fresh_path("embedded.stemma")?)?);
    for batch in corpus.batches(BATCH_COUNT) {
        let edits = batch.iter().map(|(id, json)| insert_edit(id, json)).collect::<Result<Vec<_>>>()?;
        for outcome in owned.bulk(edits.clone())?.into_iter().chain(embedded.bulk(edits)?) {
            outcome?;
        }
    }
    stored(bench, &owned, corpus.len())?;
    let stopwatch = Stopwatch::new(bench.clock);
    let get = |database: &Database, run: usize, samples: &mut Samples| -> Result<()> {
        let mut random = Random::new(run as u64);
        let ids: Vec<&str> = (0..GET_COUNT).map(|_| corpus.id(random.below(corpus.len() as u64) as usize)).collect();
        samples.push(stopwatch.nanoseconds(GET_COUNT, || {
            let found = ids.iter().map(|id| Ok(usize::from(database.get(id)?.is_some()))).sum::<Result<usize>>()?;
            if found == GET_COUNT { Ok(()) } else { Err(format!("{found} of {GET_COUNT} were found").into()) }
        })?);
        Ok(())
    };
    let find = |database: &Database, samples: &mut Samples| -> Result<()> {
        let selector = field(OF_TEN[4]).eq(3);
        samples.push(stopwatch.nanoseconds(1, || {
            let found = database.find(selector.clone()).limit(100).documents()?.len();
            if found == 100 { Ok(()) } else { Err(format!("{found} rows").into()) }
        })?);
        Ok(())
    };
    let repetitions = bench.scale.repetition_count * 10;
    let mut contenders = [
        Contender::new("stemma", |run, samples: &mut Samples| get(&owned, run, samples)),
        Contender::new(EMBEDDED, |run, samples: &mut Samples| get(&embedded, run, samples)),
    ];
    let samples = alternate(repetitions, &mut contenders)?;
    drop(contenders);
    let row_heading = heading(bench, rows[0], Unit::Nanoseconds, vec![(EMBEDDED, READ_TARGET)]);
    bench.push(ResultRow::new(row_heading, &samples[0], &[(EMBEDDED, &samples[1])]))?;
    let mut contenders = [
        Contender::new("stemma", |_, samples: &mut Samples| find(&owned, samples)),
        Contender::new(EMBEDDED, |_, samples: &mut Samples| find(&embedded, samples)),
    ];
    let samples = alternate(repetitions, &mut contenders)?;
    drop(contenders);
    let row_heading = heading(bench, rows[1], Unit::Microseconds, vec![(EMBEDDED, READ_TARGET)]);
    bench.push(ResultRow::new(row_heading, &samples[0], &[(EMBEDDED, &samples[1])]))?;
    owned.close()?;
    embedded.close()?;

    let (mut nothing_local, mut old_directory) = (Samples::default(), Samples::default());
    for _ in 0..bench.scale.repetition_count {
        let fresh = bench.scratch.fresh_path("fresh.stemma")?;
        for (path, samples) in [(&fresh, &mut nothing_local), (&path, &mut old_directory)] {
            samples.begin_repetition();
            let begun = Instant::now();
            let database = open_at(path)?;
            samples.push(begun.elapsed().as_nanos() as f64);
            if database.find(field(OF_TEN[4]).eq(3)).count()? == 0 {
                return Err("documents are missing after a take-over".into());
            }
            database.close()?;
        }
    }
    let first = heading(bench, rows[2], Unit::Milliseconds, Vec::new());
    bench.push(ResultRow::new(first, &nothing_local, &[]))?;
    let second = heading(bench, rows[3], Unit::Milliseconds, Vec::new());
    bench.push(ResultRow::new(second, &old_directory, &[]))
}
