//! The strategies on bbolt: runs a small Go program, which is built on first use.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::Workload;
use super::encode::to_binary;
use crate::Result;

const SOURCES: [(&str, &str); 5] = [
    ("go.mod", include_str!("../../../bolt/go.mod")),
    ("go.sum", include_str!("../../../bolt/go.sum")),
    ("main.go", include_str!("../../../bolt/main.go")),
    ("records.go", include_str!("../../../bolt/records.go")),
    ("stores.go", include_str!("../../../bolt/stores.go")),
];

/// Strategies, by their names in the Go program and in rows.
pub(super) const STRATEGIES: [(&str, &str); 6] = [
    ("binary", "bbolt-binary"),
    ("names", "bbolt-names"),
    ("json", "bbolt-json"),
    ("gob", "bbolt-gob"),
    ("multikv", "bbolt-multikv"),
    ("nested", "bbolt-nested"),
];

/// The built Go program.
pub(super) struct Bolt {
    program: PathBuf,
}

/// The program's output: nanoseconds of all operations of a kind, and checksums.
#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    pub(super) insert: u64,
    pub(super) read: u64,
    pub(super) read_many: u64,
    pub(super) field_sum: u64,
    pub(super) update: u64,
    pub(super) bytes: u64,
    pub(super) read_hash: u64,
    pub(super) many_hash: u64,
    pub(super) sum_bits: u64,
    pub(super) updated_bits: u64,
}

impl Bolt {
    /// Builds the program in `directory`.
    pub(super) fn build(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        for (name, text) in SOURCES {
            std::fs::write(directory.join(name), text)?;
        }
        let program = directory.join("bolt");
        let built = Command::new("go").args(["build", "-o", "bolt", "."]).current_dir(directory).output();
        let built = built.map_err(|error| format!("bbolt needs Go 1.25 or newer: {error}"))?;
        if !built.status.success() {
            return Err(format!("bbolt's program can't be built: {}", String::from_utf8_lossy(&built.stderr)).into());
        }
        Ok(Bolt { program })
    }

    /// Runs one strategy in an empty directory.
    pub(super) fn run(&self, directory: &Path, strategy: &str, workload: &Workload, bulk: bool) -> Result<Outcome> {
        std::fs::create_dir_all(directory)?;
        let (records, ids) = (directory.join("records"), directory.join("ids"));
        let mut bytes = Vec::new();
        for account in &workload.accounts {
            let mut record = Vec::with_capacity(256);
            to_binary(account, &mut record);
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&record);
        }
        std::fs::write(&records, bytes)?;
        let all: Vec<u8> = workload.read.iter().chain(&workload.updated).flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(&ids, all)?;
        let mut command = Command::new(&self.program);
        command.arg("-directory").arg(directory).arg("-records").arg(&records).arg("-ids").arg(&ids);
        command.args(["-strategy", strategy]).arg(format!("-bulk={bulk}"));
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
