//! What the disk takes for as many flushes as shoppers' steps need: no contender that serves them one after the other can be faster.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::workload::shop::Plan;

/// About what a step writes.
const RECORD: [u8; 300] = [0x5a; 300];
/// Flushes measured in a turn.
const FLUSH_COUNT: usize = 10;
/// The file is as long, and written again from its beginning: no flush has to note a new length.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A file that is written and flushed, and nothing else.
pub(super) struct Disk {
    file: File,
    position: u64,
    /// Nanoseconds of each flush, with its write.
    pub(super) costs: Vec<f64>,
    /// Nanoseconds of a flush for each step that writes.
    pub(super) total: f64,
}

impl Disk {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::create(path)?;
        file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Disk { file, position: 0, costs: Vec::new(), total: 0.0 })
    }

    /// Flushes some times, and reckons with that for each step of `plans` that writes.
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
