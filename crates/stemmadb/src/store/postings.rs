//! Which documents have a term? The tree's postings with the memtables' changes laid over them, oldest to newest.

use std::ops::{Bound, RangeBounds};

use hashbrown::{HashMap, HashSet};

use crate::Result;
use crate::index::{
    self, Container, Declared, DocumentNumber, DocumentSet, PathNumber, Paths, Policy, PostingKey, Presence, Union,
};
use crate::memtable::{Overlay, Walk};
use crate::store::layout::{self, IdRow};
use crate::store::snapshot::{Located, Snapshot};
use crate::store::walk::TermWalk;
use crate::tree::{Direction, Table};

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
    pub(crate) fn declared(&self) -> &Declared {
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
        let mut set = self.tree_postings(path, key)?;
        let mut overlay = Overlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        lay_over(&mut set, &overlay);
        Ok(set)
    }

    /// The documents that have something of one of these kinds at `path`.
    pub(crate) fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        if !self.has_memory() {
            return self.stored_presence(path, kinds);
        }
        let mut union = Union::new();
        for kind in kinds {
            let mut set = self.stored_presence(path, &[*kind])?;
            lay_over(&mut set, &self.presence_overlay(path, *kind));
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// One scan: the kinds of a path lie together.
    fn stored_presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        let keys = kinds.iter().map(|kind| kind.key());
        let (Some(first), Some(last)) = (keys.clone().min(), keys.clone().max()) else { return Ok(DocumentSet::new()) };
        let (lower, upper) = (index::first_posting(path, &first), index::after_postings(path, &last));
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut union = Union::new();
        while let Some((row_key, container)) = rows.next()? {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            if keys.clone().any(|key| key == value) {
                union.add_stored(chunk, container)?;
            }
        }
        Ok(union.finish())
    }

    fn presence_overlay(&self, path: PathNumber, kind: Presence) -> Overlay {
        let mut overlay = Overlay::default();
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
        let mut overlay = Overlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        if overlay.is_empty() {
            return self.stored_count(&index::first_posting(path, key), &index::after_postings(path, key), |_| true);
        }
        let mut set = self.tree_postings(path, key)?;
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
        let (from, to) = posting_bounds(path, lower, upper);
        let mut count = self.stored_count(&from, &to, |key| changed.is_empty() || !changed.contains_key(key))?;
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key)?;
            lay_over(&mut set, overlay);
            count += set.len();
        }
        Ok(Some(count))
    }

    /// The members of all containers between two keys of the tree whose value `counts`.
    fn stored_count(&self, from: &[u8], to: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<u64> {
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(from), Bound::Excluded(to), Direction::Ascending)?;
        let mut count = 0;
        while let Some((row_key, container)) = rows.next()? {
            if counts(PostingKey::decode(row_key)?.value) {
                count += u64::from(Container::stored_len(container)?);
            }
        }
        Ok(count)
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
        let mut overlay = Overlay::default();
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
                let told = DocumentNumber::from_parts(chunk, 0);
                overlay.retain(|number| number < told);
                lay_over(&mut set, &overlay);
                return Ok((set, true));
            }
            set.push(chunk, Container::decode(container)?);
        }
        lay_over(&mut set, &overlay);
        Ok((set, false))
    }

    pub(super) fn tree_postings(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (index::first_posting(path, key), index::after_postings(path, key));
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut set = DocumentSet::new();
        while let Some((row_key, container)) = rows.next()? {
            set.push(PostingKey::decode(row_key)?.chunk, Container::decode(container)?);
        }
        Ok(set)
    }

    /// The distinct values of `path` within the bounds in key order, each with the documents that have it.
    pub(crate) fn walk(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<TermWalk<'_>> {
        let (tree_lower, tree_upper) = posting_bounds(path, lower, upper);
        let rows =
            self.tree.scan(Table::Postings, Bound::Included(&tree_lower), Bound::Excluded(&tree_upper), direction)?;
        let excluded = match lower {
            Bound::Excluded(key) => Some(key.to_vec()),
            _ => None,
        };
        let memtables = self
            .memtables
            .iter()
            .map(|memtable| Walk::new(memtable.clone(), path, lower, upper, direction, self.at).peekable())
            .collect();
        TermWalk::begin(rows, memtables, direction, excluded)
    }

    /// The union of all values' documents within `[lower, upper)`.
    ///
    /// The memtables' terms are few: the tree's rows between them are added as they are stored.
    pub(crate) fn range(&self, path: PathNumber, lower: &[u8], upper: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
        let changed = self.changed_terms(path, lower, upper);
        let (from, to) = posting_bounds(path, lower, upper);
        let mut union = Union::new();
        let mut rows =
            self.tree.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), Direction::Ascending)?;
        while let Some((row_key, container)) = rows.next()? {
            let key = PostingKey::decode(row_key)?;
            if !changed.contains_key(key.value) {
                union.add_stored(key.chunk, container)?;
            }
        }
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key)?;
            lay_over(&mut set, overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// What the memtables change within the bounds, term by term.
    pub(super) fn changed_terms(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> HashMap<Vec<u8>, Overlay> {
        let mut changed: HashMap<Vec<u8>, Overlay> = HashMap::new();
        for memtable in &self.memtables {
            for (key, newer) in Walk::new(memtable.clone(), path, lower, upper, Direction::Ascending, self.at) {
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
        let lower_key = match lower {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(id) | Bound::Excluded(id) => {
                Bound::Included(&id.as_bytes()[..id.len().min(layout::ID_KEY_BYTES_MAX)])
            }
        };
        let mut rows = self.tree.scan(Table::Ids, lower_key, Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            let shortened = &key[..key.len().min(layout::ID_KEY_BYTES_MAX)];
            let is_past = match upper {
                Bound::Unbounded => false,
                Bound::Included(id) | Bound::Excluded(id) => shortened > id.as_bytes(),
            };
            if is_past {
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
            for state in memtable.documents_where(self.at, inside) {
                if seen.insert(state.number) && state.is_live() {
                    numbers.push(state.number);
                }
            }
        }
        numbers.sort_unstable();
        Ok(DocumentSet::from_sorted(numbers))
    }
}

/// Changes a set of the tree by what memtables know.
pub(super) fn lay_over(set: &mut DocumentSet, overlay: &Overlay) {
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

/// The first byte of a value's key: below it lie the presence keys.
const FIRST_VALUE: &[u8] = &[2];

fn posting_bounds(path: PathNumber, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let from = match lower {
        Bound::Unbounded => index::first_posting(path, FIRST_VALUE),
        Bound::Included(key) | Bound::Excluded(key) => index::first_posting(path, key),
    };
    let to = match upper {
        Bound::Unbounded => index::after_postings(path, &[]),
        Bound::Excluded(key) => index::first_posting(path, key),
        Bound::Included(key) => index::after_postings(path, key),
    };
    (from, to)
}
