//! The ids of a memtable in their order, made when somebody asks for a range of them: writers pay for a number appended to a list.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::index::DocumentNumber;
use crate::revision::DocumentId;

/// What an id costs here: its place in the map, and its share of the map's free places. Measured, not exact.
pub(super) const ORDERED_BYTES: usize = 48;

/// The ids that were put in order so far.
#[derive(Default)]
pub(super) struct IdOrder {
    numbers: BTreeMap<ById, DocumentNumber>,
}

/// An id that is compared by its bytes.
#[derive(Debug, Clone)]
struct ById(DocumentId);

impl IdOrder {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Adds ids that are not here yet. Costs a look-up for each; or a walk over all of them, if these are many.
    pub(super) fn add(&mut self, ids: impl ExactSizeIterator<Item = (DocumentId, DocumentNumber)>) {
        /// A look-up costs as much as so many steps of a walk.
        const STEPS: usize = 8;
        let is_few = ids.len() < self.len() / STEPS;
        let added = ids.map(|(id, number)| (ById(id), number));
        match is_few {
            true => self.numbers.extend(added),
            false => self.numbers.append(&mut added.collect()),
        }
    }

    /// The numbers of the ids from the bytes `lower` on, in the order of ids, up to the first whose bytes are past the end.
    pub(super) fn between(
        &self,
        lower: &[u8],
        is_past: impl Fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = DocumentNumber> {
        let from = self.numbers.range::<[u8], _>((Bound::Included(lower), Bound::Unbounded));
        from.take_while(move |(id, _)| !is_past((*id).borrow())).map(|(_, number)| *number)
    }
}

impl Borrow<[u8]> for ById {
    fn borrow(&self) -> &[u8] {
        self.0.as_str().as_bytes()
    }
}

impl Ord for ById {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_str().as_bytes().cmp(other.0.as_str().as_bytes())
    }
}

impl PartialOrd for ById {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ById {}
