//! Memory of an import, measured in a child process without SQLite and the corpus.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{BATCH_COUNT, Bench, SEED};
use crate::Result;
use crate::engine::{Caching, Stemma};
use crate::harness::{MemoryWatch, ResultRow, Samples, Unit};
use crate::workload::{Corpus, Records};

const ROW: &str = "memory of an import";

/// The target, excluding the page cache.
const BOUND_MIB: f64 = 400.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if !bench.is_selected(ROW) {
        return Ok(());
    }
    let path = bench.scratch.fresh_path("import.stemma")?;
    let count = bench.scale.document_count;
    let output = Command::new(std::env::current_exe()?)
        .arg("import-child")
        .arg(&path)
        .arg(count.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the import failed: {}", output.status).into());
    }
    crate::harness::remove(&path)?;
    let peaks: Value = serde_json::from_slice(&output.stdout)?;
    let mebibytes = |name: &str| {
        let kib = peaks[name].as_f64().ok_or_else(|| format!("the import did not say its {name}"))?;
        Ok::<_, crate::Failure>(Samples::from_costs([kib / 1024.0]))
    };
    let mut heading = bench.heading(ROW, count, false, Unit::Amount("MiB"));
    heading.targets = vec![("bound", 1.0)];
    bench.push(ResultRow::new(
        heading,
        &mebibytes("anonymous_kib")?,
        &[("bound", &Samples::from_costs([BOUND_MIB]))],
    ))?;
    let heading = bench.heading(&format!("{ROW}, with mapped pages of its files"), count, false, Unit::Amount("MiB"));
    bench.push(ResultRow::new(heading, &mebibytes("total_kib")?, &[]))
}

/// Entry point of the child process: imports `count` generated documents and prints its peak memory.
pub(crate) fn run_child(path: &Path, count: u64) -> Result<()> {
    let watch = MemoryWatch::start();
    let stemma = Stemma::open(path, false, Caching::Default)?;
    let records = Records::new(SEED);
    for start in (0..count).step_by(BATCH_COUNT) {
        let batch = Corpus::generate_range(records, start..(start + BATCH_COUNT as u64).min(count));
        stemma.insert(&batch.documents(0..batch.len()))?;
    }
    if stemma.document_count()? != count {
        return Err("documents are missing after the import".into());
    }
    stemma.close()?;
    let peak = watch.finish()?;
    println!("{}", json!({"anonymous_kib": peak.anonymous_kib, "total_kib": peak.total_kib}));
    Ok(())
}
