//! Tree: ordered maps derived from the log, which can be rebuilt from it.
//!
//! A [`Tree`] is a fixed set of [`Table`]s, each an ordered map from bytes to bytes. Two engines implement it:
//! [`LmdbTree`] on disk and [`MemoryTree`]. One test suite runs on both.
//!
//! Invariants:
//! - A [`TreeSnapshot`] never changes and never blocks the writer; opening one is a clone of an `Arc`.
//! - A [`TreeTransaction`] is atomic. When `commit` returns, it is as durable as the engine can make it, and every
//!   later [`Tree::read`] sees it.
//! - A read returns exactly the bytes that were put, or fails with `Corrupt`: the engine verifies everything it reads
//!   by checksum. Damage can hide a change but never invent or alter a row; `verify` finds it.
//!
//! Concurrency: any number of snapshots on any threads, and one transaction at a time (`write` waits for the previous
//! one, so a thread that holds a transaction must not start another).

mod lmdb;
mod memory;

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

pub(crate) use lmdb::{LmdbOptions, LmdbTree};
pub(crate) use memory::MemoryTree;

use crate::{Error, Result};

/// Hint for errors about a damaged tree.
const REBUILD: &str = "run `stemma rebuild`: the tree is computed again from the log, nothing is lost";

/// Maximum length of a key in bytes; the minimum is 1.
pub(crate) const KEY_BYTES_MAX: usize = 511;

/// One ordered map of a tree. Its number is part of the stored checksums: never reuse a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Table {
    /// Counters, checkpoint position, dictionaries.
    Meta = 0,
    /// Document id to document number.
    Ids = 1,
    /// Document number to document.
    Docs = 2,
    /// Sequence to document number.
    Sequences = 3,
    /// Path, value and chunk to a container of document numbers.
    Postings = 4,
    /// `_local` documents.
    Local = 5,
    /// Rows and partial reductions of views.
    Views = 6,
}

impl Table {
    /// Every table, in the order of their numbers.
    pub(crate) const ALL: [Table; 7] =
        [Table::Meta, Table::Ids, Table::Docs, Table::Sequences, Table::Postings, Table::Local, Table::Views];

    /// The name under which an engine stores it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Ids => "ids",
            Table::Docs => "docs",
            Table::Sequences => "sequences",
            Table::Postings => "postings",
            Table::Local => "local",
            Table::Views => "views",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the lower bound upwards.
    Ascending,
    /// From the upper bound downwards.
    Descending,
}

/// A row: its key, valid until the scan advances, and its value, valid as long as the snapshot.
pub(crate) type Row<'k, 'a> = (&'k [u8], &'a [u8]);

/// The rows of a scan.
pub(crate) type Rows<'a> = Box<dyn RowScan<'a> + 'a>;

/// Iterates over rows in key order.
pub(crate) trait RowScan<'a> {
    /// Returns the next row; `None` at the end and after an error.
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>>;
}

/// A scan without rows.
struct NoRows;

impl<'a> RowScan<'a> for NoRows {
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>> {
        Ok(None)
    }
}

/// Size of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TreeSize {
    /// Size of the file, or of keys and values in memory, in bytes.
    pub(crate) file_bytes: u64,
    /// Bytes of the file in use; the rest is free pages that later writes reuse.
    pub(crate) live_bytes: u64,
}

/// Result of `verify`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TreeReport {
    /// Pages of the file, in use or free.
    pub(crate) page_count: u64,
    /// Free pages that later writes reuse.
    pub(crate) free_page_count: u64,
    /// Number of rows found.
    pub(crate) row_count: u64,
    /// Number of problems.
    pub(crate) problem_count: u64,
    /// Descriptions of the first problems, each naming file, page and table.
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

    /// The first problem as an error, if there is one.
    #[cfg(test)]
    pub(crate) fn into_result(self) -> Result<()> {
        let Some(first) = self.problems.into_iter().next() else { return Ok(()) };
        let more =
            if self.problem_count > 1 { format!(", and {} more", self.problem_count - 1) } else { String::new() };
        Err(Error::corrupt(first + &more).with_hint(REBUILD))
    }
}

/// Ordered maps with snapshots and one writer.
pub(crate) trait Tree: Send + Sync + fmt::Debug {
    /// Returns the newest committed state. Cost: a clone of an `Arc`. It may outlive the tree.
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>>;

    /// Starts a write transaction after waiting for the previous one. Dropping it rolls it back.
    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>>;

    /// Empties every table, in one transaction.
    fn clear(&self) -> Result<()> {
        let mut transaction = self.write()?;
        for table in Table::ALL {
            transaction.clear_table(table)?;
        }
        transaction.commit()
    }

    /// The current size. Cost: one file status call and one small read per table.
    fn size(&self) -> Result<TreeSize>;

    /// Verifies everything stored in the newest committed state and reports all problems. `progress` receives the
    /// number of pages done and in total. Damage is never returned as an error. Reads at about the speed of the disk.
    fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<TreeReport>;
}

/// An immutable state of the tree.
pub(crate) trait TreeSnapshot: Send + Sync {
    /// The value of `key`, exactly as it was put.
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>>;

    /// The values of `keys`, in the same order. Sorted keys are cheapest.
    fn get_many<'a>(&'a self, table: Table, keys: &[&[u8]]) -> Result<Vec<Option<&'a [u8]>>> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// Scans the rows between the bounds in `direction`. Crossed bounds give no rows.
    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>>;

    /// The number of rows in `table`. May read all of it.
    fn row_count(&self, table: Table) -> Result<u64>;
}

/// The changes of a write transaction, visible only to itself until `commit`.
///
/// After an error it can only be dropped.
pub(crate) trait TreeTransaction {
    /// The current value of `key`. A `put` or `delete` of the same key is cheap afterwards; all three are cheapest for
    /// keys in order.
    fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<&[u8]>>;

    /// Whether the row before or after `key` has a key that starts with `prefix`, as `key` itself does; `None` if
    /// finding out would need more reads than `get` of `key`.
    fn has_neighbor_with_prefix(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>>;

    /// Inserts or replaces a row. A key after the last one of its table takes a fast path that fills pages completely:
    /// put sorted rows in order.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes the row of `key`; returns whether it existed.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool>;

    /// Removes every row of `table`.
    fn clear_table(&mut self, table: Table) -> Result<()>;

    /// Makes the changes durable and visible; an error leaves none of them.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// Rejects a key that no engine can store. Such a key is a bug in the caller: ids are hashed and values bounded.
fn check_key(table: Table, key: &[u8]) -> Result<()> {
    if is_storable(key) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "a key of {} bytes for table {table}: from 1 to {KEY_BYTES_MAX} are possible",
        key.len()
    )))
}

fn is_storable(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

/// Whether the bounds cross, so that no key is between them.
fn is_crossed(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
            lower >= upper
        }
    }
}

/// The single block of a table with these rows; for the format documentation.
#[cfg(test)]
pub(crate) fn example_block(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
    lmdb::example_block(rows)
}

#[cfg(test)]
mod tests;
