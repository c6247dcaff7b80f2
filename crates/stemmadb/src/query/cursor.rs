//! The documents of a result, one after the other in their order, before anything is made of them.
//!
//! A cursor owns what the filter gave: sets of documents that certainly match, that may match, and those whose terms are
//! incomplete (the *overflow*), which may match whatever the index says. It hands out hits in batches. A hit says what is
//! still to be checked on its record, so that checking and returning a document are one read.
//!
//! Orders: by number, straight from the sets; sorted by collecting all hits; sorted by walking the first path's values
//! (see [`walk`](super::walk)).

use std::cell::Cell;
use std::collections::VecDeque;

use super::collect::{self, Collector};
use super::document::Document;
use super::evaluate::{Answer, Trace, evaluate};
use super::facts::Facts;
use super::matcher;
use super::plan::{Order, Plan};
use super::planner;
use super::request::Prepared;
use super::sort::Sorted;
use super::source::Source;
use super::token::Position;
use super::walk::ValueWalk;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::store::Document as StoredDocument;
use crate::{Error, Result};

/// How many candidates are collected and sorted rather than met on a walk, however the costs compare; fewer in tests, so
/// that small databases are walked too.
const COLLECT_ALWAYS: u64 = if cfg!(test) { 2 } else { 64 };
/// What reading a document costs, in values walked.
const READ_COST: u64 = 4;

/// One document of a result.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) number: DocumentNumber,
    pub(crate) need: Need,
    /// Where it stands in a sorted order; none in the order of insertion.
    pub(crate) sorted: Option<Sorted>,
}

/// What is still to be checked on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    /// What the index could not decide.
    Residual,
    /// The whole selector.
    Whole,
}

/// The hits of a query in order.
pub(crate) struct Cursor<S> {
    pub(crate) filtered: Filtered<S>,
    order: State,
}

/// What the filter gave, with the snapshot and plan it came from.
pub(crate) struct Filtered<S> {
    pub(crate) source: S,
    pub(crate) plan: Plan,
    answer: Answer,
    overflow: DocumentSet,
    documents_read: Cell<u64>,
}

enum State {
    /// By number: the candidates from `next` on.
    Insertion { candidates: DocumentSet, next: Option<DocumentNumber> },
    /// All hits, collected and sorted.
    Collected(VecDeque<Hit>),
    /// Met on a walk over the values of the first path.
    Walking(Box<ValueWalk>),
}

impl<S: Source> Cursor<S> {
    /// Plans and filters. With a trace, measures the filter.
    pub(crate) fn open(source: S, prepared: &Prepared, trace: Option<&mut Trace>) -> Result<Self> {
        let facts = Facts { paths: source.paths(), policy: source.policy() };
        let plan = planner::plan(&prepared.normal, &prepared.sort, facts);
        let filtered = Filtered::new(source, plan, trace)?;
        let order = filtered.start(prepared)?;
        Ok(Cursor { filtered, order })
    }

    /// The next hits, at most about `want`; none at the end.
    pub(crate) fn next_hits(&mut self, want: usize) -> Result<Vec<Hit>> {
        match &mut self.order {
            State::Insertion { candidates, next } => {
                let Some(from) = *next else { return Ok(Vec::new()) };
                let numbers = candidates.range(from, DocumentNumber::MAX).take(want);
                let hits: Vec<Hit> = numbers.map(|number| self.filtered.hit(number)).collect();
                *next = hits.last().and_then(|hit| after(hit.number));
                Ok(hits)
            }
            State::Collected(hits) => Ok(hits.drain(..want.min(hits.len())).collect()),
            State::Walking(walk) => walk.next_hits(&self.filtered, want),
        }
    }

    /// How the rows came into order, for people.
    pub(crate) fn order_name(&self) -> &'static str {
        match &self.order {
            State::Insertion { .. } => "by number",
            State::Collected(_) => "collected and sorted",
            State::Walking(_) => "walked in the order of values",
        }
    }
}

impl<S: Source> Filtered<S> {
    fn new(source: S, plan: Plan, trace: Option<&mut Trace>) -> Result<Self> {
        let mut answer = evaluate(&plan.filter, &source, trace)?;
        let overflow = source.presence(PathNumber::ROOT, &[Presence::Overflow])?;
        if !overflow.is_empty() {
            answer.certain.and_not_with(&overflow);
            answer.maybe.and_not_with(&overflow);
        }
        Ok(Filtered { source, plan, answer, overflow, documents_read: Cell::new(0) })
    }

    /// Everything that matches or may match.
    fn candidates(&self) -> DocumentSet {
        let mut candidates = self.answer.clone().possible();
        candidates.or_with(&self.overflow);
        candidates
    }

    /// What the index found, without documents whose terms are incomplete.
    pub(super) fn indexed(&self) -> DocumentSet {
        self.answer.clone().possible()
    }

    /// The documents whose terms are incomplete.
    pub(super) fn overflow(&self) -> &DocumentSet {
        &self.overflow
    }

    /// Whether the index decided everything.
    pub(super) fn is_exact(&self) -> bool {
        self.answer.maybe.is_empty() && self.overflow.is_empty()
    }

    /// How many documents were read so far.
    pub(crate) fn documents_read(&self) -> u64 {
        self.documents_read.get()
    }

    /// How many documents match. Reads only those that the index can't decide.
    pub(crate) fn count(&self) -> Result<u64> {
        let mut undecided = self.answer.maybe.clone();
        undecided.or_with(&self.overflow);
        let mut count = self.answer.certain.len();
        let numbers: Vec<DocumentNumber> = undecided.iter().collect();
        for batch in numbers.chunks(collect::BATCH) {
            let hits: Vec<Hit> = batch.iter().map(|number| self.hit(*number)).collect();
            self.load(&hits, |_, _| {
                count += 1;
                Ok(())
            })?;
        }
        Ok(count)
    }

    /// A candidate as a hit, in no sorted order yet.
    pub(super) fn hit(&self, number: DocumentNumber) -> Hit {
        let need = match self.answer.has(number) {
            Some(false) => Need::Nothing,
            Some(true) => Need::Residual,
            None => Need::Whole,
        };
        Hit { number, need, sorted: None }
    }

    /// Reads the documents of hits and visits those that match, with their places among the hits.
    pub(crate) fn load(&self, hits: &[Hit], mut visit: impl FnMut(usize, &StoredDocument) -> Result<()>) -> Result<()> {
        if hits.is_empty() {
            return Ok(());
        }
        let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
        let mut at = 0;
        self.source.load(&numbers, &mut |number, document| {
            let Some(hit) = hits.get(at).filter(|hit| hit.number == number) else {
                return Err(Error::internal("a snapshot loaded another document than it was asked for"));
            };
            self.documents_read.set(self.documents_read.get() + 1);
            let matches = match hit.need {
                Need::Nothing => true,
                Need::Residual => matcher::matches(&self.plan.residual, Document::of(document)?)?,
                Need::Whole => matcher::matches(&self.plan.whole, Document::of(document)?)?,
            };
            if matches {
                visit(at, document)?;
            }
            at += 1;
            Ok(())
        })
    }

    /// The hits that match; those that need no check are not read.
    pub(crate) fn verified(&self, hits: Vec<Hit>) -> Result<Vec<Hit>> {
        let unsure: Vec<Hit> = hits.iter().filter(|hit| hit.need != Need::Nothing).cloned().collect();
        if unsure.is_empty() {
            return Ok(hits);
        }
        let mut found = vec![false; unsure.len()];
        self.load(&unsure, |at, _| {
            found[at] = true;
            Ok(())
        })?;
        let mut found = found.into_iter();
        let mut hits = hits;
        hits.retain_mut(|hit| match hit.need {
            Need::Nothing => true,
            _ => {
                hit.need = Need::Nothing;
                found.next().unwrap_or(false)
            }
        });
        Ok(hits)
    }

    fn start(&self, prepared: &Prepared) -> Result<State> {
        let Order::Sorted { keys, walk } = &self.plan.order else {
            let next = match &prepared.after {
                Some(Position::Number(number)) => after(*number),
                _ => Some(DocumentNumber::MIN),
            };
            return Ok(State::Insertion { candidates: self.candidates(), next });
        };
        let position = match &prepared.after {
            Some(Position::Sorted(sorted)) => Some(sorted.clone()),
            _ => None,
        };
        let wanted = prepared.limit.map(|limit| limit.saturating_add(prepared.skip));
        if let Some(walk) = walk
            && self.prefers_walk(wanted)?
        {
            let walk = ValueWalk::start(self, walk.path, keys, position, wanted)?;
            return Ok(State::Walking(Box::new(walk)));
        }
        let mut collector = Collector::new(keys, position.as_ref(), wanted);
        collector.add_all(self, &self.candidates())?;
        Ok(State::Collected(collector.finish()))
    }

    /// Whether walking the sort path's values until enough candidates are met costs less than reading all candidates.
    fn prefers_walk(&self, wanted: Option<u64>) -> Result<bool> {
        let candidates = self.answer.certain.len() + self.answer.maybe.len();
        if candidates <= COLLECT_ALWAYS {
            return Ok(false);
        }
        let all = self.source.presence(PathNumber::ROOT, &[Presence::Object])?.len();
        let share_walked = wanted.map_or(candidates, |wanted| wanted.min(candidates));
        let walked = u128::from(all) * u128::from(share_walked) / u128::from(candidates);
        Ok(walked <= u128::from(candidates) * u128::from(READ_COST))
    }
}

fn after(number: DocumentNumber) -> Option<DocumentNumber> {
    number.0.checked_add(1).map(DocumentNumber)
}
