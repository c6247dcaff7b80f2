//! Reduced: the ordered maps that hold what was computed from the log, and could be computed again.
//!
//! A [`Tree`] is a handful of [`Table`]s, each an ordered map from bytes to bytes. Two engines implement it:
//! [`LmdbTree`] on disk and [`MemoryTree`]; one suite of tests runs on both.
//!
//! Invariants
//! - A [`TreeSnapshot`] never changes and never blocks the writer; opening one is a clone of an `Arc`.
//! - A [`TreeTransaction`] is all or nothing; when `commit` returns, it is as durable as the engine can make it, and
//!   every later [`Tree::read`] sees it.
//! - What is read is exactly what was put, or the read fails with `Corrupt`: the engine checks whatever it reads by
//!   checksum. Damage can hide a change, never invent or alter a row; `verify` finds it.
//!
//! Concurrency: any number of snapshots on any threads, one transaction at a time (`write` waits for the one before,
//! so a thread which holds a transaction must not ask for another).

mod lmdb;
mod memory;

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

pub(crate) use lmdb::{LmdbOptions, LmdbTree};
pub(crate) use memory::MemoryTree;

use crate::{Error, Result};

/// What to do about a damaged tree.
const REBUILD: &str = "run `stemma rebuild`: the tree is computed again from the log, nothing is lost";

/// The longest key, in bytes; the shortest is 1.
pub(crate) const KEY_BYTES_MAX: usize = 511;

/// One ordered map of a tree. Its number is part of the stored checksums: never reuse one.
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

    /// The name by which an engine stores it.
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

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the lower bound up.
    Ascending,
    /// From the upper bound down.
    Descending,
}

/// A row: its key, until the scan goes on, and its value, as long as the snapshot.
pub(crate) type Row<'k, 'a> = (&'k [u8], &'a [u8]);

/// The rows of a scan.
pub(crate) type Rows<'a> = Box<dyn RowScan<'a> + 'a>;

/// Goes over rows in the order of their keys.
pub(crate) trait RowScan<'a> {
    /// The next row. After an error there is none.
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>>;
}

/// A scan that finds nothing.
struct NoRows;

impl<'a> RowScan<'a> for NoRows {
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>> {
        Ok(None)
    }
}

/// How much a tree holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TreeSize {
    /// Bytes of the file, or of keys and values in memory.
    pub(crate) file_bytes: u64,
    /// Bytes of the file in use; the rest is free pages that later writes reuse.
    pub(crate) live_bytes: u64,
}

/// What `verify` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TreeReport {
    /// Pages of the file, in use or free.
    pub(crate) page_count: u64,
    /// Pages that later writes reuse.
    pub(crate) free_page_count: u64,
    /// Rows that were found.
    pub(crate) row_count: u64,
    /// How many problems there are.
    pub(crate) problem_count: u64,
    /// The first of them, each naming file, page and table.
    pub(crate) problems: Vec<String>,
}

impl TreeReport {
    /// The most problems that are described.
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
    /// The newest committed state. Costs a clone of an `Arc`; it may outlive the tree.
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>>;

    /// Begins the transaction of the one writer; waits for the one before it. Dropping it undoes it.
    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>>;

    /// Empties every table, in one transaction.
    fn clear(&self) -> Result<()> {
        let mut transaction = self.write()?;
        for table in Table::ALL {
            transaction.clear_table(table)?;
        }
        transaction.commit()
    }

    /// How much it holds now. Costs a file status call and one small read for each table.
    fn size(&self) -> Result<TreeSize>;

    /// Checks all that is stored, in the newest committed state, and reports what is wrong; `progress` is told the
    /// pages done and the pages in all. Never fails because of damage, and reads about as fast as the disk.
    fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<TreeReport>;
}

/// A state of the tree that never changes.
pub(crate) trait TreeSnapshot: Send + Sync {
    /// The value under `key`, exactly as it was put.
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>>;

    /// The values under `keys`, in their order. Keys near the one before them are cheapest: sort them.
    fn get_many<'a>(&'a self, table: Table, keys: &[&[u8]]) -> Result<Vec<Option<&'a [u8]>>> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// The rows between the bounds, in `direction`. Bounds that cross give no rows.
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

/// The one writer's changes, which it reads itself and nobody else sees before `commit`.
///
/// After an error it can only be dropped.
pub(crate) trait TreeTransaction {
    /// The value under `key` as it is now. Makes a `put` or `delete` of the same key next cheap: all three cost least for
    /// keys in order.
    fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<&[u8]>>;

    /// Whether the row before `key` or the one after it has a key that begins with `prefix`, as `key` does; none if that is not known
    /// without reading more than `get` of `key` did.
    fn has_beside(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>>;

    /// Puts a row, replacing the one under the same key. A key beyond the last of its table takes a fast path that fills
    /// pages to the brim: put sorted rows in order.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes the row under `key`; was there one?
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool>;

    /// Removes every row of `table`.
    fn clear_table(&mut self, table: Table) -> Result<()>;

    /// Makes the changes durable and visible, or fails and leaves none of them.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// A key that no engine can store is a programming error above this room: ids are hashed, values bounded.
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

/// Whether no key can lie between the bounds because they cross.
fn is_crossed(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
            lower >= upper
        }
    }
}

/// The one block of a table with these rows; for the document of the format.
#[cfg(test)]
pub(crate) fn example_block(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
    lmdb::example_block(rows)
}

#[cfg(test)]
mod tests;
