//! A block taken apart, so that several rows can be changed before it is stored again.
//!
//! Rows come sorted from a checkpoint, so the changes of one block follow each other: the writer keeps one draft for each
//! table, and stores it when a row of another block is next.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use super::block::{Block, Rows, covers};

/// The rows of one block, and of blocks after it that were joined to it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) fence: Vec<u8>,
    /// The fence of the next block; empty if this is the last.
    pub(super) upper: Vec<u8>,
    /// How many bytes LMDB has under `fence`; 0 if it has no such row.
    pub(super) stored_bytes: usize,
    pub(super) is_changed: bool,
    /// Keys and values, those that were replaced or deleted too.
    bytes: Vec<u8>,
    rows: Vec<Place>,
    row_bytes: usize,
    /// Where a key was looked for last. One row is looked at, put and asked for its neighbours in turn, then one after it.
    near: Cell<usize>,
}

/// Where a row's key is, followed by its value.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u32,
    key_bytes: u32,
    value_bytes: u32,
}

impl Place {
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
    /// Begins again between these fences, without rows.
    pub(super) fn begin(&mut self, fence: &[u8], upper: &[u8], stored_bytes: usize) {
        self.bytes.clear();
        self.rows.clear();
        self.row_bytes = 0;
        self.fence.clear();
        self.fence.extend_from_slice(fence);
        self.upper.clear();
        self.upper.extend_from_slice(upper);
        self.stored_bytes = stored_bytes;
        self.is_changed = false;
        self.near.set(0);
    }

    /// Adds the rows of a block, whose keys are above those here, and takes its upper fence; none if it is damaged.
    pub(super) fn append(&mut self, block: &Block<'_>) -> Option<()> {
        for index in 0..block.count() {
            let (rest, value) = block.row(index)?;
            let place = self.write(&[block.prefix(), rest], value);
            self.rows.push(place);
        }
        self.upper.clear();
        self.upper.extend_from_slice(block.upper());
        Some(())
    }

    pub(super) fn covers(&self, key: &[u8]) -> bool {
        covers(&self.fence, &self.upper, key)
    }

    /// Bytes of all keys and values.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).ok().map(|index| self.value(index))
    }

    /// Whether the row before `key` or after it begins with `prefix`; none if it may lie in another block.
    pub(super) fn has_beside(&self, key: &[u8], prefix: &[u8]) -> Option<bool> {
        let (before, after) = match self.find(key) {
            Ok(index) => (index.checked_sub(1), index + 1),
            Err(index) => (index.checked_sub(1), index),
        };
        let begins = |index: usize| self.bytes[self.rows[index].key()].starts_with(prefix);
        let is_before =
            before.map_or_else(|| (self.fence.as_slice() <= prefix).then_some(false), |at| Some(begins(at)));
        let is_after = match after < self.rows.len() {
            true => Some(begins(after)),
            false => (!self.upper.starts_with(prefix)).then_some(false),
        };
        match (is_before, is_after) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        let found = self.find(key);
        let place = self.write(&[key], value);
        match found {
            Ok(index) => {
                self.row_bytes -= self.rows[index].byte_count();
                self.rows[index] = place;
            }
            Err(index) => self.rows.insert(index, place),
        }
        self.is_changed = true;
    }

    /// Was there such a row?
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Ok(index) = self.find(key) else { return false };
        self.row_bytes -= self.rows.remove(index).byte_count();
        self.is_changed = true;
        true
    }

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let compare = |index: usize| self.bytes[self.rows[index].key()].cmp(key);
        let near = self.near.get().min(self.rows.len());
        let (mut low, mut high) = (0, self.rows.len());
        // Up to two rows from there; anywhere else by halves.
        for index in [near, near + 1] {
            if index >= high {
                break;
            }
            match compare(index) {
                Ordering::Less => low = index + 1,
                Ordering::Equal => return self.found(Ok(index)),
                Ordering::Greater => {
                    high = index;
                    break;
                }
            }
        }
        if low < high && high == near && compare(high - 1) == Ordering::Less {
            low = high;
        }
        while low < high {
            let middle = low.midpoint(high);
            match compare(middle) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return self.found(Ok(middle)),
                Ordering::Greater => high = middle,
            }
        }
        self.found(Err(low))
    }

    fn found(&self, place: Result<usize, usize>) -> Result<usize, usize> {
        self.near.set(place.unwrap_or_else(|index| index));
        place
    }

    fn write(&mut self, key: &[&[u8]], value: &[u8]) -> Place {
        let at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let key_bytes = self.bytes.len() - at;
        self.bytes.extend_from_slice(value);
        let place = Place { at: at as u32, key_bytes: key_bytes as u32, value_bytes: value.len() as u32 };
        self.row_bytes += place.byte_count();
        place
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
