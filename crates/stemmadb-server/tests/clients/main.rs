//! Suites of our own, in the languages of the clients, run with the clients themselves against a server on a loopback port.
//!
//! They need `node` and `npm`, and `go`; their packages are installed below cargo's target directory, by lock files without addresses,
//! so from whichever registry is set up. A missing tool is a failure that says what to install.

mod suites;

use std::path::{Path, PathBuf};
use std::process::Command;

use suites::{Started, copy_to, run};

/// The sources of a suite.
fn sources(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(suite)
}

/// Where a suite is installed and run.
fn place(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(suite)
}

/// Installs a suite in JavaScript, if that was not done with this lock file, and runs it.
fn run_node(suite: &str) {
    let place = place(suite);
    copy_to(&sources(suite), &place);
    let lock = std::fs::read_to_string(place.join("package-lock.json")).unwrap();
    assert!(
        !lock.contains("\"resolved\""),
        "the lock file names a registry: npm install --omit-lockfile-registry-resolved"
    );
    let stamp = place.join("installed");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&lock) {
        run(
            Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&place),
            "Node.js with npm",
        );
        std::fs::write(&stamp, &lock).unwrap();
    }
    let started = Started::new();
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=spec", "suite.js"]).current_dir(&place);
    node.env("STEMMA_URL", started.url()).env("SUITE_DIR", started.local());
    run(&mut node, "Node.js");
}

#[test]
fn pouchdb() {
    run_node("pouchdb");
}

#[test]
fn nano() {
    run_node("nano");
}

#[test]
fn kivik() {
    let place = place("kivik");
    copy_to(&sources("kivik"), &place);
    let started = Started::new();
    let mut go = Command::new("go");
    go.args(["test", "-count=1", "-mod=readonly", "./..."]).current_dir(&place);
    go.env("STEMMA_URL", started.url());
    run(&mut go, "Go");
}
