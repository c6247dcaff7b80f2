//! The server: request rates and latencies with 1 to 256 clients on the same machine, with persistent connections.
//!
//! Every response's status and content are checked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Bench, access_rules, round_trips, single_inserts};
use crate::Result;
use crate::harness::{ResultRow, Samples, Unit, grouped};
use crate::server::{Connection, Endpoint, Response, ServerProcess};

const CONNECTION_COUNTS: [usize; 4] = [1, 16, 64, 256];
const BATCH_COUNT: u64 = 500;
/// Number of distinct values of `kind`, which `_find` selects by.
const KIND_COUNT: u64 = 1_000;
/// Limit of `_find`.
const FOUND_MAX: u64 = 25;
/// Longpoll notifications measured.
const NOTICE_COUNT: usize = 200;

/// Targets: requests per second, ratio of a disk flush to a PUT, time of a view's first response, and memory at rest.
const GETS_PER_SECOND: f64 = 30_000.0;
const FLUSH_SHARE: f64 = 0.5;
const BUILD_MS: f64 = 500.0;
const REST_MIB: f64 = 30.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let directory = bench.scratch.fresh_path("server")?;
    let server = ServerProcess::start(&directory, "sync")?;
    let endpoint = server.endpoint();
    let document_count = bench.scale.served_count;
    std::thread::sleep(Duration::from_secs(1));
    memory(bench, &server, "memory at rest", "VmRSS", Some(REST_MIB))?;
    endpoint.expect_status(201, "PUT", "/bench", None)?;
    bulk(bench, &endpoint)?;
    javascript_view(bench, &endpoint)?;
    for count in CONNECTION_COUNTS {
        let path = |number: usize| ("GET", format!("/bench/{}", id(number as u64 * 7_919 % document_count)), None);
        let is_correct = |response: &Response| response.status == 200 && response.body.starts_with(b"{\"_id\":\"doc-");
        // The target is for many clients; a single one waits for each response.
        let target = (count == 64).then_some(GETS_PER_SECOND);
        load(bench, &endpoint, &format!("GET, {count} connections"), count, 4_000, &path, &is_correct, target)?;
    }
    durable_puts(bench, &endpoint)?;
    for count in &CONNECTION_COUNTS[1..] {
        let unique = AtomicUsize::new(0);
        let path = |_: usize| {
            let path = format!("/bench/new-{count}-{}", unique.fetch_add(1, Ordering::Relaxed));
            ("PUT", path, Some(body(3)))
        };
        let is_correct = |response: &Response| response.status == 201;
        load(bench, &endpoint, &format!("PUT, {count} connections"), *count, 1_000, &path, &is_correct, None)?;
    }
    // Every kind has at least this many documents.
    let found_count = (document_count / KIND_COUNT).min(FOUND_MAX);
    let find = |number: usize| {
        let selector = json!({"selector": {"kind": number as u64 % KIND_COUNT}, "limit": FOUND_MAX});
        ("POST", "/bench/_find".to_owned(), Some(selector.to_string()))
    };
    let is_correct = |response: &Response| {
        let docs = serde_json::from_slice::<Value>(&response.body).ok();
        let count = docs.and_then(|response| Some(response["docs"].as_array()?.len()));
        response.status == 200 && count.is_some_and(|count| count as u64 >= found_count)
    };
    for count in [1, 16] {
        load(
            bench,
            &endpoint,
            &format!("_find of {found_count}, {count} connections"),
            count,
            1_000,
            &find,
            &is_correct,
            None,
        )?;
    }
    notices(bench, &endpoint)?;
    round_trips::run(bench, &server)?;
    access_rules::run(bench, &server)?;
    memory(bench, &server, "memory under load", "VmHWM", None)
}

fn id(number: u64) -> String {
    format!("doc-{number:06}")
}

/// Returns a document of about 300 bytes of JSON.
fn body(number: u64) -> String {
    let text = format!("{number:08}").repeat(24);
    json!({"kind": number % KIND_COUNT, "number": number, "name": format!("Name {number}"), "text": text}).to_string()
}

fn memory(bench: &mut Bench, server: &ServerProcess, row: &str, name: &str, bound: Option<f64>) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let ours = Samples::from_costs([server.memory_kib(name)? as f64 / 1024.0]);
    let mut heading = heading(bench, row, Unit::Amount("MiB"));
    let bound = bound.map(|bound| Samples::from_costs([bound]));
    heading.targets = bound.iter().map(|_| ("bound", 1.0)).collect();
    let peers: Vec<(&str, &Samples)> = bound.iter().map(|bound| ("bound", bound)).collect();
    bench.push(ResultRow::new(heading, &ours, &peers))
}

pub(super) fn heading(bench: &Bench, row: &str, unit: Unit) -> crate::harness::Heading {
    let mut heading = bench.heading(row, bench.scale.served_count, true, unit);
    heading.experiment = "http";
    heading
}

/// Fills the database that later rows read.
fn bulk(bench: &mut Bench, endpoint: &Endpoint) -> Result<()> {
    let document_count = bench.scale.served_count;
    let batches: Vec<Vec<u8>> = (0..document_count.div_ceil(BATCH_COUNT))
        .map(|batch| {
            let docs: Vec<Value> = (batch * BATCH_COUNT..((batch + 1) * BATCH_COUNT).min(document_count))
                .map(|number| {
                    let mut doc: Value = serde_json::from_str(&body(number)).expect("made as JSON");
                    doc["_id"] = id(number).into();
                    doc
                })
                .collect();
            endpoint.request("POST", "/bench/_bulk_docs", Some(&json!({"docs": docs}).to_string()))
        })
        .collect();
    let mut connection = Connection::open(endpoint.address)?;
    let start = Instant::now();
    for batch in &batches {
        let response = connection.send(batch)?;
        if response.status != 201 {
            return Err(format!("_bulk_docs: {}", response.status).into());
        }
    }
    let elapsed = Samples::from_costs([start.elapsed().as_nanos() as f64]);
    let info = endpoint.expect_status(200, "GET", "/bench", None)?;
    if info["doc_count"] != document_count {
        return Err(format!("{} documents instead of {document_count}", info["doc_count"]).into());
    }
    if !bench.is_selected("_bulk_docs") {
        return Ok(());
    }
    let heading =
        heading(bench, &format!("_bulk_docs, {} documents by 500", grouped(document_count)), Unit::Milliseconds);
    bench.push(ResultRow::new(heading, &elapsed, &[]))
}

type RequestParts = (&'static str, String, Option<String>);

/// Runs concurrent clients, each with one outstanding request; adds a row for the rate and one for the latency.
#[expect(clippy::too_many_arguments, reason = "a row is made of so many things")]
fn load(
    bench: &mut Bench,
    endpoint: &Endpoint,
    row: &str,
    connection_count: usize,
    request_count: usize,
    make_request: &(dyn Fn(usize) -> RequestParts + Sync),
    is_correct: &(dyn Fn(&Response) -> bool + Sync),
    target: Option<f64>,
) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let each_count = (request_count * bench.scale.repetition_count / connection_count).max(20);
    let (mut rate, mut latency) = (Samples::default(), Samples::default());
    for repetition in 0..=bench.scale.repetition_count {
        let (elapsed, costs) = run_clients(endpoint, connection_count, each_count, make_request, is_correct)?;
        if repetition == 0 {
            continue;
        }
        rate.push_repetition(elapsed.as_nanos() as f64 / (connection_count * each_count) as f64);
        latency.begin_repetition();
        costs.into_iter().for_each(|cost| latency.push(cost));
    }
    let bound = target.map(|target| Samples::from_costs([1e9 / target]));
    let peers: Vec<(&str, &Samples)> = bound.iter().map(|bound| ("bound", bound)).collect();
    let mut headed = heading(bench, row, Unit::PerSecond("requests/s"));
    headed.targets = peers.iter().map(|(name, _)| (*name, 1.0)).collect();
    bench.push(ResultRow::new(headed, &rate, &peers))?;
    let headed = heading(bench, &format!("{row}: latency"), Unit::Microseconds);
    bench.push(ResultRow::new(headed, &latency, &[]).with_histograms("stemma", &latency, &[]))
}

fn run_clients(
    endpoint: &Endpoint,
    connection_count: usize,
    each_count: usize,
    make_request: &(dyn Fn(usize) -> RequestParts + Sync),
    is_correct: &(dyn Fn(&Response) -> bool + Sync),
) -> Result<(Duration, Vec<f64>)> {
    let mut clients = Vec::new();
    for client in 0..connection_count {
        let requests: Vec<Vec<u8>> = (0..each_count)
            .map(|number| {
                let (method, path, body) = make_request(client * each_count + number);
                endpoint.request(method, &path, body.as_deref())
            })
            .collect();
        clients.push((Connection::open(endpoint.address)?, requests));
    }
    let start = Instant::now();
    let done: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
        let send_all = |(mut connection, requests): (Connection, Vec<Vec<u8>>)| {
            let mut costs = Vec::with_capacity(requests.len());
            for request in &requests {
                let sent = Instant::now();
                let response = connection.send(request)?;
                costs.push(sent.elapsed().as_nanos() as f64);
                if !is_correct(&response) {
                    return Err(format!("{}: {}", response.status, String::from_utf8_lossy(&response.body)).into());
                }
            }
            Ok(costs)
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || send_all(client))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a client failed")?).collect()
    });
    let elapsed = start.elapsed();
    let mut costs = Vec::new();
    for done in done {
        costs.extend(done?);
    }
    Ok((elapsed, costs))
}

/// Measures durable PUTs of a single client, and flushes of a plain file.
fn durable_puts(bench: &mut Bench, endpoint: &Endpoint) -> Result<()> {
    let row = "PUT, 1 connection: latency";
    if !bench.is_selected(row) {
        return Ok(());
    }
    let file = bench.scratch.fresh_path("flushed")?;
    let mut connection = Connection::open(endpoint.address)?;
    let (mut ours, mut disk) = (Samples::default(), Samples::default());
    for repetition in 0..bench.scale.repetition_count {
        ours.begin_repetition();
        disk.begin_repetition();
        for number in 0..200 {
            let request = endpoint.request("PUT", &format!("/bench/flushed-{repetition}-{number}"), Some(&body(5)));
            let sent = Instant::now();
            let response = connection.send(&request)?;
            ours.push(sent.elapsed().as_nanos() as f64);
            if response.status != 201 {
                return Err(format!("PUT: {}", response.status).into());
            }
        }
        single_inserts::flush_latencies(&file, 200)?.into_iter().for_each(|cost| disk.push(cost));
    }
    let mut heading = heading(bench, row, Unit::Microseconds);
    heading.targets = vec![("disk-flush", FLUSH_SHARE)];
    bench.push(ResultRow::new(heading, &ours, &[("disk-flush", &disk)]))
}

/// Measures the time from a write's response to the notification of a waiting longpoll.
fn notices(bench: &mut Bench, endpoint: &Endpoint) -> Result<()> {
    let row = "_changes, longpoll: from write to notification";
    if !bench.is_selected(row) {
        return Ok(());
    }
    let (mut waiting, mut writing) = (Connection::open(endpoint.address)?, Connection::open(endpoint.address)?);
    let mut samples = Samples::default();
    let mut since = endpoint.expect_status(200, "GET", "/bench/_changes?since=now&limit=1", None)?["last_seq"].clone();
    for number in 0..NOTICE_COUNT {
        let id = format!("notice-{number}");
        let path = format!("/bench/_changes?feed=longpoll&timeout=30000&since={}", encoded(&since));
        let poll = endpoint.request("GET", &path, None);
        let write = endpoint.request("PUT", &format!("/bench/{id}"), Some("{}"));
        let (heard, written) = std::thread::scope(|scope| -> Result<_> {
            let waiting = &mut waiting;
            let poll = scope.spawn(move || waiting.send(&poll).map(|response| (response, Instant::now())));
            // Long enough for the poll to wait on the server; if it is not waiting yet, the notification is not
            // delayed.
            std::thread::sleep(Duration::from_millis(2));
            let written = writing.send(&write).map(|response| (response, Instant::now()))?;
            Ok((poll.join().map_err(|_| "a client failed")??, written))
        })?;
        let ((response, heard), (put, returned)) = (heard, written);
        let feed: Value = serde_json::from_slice(&response.body)?;
        if put.status != 201 || feed["results"][0]["id"] != id {
            return Err(format!("heard of {feed} instead of {id}").into());
        }
        since = feed["last_seq"].clone();
        samples.push(heard.saturating_duration_since(returned).as_nanos() as f64);
    }
    let heading = heading(bench, row, Unit::Microseconds);
    bench.push(ResultRow::new(heading, &samples, &[]))
}

/// Formats a sequence as a query parameter.
fn encoded(since: &Value) -> String {
    since.as_str().map_or_else(|| since.to_string(), str::to_owned)
}

/// Measures the first response of a JavaScript view, which maps all documents.
fn javascript_view(bench: &mut Bench, endpoint: &Endpoint) -> Result<()> {
    let row = "view in JavaScript, first answer";
    if !bench.is_selected(row) {
        return Ok(());
    }
    let total =
        endpoint.expect_status(200, "GET", "/bench", None)?["doc_count"].as_u64().ok_or("no count of documents")?;
    let mut samples = Samples::default();
    for repetition in 0..bench.scale.repetition_count {
        let map = format!("function (doc) {{ emit(doc.kind, {repetition}); }}");
        let design = json!({"views": {"kinds": {"map": map, "reduce": "_count"}}}).to_string();
        let name = format!("/bench/_design/build-{repetition}");
        endpoint.expect_status(201, "PUT", &name, Some(&design))?;
        let start = Instant::now();
        let response = endpoint.expect_status(200, "GET", &format!("{name}/_view/kinds"), None)?;
        samples.push_repetition(start.elapsed().as_nanos() as f64);
        if response["rows"][0]["value"] != total {
            return Err(format!("the view has {response} instead of {total} rows").into());
        }
    }
    let mut heading = heading(bench, row, Unit::Milliseconds);
    heading.documents = total;
    heading.targets = vec![("bound", 1.0)];
    bench.push(ResultRow::new(heading, &samples, &[("bound", &Samples::from_costs([BUILD_MS * 1e6]))]))
}
