//! Posting lookups: the documents that have a term, from the tree's postings with the memtables' changes applied from
//! oldest to newest.

use std::cell::Cell;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::cache::columns::Column;
use crate::index::{
    self, Container, DeclaredIndexes, DocumentNumber, DocumentSet, PathNumber, Paths, Policy, PostingKey, Presence,
    Union, Window,
};
use crate::layout::{self, IdRow, posting_bounds};
use crate::memtable::{MemtableTermWalk, PostingOverlay};
use crate::read::snapshot::{Located, Snapshot};
use crate::read::term_walk::{ColumnTerms, StoredTerms, TermWalk, TreeTerms};
use crate::tree::{Direction, Table};
use crate::{Error, Result};

/// Reading a container costs as much as reading this many documents one by one.
const DOCUMENTS_LISTED_MAX: usize = 32;

impl Snapshot {
    /// The dictionary of paths.
    pub(crate) fn paths(&self) -> &Paths {
        &self.parts.paths
    }

    /// Which paths are indexed.
    pub(crate) fn policy(&self) -> &Policy {
        &self.parts.policy
    }

    /// The declared indexes.
    pub(crate) fn declared(&self) -> &DeclaredIndexes {
        &self.declared
    }

    /// The number of the live document `id`.
    pub(crate) fn live_number(&self, id: &str) -> Result<Option<DocumentNumber>> {
        Ok(match self.locate(id)? {
            Some(Located::Memory(state)) if state.is_live() => Some(state.number),
            Some(Located::Tree(row)) if !row.deleted => Some(row.number),
            _ => None,
        })
    }

    /// The documents that have the term (`path`, `key`).
    pub(crate) fn postings(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        self.postings_in(path, key, Window::ALL)
    }

    /// Like [`Snapshot::postings`], within one window of chunks.
    pub(crate) fn postings_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        let mut set = self.tree_postings(path, key, window)?;
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        overlay.narrow(window);
        apply_overlay(&mut set, &overlay);
        Ok(set)
    }

    /// The documents that have a value of one of these kinds at `path`.
    pub(crate) fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        self.presence_in(path, kinds, Window::ALL)
    }

    /// Like [`Snapshot::presence`], within one window of chunks.
    pub(crate) fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        if !self.has_memory() {
            return self.stored_presence(path, kinds, window);
        }
        let mut union = Union::new();
        for kind in kinds {
            let mut set = self.stored_presence(path, &[*kind], window)?;
            let mut overlay = self.presence_overlay(path, *kind);
            overlay.narrow(window);
            apply_overlay(&mut set, &overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// Reads the kinds of a path in one scan: their keys are adjacent.
    fn stored_presence(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        let keys = kinds.iter().map(|kind| kind.key());
        let (Some(first), Some(last)) = (keys.clone().min(), keys.clone().max()) else { return Ok(DocumentSet::new()) };
        let (lower, upper) = (index::first_of_window(path, &first, window), index::after_window(path, &last, window));
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut union = Union::new();
        while let Some((row_key, container)) = rows.next()? {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            if window.has(chunk) && keys.clone().any(|key| key == value) {
                union.add_stored(chunk, container)?;
            }
        }
        Ok(union.finish())
    }

    fn presence_overlay(&self, path: PathNumber, kind: Presence) -> PostingOverlay {
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.presence(path, kind, self.at, &mut overlay));
        overlay.settle();
        overlay
    }

    /// How many documents have a value of one of these kinds at `path`, if a document has at most one value there.
    pub(crate) fn presence_count(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        if self.has_memory() {
            return Ok(self.presence(path, kinds)?.len());
        }
        let keys = kinds.iter().map(|kind| kind.key());
        let (Some(first), Some(last)) = (keys.clone().min(), keys.clone().max()) else { return Ok(0) };
        let (lower, upper) = (index::first_posting(path, &first), index::after_postings(path, &last));
        self.stored_count(&lower, &upper, |value| keys.clone().any(|key| key == value))
    }

    /// How many documents have the term (`path`, `key`). Does not decode the document sets if no memtable changes the
    /// term.
    pub(crate) fn postings_count(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        if overlay.is_empty() {
            return self.stored_count(&index::first_posting(path, key), &index::after_postings(path, key), |_| true);
        }
        let mut set = self.tree_postings(path, key, Window::ALL)?;
        apply_overlay(&mut set, &overlay);
        Ok(set.len())
    }

    /// How many documents have values of `path` within `[lower, upper)`. None if the path enters an array, where one
    /// document may have several values.
    pub(crate) fn range_count(&self, path: PathNumber, lower: &[u8], upper: &[u8]) -> Result<Option<u64>> {
        if self.parts.paths.enters_array(path) {
            return Ok(None);
        }
        let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
        let changed = self.changed_terms(path, lower, upper);
        let mut count = match self.column(path)? {
            Some(column) => {
                let span = column.span(lower, upper);
                let count = column.documents_within(&span).len() as u64;
                let is_changed = |rank: &usize| changed.contains_key(column.key(*rank));
                let lost = if changed.is_empty() { 0..0 } else { span };
                count - lost.filter(is_changed).map(|rank| column.documents(rank).len() as u64).sum::<u64>()
            }
            None => {
                let (from, to) = posting_bounds(path, lower, upper);
                let (count, row_count) = self.count_rows(&from, &to, |key| !changed.contains_key(key))?;
                self.spend(path, row_count);
                count
            }
        };
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key, Window::ALL)?;
            apply_overlay(&mut set, overlay);
            count += set.len();
        }
        Ok(Some(count))
    }

    /// The number of members of all containers between two keys of the tree, for the values that `counts` accepts.
    fn stored_count(&self, from: &[u8], to: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<u64> {
        Ok(self.count_rows(from, to, counts)?.0)
    }

    /// Like [`Snapshot::stored_count`], with the number of rows read.
    fn count_rows(&self, from: &[u8], to: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<(u64, u64)> {
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(from), Bound::Excluded(to), Direction::Ascending)?;
        let (mut count, mut row_count) = (0, 0);
        while let Some((row_key, container)) = rows.next()? {
            if counts(PostingKey::decode(row_key)?.value) {
                count += u64::from(Container::stored_len(container)?);
            }
            row_count += 1;
        }
        Ok((count, row_count))
    }

    /// Like [`Snapshot::postings`], but starts at document `from` and ends with the chunk that brings the total to
    /// `count`: enough for a query's limit. Also returns whether there may be more.
    pub(crate) fn some_postings(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        let (lower, upper) = (index::posting_key(path, key, from.chunk()), index::after_postings(path, key));
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut set = DocumentSet::new();
        let lost = overlay.changes().len() as u64;
        while let Some((row_key, container)) = rows.next()? {
            let chunk = PostingKey::decode(row_key)?.chunk;
            if set.len() >= count.saturating_add(lost) {
                // The set is complete only up to this chunk, so the memtables' changes beyond it are ignored.
                overlay.narrow(Window { start: 0, end: chunk });
                apply_overlay(&mut set, &overlay);
                return Ok((set, true));
            }
            set.push(chunk, Container::decode(container)?);
        }
        apply_overlay(&mut set, &overlay);
        Ok((set, false))
    }

    pub(crate) fn tree_postings(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        let (lower, upper) = (index::first_of_window(path, key, window), index::after_window(path, key, window));
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut set = DocumentSet::new();
        while let Some((row_key, container)) = rows.next()? {
            set.push(PostingKey::decode(row_key)?.chunk, Container::decode(container)?);
        }
        Ok(set)
    }

    /// The distinct values of `path` within the bounds, in key order, each with its documents. Reads the tree.
    pub(crate) fn walk(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<TermWalk> {
        let (from, to) = posting_bounds(path, lower, upper);
        let rows = self.tree.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), direction)?;
        let terms = StoredTerms::Tree(Box::new(TreeTerms::begin(rows, direction)?));
        Ok(self.walk_over(terms, path, lower, upper, direction))
    }

    /// Like [`Snapshot::walk`], but uses the path's column if there is one. Values whose text does not contain
    /// `literal` may be left out.
    pub(crate) fn walk_holding(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        literal: Option<&[u8]>,
    ) -> Result<TermWalk> {
        let column = self.column(path)?.map(|column| (column.span(lower, upper), column));
        let Some((span, column)) = column.filter(|(span, column)| literal.is_some() || is_sparse(column, span)) else {
            return self.walk(path, lower, upper, direction);
        };
        let terms = StoredTerms::Column(ColumnTerms::new(column, span, direction, literal));
        Ok(self.walk_over(terms, path, lower, upper, direction))
    }

    fn walk_over(
        &self,
        terms: StoredTerms,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> TermWalk {
        let excluded = match lower {
            Bound::Excluded(key) => Some(key.to_vec()),
            _ => None,
        };
        let memtables = self
            .memtables
            .iter()
            .map(|memtable| MemtableTermWalk::new(memtable.clone(), path, lower, upper, direction, self.at).peekable())
            .collect();
        TermWalk::begin(terms, memtables, direction, excluded)
    }

    /// The column of a path, if the path was read often enough in this state of the tree.
    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        self.parts.refuse_if_closed()?;
        self.columns.get(&self.tree, path, || self.histogram(path))
    }

    /// Like [`Snapshot::column`], if no memtable changes the path, so that the column is complete.
    pub(crate) fn whole_column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        if self.memtables.iter().any(|memtable| memtable.has_terms(path)) { Ok(None) } else { self.column(path) }
    }

    /// The documents within a window that have one of these terms, given in ascending key order.
    pub(crate) fn any_postings(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        let mut union = Union::new();
        if window == Window::ALL
            && let Some(column) = self.whole_column(path)?
        {
            for rank in keys.iter().filter_map(|key| column.find(key).ok()) {
                union.add_listed(column.documents(rank));
            }
            return Ok(union.finish());
        }
        for key in keys {
            union.add_set(&self.postings_in(path, key, window)?);
        }
        self.spend(path, keys.len() as u64);
        Ok(union.finish())
    }

    /// Counts rows read at a path, or rows whose reading would have cost as much.
    pub(crate) fn spend(&self, path: PathNumber, row_count: u64) {
        self.columns.spend(path, row_count);
    }

    /// The documents that have a value within `[lower, upper)`.
    ///
    /// The tree's containers are added without decoding, except for the few terms that memtables change.
    pub(crate) fn range(&self, path: PathNumber, lower: &[u8], upper: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
        let changed = self.changed_terms(path, lower, upper);
        let mut union = Union::new();
        let column = self.column(path)?.map(|column| (column.span(lower, upper), column));
        match column.filter(|(span, column)| is_sparse(column, span)) {
            Some((span, column)) if changed.is_empty() => union.add_listed(column.documents_within(&span)),
            Some((span, column)) => {
                let unchanged = span.filter(|rank| !changed.contains_key(column.key(*rank)));
                unchanged.for_each(|rank| union.add_listed(column.documents(rank)));
            }
            None => self.add_rows(path, (lower, upper), &changed, &mut union)?,
        }
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key, Window::ALL)?;
            apply_overlay(&mut set, overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// Adds the tree's rows within the bounds, except for the terms that memtables change.
    fn add_rows(
        &self,
        path: PathNumber,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        changed: &HashMap<Vec<u8>, PostingOverlay>,
        union: &mut Union,
    ) -> Result<()> {
        let (from, to) = posting_bounds(path, lower, upper);
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), Direction::Ascending)?;
        let mut row_count = 0;
        while let Some((row_key, container)) = rows.next()? {
            let key = PostingKey::decode(row_key)?;
            if !changed.contains_key(key.value) {
                union.add_stored(key.chunk, container)?;
            }
            row_count += 1;
        }
        self.spend(path, row_count);
        Ok(())
    }

    /// The memtables' changes within the bounds, by term.
    pub(crate) fn changed_terms(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> HashMap<Vec<u8>, PostingOverlay> {
        let mut changed: HashMap<Vec<u8>, PostingOverlay> = HashMap::new();
        for memtable in &self.memtables {
            for (key, newer) in
                MemtableTermWalk::new(memtable.clone(), path, lower, upper, Direction::Ascending, self.at)
            {
                changed.entry(key).or_default().stack(newer);
            }
        }
        changed
    }

    /// The live documents whose id is within the bounds, in byte order.
    pub(crate) fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        let found = self.ids_in_range_within(lower, upper, u64::MAX)?;
        found.ok_or_else(|| Error::internal("a range without a bound reached it"))
    }

    /// As [`Snapshot::ids_in_range`], or `None` if that would visit more than `ids_max` ids; stops reading there.
    pub(crate) fn ids_in_range_within(
        &self,
        lower: Bound<&str>,
        upper: Bound<&str>,
        ids_max: u64,
    ) -> Result<Option<DocumentSet>> {
        let inside = |id: &str| RangeBounds::<str>::contains(&(lower, upper), id);
        let mut numbers = Vec::new();
        // The keys of long ids are truncated, so all ids that share a bound's prefix are compared.
        let (lower_key, is_past) = layout::id_span(lower.map(str::as_bytes), upper.map(str::as_bytes));
        let left = Cell::new(Some(ids_max));
        let is_end = |key: &[u8]| {
            let is_past = is_past(key);
            if !is_past {
                left.set(left.get().and_then(|left| left.checked_sub(1)));
            }
            is_past || left.get().is_none()
        };
        let mut rows =
            self.tree.scan(Table::Ids, Bound::Included(lower_key), Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            if is_end(key) {
                break;
            }
            let row = IdRow::decode(value)?;
            if row.deleted || self.state_in_memory(row.number).is_some() {
                continue;
            }
            let is_inside = match std::str::from_utf8(key) {
                Ok(id) if key.len() <= layout::ID_KEY_BYTES_MAX => inside(id),
                _ => inside(self.id(row.number)?.as_str()),
            };
            if is_inside {
                numbers.push(row.number);
            }
        }
        let mut seen = HashSet::new();
        for memtable in self.memtables.iter().rev() {
            for state in memtable.documents_between(self.at, lower_key, is_end) {
                if inside(state.id.as_str()) && seen.insert(state.number) && state.is_live() {
                    numbers.push(state.number);
                }
            }
        }
        if left.get().is_none() {
            return Ok(None);
        }
        numbers.sort_unstable();
        // A document relocated by compaction in the meantime was first in the tree and then in a memtable as well.
        numbers.dedup();
        Ok(Some(DocumentSet::from_sorted(numbers)))
    }
}

/// Whether values have so few documents each that a union of the column's lists is faster than one of the tree's
/// containers.
fn is_sparse(column: &Column, span: &Range<usize>) -> bool {
    column.documents_within(span).len() < span.len().saturating_mul(DOCUMENTS_LISTED_MAX)
}

/// Applies the memtables' changes to a set from the tree.
pub(crate) fn apply_overlay(set: &mut DocumentSet, overlay: &PostingOverlay) {
    if overlay.is_empty() {
        return;
    }
    debug_assert!(
        overlay.changes().is_sorted_by(|left, right| left.0 < right.0),
        "an overlay lists each document once, in ascending order"
    );
    let pick = |gains: bool| {
        let picked = overlay.changes().iter().filter(move |(_, gained)| *gained == gains);
        DocumentSet::from_sorted(picked.map(|(number, _)| *number))
    };
    set.and_not_with(&pick(false));
    set.or_with(&pick(true));
}
