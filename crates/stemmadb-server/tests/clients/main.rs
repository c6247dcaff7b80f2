//! Suites of our own, in the languages of the clients, run with the clients themselves against a server on a loopback port.
//!
//! They need `node` and `npm`, `go`, and Chromium; their packages are installed below cargo's target directory, by lock files without addresses,
//! so from whichever registry is set up. A missing tool is a failure that says what to install.

mod suites;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use stemmadb_server::{Config, Cors};
use suites::{Beside, Started, copy_to, program, run};

/// The sources of a suite.
fn sources(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(suite)
}

/// Where a suite is installed and run.
fn place(suite: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(suite)
}

/// Copies a package in JavaScript to `place`, and installs what it needs, if that was not done with this lock file.
fn install(sources: &Path, place: &Path) {
    // Two suites may be of one package.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    copy_to(sources, place);
    let lock = std::fs::read_to_string(place.join("package-lock.json")).unwrap();
    assert!(
        !lock.contains("\"resolved\""),
        "the lock file names a registry: npm install --omit-lockfile-registry-resolved"
    );
    let stamp = place.join("installed");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&lock) {
        run(
            Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(place),
            "Node.js with npm",
        );
        std::fs::write(&stamp, &lock).unwrap();
    }
}

/// A suite in JavaScript, installed, and told where the server is.
fn node(suite: &str, started: &Started) -> Command {
    node_file(suite, "suite.js", started)
}

/// One of a suite's files, as [`node`] has it.
fn node_file(suite: &str, file: &str, started: &Started) -> Command {
    let place = place(suite);
    install(&sources(suite), &place);
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=spec", file]).current_dir(&place);
    node.env("STEMMA_URL", started.url()).env("SUITE_DIR", started.local());
    node
}

#[test]
fn pouchdb() {
    run(&mut node("pouchdb", &Started::new()), "Node.js");
}

#[test]
fn nano() {
    run(&mut node("nano", &Started::new()), "Node.js");
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

/// The browsers that are looked for where `CHROMIUM` names none.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn chromium() -> PathBuf {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    named.or_else(|| program(&BROWSERS)).expect(
        "there is no Chromium: install it (on Debian: apt-get install --no-install-recommends chromium), or name its program in CHROMIUM",
    )
}

#[test]
fn browser() {
    let chromium = chromium();
    let example = place("example");
    install(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/browser"), &example);
    // What the example's README says, on a free port.
    let mut pages = Command::new("node");
    let (_pages, page) = Beside::start(pages.args(["serve.js", "0"]).current_dir(&example), "Node.js");
    let cors = Cors { origins: vec![page.clone()], credentials: true, ..Cors::default() };
    let started = Started::with(|config| Config { cors, ..config });
    run(node("browser", &started).env("PAGE_URL", page).env("CHROMIUM", chromium), "Node.js");
}

/// CouchDB's dashboard, as it is built.
const FAUXTON: &str = "fauxton@1.2.6";
const FAUXTON_INTEGRITY: &str =
    "sha512-5ZwPKqstwmQclSHifWBmbyzlBOLoBB3gssGaiEFLPcIzHO0Zxz+uPr/D/Fs6DGH7Hfohw7s6zqcjwU9CRcshfw==";

/// The directory with Fauxton's files: its package alone, since what it is built with is not needed.
fn fauxton_files() -> PathBuf {
    let place = place("fauxton");
    let files = place.join("package/dist/release");
    if !files.join("index.html").exists() {
        std::fs::create_dir_all(&place).unwrap();
        let packed = run(
            Command::new("npm").args(["pack", FAUXTON, "--json", "--ignore-scripts"]).current_dir(&place),
            "Node.js with npm",
        );
        assert!(packed.contains(FAUXTON_INTEGRITY), "this is another package than {FAUXTON} was: {packed}");
        run(Command::new("tar").args(["xzf", "fauxton-1.2.6.tgz"]).current_dir(&place), "tar");
    }
    files
}

#[test]
fn fauxton() {
    let chromium = chromium();
    let dashboard = Some(fauxton_files());
    let started = Started::with(|config| Config { dashboard, ..config });
    run(node_file("browser", "fauxton.js", &started).env("CHROMIUM", chromium), "Node.js");
}
