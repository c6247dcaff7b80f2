//! Client suites: tests written in the clients' languages, run with the real clients against a server on a loopback
//! port.
//!
//! They need `node` and `npm`, `go`, and Chromium. Packages are installed below cargo's target directory from lock
//! files without registry addresses, so any configured registry works. If a tool is missing, the test fails and names
//! what to install.

mod suites;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stemmadb_server::{Config, Cors, Log};
use suites::{Beside, TestServer, copy_to, copy_tree, program, run};

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
    node.args(["--test", "--test-reporter=spec", "--test-timeout=900000", file]).current_dir(&directory);
    node.env("STEMMA_URL", started.url()).env("SUITE_DIR", started.local());
    node
}

#[test]
fn pouchdb() {
    run(&mut node("pouchdb", &TestServer::new()), "Node.js");
}

#[test]
fn pouchdb_with_a_virtual_database() {
    run(&mut node_file("pouchdb", "virtual.js", &TestServer::new()), "Node.js");
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

/// The Go module of kivik.
const KIVIK: &str = "github.com/go-kivik/kivik/v4";
/// An address in kivik's suite. Tests send nothing beyond this machine.
const DISTANT: &str = "192.168.2.254";
/// One test writes a document three times and expects that a feed has each revision. A feed may skip a revision that
/// was replaced before the feed came to it, so the test waits for each one.
const WAITS: [(&str, &str); 3] = [
    (
        "\tdoc.Rev = rev\n\tdoc.Value = \"bar\"\n",
        "\tdoc.Rev = rev\n\tdoc.Value = \"bar\"\n\tchanges.Next()\n\tseen := changes.Changes()\n",
    ),
    ("\ttime.Sleep(delay) //", "\tchanges.Next()\n\tseen = append(seen, changes.Changes()...) //"),
    ("\trevs := make([]string, 0, maxRevs)\n\tdone", "\trevs := append(make([]string, 0, maxRevs), seen...)\n\tdone"),
];

/// Replaces texts of a source file. Each must be in it exactly once.
fn replace(file: &Path, replacements: &[(&str, &str)]) {
    let mut source = std::fs::read_to_string(file).unwrap();
    for (original, replacement) in replacements {
        assert_eq!(source.matches(original).count(), 1, "{original:?} in {file:?} of kivik's suite");
        source = source.replace(original, replacement);
    }
    std::fs::write(file, source).unwrap();
}

/// Runs kivik's own integration tests (its package `kiviktest`). `expected_failures.txt` lists the tests that fail,
/// with the reasons.
#[test]
fn kiviktest() {
    let (sources, directory) = (sources("kiviktest"), directory("kiviktest"));
    copy_to(&sources, &directory);
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments).current_dir(&directory).env("GOWORK", "off");
        go
    };
    // One file of the module is replaced, which is possible only in a copy.
    run(&mut go(&["mod", "download", KIVIK]), "Go");
    let module = run(&mut go(&["list", "-m", "-f", "{{.Dir}}", KIVIK]), "Go");
    copy_tree(Path::new(module.trim()), &directory.join("module"));
    let replaced = directory.join("module/kiviktest/go123testing.go");
    std::fs::write(replaced, std::fs::read(sources.join("overlay.go.txt")).unwrap()).unwrap();
    run(&mut go(&["mod", "edit", "-replace", &format!("{KIVIK}=./module")]), "Go");
    // One test replicates from a distant address that does not answer. A listener that never accepts is one, too.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    replace(
        &directory.join("module/kiviktest/client/replicate.go"),
        &[(DISTANT, &silent.local_addr().unwrap().to_string())],
    );
    replace(&directory.join("module/kiviktest/db/changes.go"), &WAITS);
    // One test waits for the end of a feed.
    let started = TestServer::with(|mut config| {
        config.limits.feed_timeout = Duration::from_secs(2);
        config
    });
    let mut tests = go(&["test", "-count=1", "-json", "-mod=readonly", "-timeout=300s", "."]);
    let output = tests.env("STEMMA_URL", started.url()).output().expect("Go is needed to run this test");
    let events = String::from_utf8_lossy(&output.stdout);
    let (failed, passed_count) = failed_tests(&events);
    assert!(passed_count > 300, "only {passed_count} tests passed: {events}");
    let listed = std::fs::read_to_string(sources.join("expected_failures.txt")).unwrap();
    let names = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned);
    let listed: BTreeSet<_> = names.collect();
    for test in failed.difference(&listed) {
        println!("{}", output_of(&events, test));
    }
    assert_eq!(failed, listed, "the tests that failed, and expected_failures.txt");
}

/// The tests that failed, without those that failed only because of a subtest, and the number of those that passed.
fn failed_tests(events: &str) -> (BTreeSet<String>, usize) {
    let events = events.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let (mut failed, mut passed_count) = (BTreeSet::new(), 0);
    for event in events {
        let Some(test) = event["Test"].as_str() else { continue };
        match event["Action"].as_str() {
            Some("fail") => drop(failed.insert(test.to_owned())),
            Some("pass") => passed_count += 1,
            _ => {}
        }
    }
    let has_failed_subtest = |test: &String| failed.iter().any(|other| other.starts_with(&format!("{test}/")));
    (failed.iter().filter(|test| !has_failed_subtest(test)).cloned().collect(), passed_count)
}

/// What a test and its subtests have printed.
fn output_of(events: &str, test: &str) -> String {
    let events = events.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_test = events.filter(|event| event["Test"].as_str().is_some_and(|name| name.starts_with(test)));
    of_test.filter_map(|event| Some(event["Output"].as_str()?.to_owned())).collect()
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

/// Runs the console's suite, and restarts the server when the suite asks for it by a file.
#[test]
fn console() {
    let chromium = chromium();
    // The page of the log shows its lines.
    let _logging = Log::default().install(std::io::sink()).unwrap();
    let mut started = TestServer::new();
    let mut suite = node_file("browser", "console.js", &started);
    suite.env("CHROMIUM", chromium);
    let suite = std::thread::spawn(move || run(&mut suite, "Node.js"));
    let (restart, restarted) = (started.local().join("restart"), started.local().join("restarted"));
    while !suite.is_finished() {
        if restart.exists() {
            std::fs::remove_file(&restart).unwrap();
            started.restart();
            std::fs::write(&restarted, "").unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    suite.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure));
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
