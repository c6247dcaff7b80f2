//! Rows in no particular order, met on a walk over the values of one condition: a limit stops the walk, however many documents
//! meet the condition.
//!
//! Documents come value by value, those of one value by number; at last, by number, those that meet the condition with
//! something that is not walked (arrays, objects) and those whose terms are incomplete.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::cursor::{Filtered, Hit, Need, Place};
use super::evaluate::{Answer, evaluate};
use super::interval::KeyRange;
use super::plan::Drive;
use super::source::Source;
use super::values;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet};
use crate::tree::Direction;

/// Stands for the documents after all values: above every value's key.
const TAIL: &[u8] = &[u8::MAX];

/// A walk under way.
pub(super) struct Stream {
    drive: Drive,
    /// What was returned last, or passed over.
    after: Option<(Arc<[u8]>, DocumentNumber)>,
    /// What the other conditions leave; none if they are not known, or leave everything.
    documents: Option<DocumentSet>,
    tail: Option<Answer>,
    is_finished: bool,
}

impl Stream {
    /// Gets ready to walk, after a position. Reads nothing.
    pub(super) fn start(
        filtered: &Filtered<impl Source>,
        drive: Drive,
        after: Option<(Arc<[u8]>, DocumentNumber)>,
    ) -> Self {
        Stream { drive, after, documents: filtered.documents(), tail: None, is_finished: false }
    }

    /// The next hits, at most `want`; none at the end.
    pub(super) fn next_hits(&mut self, filtered: &mut Filtered<impl Source>, want: usize) -> Result<Vec<Hit>> {
        if filtered.settle(&self.drive.rest)? {
            self.documents = filtered.documents();
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

    pub(super) fn drive(&self) -> &Drive {
        &self.drive
    }

    fn values(&mut self, filtered: &Filtered<impl Source>, want: usize, hits: &mut Vec<Hit>) -> Result<()> {
        let all = KeyRange::of_scalars();
        let lower = self.after.as_ref().map_or(all.lower, |(key, _)| key.to_vec());
        let within = KeyRange { lower, upper: all.upper };
        let ordinal = self.drive.ordinal;
        let (drive, documents, after) = (&self.drive, &self.documents, &mut self.after);
        let looked_at = values::walk(
            &filtered.source,
            drive.path,
            &drive.values,
            &within,
            Direction::Ascending,
            &mut |key, posting, is_sure| {
                let mut members = posting.take()?;
                members.and_not_with(filtered.overflow());
                if let Some(documents) = documents {
                    members.and_with(documents);
                }
                let from = match after {
                    Some((last, number)) if **last == *key => match number.0.checked_add(1) {
                        Some(next) => DocumentNumber(next),
                        None => return Ok(ControlFlow::Continue(())),
                    },
                    _ => DocumentNumber::MIN,
                };
                let key: Arc<[u8]> = key.into();
                for number in members.range(from, DocumentNumber::MAX) {
                    let hit = filtered.hit(number);
                    let need = if is_sure { hit.need } else { hit.need.max(Need::Residual) };
                    hits.push(Hit { number, need, place: Place::Value { ordinal, key: key.clone() } });
                    if hits.len() >= want {
                        *after = Some((key, number));
                        return Ok(ControlFlow::Break(()));
                    }
                }
                *after = Some((key, DocumentNumber::MAX));
                Ok(ControlFlow::Continue(()))
            },
        )?;
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
                if let Some(documents) = &self.documents {
                    tail.certain.and_with(documents);
                    tail.maybe.and_with(documents);
                }
                tail
            }
        };
        let mut candidates = tail.clone().possible();
        candidates.or_with(filtered.overflow());
        let from = match &self.after {
            Some((key, number)) if **key == *TAIL => number.0.checked_add(1).map(DocumentNumber),
            _ => Some(DocumentNumber::MIN),
        };
        let key: Arc<[u8]> = TAIL.into();
        for number in from.iter().flat_map(|from| candidates.range(*from, DocumentNumber::MAX)).take(want) {
            let need = match tail.has(number) {
                None => Need::Whole,
                Some(false) => filtered.hit(number).need,
                Some(true) => {
                    filtered.hit(number).need.max(if tail.is_undecided { Need::Whole } else { Need::Residual })
                }
            };
            hits.push(Hit { number, need, place: Place::Value { ordinal: self.drive.ordinal, key: key.clone() } });
        }
        match hits.last() {
            Some(last) => self.after = Some((key, last.number)),
            None => self.is_finished = true,
        }
        self.tail = Some(tail);
        Ok(())
    }
}
