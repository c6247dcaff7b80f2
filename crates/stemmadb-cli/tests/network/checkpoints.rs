//! Checkpoints that lie: a target that was made anew, a source that was put back from an older copy, a checkpoint that is lost. What is
//! lacking arrives all the same, and nothing begins at the beginning that need not.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD};
use crate::server::{Server, text, until};

const PATIENCE: Duration = Duration::from_secs(300);
const ARGUMENTS: [&str; 6] =
    ["--replicator-retry-wait", "50ms", "--replicator-retry-wait-max", "400ms", "--durability", "none"];

/// Two servers; one of them replicates `db` of the source to `db` of the target.
struct Pair {
    source: Server,
    target: Server,
}

impl Pair {
    /// The target pulls, or the source pushes.
    fn start(place: &Path, pulls: bool) -> Self {
        let [source, target] = ["source", "target"].map(|name| Server::start(&place.join(name), &ARGUMENTS));
        for server in [&source, &target] {
            server.client().good("PUT", "/db", None);
        }
        let url = |server: &Server| format!("http://admin:{PASSWORD}@{}/db", server.address());
        let (at, wanted) = match pulls {
            true => (&target, json!({"source": url(&source), "target": "db", "continuous": true})),
            false => (&source, json!({"source": "db", "target": url(&target), "continuous": true})),
        };
        at.client().good("PUT", "/_replicator", None);
        at.client().good("PUT", "/_replicator/job", Some(&wanted));
        Pair { source, target }
    }

    fn write(&self, prefix: &str, count: usize) {
        let docs: Vec<Value> = (0..count).map(|number| json!({"_id": format!("{prefix}{number}")})).collect();
        let rows = self.source.client().good("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
        assert!(rows.as_array().unwrap().iter().all(|row| row["ok"] == true), "{rows}");
    }

    fn expect(&self, count: u64) {
        let mut client = self.target.client();
        until(&format!("{count} documents arrive"), PATIENCE, || {
            client.must("GET", "/db", None).json()["doc_count"].as_u64() == Some(count)
        });
    }
}

#[test]
fn a_target_that_was_made_anew_gets_everything_again() {
    for pulls in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let pair = Pair::start(place.path(), pulls);
        pair.write("a", 40);
        pair.expect(40);
        // The job waits for the source meanwhile, and hears of nothing.
        let mut client = pair.target.client();
        client.good("DELETE", "/db", None);
        client.good("PUT", "/db", None);
        pair.write("b", 1);
        pair.expect(41);
        pair.source.assert_calm();
        pair.target.assert_calm();
    }
}

#[test]
fn a_source_that_was_put_back_goes_on_from_there() {
    for pulls in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let mut pair = Pair::start(place.path(), pulls);
        pair.write("a", 20);
        pair.expect(20);
        pair.source.stop();
        let (live, copy) = (pair.source.databases(), place.path().join("copy"));
        let copied = |from: &Path, to: &Path| {
            let done = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
            assert!(done.success());
        };
        copied(&live, &copy);
        pair.source.restart();
        pair.write("b", 30);
        pair.expect(50);
        pair.source.stop();
        std::fs::remove_dir_all(&live).unwrap();
        copied(&copy, &live);
        pair.source.restart();
        // Fewer than were written before: the source's newest sequence is behind the one it told.
        pair.write("c", 5);
        pair.expect(55);
    }
}

/// What one run did: revisions that were compared, documents that were read.
fn run(client: &mut Client, wanted: &Value) -> (u64, u64) {
    let done = client.good("POST", "/_replicate", Some(wanted));
    let session = &done["history"][0];
    (session["missing_checked"].as_u64().unwrap(), session["docs_read"].as_u64().unwrap())
}

#[test]
fn a_checkpoint_that_is_lost_costs_a_comparison_and_no_transfer() {
    let place = tempfile::tempdir().unwrap();
    let [mut source, mut target] = ["source", "target"].map(|name| Server::start(&place.path().join(name), &ARGUMENTS));
    source.client().good("PUT", "/db", None);
    let docs: Vec<Value> = (0..30).map(|number| json!({"_id": format!("d{number}")})).collect();
    source.client().good("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
    let there = format!("http://admin:{PASSWORD}@{}/db", source.address());
    let wanted = json!({"source": there, "target": "db", "create_target": true});
    assert_eq!(run(&mut target.client(), &wanted), (30, 30));
    assert_eq!(run(&mut target.client(), &wanted), (0, 0));
    for lost in 0..2 {
        // At the source, then at the target.
        let mut client = if lost == 0 { source.client() } else { target.client() };
        let locals = client.good("GET", "/db/_local_docs?include_docs=true", None);
        let checkpoint = &locals["rows"][0]["doc"];
        let path = format!("/db/{}?rev={}", text(checkpoint, "/_id"), text(checkpoint, "/_rev"));
        client.good("DELETE", &path, None);
        assert_eq!(run(&mut target.client(), &wanted), (30, 0), "all are compared, none is transferred");
        assert_eq!(run(&mut target.client(), &wanted), (0, 0));
    }
    for server in [&mut source, &mut target] {
        server.kill();
        server.restart();
    }
    source.client().good("PUT", "/db/late", Some(&json!({})));
    assert_eq!(run(&mut target.client(), &wanted), (1, 1), "a restart begins where it was");
}
