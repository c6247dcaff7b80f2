//! Version: the list of runs at one time; and a snapshot, which reads it.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::smallvec;

use super::block::{Block, BlockCursor, Kind};
use super::lookup::BatchLookup;
use super::manifest::{RunRecord, SliceRecord};
use super::merge::{MergeCursor, Scan};
use super::run::{Bounds, Run};
use super::run_file::RunFile;
use super::{ClosedFlag, Direction, MergeOperator, Slice, TABLE_BYTES, Table, filter, is_crossed};
use crate::Result;

/// A list of runs, the newest first.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) runs: Vec<Arc<Run>>,
    /// Counts the commits: versions with the same number have the same rows.
    pub(super) state: u64,
}

impl Version {
    pub(super) fn file_numbers(&self) -> HashSet<u64> {
        self.runs.iter().flat_map(|run| &run.slices).map(|slice| slice.file.record().number).collect()
    }

    pub(super) fn byte_count(&self) -> u64 {
        self.runs.iter().map(|run| run.byte_count()).sum()
    }
}

/// How the manifest records a run.
pub(super) fn record(run: &Run) -> RunRecord {
    let slice = |slice: &super::FileSlice| SliceRecord {
        file: slice.file.record().clone(),
        lower: slice.lower.as_deref().map(<[u8]>::to_vec),
        upper: slice.upper.as_deref().map(<[u8]>::to_vec),
    };
    RunRecord { id: run.id, is_merged: run.is_merged, slices: run.slices.iter().map(slice).collect() }
}

/// An immutable state of the tree.
pub(crate) struct TreeSnapshot {
    version: Arc<Version>,
    operator: Arc<dyn MergeOperator>,
    closed: Arc<ClosedFlag>,
}

impl TreeSnapshot {
    pub(super) fn new(version: Arc<Version>, operator: Arc<dyn MergeOperator>, closed: Arc<ClosedFlag>) -> Self {
        TreeSnapshot { version, operator, closed }
    }

    /// Its files, each once.
    pub(super) fn files(&self) -> impl Iterator<Item = &RunFile> {
        let mut seen = HashSet::new();
        self.version.runs.iter().flat_map(|run| run.files()).filter(move |file| seen.insert(file.record().number))
    }

    /// Counts the commits before it: snapshots of one tree with the same number have the same rows.
    pub(crate) fn state(&self) -> u64 {
        self.version.state
    }

    /// The value of `key`, exactly as it was put. Costs a filter lookup for each run that does not have the key, and
    /// one block for the one that does.
    ///
    /// # Errors
    /// `Corrupt` if a file is damaged.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        self.closed.refuse()?;
        let key = table.stored_key(key);
        let hash = filter::hash(&key);
        for run in &self.version.runs {
            let Some(slice) = run.slice_of(&key) else { continue };
            if !slice.file.may_contain(&key, hash)? {
                continue;
            }
            let number = slice.file.index()?.find(&key);
            let found = find(slice.file.block(number)?, &key).ok_or_else(|| slice.file.malformed(number))?;
            match found {
                None => {}
                Some((Kind::Put, value)) => return Ok(Some(value)),
                Some((Kind::Delete, _)) => return Ok(None),
                Some((Kind::Merge, _)) => return self.get_merged(table, &key[TABLE_BYTES..]),
            }
        }
        Ok(None)
    }

    /// The value of a key that has operands to combine.
    fn get_merged(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        let mut rows = self.scan(table, Bound::Included(key), Bound::Included(key), Direction::Ascending)?;
        Ok(rows.next()?.map(|(_, value)| Slice::from(value)))
    }

    /// Calls `visit` with the index and the value of each of `keys`, in their order. Sorted keys are cheapest: those in
    /// one block cost little more than one of them.
    ///
    /// # Errors
    /// `Corrupt` if a file is damaged; the first error of `visit`.
    pub(crate) fn get_many<'k>(
        &self,
        table: Table,
        keys: impl Iterator<Item = &'k [u8]>,
        mut visit: impl FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        self.closed.refuse()?;
        let mut lookup = BatchLookup::new(&self.version);
        for (index, key) in keys.enumerate() {
            match lookup.find(&table.stored_key(key))? {
                Some((Kind::Put, value)) => visit(index, Some(value))?,
                Some((Kind::Merge, _)) => visit(index, self.get_merged(table, key)?.as_deref())?,
                Some((Kind::Delete, _)) | None => visit(index, None)?,
            }
        }
        Ok(())
    }

    /// Scans the rows between the bounds in `direction`. Crossed bounds give no rows.
    ///
    /// # Errors
    /// `Corrupt` if a file is damaged.
    pub(crate) fn scan(
        &self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        self.closed.refuse()?;
        if is_crossed(lower, upper) {
            return Ok(Scan::empty());
        }
        let (lower, is_after) = match lower {
            Bound::Unbounded => (smallvec![table as u8], false),
            Bound::Included(key) => (table.stored_key(key), false),
            Bound::Excluded(key) => (table.stored_key(key), true),
        };
        let (upper, includes_upper) = match upper {
            Bound::Unbounded => (smallvec![table as u8 + 1], false),
            Bound::Included(key) => (table.stored_key(key), true),
            Bound::Excluded(key) => (table.stored_key(key), false),
        };
        let bounds = Bounds { lower, is_after, upper, includes_upper };
        let merge = MergeCursor::new(self.version.runs.iter(), bounds, direction, self.operator.clone(), true)?;
        Ok(Scan::new(merge, self.closed.clone()))
    }

    /// The number of rows in `table`. Reads all of it.
    pub(crate) fn row_count(&self, table: Table) -> Result<u64> {
        let mut rows = self.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        let mut count = 0;
        while rows.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

/// The entry of a stored key in a block; `None` on damage.
fn find(block: Block, key: &[u8]) -> Option<Option<(Kind, Slice)>> {
    debug_assert!(key.len() > TABLE_BYTES, "a stored key is longer than the number of its table");
    let mut cursor = BlockCursor::new(block);
    if !cursor.seek(key, false)? || cursor.key() != key {
        return Some(None);
    }
    let (bytes, (start, end)) = cursor.value_location();
    let value = Slice { bytes: bytes.clone(), start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? };
    Some(Some((cursor.kind(), value)))
}
