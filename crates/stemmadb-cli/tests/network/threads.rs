//! A server with a low thread limit returns clear errors, loses nothing, and never panics.
//!
//! The kernel limits the threads of a user, except root. The server therefore runs under an unused user id, which only
//! root can do (`setpriv`). Otherwise the tests print that they did not run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::server::{Server, stemma};

const USER: u32 = 61_234;
/// Serializes the tests: their threads count for the same user.
static TEST_LOCK: Mutex<()> = Mutex::new(());
const DATABASES: usize = 30;

/// The wrapper that runs a command as the test user with a soft limit of `thread_count` threads.
fn wrapper(thread_count: usize) -> Vec<String> {
    let words = format!("setpriv --reuid {USER} --regid {USER} --clear-groups prlimit --nproc={thread_count}:");
    words.split(' ').map(str::to_owned).collect()
}

fn command(thread_count: usize) -> Command {
    let words = wrapper(thread_count);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Whether commands can be run as the test user in `directory`.
fn is_possible(directory: &Path) -> bool {
    std::os::unix::fs::chown(directory, Some(USER), Some(USER)).is_ok()
        && command(100)
            .args([&stemma(), "--version"])
            .current_dir(directory)
            .output()
            .is_ok_and(|output| output.status.success())
}

#[test]
fn thread_exhaustion_returns_errors_and_recovers() {
    let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    if !is_possible(directory.path()) {
        println!("threads: NOT RUN: requires root, and a test user who can execute {}", stemma());
        return;
    }
    let worker_count = std::thread::available_parallelism().map_or(1, usize::from);
    refuses_to_start(directory.path(), worker_count);
    // Enough to start; all databases share the threads of one background pool, so it is enough for many databases too.
    let prefix = format!("exec {} \"$@\";", wrapper(worker_count + 14).join(" "));
    let server = Server::start_with_prefix(directory.path(), &[], &prefix);
    let (mut acknowledged, mut refusals) = (BTreeSet::new(), Vec::new());
    let mut client = server.client();
    for number in 0..DATABASES {
        for (path, body) in [(format!("/d{number}"), None), (format!("/d{number}/doc"), Some(json!({"n": number})))] {
            match client.expect_response("PUT", &path, body.as_ref()) {
                answer if answer.is_success() => drop(acknowledged.insert(path)),
                answer => refusals.push(answer),
            }
        }
    }
    println!("threads: {} acknowledged, {} refused", acknowledged.len(), refusals.len());
    assert!(!acknowledged.is_empty(), "{refusals:?}");
    for refused in &refusals {
        let reason = refused.json()["reason"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 503 && reason.contains("thread"), "{}", refused.summary());
    }
    client.expect_success("GET", "/_up", None);
    // Without the limit, refused requests succeed.
    set_thread_limit(&server, 1_000);
    server.assert_holds(&acknowledged, DATABASES);
    server.assert_recovers(&acknowledged, DATABASES);
}

/// Idle blocking threads end after ten seconds, except one: if no thread can be started later, blocking work uses that
/// one.
#[test]
fn idle_server_needs_no_new_thread() {
    let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    if !is_possible(directory.path()) {
        println!("threads: NOT RUN: requires root, and a test user who can execute {}", stemma());
        return;
    }
    let prefix = format!("exec {} \"$@\";", wrapper(1_000).join(" "));
    let mut server = Server::start_with_prefix(directory.path(), &[], &prefix);
    server.client().expect_success("PUT", "/db", None);
    std::thread::sleep(Duration::from_secs(15));
    set_thread_limit(&server, 1);
    let mut client = server.client();
    for number in 0..20 {
        client.expect_success("PUT", &format!("/db/d{number}"), Some(&json!({"n": number})));
    }
    server.assert_no_panic();
    server.stop();
}

/// Changes the thread limit of the running server.
fn set_thread_limit(server: &Server, thread_count: usize) {
    let mut command = command(thread_count);
    let command = command.args(["prlimit", "--pid", &server.pid().to_string(), &format!("--nproc={thread_count}:")]);
    assert!(command.status().unwrap().success());
}

/// With fewer threads than it needs to start, the server exits with an error.
fn refuses_to_start(directory: &Path, worker_count: usize) {
    for thread_count in 1..worker_count + 6 {
        let arguments = ["serve", "nothing", "--listen", "127.0.0.1:0"];
        let output = command(thread_count).arg(stemma()).args(arguments).current_dir(directory).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{thread_count} threads: {stderr}");
        assert!(
            stderr.contains("cannot start a thread") && stderr.contains("hint: more threads must be allowed"),
            "{stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}
