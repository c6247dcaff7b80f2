//! Index part of a memtable: for each path, its distinct terms with the documents that gained or lost them.
//!
//! Terms are found by hash. They are sorted only when first scanned, into sorted runs that are merged geometrically: a
//! writer pays one push per term, and no reader sorts the same terms twice.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::Memtable;
use crate::index::{DocumentNumber, PathNumber, Window};
use crate::revision::Sequence;
use crate::sync::Mutex;

use crate::tree::{Direction, key_head};

/// A document gained or lost a term at a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delta {
    pub(super) number: DocumentNumber,
    /// The sequence shifted left by one; the lowest bit is set if the term was gained.
    stamp: u64,
}

impl Delta {
    pub(super) fn new(number: DocumentNumber, sequence: Sequence, gained: bool) -> Self {
        Delta { number, stamp: sequence.0 << 1 | u64::from(gained) }
    }

    pub(super) fn visible(&self, at: Sequence) -> bool {
        self.stamp >> 1 <= at.0
    }

    fn gained(&self) -> bool {
        self.stamp & 1 == 1
    }
}

/// The changes that memtables make to the set of documents with one term: the newest change for each document, sorted
/// by number.
#[derive(Debug, Default, Clone)]
pub(crate) struct PostingOverlay {
    changes: Vec<(DocumentNumber, bool)>,
    /// By how many documents the deltas of one memtable change the set; known once they are settled.
    entry_change: i64,
}

impl PostingOverlay {
    /// Adds the deltas of a newer memtable (or newer deltas of the same one).
    pub(super) fn extend(&mut self, deltas: impl Iterator<Item = Delta>) {
        // An upper bound; where there are many deltas, nearly all are visible.
        self.changes.reserve(deltas.size_hint().1.unwrap_or(0));
        self.changes.extend(deltas.map(|delta| (delta.number, delta.gained())));
    }

    /// Sorts the collected changes by document and keeps only the newest for each.
    pub(crate) fn settle(&mut self) {
        let ascending = self.changes.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if ascending {
            self.entry_change = self.changes.iter().map(|(_, gained)| if *gained { 1 } else { -1 }).sum();
            return;
        }
        // A stable sort, so that the newest of several changes to a document stays last.
        self.changes.sort_by_key(|change| change.0);
        let (mut kept, mut entry_change) = (0, 0);
        for of_document in self.changes.chunk_by(|left, right| left.0 == right.0) {
            // A document that first lost the term had it before.
            let (had_it, has_it) = (!of_document[0].1, of_document[of_document.len() - 1].1);
            entry_change += i64::from(has_it) - i64::from(had_it);
        }
        for index in 0..self.changes.len() {
            let is_newest = self.changes.get(index + 1).is_none_or(|next| next.0 != self.changes[index].0);
            if is_newest {
                self.changes[kept] = self.changes[index];
                kept += 1;
            }
        }
        self.changes.truncate(kept);
        self.entry_change = entry_change;
        debug_assert!(
            self.changes.is_sorted_by(|first, second| first.0 < second.0),
            "a settled overlay has one change per document, in order"
        );
    }

    /// Each changed document and whether it gained (`true`) or lost the term; sorted once settled.
    pub(crate) fn changes(&self) -> &[(DocumentNumber, bool)] {
        &self.changes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Removes all changes but keeps the allocation.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
    }

    /// Removes the changes of documents outside a window.
    pub(crate) fn narrow(&mut self, window: Window) {
        if window != Window::ALL {
            self.changes.retain(|(number, _)| window.has(number.chunk()));
        }
    }

    /// Applies a newer overlay on top of this one.
    pub(crate) fn stack(&mut self, newer: PostingOverlay) {
        self.changes.extend(newer.changes);
        self.settle();
    }
}

struct TermEntry {
    start: u32,
    length: u32,
    deltas: SmallVec<[Delta; 1]>,
}

/// The distinct terms of one path.
#[derive(Default)]
pub(super) struct PathTerms {
    keys: Vec<u8>,
    entries: Vec<TermEntry>,
    /// The hash of each term and its index in `entries`.
    table: HashTable<(u32, u32)>,
    hasher: hashbrown::DefaultHashBuilder,
    runs: Mutex<Runs>,
}

/// Term indices in key order: each run is sorted and at least twice as long as the next.
#[derive(Default)]
struct Runs {
    runs: SmallVec<[Arc<[u32]>; 4]>,
    sorted_count: usize,
}

impl PathTerms {
    /// No terms, with room for as many as there are in `full`.
    pub(super) fn with_room_of(full: &PathTerms) -> Self {
        PathTerms {
            keys: Vec::with_capacity(full.keys.len()),
            entries: Vec::with_capacity(full.entries.len()),
            table: HashTable::with_capacity(full.entries.len()),
            ..PathTerms::default()
        }
    }

    /// Records that `number` gained or lost the term `key`; returns the approximate memory used.
    pub(super) fn push(&mut self, key: &[u8], number: DocumentNumber, sequence: Sequence, gained: bool) -> usize {
        let hash = self.hash(key);
        let delta = Delta::new(number, sequence, gained);
        if let Some(index) = self.find(hash, key) {
            self.entries[index as usize].deltas.push(delta);
            return size_of::<Delta>();
        }
        let index = u32::try_from(self.entries.len()).expect("a memtable is sealed long before 2^32 terms");
        let start = u32::try_from(self.keys.len()).expect("a memtable is sealed long before 4 GiB of keys");
        self.keys.extend_from_slice(key);
        self.entries.push(TermEntry { start, length: key.len() as u32, deltas: SmallVec::from_buf([delta]) });
        self.table.insert_unique(widened(hash), (hash, index), |&(hash, _)| widened(hash));
        key.len() + size_of::<TermEntry>() + 12
    }

    fn hash(&self, key: &[u8]) -> u32 {
        use std::hash::BuildHasher;
        self.hasher.hash_one(key) as u32
    }

    fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        let found = self.table.find(widened(hash), |&(other, index)| other == hash && self.key(index) == key);
        found.map(|(_, index)| *index)
    }

    /// Adds the changes of the term `key` as of `at`.
    pub(super) fn overlay(&self, key: &[u8], at: Sequence, overlay: &mut PostingOverlay) {
        if let Some(index) = self.find(self.hash(key), key) {
            self.overlay_at(index, at, overlay);
        }
    }

    /// The number of distinct terms.
    pub(super) fn term_count(&self) -> usize {
        self.entries.len()
    }

    fn overlay_at(&self, index: u32, at: Sequence, overlay: &mut PostingOverlay) {
        overlay.extend(self.entries[index as usize].deltas.iter().copied().filter(|delta| delta.visible(at)));
    }

    fn key(&self, index: u32) -> &[u8] {
        self.entries[index as usize].key(&self.keys)
    }

    /// The sorted runs, after sorting the terms added since the last call.
    fn sorted_runs(&self) -> SmallVec<[Arc<[u32]>; 4]> {
        let mut runs = self.runs.lock();
        if runs.sorted_count < self.entries.len() {
            let tail = self.sorted(runs.sorted_count as u32..self.entries.len() as u32);
            runs.sorted_count = self.entries.len();
            runs.runs.push(tail);
            while let [.., older, newer] = runs.runs.as_slice() {
                if older.len() >= 2 * newer.len() {
                    break;
                }
                let merged = self.merge(older, newer);
                let kept = runs.runs.len() - 2;
                runs.runs.truncate(kept);
                runs.runs.push(merged);
            }
        }
        runs.runs.clone()
    }

    /// These terms in the order of their keys. Most keys differ in their first bytes, which are compared as one number.
    fn sorted(&self, indices: std::ops::Range<u32>) -> Arc<[u32]> {
        let mut terms: Vec<(u64, u32)> = indices.map(|index| (key_head(self.key(index)), index)).collect();
        terms
            .sort_unstable_by(|left, right| left.0.cmp(&right.0).then_with(|| self.key(left.1).cmp(self.key(right.1))));
        terms.into_iter().map(|(_, index)| index).collect()
    }

    fn merge(&self, left: &[u32], right: &[u32]) -> Arc<[u32]> {
        let mut merged = Vec::with_capacity(left.len() + right.len());
        let (mut l, mut r) = (0, 0);
        while l < left.len() && r < right.len() {
            if self.key(left[l]) < self.key(right[r]) {
                merged.push(left[l]);
                l += 1;
            } else {
                merged.push(right[r]);
                r += 1;
            }
        }
        merged.extend_from_slice(&left[l..]);
        merged.extend_from_slice(&right[r..]);
        debug_assert!(
            merged.is_sorted_by(|&first, &second| self.key(first) < self.key(second)),
            "a run holds distinct terms in key order"
        );
        merged.into()
    }

    /// The part of a sorted run within the bounds.
    fn clip(&self, run: &[u32], lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> std::ops::Range<usize> {
        let start = match lower {
            Bound::Unbounded => 0,
            Bound::Included(lower) => run.partition_point(|&index| self.key(index) < lower),
            Bound::Excluded(lower) => run.partition_point(|&index| self.key(index) <= lower),
        };
        let end = match upper {
            Bound::Unbounded => run.len(),
            Bound::Included(upper) => run.partition_point(|&index| self.key(index) <= upper),
            Bound::Excluded(upper) => run.partition_point(|&index| self.key(index) < upper),
        };
        start..end.max(start)
    }
}

impl TermEntry {
    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.start as usize..][..self.length as usize]
    }
}

/// A hash as hash tables need it, which use its upper and its lower bits.
fn widened(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Consecutive terms of one path with their changes. Reusing it saves an allocation per term.
#[derive(Default)]
pub(crate) struct TermBatch {
    keys: Vec<u8>,
    changes: Vec<(DocumentNumber, bool)>,
    /// Per term: the ends of its key and changes, and by how many documents they change its set.
    terms: Vec<(usize, usize, i64)>,
}

/// A term, the documents that gained (`true`) or lost it, and by how many they change its set.
pub(crate) struct ChangedTerm<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) changes: &'a [(DocumentNumber, bool)],
    pub(crate) entry_change: i64,
}

impl TermBatch {
    fn clear(&mut self) {
        self.keys.clear();
        self.changes.clear();
        self.terms.clear();
    }

    fn push(&mut self, key: &[u8], overlay: &PostingOverlay) {
        self.keys.extend_from_slice(key);
        self.changes.extend_from_slice(&overlay.changes);
        self.terms.push((self.keys.len(), self.changes.len(), overlay.entry_change));
    }

    /// The terms in the order of the walk.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ChangedTerm<'_>> {
        let starts = std::iter::once((0, 0)).chain(self.terms.iter().map(|&(key, change, _)| (key, change)));
        starts.zip(&self.terms).map(|((key_start, change_start), &(key_end, change_end, entry_change))| ChangedTerm {
            key: &self.keys[key_start..key_end],
            changes: &self.changes[change_start..change_end],
            entry_change,
        })
    }
}

/// A sorted run of terms and the range of it that is still to be returned.
type OpenRun = (Arc<[u32]>, std::ops::Range<usize>);

/// Scans the terms of one path in one memtable in key order, in batches, so that no lock is held between batches.
pub(crate) struct MemtableTermWalk {
    memtable: Arc<Memtable>,
    path: PathNumber,
    at: Sequence,
    direction: Direction,
    runs: SmallVec<[OpenRun; 4]>,
    batch: std::vec::IntoIter<(Vec<u8>, PostingOverlay)>,
}

/// Terms fetched under one lock.
const WALK_BATCH_COUNT: usize = 128;

impl MemtableTermWalk {
    /// Starts at the first term within the bounds, in `direction`, as of `at`.
    pub(crate) fn new(
        memtable: Arc<Memtable>,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        at: Sequence,
    ) -> Self {
        let runs = match memtable.inner.read().paths.get(&path) {
            None => SmallVec::new(),
            Some(terms) => terms
                .sorted_runs()
                .into_iter()
                .map(|run| {
                    let range = terms.clip(&run, lower, upper);
                    (run, range)
                })
                .filter(|(_, range)| !range.is_empty())
                .collect(),
        };
        MemtableTermWalk { memtable, path, at, direction, runs, batch: Vec::new().into_iter() }
    }

    /// Fills `batch` with the next terms; returns whether there are any.
    pub(crate) fn next_batch(&mut self, batch: &mut TermBatch) -> bool {
        batch.clear();
        let inner = self.memtable.inner.read();
        let Some(terms) = inner.paths.get(&self.path) else { return false };
        let mut overlay = PostingOverlay::default();
        while batch.terms.len() < WALK_BATCH_COUNT {
            let Some(index) = take_next(terms, &mut self.runs, self.direction) else { break };
            overlay.clear();
            terms.overlay_at(index, self.at, &mut overlay);
            if !overlay.is_empty() {
                overlay.settle();
                batch.push(terms.key(index), &overlay);
            }
        }
        !batch.terms.is_empty()
    }

    fn fill(&mut self) {
        let mut batch = TermBatch::default();
        self.next_batch(&mut batch);
        let owned = |term: ChangedTerm<'_>| {
            let overlay = PostingOverlay { changes: term.changes.to_vec(), entry_change: term.entry_change };
            (term.key.to_vec(), overlay)
        };
        self.batch = batch.iter().map(owned).collect::<Vec<_>>().into_iter();
    }
}

/// Removes and returns the next term of the runs in `direction`.
fn take_next(terms: &PathTerms, runs: &mut SmallVec<[OpenRun; 4]>, direction: Direction) -> Option<u32> {
    let head = |(run, range): &OpenRun| match direction {
        Direction::Ascending => run[range.start],
        Direction::Descending => run[range.end - 1],
    };
    let preferred = match direction {
        Direction::Ascending => Ordering::Less,
        Direction::Descending => Ordering::Greater,
    };
    let mut best: Option<usize> = None;
    for (at, run) in runs.iter().enumerate() {
        if run.1.is_empty() {
            continue;
        }
        if best.is_none_or(|best| terms.key(head(run)).cmp(terms.key(head(&runs[best]))) == preferred) {
            best = Some(at);
        }
    }
    let best = best?;
    let index = head(&runs[best]);
    match direction {
        Direction::Ascending => runs[best].1.start += 1,
        Direction::Descending => runs[best].1.end -= 1,
    }
    Some(index)
}

impl Iterator for MemtableTermWalk {
    type Item = (Vec<u8>, PostingOverlay);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(next) = self.batch.next() {
            return Some(next);
        }
        self.fill();
        self.batch.next()
    }
}
