//! The cost of the flushes that the shoppers' steps require: a lower bound for serving them one after another.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::workload::shop::Plan;

/// Approximate size of a step's write.
const RECORD: [u8; 300] = [0x5a; 300];
/// Flushes measured per turn.
const FLUSH_COUNT: usize = 10;
/// The file is preallocated and rewritten from the start, so that no flush changes its length.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A file that is written and flushed repeatedly.
pub(super) struct Disk {
    file: File,
    position: u64,
    /// Nanoseconds of each write and flush.
    pub(super) costs: Vec<f64>,
    /// Estimated total in nanoseconds, at one flush per writing step.
    pub(super) total: f64,
}

impl Disk {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::create(path)?;
        file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Disk { file, position: 0, costs: Vec::new(), total: 0.0 })
    }

    /// Measures a few flushes and adds their mean for each writing step of `plans`.
    pub(super) fn turn(&mut self, plans: &[Plan]) -> Result<()> {
        let begin = Instant::now();
        for _ in 0..FLUSH_COUNT {
            let start = Instant::now();
            self.file.write_all_at(&RECORD, self.position)?;
            self.file.sync_data()?;
            self.costs.push(start.elapsed().as_nanos() as f64);
            self.position = (self.position + RECORD.len() as u64) % (FILE_BYTES - RECORD.len() as u64);
        }
        let mean = begin.elapsed().as_nanos() as f64 / FLUSH_COUNT as f64;
        let writes = plans.iter().flatten().filter(|step| step.operation().writes()).count();
        self.total += mean * writes as f64;
        Ok(())
    }
}
