//! Draft of a block: its decoded rows, so that several can be changed before the block is stored again.
//!
//! A checkpoint writes rows in key order, so changes to one block are consecutive: the writer keeps one draft per table
//! and stores it when a row of another block is accessed.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use super::block::{Block, Rows, covers};

/// The rows of one block, and of following blocks merged into it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) fence: Vec<u8>,
    /// The fence of the next block; empty if this is the last one.
    pub(super) upper: Vec<u8>,
    /// Length of the LMDB row under `fence`; 0 if there is none.
    pub(super) stored_bytes: usize,
    pub(super) is_changed: bool,
    /// Keys and values, including replaced and deleted ones.
    bytes: Vec<u8>,
    rows: Vec<RowRange>,
    row_bytes: usize,
    /// Where the last search ended: the same row is usually read, put and checked for neighbors in turn, then one after
    /// it.
    last_search: Cell<usize>,
}

/// The byte range of a row: its key, followed by its value.
#[derive(Debug, Clone, Copy)]
struct RowRange {
    at: u32,
    key_bytes: u32,
    value_bytes: u32,
}

impl RowRange {
    fn key(self) -> Range<usize> {
        let at = self.at as usize;
        at..at + self.key_bytes as usize
    }

    fn value(self) -> Range<usize> {
        let at = self.key().end;
        at..at + self.value_bytes as usize
    }

    fn byte_count(self) -> usize {
        (self.key_bytes + self.value_bytes) as usize
    }
}

impl Draft {
    /// Resets the draft to the range between these fences, without rows.
    pub(super) fn begin(&mut self, fence: &[u8], upper: &[u8], stored_bytes: usize) {
        debug_assert!(!self.is_changed, "a changed draft is stored before it is reused");
        self.bytes.clear();
        self.rows.clear();
        self.row_bytes = 0;
        self.fence.clear();
        self.fence.extend_from_slice(fence);
        self.upper.clear();
        self.upper.extend_from_slice(upper);
        self.stored_bytes = stored_bytes;
        self.is_changed = false;
        self.last_search.set(0);
    }

    /// Adds the rows of the following block and takes over its upper fence; `None` if the block is damaged.
    pub(super) fn append(&mut self, block: &Block<'_>) -> Option<()> {
        for index in 0..block.count() {
            let (rest, value) = block.row(index)?;
            let range = self.write(&[block.prefix(), rest], value);
            self.rows.push(range);
        }
        self.upper.clear();
        self.upper.extend_from_slice(block.upper());
        Some(())
    }

    pub(super) fn covers(&self, key: &[u8]) -> bool {
        covers(&self.fence, &self.upper, key)
    }

    /// Total length of all keys and values.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).ok().map(|index| self.value(index))
    }

    /// Whether the row before or after `key` starts with `prefix`; `None` if that row may be in another block.
    pub(super) fn has_neighbor_with_prefix(&self, key: &[u8], prefix: &[u8]) -> Option<bool> {
        let (before, after) = match self.find(key) {
            Ok(index) => (index.checked_sub(1), index + 1),
            Err(index) => (index.checked_sub(1), index),
        };
        let starts = |index: usize| self.bytes[self.rows[index].key()].starts_with(prefix);
        let is_before =
            before.map_or_else(|| (self.fence.as_slice() <= prefix).then_some(false), |at| Some(starts(at)));
        let is_after = match after < self.rows.len() {
            true => Some(starts(after)),
            false => (!self.upper.starts_with(prefix)).then_some(false),
        };
        match (is_before, is_after) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        debug_assert!(self.covers(key), "a row belongs to the block that covers its key");
        let existing = self.find(key);
        let range = self.write(&[key], value);
        match existing {
            Ok(index) => {
                self.row_bytes -= self.rows[index].byte_count();
                self.rows[index] = range;
            }
            Err(index) => self.rows.insert(index, range),
        }
        self.is_changed = true;
    }

    /// Removes a row; returns whether it existed.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        debug_assert!(self.covers(key), "a row belongs to the block that covers its key");
        let Ok(index) = self.find(key) else { return false };
        self.row_bytes -= self.rows.remove(index).byte_count();
        self.is_changed = true;
        true
    }

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let compare = |index: usize| self.bytes[self.rows[index].key()].cmp(key);
        let last_search = self.last_search.get().min(self.rows.len());
        let (mut low, mut high) = (0, self.rows.len());
        // Tries up to two rows from there, then binary search.
        for index in [last_search, last_search + 1] {
            if index >= high {
                break;
            }
            match compare(index) {
                Ordering::Less => low = index + 1,
                Ordering::Equal => return self.remember(Ok(index)),
                Ordering::Greater => {
                    high = index;
                    break;
                }
            }
        }
        if low < high && high == last_search && compare(high - 1) == Ordering::Less {
            low = high;
        }
        while low < high {
            let middle = low.midpoint(high);
            match compare(middle) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return self.remember(Ok(middle)),
                Ordering::Greater => high = middle,
            }
        }
        self.remember(Err(low))
    }

    fn remember(&self, index: Result<usize, usize>) -> Result<usize, usize> {
        self.last_search.set(index.unwrap_or_else(|index| index));
        index
    }

    fn write(&mut self, key: &[&[u8]], value: &[u8]) -> RowRange {
        let at = self.bytes.len();
        debug_assert!(u32::try_from(at).is_ok(), "a draft is stored long before it reaches 4 GiB");
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let key_bytes = self.bytes.len() - at;
        self.bytes.extend_from_slice(value);
        let range = RowRange { at: at as u32, key_bytes: key_bytes as u32, value_bytes: value.len() as u32 };
        self.row_bytes += range.byte_count();
        range
    }
}

impl Rows for Draft {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.rows[index].key()]
    }

    fn value(&self, index: usize) -> &[u8] {
        &self.bytes[self.rows[index].value()]
    }
}
