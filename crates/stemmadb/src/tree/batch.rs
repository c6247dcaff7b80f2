//! Transaction: collects changes in memory and writes them as one run.

use std::sync::Arc;

use super::block::{BLOCK_BYTES, Kind};
use super::run::{FileSlice, Run};
use super::run_file::{FileRecord, RunWriter};
use super::version::Version;
use super::{Table, Tree, check_key};
use crate::Result;
use crate::sync::MutexGuard;

/// The changes of a write transaction, invisible until `commit`.
///
/// It can't be read: to change a row in dependence on what it was, read it from [`Tree::read`] before. The last of
/// several changes of one row counts.
pub(crate) struct TreeTransaction<'t> {
    tree: &'t Tree,
    _writer: MutexGuard<'t, ()>,
    tables: [TableChanges; Table::ALL.len()],
    /// Ranges of stored keys whose earlier rows are removed.
    removed_ranges: Vec<(Vec<u8>, Vec<u8>)>,
    progress: EntryCounter,
}

/// Counts entries, and reports them in groups.
#[derive(Default)]
struct EntryCounter {
    unreported_count: u64,
    report: Option<Box<dyn Fn(u64)>>,
}

impl EntryCounter {
    fn add_entry(&mut self) {
        const GROUP: u64 = 512;
        self.unreported_count += 1;
        if self.unreported_count == GROUP {
            self.unreported_count = 0;
            if let Some(report) = &self.report {
                report(GROUP);
            }
        }
    }
}

/// The changes of one table, in the order in which they were made.
#[derive(Default)]
struct TableChanges {
    bytes: Vec<u8>,
    changes: Vec<Change>,
    is_unsorted: bool,
}

/// A change: key and value are in `TableChanges::bytes`, one after the other.
#[derive(Clone, Copy)]
struct Change {
    start: usize,
    key_bytes: u32,
    value_bytes: u32,
    kind: Kind,
}

impl TableChanges {
    fn add(&mut self, key: &[u8], kind: Kind, value: &[u8]) {
        let is_in_order = self.changes.last().is_none_or(|last| self.key(last) < key);
        self.is_unsorted |= !is_in_order;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let (key_bytes, value_bytes) = (key.len() as u32, value.len() as u32);
        self.changes.push(Change { start, key_bytes, value_bytes, kind });
    }

    fn key(&self, change: &Change) -> &[u8] {
        &self.bytes[change.start..][..change.key_bytes as usize]
    }

    fn value(&self, change: &Change) -> &[u8] {
        &self.bytes[change.start + change.key_bytes as usize..][..change.value_bytes as usize]
    }

    /// Sorts the changes and keeps the last one of each row.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.is_unsorted) {
            return;
        }
        let mut changes = std::mem::take(&mut self.changes);
        // The sort is stable: the last change of a row stays last.
        changes.sort_by(|left, right| self.key(left).cmp(self.key(right)));
        let mut kept: Vec<Change> = Vec::with_capacity(changes.len());
        for change in changes {
            match kept.last_mut() {
                Some(last) if self.key(last) == self.key(&change) => *last = change,
                _ => kept.push(change),
            }
        }
        self.changes = kept;
    }
}

impl<'t> TreeTransaction<'t> {
    pub(super) fn new(tree: &'t Tree, writer: MutexGuard<'t, ()>) -> Self {
        let (tables, removed_ranges, progress) = Default::default();
        TreeTransaction { tree, _writer: writer, tables, removed_ranges, progress }
    }

    /// Calls `report` from time to time with the number of entries that were added since, and again with those that
    /// `commit` has written.
    pub(crate) fn report_to(&mut self, report: impl Fn(u64) + 'static) {
        self.progress.report = Some(Box::new(report));
    }

    /// Inserts or replaces a row. Cheapest for keys in order.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        self.add(table, key, Kind::Put, value)
    }

    /// Combines the row with an operand of the tree's [`MergeOperator`](super::MergeOperator), without reading it. At
    /// most one operand per row and transaction.
    pub(crate) fn merge(&mut self, table: Table, key: &[u8], operand: &[u8]) -> Result<()> {
        self.add(table, key, Kind::Merge, operand)
    }

    /// Removes the row of `key`, if there is one.
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) -> Result<()> {
        self.add(table, key, Kind::Delete, &[])
    }

    fn add(&mut self, table: Table, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        self.tables[table.index()].add(key, kind, value);
        self.progress.add_entry();
        Ok(())
    }

    /// Removes the rows from `lower` (included) to `upper` (excluded) that earlier transactions wrote. Costs the same
    /// however many there are.
    pub(crate) fn remove_range(&mut self, table: Table, lower: &[u8], upper: &[u8]) {
        self.remove_stored_range(table.stored_key(lower).to_vec(), table.stored_key(upper).to_vec());
    }

    pub(super) fn remove_stored_range(&mut self, lower: Vec<u8>, upper: Vec<u8>) {
        if lower < upper {
            self.removed_ranges.push((lower, upper));
        }
    }

    /// Makes the changes durable and visible.
    ///
    /// # Errors
    /// `Io`. None of the changes is visible then. After a crash all of them may be there.
    pub(crate) fn commit(mut self) -> Result<()> {
        #[cfg(test)]
        let _mark = super::trace::mark(match self.removed_ranges.is_empty() {
            true => super::trace::TreeChange::Commit,
            false => super::trace::TreeChange::RangeRemoval,
        });
        self.tables.iter_mut().for_each(TableChanges::settle);
        let mut files = Vec::new();
        if let Err(error) = self.write_files(&mut files) {
            files.iter().for_each(|file| self.tree.directory.delete(file.number));
            return Err(error);
        }
        if files.is_empty() && self.removed_ranges.is_empty() {
            return Ok(());
        }
        let tree = self.tree;
        let removed_ranges = std::mem::take(&mut self.removed_ranges);
        tree.install(|installer, before| {
            let mut runs = without_ranges(&before.runs, &removed_ranges);
            if let Some(recorded) = &mut installer.removed_ranges {
                recorded.extend(removed_ranges);
            }
            if !files.is_empty() {
                let slices = files.into_iter().map(|file| FileSlice::whole(tree.open_file(file))).collect();
                runs.insert(0, Arc::new(Run { id: installer.next_run, is_merged: false, slices }));
                installer.next_run += 1;
            }
            Version { runs, state: before.state + 1 }
        })
    }

    /// Writes the changes to files, in the order of their keys.
    fn write_files(&mut self, files: &mut Vec<FileRecord>) -> Result<()> {
        let tree = self.tree;
        let mut writer: Option<RunWriter> = None;
        let mut stored_key = Vec::new();
        for table in Table::ALL {
            let changes = &self.tables[table.index()];
            for change in &changes.changes {
                if writer.as_ref().is_some_and(|writer| writer.byte_count() >= tree.file_bytes) {
                    files.extend(writer.take().map(RunWriter::finish).transpose()?);
                }
                let writer = match &mut writer {
                    Some(writer) => writer,
                    none => none.insert(tree.create_file()?),
                };
                stored_key.clear();
                stored_key.push(table as u8);
                stored_key.extend_from_slice(changes.key(change));
                let value = changes.value(change);
                let is_tombstone = is_tombstone(tree, change.kind, value);
                writer.add(&stored_key, change.kind, value, is_tombstone)?;
                self.progress.add_entry();
            }
        }
        files.extend(writer.map(RunWriter::finish).transpose()?);
        if files.is_empty() { Ok(()) } else { tree.sync_directory() }
    }
}

/// Whether an entry hides or removes something older.
pub(super) fn is_tombstone(tree: &Tree, kind: Kind, value: &[u8]) -> bool {
    match kind {
        Kind::Put => false,
        Kind::Delete => true,
        Kind::Merge => tree.operator.removes(value),
    }
}

/// The runs without the keys in these ranges.
pub(super) fn without_ranges(runs: &[Arc<Run>], ranges: &[(Vec<u8>, Vec<u8>)]) -> Vec<Arc<Run>> {
    let mut kept = runs.to_vec();
    for (lower, upper) in ranges {
        for run in &mut kept {
            let slices = run.without(lower, upper);
            *run = Arc::new(Run { id: run.id, is_merged: run.is_merged, slices });
        }
        kept.retain(|run| !run.slices.is_empty());
    }
    kept
}

/// Blocks are smaller if files are so small that they would have fewer.
const BLOCKS_PER_FILE_MIN: u64 = 8;

impl Tree {
    /// Creates the next run file.
    pub(super) fn create_file(&self) -> Result<RunWriter> {
        let block_bytes = (self.file_bytes / BLOCKS_PER_FILE_MIN).clamp(256, BLOCK_BYTES as u64) as usize;
        RunWriter::create(self.directory.clone(), self.allocate_file(), block_bytes, self.compression())
    }
}
