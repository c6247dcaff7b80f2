//! Outdated replication checkpoints: a recreated target, a source restored from an older copy, a lost checkpoint.
//! Missing documents are replicated, without restarting from the beginning where that is avoidable.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD};
use crate::server::{Server, str_at, wait_until};

const TIMEOUT: Duration = Duration::from_secs(300);
const ARGUMENTS: [&str; 6] =
    ["--replicator-retry-wait", "50ms", "--replicator-retry-wait-max", "400ms", "--durability", "none"];

/// Two servers; one of them replicates `db` of the source to `db` of the target.
struct Pair {
    source: Server,
    target: Server,
}

impl Pair {
    /// Starts both servers; the target pulls, or the source pushes.
    fn start(directory: &Path, pulls: bool) -> Self {
        let [source, target] = ["source", "target"].map(|name| Server::start(&directory.join(name), &ARGUMENTS));
        for server in [&source, &target] {
            server.client().expect_success("PUT", "/db", None);
        }
        let url = |server: &Server| format!("http://admin:{PASSWORD}@{}/db", server.address());
        let (at, job) = match pulls {
            true => (&target, json!({"source": url(&source), "target": "db", "continuous": true})),
            false => (&source, json!({"source": "db", "target": url(&target), "continuous": true})),
        };
        at.client().expect_success("PUT", "/_replicator", None);
        at.client().expect_success("PUT", "/_replicator/job", Some(&job));
        Pair { source, target }
    }

    fn write(&self, prefix: &str, count: usize) {
        let docs: Vec<Value> = (0..count).map(|number| json!({"_id": format!("{prefix}{number}")})).collect();
        let rows = self.source.client().expect_success("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
        assert!(rows.as_array().unwrap().iter().all(|row| row["ok"] == true), "{rows}");
    }

    fn expect(&self, count: u64) {
        let mut client = self.target.client();
        wait_until(&format!("{count} documents to arrive"), TIMEOUT, || {
            client.expect_response("GET", "/db", None).json()["doc_count"].as_u64() == Some(count)
        });
    }
}

#[test]
fn recreated_target_receives_everything_again() {
    for pulls in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let pair = Pair::start(directory.path(), pulls);
        pair.write("a", 40);
        pair.expect(40);
        // The job waits for changes of the source and does not notice.
        let mut client = pair.target.client();
        client.expect_success("DELETE", "/db", None);
        client.expect_success("PUT", "/db", None);
        pair.write("b", 1);
        pair.expect(41);
        pair.source.assert_no_panic();
        pair.target.assert_no_panic();
    }
}

#[test]
fn source_restored_from_a_copy_continues_from_there() {
    for pulls in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut pair = Pair::start(directory.path(), pulls);
        pair.write("a", 20);
        pair.expect(20);
        pair.source.stop();
        let (live, copy) = (pair.source.databases(), directory.path().join("copy"));
        let copy_directory = |from: &Path, to: &Path| {
            let status = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
            assert!(status.success());
        };
        copy_directory(&live, &copy);
        pair.source.restart();
        pair.write("b", 30);
        pair.expect(50);
        pair.source.stop();
        std::fs::remove_dir_all(&live).unwrap();
        copy_directory(&copy, &live);
        pair.source.restart();
        // Fewer than were written before: the source's update sequence is now behind the checkpoint.
        pair.write("c", 5);
        pair.expect(55);
    }
}

/// Runs one replication; returns the number of revisions compared and of documents read.
fn run(client: &mut Client, job: &Value) -> (u64, u64) {
    let done = client.expect_success("POST", "/_replicate", Some(job));
    let session = &done["history"][0];
    (session["missing_checked"].as_u64().unwrap(), session["docs_read"].as_u64().unwrap())
}

#[test]
fn lost_checkpoint_costs_a_comparison_but_no_transfer() {
    let directory = tempfile::tempdir().unwrap();
    let [mut source, mut target] =
        ["source", "target"].map(|name| Server::start(&directory.path().join(name), &ARGUMENTS));
    source.client().expect_success("PUT", "/db", None);
    let docs: Vec<Value> = (0..30).map(|number| json!({"_id": format!("d{number}")})).collect();
    source.client().expect_success("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
    let source_url = format!("http://admin:{PASSWORD}@{}/db", source.address());
    let job = json!({"source": source_url, "target": "db", "create_target": true});
    assert_eq!(run(&mut target.client(), &job), (30, 30));
    assert_eq!(run(&mut target.client(), &job), (0, 0));
    for lost in 0..2 {
        // At the source, then at the target.
        let mut client = if lost == 0 { source.client() } else { target.client() };
        let locals = client.expect_success("GET", "/db/_local_docs?include_docs=true", None);
        let checkpoint = &locals["rows"][0]["doc"];
        let path = format!("/db/{}?rev={}", str_at(checkpoint, "/_id"), str_at(checkpoint, "/_rev"));
        client.expect_success("DELETE", &path, None);
        assert_eq!(run(&mut target.client(), &job), (30, 0), "all are compared, none is transferred");
        assert_eq!(run(&mut target.client(), &job), (0, 0));
    }
    for server in [&mut source, &mut target] {
        server.kill();
        server.restart();
    }
    source.client().expect_success("PUT", "/db/late", Some(&json!({})));
    assert_eq!(run(&mut target.client(), &job), (1, 1), "after a restart, replication continues at its checkpoint");
}
