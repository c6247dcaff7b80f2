//! A run that is killed during its second experiment resumes there.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The first takes no time, the second some seconds.
const EXPERIMENTS: [&str; 2] = ["views", "batches"];

fn command(results: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stemmadb-bench"));
    command.arg("run").args(EXPERIMENTS).args(["--scale", "tiny", "--name", "resumed", "--results"]).arg(results);
    command.arg("--directory").arg(results).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn kill(id: u32) {
    let killed = Command::new("kill").args(["-KILL", &id.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Returns the running child processes.
fn children(id: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    listed.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn rows(file: &Path) -> Vec<serde_json::Value> {
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    results["rows"].as_array().unwrap().clone()
}

#[test]
fn killed_run_resumes_at_the_second_experiment() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = command(directory.path()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let parts = loop {
        let found = std::fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.path());
        let parts = found.into_iter().find(|path| path.join(format!("{}.part", EXPERIMENTS[1])).exists());
        if let Some(parts) = parts {
            break parts;
        }
        assert!(run.try_wait().unwrap().is_none(), "it came to its end before it was killed");
        assert!(start.elapsed() < Duration::from_secs(300), "it never came to its second experiment");
        std::thread::sleep(Duration::from_millis(1));
    };
    // Killing the parent does not end its child.
    let experiments = children(run.id());
    kill(run.id());
    run.wait().unwrap();
    assert_eq!(experiments.len(), 1);
    kill(experiments[0]);
    let finished = rows(&parts.join(format!("{}.json", EXPERIMENTS[0])));
    assert!(!finished.is_empty() && !parts.join(format!("{}.json", EXPERIMENTS[1])).exists());
    assert!(!directory.path().join("resumed.json").exists());

    let output = command(directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("views was run before") && !said.contains("batches was run before"), "{said}");
    let all = rows(&directory.path().join("resumed.json"));
    assert_eq!(all[..finished.len()], finished, "the first experiment is as it was measured");
    let second = &all[finished.len()..];
    assert!(second.len() >= 12 + 27 && second.iter().all(|row| row["experiment"] == "batches"), "{}", second.len());
    assert!(!parts.exists());
}
