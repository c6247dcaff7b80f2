//! Checks the pages that LMDB is about to read for the writer, so that it finds no damage.
//!
//! LMDB reads, for a key: the pages from the root to its leaf, and, when a page runs empty after a delete, that page's
//! neighbours under the same parent. In a transaction each of them either was made by the transaction or belongs to the state
//! before it. So the guard looks the key up in that state by our own reader and checks those pages, each once: that nodes
//! fill them, in order, and that overflow pages are what their rows say. Checksums are for readers: LMDB copies rows as
//! they are.
//!
//! Invariant: after `admit(table, key, reach)`, LMDB may go as far as `reach` says.

use std::collections::HashSet;
use std::ops::Bound;

use super::cursor::{Cursor, Goal, Separators};
use super::damaged;
use super::page::{Checked, LeafData, Page};
use super::snapshot::LmdbSnapshot;
use crate::Result;
use crate::tree::{Direction, Table};

/// What is known to be sound in the state before a transaction, its base.
#[derive(Default)]
pub(super) struct Guard {
    checked: HashSet<u64>,
    admitted: [Option<KeyRange>; Table::ALL.len()],
}

/// How far from a key LMDB reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// To get or put it.
    Leaf,
    /// To delete it.
    Neighbours,
}

/// The keys of one leaf: from `lower`, before `upper`; None is no bound.
struct KeyRange {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    reach: Reach,
}

impl KeyRange {
    fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_deref().is_none_or(|lower| lower <= key) && self.upper.as_deref().is_none_or(|upper| key < upper)
    }
}

impl Guard {
    /// Checks what LMDB reads on its way to `key`. Costs nothing for keys of the same leaf as the last.
    pub(super) fn admit(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8], reach: Reach) -> Result<()> {
        let admitted = &self.admitted[table.index()];
        if admitted.as_ref().is_some_and(|range| range.reach >= reach && range.contains(key)) {
            return Ok(());
        }
        self.check_way(base, table, key, reach).map_err(|damage| damaged(Some(table), damage))
    }

    /// The table holds nothing of the state before any more.
    pub(super) fn forget(&mut self, table: Table) {
        self.admitted[table.index()] = Some(KeyRange { lower: None, upper: None, reach: Reach::Neighbours });
    }

    fn check_way(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8], reach: Reach) -> Checked<()> {
        let Some(cursor) = Cursor::new(base.pages(), base.root(table), Goal::From(key))? else {
            self.forget(table);
            return Ok(());
        };
        for level in cursor.branches() {
            self.check_page(base, &level.page)?;
            if reach < Reach::Neighbours {
                continue;
            }
            for index in [level.index.wrapping_sub(1), level.index, level.index + 1] {
                if index < level.page.count() {
                    self.check_page(base, &base.pages().page(level.page.child(index)?)?)?;
                }
            }
        }
        let leaf = cursor.leaf().page;
        self.check_page(base, &leaf)?;
        let (lower, upper) = cursor.separators()?;
        check_place(&leaf, (lower, upper))?;
        let owned = |bound: Option<&[u8]>| bound.map(<[u8]>::to_vec);
        self.admitted[table.index()] = Some(KeyRange { lower: owned(lower), upper: owned(upper), reach });
        Ok(())
    }

    fn check_page(&mut self, base: &LmdbSnapshot, page: &Page<'_>) -> Checked<()> {
        if !self.checked.insert(page.number()) {
            return Ok(());
        }
        check_sound(base, page)
    }
}

/// Checks that the leaf's keys lie between the separators that led to it.
pub(super) fn check_place(leaf: &Page<'_>, (lower, upper): Separators<'_>) -> Checked<()> {
    let (first, last) = (leaf.key(0)?, leaf.key(leaf.count() - 1)?);
    if lower.is_some_and(|lower| first < lower) || upper.is_some_and(|upper| last >= upper) {
        return Err(leaf.damage("it lies in the wrong place"));
    }
    Ok(())
}

/// Checks that nothing in the page leads LMDB astray.
fn check_sound(base: &LmdbSnapshot, page: &Page<'_>) -> Checked<()> {
    if page.check()? {
        return Ok(());
    }
    for index in 0..page.count() {
        match page.leaf_node(index)?.data {
            LeafData::Inline(_) => {}
            data @ LeafData::Overflow { .. } => drop(base.pages().data(data)?),
            LeafData::Table(_) => return Err(page.damage("a row is marked as a table")),
        }
    }
    Ok(())
}

/// Goes before a scan by LMDB: the leaf of the row it is at and the one after were checked.
pub(super) struct Scout<'a> {
    base: &'a LmdbSnapshot,
    direction: Direction,
    /// At the leaf checked last; None after the end of the table.
    cursor: Option<Cursor<'a>>,
    /// The farthest key of the leaf before that one.
    border: &'a [u8],
}

impl<'a> Scout<'a> {
    pub(super) fn new(
        base: &'a LmdbSnapshot,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Checked<Self> {
        let goal = match direction {
            Direction::Ascending => Goal::lower(lower),
            Direction::Descending => Goal::upper(upper),
        };
        let cursor = Cursor::new(base.pages(), base.root(table), goal)?;
        let mut scout = Scout { base, direction, cursor, border: &[] };
        scout.check()?;
        scout.step()?;
        Ok(scout)
    }

    /// The scan is at `key`.
    pub(super) fn follow(&mut self, key: &[u8]) -> Checked<()> {
        while self.cursor.is_some() && !self.is_before_border(key) {
            self.step()?;
        }
        Ok(())
    }

    fn is_before_border(&self, key: &[u8]) -> bool {
        match self.direction {
            Direction::Ascending => key < self.border,
            Direction::Descending => key > self.border,
        }
    }

    /// Goes on by one leaf and checks it.
    fn step(&mut self) -> Checked<()> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        let leaf = cursor.leaf().page;
        let (edge, is_found) = match self.direction {
            Direction::Ascending => (leaf.key(leaf.count() - 1)?, cursor.next_leaf()?),
            Direction::Descending => (leaf.key(0)?, cursor.previous_leaf()?),
        };
        self.border = edge;
        if !is_found {
            self.cursor = None;
        }
        self.check()
    }

    fn check(&self) -> Checked<()> {
        let Some(cursor) = &self.cursor else { return Ok(()) };
        for level in cursor.branches() {
            level.page.check()?;
        }
        check_sound(self.base, &cursor.leaf().page)
    }
}
