//! Client suites: tests written in the clients' languages, run with the real clients against a server on a loopback
//! port.
//!
//! They need `node` and `npm`, `go`, and Chromium. Packages are installed below cargo's target directory from lock
//! files without registry addresses, so any configured registry works. If a tool is missing, the test fails and names
//! what to install.

mod suites;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use stemmadb_server::{Config, Cors};
use suites::{Beside, TestServer, copy_to, program, run};

/// The sources of a suite.
fn sources(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(suite)
}

/// The directory in which a suite is installed and run.
fn directory(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(suite)
}

/// Copies a JavaScript package to `directory`, and installs its dependencies unless that was done with the same lock
/// file.
fn install(sources: &Path, directory: &Path) {
    // Several suites may share a package.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    copy_to(sources, directory);
    let lock = std::fs::read_to_string(directory.join("package-lock.json")).unwrap();
    assert!(
        !lock.contains("\"resolved\""),
        "the lock file names a registry: npm install --omit-lockfile-registry-resolved"
    );
    let stamp = directory.join("installed");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&lock) {
        run(
            Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(directory),
            "Node.js with npm",
        );
        std::fs::write(&stamp, &lock).unwrap();
    }
}

/// The command that runs a JavaScript suite, installed and configured with the server's URL.
fn node(suite: &str, started: &TestServer) -> Command {
    node_file(suite, "suite.js", started)
}

/// As [`node`], for one of a suite's files.
fn node_file(suite: &str, file: &str, started: &TestServer) -> Command {
    let directory = directory(suite);
    install(&sources(suite), &directory);
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=spec", file]).current_dir(&directory);
    node.env("STEMMA_URL", started.url()).env("SUITE_DIR", started.local());
    node
}

#[test]
fn pouchdb() {
    run(&mut node("pouchdb", &TestServer::new()), "Node.js");
}

#[test]
fn nano() {
    run(&mut node("nano", &TestServer::new()), "Node.js");
}

#[test]
fn kivik() {
    let directory = directory("kivik");
    copy_to(&sources("kivik"), &directory);
    let started = TestServer::new();
    let mut go = Command::new("go");
    go.args(["test", "-count=1", "-mod=readonly", "./..."]).current_dir(&directory);
    go.env("STEMMA_URL", started.url());
    run(&mut go, "Go");
}

/// The browsers that are tried unless `CHROMIUM` names one.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn chromium() -> PathBuf {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    named.or_else(|| program(&BROWSERS)).expect(
        "there is no Chromium: install it (on Debian: apt-get install --no-install-recommends chromium), or name its \
        program in CHROMIUM",
    )
}

#[test]
fn browser() {
    let chromium = chromium();
    let example = directory("example");
    install(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/browser"), &example);
    // The command from the example's README, on a free port.
    let mut pages = Command::new("node");
    let (_pages, page) = Beside::start(pages.args(["serve.js", "0"]).current_dir(&example), "Node.js");
    let cors = Cors { origins: vec![page.clone()], credentials: true, ..Cors::default() };
    let started = TestServer::with(|config| Config { cors, ..config });
    run(node("browser", &started).env("PAGE_URL", page).env("CHROMIUM", chromium), "Node.js");
}

/// CouchDB's dashboard, prebuilt.
const FAUXTON: &str = "fauxton@1.2.6";
const FAUXTON_INTEGRITY: &str =
    "sha512-5ZwPKqstwmQclSHifWBmbyzlBOLoBB3gssGaiEFLPcIzHO0Zxz+uPr/D/Fs6DGH7Hfohw7s6zqcjwU9CRcshfw==";

/// The directory with Fauxton's files: only its own package, because its build dependencies are not needed.
fn fauxton_files() -> PathBuf {
    let directory = directory("fauxton");
    let files = directory.join("package/dist/release");
    if !files.join("index.html").exists() {
        std::fs::create_dir_all(&directory).unwrap();
        let packed = run(
            Command::new("npm").args(["pack", FAUXTON, "--json", "--ignore-scripts"]).current_dir(&directory),
            "Node.js with npm",
        );
        assert!(packed.contains(FAUXTON_INTEGRITY), "this is another package than {FAUXTON} was: {packed}");
        run(Command::new("tar").args(["xzf", "fauxton-1.2.6.tgz"]).current_dir(&directory), "tar");
    }
    files
}

#[test]
fn fauxton() {
    let chromium = chromium();
    let dashboard = Some(fauxton_files());
    let started = TestServer::with(|config| Config { dashboard, ..config });
    run(node_file("browser", "fauxton.js", &started).env("CHROMIUM", chromium), "Node.js");
}
