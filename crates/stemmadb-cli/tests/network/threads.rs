//! A server that may start few threads refuses clearly what needs more, loses nothing, and never panics.
//!
//! The kernel counts the threads of a user, and lets root have as many as it likes: so the server runs as a user that nobody else is, which
//! only root can arrange (`setpriv`). Elsewhere the test says that it did not run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::server::{Server, stemma};

const USER: u32 = 61_234;
/// Held by whichever test runs: the threads of both are the same user's.
static TURN: Mutex<()> = Mutex::new(());
const DATABASES: usize = 30;

/// What a command is run by, so that it and its like may have so many threads, and more when they are allowed.
fn within(thread_count: usize) -> Vec<String> {
    let words = format!("setpriv --reuid {USER} --regid {USER} --clear-groups prlimit --nproc={thread_count}:");
    words.split(' ').map(str::to_owned).collect()
}

fn command(thread_count: usize) -> Command {
    let words = within(thread_count);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Whether a command can be run so here, in `place`.
fn is_possible(place: &Path) -> bool {
    std::os::unix::fs::chown(place, Some(USER), Some(USER)).is_ok()
        && command(100)
            .args([&stemma(), "--version"])
            .current_dir(place)
            .output()
            .is_ok_and(|output| output.status.success())
}

#[test]
fn without_threads_it_refuses_clearly_and_recovers() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    if !is_possible(place.path()) {
        println!("threads: NOT RUN: only root can have a command run as another user, who must reach {}", stemma());
        return;
    }
    let worker_count = std::thread::available_parallelism().map_or(1, usize::from);
    refuses_to_start(place.path(), worker_count);
    // Enough to begin with, but not for many databases, each of which has some.
    let before = format!("exec {} \"$@\";", within(worker_count + 14).join(" "));
    let server = Server::start_within(place.path(), &[], &before);
    let (mut acknowledged, mut refusals) = (BTreeSet::new(), Vec::new());
    let mut client = server.client();
    for number in 0..DATABASES {
        for (path, body) in [(format!("/d{number}"), None), (format!("/d{number}/doc"), Some(json!({"n": number})))] {
            match client.must("PUT", &path, body.as_ref()) {
                answer if answer.is_good() => drop(acknowledged.insert(path)),
                answer => refusals.push(answer),
            }
        }
    }
    println!("threads: {} acknowledged, {} refused", acknowledged.len(), refusals.len());
    assert!(!acknowledged.is_empty() && !refusals.is_empty(), "{refusals:?}");
    for refused in &refusals {
        let reason = refused.json()["reason"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 503 && reason.contains("thread"), "{}", refused.shown());
    }
    client.good("GET", "/_up", None);
    // As many as it likes: what was refused stands in nobody's way.
    allow(&server, 1_000);
    server.assert_holds(&acknowledged, DATABASES);
    server.assert_recovers(&acknowledged, DATABASES);
}

/// Threads that have nothing to do end after ten seconds. One is kept: where no other can be started then, what blocks waits for it.
#[test]
fn when_it_had_nothing_to_do_it_needs_no_new_thread() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    if !is_possible(place.path()) {
        println!("threads: NOT RUN: only root can have a command run as another user, who must reach {}", stemma());
        return;
    }
    let before = format!("exec {} \"$@\";", within(1_000).join(" "));
    let mut server = Server::start_within(place.path(), &[], &before);
    server.client().good("PUT", "/db", None);
    std::thread::sleep(Duration::from_secs(15));
    allow(&server, 1);
    let mut client = server.client();
    for number in 0..20 {
        client.good("PUT", &format!("/db/d{number}"), Some(&json!({"n": number})));
    }
    server.assert_calm();
    server.stop();
}

/// Sets how many threads the server and its like may have from now on.
fn allow(server: &Server, thread_count: usize) {
    let mut command = command(thread_count);
    let told = command.args(["prlimit", "--pid", &server.pid().to_string(), &format!("--nproc={thread_count}:")]);
    assert!(told.status().unwrap().success());
}

/// With less than it begins with, it says so and ends.
fn refuses_to_start(place: &Path, worker_count: usize) {
    for thread_count in 1..worker_count + 6 {
        let arguments = ["serve", "nothing", "--listen", "127.0.0.1:0"];
        let output = command(thread_count).arg(stemma()).args(arguments).current_dir(place).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{thread_count} threads: {said}");
        assert!(
            said.contains("cannot start a thread") && said.contains("hint: more threads must be allowed"),
            "{said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
