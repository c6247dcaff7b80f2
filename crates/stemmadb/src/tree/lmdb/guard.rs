//! Write guard: verifies the pages that LMDB is about to read for the writer.
//!
//! For a key, LMDB reads the pages from the root to its leaf; the previous or next leaf, if that holds the fence at or
//! below the key; and, if a delete empties a page, that page's siblings. Within a transaction, each of these pages was
//! either created by the transaction or belongs to its base state. The guard therefore looks the key up in the base
//! state with this crate's reader and verifies those pages, each once: nodes fill them, keys are in order, and overflow
//! pages match their rows. Block checksums are left to readers, since LMDB copies rows unchanged.
//!
//! Invariant: after `admit(table, key)`, LMDB may get, put or delete the fence at `key`, or find the one below it.

use std::collections::HashSet;

use super::cursor::{Cursor, Goal, Separators};
use super::damaged;
use super::page::{Checked, LeafData, Page};
use super::snapshot::LmdbSnapshot;
use crate::Result;
use crate::tree::Table;

/// The verified parts of a transaction's base state.
#[derive(Default)]
pub(super) struct Guard {
    checked: HashSet<u64>,
    admitted: [Option<KeyRange>; Table::ALL.len()],
}

/// The key range of one leaf, from `lower` to before `upper`; `None` is unbounded.
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
    /// Verifies the pages that LMDB reads for `key`. Free for keys in the same leaf as the previous one.
    pub(super) fn admit(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8]) -> Result<()> {
        let admitted = &self.admitted[table.index()];
        if admitted.as_ref().is_some_and(|range| range.contains(key)) {
            return Ok(());
        }
        self.check_path(base, table, key).map_err(|damage| damaged(Some(table), damage))
    }

    /// Records that the table no longer contains any page of the base state.
    pub(super) fn admit_all(&mut self, table: Table) {
        self.admitted[table.index()] = Some(KeyRange { lower: None, upper: None });
    }

    fn check_path(&mut self, base: &LmdbSnapshot, table: Table, key: &[u8]) -> Checked<()> {
        let Some(cursor) = Cursor::new(base.pages(), base.root(table), Goal::From(key))? else {
            self.admit_all(table);
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
        check_separators(&cursor.leaf().page, (lower, upper))?;
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
        check_page_content(base, page)
    }
}

/// Checks that the leaf's keys are between the separators on its path.
pub(super) fn check_separators(leaf: &Page<'_>, (lower, upper): Separators<'_>) -> Checked<()> {
    let (first, last) = (leaf.key(0)?, leaf.key(leaf.count() - 1)?);
    if lower.is_some_and(|lower| first < lower) || upper.is_some_and(|upper| last >= upper) {
        return Err(leaf.damage("its keys belong to another page"));
    }
    Ok(())
}

/// Checks that the page is safe for LMDB to read.
fn check_page_content(base: &LmdbSnapshot, page: &Page<'_>) -> Checked<()> {
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
