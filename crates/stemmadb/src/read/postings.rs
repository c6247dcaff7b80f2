//! Which documents have a term? The tree's postings with the memtables' changes laid over them, oldest to newest.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::Result;
use crate::cache::columns::Column;
use crate::index::{
    self, Container, DeclaredIndexes, DocumentNumber, DocumentSet, PathNumber, Paths, Policy, PostingKey, Presence,
    Union, Window,
};
use crate::layout::{self, IdRow, posting_bounds};
use crate::memtable::{MemtableTermWalk, PostingOverlay};
use crate::read::snapshot::{Located, Snapshot};
use crate::read::term_walk::{ColumnTerms, TermWalk, Terms, TreeTerms};
use crate::tree::{Direction, Table};

/// A container of so many documents costs as much as reading them one by one.
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

    /// The number of the living document `id`.
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

    /// As [`Snapshot::postings`], of one window.
    pub(crate) fn postings_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        let mut set = self.tree_postings(path, key, window)?;
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        overlay.narrow(window);
        lay_over(&mut set, &overlay);
        Ok(set)
    }

    /// The documents that have something of one of these kinds at `path`.
    pub(crate) fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        self.presence_in(path, kinds, Window::ALL)
    }

    /// As [`Snapshot::presence`], of one window.
    pub(crate) fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        if !self.has_memory() {
            return self.stored_presence(path, kinds, window);
        }
        let mut union = Union::new();
        for kind in kinds {
            let mut set = self.stored_presence(path, &[*kind], window)?;
            let mut overlay = self.presence_overlay(path, *kind);
            overlay.narrow(window);
            lay_over(&mut set, &overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// One scan: the kinds of a path lie together.
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

    /// How many documents have something of one of these kinds at `path`, where a document has one at most.
    pub(crate) fn presence_count(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        if self.has_memory() {
            return Ok(self.presence(path, kinds)?.len());
        }
        let keys = kinds.iter().map(|kind| kind.key());
        let (Some(first), Some(last)) = (keys.clone().min(), keys.clone().max()) else { return Ok(0) };
        let (lower, upper) = (index::first_posting(path, &first), index::after_postings(path, &last));
        self.stored_count(&lower, &upper, |value| keys.clone().any(|key| key == value))
    }

    /// How many documents have the term (`path`, `key`). Where no memtable knows of it, their sets are not made.
    pub(crate) fn postings_count(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        let mut overlay = PostingOverlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        if overlay.is_empty() {
            return self.stored_count(&index::first_posting(path, key), &index::after_postings(path, key), |_| true);
        }
        let mut set = self.tree_postings(path, key, Window::ALL)?;
        lay_over(&mut set, &overlay);
        Ok(set.len())
    }

    /// How many documents the values of `path` within `[lower, upper)` have, if no document can have two of them: of a path that enters
    /// no array. None if it does.
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
            lay_over(&mut set, overlay);
            count += set.len();
        }
        Ok(Some(count))
    }

    /// The members of all containers between two keys of the tree whose value `counts`.
    fn stored_count(&self, from: &[u8], to: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<u64> {
        Ok(self.count_rows(from, to, counts)?.0)
    }

    /// As [`Snapshot::stored_count`], with how many rows there are.
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

    /// As [`Snapshot::postings`], but only from document `from` on, and no chunk beyond the one in which there are `count` of them:
    /// what a limit needs. Whether there may be more comes with it.
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
                // Nothing beyond this chunk is known, so nothing that memtables say of it may be told.
                overlay.narrow(Window { start: 0, end: chunk });
                lay_over(&mut set, &overlay);
                return Ok((set, true));
            }
            set.push(chunk, Container::decode(container)?);
        }
        lay_over(&mut set, &overlay);
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

    /// The distinct values of `path` within the bounds in key order, each with the documents that have it, as the tree has them.
    pub(crate) fn walk(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<TermWalk<'_>> {
        let (from, to) = posting_bounds(path, lower, upper);
        let rows = self.tree.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), direction)?;
        let terms = Terms::Tree(TreeTerms::begin(rows, direction)?);
        Ok(self.walk_over(terms, path, lower, upper, direction))
    }

    /// As [`Snapshot::walk`], in memory where it can be. Values whose text does not hold `literal` may be left out.
    pub(crate) fn walk_holding(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        literal: Option<&[u8]>,
    ) -> Result<TermWalk<'_>> {
        let column = self.column(path)?.map(|column| (column.span(lower, upper), column));
        let Some((span, column)) = column.filter(|(span, column)| literal.is_some() || is_sparse(column, span)) else {
            return self.walk(path, lower, upper, direction);
        };
        let terms = Terms::Column(ColumnTerms::new(column, span, direction, literal));
        Ok(self.walk_over(terms, path, lower, upper, direction))
    }

    fn walk_over<'a>(
        &self,
        terms: Terms<'a>,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> TermWalk<'a> {
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

    /// The values of a path in memory, if the tree's state has been asked enough of it.
    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        self.columns.get(&*self.tree, path, || self.histogram(path))
    }

    /// As [`Snapshot::column`], if no memtable changes the path, so that it holds all there is.
    pub(crate) fn whole_column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        if self.memtables.iter().any(|memtable| memtable.has_terms(path)) { Ok(None) } else { self.column(path) }
    }

    /// The documents of a window that have one of these terms, whose keys ascend.
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

    /// Notes that so many rows of a path were read, or might as well have been.
    pub(crate) fn spend(&self, path: PathNumber, row_count: u64) {
        self.columns.spend(path, row_count);
    }

    /// The union of all values' documents within `[lower, upper)`.
    ///
    /// The memtables' terms are few: the tree's rows between them are added as they are stored.
    pub(crate) fn range(&self, path: PathNumber, lower: &[u8], upper: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
        let changed = self.changed_terms(path, lower, upper);
        let mut union = Union::new();
        let column = self.column(path)?.map(|column| (column.span(lower, upper), column));
        match column.filter(|(span, column)| is_sparse(column, span)) {
            Some((span, column)) if changed.is_empty() => union.add_listed(column.documents_within(&span)),
            Some((span, column)) => {
                let kept = span.filter(|rank| !changed.contains_key(column.key(*rank)));
                kept.for_each(|rank| union.add_listed(column.documents(rank)));
            }
            None => self.add_rows(path, (lower, upper), &changed, &mut union)?,
        }
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key, Window::ALL)?;
            lay_over(&mut set, overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// Adds the tree's rows within the bounds, but for what memtables change.
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

    /// What the memtables change within the bounds, term by term.
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

    /// The living documents whose id lies within the bounds, in the order of bytes.
    pub(crate) fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        let inside = |id: &str| RangeBounds::<str>::contains(&(lower, upper), id);
        let mut numbers = Vec::new();
        // The keys of long ids are cut, so a bound's own group is looked at whole.
        let (lower_key, is_past) = layout::id_span(lower.map(str::as_bytes), upper.map(str::as_bytes));
        let mut rows =
            self.tree.scan(Table::Ids, Bound::Included(lower_key), Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            if is_past(key) {
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
            for state in memtable.documents_between(self.at, lower_key, &is_past) {
                if inside(state.id.as_str()) && seen.insert(state.number) && state.is_live() {
                    numbers.push(state.number);
                }
            }
        }
        numbers.sort_unstable();
        // What compaction moved meanwhile was in the tree, and then in memory too.
        numbers.dedup();
        Ok(DocumentSet::from_sorted(numbers))
    }
}

/// Whether values have so few documents each that those of a column are united faster than the tree's containers.
fn is_sparse(column: &Column, span: &Range<usize>) -> bool {
    column.documents_within(span).len() < span.len().saturating_mul(DOCUMENTS_LISTED_MAX)
}

/// Changes a set of the tree by what memtables know.
pub(crate) fn lay_over(set: &mut DocumentSet, overlay: &PostingOverlay) {
    if overlay.is_empty() {
        return;
    }
    let pick = |wanted: bool| {
        let picked = overlay.changes().iter().filter(move |(_, gained)| *gained == wanted);
        DocumentSet::from_sorted(picked.map(|(number, _)| *number))
    };
    set.and_not_with(&pick(false));
    set.or_with(&pick(true));
}
