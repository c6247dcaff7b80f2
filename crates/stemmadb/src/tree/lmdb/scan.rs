//! Range scan over the rows of a table, block by block.
//!
//! Invariant: each block names the next one, and the scan only follows that chain, so a missing block is always
//! detected.

use std::ops::Bound;

use smallvec::SmallVec;

use super::block::{Block, FIRST_FENCE};
use super::cursor::{Cursor, Goal};
use super::damaged;
use super::page::Checked;
use super::snapshot::LmdbSnapshot;
use crate::Result;
use crate::tree::{Direction, Row, RowScan, Table};

const GAP: &str = "a block is missing beside it";
const BROKEN: &str = "a block is not what was put there";

/// The bound at which a scan ends.
type EndBound = Bound<SmallVec<[u8; 64]>>;

/// The remaining rows of a block, and the cursor to reach further blocks.
pub(super) struct Scan<'a> {
    snapshot: &'a LmdbSnapshot,
    table: Table,
    direction: Direction,
    end: EndBound,
    cursor: Cursor<'a>,
    block: Block<'a>,
    /// Range of rows of `block` still to be returned: from `next` to before `stop`.
    next: usize,
    stop: usize,
    /// Whether no further block has rows within the bounds.
    is_last: bool,
    /// Buffer for the key of the returned row.
    key: Vec<u8>,
}

impl<'a> Scan<'a> {
    /// Scans upwards from the lower bound; `None` if the table is empty.
    pub(super) fn ascending(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Checked<Option<Self>> {
        let goal = match lower {
            Bound::Included(key) | Bound::Excluded(key) => Goal::After(key),
            Bound::Unbounded => Goal::First,
        };
        let Some(mut scan) = Self::at(snapshot, table, goal, Direction::Ascending, upper)? else { return Ok(None) };
        scan.next = match lower {
            Bound::Included(key) => scan.search(key, false)?,
            Bound::Excluded(key) => scan.search(key, true)?,
            Bound::Unbounded => 0,
        };
        Ok(Some(scan))
    }

    /// Scans downwards from the upper bound; `None` if the table is empty.
    pub(super) fn descending(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Checked<Option<Self>> {
        let goal = match upper {
            Bound::Included(key) | Bound::Excluded(key) => Goal::After(key),
            Bound::Unbounded => Goal::Last,
        };
        let Some(mut scan) = Self::at(snapshot, table, goal, Direction::Descending, lower)? else { return Ok(None) };
        scan.stop = match upper {
            Bound::Included(key) => scan.search(key, true)?,
            Bound::Excluded(key) => scan.search(key, false)?,
            Bound::Unbounded => scan.stop,
        };
        Ok(Some(scan))
    }

    /// Creates a scan positioned at the block that covers the goal's key.
    fn at(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        goal: Goal<'_>,
        direction: Direction,
        end: Bound<&[u8]>,
    ) -> Checked<Option<Self>> {
        let Some(mut cursor) = Cursor::new(snapshot.pages(), snapshot.root(table), goal)? else { return Ok(None) };
        let has_block = match goal {
            Goal::From(_) | Goal::After(_) => cursor.previous()?,
            Goal::First | Goal::Last => true,
        };
        let leaf = cursor.leaf();
        let gap = leaf.page.damage(GAP);
        if !has_block {
            return Err(gap);
        }
        let block = snapshot.block(table, &leaf.page, leaf.index)?;
        let is_expected_block = match goal {
            Goal::From(key) | Goal::After(key) => block.covers(key),
            Goal::First => block.fence() == FIRST_FENCE,
            Goal::Last => block.upper().is_empty(),
        };
        if !is_expected_block {
            return Err(gap);
        }
        let end = end.map(SmallVec::from_slice);
        let key = Vec::with_capacity(64);
        let (next, stop, is_last) = (0, 0, false);
        let mut scan = Scan { snapshot, table, direction, end, cursor, block, next, stop, is_last, key };
        scan.enter(block)?;
        Ok(Some(scan))
    }

    /// Starts returning the rows of `block`, up to the end bound.
    fn enter(&mut self, block: Block<'a>) -> Checked<()> {
        self.block = block;
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        (self.next, self.stop) = (0, block.count());
        let (end, is_included) = match &self.end {
            Bound::Included(key) => (Some(key.as_slice()), true),
            Bound::Excluded(key) => (Some(key.as_slice()), false),
            Bound::Unbounded => (None, false),
        };
        match self.direction {
            Direction::Ascending => {
                self.is_last = block.upper().is_empty() || end.is_some_and(|end| end < block.upper());
                if let Some(end) = end.filter(|_| self.is_last) {
                    self.stop = self.search(end, is_included)?;
                }
            }
            Direction::Descending => {
                self.is_last = block.fence() == FIRST_FENCE || end.is_some_and(|end| end >= block.fence());
                if let Some(end) = end.filter(|_| self.is_last) {
                    self.next = self.search(end, !is_included)?;
                }
            }
        }
        Ok(())
    }

    /// Moves to the next block within the bounds; returns false at the end.
    fn next_block(&mut self) -> Checked<bool> {
        if self.is_last {
            return Ok(false);
        }
        let has_block = match self.direction {
            Direction::Ascending => self.cursor.next()?,
            Direction::Descending => self.cursor.previous()?,
        };
        let leaf = self.cursor.leaf();
        let gap = leaf.page.damage(GAP);
        if !has_block {
            return Err(gap);
        }
        let block = self.snapshot.block(self.table, &leaf.page, leaf.index)?;
        let follows = match self.direction {
            Direction::Ascending => self.block.upper() == block.fence(),
            Direction::Descending => self.block.fence() == block.upper(),
        };
        if !follows {
            return Err(gap);
        }
        self.enter(block)?;
        Ok(true)
    }

    fn search(&self, key: &[u8], after: bool) -> Checked<usize> {
        self.block.search(key, after).ok_or(self.cursor.leaf().page.damage(BROKEN))
    }

    #[inline]
    fn advance(&mut self) -> Checked<Option<&'a [u8]>> {
        while self.next >= self.stop {
            if !self.next_block()? {
                self.is_last = true;
                return Ok(None);
            }
        }
        let index = match self.direction {
            Direction::Ascending => self.next,
            Direction::Descending => self.stop - 1,
        };
        let (rest, value) = self.block.row(index).ok_or(self.cursor.leaf().page.damage(BROKEN))?;
        match self.direction {
            Direction::Ascending => self.next += 1,
            Direction::Descending => self.stop -= 1,
        }
        self.key.truncate(self.block.prefix().len());
        self.key.extend_from_slice(rest);
        Ok(Some(value))
    }
}

impl<'a> RowScan<'a> for Scan<'a> {
    #[inline]
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>> {
        match self.advance() {
            Ok(value) => Ok(value.map(|value| (self.key.as_slice(), value))),
            Err(damage) => {
                (self.next, self.stop, self.is_last) = (0, 0, true);
                Err(damaged(Some(self.table), damage))
            }
        }
    }
}
