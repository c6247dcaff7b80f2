//! A server whose disk gets full: it can be read and started, deletions use the reserve, a failed creation leaves
//! nothing, and everything recovers once there is space.
//!
//! The disk is a small tmpfs in a mount namespace of its own (`unshare`, `nsenter`). Where that is not allowed, the
//! test prints that it did not run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::rev;
use crate::server::{Server, str_at, wait_until};

const TIMEOUT: Duration = Duration::from_secs(120);
const DISK: &str = "64m";

/// A process in a mount namespace with a small disk at `databases`.
struct SmallDisk {
    holder: Child,
    directory: String,
}

impl SmallDisk {
    fn mount(directory: &std::path::Path) -> Option<Self> {
        let directory = directory.to_str().unwrap().to_owned();
        let script = format!(
            "mkdir -p {directory}/databases && mount -t tmpfs -o size={DISK} tmpfs {directory}/databases && echo ready \
             && exec sleep 3600"
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = command.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let disk = SmallDisk { holder, directory };
        (line.trim() == "ready" && disk.run("true")).then_some(disk)
    }

    /// The shell command that enters the namespace.
    fn entering(&self) -> String {
        format!("nsenter --preserve-credentials -U -m -t {} sh -c", self.holder.id())
    }

    fn run(&self, script: &str) -> bool {
        let script = format!("{} 'cd {}/databases && {script}'", self.entering(), self.directory);
        Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Fills the disk.
    fn fill(&self) {
        assert!(!self.run("cat /dev/zero > filler"), "the disk is full");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

/// Writes documents in bulk until a request fails; returns its response's reason.
fn write_until_refused(server: &Server) -> String {
    let mut client = server.client();
    for number in 0..1_000 {
        let body = json!({"docs": [{"_id": format!("large{number}"), "text": "x".repeat(200_000)}]});
        let answer = client.expect_response("POST", "/db/_bulk_docs", Some(&body));
        if !answer.is_success() {
            assert_eq!(answer.status, 503, "{}", answer.summary());
            return answer.summary();
        }
        let row = &answer.json()[0];
        if row["error"].is_string() {
            return row.to_string();
        }
    }
    panic!("no write is refused");
}

fn names(server: &Server) -> Value {
    server.client().expect_success("GET", "/_all_dbs", None)
}

#[test]
fn a_full_disk_is_survived_without_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(directory.path()) else {
        println!("full_disk: NOT RUN: requires unshare, nsenter and the right to mount");
        return;
    };
    let inside = format!("cd {} && exec \"$@\"", disk.directory);
    let prefix = format!("exec {} '{inside}' sh \"$@\";", disk.entering());
    let mut server = Server::start_with_prefix(directory.path(), &[], &prefix);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    let first = client.expect_success("PUT", "/db/first", Some(&json!({"n": 1})));
    for number in 0..20 {
        client.expect_success("PUT", &format!("/db/d{number}"), Some(&json!({"n": number})));
    }
    disk.fill();
    println!("full_disk: {}", write_until_refused(&server));
    // What did not fit may have left some space.
    disk.run("cat /dev/zero >> filler");

    // Reads go on; a database that can't be created does not exist.
    assert_eq!(client.expect_success("GET", "/db/first", None)["n"], 1);
    let refused = client.expect_response("PUT", "/new", None);
    assert_eq!(refused.status, 503, "{}", refused.summary());
    assert_eq!(client.expect_response("GET", "/new", None).status, 404);
    assert_eq!(names(&server), json!(["db"]));

    // Deletions and compaction use the reserve, other writes don't.
    let path = format!("/db/first{}", rev(str_at(&first, "/rev")));
    wait_until("a document is deleted", TIMEOUT, || client.expect_response("DELETE", &path, None).is_success());
    let refused = client.expect_response("PUT", "/db/other", Some(&json!({})));
    assert_eq!(refused.status, 503, "{}", refused.summary());
    let document = client.expect_success("GET", "/db/d1", None);
    let deletion = json!({"docs": [{"_id": "d1", "_rev": document["_rev"], "_deleted": true}]});
    let deleted = client.expect_success("POST", "/db/_bulk_docs", Some(&deletion));
    assert_eq!(deleted[0]["ok"], true, "{deleted}");

    // A restart on the full disk: it can be read.
    server.stop();
    disk.run("cat /dev/zero >> filler");
    server.restart();
    let mut client = server.client();
    assert_eq!(client.expect_success("GET", "/db/d2", None)["n"], 2);
    assert_eq!(client.expect_response("GET", "/db/first", None).status, 404);

    // With space, everything is accepted again without a restart.
    assert!(disk.run("rm filler"));
    let documents = json!({"docs": [{"_id": "again"}]});
    wait_until("bulk writes are accepted", TIMEOUT, || {
        let answer = client.expect_response("POST", "/db/_bulk_docs", Some(&documents));
        answer.is_success() && answer.json()[0]["ok"] == true
    });
    wait_until("a database is created", TIMEOUT, || client.expect_response("PUT", "/new", None).is_success());
    assert_eq!(names(&server), json!(["db", "new"]));
    let attached = client.send("PUT", "/new/doc/file", Some("text/plain"), &[b'x'; 100_000]).unwrap();
    assert!(attached.is_success(), "{}", attached.summary());
    wait_until("the reserve is there again", TIMEOUT, || {
        client.expect_success("GET", "/db", None);
        disk.run("test -s reserve")
    });
    server.assert_no_panic();
    server.stop();
}
