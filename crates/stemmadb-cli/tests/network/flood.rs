//! Large request bodies from many clients at once: their memory stays within the budget, each request is answered, and
//! other requests are served in the meantime.
//!
//! `STEMMA_FLOOD_ROOM` sets the memory budget (default 64MiB). With 1000GiB, which removes the limit, the test must
//! fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::server::{ResourceUsage, Server};

/// Number of clients that send at the same time.
const CLIENT_COUNT: usize = 64;
const BODY_BYTES: usize = 7_900_000;
/// Memory budget for all request bodies (`limits.bodies_bytes`): about one parsed body.
const MEMORY_BUDGET: &str = "64MiB";
/// Maximum growth of the server's memory: the budget, one body beyond it that uses 8 times its length, and twice as
/// much again for connections, parsers and the allocator. Measured: 139 to 154 MB; 577 MB without the budget.
const GROWTH_MAX: u64 = 3 * ((64 << 20) + 8 * BODY_BYTES as u64);

/// A document with the maximum number of small numbers; parsed, it uses 4 times its length.
fn dense_document() -> Vec<u8> {
    let mut text = r#"{"x":["#.to_owned();
    while text.len() < BODY_BYTES {
        text.push_str("1234567,");
    }
    text.push_str("0]}");
    text.into_bytes()
}

#[test]
fn bodies_of_many_clients_stay_within_the_memory_budget() {
    let directory = tempfile::tempdir().unwrap();
    // A long timeout, so that waiting requests are not refused on a slow machine; another test covers the refusal.
    let budget = std::env::var("STEMMA_FLOOD_ROOM").unwrap_or_else(|_| MEMORY_BUDGET.to_owned());
    let limits = ["--limits-bodies-bytes", &budget, "--limits-stall-timeout", "30min"];
    let mut server = Server::start(directory.path(), &[&limits[..], &["--log-level", "warn"]].concat());
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    client.expect_success("PUT", "/db/a", Some(&json!({"n": 1})));
    let before = ResourceUsage::of(server.pid()).resident_bytes;
    let (body, answered) = (dense_document(), AtomicUsize::new(0));
    let small_count = std::thread::scope(|scope| {
        for _ in 0..CLIENT_COUNT {
            scope.spawn(|| {
                let mut client = server.client().timeout(Duration::from_secs(1800));
                let answer = client.send("PUT", "/db/a", Some("application/json"), &body);
                answered.fetch_add(1, Ordering::Relaxed);
                // Without a revision the write is refused: memory of written data has another limit.
                let answer = answer.unwrap();
                assert_eq!(answer.status, 409, "{}", answer.summary());
            });
        }
        let mut small_count = 0;
        while answered.load(Ordering::Relaxed) < CLIENT_COUNT / 2 {
            client.expect_success("GET", "/db/a", None);
            client.expect_success("PUT", &format!("/db/small-{small_count}"), Some(&json!({"n": small_count})));
            small_count += 1;
        }
        small_count
    });
    let growth = ResourceUsage::of(server.pid()).peak_resident_bytes - before;
    println!(
        "flood: {CLIENT_COUNT} bodies of {BODY_BYTES} bytes at once used {} MB of at most {} MB; \
         {small_count} small writes in the meantime",
        growth / 1_000_000,
        GROWTH_MAX / 1_000_000
    );
    assert!(small_count > 0, "no other request was answered");
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    server.assert_no_panic();
    server.stop();
}
