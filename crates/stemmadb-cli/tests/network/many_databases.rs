//! A server with far more databases than may be open: they are opened on demand within few descriptors and a bounded
//! memory, and the server starts quickly. No request is refused for want of descriptors.
//!
//! `STEMMA_DATABASES` sets the number of databases (default 300), `STEMMA_DATABASES_USED` how many are in constant use
//! (default 30), `STEMMA_DATABASE_WRITES` the number of writes to these (default 1,500), `STEMMA_DATABASE_DESCRIPTORS`
//! the limit of descriptors (default 200).

use std::time::Instant;

use serde_json::json;

use crate::random::{Random, env_u64, seed};
use crate::server::{ResourceUsage, Server};

/// The descriptors of the server, as in a small container: far fewer than all databases need, or only those in use.
const DESCRIPTORS: u64 = 200;
const RESIDENT_BYTES_MAX: u64 = 500 << 20;
const WORKERS: u64 = 4;

/// Runs `work` for each number, on some clients at the same time.
fn for_each(server: &Server, count: u64, work: impl Fn(&mut crate::client::Client, u64) + Sync) {
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let work = &work;
            scope.spawn(move || {
                let mut client = server.client();
                (worker..count).step_by(WORKERS as usize).for_each(|number| work(&mut client, number));
            });
        }
    });
}

#[test]
fn many_databases_take_little_memory_and_few_descriptors() {
    let count = env_u64("STEMMA_DATABASES", 300);
    let (used, writes) = (env_u64("STEMMA_DATABASES_USED", 30), env_u64("STEMMA_DATABASE_WRITES", 1_500));
    let seed = seed("many_databases");
    let directory = tempfile::tempdir().unwrap();
    let descriptors = env_u64("STEMMA_DATABASE_DESCRIPTORS", DESCRIPTORS);
    let limit = format!("ulimit -n {descriptors};");
    let mut server = Server::start_with_prefix(directory.path(), &["--durability", "none"], &limit);
    let begun = Instant::now();
    for_each(&server, count, |client, number| {
        client.expect_success("PUT", &format!("/d{number}"), None);
        client.expect_success("PUT", &format!("/d{number}/first"), Some(&json!({"n": number})));
    });
    println!("many_databases: {count} created in {:?}", begun.elapsed());
    server.stop();
    let started = server.restart();
    let begun = Instant::now();
    for_each(&server, writes, |client, number| {
        let database = Random::new(seed ^ number).below(used);
        let body = json!({"n": number, "text": "x".repeat(500)});
        client.expect_success("PUT", &format!("/d{database}/w{number}"), Some(&body));
        client.expect_success("GET", &format!("/d{database}/first"), None);
    });
    let usage = ResourceUsage::of(server.pid());
    println!(
        "many_databases: started with {count} in {started:?}; {writes} writes to {used} in {:?}: {} MB resident (at \
         most {}), {} descriptors, {} threads",
        begun.elapsed(),
        usage.resident_bytes >> 20,
        usage.peak_resident_bytes >> 20,
        usage.descriptor_count,
        usage.thread_count
    );
    // Every database is still there, with what was written.
    for_each(&server, count, |client, number| {
        assert_eq!(client.expect_success("GET", &format!("/d{number}/first"), None)["n"], number);
    });
    let usage = ResourceUsage::of(server.pid());
    assert!(usage.resident_bytes < RESIDENT_BYTES_MAX, "{usage:?}");
    assert!(usage.descriptor_count <= descriptors, "{usage:?}");
    let listed = server.client().expect_success("GET", "/_all_dbs", None);
    assert_eq!(listed.as_array().unwrap().len() as u64, count);
    assert!(server.databases().join("d7.stemma").is_dir(), "directories have readable names");
    server.assert_no_panic();
    server.stop();
}
