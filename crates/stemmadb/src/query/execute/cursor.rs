//! Cursors: iterate over the hits of a query in order, before rows are built from them.
//!
//! A cursor owns the result of the filter: the documents that certainly match, those that may match, and those whose
//! terms are incomplete (the *overflow*), which may match whatever the index says. It returns hits in batches. A hit
//! states what must still be checked on its record, so that checking and returning a document take one read.
//!
//! Orders: by number, directly from the sets; sorted, by collecting all hits; sorted, by walking the first path's
//! values (see [`value_walk`](super::value_walk)), a declared index or a column.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collect::{self, Collector};
use super::estimate::is_reading_cheaper;
use super::evaluate::{MatchSet, READ_COST, Trace, evaluate, evaluate_in, evaluate_within, is_of_terms};
use super::exclusions::without_vacuous_exclusions;
pub(crate) use super::hit::{Batch, Hit, HitPosition, Recheck};
use super::index_count;
use super::index_walk::IndexWalk;
use super::ranked::Ranked;
use super::stream::{ChunkedFilter, OtherConditions, Stream};
use super::value_walk::ValueWalk;
use crate::document::Document as StoredDocument;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence, Window};
use crate::query::language::document::DocumentView;
use crate::query::language::matcher;
use crate::query::language::page_token::Position;
use crate::query::language::sort::{SortPath, SortedPosition};
use crate::query::plan::catalog::Catalog;
use crate::query::plan::request::Prepared;
use crate::query::plan::{DeclaredWalk, DrivingCondition, Node, Order, Plan, Walk};
use crate::query::source::QuerySource;
use crate::{Error, Result};

/// Up to this many candidates are collected and sorted rather than walked, whatever the estimated costs. Fewer in
/// tests, so that small databases are walked too.
const COLLECT_ALWAYS: u64 = if cfg!(test) { 2 } else { 64 };
/// A limit above this many rows does not lead to a walk over values.
const STREAM_MAX: u64 = 4096;
/// The number of documents that may be read before the other conditions are evaluated.
const DEFERRED_READS_MAX: u64 = if cfg!(test) { 2 } else { 256 };

/// Iterates over the hits of a query in order.
pub(crate) struct Cursor<S> {
    pub(crate) filtered: Filtered<S>,
    order: RowOrder,
}

/// The result of the filter, with the snapshot and the plan.
pub(crate) struct Filtered<S> {
    pub(crate) source: S,
    pub(crate) plan: Arc<Plan>,
    pub(in crate::query) filter_state: FilterState,
    overflow: DocumentSet,
    documents_read: Cell<u64>,
    checks: Cell<Checks>,
    /// Whether checks are timed.
    is_measured: bool,
    values_walked: Cell<u64>,
}

/// Statistics of documents read to decide whether they match.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checks {
    pub(crate) count: u64,
    /// The number of them that match.
    pub(crate) matching_count: u64,
    pub(crate) time: Duration,
}

/// Facts from the index about the documents before they are visited in order.
pub(in crate::query) enum FilterState {
    /// Every document matches.
    MatchesAll,
    /// The filter was not evaluated; every document must be read.
    NotEvaluated,
    /// The result of the filter, without documents whose terms are incomplete.
    Evaluated(MatchSet),
}

enum RowOrder {
    /// By number: `candidates` from `next` on; without a separate candidate set, the matches. If `window` is set, the
    /// filter is evaluated window by window, and `window` is the next one.
    Insertion { candidates: Option<DocumentSet>, next: Option<DocumentNumber>, window: Option<Window> },
    /// By number: the documents of one term from `next` on. `found` is the part read so far.
    Term { path: PathNumber, key: Vec<u8>, next: Option<DocumentNumber>, found: DocumentSet, has_more: bool },
    /// All hits, collected and sorted.
    Collected(VecDeque<Hit>),
    /// By rank in a column.
    Ranked(Box<Ranked>),
    /// A walk over the values of the first sort path.
    Walking(Box<ValueWalk>),
    /// A walk over a declared index.
    Indexed(Box<IndexWalk>),
    /// A walk over the values of a driving condition.
    Streaming(Box<Stream>),
}

impl<S: QuerySource> Cursor<S> {
    /// Plans the query, and evaluates the filter as far as that reduces cost. With a trace, measures the filter.
    pub(crate) fn open(source: S, prepared: &Prepared, trace: Option<&mut Trace>) -> Result<Self> {
        let catalog = Catalog::of(&source);
        let is_limited = prepared.limit.is_some() || matches!(prepared.after, Some(Position::Value { .. }));
        let plan = prepared.plan(is_limited, catalog);
        let mut filtered = Filtered::new(source, plan)?;
        filtered.is_measured = trace.is_some();
        let order = filtered.start(prepared, trace)?;
        Ok(Cursor { filtered, order })
    }

    /// Returns about `want` further hits at most; none at the end.
    pub(crate) fn next_hits(&mut self, want: usize) -> Result<Vec<Hit>> {
        Ok(match self.next_batch(want)? {
            Batch::Hits(hits) => hits,
            Batch::Verified(numbers) => numbers.into_iter().map(Hit::verified).collect(),
        })
    }

    /// Returns about `want` further documents at most; an empty batch at the end.
    pub(crate) fn next_batch(&mut self, want: usize) -> Result<Batch> {
        let hits = match &mut self.order {
            RowOrder::Insertion { candidates, next, window } => loop {
                let Some(from) = *next else { return Ok(Batch::Hits(Vec::new())) };
                let batch = match (candidates.as_ref(), &self.filtered.filter_state) {
                    (Some(candidates), _) => {
                        let numbers = candidates.range(from, DocumentNumber::MAX).take(want);
                        Batch::Hits(numbers.map(|number| self.filtered.hit(number)).collect())
                    }
                    (None, FilterState::Evaluated(match_set)) => {
                        Batch::Verified(match_set.certain.first_from(from, want))
                    }
                    _ => Batch::Hits(Vec::new()),
                };
                if let (0, Some(searched)) = (batch.len(), *window) {
                    let match_set = evaluate_in(&self.filtered.plan.filter, &self.filtered.source, searched)?;
                    self.filtered.set_matches(match_set);
                    *candidates = self.filtered.candidates();
                    *window = searched.following();
                    continue;
                }
                *next = batch.last_number().and_then(after);
                return Ok(batch);
            },
            RowOrder::Term { path, key, next, found, has_more } => loop {
                let Some(from) = *next else { return Ok(Batch::Hits(Vec::new())) };
                let numbers = found.first_from(from, want);
                if let Some(last) = numbers.last() {
                    *next = after(*last);
                    return Ok(Batch::Verified(numbers));
                }
                if !*has_more {
                    *next = None;
                    continue;
                }
                // Whole chunks were requested, so continue in the chunk after the last document found.
                let last = found.iter().next_back().map_or(from.chunk(), |last| last.chunk());
                let from = from.max(DocumentNumber::from_parts(last + 1, 0));
                *next = Some(from);
                (*found, *has_more) = self.filtered.source.equal_from(*path, key, from, want as u64)?;
            },
            RowOrder::Ranked(ranked) => return ranked.next_numbers(&self.filtered, want).map(Batch::Verified),
            RowOrder::Collected(hits) => hits.drain(..want.min(hits.len())).collect(),
            RowOrder::Walking(walk) => {
                let plan = self.filtered.plan.clone();
                if self.filtered.evaluate_deferred(&plan.filter)? {
                    walk.refresh_documents(&self.filtered);
                }
                walk.next_hits(&self.filtered, want)?
            }
            RowOrder::Indexed(walk) => walk.next_hits(&self.filtered, want)?,
            RowOrder::Streaming(stream) => stream.next_hits(&mut self.filtered, want)?,
        };
        Ok(Batch::Hits(hits))
    }

    /// The position of one document of a batch, for a continuation token.
    pub(crate) fn position(&self, batch: &Batch, at: usize) -> Result<Option<Position>> {
        match (&self.order, batch) {
            (RowOrder::Ranked(ranked), Batch::Verified(numbers)) => {
                numbers.get(at).map(|number| ranked.position(&self.filtered.source, *number)).transpose()
            }
            _ => Ok(batch.position(at)),
        }
    }

    /// The positions of documents of a sorted order, for row keys.
    pub(crate) fn sorted_positions(&self, numbers: &[DocumentNumber]) -> Result<Vec<SortedPosition>> {
        match &self.order {
            RowOrder::Ranked(ranked) => ranked.positions(&self.filtered.source, numbers),
            _ => Err(Error::internal("only ranked rows are without a position")),
        }
    }

    /// How the rows are ordered, as displayed by explain.
    pub(crate) fn order_name(&self) -> Cow<'static, str> {
        match &self.order {
            RowOrder::Insertion { .. } | RowOrder::Term { .. } => "by number".into(),
            RowOrder::Collected(_) => "collected and sorted".into(),
            RowOrder::Ranked(_) => "by rank in memory".into(),
            RowOrder::Walking(_) => "walked in the order of values".into(),
            RowOrder::Indexed(walk) => format!("walked in the order of index `{}`", walk.walk().name).into(),
            RowOrder::Streaming(_) => "streamed value by value".into(),
        }
    }

    /// The driving condition, if its values are walked.
    pub(crate) fn driving(&self) -> Option<&DrivingCondition> {
        match &self.order {
            RowOrder::Insertion { .. }
            | RowOrder::Term { .. }
            | RowOrder::Ranked(_)
            | RowOrder::Collected(_)
            | RowOrder::Indexed(_) => None,
            RowOrder::Walking(walk) => walk.driving(),
            RowOrder::Streaming(stream) => Some(stream.driving()),
        }
    }
}

/// Returns the number of matching documents. Ignores sort, limit, skip and token.
pub(crate) fn count<S: QuerySource>(source: S, prepared: &Prepared) -> Result<u64> {
    let catalog = Catalog::of(&source);
    let plan = prepared.plan(false, catalog);
    let mut filtered = Filtered::new(source, plan)?;
    if filtered.overflow.is_empty()
        && let Some(count) = index_count::len(&filtered.plan.filter, &filtered.source)?
    {
        return Ok(count);
    }
    filtered.filter(None)?;
    filtered.count()
}

impl<S: QuerySource> Filtered<S> {
    pub(in crate::query) fn new(source: S, plan: Arc<Plan>) -> Result<Self> {
        let plan = without_vacuous_exclusions(plan, &source)?;
        let overflow = source.presence(PathNumber::ROOT, &[Presence::Overflow])?;
        let (documents_read, values_walked, checks) = (Cell::new(0), Cell::new(0), Cell::default());
        let (filter_state, is_measured) = (FilterState::NotEvaluated, false);
        Ok(Filtered { source, plan, filter_state, overflow, documents_read, checks, is_measured, values_walked })
    }

    /// Evaluates the plan's filter, unless that was already done.
    pub(in crate::query) fn filter(&mut self, trace: Option<&mut Trace>) -> Result<()> {
        if matches!(self.filter_state, FilterState::Evaluated(_)) {
            return Ok(());
        }
        let match_set = evaluate(&self.plan.filter, &self.source, trace)?;
        self.set_matches(match_set);
        Ok(())
    }

    fn set_matches(&mut self, mut match_set: MatchSet) {
        if !self.overflow.is_empty() {
            match_set.certain.and_not_with(&self.overflow);
            match_set.maybe.and_not_with(&self.overflow);
        }
        self.filter_state = FilterState::Evaluated(match_set);
    }

    /// Evaluates `rest`, all conditions except the driving one, once as many documents were read as that is worth.
    /// Returns whether it did so now.
    pub(in crate::query) fn evaluate_deferred(&mut self, rest: &Node) -> Result<bool> {
        if !matches!(self.filter_state, FilterState::NotEvaluated) || self.documents_read.get() < DEFERRED_READS_MAX {
            return Ok(false);
        }
        let match_set = evaluate(rest, &self.source, None)?;
        self.set_matches(match_set);
        Ok(true)
    }

    /// The documents that match or may match; `None` if the matches alone are the result.
    fn candidates(&self) -> Option<DocumentSet> {
        match &self.filter_state {
            FilterState::Evaluated(match_set) if match_set.maybe.is_empty() && self.overflow.is_empty() => None,
            FilterState::Evaluated(match_set) => {
                let mut candidates = match_set.clone().possible();
                candidates.or_with(&self.overflow);
                Some(candidates)
            }
            FilterState::MatchesAll | FilterState::NotEvaluated => Some(self.overflow.clone()),
        }
    }

    /// The documents that may match, as far as the filter was evaluated, without documents whose terms are incomplete.
    pub(in crate::query) fn documents(&self) -> Option<DocumentSet> {
        match &self.filter_state {
            FilterState::MatchesAll | FilterState::NotEvaluated => None,
            FilterState::Evaluated(match_set) => Some(match_set.clone().possible()),
        }
    }

    /// The documents whose terms are incomplete.
    pub(in crate::query) fn overflow(&self) -> &DocumentSet {
        &self.overflow
    }

    /// The matching documents, if the index decided every condition.
    pub(in crate::query) fn exact(&self) -> Option<DocumentSet> {
        match &self.filter_state {
            FilterState::Evaluated(match_set) if self.is_exact() => Some(match_set.certain.clone()),
            _ => None,
        }
    }

    /// Whether the index decided every condition.
    pub(in crate::query) fn is_exact(&self) -> bool {
        let is_decided = match &self.filter_state {
            FilterState::MatchesAll => true,
            FilterState::NotEvaluated => false,
            FilterState::Evaluated(match_set) => match_set.maybe.is_empty(),
        };
        is_decided && self.overflow.is_empty()
    }

    /// The number of distinct values walked so far.
    pub(crate) fn values_walked(&self) -> u64 {
        self.values_walked.get()
    }

    /// Adds to the number of walked values.
    pub(in crate::query) fn walked(&self, value_count: u64) {
        self.values_walked.set(self.values_walked.get() + value_count);
    }

    /// The number of documents read so far.
    pub(crate) fn documents_read(&self) -> u64 {
        self.documents_read.get()
    }

    /// Statistics of the checks so far; the time only if it is measured.
    pub(crate) fn checks(&self) -> Checks {
        self.checks.get()
    }

    /// Returns the number of matching documents. Reads only those that the index cannot decide.
    pub(crate) fn count(&self) -> Result<u64> {
        let FilterState::Evaluated(match_set) = &self.filter_state else {
            return Err(Error::internal("a count before its filter"));
        };
        let mut undecided = match_set.maybe.clone();
        undecided.or_with(&self.overflow);
        let mut count = match_set.certain.len();
        let numbers: Vec<DocumentNumber> = undecided.iter().collect();
        for batch in numbers.chunks(collect::BATCH_LEN) {
            let hits: Vec<Hit> = batch.iter().map(|number| self.hit(*number)).collect();
            self.load(&hits, |_, _| {
                count += 1;
                Ok(())
            })?;
        }
        Ok(count)
    }

    /// Creates the hit of a candidate, without a sorted position.
    pub(in crate::query) fn hit(&self, number: DocumentNumber) -> Hit {
        let recheck = match &self.filter_state {
            _ if !self.overflow.is_empty() && self.overflow.contains(number) => Recheck::Whole,
            FilterState::MatchesAll => Recheck::None,
            FilterState::NotEvaluated => Recheck::Whole,
            FilterState::Evaluated(match_set) if match_set.maybe.is_empty() => {
                debug_assert!(match_set.certain.contains(number), "only what may match becomes a hit");
                Recheck::None
            }
            FilterState::Evaluated(match_set) => match match_set.has(number) {
                Some(false) => Recheck::None,
                Some(true) if !match_set.needs_whole_selector => Recheck::Residual,
                Some(true) | None => Recheck::Whole,
            },
        };
        Hit { number, recheck, position: HitPosition::Number }
    }

    /// Reads the documents of hits and visits those that match, with their index in `hits`.
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
                return Err(Error::internal("a snapshot loaded a document that was not requested"));
            };
            self.documents_read.set(self.documents_read.get() + 1);
            let matches = match hit.recheck {
                Recheck::None => true,
                Recheck::Residual => matcher::matches(&self.plan.residual, DocumentView::of(&document)?)?,
                Recheck::Whole => matcher::matches(&self.plan.whole, DocumentView::of(&document)?)?,
            };
            if hit.recheck != Recheck::None {
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
    pub(crate) fn load_matching(
        &self,
        numbers: &[DocumentNumber],
        mut visit: impl FnMut(StoredDocument) -> Result<()>,
    ) -> Result<()> {
        self.documents_read.set(self.documents_read.get() + numbers.len() as u64);
        self.source.load(numbers, &mut |_, document| visit(document))
    }

    /// Returns the hits that match. Hits that need no recheck are not read.
    pub(crate) fn verify(&self, hits: Vec<Hit>) -> Result<Vec<Hit>> {
        if hits.iter().all(|hit| hit.recheck == Recheck::None) {
            return Ok(hits);
        }
        let unsure: Vec<Hit> = hits.iter().filter(|hit| hit.recheck != Recheck::None).cloned().collect();
        let mut found = vec![false; unsure.len()];
        self.load(&unsure, |at, _| {
            found[at] = true;
            Ok(())
        })?;
        let mut found = found.into_iter();
        let mut hits = hits;
        hits.retain_mut(|hit| match hit.recheck {
            Recheck::None => true,
            _ => {
                hit.recheck = Recheck::None;
                found.next().unwrap_or(false)
            }
        });
        Ok(hits)
    }

    fn start(&mut self, prepared: &Prepared, trace: Option<&mut Trace>) -> Result<RowOrder> {
        let mut trace = trace;
        let rows_needed = prepared.limit.map(|limit| limit.saturating_add(prepared.skip));
        if let Order::Sorted { keys, walk, declared } = &self.plan.order {
            let (keys, walk, declared) = (keys.clone(), walk.clone(), declared.clone());
            let position = match &prepared.after {
                Some(Position::Sorted(sorted)) => Some(sorted.clone()),
                _ => None,
            };
            if let Some(declared) = declared {
                if self.prefers_index(&declared, rows_needed, &mut trace)? {
                    return Ok(RowOrder::Indexed(Box::new(IndexWalk::start(self, *declared, &keys, position))));
                }
            } else if let Some(ranked) =
                self.ranked(&keys, walk.as_ref(), position.as_ref(), rows_needed, &mut trace)?
            {
                return Ok(RowOrder::Ranked(Box::new(ranked)));
            } else if let Some(walk) = &walk {
                let driving = self.walkable(walk, rows_needed, &mut trace)?;
                if driving.is_some() || self.prefers_walk(rows_needed, trace.as_deref_mut())? {
                    let walk = ValueWalk::start(self, walk.path, driving, &keys, position, rows_needed)?;
                    return Ok(RowOrder::Walking(Box::new(walk)));
                }
            } else {
                self.filter(trace)?;
            }
            let mut collector = Collector::new(&keys, position.as_ref(), rows_needed);
            match (self.candidates(), &self.filter_state) {
                (Some(candidates), _) => collector.add_all(self, &candidates)?,
                (None, FilterState::Evaluated(match_set)) => collector.add_all(self, &match_set.certain)?,
                _ => {}
            }
            if let Some(path) = walk.and_then(|walk| walk.path) {
                self.source.record_scan(path, collector.candidate_count().saturating_mul(READ_COST));
            }
            return Ok(RowOrder::Collected(collector.finish()));
        }
        if let Some(stream) = self.stream(prepared, rows_needed, &mut trace)? {
            return Ok(RowOrder::Streaming(Box::new(stream)));
        }
        let next = match &prepared.after {
            Some(Position::Number(number)) => after(*number),
            _ => Some(DocumentNumber::MIN),
        };
        if let (Node::Equal { path, key }, Some(rows_needed), true, None) =
            (&self.plan.filter, rows_needed, self.overflow.is_empty(), &trace)
        {
            let (path, key) = (*path, key.clone());
            let (found, has_more) = match next {
                Some(next) => self.source.equal_from(path, &key, next, rows_needed.max(1))?,
                None => (DocumentSet::new(), false),
            };
            return Ok(RowOrder::Term { path, key, next, found, has_more });
        }
        if rows_needed.is_some_and(|rows_needed| rows_needed <= STREAM_MAX)
            && self.overflow.is_empty()
            && trace.is_none()
            && is_of_terms(&self.plan.filter)
        {
            self.filter_state = FilterState::Evaluated(MatchSet::default());
            let window = next.map(|next| Window::of(next.chunk()));
            return Ok(RowOrder::Insertion { candidates: None, next, window });
        }
        self.filter(trace)?;
        Ok(RowOrder::Insertion { candidates: self.candidates(), next, window: None })
    }

    /// The order by rank in a column, if the path has one.
    fn ranked(
        &mut self,
        keys: &[SortPath],
        walk: Option<&Walk>,
        after: Option<&SortedPosition>,
        rows_needed: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<Option<Ranked>> {
        match (keys, walk) {
            ([by], Some(Walk { path: Some(path) })) => {
                Ranked::start(self, *path, by, after, rows_needed, trace.as_deref_mut())
            }
            _ => Ok(None),
        }
    }

    /// Returns the driving condition on the sort path if walking only its values is cheaper. Evaluates the other
    /// conditions.
    fn walkable(
        &mut self,
        walk: &Walk,
        rows_needed: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<Option<DrivingCondition>> {
        let driving = self.plan.driving_conditions.first().filter(|driving| Some(driving.path) == walk.path);
        let Some(driving) = driving.cloned() else { return Ok(None) };
        if driving.rest == Node::All {
            self.filter_state = FilterState::MatchesAll;
            return Ok(Some(driving));
        }
        let rest = evaluate(&driving.rest, &self.source, trace.as_deref_mut())?;
        if !self.is_walk_cheaper(rest.certain.len() + rest.maybe.len(), rows_needed)? {
            return Ok(None);
        }
        self.set_matches(rest);
        Ok(Some(driving))
    }

    /// Returns a walk over the values of one condition, if it finds enough rows at less cost than the sets of all
    /// conditions.
    fn stream(
        &mut self,
        prepared: &Prepared,
        rows_needed: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<Option<Stream>> {
        let position = match &prepared.after {
            None => None,
            Some(Position::Value { ordinal, key, number }) => Some((*ordinal, key.clone(), *number)),
            Some(_) => return Ok(None),
        };
        let mut driving_conditions = self.plan.driving_conditions.iter();
        let driving = match &position {
            Some((ordinal, ..)) => {
                let found = driving_conditions.find(|driving| driving.ordinal == *ordinal);
                Some(found.ok_or_else(|| {
                    Error::invalid("the continuation token belongs to another index policy")
                        .with_hint("start the query from its beginning, without a token")
                })?)
            }
            None if rows_needed.is_none_or(|rows_needed| rows_needed > STREAM_MAX) => None,
            None => driving_conditions
                .clone()
                .find(|driving| driving.rest == Node::All)
                .or_else(|| driving_conditions.next()),
        };
        let Some(driving) = driving.cloned() else { return Ok(None) };
        let after = position.map(|(_, key, number)| (key, number));
        if driving.rest == Node::All {
            self.filter_state = FilterState::MatchesAll;
            return Ok(Some(Stream::start(driving, after, OtherConditions::All)));
        }
        if self.overflow.is_empty() && trace.is_none() && is_of_terms(&driving.rest) {
            let others = ChunkedFilter::default();
            if after.is_some() || self.is_walk_cheaper(others.estimate(&driving.rest, &self.source)?, rows_needed)? {
                self.filter_state = FilterState::MatchesAll;
                return Ok(Some(Stream::start(driving, after, OtherConditions::Chunked(others))));
            }
        }
        match evaluate_within(&driving.rest, &self.source, STREAM_MAX, trace.as_deref_mut())? {
            // Documents are read until the cost of that is known.
            None => self.filter_state = FilterState::NotEvaluated,
            Some(rest) => {
                let found_count = rest.certain.len() + rest.maybe.len();
                if after.is_none() && !self.is_walk_cheaper(found_count, rows_needed)? {
                    return Ok(None);
                }
                self.set_matches(rest);
            }
        }
        let others = self.documents().map_or(OtherConditions::All, OtherConditions::Documents);
        Ok(Some(Stream::start(driving, after, others)))
    }

    /// Whether walking a declared index costs less than reading all candidates. If not, the filter has been evaluated.
    fn prefers_index(
        &mut self,
        walk: &DeclaredWalk,
        rows_needed: Option<u64>,
        trace: &mut Option<&mut Trace>,
    ) -> Result<bool> {
        if walk.rest == Node::All {
            self.filter_state = FilterState::MatchesAll;
            return Ok(true);
        }
        self.filter(trace.as_deref_mut())?;
        let FilterState::Evaluated(match_set) = &self.filter_state else { return Ok(true) };
        let candidate_count = match_set.certain.len() + match_set.maybe.len();
        let mut all = self.source.live_len()?;
        for node in &walk.covered {
            if let Node::Equal { path, key } = node {
                all = all.min(self.source.equal_len(*path, key)?);
            }
        }
        Ok(Self::is_walk_cheaper_among(all, candidate_count, rows_needed))
    }

    /// Whether walking the sort path's values until enough candidates are found costs less than reading all candidates.
    /// Evaluates the filter, unless it matches everything.
    fn prefers_walk(&mut self, rows_needed: Option<u64>, trace: Option<&mut Trace>) -> Result<bool> {
        if rows_needed.is_some_and(|rows_needed| rows_needed <= DEFERRED_READS_MAX)
            && is_reading_cheaper(
                &self.plan.filter,
                &self.source,
                rows_needed.unwrap_or_default(),
                DEFERRED_READS_MAX / 2,
            )?
        {
            // Documents are read until the cost of that is known.
            self.filter_state = FilterState::NotEvaluated;
            return Ok(true);
        }
        if self.plan.filter == Node::All
            && trace.is_none()
            && self.is_walk_cheaper(self.source.live_len()?, rows_needed)?
        {
            self.filter_state = FilterState::MatchesAll;
            return Ok(true);
        }
        self.filter(trace)?;
        let FilterState::Evaluated(match_set) = &self.filter_state else { return Ok(true) };
        self.is_walk_cheaper(match_set.certain.len() + match_set.maybe.len(), rows_needed)
    }

    /// Whether walking values until `wanted` of the candidates are found costs less than reading the candidates.
    fn is_walk_cheaper(&self, candidate_count: u64, rows_needed: Option<u64>) -> Result<bool> {
        if candidate_count <= COLLECT_ALWAYS {
            return Ok(false);
        }
        Ok(Self::is_walk_cheaper_among(self.source.live_len()?, candidate_count, rows_needed))
    }

    fn is_walk_cheaper_among(all: u64, candidate_count: u64, rows_needed: Option<u64>) -> bool {
        if candidate_count <= COLLECT_ALWAYS {
            return false;
        }
        let share_walked = rows_needed.map_or(candidate_count, |rows_needed| rows_needed.min(candidate_count));
        let walked = u128::from(all) * u128::from(share_walked) / u128::from(candidate_count);
        walked <= u128::from(candidate_count) * u128::from(READ_COST)
    }
}

fn after(number: DocumentNumber) -> Option<DocumentNumber> {
    number.0.checked_add(1).map(DocumentNumber)
}
