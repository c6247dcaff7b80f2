//! Evaluation of a plan's filter to sets of documents.
//!
//! Each node yields the documents that certainly match and, separately, those that may match. An intersection evaluates
//! the nodes with the smallest expected sets first, stops when no document is left, and leaves conditions undecided
//! when reading the remaining documents costs less than evaluating them in the index.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

use super::estimate::range_estimate;
use super::shared_presences::{ALL_DOCUMENTS, SharedPresences};
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Union, Window};
use crate::query::language::interval::{KeyRange, plain_text};
use crate::query::plan::{Node, ValueTest};
use crate::query::source::{IndexReader, IndexStatistics, VisitValue};
use crate::tree::Direction;
use crate::value::Value;
use crate::value::collate::key;
use crate::{Error, Result};

/// The cost of reading a document, in values visited; low in tests, so that small databases exercise both methods.
pub(in crate::query) const READ_COST: u64 = if cfg!(test) { 1 } else { 8 };
/// The number of values that each condition of an intersection may have in the first round, and the growth factor per
/// round.
const FIRST_VALUES: u64 = if cfg!(test) { 2 } else { 64 };
const VALUES_GROWTH: u64 = 16;
/// A node is skipped if its estimate exceeds the number of values it may visit by this factor.
const SKIP_FACTOR: u64 = 4;
/// The largest number of documents read instead of evaluating a condition in the index.
const READ_MAX: u64 = 4096;
/// The largest number of terms of one list that are looked up window by window.
const WINDOW_KEYS_MAX: usize = 16;

/// The result of evaluating a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchSet {
    /// The documents that match.
    pub(crate) certain: DocumentSet,
    /// The documents that may match; disjoint from `certain`.
    pub(crate) maybe: DocumentSet,
    /// Whether conditions that the index could decide were skipped: then the documents in `maybe` must be checked
    /// against the whole selector.
    pub(crate) needs_whole_selector: bool,
}

/// Measurements of an evaluation: a tree with one node per node of the plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// The result's size and time, or `None` if the node was not evaluated.
    pub(crate) measured: Option<NodeMeasurement>,
    /// Whether evaluation was abandoned in favor of reading documents.
    pub(crate) is_abandoned: bool,
    pub(crate) children: Vec<Trace>,
}

/// The measured result of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeMeasurement {
    pub(crate) certain_count: u64,
    pub(crate) maybe_count: u64,
    pub(crate) time: Duration,
}

/// Evaluates a node; with a trace, measures it.
pub(crate) fn evaluate(node: &Node, source: &impl IndexStatistics, trace: Option<&mut Trace>) -> Result<MatchSet> {
    let found = evaluate_within(node, source, u64::MAX, trace)?;
    found.ok_or_else(|| Error::internal("an evaluation without a bound reached it"))
}

/// Evaluates a node, or returns `None` once it would have to visit more than `values_max` distinct values.
pub(crate) fn evaluate_within(
    node: &Node,
    source: &impl IndexStatistics,
    values_max: u64,
    trace: Option<&mut Trace>,
) -> Result<Option<MatchSet>> {
    let presences = SharedPresences::of(node);
    let bounds = Bounds { values_max, window: Window::ALL, among: None, presences: &presences };
    evaluate_bounded(node, source, bounds, trace)
}

/// Evaluates a node within a window. Cheaper than the whole evaluation only if the node [consists of
/// terms](is_of_terms).
pub(in crate::query) fn evaluate_in(node: &Node, source: &impl IndexStatistics, window: Window) -> Result<MatchSet> {
    let presences = SharedPresences::of(node);
    let bounds = Bounds { values_max: u64::MAX, window, among: None, presences: &presences };
    let found = evaluate_bounded(node, source, bounds, None)?;
    found.ok_or_else(|| Error::internal("an evaluation without a bound reached it"))
}

/// Whether a node needs only a few terms, whose postings are in order of document numbers.
pub(in crate::query) fn is_of_terms(node: &Node) -> bool {
    match node {
        Node::Empty | Node::All | Node::Equal { .. } | Node::Presence { .. } => true,
        Node::EqualAny { keys, .. } => keys.len() <= WINDOW_KEYS_MAX,
        Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().all(is_of_terms),
        Node::Difference(from, without) => is_of_terms(from) && is_of_terms(without),
        Node::Check(inner) => is_of_terms(inner),
        Node::Range { .. } | Node::Matching { .. } | Node::Ids(_) | Node::IdRange { .. } => false,
    }
}

/// The bounds of an evaluation.
#[derive(Clone, Copy)]
struct Bounds<'e> {
    /// Evaluation gives up once it would have to visit more distinct values.
    values_max: u64,
    /// Documents outside the window are omitted.
    window: Window,
    /// Other documents do not matter, and may be in the result or not.
    among: Option<&'e MatchSet>,
    /// The sets that several nodes need.
    presences: &'e SharedPresences<'e>,
}

fn evaluate_bounded(
    node: &Node,
    source: &impl IndexStatistics,
    bounds: Bounds<'_>,
    trace: Option<&mut Trace>,
) -> Result<Option<MatchSet>> {
    let Some(trace) = trace else { return evaluate_node(node, source, bounds, &mut Tracer(None)) };
    let started = Instant::now();
    trace.children = node.children().iter().map(|_| Trace::default()).collect();
    let match_set = evaluate_node(node, source, bounds, &mut Tracer(Some(&mut trace.children)))?;
    trace.measured = match_set.as_ref().map(|match_set| NodeMeasurement {
        certain_count: match_set.certain.len(),
        maybe_count: match_set.maybe.len(),
        time: started.elapsed(),
    });
    trace.is_abandoned = match_set.is_none();
    Ok(match_set)
}

/// The traces of a node's children, if they are measured.
struct Tracer<'t>(Option<&'t mut Vec<Trace>>);

impl Tracer<'_> {
    fn child(&mut self, at: usize) -> Option<&mut Trace> {
        self.0.as_mut().and_then(|traces| traces.get_mut(at))
    }
}

fn evaluate_node(
    node: &Node,
    source: &impl IndexStatistics,
    bounds: Bounds<'_>,
    tracer: &mut Tracer<'_>,
) -> Result<Option<MatchSet>> {
    let Bounds { values_max, window, among, presences } = bounds;
    Ok(Some(match node {
        Node::Empty => MatchSet::default(),
        Node::All => MatchSet::certain(match among {
            Some(among) => among.candidates().into_owned(),
            None => presences.read(PathNumber::ROOT, ALL_DOCUMENTS, window, source)?.into_owned(),
        }),
        Node::Equal { path, key } => MatchSet::certain(source.equal_in(*path, key, window)?),
        Node::EqualAny { keys, .. } if keys.len() as u64 > values_max => return Ok(None),
        Node::EqualAny { path, keys } => MatchSet::certain(source.equal_any(*path, keys, window)?),
        Node::Range { path, range } => {
            let Some(found) = source.range_within(*path, range, values_max)? else { return Ok(None) };
            MatchSet::certain(found).within(window)
        }
        Node::Presence { path, kinds } => MatchSet::certain(presences.read(*path, kinds, window, source)?.into_owned()),
        Node::Matching { path, range, test } => {
            let Some(found) = matching(source, *path, range, test, values_max)? else { return Ok(None) };
            found.within(window)
        }
        Node::Ids(ids) if ids.len() as u64 > values_max => return Ok(None),
        Node::Ids(ids) => MatchSet::certain(numbers_of(source, ids)?).within(window),
        Node::IdRange { lower, upper } => {
            let Some(found) = ids_in_range(source, lower, upper, values_max)? else { return Ok(None) };
            MatchSet::certain(found).within(window)
        }
        Node::Union(nodes) => return union(nodes, source, bounds, tracer),
        Node::Intersection(nodes) => return intersection(nodes, source, bounds, tracer),
        Node::Difference(from, without) => return difference(from, without, source, bounds, tracer),
        Node::Check(inner) => {
            let Some(match_set) = evaluate_bounded(inner, source, bounds, tracer.child(0))? else { return Ok(None) };
            let needs_whole_selector = match_set.needs_whole_selector;
            MatchSet { certain: DocumentSet::new(), maybe: match_set.possible(), needs_whole_selector }
        }
    }))
}

fn union(
    nodes: &[Node],
    source: &impl IndexStatistics,
    bounds: Bounds<'_>,
    tracer: &mut Tracer<'_>,
) -> Result<Option<MatchSet>> {
    let (mut certain, mut maybe, mut needs_whole_selector) = (Union::new(), Union::new(), false);
    for (at, node) in nodes.iter().enumerate() {
        let Some(match_set) = evaluate_bounded(node, source, bounds, tracer.child(at))? else { return Ok(None) };
        certain.add_set(&match_set.certain);
        maybe.add_set(&match_set.maybe);
        needs_whole_selector |= match_set.needs_whole_selector;
    }
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Some(MatchSet { certain, maybe, needs_whole_selector }))
}

/// Evaluates the conditions with the smallest expected sets first. A condition with many values is deferred to later
/// rounds, with a growing bound on the number of values. As soon as reading the documents found so far costs less than
/// evaluating the remaining conditions, these are left undecided.
fn intersection(
    nodes: &[Node],
    source: &impl IndexStatistics,
    bounds: Bounds<'_>,
    tracer: &mut Tracer<'_>,
) -> Result<Option<MatchSet>> {
    let mut waiting: Vec<usize> = (0..nodes.len()).collect();
    waiting.sort_by_key(|at| expected_size(&nodes[*at]));
    let mut all: Option<MatchSet> = None;
    let mut values = FIRST_VALUES;
    while !waiting.is_empty() {
        let turn = if waiting.len() == 1 { u64::MAX } else { values };
        let mut too_long = Vec::new();
        if values > FIRST_VALUES {
            waiting.sort_by_cached_key(|at| range_estimate(&nodes[*at], source).map(|expected| expected.documents));
        }
        for at in waiting {
            let most = turn.min(values_worth_visiting(all.as_ref())).min(bounds.values_max);
            if values > FIRST_VALUES && is_too_costly(&nodes[at], source, most) {
                too_long.push(at);
                continue;
            }
            let within = Bounds { values_max: most, among: all.as_ref().or(bounds.among), ..bounds };
            let Some(match_set) = evaluate_bounded(&nodes[at], source, within, tracer.child(at))? else {
                too_long.push(at);
                continue;
            };
            let remaining = match all.take() {
                Some(all) => all.and(match_set),
                None => match_set,
            };
            if remaining.is_empty() {
                return Ok(Some(MatchSet::default()));
            }
            all = Some(remaining);
        }
        waiting = too_long;
        let values_worth_visiting = values_worth_visiting(all.as_ref());
        if !waiting.is_empty() && turn >= values_worth_visiting.min(bounds.values_max) {
            return Ok(if values_worth_visiting <= bounds.values_max {
                all.map(MatchSet::into_unverified)
            } else {
                None
            });
        }
        values = values.saturating_mul(VALUES_GROWTH);
    }
    Ok(all)
}

/// Whether a node is expected to have far more values than it may visit.
fn is_too_costly(node: &Node, source: &impl IndexStatistics, values_max: u64) -> bool {
    let most = values_max.saturating_mul(SKIP_FACTOR);
    most < u64::MAX && range_estimate(node, source).is_some_and(|expected| expected.values > most)
}

/// The number of values that may be visited to avoid reading these documents.
fn values_worth_visiting(found: Option<&MatchSet>) -> u64 {
    match found.map(|found| found.certain.len() + found.maybe.len()) {
        Some(count) if count <= READ_MAX => count * READ_COST,
        _ => u64::MAX,
    }
}

fn difference(
    from: &Node,
    without: &Node,
    source: &impl IndexStatistics,
    bounds: Bounds<'_>,
    tracer: &mut Tracer<'_>,
) -> Result<Option<MatchSet>> {
    let Some(from) = evaluate_bounded(from, source, bounds, tracer.child(0))? else { return Ok(None) };
    if from.is_empty() {
        return Ok(Some(from));
    }
    let Some(without) = evaluate_bounded(without, source, bounds, tracer.child(1))? else { return Ok(None) };
    let needs_whole_selector = from.needs_whole_selector || without.needs_whole_selector;
    let mut maybe = from.certain.and(&without.maybe);
    maybe.or_with(&from.maybe.and_not(&without.certain));
    let mut certain = from.certain;
    certain.and_not_with(&without.certain);
    certain.and_not_with(&without.maybe);
    Ok(Some(MatchSet { certain, maybe, needs_whole_selector }))
}

/// A rough rank of a node's size without statistics: 0 is smallest.
fn expected_size(node: &Node) -> u8 {
    match node {
        Node::Empty | Node::Ids(_) => 0,
        Node::Equal { .. } => 1,
        Node::EqualAny { .. } => 2,
        Node::Range { .. } | Node::IdRange { .. } => 3,
        Node::Matching { .. } => 6,
        Node::Presence { .. } => 4,
        Node::All => 7,
        Node::Union(nodes) => nodes.iter().map(expected_size).max().unwrap_or(0),
        Node::Intersection(nodes) => nodes.iter().map(expected_size).min().unwrap_or(0),
        Node::Difference(from, _) => expected_size(from).max(5),
        Node::Check(inner) => expected_size(inner),
    }
}

/// Tests each distinct value in a range.
fn matching(
    source: &impl IndexStatistics,
    path: PathNumber,
    range: &KeyRange,
    test: &ValueTest,
    values_max: u64,
) -> Result<Option<MatchSet>> {
    let (mut certain, mut maybe) = (Union::new(), Union::new());
    let mut left = Some(values_max);
    let visit: &mut VisitValue<'_> = &mut |value_key, documents| {
        left = left.and_then(|left| left.checked_sub(1));
        if left.is_none() {
            return Ok(ControlFlow::Break(()));
        }
        match passes(test, value_key)? {
            Some(true) => documents.add_to(&mut certain)?,
            Some(false) => {}
            None => documents.add_to(&mut maybe)?,
        }
        Ok(ControlFlow::Continue(()))
    };
    let literal = match test {
        ValueTest::Regex(pattern) => pattern.literal(),
        ValueTest::Modulo { .. } | ValueTest::Any(_) => None,
    };
    source.walk_containing(path, range, Direction::Ascending, literal, visit)?;
    if left.is_none() {
        return Ok(None);
    }
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Some(MatchSet { certain, maybe, needs_whole_selector: false }))
}

/// Whether the value with this key passes the test; `None` if the key does not contain the whole value.
pub(in crate::query) fn passes(test: &ValueTest, value_key: &[u8]) -> Result<Option<bool>> {
    match test {
        ValueTest::Regex(pattern) => {
            if let Some(text) = plain_text(value_key) {
                return Ok(Some(pattern.is_match(text)));
            }
            let (text, _) = key::decode_string(value_key)?;
            if text.cut {
                return Ok(None);
            }
            Ok(std::str::from_utf8(&text.bytes).ok().map(|text| pattern.is_match(text)))
        }
        ValueTest::Modulo { divisor, remainder } => match key::decode(value_key)?.0 {
            Value::Number(number) => Ok(Some(
                number.to_integer().is_some_and(|integer| integer % i128::from(*divisor) == i128::from(*remainder)),
            )),
            _ => Ok(Some(false)),
        },
        ValueTest::Any(tests) => {
            let mut passed = Some(false);
            for (_, test) in tests.iter().filter(|(range, _)| range.holds(value_key)) {
                match passes(test, value_key)? {
                    Some(true) => return Ok(Some(true)),
                    Some(false) => {}
                    None => passed = None,
                }
            }
            Ok(passed)
        }
    }
}

fn numbers_of(source: &impl IndexStatistics, ids: &[String]) -> Result<DocumentSet> {
    let mut numbers = Vec::with_capacity(ids.len());
    for id in ids {
        numbers.extend(source.number_of(id)?);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(DocumentSet::from_sorted(numbers))
}

/// The documents with ids in a range; `None` if there are more than `ids_max`.
pub(super) fn ids_in_range(
    source: &impl IndexReader,
    lower: &Bound<String>,
    upper: &Bound<String>,
    ids_max: u64,
) -> Result<Option<DocumentSet>> {
    source.ids_in_range(lower.as_ref().map(String::as_str), upper.as_ref().map(String::as_str), ids_max)
}

impl MatchSet {
    /// Documents that certainly match.
    pub(in crate::query) fn certain(certain: DocumentSet) -> Self {
        MatchSet { certain, maybe: DocumentSet::new(), needs_whole_selector: false }
    }

    /// The part within a window.
    pub(in crate::query) fn within(self, window: Window) -> Self {
        if window == Window::ALL {
            return self;
        }
        MatchSet { certain: self.certain.within(window), maybe: self.maybe.within(window), ..self }
    }

    /// Adds the result of later chunks.
    pub(in crate::query) fn append(&mut self, later: MatchSet) {
        self.certain.or_with(&later.certain);
        self.maybe.or_with(&later.maybe);
        self.needs_whole_selector |= later.needs_whole_selector;
    }

    /// Turns all documents into candidates that must be checked against the whole selector.
    fn into_unverified(self) -> Self {
        MatchSet { certain: DocumentSet::new(), maybe: self.possible(), needs_whole_selector: true }
    }

    /// All documents that match or may match.
    pub(crate) fn possible(self) -> DocumentSet {
        if self.maybe.is_empty() {
            return self.certain;
        }
        let mut possible = self.certain;
        possible.or_with(&self.maybe);
        possible
    }

    /// As [`MatchSet::possible`], without copying a set if one suffices.
    pub(in crate::query) fn candidates(&self) -> Cow<'_, DocumentSet> {
        if self.maybe.is_empty() { Cow::Borrowed(&self.certain) } else { Cow::Owned(self.clone().possible()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.certain.is_empty() && self.maybe.is_empty()
    }

    /// `None` if the document does not match; otherwise whether it must be checked.
    pub(crate) fn has(&self, document: DocumentNumber) -> Option<bool> {
        if self.certain.contains(document) {
            return Some(false);
        }
        self.maybe.contains(document).then_some(true)
    }

    /// The intersection; copies only the smaller set.
    pub(crate) fn and(self, other: MatchSet) -> MatchSet {
        if self.maybe.is_empty() && other.maybe.is_empty() {
            let (mut certain, larger) = match self.certain.len() <= other.certain.len() {
                true => (self.certain, other.certain),
                false => (other.certain, self.certain),
            };
            certain.and_with(&larger);
            return MatchSet::certain(certain);
        }
        let needs_whole_selector = self.needs_whole_selector || other.needs_whole_selector;
        let certain = self.certain.and(&other.certain);
        let mut maybe = self.possible();
        maybe.and_with(&other.possible());
        maybe.and_not_with(&certain);
        MatchSet { certain, maybe, needs_whole_selector }
    }
}
