//! Many databases as one: a federation and a virtual database beside one database with the same documents, and the
//! requests of clients while a shard splits.
//!
//! All databases give the same answers, which is checked before they are measured.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::{Database, DocumentId, Durability, Options, Selector, field};
use stemmadb_federation::{Federation, Grouping, VirtualDatabase};

use super::{BATCH_COUNT, Bench, SEED, insert_edit};
use crate::Result;
use crate::harness::{Contender, Heading, Random, ResultRow, Samples, Stopwatch, Unit, alternate};
use crate::server::{Connection, Endpoint, ServerProcess};
use crate::workload::{Corpus, OF_TEN, Records, UNIQUE};

/// The number of members and of shards.
const SHARD_COUNT: usize = 8;
/// Reads by id for one sample, and requests.
const GET_COUNT: usize = 1_000;
const REQUEST_COUNT: usize = 500;
/// Clients while a shard splits.
const CLIENT_COUNT: usize = 4;
/// How long they run before it splits, beside the duration of a turn.
const TURNS_BEFORE: u64 = 20;

/// The name of the database with all documents.
const ONE: &str = "one-database";
const SLOWEST: &str = "slowest-shard";
const BEFORE: &str = "before";
const BOUND: &str = "bound";
/// Targets: what the best ten may cost beside one database, a count beside the slowest shard, a request while a shard
/// splits beside one before; and what a read by id may cost in addition.
const BEST_TARGET: f64 = 1.0 / 1.5;
const COUNT_TARGET: f64 = 1.0 / 1.2;
const SPLIT_TARGET: f64 = 1.0 / 3.0;
const GET_NS_MORE: f64 = 10_000.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = ["best ten", "best ten of a tenth", "count", "get by id"].map(|row| format!("{row}, 8 shards"));
    if rows.iter().any(|row| bench.is_selected(row)) {
        let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
        let databases = Databases::make(bench, &corpus)?;
        let of_a_tenth = field(OF_TEN[4]).eq(3);
        best_ten(bench, &databases, &rows[0], &Selector::everything())?;
        best_ten(bench, &databases, &rows[1], &of_a_tenth)?;
        counts(bench, &databases, &rows[2], &of_a_tenth.and(field(UNIQUE[0]).lt("n")))?;
        gets(bench, &databases, &corpus, &rows[3])?;
        databases.close()?;
    }
    let requests = "GET, 8 shards on a server";
    let split = "GET and PUT, 4 clients: p99 while a shard splits";
    if bench.is_selected(requests) || bench.is_selected(split) {
        let directory = bench.scratch.fresh_path("many")?;
        let server = ServerProcess::start(&directory, "none")?;
        let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
        if bench.is_selected(requests) {
            served_gets(bench, &server.endpoint(), &corpus, requests)?;
        }
        if bench.is_selected(split) {
            splitting(bench, &server.endpoint(), &corpus, split)?;
        }
    }
    Ok(())
}

fn heading(bench: &Bench, row: &str, unit: Unit, targets: Vec<(&'static str, f64)>) -> Heading {
    Heading { experiment: "many", targets, ..bench.heading(row, bench.scale.document_count, false, unit) }
}

/// The same documents in one database, and in the shards of a virtual database, which are the members of a federation.
struct Databases {
    one: Database,
    shards: Vec<Database>,
    federation: Federation,
    virtual_database: VirtualDatabase,
}

fn open(path: &PathBuf) -> Result<Database> {
    Ok(Database::open_with(path, Options::new().durability(Durability::None))?)
}

fn members(shards: &[Database]) -> Vec<(String, Database)> {
    let named = |(number, shard): (usize, &Database)| (format!("shard-{}", number + 1), shard.clone());
    shards.iter().enumerate().map(named).collect()
}

impl Databases {
    fn make(bench: &Bench, corpus: &Corpus) -> Result<Self> {
        eprintln!("loading the databases");
        let path = bench.scratch.fresh_path("one.stemma")?;
        let shard_path = |number| bench.scratch.fresh_path(&format!("shard-{number}.stemma"));
        let shard_paths = (0..SHARD_COUNT).map(shard_path).collect::<Result<Vec<_>>>()?;
        let open_shards = || shard_paths.iter().map(open).collect::<Result<Vec<_>>>();
        let (one, shards) = (open(&path)?, open_shards()?);
        let virtual_database = VirtualDatabase::create(members(&shards), Grouping::ById)?;
        for batch in corpus.batches(BATCH_COUNT) {
            let edits = batch.iter().map(|(id, json)| insert_edit(id, json)).collect::<Result<Vec<_>>>()?;
            for outcome in one.bulk(edits.clone())?.into_iter().chain(virtual_database.bulk(edits)?) {
                outcome?;
            }
        }
        // Closing merges everything.
        drop(virtual_database);
        shards.into_iter().chain([one]).try_for_each(|database| database.close())?;
        let (one, shards) = (open(&path)?, open_shards()?);
        let federation = Federation::over(members(&shards))?.disjoint(true);
        let virtual_database = VirtualDatabase::open(members(&shards))?;
        Ok(Databases { one, shards, federation, virtual_database })
    }

    fn close(self) -> Result<()> {
        drop((self.federation, self.virtual_database));
        Ok(self.shards.into_iter().chain([self.one]).try_for_each(|database| database.close())?)
    }
}

/// Repeats work for the duration of a turn, and adds a sample for each time.
fn repeat(bench_ms: u64, stopwatch: &Stopwatch, samples: &mut Samples, work: impl Fn() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(bench_ms) {
        samples.push(stopwatch.nanoseconds(1, &work)?);
    }
    Ok(())
}

/// The ten documents with the greatest values.
fn best_ten(bench: &mut Bench, databases: &Databases, row: &str, selector: &Selector) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let sorted = UNIQUE[2];
    let federated = || -> Result<Vec<DocumentId>> {
        let found = databases.federation.find(selector.clone()).sort_descending(sorted).limit(10).documents()?;
        Ok(found.into_iter().map(|document| document.id().clone()).collect())
    };
    let whole = || -> Result<Vec<DocumentId>> {
        let found = databases.one.find(selector.clone()).sort_descending(sorted).limit(10).documents()?;
        Ok(found.into_iter().map(|document| document.id().clone()).collect())
    };
    let expected = whole()?;
    if expected.len() != 10 || federated()? != expected {
        return Err(format!("{row}: {:?} instead of {expected:?}", federated()?).into());
    }
    let (stopwatch, turn_ms) = (Stopwatch::new(bench.clock), bench.scale.query_turn_ms);
    let mut contenders = [
        Contender::new("stemma", |_, samples: &mut Samples| {
            repeat(turn_ms, &stopwatch, samples, || federated().map(drop))
        }),
        Contender::new(ONE, |_, samples: &mut Samples| repeat(turn_ms, &stopwatch, samples, || whole().map(drop))),
    ];
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Microseconds, vec![(ONE, BEST_TARGET)]);
    let heading = Heading { rows: Some(10), ..heading };
    bench.push(ResultRow::new(heading, &samples[0], &[(ONE, &samples[1])]))
}

/// A count over all shards, beside that of the slowest shard and of one database.
fn counts(bench: &mut Bench, databases: &Databases, row: &str, selector: &Selector) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let all = || -> Result<u64> { Ok(databases.virtual_database.find(selector.clone()).count()?) };
    let whole = || -> Result<u64> { Ok(databases.one.find(selector.clone()).count()?) };
    if all()? != whole()? || all()? == 0 {
        return Err(format!("{row}: {} instead of {}", all()?, whole()?).into());
    }
    let (stopwatch, turn_ms) = (Stopwatch::new(bench.clock), bench.scale.query_turn_ms);
    let slowest = |_: usize, samples: &mut Samples| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(turn_ms) {
            let mut slowest = 0.0_f64;
            for shard in &databases.shards {
                let count = || Ok(shard.find(selector.clone()).count().map(drop)?);
                slowest = slowest.max(stopwatch.nanoseconds(1, count)?);
            }
            samples.push(slowest);
        }
        Ok(())
    };
    let mut contenders = [
        Contender::new("stemma", |_, samples: &mut Samples| repeat(turn_ms, &stopwatch, samples, || all().map(drop))),
        Contender::new(SLOWEST, slowest),
        Contender::new(ONE, |_, samples: &mut Samples| repeat(turn_ms, &stopwatch, samples, || whole().map(drop))),
    ];
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Microseconds, vec![(SLOWEST, COUNT_TARGET)]);
    bench.push(ResultRow::new(heading, &samples[0], &[(SLOWEST, &samples[1]), (ONE, &samples[2])]))
}

/// The cost of one database with what a virtual one may cost in addition, in nanoseconds.
fn with_more(one: &Samples) -> Samples {
    Samples::from_costs([one.summary(Unit::Nanoseconds).p50 + GET_NS_MORE])
}

/// Reads by id.
fn gets(bench: &mut Bench, databases: &Databases, corpus: &Corpus, row: &str) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let stopwatch = Stopwatch::new(bench.clock);
    let read = |samples: &mut Samples, repetition: usize, get: &dyn Fn(&str) -> Result<bool>| -> Result<()> {
        let mut random = Random::new(repetition as u64);
        let ids: Vec<&str> = (0..GET_COUNT).map(|_| corpus.id(random.below(corpus.len() as u64) as usize)).collect();
        samples.push(stopwatch.nanoseconds(GET_COUNT, || {
            for id in ids {
                if !get(id)? {
                    return Err(format!("{id} is missing").into());
                }
            }
            Ok(())
        })?);
        Ok(())
    };
    let in_shards = |id: &str| Ok(databases.virtual_database.get(id)?.is_some());
    let in_one = |id: &str| Ok(databases.one.get(id)?.is_some());
    let mut contenders = [
        Contender::new("stemma", |repetition, samples: &mut Samples| read(samples, repetition, &in_shards)),
        Contender::new(ONE, |repetition, samples: &mut Samples| read(samples, repetition, &in_one)),
    ];
    let samples = alternate(bench.scale.repetition_count * 10, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Nanoseconds, vec![(BOUND, 1.0)]);
    let bound = with_more(&samples[1]);
    bench.push(ResultRow::new(heading, &samples[0], &[(BOUND, &bound), (ONE, &samples[1])]))
}

/// Creates a database on the server, and fills it.
fn fill(endpoint: &Endpoint, path: &str, parameters: &str, corpus: &Corpus) -> Result<()> {
    endpoint.expect_status(201, "PUT", &format!("{path}{parameters}"), None)?;
    let mut connection = Connection::open(endpoint.address)?;
    for batch in corpus.batches(BATCH_COUNT) {
        let docs: Vec<String> =
            batch.iter().map(|(id, json)| json.replacen('{', &format!("{{\"_id\":\"{id}\","), 1)).collect();
        let body = format!("{{\"docs\":[{}]}}", docs.join(","));
        let response = connection.send(&endpoint.request("POST", &format!("{path}/_bulk_docs"), Some(&body)))?;
        if response.status != 201 {
            return Err(format!("_bulk_docs: {}", response.status).into());
        }
    }
    let count = endpoint.expect_status(200, "GET", path, None)?["doc_count"].clone();
    if count != corpus.len() { Err(format!("{count} documents instead of {}", corpus.len()).into()) } else { Ok(()) }
}

/// Requests for single documents, of one client.
fn served_gets(bench: &mut Bench, endpoint: &Endpoint, corpus: &Corpus, row: &str) -> Result<()> {
    fill(endpoint, "/sharded", &format!("?shards={SHARD_COUNT}"), corpus)?;
    fill(endpoint, "/one", "", corpus)?;
    let read = |database: &'static str| {
        move |repetition: usize, samples: &mut Samples| {
            let (mut connection, mut random) = (Connection::open(endpoint.address)?, Random::new(repetition as u64));
            for _ in 0..REQUEST_COUNT {
                let id = corpus.id(random.below(corpus.len() as u64) as usize);
                let request = endpoint.request("GET", &format!("/{database}/{id}"), None);
                let sent = Instant::now();
                let response = connection.send(&request)?;
                samples.push(sent.elapsed().as_nanos() as f64);
                if response.status != 200 {
                    return Err(format!("GET: {}", response.status).into());
                }
            }
            Ok(())
        }
    };
    let mut contenders = [Contender::new("stemma", read("sharded")), Contender::new(ONE, read("one"))];
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Microseconds, vec![(BOUND, 1.0)]);
    let bound = with_more(&samples[1]);
    bench.push(ResultRow::new(heading, &samples[0], &[(BOUND, &bound), (ONE, &samples[1])]))
}

/// When a request was sent, and its latency in nanoseconds.
type Request = (Instant, f64);

/// The requests of one client.
fn client(endpoint: &Endpoint, corpus: &Corpus, name: &str, is_done: &AtomicBool) -> Result<Vec<Request>> {
    let (mut connection, mut random) = (Connection::open(endpoint.address)?, Random::new(name.len() as u64));
    let mut requests = Vec::new();
    while !is_done.load(Ordering::Relaxed) {
        let number = requests.len();
        let (request, expected) = match number % 2 {
            0 => {
                let id = corpus.id(random.below(corpus.len() as u64) as usize);
                (endpoint.request("GET", &format!("/grown/{id}"), None), 200)
            }
            _ => (endpoint.request("PUT", &format!("/grown/{name}-{number}"), Some(corpus.json(0))), 201),
        };
        let sent = Instant::now();
        let response = connection.send(&request)?;
        requests.push((sent, sent.elapsed().as_nanos() as f64));
        if response.status != expected {
            let text = String::from_utf8_lossy(&response.body);
            return Err(format!("a request failed: {} instead of {expected}: {text}", response.status).into());
        }
    }
    Ok(requests)
}

/// Runs clients until `work` has ended; returns their requests, none of which may fail.
fn beside_clients(
    endpoint: &Endpoint,
    corpus: &Corpus,
    name: &str,
    work: impl FnOnce() -> Result<()>,
) -> Result<Vec<Request>> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = |number: usize| {
            let (name, is_done) = (format!("{name}-{number}"), &is_done);
            scope.spawn(move || client(endpoint, corpus, &name, is_done))
        };
        let clients: Vec<_> = (0..CLIENT_COUNT).map(run).collect();
        let worked = work();
        is_done.store(true, Ordering::Relaxed);
        let mut requests = Vec::new();
        for client in clients {
            requests.extend(client.join().map_err(|_| "a client failed")??);
        }
        worked.map(|()| requests)
    })
}

/// The 99th percentile of the latencies, in nanoseconds; 0 without requests.
fn p99<'a>(requests: impl IntoIterator<Item = &'a Request>) -> f64 {
    let mut costs: Vec<f64> = requests.into_iter().map(|(_, cost)| *cost).collect();
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default()
}

/// Reads and writes while the only shard splits.
fn splitting(bench: &mut Bench, endpoint: &Endpoint, corpus: &Corpus, row: &str) -> Result<()> {
    fill(endpoint, "/grown", "?shards=1", corpus)?;
    let duration = Duration::from_millis(bench.scale.turn_ms * TURNS_BEFORE);
    let before = beside_clients(endpoint, corpus, "before", || {
        std::thread::sleep(duration);
        Ok(())
    })?;
    let (mut seconds, mut removed_for, mut removes_since) = (0.0, 0.0, None);
    let during = beside_clients(endpoint, corpus, "during", || {
        let begun = Instant::now();
        endpoint.expect_status(202, "POST", "/grown/_shards", Some(&json!({"split": "shard-1"}).to_string()))?;
        loop {
            let state = endpoint.expect_status(200, "GET", "/grown/_shards", None)?;
            if state["move"].is_null() && state["shards"].as_array().is_some_and(|shards| shards.len() == 2) {
                break;
            }
            match state["move"]["state"].as_str() {
                Some("stopped") => return Err(format!("the split failed: {state}").into()),
                Some("removing") => drop(removes_since.get_or_insert_with(Instant::now)),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        seconds = begun.elapsed().as_secs_f64();
        removed_for = removes_since.map_or(0.0, |since: Instant| since.elapsed().as_secs_f64());
        Ok(())
    })?;
    let (removing, copying): (Vec<&Request>, Vec<&Request>) =
        during.iter().partition(|(sent, _)| removes_since.is_some_and(|since| *sent >= since));
    let (copying, removing) = (p99(copying) / 1e6, p99(removing) / 1e6);
    let note = format!(
        "{} requests while it split for {seconds:.1} s, none failed; {copying:.1} ms while documents were copied, \
         {removing:.1} ms while they were removed for {removed_for:.1} s",
        during.len()
    );
    let heading = heading(bench, row, Unit::Microseconds, vec![(BEFORE, SPLIT_TARGET)]);
    let heading = Heading { note: Some(note), ..heading };
    let (ours, before) = (Samples::from_costs([p99(&during)]), Samples::from_costs([p99(&before)]));
    bench.push(ResultRow::new(heading, &ours, &[(BEFORE, &before)]))
}
