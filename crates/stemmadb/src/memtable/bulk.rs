//! Bulk table: new documents and their terms, collected for the tree and not read before: what a rebuild uses instead
//! of a memtable.
//!
//! Nothing is looked up while it is filled. Terms are sorted once, each path on its own, when the table is full.

use hashbrown::HashMap;

use super::signatures::Signatures;
use super::terms::{ChangedTerm, PostingOverlay};
use super::{DOCUMENT_OVERHEAD_BYTES, DocumentState};
use crate::index::{DocumentNumber, DocumentTerms, PathNumber, Presence};
use crate::revision::Sequence;
use crate::tree::{common_prefix, key_head};

/// New documents and their terms.
#[derive(Default)]
pub(crate) struct BulkTable {
    documents: Vec<DocumentState>,
    paths: HashMap<PathNumber, BulkTerms>,
    signatures: Signatures,
    byte_count: usize,
}

impl BulkTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Approximate memory use in bytes.
    pub(crate) fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Adds a document that neither the tree nor a table had before; no terms if it is deleted.
    pub(crate) fn insert(&mut self, state: DocumentState, terms: &DocumentTerms) {
        self.byte_count += DOCUMENT_OVERHEAD_BYTES + state.id.as_str().len() + state.tree.heap_bytes();
        for term in terms.terms() {
            self.byte_count += self.paths.entry(term.path).or_default().push(term.key, state.number);
        }
        self.byte_count += self.signatures.push(terms.presence(), state.number, state.sequence, true);
        self.documents.push(state);
    }

    /// The documents, by number.
    pub(crate) fn sorted_documents(&mut self) -> &[DocumentState] {
        let is_sorted = self.documents.is_sorted_by(|left, right| left.number < right.number);
        if !is_sorted {
            self.documents.sort_unstable_by_key(|state| state.number);
        }
        &self.documents
    }

    /// The paths of its terms, ascending, each with the terms.
    pub(crate) fn take_paths(&mut self) -> Vec<(PathNumber, BulkTerms)> {
        let mut paths: Vec<_> = std::mem::take(&mut self.paths).into_iter().collect();
        paths.sort_unstable_by_key(|(path, _)| *path);
        paths
    }

    /// Every (path, presence) of its documents, ascending.
    pub(crate) fn presences(&self) -> Vec<(PathNumber, Presence)> {
        self.signatures.all()
    }

    /// Adds the documents that have `presence` at `path` to `overlay`.
    pub(crate) fn presence(&self, path: PathNumber, presence: Presence, overlay: &mut PostingOverlay) {
        self.signatures.overlay(path, presence, Sequence::EVERYTHING, overlay);
    }
}

/// How many terms are remembered to be found again. A path with few values stores each of them a few times only.
const RECENT_COUNT: usize = 256;

/// No term.
const NONE: u32 = u32::MAX;

/// The terms of one path and the documents that have them.
pub(crate) struct BulkTerms {
    keys: Vec<u8>,
    /// The end of each term's key in `keys`. The same term may occur several times.
    ends: Vec<u32>,
    /// A term and a document that has it, in the order of insertion.
    postings: Vec<(u32, DocumentNumber)>,
    /// By hash, the last term with it.
    recent: Box<[u32; RECENT_COUNT]>,
    hasher: hashbrown::DefaultHashBuilder,
}

impl Default for BulkTerms {
    fn default() -> Self {
        let (keys, ends, postings, hasher) = Default::default();
        BulkTerms { keys, ends, postings, recent: Box::new([NONE; RECENT_COUNT]), hasher }
    }
}

impl BulkTerms {
    /// Records that `number` has the term `key`; returns the memory used.
    fn push(&mut self, key: &[u8], number: DocumentNumber) -> usize {
        use std::hash::BuildHasher;
        let slot = self.hasher.hash_one(key) as usize % RECENT_COUNT;
        let recent = self.recent[slot];
        let is_new = recent == NONE || self.key(recent) != key;
        if is_new {
            self.recent[slot] = u32::try_from(self.ends.len()).expect("a table is full long before 2^32 terms");
            self.keys.extend_from_slice(key);
            self.ends.push(u32::try_from(self.keys.len()).expect("a table is full long before 4 GiB of keys"));
        }
        self.postings.push((self.recent[slot], number));
        size_of::<(u32, DocumentNumber)>() + if is_new { key.len() + size_of::<u32>() } else { 0 }
    }

    fn key(&self, term: u32) -> &[u8] {
        let end = self.ends[term as usize] as usize;
        let start = term.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        &self.keys[start..end]
    }

    /// The terms in the order of their keys, each once, with its documents.
    pub(crate) fn sorted(self) -> SortedTerms {
        let order = self.order();
        // The place of each term among the distinct ones, and the first occurrence of each of these.
        let mut places = vec![0_u32; order.len()];
        let mut distinct: Vec<u32> = Vec::new();
        for term in order {
            if distinct.last().is_none_or(|last| self.key(*last) != self.key(term)) {
                distinct.push(term);
            }
            places[term as usize] = distinct.len() as u32 - 1;
        }
        let mut ends = vec![0_usize; distinct.len() + 1];
        for (term, _) in &self.postings {
            ends[places[*term as usize] as usize + 1] += 1;
        }
        for place in 1..ends.len() {
            ends[place] += ends[place - 1];
        }
        // Now the start of each term's documents is at its place; filling them moves it to their end.
        let mut changes = vec![(DocumentNumber(0), true); self.postings.len()];
        for (term, number) in &self.postings {
            let next = &mut ends[places[*term as usize] as usize];
            changes[*next].0 = *number;
            *next += 1;
        }
        ends.pop();
        SortedTerms { terms: self, distinct, ends, changes }
    }

    /// The terms in the order of their keys.
    fn order(&self) -> Vec<u32> {
        let count = self.ends.len() as u32;
        // Keys are compared by the first bytes in which they differ.
        let first = self.key(0);
        let shared = (1..count).fold(first.len(), |shared, term| common_prefix(&first[..shared], self.key(term)));
        let mut terms: Vec<(u64, u32)> = (0..count).map(|term| (key_head(&self.key(term)[shared..]), term)).collect();
        if !terms.is_sorted_by(|left, right| left.0 < right.0) {
            terms.sort_unstable_by(|left, right| {
                left.0.cmp(&right.0).then_with(|| self.key(left.1).cmp(self.key(right.1)))
            });
        }
        terms.into_iter().map(|(_, term)| term).collect()
    }
}

/// The distinct terms of one path, in the order of their keys.
pub(crate) struct SortedTerms {
    terms: BulkTerms,
    distinct: Vec<u32>,
    /// Per term, where its changes end.
    ends: Vec<usize>,
    changes: Vec<(DocumentNumber, bool)>,
}

impl SortedTerms {
    pub(crate) fn len(&self) -> usize {
        self.distinct.len()
    }

    /// Calls `each` with every term.
    pub(crate) fn for_each<E>(&mut self, mut each: impl FnMut(ChangedTerm<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut start = 0;
        for (term, end) in self.distinct.iter().zip(&self.ends) {
            let changes = &mut self.changes[start..*end];
            start = *end;
            // Compaction may have moved records, and so changed their order.
            if !changes.is_sorted_by(|left, right| left.0 < right.0) {
                changes.sort_unstable();
            }
            each(ChangedTerm { key: self.terms.key(*term), entry_change: changes.len() as i64, changes })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn terms_are_grouped_and_sorted(
            pushed in prop::collection::vec((prop::collection::vec(0..3_u8, 0..12), any::<bool>()), 1..2_000),
        ) {
            let mut terms = BulkTerms::default();
            let mut expected: BTreeMap<Vec<u8>, Vec<(DocumentNumber, bool)>> = BTreeMap::new();
            let count = pushed.len() as u64;
            for (at, (key, is_moved)) in pushed.into_iter().enumerate() {
                let number = DocumentNumber(at as u64 + if is_moved { 0 } else { count });
                terms.push(&key, number);
                expected.entry(key).or_default().push((number, true));
            }
            expected.values_mut().for_each(|changes| changes.sort_unstable());
            let mut found = Vec::new();
            let mut sorted = terms.sorted();
            prop_assert_eq!(sorted.len(), expected.len());
            let visited: Result<(), ()> = sorted.for_each(|term| {
                assert_eq!(term.entry_change, term.changes.len() as i64);
                found.push((term.key.to_vec(), term.changes.to_vec()));
                Ok(())
            });
            prop_assert_eq!(visited, Ok(()));
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
