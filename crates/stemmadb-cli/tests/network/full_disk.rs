//! A server on a disk that is full: databases answer reads, documents can be deleted, compaction and a restart work,
//! and writes succeed again once there is space, without a restart.
//!
//! The disk is a tmpfs in a mount namespace of its own. Where none can be mounted, the test says so and passes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::server::{Server, wait_until};

const DISK_BYTES: u64 = 96 << 20;
const DATABASES: usize = 4;
const DOCUMENTS: usize = 40;
/// A document of some 100 KB, which no preallocated block holds for long.
const DOCUMENT_BYTES: usize = 100_000;
/// The most documents that are written until one is refused.
const WRITES_MAX: usize = 5_000;
const TIMEOUT: Duration = Duration::from_secs(300);

/// A small disk that is mounted only for the processes of a namespace.
struct SmallDisk {
    /// The process that keeps the namespace.
    holder: Child,
    directory: PathBuf,
    filler_count: usize,
}

impl SmallDisk {
    /// Mounts a disk at `directory`; `None` if this user or system can't.
    fn mount(directory: &Path) -> Option<Self> {
        std::fs::create_dir_all(directory).unwrap();
        let script = "mount -t tmpfs -o size=\"$1\" none \"$0\" && echo mounted && exec sleep 3600";
        let mut holder = Command::new("unshare")
            .args(["-rm", "sh", "-c", script])
            .arg(directory)
            .arg(DISK_BYTES.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let disk = SmallDisk { holder, directory: directory.to_owned(), filler_count: 0 };
        (line.trim() == "mounted" && disk.path().read_dir().is_ok()).then_some(disk)
    }

    /// The disk's directory as other processes see it.
    fn path(&self) -> PathBuf {
        let directory = std::path::absolute(&self.directory).unwrap();
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(directory.strip_prefix("/").unwrap())
    }

    /// Shell commands that run the next command where the disk is mounted.
    fn prefix(&self) -> String {
        let holder = self.holder.id();
        let enter = format!("nsenter -t {holder} -U -m --preserve-credentials sh -c 'cd \"$0\" && exec \"$@\"'");
        format!("set -- {enter} \"$PWD\" \"$@\";")
    }

    /// Takes the rest of the disk, in ever smaller files.
    fn fill(&mut self) {
        for bytes in [1 << 20, 64 << 10, 4 << 10] {
            let block = vec![b'x'; bytes];
            loop {
                self.filler_count += 1;
                let path = self.path().join(format!("filler-{}", self.filler_count));
                if File::create(path).and_then(|mut file| file.write_all(&block)).is_err() {
                    break;
                }
            }
        }
    }

    /// Frees what was filled.
    fn free(&self) {
        for entry in self.path().read_dir().unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

fn large_document(number: usize) -> Value {
    json!({"n": number, "text": "x".repeat(DOCUMENT_BYTES)})
}

/// Fills the disk until the server refuses to write a document to `database`; returns its response.
fn fill_until_refused(disk: &mut SmallDisk, client: &mut Client, database: &str) -> Response {
    for number in 0..WRITES_MAX {
        disk.fill();
        let path = format!("/{database}/more-{number}");
        let written = client.expect_response("PUT", &path, Some(&large_document(number)));
        if !written.is_success() && written.status != 409 {
            return written;
        }
    }
    panic!("the server wrote {WRITES_MAX} documents to a full disk");
}

fn assert_readable(client: &mut Client) {
    for database in 0..DATABASES {
        assert_eq!(client.expect_success("GET", &format!("/d{database}/small"), None)["n"], database);
        let listed = client.expect_success("GET", &format!("/d{database}/_all_docs?limit=10"), None);
        assert_eq!(listed["rows"].as_array().unwrap().len(), 10);
    }
    let found = client.expect_success("POST", "/d1/_find", Some(&json!({"selector": {"n": 7}, "fields": ["_id"]})));
    assert_eq!(found["docs"][0]["_id"], "doc-7");
}

/// Deletes documents; each deletion may have to wait until the reserve was released.
fn delete(client: &mut Client, database: &str, ids: impl Iterator<Item = String>) {
    for id in ids {
        let path = format!("/{database}/{id}");
        let revision = client.expect_success("GET", &path, None)["_rev"].as_str().unwrap().to_owned();
        let mut last = String::new();
        wait_until("a deletion on a full disk", TIMEOUT, || {
            let deleted = client.expect_response("DELETE", &format!("{path}?rev={revision}"), None);
            let message = deleted.summary();
            if message != last {
                println!("full_disk: deleting {path}: {}", message.trim_end());
                last = message;
            }
            // A deletion whose response was an error may have been executed.
            deleted.is_success() || client.expect_response("GET", &path, None).status == 404
        });
    }
}

fn compact(client: &mut Client, database: &str) {
    wait_until("a compaction is accepted", TIMEOUT, || {
        client.expect_response("POST", &format!("/{database}/_compact"), Some(&json!({}))).is_success()
    });
    wait_until("a compaction ends", TIMEOUT, || {
        client.expect_success("GET", &format!("/{database}"), None)["compact_running"] == false
    });
}

#[test]
fn full_disk_allows_reads_deletions_compaction_and_restart() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut disk) = SmallDisk::mount(&directory.path().join("databases")) else {
        // Not captured, unlike `println!`: a skipped test is reported also if it passes.
        std::io::stderr().write_all(b"full_disk: skipped, this system mounts no tmpfs in a namespace\n").unwrap();
        return;
    };
    let mut server = Server::start_with_prefix(directory.path(), &[], &disk.prefix());
    let mut client = server.client();
    for database in 0..DATABASES {
        client.expect_success("PUT", &format!("/d{database}"), None);
        client.expect_success("PUT", &format!("/d{database}/small"), Some(&json!({"n": database})));
        for number in 0..DOCUMENTS {
            let path = format!("/d{database}/doc-{number}");
            client.expect_success("PUT", &path, Some(&large_document(number)));
        }
    }
    let refused = fill_until_refused(&mut disk, &mut client, "d0");
    assert!(refused.status >= 500, "{}", refused.summary());
    assert!(refused.json()["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{}", refused.summary());
    println!("full_disk: refused: {}", refused.summary().trim_end());
    assert_readable(&mut client);

    let kept = 20;
    delete(&mut client, "d1", (kept..DOCUMENTS).map(|number| format!("doc-{number}")));
    let file_bytes = |client: &mut Client| client.expect_success("GET", "/d1", None)["sizes"]["file"].as_u64().unwrap();
    let before = file_bytes(&mut client);
    compact(&mut client, "d1");
    let after = file_bytes(&mut client);
    println!("full_disk: compaction of d1: {before} bytes before, {after} after");
    assert!(after < before - (DOCUMENT_BYTES * (DOCUMENTS - kept) / 2) as u64, "{before} {after}");
    assert!(!server.stderr().contains("compacting d1"), "{}", server.stderr());
    assert_readable(&mut client);

    // Restarted while it is full.
    fill_until_refused(&mut disk, &mut client, "d2");
    server.stop();
    disk.fill();
    server.restart();
    let mut client = server.client();
    assert_readable(&mut client);

    // With space, every database takes writes again.
    disk.free();
    for database in 0..DATABASES {
        let path = format!("/d{database}/late");
        wait_until("a write once there is space", TIMEOUT, || {
            let written = client.expect_response("PUT", &path, Some(&large_document(database)));
            written.is_success() || written.status == 409
        });
        assert_eq!(client.expect_success("GET", &path, None)["n"], database);
    }
    assert_readable(&mut client);
    server.assert_no_panic();
    server.stop();
}
