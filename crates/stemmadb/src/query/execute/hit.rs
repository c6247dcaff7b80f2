//! What comes next in a result: documents that match, or hits, which say what is still to be checked and where they stand.

use std::sync::Arc;

use crate::index::DocumentNumber;
use crate::query::language::page_token::Position;
use crate::query::language::sort::Sorted;

/// One document of a result.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) number: DocumentNumber,
    pub(crate) need: Need,
    pub(crate) place: Place,
}

/// What comes next in a result.
pub(crate) enum Batch {
    /// Documents that match, in the order of their numbers.
    Sure(Vec<DocumentNumber>),
    Hits(Vec<Hit>),
}

/// Where a hit stands in the order of the result.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// By number.
    Number,
    /// By the values of a condition, then by number.
    Value { ordinal: u8, key: Arc<[u8]> },
    /// In the order that was asked for.
    Sorted(Sorted),
}

/// What is still to be checked on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    Nothing,
    /// What the index could not decide.
    Residual,
    /// The whole selector.
    Whole,
}

impl Hit {
    pub(in crate::query) fn sure(number: DocumentNumber) -> Self {
        Hit { number, need: Need::Nothing, place: Place::Number }
    }
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        match self {
            Batch::Sure(numbers) => numbers.len(),
            Batch::Hits(hits) => hits.len(),
        }
    }

    /// Leaves out the first `count`.
    pub(crate) fn skip(&mut self, count: usize) {
        match self {
            Batch::Sure(numbers) => drop(numbers.drain(..count)),
            Batch::Hits(hits) => drop(hits.drain(..count)),
        }
    }

    /// Keeps the first `count` at most.
    pub(crate) fn truncate(&mut self, count: usize) {
        match self {
            Batch::Sure(numbers) => numbers.truncate(count),
            Batch::Hits(hits) => hits.truncate(count),
        }
    }

    /// Where one of them stands.
    pub(crate) fn position(&self, at: usize) -> Option<Position> {
        match self {
            Batch::Sure(numbers) => numbers.get(at).copied().map(Position::Number),
            Batch::Hits(hits) => hits.get(at).map(Position::of),
        }
    }

    pub(in crate::query) fn last_number(&self) -> Option<DocumentNumber> {
        match self {
            Batch::Sure(numbers) => numbers.last().copied(),
            Batch::Hits(hits) => hits.last().map(|hit| hit.number),
        }
    }
}
