//! Thousands of replications that wait for changes: they hold no thread, take no processor time, and wake on a change.
//!
//! All replicate from one database, each a document of its own. `STEMMA_JOBS` sets their number (default 2,000).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::PASSWORD;
use crate::feeds::processor_time;
use crate::random::env_u64;
use crate::server::{ResourceUsage, Server, wait_until};

const TIMEOUT: Duration = Duration::from_secs(900);
const INTERVAL: Duration = Duration::from_secs(3);
/// The most processor time of the waiting server in an interval; nearly all of it is that of other tasks.
const PROCESSOR_TIME_MAX: Duration = Duration::from_millis(300);
/// The most threads besides the runtime's workers.
const THREADS_MAX: u64 = 100;
/// Jobs whose source is a database of another server, here of the same one by its address.
const REMOTE_COUNT: u64 = 50;

/// Waits until the server takes little processor time, and returns how much it takes in an interval.
fn idle_time(server: &Server) -> Duration {
    let begun = Instant::now();
    loop {
        let before = processor_time(server.pid());
        std::thread::sleep(INTERVAL);
        let taken = processor_time(server.pid()) - before;
        if taken <= PROCESSOR_TIME_MAX || begun.elapsed() > TIMEOUT {
            return taken;
        }
    }
}

#[test]
fn thousands_of_waiting_replications_take_no_threads() {
    let job_count = env_u64("STEMMA_JOBS", 2_000);
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    client.expect_success("PUT", "/copy", None);
    let url = format!("http://admin:{PASSWORD}@{}/db", server.address());
    for number in 0..job_count {
        let source = if number < REMOTE_COUNT { url.as_str() } else { "db" };
        let ids = [format!("d{number}")];
        let body = json!({"source": source, "target": "copy", "continuous": true, "doc_ids": ids});
        client.expect_success("POST", "/_replicate", Some(&body));
    }
    let total = client.expect_success("GET", "/_scheduler/jobs?limit=1", None)["total_rows"].clone();
    assert_eq!(total, json!(job_count));
    let taken = idle_time(&server);
    let threads = ResourceUsage::of(server.pid()).thread_count;
    println!("{job_count} waiting replications: {taken:?} of processor time in {INTERVAL:?}, {threads} threads");
    assert!(taken <= PROCESSOR_TIME_MAX, "{taken:?}");
    let thread_max = std::thread::available_parallelism().map_or(1, usize::from) as u64 + THREADS_MAX;
    wait_until("the threads end", TIMEOUT, || ResourceUsage::of(server.pid()).thread_count <= thread_max);

    for number in [0, REMOTE_COUNT, job_count - 1] {
        client.expect_success("PUT", &format!("/db/d{number}"), Some(&json!({"n": number})));
    }
    for number in [0, REMOTE_COUNT, job_count - 1] {
        wait_until("the document arrives", TIMEOUT, || {
            client.expect_response("GET", &format!("/copy/d{number}"), None).status == 200
        });
    }
    assert!(idle_time(&server) <= PROCESSOR_TIME_MAX, "they wait again");
}
