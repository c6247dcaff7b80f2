//! Checks the pages that LMDB is about to read for the writer, so that it finds no damage.
//!
//! LMDB reads, for a key: the pages from the root to its leaf; the leaf before or after, when the fence at or below the key
//! is there; and, when a page runs empty after a delete, that page's neighbours under the same parent. In a
//! transaction each of them either was made by the transaction or belongs to the state before it. So the guard looks
//! the key up in that state by our own reader and checks those pages, each once: that nodes fill them, in order, and that
//! overflow pages are what their rows say. Checksums are for readers: LMDB copies rows as they are.
//!
//! Invariant: after `admit(table, key)`, LMDB may get, put or delete the fence at `key`, or find the one below it.

use std::collections::HashSet;

use super::cursor::{Cursor, Goal, Separators};
use super::damaged;
use super::page::{Checked, LeafData, Page};
use super::snapshot::LmdbSnapshot;
use crate::Result;
use crate::tree::Table;

/// What is known to be sound in the state before a transaction, its base.
#[derive(Default)]
pub(super) struct Guard {
    checked: HashSet<u64>,
    admitted: [Option<KeyRange>; Table::ALL.len()],
}

/// The keys of one leaf: from `lower`, before `upper`; None is no bound.
struct KeyRange {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

impl KeyRange {
    fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_deref().is_none_or(|lower| lower <= key) && self.upper.as_deref().is_none_or(|upper| key < upper)
    }
}

impl Guard {
    /// Checks what LMDB reads on its way to `key`. Costs nothing for keys of the same leaf as the last.
    pub(super) fn admit(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8]) -> Result<()> {
        let admitted = &self.admitted[table.index()];
        if admitted.as_ref().is_some_and(|range| range.contains(key)) {
            return Ok(());
        }
        self.check_way(base, table, key).map_err(|damage| damaged(Some(table), damage))
    }

    /// The table holds nothing of the state before any more.
    pub(super) fn forget(&mut self, table: Table) {
        self.admitted[table.index()] = Some(KeyRange { lower: None, upper: None });
    }

    fn check_way(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8]) -> Checked<()> {
        let Some(cursor) = Cursor::new(base.pages(), base.root(table), Goal::From(key))? else {
            self.forget(table);
            return Ok(());
        };
        self.check_pages(base, &cursor)?;
        for level in cursor.branches() {
            for index in [level.index.wrapping_sub(1), level.index + 1] {
                if index < level.page.count() {
                    self.check_page(base, &base.pages().page(level.page.child(index)?)?)?;
                }
            }
        }
        let (mut before, mut after) = (cursor.clone(), cursor.clone());
        if before.previous_leaf()? {
            self.check_pages(base, &before)?;
        }
        if after.next_leaf()? {
            self.check_pages(base, &after)?;
        }
        let (lower, upper) = cursor.separators()?;
        check_place(&cursor.leaf().page, (lower, upper))?;
        let owned = |bound: Option<&[u8]>| bound.map(<[u8]>::to_vec);
        self.admitted[table.index()] = Some(KeyRange { lower: owned(lower), upper: owned(upper) });
        Ok(())
    }

    fn check_pages(&mut self, base: &LmdbSnapshot, cursor: &Cursor<'_>) -> Checked<()> {
        cursor.branches().iter().try_for_each(|level| self.check_page(base, &level.page))?;
        self.check_page(base, &cursor.leaf().page)
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
