//! Imports that are interrupted or killed, and resumed: every document is imported exactly once.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const DOCUMENT_COUNT: usize = 3_000;

fn import(database: &Path, file: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
    command.arg("import").arg(database).arg(file).args(["--batch", "10"]).args(options).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The documents have no ids: importing one twice would make two.
fn documents() -> Vec<u8> {
    (0..DOCUMENT_COUNT).flat_map(|n| format!("{{\"n\": {n}}}\n").into_bytes()).collect()
}

fn numbers(database: &Path) -> Vec<usize> {
    let output = Command::new(env!("CARGO_BIN_EXE_stemma"))
        .args(["find", database.to_str().unwrap(), "{}", "--fields", "n", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].as_u64().unwrap() as usize;
    let mut numbers: Vec<usize> = lines.lines().map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn log_bytes(database: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(database.join("log")) else { return 0 };
    files.flatten().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts an import of standard input and feeds it `bytes`; the pipe stays open.
fn start_fed(database: &Path, options: &[&str], bytes: &[u8]) -> (Child, ChildStdin) {
    let mut child = import(database, Path::new("-"), options).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(bytes).unwrap();
    (child, pipe)
}

struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene { directory: tempfile::tempdir().unwrap() };
        std::fs::write(scene.file(), documents()).unwrap();
        scene
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("documents.jsonl")
    }

    fn database(&self) -> PathBuf {
        self.directory.path().join("db.stemma")
    }
}

#[test]
fn killed_imports_resume_without_losing_or_repeating_documents() {
    let scene = Scene::new();
    let (database, file) = (scene.database(), scene.file());
    let mut grown = 0;
    for _ in 0..6 {
        let mut child = import(&database, &file, &["--resume"]).spawn().unwrap();
        // Wait until it has written some batches more, then kill it in the middle of whatever it does.
        let target = grown + 12_000;
        wait_until("a write", || log_bytes(&database) >= target || child.try_wait().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        grown = log_bytes(&database);
    }
    let output = import(&database, &file, &["--resume"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(numbers(&database), (0..DOCUMENT_COUNT).collect::<Vec<_>>());
    // Now it is complete: a script may resume again.
    let again = import(&database, &file, &["--resume"]).output().unwrap();
    assert!(again.status.success() && text(&again).contains("is imported already"), "{}", text(&again));
    assert_eq!(numbers(&database).len(), DOCUMENT_COUNT);
}

#[test]
fn interrupt_reports_the_position_and_the_import_resumes_there() {
    let scene = Scene::new();
    let (database, bytes) = (scene.database(), documents());
    // The pipe stays open, so the import waits for more input when it is interrupted.
    let half = bytes.len() / 2;
    let (child, pipe) = start_fed(&database, &["--resume"], &bytes[..half]);
    wait_until("a write", || log_bytes(&database) > 20_000);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(pipe);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    let message = text(&output);
    assert!(message.contains("interrupted: documents up to line "), "{message}");
    assert!(message.contains("--resume"), "{message}");
    let line: usize = message.split("up to line ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(numbers(&database), (0..line).collect::<Vec<_>>());
    let (child, pipe) = start_fed(&database, &["--resume"], &bytes);
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("after line {line}, {line} documents are imported")), "{}", text(&output));
    assert_eq!(numbers(&database), (0..DOCUMENT_COUNT).collect::<Vec<_>>());
}

#[test]
fn an_interrupt_ends_an_import_that_waits_for_its_input() {
    let scene = Scene::new();
    let database = scene.database();
    let (child, pipe) = start_fed(&database, &[], b"{\"n\": 1}\n");
    wait_until("the database", || database.join("LOCK").exists() || database.join("log").exists());
    // The handler is installed before the database is created.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(pipe);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(numbers(&database).is_empty());
}

#[test]
fn another_file_does_not_resume() {
    let scene = Scene::new();
    let database = scene.database();
    let mut child = import(&database, &scene.file(), &[]).spawn().unwrap();
    wait_until("a write", || log_bytes(&database) > 20_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let imported = numbers(&database).len();
    let other = scene.directory.path().join("other.jsonl");
    std::fs::write(&other, documents()).unwrap();
    let output = import(&database, &other, &["--resume"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(numbers(&database).len(), imported + DOCUMENT_COUNT);
}
