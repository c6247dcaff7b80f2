//! Sorted document ids of a memtable, built when a range is first read: a write only appends a number to a list.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::index::DocumentNumber;
use crate::revision::DocumentId;

/// Memory per id: its entry in the map and its share of the map's unused capacity. Measured, not exact.
pub(super) const ORDERED_BYTES: usize = 48;

/// The ids sorted so far.
#[derive(Default)]
pub(super) struct IdOrder {
    numbers: BTreeMap<IdBytes, DocumentNumber>,
}

/// An id that is compared by its bytes.
#[derive(Debug, Clone)]
struct IdBytes(DocumentId);

impl IdOrder {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Adds new ids. Cost: one lookup for each, or one pass over all ids if there are many new ones.
    pub(super) fn add(&mut self, ids: impl ExactSizeIterator<Item = (DocumentId, DocumentNumber)>) {
        /// A lookup costs as much as this many steps of a pass.
        const STEPS: usize = 8;
        let is_few = ids.len() < self.len() / STEPS;
        let added = ids.map(|(id, number)| (IdBytes(id), number));
        match is_few {
            true => self.numbers.extend(added),
            false => self.numbers.append(&mut added.collect()),
        }
    }

    /// The document numbers in id order, from the first id whose bytes are not below `lower` to the last one before
    /// `is_past`.
    pub(super) fn between(
        &self,
        lower: &[u8],
        is_past: impl Fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = DocumentNumber> {
        let from = self.numbers.range::<[u8], _>((Bound::Included(lower), Bound::Unbounded));
        from.take_while(move |(id, _)| !is_past((*id).borrow())).map(|(_, number)| *number)
    }
}

impl Borrow<[u8]> for IdBytes {
    fn borrow(&self) -> &[u8] {
        self.0.as_str().as_bytes()
    }
}

impl Ord for IdBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_str().as_bytes().cmp(other.0.as_str().as_bytes())
    }
}

impl PartialOrd for IdBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for IdBytes {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for IdBytes {}
