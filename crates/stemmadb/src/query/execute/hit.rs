//! Hits: the candidates that a cursor returns, with their position and the check they still need.

use std::sync::Arc;

use crate::index::DocumentNumber;
use crate::query::language::page_token::Position;
use crate::query::language::sort::SortedPosition;

/// One candidate document of a result.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) number: DocumentNumber,
    pub(crate) recheck: Recheck,
    pub(crate) position: HitPosition,
}

/// The next documents of a result.
pub(crate) enum Batch {
    /// Documents that match, in row order.
    Verified(Vec<DocumentNumber>),
    Hits(Vec<Hit>),
}

/// The position of a hit in the order of the result.
#[derive(Clone, Debug)]
pub(crate) enum HitPosition {
    /// By number.
    Number,
    /// By the values of a condition, then by number.
    Value { ordinal: u8, key: Arc<[u8]> },
    /// By the requested sort.
    Sorted(SortedPosition),
}

/// The check that a record still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Recheck {
    None,
    /// The conditions that the index could not decide.
    Residual,
    /// The whole selector.
    Whole,
}

impl Hit {
    pub(in crate::query) fn verified(number: DocumentNumber) -> Self {
        Hit { number, recheck: Recheck::None, position: HitPosition::Number }
    }
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        match self {
            Batch::Verified(numbers) => numbers.len(),
            Batch::Hits(hits) => hits.len(),
        }
    }

    /// Removes the first `count` documents.
    pub(crate) fn skip(&mut self, count: usize) {
        match self {
            Batch::Verified(numbers) => drop(numbers.drain(..count)),
            Batch::Hits(hits) => drop(hits.drain(..count)),
        }
    }

    /// Keeps at most the first `count` documents.
    pub(crate) fn truncate(&mut self, count: usize) {
        match self {
            Batch::Verified(numbers) => numbers.truncate(count),
            Batch::Hits(hits) => hits.truncate(count),
        }
    }

    /// The position of one of the documents.
    pub(crate) fn position(&self, at: usize) -> Option<Position> {
        match self {
            Batch::Verified(numbers) => numbers.get(at).copied().map(Position::Number),
            Batch::Hits(hits) => hits.get(at).map(Position::of),
        }
    }

    pub(in crate::query) fn last_number(&self) -> Option<DocumentNumber> {
        match self {
            Batch::Verified(numbers) => numbers.last().copied(),
            Batch::Hits(hits) => hits.last().map(|hit| hit.number),
        }
    }
}
