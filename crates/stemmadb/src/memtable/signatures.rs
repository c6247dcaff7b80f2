//! Presence part of a memtable: the (path, presence) pairs that documents gained or lost.
//!
//! Documents with the same fields share one list of pairs, their *signature*, so that a write costs one lookup and one
//! push instead of one for each path. The signatures that contain a pair are found by an index, which is extended when
//! it is first needed: many signatures with many pairs each must not be searched for every pair.

use std::hash::BuildHasher;

use hashbrown::{HashMap, HashTable};
use smallvec::SmallVec;

use super::terms::{Delta, PostingOverlay};
use crate::index::{DocumentNumber, PathNumber, Presence};
use crate::revision::Sequence;
use crate::sync::Mutex;

type Pair = (PathNumber, Presence);

/// Memory used by a signature in addition to its pairs, and by each of its pairs in the index. Approximate.
const SIGNATURE_OVERHEAD_BYTES: usize = 96;
const INDEXED_PAIR_BYTES: usize = 24;

#[derive(Default)]
pub(super) struct Signatures {
    signatures: Vec<Signature>,
    /// Indices of `signatures` by the hash of their pairs.
    table: HashTable<u32>,
    hasher: hashbrown::DefaultHashBuilder,
    by_pair: Mutex<PairIndex>,
    delta_count: u64,
}

struct Signature {
    pairs: Box<[Pair]>,
    /// Numbered in insertion order: recovery may add several for one document at the same sequence, and their order
    /// matters.
    deltas: Vec<(u64, Delta)>,
}

/// The signatures that contain each pair, of the first `signature_count` signatures.
#[derive(Default)]
struct PairIndex {
    signature_count: usize,
    containing: HashMap<Pair, SmallVec<[u32; 2]>>,
}

impl Signatures {
    /// Records that `number` gained or lost every pair of `signature`; returns the approximate memory used.
    pub(super) fn push(
        &mut self,
        signature: &[Pair],
        number: DocumentNumber,
        sequence: Sequence,
        gained: bool,
    ) -> usize {
        if signature.is_empty() {
            return 0;
        }
        debug_assert!(signature.is_sorted(), "equal signatures have the same order");
        let delta = (self.delta_count, Delta::new(number, sequence, gained));
        self.delta_count += 1;
        let hash = self.hasher.hash_one(signature);
        let (signatures, hasher) = (&mut self.signatures, &self.hasher);
        if let Some(&index) = self.table.find(hash, |&index| *signatures[index as usize].pairs == *signature) {
            signatures[index as usize].deltas.push(delta);
            return size_of_val(&delta);
        }
        let index = u32::try_from(signatures.len()).expect("a memtable is sealed long before 2^32 signatures");
        signatures.push(Signature { pairs: signature.into(), deltas: vec![delta] });
        self.table.insert_unique(hash, index, |&index| hasher.hash_one(&*signatures[index as usize].pairs));
        size_of_val(signature) + INDEXED_PAIR_BYTES * signature.len() + SIGNATURE_OVERHEAD_BYTES
    }

    /// Adds the changes of (`path`, `presence`) as of `at`.
    pub(super) fn overlay(&self, path: PathNumber, presence: Presence, at: Sequence, overlay: &mut PostingOverlay) {
        let containing = self.containing((path, presence));
        #[cfg(test)]
        tests::VISITED.with(|visited| visited.set(visited.get() + containing.len() as u64));
        let deltas = |index: &u32| &self.signatures[*index as usize].deltas;
        let visible = |index: &u32| deltas(index).iter().copied().filter(|(_, delta)| delta.visible(at));
        if let [only] = &containing[..] {
            return overlay.extend(visible(only).map(|(_, delta)| delta));
        }
        let mut found = Vec::with_capacity(containing.iter().map(|index| deltas(index).len()).sum());
        found.extend(containing.iter().flat_map(visible));
        // The newest change to a document must come last.
        if !found.windows(2).all(|pair| pair[0].1.number < pair[1].1.number) {
            found.sort_unstable_by_key(|(order, delta)| (delta.number, *order));
        }
        overlay.extend(found.into_iter().map(|(_, delta)| delta));
    }

    /// The signatures that contain a pair.
    fn containing(&self, pair: Pair) -> SmallVec<[u32; 2]> {
        let mut index = self.by_pair.lock();
        let new = index.signature_count..self.signatures.len();
        for number in new {
            for pair in &self.signatures[number].pairs {
                index.containing.entry(*pair).or_default().push(number as u32);
            }
        }
        index.signature_count = self.signatures.len();
        index.containing.get(&pair).cloned().unwrap_or_default()
    }

    /// Every pair that occurs, ascending.
    pub(super) fn all(&self) -> Vec<Pair> {
        let mut all: Vec<_> = self.signatures.iter().flat_map(|signature| signature.pairs.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Database, Durability, Object, Options, Value};

    thread_local! {
        /// How many signatures this thread has read.
        pub(super) static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    /// Reading the paths after a bulk insert of documents without a common field took time quadratic in their number.
    #[test]
    fn a_pair_visits_only_the_signatures_that_contain_it() {
        let mut signatures = Signatures::default();
        let pair = |path: u32| (PathNumber(path), Presence::Number);
        for document in 1..=200_u32 {
            let own = (0..10).map(|field| pair(document * 10 + field));
            let pairs: Vec<Pair> = [pair(1)].into_iter().chain(own).collect();
            signatures.push(&pairs, DocumentNumber(u64::from(document)), Sequence(u64::from(document)), true);
            assert_eq!(signatures.containing(pair(1)).len(), document as usize);
        }
        for (path, presence) in signatures.all() {
            let containing = signatures.containing((path, presence));
            assert_eq!(containing.len(), if path.0 == 1 { 200 } else { 1 });
            let mut overlay = PostingOverlay::default();
            signatures.overlay(path, presence, Sequence(100), &mut overlay);
            let visible = if path.0 == 1 { 100 } else { usize::from(path.0 / 10 <= 100) };
            assert_eq!(overlay.changes().len(), visible);
        }
        assert!(signatures.containing((PathNumber(1), Presence::String)).is_empty());
    }

    /// Listing the paths of documents with ten fields of their own read every signature for every path, and so
    /// did each checkpoint while they were written.
    #[test]
    fn listing_and_writing_many_paths_reads_each_signature_a_few_times() {
        const DOCUMENTS: u64 = 1_000;
        const PATHS: u64 = DOCUMENTS * 10;
        let db = Database::in_memory_with(Options::new().durability(Durability::None).background(false)).unwrap();
        VISITED.set(0);
        for document in 0..DOCUMENTS {
            let body: Object = (0..10).map(|field| (format!("f{document}x{field}"), Value::from(field))).collect();
            db.insert(&format!("d{document}"), &Value::Object(body)).unwrap();
        }
        assert!(VISITED.get() <= 4 * PATHS, "inserts read {} signatures", VISITED.get());
        VISITED.set(0);
        assert_eq!(db.indexes().paths().unwrap().len() as u64, PATHS);
        assert!(VISITED.get() <= 4 * PATHS, "listing read {} signatures", VISITED.get());
        VISITED.set(0);
        db.maintenance().checkpoint().unwrap();
        assert!(VISITED.get() <= 4 * PATHS, "a checkpoint read {} signatures", VISITED.get());
    }
}
