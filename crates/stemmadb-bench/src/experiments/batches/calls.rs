//! System calls per inserted document, counted by `strace` on a child process.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Commit, DOCUMENT_BYTES, Documents, heading, insert_concurrently};
use crate::Result;
use crate::experiments::Bench;
use crate::harness::{ResultRow, Samples, Unit};

/// Documents inserted by the child process.
const DOCUMENT_COUNT: usize = 512;
const WRITER_COUNTS: [usize; 3] = [1, 16, 256];
/// System calls that write to files and that flush them.
const WRITES: [&str; 4] = ["write", "pwrite64", "writev", "pwritev"];
const FLUSHES: [&str; 3] = ["fdatasync", "fsync", "sync_file_range"];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let names = ["system calls: writes and flushes", "system calls: all"];
    if !names.iter().any(|name| bench.is_selected(name)) {
        return Ok(());
    }
    if Command::new("strace").arg("--version").output().is_err() {
        eprintln!("system calls are not counted: there is no strace (Debian's package of that name)");
        return Ok(());
    }
    for writer_count in WRITER_COUNTS {
        let ours = count(bench, writer_count, true)?;
        let alone = count(bench, writer_count, false)?;
        let per_document = |calls: f64| Samples::from_costs([calls / DOCUMENT_COUNT as f64]);
        let figures = [(ours.files, alone.files), (ours.all, alone.all)];
        for (name, (ours, alone)) in names.into_iter().zip(figures) {
            let name = format!("{name}, {writer_count} writers");
            let heading = heading(bench, &name, DOCUMENT_COUNT, true, Unit::Amount("calls/document"));
            bench.push(ResultRow::new(heading, &per_document(ours), &[("no-group-commit", &per_document(alone))]))?;
        }
    }
    Ok(())
}

/// Numbers of system calls.
#[derive(Debug, PartialEq)]
struct Calls {
    /// Calls that write to or flush files.
    files: f64,
    all: f64,
}

/// Counts the calls caused by inserting, beyond those of a process that only opens and closes the database.
fn count(bench: &Bench, writer_count: usize, shares_flushes: bool) -> Result<Calls> {
    let empty = trace(&bench.scratch.fresh_path("traced.stemma")?, 0, writer_count, shares_flushes)?;
    let full = trace(&bench.scratch.fresh_path("traced.stemma")?, DOCUMENT_COUNT, writer_count, shares_flushes)?;
    Ok(Calls { files: full.files - empty.files, all: full.all - empty.all })
}

fn trace(path: &Path, count: usize, writer_count: usize, shares_flushes: bool) -> Result<Calls> {
    let report = path.with_extension("calls");
    let status = Command::new("strace")
        .args(["-f", "-c", "-U", "name,calls", "-o"])
        .arg(&report)
        .arg(std::env::current_exe()?)
        .arg("batch-child")
        .arg(path)
        .args([count.to_string(), writer_count.to_string(), shares_flushes.to_string()])
        .status()?;
    if !status.success() {
        return Err(format!("strace ended with {status}").into());
    }
    parse(&std::fs::read_to_string(&report)?)
}

/// Sums the counts in an strace summary with the columns `name` and `calls`.
fn parse(report: &str) -> Result<Calls> {
    let mut calls = Calls { files: 0.0, all: 0.0 };
    for line in report.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(count)) = (words.next(), words.next()) else { continue };
        let Ok(count) = count.parse::<f64>() else { continue };
        if name == "total" {
            continue;
        }
        calls.all += count;
        if WRITES.contains(&name) || FLUSHES.contains(&name) {
            calls.files += count;
        }
    }
    if calls.all == 0.0 { Err("strace's report has no calls".into()) } else { Ok(calls) }
}

/// Entry point of the traced child process.
pub(crate) fn run_child(path: PathBuf, count: usize, writer_count: usize, shares_flushes: bool) -> Result<()> {
    let documents = Documents::make(count, DOCUMENT_BYTES);
    if count == 0 {
        return crate::engine::Stemma::open(&path, true, crate::engine::Caching::Default)?.close();
    }
    let commit = if shares_flushes { Commit::Grouped } else { Commit::Exclusive };
    insert_concurrently(&path, &documents, writer_count, commit).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_sums_an_strace_report() {
        let report = "syscall          calls\n---------- ---------\npwrite64     530\nfdatasync       18\nfutex   70\n\
            ---------- ---------\ntotal   618\n";
        assert_eq!(parse(report).unwrap(), Calls { files: 548.0, all: 618.0 });
        assert!(parse("strace: no such process\n").is_err());
    }
}
