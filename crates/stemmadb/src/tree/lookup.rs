//! Batched point lookups: the rows of many keys, in the order of the keys.
//!
//! The lookup stays in the last block of each run, so that sorted keys that are near each other cost one search of the
//! filter, the block index and the cache for each block that has any of them.

use super::block::{BlockCursor, Kind};
use super::run::{FileSlice, Run};
use super::{filter, version::Version};
use crate::Result;

/// A lookup of many keys in one version.
pub(super) struct BatchLookup<'v> {
    runs: Vec<RunLookup<'v>>,
}

/// The block of one run that was searched last.
struct RunLookup<'v> {
    run: &'v Run,
    last: Option<LastBlock<'v>>,
}

struct LastBlock<'v> {
    slice: &'v FileSlice,
    number: usize,
    entries: BlockCursor,
}

impl<'v> BatchLookup<'v> {
    pub(super) fn new(version: &'v Version) -> Self {
        BatchLookup { runs: version.runs.iter().map(|run| RunLookup { run, last: None }).collect() }
    }

    /// The newest entry of a stored key: what it does, and its value.
    ///
    /// # Errors
    /// `Corrupt` if a file is damaged.
    pub(super) fn find(&mut self, key: &[u8]) -> Result<Option<(Kind, &[u8])>> {
        let hash = filter::hash(key);
        for index in 0..self.runs.len() {
            if self.runs[index].find(key, hash)? {
                return Ok(self.runs[index].last.as_ref().map(|last| (last.entries.kind(), last.entries.value())));
            }
        }
        Ok(None)
    }
}

impl RunLookup<'_> {
    /// Moves to the entry of a stored key with this hash; returns false if the run has none.
    fn find(&mut self, key: &[u8], hash: u64) -> Result<bool> {
        if !self.is_in_last_block(key)? {
            let Some(slice) = self.run.slice_of(key) else { return Ok(false) };
            if !slice.file.may_contain(key, hash)? {
                return Ok(false);
            }
            let number = slice.file.index()?.find(key);
            let block = slice.file.block(number)?;
            let entries = match self.last.take() {
                Some(LastBlock { mut entries, .. }) => {
                    entries.enter(block);
                    entries
                }
                None => BlockCursor::new(block),
            };
            self.last = Some(LastBlock { slice, number, entries });
        }
        let Some(LastBlock { slice, number, entries }) = &mut self.last else { return Ok(false) };
        let is_found = entries.seek(key, false).ok_or_else(|| slice.file.malformed(*number))?;
        Ok(is_found && entries.key() == key)
    }

    /// Whether the last block has the key if the run has it.
    fn is_in_last_block(&self, key: &[u8]) -> Result<bool> {
        let Some(LastBlock { slice, number, .. }) = &self.last else { return Ok(false) };
        let record = slice.file.record();
        let is_in_file = record.first_key.as_slice() <= key && key <= record.last_key.as_slice();
        if !is_in_file || !slice.covers(key) || key < slice.file.fence(*number)? {
            return Ok(false);
        }
        let next = number + 1;
        Ok(next == slice.file.index()?.block_count() || key < slice.file.fence(next)?)
    }
}
