//! `stemma replicate`: between directories and servers that are killed and restarted, and interrupted by a signal.

#![cfg(unix)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::Database;
use stemmadb_http::{HttpPeer, SigningKey};
use stemmadb_server::Method;
use support::{Running, Workspace};

impl Workspace {
    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the command, which must succeed; returns its standard error.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        stderr
    }

    /// The exported documents in the order of their ids.
    fn documents(&self, database: &str) -> Vec<String> {
        let output = self.output(&["export", database]);
        assert!(output.status.success(), "{output:?}");
        let mut lines: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Starts a server on the directory `databases`; returns its address, too.
    fn serve(&self, listen: &str) -> (Running, String) {
        let mut command = self.command(&["serve", "databases", "--listen", listen]);
        let mut child = command.env("STEMMA_ADMIN_PASSWORD", "secret").stdout(Stdio::null()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let running = Running(child);
        loop {
            let mut line = String::new();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "the server did not start");
            if let Some((_, address)) = line.split_once("listening on http://") {
                let address = address.split_whitespace().next().unwrap().to_owned();
                // Drain standard error, so that the server does not block on a full pipe.
                std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
                return (running, address);
            }
        }
    }
}

impl Running {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write(path: &PathBuf, from: usize, to: usize) {
    let db = Database::open(path).unwrap();
    for number in from..to {
        db.upsert(&format!("d{number:04}"), &json!({"number": number, "text": "x".repeat(200)})).unwrap();
    }
    db.close().unwrap();
}

#[test]
fn directories_and_servers_replicate_with_each_other() {
    let workspace = Workspace::new();
    write(&workspace.path("here"), 0, 300);
    let (_server, address) = workspace.serve("127.0.0.1:0");
    let url = format!("http://admin:secret@{address}/books");

    let missing = workspace.output(&["replicate", "here", &url]);
    let stderr = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && stderr.contains("hint: --create creates the target"), "{stderr}");
    assert!(workspace.run(&["replicate", "here", &url, "--create"]).contains("replicated 300 documents"));
    assert!(workspace.run(&["replicate", "here", &url]).contains("replicated 0 documents"));
    workspace.run(&["replicate", &url, "there", "--create"]);
    assert_eq!(workspace.documents("there"), workspace.documents("here"));
    assert!(!workspace.output(&["replicate", &url, "nowhere"]).status.success());

    // Both sides change the same document: the conflict travels.
    workspace.run(&["put", "here", "d0001", "--upsert", "{\"side\": \"here\"}"]);
    workspace.run(&["put", "there", "d0001", "--upsert", "{\"side\": \"there\"}"]);
    for (source, target) in [("here", &*url), ("there", &url), (&url, "here"), (&url, "there")] {
        workspace.run(&["replicate", source, target]);
    }
    let conflicts = |database| String::from_utf8(workspace.output(&["get", database, "d0001", "--conflicts"]).stdout);
    assert!(conflicts("here").unwrap().contains("_conflicts"), "{:?}", conflicts("here"));
    assert_eq!(conflicts("here").unwrap(), conflicts("there").unwrap());

    let selector = ["replicate", "here", "some", "--create", "--selector", "{\"number\": {\"$lt\": 7}}"];
    workspace.run(&selector);
    workspace.run(&["replicate", &url, "some", "--ids", "d0100,d0200"]);
    assert_eq!(workspace.documents("some").len(), 8, "d0001 has no number any more");
    fs::write(workspace.path("token"), "wrong\n").unwrap();
    let bare = format!("http://{address}/books");
    let refused = workspace.output(&["replicate", "here", &bare, "--target-token-file", "token"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let key = SigningKey::generate().unwrap();
    fs::write(workspace.path("key.pem"), key.to_pem()).unwrap();
    let signed = ["replicate", "here", &bare, "--target-key-file", "key.pem"];
    assert_eq!(workspace.output(&signed).status.code(), Some(2), "the key is not registered");
    let tokens = HttpPeer::new(&format!("http://admin:secret@{address}/_tokens")).unwrap();
    let token = stemmadb::Value::from_serialize(
        &json!({"name": "device", "roles": ["_admin"], "public_key": key.public_key()}),
    );
    tokens.request(Method::POST, "", Some(&token.unwrap()), Duration::from_secs(60)).unwrap();
    assert!(workspace.run(&signed).contains("replicated"));
    for wrong in [
        &["replicate", "here", "here"][..],
        &["replicate", "here", "there", "--source-key-file", "key.pem"],
        &["replicate", "here", &bare, "--target-key-file", "token"],
        &["replicate", "here", "there", "--continuous"],
        &["replicate", "here", "there", "--filter", "a/b"],
        &["replicate", "here", "there", "--source-token-file", "token"],
        &["replicate", "here", "ftp://host/there"],
    ] {
        assert_eq!(workspace.output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_continuous_replication_survives_kills_of_the_server() {
    let workspace = Workspace::new();
    write(&workspace.path("here"), 0, 3);
    let (server, address) = workspace.serve("127.0.0.1:0");
    let url = format!("http://admin:secret@{address}/books");
    workspace.run(&["replicate", "here", &url, "--create"]);

    // The program of this test writes while it replicates in the background; the server is killed repeatedly.
    let db = Database::open(workspace.path("here")).unwrap();
    let pull = Running(workspace.command(&["replicate", &url, "copy", "--create", "--continuous"]).spawn().unwrap());
    let peer = std::sync::Arc::new(stemmadb_http::HttpPeer::new(&url).unwrap());
    let retry = stemmadb::replication::Retry {
        first: Duration::from_millis(10),
        max: Duration::from_millis(50),
        ..Default::default()
    };
    let push = stemmadb::replication::BackgroundReplication::start(
        std::sync::Arc::new(db.clone()),
        peer.clone(),
        move |replication| replication.batch(20).retry(retry),
    )
    .unwrap();
    let mut server = Some(server);
    for round in 0..5 {
        for number in 0..200 {
            db.upsert(&format!("r{round}-{number}"), &json!({"round": round, "text": "x".repeat(500)})).unwrap();
            if number == 100 {
                server.take().unwrap().kill();
                server = Some(workspace.serve(&address).0);
            }
        }
    }
    let newest = db.get("r4-199").unwrap().unwrap().revision().to_string();
    let is_there = || {
        stemmadb::replication::Peer::missing_revisions(
            &*peer,
            &[stemmadb::replication::DocumentLeaves {
                id: "r4-199".parse().unwrap(),
                revisions: vec![newest.parse().unwrap()],
            }],
        )
        .is_ok_and(|missing| missing.is_empty())
    };
    wait_for("the push", is_there);
    drop(push.stop());
    db.close().unwrap();

    // An interrupted command ends at once, and the next one completes what it did not.
    assert_eq!(pull.interrupt(), Some(0));
    workspace.run(&["replicate", &url, "copy"]);
    assert_eq!(workspace.documents("copy"), workspace.documents("here"));
    assert_eq!(workspace.documents("copy").len(), 1003);

    // A server that is away: a continuous replication waits for it, and can be interrupted meanwhile.
    drop(server);
    let mut waiting = workspace.command(&["replicate", "here", &url, "--continuous"]).spawn().unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("trying again in"), "{line}");
    assert_eq!(Running(waiting).interrupt(), Some(0));
    assert_eq!(workspace.output(&["replicate", "here", &url]).status.code(), Some(4));
}
