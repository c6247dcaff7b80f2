//! Verification of a tree: all files and blocks, the order of keys, and files that nothing lists.

use std::collections::HashSet;

use super::block::BlockCursor;
use super::run::FileSlice;
use super::{Table, Tree, manifest, run_file};
use crate::Result;

/// Result of `verify`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TreeReport {
    /// Number of rows found.
    pub(crate) row_count: u64,
    /// Number of problems.
    pub(crate) problem_count: u64,
    /// Descriptions of the first problems, each naming the file.
    pub(crate) problems: Vec<String>,
}

impl TreeReport {
    /// Maximum number of problems described.
    const PROBLEMS_MAX: usize = 100;

    fn add(&mut self, problem: String) {
        self.problem_count += 1;
        if self.problems.len() < Self::PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

impl Tree {
    /// Verifies everything stored in the newest committed state and reports all problems. Damage is never returned as
    /// an error. Reads at about the speed of the disk.
    ///
    /// # Errors
    /// `Io` if the directory can't be listed.
    pub(crate) fn verify(&self) -> Result<TreeReport> {
        let mut report = TreeReport::default();
        let version = {
            // No file may come or go between the two lists.
            let _merging = self.merging.lock();
            let _writer = self.writer.lock();
            let version = self.current.read().clone();
            // In this order: a file that is deleted between the two is retired, or no longer there.
            let retired = self.directory.retired_numbers();
            let names = self.file_names()?;
            let present: HashSet<u64> = names.iter().filter_map(|name| run_file::number_of(name)).collect();
            for number in version.file_numbers().difference(&present) {
                report.add(run_file::missing(&self.directory.file_path(*number)).message().to_owned());
            }
            let installer = self.installer.lock();
            installer.manifest.problem().into_iter().for_each(|problem| report.add(problem));
            for name in self.unlisted(names) {
                let is_retired = run_file::number_of(&name).is_some_and(|number| retired.contains(&number));
                let is_unfinished = name == manifest::NEW_NAME && installer.manifest.is_new_file_pending();
                if !is_retired && !is_unfinished {
                    report.add(format!("{}/{name} is not in the list of files", self.directory.path));
                }
            }
            version
        };
        for slice in version.runs.iter().flat_map(|run| &run.slices) {
            if let Err(error) = verify_file(slice) {
                report.add(error.message().to_owned());
            }
        }
        if report.problem_count == 0 {
            let snapshot = self.read();
            for table in Table::ALL {
                // A damaged operand is found where it is combined.
                match snapshot.row_count(table) {
                    Ok(count) => report.row_count += count,
                    Err(error) => report.add(error.message().to_owned()),
                }
            }
        }
        Ok(report)
    }
}

/// Reads a whole file, and checks that its keys ascend and are where its index says.
fn verify_file(slice: &FileSlice) -> Result<()> {
    let file = &slice.file;
    let mut last_key: Vec<u8> = Vec::new();
    let mut entry_count = 0;
    for number in 0..file.index()?.block_count() {
        let mut entries = BlockCursor::new(file.read_block(number)?);
        let fence = file.fence(number)?;
        let next_fence = match number + 1 < file.index()?.block_count() {
            true => Some(file.fence(number + 1)?),
            false => None,
        };
        while entries.advance().ok_or_else(|| file.malformed(number))? {
            let key = entries.key();
            let is_in_order = entry_count == 0 || last_key.as_slice() < key;
            if !is_in_order || key < fence || next_fence.is_some_and(|next| key >= next) {
                return Err(file.malformed(number));
            }
            last_key.clear();
            last_key.extend_from_slice(key);
            entry_count += 1;
        }
    }
    let record = file.record();
    if entry_count != record.entry_count || last_key != record.last_key {
        return Err(file.malformed(file.index()?.block_count() - 1));
    }
    Ok(())
}
