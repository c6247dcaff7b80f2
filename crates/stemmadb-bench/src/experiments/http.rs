//! The server: requests in a second and what each takes, with 1 to 256 clients that keep their connections, on this machine beside it.
//!
//! Every answer is looked at: its status, and that it is what was asked for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Bench, single};
use crate::Result;
use crate::harness::{Row, Samples, Unit};
use crate::served::{Answer, Connection, Served, Site};

const CONNECTION_COUNTS: [usize; 4] = [1, 16, 64, 256];
/// Documents that are there to be read and found.
const DOCUMENT_COUNT: u64 = 20_000;
const BATCH_COUNT: u64 = 500;
/// Of so many documents one is found.
const KIND_COUNT: u64 = 1_000;
/// Longpolls that wait for a write each.
const NOTICE_COUNT: usize = 200;

/// What the issue expects: requests in a second, parts of a flush, how long a view's first answer takes, and memory at rest.
const GETS_PER_SECOND: f64 = 30_000.0;
const FLUSH_SHARE: f64 = 0.5;
const BUILD_MS: f64 = 500.0;
const REST_MIB: f64 = 30.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let directory = bench.place.fresh("served")?;
    let served = Served::start(&directory, "sync")?;
    let site = served.site();
    std::thread::sleep(Duration::from_secs(1));
    memory(bench, &served, "memory at rest", "VmRSS", Some(REST_MIB))?;
    site.expect(201, "PUT", "/bench", None)?;
    bulk(bench, &site)?;
    build(bench, &site)?;
    for count in CONNECTION_COUNTS {
        let path = |number: usize| ("GET", format!("/bench/{}", id(number as u64 * 7_919 % DOCUMENT_COUNT)), None);
        let is_right = |answer: &Answer| answer.status == 200 && answer.body.starts_with(b"{\"_id\":\"doc-");
        // The number that is expected is one with many clients; one alone waits for each answer.
        let target = (count == 64).then_some(GETS_PER_SECOND);
        load(bench, &site, &format!("GET, {count} connections"), count, 4_000, &path, &is_right, target)?;
    }
    flushes(bench, &site)?;
    for count in &CONNECTION_COUNTS[1..] {
        let unique = AtomicUsize::new(0);
        let path = |_: usize| {
            let path = format!("/bench/new-{count}-{}", unique.fetch_add(1, Ordering::Relaxed));
            ("PUT", path, Some(body(3)))
        };
        let is_right = |answer: &Answer| answer.status == 201;
        load(bench, &site, &format!("PUT, {count} connections"), *count, 1_000, &path, &is_right, None)?;
    }
    let find = |number: usize| {
        let selector = json!({"selector": {"kind": number as u64 % KIND_COUNT}, "limit": 25});
        ("POST", "/bench/_find".to_owned(), Some(selector.to_string()))
    };
    let is_right = |answer: &Answer| {
        let docs = serde_json::from_slice::<Value>(&answer.body).ok();
        let count = docs.and_then(|answer| Some(answer["docs"].as_array()?.len()));
        answer.status == 200 && count.is_some_and(|count| count >= 20)
    };
    for count in [1, 16] {
        load(bench, &site, &format!("_find of 20, {count} connections"), count, 1_000, &find, &is_right, None)?;
    }
    notices(bench, &site)?;
    memory(bench, &served, "memory under load", "VmHWM", None)
}

fn id(number: u64) -> String {
    format!("doc-{number:06}")
}

/// About 300 bytes of JSON.
fn body(number: u64) -> String {
    let text = format!("{number:08}").repeat(24);
    json!({"kind": number % KIND_COUNT, "number": number, "name": format!("Name {number}"), "text": text}).to_string()
}

fn memory(bench: &mut Bench, served: &Served, row: &str, name: &str, bound: Option<f64>) -> Result<()> {
    if !bench.wants(row) {
        return Ok(());
    }
    let ours = Samples::of([served.memory_kib(name)? as f64 / 1024.0]);
    let mut heading = heading(bench, row, Unit::Amount("MiB"));
    let bound = bound.map(|bound| Samples::of([bound]));
    heading.targets = bound.iter().map(|_| ("bound", 1.0)).collect();
    let peers: Vec<(&str, &Samples)> = bound.iter().map(|bound| ("bound", bound)).collect();
    bench.push(Row::new(heading, &ours, &peers))
}

fn heading(bench: &Bench, row: &str, unit: Unit) -> crate::harness::Heading {
    let mut heading = bench.heading(row, DOCUMENT_COUNT, true, unit);
    heading.experiment = "http";
    heading
}

/// Fills the database, which later rows read.
fn bulk(bench: &mut Bench, site: &Site) -> Result<()> {
    let batches: Vec<Vec<u8>> = (0..DOCUMENT_COUNT / BATCH_COUNT)
        .map(|batch| {
            let docs: Vec<Value> = (batch * BATCH_COUNT..(batch + 1) * BATCH_COUNT)
                .map(|number| {
                    let mut doc: Value = serde_json::from_str(&body(number)).expect("made as JSON");
                    doc["_id"] = id(number).into();
                    doc
                })
                .collect();
            site.request("POST", "/bench/_bulk_docs", Some(&json!({"docs": docs}).to_string()))
        })
        .collect();
    let mut connection = Connection::open(site.address)?;
    let start = Instant::now();
    for batch in &batches {
        let answer = connection.ask(batch)?;
        if answer.status != 201 {
            return Err(format!("_bulk_docs: {}", answer.status).into());
        }
    }
    let elapsed = Samples::of([start.elapsed().as_nanos() as f64]);
    let info = site.expect(200, "GET", "/bench", None)?;
    if info["doc_count"] != DOCUMENT_COUNT {
        return Err(format!("{} documents instead of {DOCUMENT_COUNT}", info["doc_count"]).into());
    }
    if !bench.wants("_bulk_docs") {
        return Ok(());
    }
    let heading = heading(bench, "_bulk_docs, 20,000 documents by 500", Unit::Milliseconds);
    bench.push(Row::new(heading, &elapsed, &[]))
}

type Ask = (&'static str, String, Option<String>);

/// Clients ask one request after the other, all at the same time; a row of their rate, and one of what each answer took.
#[expect(clippy::too_many_arguments, reason = "a row is made of so many things")]
fn load(
    bench: &mut Bench,
    site: &Site,
    row: &str,
    connection_count: usize,
    request_count: usize,
    ask: &(dyn Fn(usize) -> Ask + Sync),
    is_right: &(dyn Fn(&Answer) -> bool + Sync),
    target: Option<f64>,
) -> Result<()> {
    if !bench.wants(row) {
        return Ok(());
    }
    let each_count = (request_count * bench.scale.repetition_count / connection_count).max(20);
    let (mut rate, mut latency) = (Samples::default(), Samples::default());
    for repetition in 0..=bench.scale.repetition_count {
        let (elapsed, costs) = at_once(site, connection_count, each_count, ask, is_right)?;
        if repetition == 0 {
            continue;
        }
        rate.push_repetition(elapsed.as_nanos() as f64 / (connection_count * each_count) as f64);
        latency.begin_repetition();
        costs.into_iter().for_each(|cost| latency.push(cost));
    }
    let bound = target.map(|target| Samples::of([1e9 / target]));
    let peers: Vec<(&str, &Samples)> = bound.iter().map(|bound| ("bound", bound)).collect();
    let mut headed = heading(bench, row, Unit::PerSecond("requests/s"));
    headed.targets = peers.iter().map(|(name, _)| (*name, 1.0)).collect();
    bench.push(Row::new(headed, &rate, &peers))?;
    let headed = heading(bench, &format!("{row}: an answer"), Unit::Microseconds);
    bench.push(Row::new(headed, &latency, &[]).with_histograms("stemma", &latency, &[]))
}

fn at_once(
    site: &Site,
    connection_count: usize,
    each_count: usize,
    ask: &(dyn Fn(usize) -> Ask + Sync),
    is_right: &(dyn Fn(&Answer) -> bool + Sync),
) -> Result<(Duration, Vec<f64>)> {
    let mut clients = Vec::new();
    for client in 0..connection_count {
        let requests: Vec<Vec<u8>> = (0..each_count)
            .map(|number| {
                let (method, path, body) = ask(client * each_count + number);
                site.request(method, &path, body.as_deref())
            })
            .collect();
        clients.push((Connection::open(site.address)?, requests));
    }
    let start = Instant::now();
    let done: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
        let ask_all = |(mut connection, requests): (Connection, Vec<Vec<u8>>)| {
            let mut costs = Vec::with_capacity(requests.len());
            for request in &requests {
                let asked = Instant::now();
                let answer = connection.ask(request)?;
                costs.push(asked.elapsed().as_nanos() as f64);
                if !is_right(&answer) {
                    return Err(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)).into());
                }
            }
            Ok(costs)
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || ask_all(client))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a client failed")?).collect()
    });
    let elapsed = start.elapsed();
    let mut costs = Vec::new();
    for done in done {
        costs.extend(done?);
    }
    Ok((elapsed, costs))
}

/// One client writes, and waits for the disk each time; beside the disk alone.
fn flushes(bench: &mut Bench, site: &Site) -> Result<()> {
    let row = "PUT, 1 connection: an answer";
    if !bench.wants(row) {
        return Ok(());
    }
    let file = bench.place.fresh("flushed")?;
    let mut connection = Connection::open(site.address)?;
    let (mut ours, mut disk) = (Samples::default(), Samples::default());
    for repetition in 0..bench.scale.repetition_count {
        ours.begin_repetition();
        disk.begin_repetition();
        for number in 0..200 {
            let request = site.request("PUT", &format!("/bench/flushed-{repetition}-{number}"), Some(&body(5)));
            let asked = Instant::now();
            let answer = connection.ask(&request)?;
            ours.push(asked.elapsed().as_nanos() as f64);
            if answer.status != 201 {
                return Err(format!("PUT: {}", answer.status).into());
            }
        }
        single::flush_bare(&file, 200)?.into_iter().for_each(|cost| disk.push(cost));
    }
    let mut heading = heading(bench, row, Unit::Microseconds);
    heading.targets = vec![("disk-flush", FLUSH_SHARE)];
    bench.push(Row::new(heading, &ours, &[("disk-flush", &disk)]))
}

/// How long from the answer to a write until one hears of it who waits with a longpoll.
fn notices(bench: &mut Bench, site: &Site) -> Result<()> {
    let row = "_changes, longpoll: from a write to the notice";
    if !bench.wants(row) {
        return Ok(());
    }
    let (mut waiting, mut writing) = (Connection::open(site.address)?, Connection::open(site.address)?);
    let mut samples = Samples::default();
    let mut since = site.expect(200, "GET", "/bench/_changes?since=now&limit=1", None)?["last_seq"].clone();
    for number in 0..NOTICE_COUNT {
        let id = format!("notice-{number}");
        let path = format!("/bench/_changes?feed=longpoll&timeout=30000&since={}", encoded(&since));
        let poll = site.request("GET", &path, None);
        let write = site.request("PUT", &format!("/bench/{id}"), Some("{}"));
        let (heard, written) = std::thread::scope(|scope| -> Result<_> {
            let waiting = &mut waiting;
            let poll = scope.spawn(move || waiting.ask(&poll).map(|answer| (answer, Instant::now())));
            // Long enough for the poll to wait; if it does not yet, the notice is no later.
            std::thread::sleep(Duration::from_millis(2));
            let written = writing.ask(&write).map(|answer| (answer, Instant::now()))?;
            Ok((poll.join().map_err(|_| "a client failed")??, written))
        })?;
        let ((answer, heard), (put, returned)) = (heard, written);
        let feed: Value = serde_json::from_slice(&answer.body)?;
        if put.status != 201 || feed["results"][0]["id"] != id {
            return Err(format!("heard of {feed} instead of {id}").into());
        }
        since = feed["last_seq"].clone();
        samples.push(heard.saturating_duration_since(returned).as_nanos() as f64);
    }
    let heading = heading(bench, row, Unit::Microseconds);
    bench.push(Row::new(heading, &samples, &[]))
}

/// A sequence as a parameter.
fn encoded(since: &Value) -> String {
    since.as_str().map_or_else(|| since.to_string(), str::to_owned)
}

/// The first answer of a view in JavaScript, which maps all documents.
fn build(bench: &mut Bench, site: &Site) -> Result<()> {
    let row = "view in JavaScript, first answer";
    if !bench.wants(row) {
        return Ok(());
    }
    let total = site.expect(200, "GET", "/bench", None)?["doc_count"].as_u64().ok_or("no count of documents")?;
    let mut samples = Samples::default();
    for repetition in 0..bench.scale.repetition_count {
        let map = format!("function (doc) {{ emit(doc.kind, {repetition}); }}");
        let design = json!({"views": {"kinds": {"map": map, "reduce": "_count"}}}).to_string();
        let name = format!("/bench/_design/build-{repetition}");
        site.expect(201, "PUT", &name, Some(&design))?;
        let start = Instant::now();
        let answer = site.expect(200, "GET", &format!("{name}/_view/kinds"), None)?;
        samples.push_repetition(start.elapsed().as_nanos() as f64);
        if answer["rows"][0]["value"] != total {
            return Err(format!("the view has {answer} instead of {total} rows").into());
        }
    }
    let mut heading = heading(bench, row, Unit::Milliseconds);
    heading.documents = total;
    heading.targets = vec![("bound", 1.0)];
    bench.push(Row::new(heading, &samples, &[("bound", &Samples::of([BUILD_MS * 1e6]))]))
}
