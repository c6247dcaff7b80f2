//! The growth experiment measures in child processes, and continues with databases that were kept.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the experiment up to `documents`; returns its rows.
fn run(directory: &Path, documents: &str, parts: &str) -> Vec<serde_json::Value> {
    let json = directory.join("rows.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stemmadb-bench"));
    command.args(["growth", "--scale", "tiny", "--quiet", "--documents", documents, "--parts", parts, "--keep"]);
    command.arg(directory.join("kept")).arg("--directory").arg(directory).arg("--json").arg(&json);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    results["rows"].as_array().unwrap().clone()
}

#[test]
fn kept_databases_continue_to_grow() {
    let directory = tempfile::tempdir().unwrap();
    let rows = run(directory.path(), "2000", "inserts,space");
    let row = |name: &str| rows.iter().find(|row| row["row"] == name).unwrap();
    for name in ["insert", "bytes on disk", "memory: anonymous"] {
        assert!(row(name)["ours"]["p50"].as_f64().unwrap() > 0.0);
        assert!(row(name)["peers"]["sqlite-15-indexes"]["p50"].as_f64().unwrap() > 0.0);
    }
    let rows = run(directory.path(), "3000", "reads");
    assert!(rows.len() > 10 && rows.iter().all(|row| row["documents"] == 3_000), "{rows:?}");
}
