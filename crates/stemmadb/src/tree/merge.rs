//! Merge of several runs: each key once, with the combined effect of its entries.
//!
//! A scan of one run costs one comparison per row more than reading it; further runs cost a comparison for each change
//! of the run that has the next key.

use std::sync::Arc;

use smallvec::SmallVec;

use super::block::Kind;
use super::run::{Bounds, Run, RunCursor};
use super::{ClosedFlag, Direction, MergeOperator, Row, TABLE_BYTES};
use crate::Result;

/// The merged entries of runs within bounds.
pub(super) struct MergeCursor {
    operator: Arc<dyn MergeOperator>,
    bounds: Bounds,
    direction: Direction,
    cursors: Vec<RunCursor>,
    /// The cursors that are not at their end: in the order of their keys, for equal keys the newest first.
    order: SmallVec<[u16; 16]>,
    /// Whether the first cursor is still at the entry returned last.
    is_returned: bool,
    /// The key and operand of an entry that was combined from several.
    key: Vec<u8>,
    operand: Vec<u8>,
    combined: Vec<u8>,
}

/// An entry of a merge.
pub(super) struct MergedEntry<'a> {
    pub(super) key: &'a [u8],
    pub(super) kind: Kind,
    pub(super) value: &'a [u8],
}

/// Where the current entry is.
enum Current {
    /// At the first cursor.
    Single,
    /// In `key` and `operand`.
    Combined(Kind),
}

impl MergeCursor {
    /// The merge of `runs`, the newest first.
    pub(super) fn new<'r>(
        runs: impl Iterator<Item = &'r Arc<Run>>,
        bounds: Bounds,
        direction: Direction,
        operator: Arc<dyn MergeOperator>,
        is_cached: bool,
    ) -> Result<Box<Self>> {
        // Boxed, because it is large, and moved several times until it is read.
        let mut merge = Box::new(MergeCursor {
            operator,
            bounds,
            direction,
            cursors: Vec::with_capacity(runs.size_hint().0),
            order: SmallVec::new(),
            is_returned: false,
            key: Vec::new(),
            operand: Vec::new(),
            combined: Vec::new(),
        });
        for run in runs {
            if let Some(cursor) = RunCursor::start(run, &merge.bounds, direction, is_cached)? {
                merge.cursors.push(cursor);
                let added = (merge.cursors.len() - 1) as u16;
                let at = merge.order.partition_point(|&other| merge.is_before(other, added));
                merge.order.insert(at, added);
            }
        }
        Ok(merge)
    }

    /// Whether cursor `left` comes before cursor `right`.
    #[inline]
    fn is_before(&self, left: u16, right: u16) -> bool {
        let (left_key, right_key) = (self.cursors[usize::from(left)].key(), self.cursors[usize::from(right)].key());
        let order = match self.direction {
            Direction::Ascending => left_key.cmp(right_key),
            Direction::Descending => right_key.cmp(left_key),
        };
        order.then(left.cmp(&right)).is_lt()
    }

    /// Moves the first cursor on, and to its new position in the order.
    #[inline]
    fn advance_first(&mut self) -> Result<()> {
        let first = self.order[0];
        if !self.cursors[usize::from(first)].advance(&self.bounds)? {
            self.order.remove(0);
            return Ok(());
        }
        let mut at = 0;
        while at + 1 < self.order.len() && !self.is_before(first, self.order[at + 1]) {
            self.order[at] = self.order[at + 1];
            at += 1;
        }
        self.order[at] = first;
        Ok(())
    }

    /// Finds the next entry.
    #[inline]
    fn find(&mut self) -> Result<Option<Current>> {
        if std::mem::take(&mut self.is_returned) {
            self.advance_first()?;
        }
        let Some(&first) = self.order.first() else { return Ok(None) };
        let is_single = match self.order.get(1) {
            None => true,
            Some(&second) => self.cursors[usize::from(first)].key() != self.cursors[usize::from(second)].key(),
        };
        if is_single {
            self.is_returned = true;
            return Ok(Some(Current::Single));
        }
        self.combine(first).map(|kind| Some(Current::Combined(kind)))
    }

    /// Combines the entries of the first key, from the newest to the oldest, and moves behind them.
    fn combine(&mut self, first: u16) -> Result<Kind> {
        let newest = &self.cursors[usize::from(first)];
        self.key.clear();
        self.key.extend_from_slice(newest.key());
        self.operand.clear();
        self.operand.extend_from_slice(newest.value());
        let mut kind = newest.kind();
        self.advance_first()?;
        while let Some(&next) = self.order.first() {
            let older = &self.cursors[usize::from(next)];
            if older.key() != self.key {
                break;
            }
            if kind == Kind::Merge {
                let older_kind = older.kind();
                if older_kind != Kind::Delete {
                    self.combined.clear();
                    self.operator.combine(older.value(), &self.operand, &mut self.combined)?;
                    std::mem::swap(&mut self.operand, &mut self.combined);
                }
                if older_kind != Kind::Merge {
                    // Nothing that is older counts, so what was combined so far is all there is.
                    kind = self.finish_operand()?;
                }
            }
            self.advance_first()?;
        }
        Ok(kind)
    }

    /// Replaces the combined operand by the value it stands for.
    fn finish_operand(&mut self) -> Result<Kind> {
        let Some(value) = self.operator.finish(&self.operand)? else { return Ok(Kind::Delete) };
        self.combined.clear();
        self.combined.extend_from_slice(value);
        std::mem::swap(&mut self.operand, &mut self.combined);
        Ok(Kind::Put)
    }

    /// The next entry. A deletion is an entry, and operands of merges may be too.
    pub(super) fn next_entry(&mut self) -> Result<Option<MergedEntry<'_>>> {
        Ok(self.find()?.map(|current| self.entry(&current)))
    }

    /// The entry that was found last.
    #[inline]
    fn entry(&self, current: &Current) -> MergedEntry<'_> {
        match current {
            Current::Single => {
                let cursor = &self.cursors[usize::from(self.order[0])];
                MergedEntry { key: cursor.key(), kind: cursor.kind(), value: cursor.value() }
            }
            Current::Combined(kind) => MergedEntry { key: &self.key, kind: *kind, value: &self.operand },
        }
    }

    /// Finds the next entry that is a row.
    #[inline]
    fn find_row(&mut self) -> Result<Option<Current>> {
        while let Some(current) = self.find()? {
            let entry = self.entry(&current);
            let is_row = match entry.kind {
                Kind::Put => true,
                Kind::Delete => false,
                Kind::Merge => self.operator.finish(entry.value)?.is_some(),
            };
            if is_row {
                return Ok(Some(current));
            }
        }
        Ok(None)
    }
}

/// The rows of a table between two keys, in order. Holds the files it reads, and borrows nothing.
pub(crate) struct Scan {
    /// None: there are no rows.
    merge: Option<(Box<MergeCursor>, Arc<ClosedFlag>)>,
}

impl Scan {
    pub(super) fn empty() -> Self {
        Scan { merge: None }
    }

    pub(super) fn new(merge: Box<MergeCursor>, closed: Arc<ClosedFlag>) -> Self {
        Scan { merge: Some((merge, closed)) }
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    /// `Corrupt` if a file is damaged; `Closed` if the tree was closed. Don't go on then.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>> {
        let Some((merge, closed)) = &mut self.merge else { return Ok(None) };
        closed.refuse()?;
        let Some(current) = merge.find_row()? else { return Ok(None) };
        let entry = merge.entry(&current);
        let value = match entry.kind {
            Kind::Merge => merge.operator.finish(entry.value)?.unwrap_or_default(),
            _ => entry.value,
        };
        Ok(Some((entry.key.get(TABLE_BYTES..).unwrap_or_default(), value)))
    }
}
