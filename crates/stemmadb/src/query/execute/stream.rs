//! Rows in no particular order, met on a walk over the values of one condition: a limit stops the walk, however many documents
//! meet the condition.
//!
//! Documents come value by value, those of one value by number; at last, by number, those that meet the condition with
//! something that is not walked (arrays, objects) and those whose terms are incomplete.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::cursor::{Filtered, Hit, Need, Place};
use super::evaluate::{Answer, evaluate, evaluate_in};
use super::values;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, Window};
use crate::query::language::interval::KeyRange;
use crate::query::plan::{Drive, Node};
use crate::query::source::Source;
use crate::tree::Direction;

/// Stands for the documents after all values: above every value's key.
const TAIL: &[u8] = &[u8::MAX];

/// A walk under way.
pub(in crate::query) struct Stream {
    drive: Drive,
    /// What was returned last, or passed over.
    after: Option<(Arc<[u8]>, DocumentNumber)>,
    others: Others,
    tail: Option<Answer>,
    is_finished: bool,
}

/// What the conditions leave whose values are not walked.
pub(in crate::query) enum Others {
    /// Everything, or it is not known.
    All,
    Known(DocumentSet),
    ByChunk(ByChunk),
}

/// Conditions that are evaluated for a chunk when documents of it are met.
#[derive(Default)]
pub(in crate::query) struct ByChunk(RefCell<HashMap<u64, Answer>>);

impl Stream {
    /// Gets ready to walk, after a position. Reads nothing.
    pub(in crate::query) fn start(drive: Drive, after: Option<(Arc<[u8]>, DocumentNumber)>, others: Others) -> Self {
        Stream { drive, after, others, tail: None, is_finished: false }
    }

    /// The next hits, at most `want`; none at the end.
    pub(in crate::query) fn next_hits(
        &mut self,
        filtered: &mut Filtered<impl Source>,
        want: usize,
    ) -> Result<Vec<Hit>> {
        if filtered.settle(&self.drive.rest)? {
            self.others = filtered.documents().map_or(Others::All, Others::Known);
            // It was collected before the other conditions were known.
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

    pub(in crate::query) fn drive(&self) -> &Drive {
        &self.drive
    }

    fn values(&mut self, filtered: &Filtered<impl Source>, want: usize, hits: &mut Vec<Hit>) -> Result<()> {
        let all = KeyRange::of_scalars();
        let lower = self.after.as_ref().map_or(all.lower, |(key, _)| key.to_vec());
        let within = KeyRange { lower, upper: all.upper };
        let (drive, others, after) = (&self.drive, &self.others, &mut self.after);
        let visit: &mut values::Visit<'_> = &mut |key, posting, is_sure| {
            let from = match after {
                Some((last, number)) if **last == *key => match number.0.checked_add(1) {
                    Some(next) => DocumentNumber(next),
                    None => return Ok(ControlFlow::Continue(())),
                },
                _ => DocumentNumber::MIN,
            };
            let key: Arc<[u8]> = key.into();
            let least = if is_sure { Need::Nothing } else { Need::Residual };
            let place = Place::Value { ordinal: drive.ordinal, key: key.clone() };
            let mut has_more = true;
            while has_more {
                let mut members;
                (members, has_more) = posting.take_some(from, (want - hits.len()) as u64)?;
                members.and_not_with(filtered.overflow());
                let members = others.narrow(Answer::certain(members), filtered, &drive.rest)?;
                for number in members.candidates().range(from, DocumentNumber::MAX) {
                    let need = need(filtered, &members, number).max(least);
                    hits.push(Hit { number, need, place: place.clone() });
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
        let looked_at = values::walk(&filtered.source, drive.path, &drive.values, &within, direction, visit)?;
        filtered.walked(looked_at);
        Ok(())
    }

    fn tail(&mut self, filtered: &Filtered<impl Source>, want: usize, hits: &mut Vec<Hit>) -> Result<()> {
        let tail = match self.tail.take() {
            Some(tail) => tail,
            None => {
                let mut tail = evaluate(&self.drive.others, &filtered.source, None)?;
                tail.certain.and_not_with(filtered.overflow());
                tail.maybe.and_not_with(filtered.overflow());
                self.others.narrow(tail, filtered, &self.drive.rest)?
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
            let place = Place::Value { ordinal: self.drive.ordinal, key: key.clone() };
            hits.push(Hit { number, need: need(filtered, &tail, number), place });
        }
        match hits.last() {
            Some(last) => self.after = Some((key, last.number)),
            None => self.is_finished = true,
        }
        self.tail = Some(tail);
        Ok(())
    }
}

/// What is still to be checked on a document that the walk met among `members`, or that has incomplete terms.
fn need(filtered: &Filtered<impl Source>, members: &Answer, number: DocumentNumber) -> Need {
    if members.maybe.is_empty() && filtered.overflow().is_empty() {
        return filtered.hit(number).need;
    }
    match members.has(number) {
        None => Need::Whole,
        Some(false) => filtered.hit(number).need,
        Some(true) => filtered.hit(number).need.max(if members.is_undecided { Need::Whole } else { Need::Residual }),
    }
}

impl Others {
    /// What is left of documents that were met.
    fn narrow(&self, met: Answer, filtered: &Filtered<impl Source>, rest: &Node) -> Result<Answer> {
        match self {
            Others::All => Ok(met),
            Others::Known(documents) => {
                let Answer { mut certain, mut maybe, is_undecided } = met;
                certain.and_with(documents);
                maybe.and_with(documents);
                Ok(Answer { certain, maybe, is_undecided })
            }
            Others::ByChunk(others) => others.narrow(met, rest, &filtered.source),
        }
    }
}

impl ByChunk {
    /// About how many documents meet the conditions, if those of the first chunk are like the others.
    pub(in crate::query) fn estimate(&self, rest: &Node, source: &impl Source) -> Result<u64> {
        let first = self.of(0, rest, source)?;
        let chunk_count = source.live_len()?.div_ceil(Window::CHUNK_LENGTH);
        Ok((first.certain.len() + first.maybe.len()) * chunk_count)
    }

    /// Whether a document certainly meets the conditions.
    pub(in crate::query) fn has(&self, number: DocumentNumber, rest: &Node, source: &impl Source) -> Result<bool> {
        if let Some(known) = self.0.borrow().get(&number.chunk()) {
            return Ok(known.certain.contains(number));
        }
        Ok(self.of(number.chunk(), rest, source)?.certain.contains(number))
    }

    fn of(&self, chunk: u64, rest: &Node, source: &impl Source) -> Result<Answer> {
        if let Some(known) = self.0.borrow().get(&chunk) {
            return Ok(known.clone());
        }
        let answer = evaluate_in(rest, source, Window::of(chunk))?;
        self.0.borrow_mut().insert(chunk, answer.clone());
        Ok(answer)
    }

    fn narrow(&self, met: Answer, rest: &Node, source: &impl Source) -> Result<Answer> {
        let chunks: SmallVec<[u64; 8]> = met.candidates().chunks().map(|(chunk, _)| chunk).collect();
        if let [only] = *chunks {
            return Ok(met.and(self.of(only, rest, source)?));
        }
        let mut left = Answer::default();
        for chunk in chunks {
            let met = met.clone().within(Window::of(chunk));
            left.append(met.and(self.of(chunk, rest, source)?));
        }
        Ok(left)
    }
}
