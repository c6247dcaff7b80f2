//! The documents of a result, one after the other in their order, before anything is made of them.
//!
//! A cursor owns what the filter gave: sets of documents that certainly match, that may match, and those whose terms are
//! incomplete (the *overflow*), which may match whatever the index says. It hands out hits in batches. A hit says what is
//! still to be checked on its record, so that checking and returning a document are one read.
//!
//! Orders: by number, straight from the sets; sorted by collecting all hits; sorted by walking the first path's values
//! (see [`walk`](super::value_walk)).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collect::{self, Collector};
use super::estimate::spares_filter;
use super::evaluate::{Answer, READ_COST, Trace, evaluate, evaluate_in, evaluate_within, is_of_terms};
pub(crate) use super::hit::{Batch, Hit, Need, Place};
use super::index_walk::IndexWalk;
use super::ranked::Ranked;
use super::stream::{ByChunk, Others, Stream};
use super::tally;
use super::value_walk::ValueWalk;
use crate::document::Document as StoredDocument;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence, Window};
use crate::query::language::document::Document;
use crate::query::language::matcher;
use crate::query::language::page_token::Position;
use crate::query::language::sort::{SortPath, Sorted};
use crate::query::plan::facts::Facts;
use crate::query::plan::request::Prepared;
use crate::query::plan::{DeclaredWalk, Drive, Node, Order, Plan, Walk};
use crate::query::source::Source;
use crate::{Error, Result};

/// How many candidates are collected and sorted rather than met on a walk, however the costs compare; fewer in tests, so
/// that small databases are walked too.
const COLLECT_ALWAYS: u64 = if cfg!(test) { 2 } else { 64 };
/// A limit above this many rows is none, as far as walking values goes.
const STREAM_MAX: u64 = 4096;
/// How many documents are read to spare evaluating the other conditions, before they are.
const UNSETTLED_MAX: u64 = if cfg!(test) { 2 } else { 256 };

/// The hits of a query in order.
pub(crate) struct Cursor<S> {
    pub(crate) filtered: Filtered<S>,
    order: State,
}

/// What the filter gave, with the snapshot and plan it came from.
pub(crate) struct Filtered<S> {
    pub(crate) source: S,
    pub(crate) plan: Arc<Plan>,
    pub(in crate::query) known: Known,
    overflow: DocumentSet,
    documents_read: Cell<u64>,
    checks: Cell<Checks>,
    /// Whether checks are timed.
    is_measured: bool,
    values_walked: Cell<u64>,
}

/// Documents read to decide whether they match.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checks {
    pub(crate) count: u64,
    /// Those that do.
    pub(crate) matching_count: u64,
    pub(crate) time: Duration,
}

/// What is known of the documents before they are met in order.
pub(in crate::query) enum Known {
    /// They match, whichever they are.
    Everything,
    /// The filter was not evaluated; they must all be read.
    Nothing,
    /// What evaluating gave, without documents whose terms are incomplete.
    Answer(Answer),
}

enum State {
    /// By number: the candidates from `next` on; where there are none apart, what is known to match. Unless it is none, `window` is
    /// what the filter is evaluated for next.
    Insertion { candidates: Option<DocumentSet>, next: Option<DocumentNumber>, window: Option<Window> },
    /// By number: the documents of one term, from `next` on, as far as they are `found`.
    Term { path: PathNumber, key: Vec<u8>, next: Option<DocumentNumber>, found: DocumentSet, has_more: bool },
    /// All hits, collected and sorted.
    Collected(VecDeque<Hit>),
    /// By places in a column.
    Ranked(Box<Ranked>),
    /// Met on a walk over the values of the first path.
    Walking(Box<ValueWalk>),
    /// Met on a walk over a declared index.
    Indexed(Box<IndexWalk>),
    /// Met on a walk over the values of a condition.
    Streaming(Box<Stream>),
}

impl<S: Source> Cursor<S> {
    /// Plans, and filters as far as it pays. With a trace, measures the filter.
    pub(crate) fn open(source: S, prepared: &Prepared, trace: Option<&mut Trace>) -> Result<Self> {
        let facts = Facts::of(&source);
        let is_limited = prepared.limit.is_some() || matches!(prepared.after, Some(Position::Value { .. }));
        let plan = prepared.plan(is_limited, facts);
        let mut filtered = Filtered::new(source, plan)?;
        filtered.is_measured = trace.is_some();
        let order = filtered.start(prepared, trace)?;
        Ok(Cursor { filtered, order })
    }

    /// The next hits, at most about `want`; none at the end.
    pub(crate) fn next_hits(&mut self, want: usize) -> Result<Vec<Hit>> {
        Ok(match self.next_batch(want)? {
            Batch::Hits(hits) => hits,
            Batch::Sure(numbers) => numbers.into_iter().map(Hit::sure).collect(),
        })
    }

    /// What comes next, at most about `want`; nothing at the end.
    pub(crate) fn next_batch(&mut self, want: usize) -> Result<Batch> {
        let hits = match &mut self.order {
            State::Insertion { candidates, next, window } => loop {
                let Some(from) = *next else { return Ok(Batch::Hits(Vec::new())) };
                let batch = match (candidates.as_ref(), &self.filtered.known) {
                    (Some(candidates), _) => {
                        let numbers = candidates.range(from, DocumentNumber::MAX).take(want);
                        Batch::Hits(numbers.map(|number| self.filtered.hit(number)).collect())
                    }
                    (None, Known::Answer(answer)) => Batch::Sure(answer.certain.first_from(from, want)),
                    _ => Batch::Hits(Vec::new()),
                };
                if let (0, Some(searched)) = (batch.len(), *window) {
                    let answer = evaluate_in(&self.filtered.plan.filter, &self.filtered.source, searched)?;
                    self.filtered.know(answer);
                    *candidates = self.filtered.candidates();
                    *window = searched.following();
                    continue;
                }
                *next = batch.last_number().and_then(after);
                return Ok(batch);
            },
            State::Term { path, key, next, found, has_more } => loop {
                let Some(from) = *next else { return Ok(Batch::Hits(Vec::new())) };
                let numbers = found.first_from(from, want);
                if let Some(last) = numbers.last() {
                    *next = after(*last);
                    return Ok(Batch::Sure(numbers));
                }
                if !*has_more {
                    *next = None;
                    continue;
                }
                // What was found lies before; whole chunks were asked for, so go on in the one after them.
                let last = found.iter().next_back().map_or(from.chunk(), |last| last.chunk());
                let from = from.max(DocumentNumber::from_parts(last + 1, 0));
                *next = Some(from);
                (*found, *has_more) = self.filtered.source.equal_from(*path, key, from, want as u64)?;
            },
            State::Ranked(ranked) => return ranked.next_numbers(&self.filtered, want).map(Batch::Sure),
            State::Collected(hits) => hits.drain(..want.min(hits.len())).collect(),
            State::Walking(walk) => {
                let plan = self.filtered.plan.clone();
                if self.filtered.settle(&plan.filter)? {
                    walk.know(&self.filtered);
                }
                walk.next_hits(&self.filtered, want)?
            }
            State::Indexed(walk) => walk.next_hits(&self.filtered, want)?,
            State::Streaming(stream) => stream.next_hits(&mut self.filtered, want)?,
        };
        Ok(Batch::Hits(hits))
    }

    /// Where one of a batch stands, for a later page.
    pub(crate) fn position(&self, batch: &Batch, at: usize) -> Result<Option<Position>> {
        match (&self.order, batch) {
            (State::Ranked(ranked), Batch::Sure(numbers)) => {
                numbers.get(at).map(|number| ranked.position(&self.filtered.source, *number)).transpose()
            }
            _ => Ok(batch.position(at)),
        }
    }

    /// How the rows came into order, for people.
    pub(crate) fn order_name(&self) -> Cow<'static, str> {
        match &self.order {
            State::Insertion { .. } | State::Term { .. } => "by number".into(),
            State::Collected(_) => "collected and sorted".into(),
            State::Ranked(_) => "by places in memory".into(),
            State::Walking(_) => "walked in the order of values".into(),
            State::Indexed(walk) => format!("walked in the order of index `{}`", walk.walk().name).into(),
            State::Streaming(_) => "streamed value by value".into(),
        }
    }

    /// The condition whose values are walked, if one is.
    pub(crate) fn drive(&self) -> Option<&Drive> {
        match &self.order {
            State::Insertion { .. }
            | State::Term { .. }
            | State::Ranked(_)
            | State::Collected(_)
            | State::Indexed(_) => None,
            State::Walking(walk) => walk.drive(),
            State::Streaming(stream) => Some(stream.drive()),
        }
    }
}

/// How many documents match. Sort, limit, skip and token play no part.
pub(crate) fn count<S: Source>(source: S, prepared: &Prepared) -> Result<u64> {
    let facts = Facts::of(&source);
    let plan = prepared.plan(false, facts);
    let mut filtered = Filtered::new(source, plan)?;
    if filtered.overflow.is_empty()
        && let Some(count) = tally::len(&filtered.plan.filter, &filtered.source)?
    {
        return Ok(count);
    }
    filtered.filter(None)?;
    filtered.count()
}

impl<S: Source> Filtered<S> {
    pub(in crate::query) fn new(source: S, plan: Arc<Plan>) -> Result<Self> {
        let overflow = source.presence(PathNumber::ROOT, &[Presence::Overflow])?;
        let (documents_read, values_walked, checks) = (Cell::new(0), Cell::new(0), Cell::default());
        let (known, is_measured) = (Known::Nothing, false);
        Ok(Filtered { source, plan, known, overflow, documents_read, checks, is_measured, values_walked })
    }

    /// Evaluates the plan's filter, unless that was done.
    pub(in crate::query) fn filter(&mut self, trace: Option<&mut Trace>) -> Result<()> {
        if matches!(self.known, Known::Answer(_)) {
            return Ok(());
        }
        let answer = evaluate(&self.plan.filter, &self.source, trace)?;
        self.know(answer);
        Ok(())
    }

    fn know(&mut self, mut answer: Answer) {
        if !self.overflow.is_empty() {
            answer.certain.and_not_with(&self.overflow);
            answer.maybe.and_not_with(&self.overflow);
        }
        self.known = Known::Answer(answer);
    }

    /// Evaluates what all conditions but one ask, once reading documents instead has cost enough. Tells whether it did.
    pub(in crate::query) fn settle(&mut self, rest: &Node) -> Result<bool> {
        if !matches!(self.known, Known::Nothing) || self.documents_read.get() < UNSETTLED_MAX {
            return Ok(false);
        }
        let answer = evaluate(rest, &self.source, None)?;
        self.know(answer);
        Ok(true)
    }

    /// Everything that matches or may match; none if what is known is enough.
    fn candidates(&self) -> Option<DocumentSet> {
        match &self.known {
            Known::Answer(answer) if answer.maybe.is_empty() && self.overflow.is_empty() => None,
            Known::Answer(answer) => {
                let mut candidates = answer.clone().possible();
                candidates.or_with(&self.overflow);
                Some(candidates)
            }
            Known::Everything | Known::Nothing => Some(self.overflow.clone()),
        }
    }

    /// What may match, as far as it is known, without documents whose terms are incomplete.
    pub(in crate::query) fn documents(&self) -> Option<DocumentSet> {
        match &self.known {
            Known::Everything | Known::Nothing => None,
            Known::Answer(answer) => Some(answer.clone().possible()),
        }
    }

    /// The documents whose terms are incomplete.
    pub(in crate::query) fn overflow(&self) -> &DocumentSet {
        &self.overflow
    }

    /// The documents that match, if the index decided everything.
    pub(in crate::query) fn exact(&self) -> Option<DocumentSet> {
        match &self.known {
            Known::Answer(answer) if self.is_exact() => Some(answer.certain.clone()),
            _ => None,
        }
    }

    /// Whether the index decided everything.
    pub(in crate::query) fn is_exact(&self) -> bool {
        let is_known = match &self.known {
            Known::Everything => true,
            Known::Nothing => false,
            Known::Answer(answer) => answer.maybe.is_empty(),
        };
        is_known && self.overflow.is_empty()
    }

    /// How many distinct values were walked so far.
    pub(crate) fn values_walked(&self) -> u64 {
        self.values_walked.get()
    }

    /// Counts values that were walked.
    pub(in crate::query) fn walked(&self, value_count: u64) {
        self.values_walked.set(self.values_walked.get() + value_count);
    }

    /// How many documents were read so far.
    pub(crate) fn documents_read(&self) -> u64 {
        self.documents_read.get()
    }

    /// What was checked so far; if the filter was measured.
    pub(crate) fn checks(&self) -> Checks {
        self.checks.get()
    }

    /// How many documents match. Reads only those that the index can't decide.
    pub(crate) fn count(&self) -> Result<u64> {
        let Known::Answer(answer) = &self.known else { return Err(Error::internal("a count before its filter")) };
        let mut undecided = answer.maybe.clone();
        undecided.or_with(&self.overflow);
        let mut count = answer.certain.len();
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
    pub(in crate::query) fn hit(&self, number: DocumentNumber) -> Hit {
        let need = match &self.known {
            _ if !self.overflow.is_empty() && self.overflow.contains(number) => Need::Whole,
            Known::Everything => Need::Nothing,
            Known::Nothing => Need::Whole,
            Known::Answer(answer) if answer.maybe.is_empty() => {
                debug_assert!(answer.certain.contains(number), "only what may match becomes a hit");
                Need::Nothing
            }
            Known::Answer(answer) => match answer.has(number) {
                Some(false) => Need::Nothing,
                Some(true) if !answer.is_undecided => Need::Residual,
                Some(true) | None => Need::Whole,
            },
        };
        Hit { number, need, place: Place::Number }
    }

    /// Reads the documents of hits and visits those that match, with their places among the hits.
    pub(crate) fn load(&self, hits: &[Hit], mut visit: impl FnMut(usize, StoredDocument) -> Result<()>) -> Result<()> {
        if hits.is_empty() {
            return Ok(());
        }
        let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
        let mut at = 0;
        let started = self.is_measured.then(Instant::now);
        let mut checks = self.checks.get();
        self.source.load(&numbers, &mut |number, document| {
            let Some(hit) = hits.get(at).filter(|hit| hit.number == number) else {
                return Err(Error::internal("a snapshot loaded another document than it was asked for"));
            };
            self.documents_read.set(self.documents_read.get() + 1);
            let matches = match hit.need {
                Need::Nothing => true,
                Need::Residual => matcher::matches(&self.plan.residual, Document::of(&document)?)?,
                Need::Whole => matcher::matches(&self.plan.whole, Document::of(&document)?)?,
            };
            if hit.need != Need::Nothing {
                checks.count += 1;
                checks.matching_count += u64::from(matches);
            }
            if matches {
                visit(at, document)?;
            }
            at += 1;
            Ok(())
        })?;
        if let Some(started) = started.filter(|_| checks.count > self.checks.get().count) {
            checks.time += started.elapsed();
            self.checks.set(checks);
        }
        Ok(())
    }

    /// Reads documents that are known to match.
    pub(crate) fn load_sure(
        &self,
        numbers: &[DocumentNumber],
        mut visit: impl FnMut(StoredDocument) -> Result<()>,
    ) -> Result<()> {
        self.documents_read.set(self.documents_read.get() + numbers.len() as u64);
        self.source.load(numbers, &mut |_, document| visit(document))
    }

    /// The hits that match; those that need no check are not read.
    pub(crate) fn verified(&self, hits: Vec<Hit>) -> Result<Vec<Hit>> {
        if hits.iter().all(|hit| hit.need == Need::Nothing) {
            return Ok(hits);
        }
        let unsure: Vec<Hit> = hits.iter().filter(|hit| hit.need != Need::Nothing).cloned().collect();
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

    fn start(&mut self, prepared: &Prepared, trace: Option<&mut Trace>) -> Result<State> {
        let mut trace = trace;
        let wanted = prepared.limit.map(|limit| limit.saturating_add(prepared.skip));
        if let Order::Sorted { keys, walk, declared } = &self.plan.order {
            let (keys, walk, declared) = (keys.clone(), walk.clone(), declared.clone());
            let position = match &prepared.after {
                Some(Position::Sorted(sorted)) => Some(sorted.clone()),
                _ => None,
            };
            if let Some(declared) = declared {
                if self.prefers_index(&declared, wanted, &mut trace)? {
                    return Ok(State::Indexed(Box::new(IndexWalk::start(self, *declared, &keys, position))));
                }
            } else if let Some(ranked) = self.ranked(&keys, walk.as_ref(), position.as_ref(), wanted, &mut trace)? {
                return Ok(State::Ranked(Box::new(ranked)));
            } else if let Some(walk) = &walk {
                let drive = self.walkable(walk, wanted, &mut trace)?;
                if drive.is_some() || self.prefers_walk(wanted, trace.as_deref_mut())? {
                    let walk = ValueWalk::start(self, walk.path, drive, &keys, position, wanted)?;
                    return Ok(State::Walking(Box::new(walk)));
                }
            } else {
                self.filter(trace)?;
            }
            let mut collector = Collector::new(&keys, position.as_ref(), wanted);
            match (self.candidates(), &self.known) {
                (Some(candidates), _) => collector.add_all(self, &candidates)?,
                (None, Known::Answer(answer)) => collector.add_all(self, &answer.certain)?,
                _ => {}
            }
            if let Some(path) = walk.and_then(|walk| walk.path) {
                self.source.spend(path, collector.met_count().saturating_mul(READ_COST));
            }
            return Ok(State::Collected(collector.finish()));
        }
        if let Some(stream) = self.stream(prepared, wanted, &mut trace)? {
            return Ok(State::Streaming(Box::new(stream)));
        }
        let next = match &prepared.after {
            Some(Position::Number(number)) => after(*number),
            _ => Some(DocumentNumber::MIN),
        };
        if let (Node::Equal { path, key }, Some(wanted), true, None) =
            (&self.plan.filter, wanted, self.overflow.is_empty(), &trace)
        {
            let (path, key) = (*path, key.clone());
            let (found, has_more) = match next {
                Some(next) => self.source.equal_from(path, &key, next, wanted.max(1))?,
                None => (DocumentSet::new(), false),
            };
            return Ok(State::Term { path, key, next, found, has_more });
        }
        if wanted.is_some_and(|wanted| wanted <= STREAM_MAX)
            && self.overflow.is_empty()
            && trace.is_none()
            && is_of_terms(&self.plan.filter)
        {
            self.known = Known::Answer(Answer::default());
            let window = next.map(|next| Window::of(next.chunk()));
            return Ok(State::Insertion { candidates: None, next, window });
        }
        self.filter(trace)?;
        Ok(State::Insertion { candidates: self.candidates(), next, window: None })
    }

    /// The order by places in a column, if there is one for it.
    fn ranked(
        &mut self,
        keys: &[SortPath],
        walk: Option<&Walk>,
        after: Option<&Sorted>,
        wanted: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<Option<Ranked>> {
        match (keys, walk) {
            ([by], Some(Walk { path: Some(path) })) => {
                Ranked::start(self, *path, by, after, wanted, trace.as_deref_mut())
            }
            _ => Ok(None),
        }
    }

    /// The condition on the sort path, if walking only the values that meet it pays; what the others ask is known then.
    fn walkable(&mut self, walk: &Walk, wanted: Option<u64>, trace: &mut Option<&mut Trace>) -> Result<Option<Drive>> {
        let drive = self.plan.drives.first().filter(|drive| Some(drive.path) == walk.path);
        let Some(drive) = drive.cloned() else { return Ok(None) };
        if drive.rest == Node::All {
            self.known = Known::Everything;
            return Ok(Some(drive));
        }
        let rest = evaluate(&drive.rest, &self.source, trace.as_deref_mut())?;
        if !self.pays(rest.certain.len() + rest.maybe.len(), wanted)? {
            return Ok(None);
        }
        self.know(rest);
        Ok(Some(drive))
    }

    /// A walk over the values of one condition, if it finds enough rows at less cost than the sets of all conditions.
    fn stream(
        &mut self,
        prepared: &Prepared,
        wanted: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<Option<Stream>> {
        let position = match &prepared.after {
            None => None,
            Some(Position::Value { ordinal, key, number }) => Some((*ordinal, key.clone(), *number)),
            Some(_) => return Ok(None),
        };
        let mut drives = self.plan.drives.iter();
        let drive = match &position {
            Some((ordinal, ..)) => {
                let found = drives.find(|drive| drive.ordinal == *ordinal);
                Some(found.ok_or_else(|| {
                    Error::invalid("the continuation token belongs to another index policy")
                        .with_hint("start the query from its beginning, without a token")
                })?)
            }
            None if wanted.is_none_or(|wanted| wanted > STREAM_MAX) => None,
            None => drives.clone().find(|drive| drive.rest == Node::All).or_else(|| drives.next()),
        };
        let Some(drive) = drive.cloned() else { return Ok(None) };
        let after = position.map(|(_, key, number)| (key, number));
        if drive.rest == Node::All {
            self.known = Known::Everything;
            return Ok(Some(Stream::start(drive, after, Others::All)));
        }
        if self.overflow.is_empty() && trace.is_none() && is_of_terms(&drive.rest) {
            let others = ByChunk::default();
            if after.is_some() || self.pays(others.estimate(&drive.rest, &self.source)?, wanted)? {
                self.known = Known::Everything;
                return Ok(Some(Stream::start(drive, after, Others::ByChunk(others))));
            }
        }
        match evaluate_within(&drive.rest, &self.source, STREAM_MAX, trace.as_deref_mut())? {
            // Documents are read until it is known how many that takes.
            None => self.known = Known::Nothing,
            Some(rest) => {
                let found_count = rest.certain.len() + rest.maybe.len();
                if after.is_none() && !self.pays(found_count, wanted)? {
                    return Ok(None);
                }
                self.know(rest);
            }
        }
        let others = self.documents().map_or(Others::All, Others::Known);
        Ok(Some(Stream::start(drive, after, others)))
    }

    /// Whether walking a declared index costs less than reading all candidates, which are known otherwise.
    fn prefers_index(
        &mut self,
        walk: &DeclaredWalk,
        wanted: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<bool> {
        if walk.rest == Node::All {
            self.known = Known::Everything;
            return Ok(true);
        }
        self.filter(trace.as_deref_mut())?;
        let Known::Answer(answer) = &self.known else { return Ok(true) };
        let candidate_count = answer.certain.len() + answer.maybe.len();
        let mut all = self.source.live_len()?;
        for met in &walk.met {
            if let Node::Equal { path, key } = met {
                all = all.min(self.source.equal_len(*path, key)?);
            }
        }
        Ok(Self::pays_among(all, candidate_count, wanted))
    }

    /// Whether walking the sort path's values until enough candidates are met costs less than reading all candidates.
    /// The filter is evaluated then, unless it is everything.
    fn prefers_walk(&mut self, wanted: Option<u64>, trace: Option<&mut Trace>) -> Result<bool> {
        if wanted.is_some_and(|wanted| wanted <= UNSETTLED_MAX)
            && spares_filter(&self.plan.filter, &self.source, wanted.unwrap_or_default(), UNSETTLED_MAX / 2)?
        {
            // Documents are read until it is known how many that takes.
            self.known = Known::Nothing;
            return Ok(true);
        }
        if self.plan.filter == Node::All && trace.is_none() && self.pays(self.source.live_len()?, wanted)? {
            self.known = Known::Everything;
            return Ok(true);
        }
        self.filter(trace)?;
        let Known::Answer(answer) = &self.known else { return Ok(true) };
        self.pays(answer.certain.len() + answer.maybe.len(), wanted)
    }

    /// Whether walking values until so many of the candidates are met costs less than reading the candidates.
    fn pays(&self, candidate_count: u64, wanted: Option<u64>) -> Result<bool> {
        if candidate_count <= COLLECT_ALWAYS {
            return Ok(false);
        }
        Ok(Self::pays_among(self.source.live_len()?, candidate_count, wanted))
    }

    fn pays_among(all: u64, candidate_count: u64, wanted: Option<u64>) -> bool {
        if candidate_count <= COLLECT_ALWAYS {
            return false;
        }
        let share_walked = wanted.map_or(candidate_count, |wanted| wanted.min(candidate_count));
        let walked = u128::from(all) * u128::from(share_walked) / u128::from(candidate_count);
        walked <= u128::from(candidate_count) * u128::from(READ_COST)
    }
}

fn after(number: DocumentNumber) -> Option<DocumentNumber> {
    number.0.checked_add(1).map(DocumentNumber)
}
