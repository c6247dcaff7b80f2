//! Unsorted rows by walking the values of one condition: the walk stops at the limit, however many documents meet the
//! condition.
//!
//! Documents come value by value and, within a value, by number. The *tail* follows, by number: documents that meet the
//! condition with a value that is not walked (arrays, objects), and those whose terms are incomplete.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::cursor::{Filtered, Hit, HitPosition, Recheck};
use super::evaluate::{MatchSet, evaluate, evaluate_in};
use super::values;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, Window};
use crate::query::language::interval::KeyRange;
use crate::query::plan::{DrivingCondition, Node};
use crate::query::source::{IndexStatistics, QuerySource};
use crate::tree::Direction;

/// The key of the tail: above every value's key.
const TAIL: &[u8] = &[u8::MAX];

/// State of the walk.
pub(in crate::query) struct Stream {
    driving: DrivingCondition,
    /// The last document that was returned or skipped.
    after: Option<(Arc<[u8]>, DocumentNumber)>,
    others: OtherConditions,
    tail: Option<MatchSet>,
    is_finished: bool,
}

/// The documents that meet the other conditions, whose values are not walked.
pub(in crate::query) enum OtherConditions {
    /// Every document, or the conditions were not evaluated.
    All,
    Documents(DocumentSet),
    Chunked(ChunkedFilter),
}

/// Conditions evaluated chunk by chunk, when a document of the chunk is visited first.
#[derive(Default)]
pub(in crate::query) struct ChunkedFilter(RefCell<HashMap<u64, MatchSet>>);

impl Stream {
    /// Prepares the walk after a position; reads nothing.
    pub(in crate::query) fn start(
        driving: DrivingCondition,
        after: Option<(Arc<[u8]>, DocumentNumber)>,
        others: OtherConditions,
    ) -> Self {
        Stream { driving, after, others, tail: None, is_finished: false }
    }

    /// Returns at most `want` further hits; none at the end.
    pub(in crate::query) fn next_hits(
        &mut self,
        filtered: &mut Filtered<impl QuerySource>,
        want: usize,
    ) -> Result<Vec<Hit>> {
        if filtered.evaluate_deferred(&self.driving.rest)? {
            self.others = filtered.documents().map_or(OtherConditions::All, OtherConditions::Documents);
            // The tail was collected before the other conditions were evaluated.
            self.tail = None;
        }
        let mut hits = Vec::new();
        if self.tail.is_none() && self.after.as_ref().is_none_or(|(key, _)| **key != *TAIL) {
            self.values(filtered, want, &mut hits)?;
        }
        if hits.is_empty() && !self.is_finished {
            self.tail(filtered, want, &mut hits)?;
        }
        Ok(hits)
    }

    pub(in crate::query) fn driving(&self) -> &DrivingCondition {
        &self.driving
    }

    fn values(&mut self, filtered: &Filtered<impl QuerySource>, want: usize, hits: &mut Vec<Hit>) -> Result<()> {
        let all = KeyRange::of_scalars();
        let lower = self.after.as_ref().map_or(all.lower, |(key, _)| key.to_vec());
        let within = KeyRange { lower, upper: all.upper };
        let (driving, others, after) = (&self.driving, &self.others, &mut self.after);
        let visit: &mut values::VisitMatch<'_> = &mut |key, posting, is_certain| {
            let from = match after {
                Some((last, number)) if **last == *key => match number.0.checked_add(1) {
                    Some(next) => DocumentNumber(next),
                    None => return Ok(ControlFlow::Continue(())),
                },
                _ => DocumentNumber::MIN,
            };
            let key: Arc<[u8]> = key.into();
            let least = if is_certain { Recheck::None } else { Recheck::Residual };
            let position = HitPosition::Value { ordinal: driving.ordinal, key: key.clone() };
            let mut has_more = true;
            while has_more {
                let mut members;
                (members, has_more) = posting.take_some(from, (want - hits.len()) as u64)?;
                members.and_not_with(filtered.overflow());
                let members = others.narrow(MatchSet::certain(members), filtered, &driving.rest)?;
                for number in members.candidates().range(from, DocumentNumber::MAX) {
                    let recheck = recheck(filtered, &members, number).max(least);
                    hits.push(Hit { number, recheck, position: position.clone() });
                    if hits.len() >= want {
                        *after = Some((key, number));
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            *after = Some((key, DocumentNumber::MAX));
            Ok(ControlFlow::Continue(()))
        };
        let direction = Direction::Ascending;
        let visited = values::walk(&filtered.source, driving.path, &driving.values, &within, direction, visit)?;
        filtered.walked(visited);
        Ok(())
    }

    fn tail(&mut self, filtered: &Filtered<impl QuerySource>, want: usize, hits: &mut Vec<Hit>) -> Result<()> {
        let tail = match self.tail.take() {
            Some(tail) => tail,
            None => {
                let mut tail = evaluate(&self.driving.others, &filtered.source, None)?;
                tail.certain.and_not_with(filtered.overflow());
                tail.maybe.and_not_with(filtered.overflow());
                self.others.narrow(tail, filtered, &self.driving.rest)?
            }
        };
        let mut candidates = tail.candidates().into_owned();
        candidates.or_with(filtered.overflow());
        let from = match &self.after {
            Some((key, number)) if **key == *TAIL => number.0.checked_add(1).map(DocumentNumber),
            _ => Some(DocumentNumber::MIN),
        };
        let key: Arc<[u8]> = TAIL.into();
        for number in from.iter().flat_map(|from| candidates.range(*from, DocumentNumber::MAX)).take(want) {
            let position = HitPosition::Value { ordinal: self.driving.ordinal, key: key.clone() };
            hits.push(Hit { number, recheck: recheck(filtered, &tail, number), position });
        }
        match hits.last() {
            Some(last) => self.after = Some((key, last.number)),
            None => self.is_finished = true,
        }
        self.tail = Some(tail);
        Ok(())
    }
}

/// The recheck of a document that the walk found among `members`, or whose terms are incomplete.
fn recheck(filtered: &Filtered<impl QuerySource>, members: &MatchSet, number: DocumentNumber) -> Recheck {
    if members.maybe.is_empty() && filtered.overflow().is_empty() {
        return filtered.hit(number).recheck;
    }
    match members.has(number) {
        None => Recheck::Whole,
        Some(false) => filtered.hit(number).recheck,
        Some(true) => filtered.hit(number).recheck.max(if members.needs_whole_selector {
            Recheck::Whole
        } else {
            Recheck::Residual
        }),
    }
}

impl OtherConditions {
    /// Keeps the documents that meet the other conditions.
    fn narrow(&self, found: MatchSet, filtered: &Filtered<impl QuerySource>, rest: &Node) -> Result<MatchSet> {
        match self {
            OtherConditions::All => Ok(found),
            OtherConditions::Documents(documents) => {
                let MatchSet { mut certain, mut maybe, needs_whole_selector } = found;
                certain.and_with(documents);
                maybe.and_with(documents);
                Ok(MatchSet { certain, maybe, needs_whole_selector })
            }
            OtherConditions::Chunked(others) => others.narrow(found, rest, &filtered.source),
        }
    }
}

impl ChunkedFilter {
    /// Estimates how many documents meet the conditions, by extrapolating from the first chunk.
    pub(in crate::query) fn estimate(&self, rest: &Node, source: &impl IndexStatistics) -> Result<u64> {
        let first = self.chunk_matches(0, rest, source)?;
        let chunk_count = source.live_len()?.div_ceil(Window::CHUNK_LENGTH);
        Ok((first.certain.len() + first.maybe.len()) * chunk_count)
    }

    /// Whether a document certainly meets the conditions.
    pub(in crate::query) fn has(
        &self,
        number: DocumentNumber,
        rest: &Node,
        source: &impl IndexStatistics,
    ) -> Result<bool> {
        if let Some(cached) = self.0.borrow().get(&number.chunk()) {
            return Ok(cached.certain.contains(number));
        }
        Ok(self.chunk_matches(number.chunk(), rest, source)?.certain.contains(number))
    }

    fn chunk_matches(&self, chunk: u64, rest: &Node, source: &impl IndexStatistics) -> Result<MatchSet> {
        if let Some(cached) = self.0.borrow().get(&chunk) {
            return Ok(cached.clone());
        }
        let match_set = evaluate_in(rest, source, Window::of(chunk))?;
        self.0.borrow_mut().insert(chunk, match_set.clone());
        Ok(match_set)
    }

    fn narrow(&self, found: MatchSet, rest: &Node, source: &impl IndexStatistics) -> Result<MatchSet> {
        let chunks: SmallVec<[u64; 8]> = found.candidates().chunks().map(|(chunk, _)| chunk).collect();
        if let [only] = *chunks {
            return Ok(found.and(self.chunk_matches(only, rest, source)?));
        }
        let mut left = MatchSet::default();
        for chunk in chunks {
            let found = found.clone().within(Window::of(chunk));
            left.append(found.and(self.chunk_matches(chunk, rest, source)?));
        }
        Ok(left)
    }
}
