//! A plan's filter to sets of documents.
//!
//! Every node gives what certainly matches and, apart from it, what may match. Joins evaluate what is likely to be small
//! first, stop when nothing is left, and leave to the documents what costs more to ask of the index.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

use super::estimate::expected;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence, Union, Window};
use crate::query::language::interval::{KeyRange, plain_text};
use crate::query::plan::{Node, ValueTest};
use crate::query::source::{Source, VisitValue};
use crate::tree::Direction;
use crate::value::Value;
use crate::value::collate::key;
use crate::{Error, Result};

/// What reading a document costs, in values visited; in tests little, so that small databases have both.
pub(in crate::query) const READ_COST: u64 = if cfg!(test) { 1 } else { 8 };
/// How many values each of several conditions may have to be evaluated in the first turn, and how many times more in the next.
const FIRST_VALUES: u64 = if cfg!(test) { 2 } else { 64 };
const VALUES_GROWTH: u64 = 16;
/// What is expected to have so many times more values than it may visit is not begun.
const HOPELESS: u64 = 4;
/// More documents are never read to spare the index.
const READ_MAX: u64 = 4096;
/// So many terms of one list are looked up window by window.
const WINDOW_KEYS_MAX: usize = 16;

/// The documents of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Those that match.
    pub(crate) certain: DocumentSet,
    /// Those that may match; none of them is in `certain`.
    pub(crate) maybe: DocumentSet,
    /// Whether conditions were left out which the index could have decided: what may match must be asked the whole selector.
    pub(crate) is_undecided: bool,
}

/// What evaluating a node took: one per node of the plan, shaped like it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// What came of it; none if it was not evaluated.
    pub(crate) measured: Option<Measured>,
    /// Whether documents were to be read rather than the rest of it evaluated.
    pub(crate) is_abandoned: bool,
    pub(crate) children: Vec<Trace>,
}

/// What came of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) certain_count: u64,
    pub(crate) maybe_count: u64,
    pub(crate) time: Duration,
}

/// Evaluates a node; with a trace, measures it.
pub(crate) fn evaluate(node: &Node, source: &impl Source, trace: Option<&mut Trace>) -> Result<Answer> {
    let found = evaluate_within(node, source, u64::MAX, trace)?;
    found.ok_or_else(|| Error::internal("an evaluation without a bound met it"))
}

/// Evaluates a node, but gives up once more than `values_max` distinct values would have to be visited.
pub(crate) fn evaluate_within(
    node: &Node,
    source: &impl Source,
    values_max: u64,
    trace: Option<&mut Trace>,
) -> Result<Option<Answer>> {
    evaluate_bounded(node, source, Bounds { values_max, window: Window::ALL }, trace)
}

/// What a node gives within a window. Costs little of what the whole costs only if the node [is made of terms](is_of_terms).
pub(in crate::query) fn evaluate_in(node: &Node, source: &impl Source, window: Window) -> Result<Answer> {
    let found = evaluate_bounded(node, source, Bounds { values_max: u64::MAX, window }, None)?;
    found.ok_or_else(|| Error::internal("an evaluation without a bound met it"))
}

/// Whether a node asks the index for a few terms only, which lie there by document number.
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

/// What an evaluation is kept to.
#[derive(Clone, Copy)]
struct Bounds {
    /// It gives up once more distinct values would have to be visited.
    values_max: u64,
    /// Documents elsewhere are left out.
    window: Window,
}

fn evaluate_bounded(
    node: &Node,
    source: &impl Source,
    bounds: Bounds,
    trace: Option<&mut Trace>,
) -> Result<Option<Answer>> {
    let Some(trace) = trace else { return evaluate_node(node, source, bounds, &mut Tracer(None)) };
    let started = Instant::now();
    trace.children = node.children().iter().map(|_| Trace::default()).collect();
    let answer = evaluate_node(node, source, bounds, &mut Tracer(Some(&mut trace.children)))?;
    trace.measured = answer.as_ref().map(|answer| Measured {
        certain_count: answer.certain.len(),
        maybe_count: answer.maybe.len(),
        time: started.elapsed(),
    });
    trace.is_abandoned = answer.is_none();
    Ok(answer)
}

/// The traces of a node's children, if they are measured.
struct Tracer<'t>(Option<&'t mut Vec<Trace>>);

impl Tracer<'_> {
    fn child(&mut self, at: usize) -> Option<&mut Trace> {
        self.0.as_mut().and_then(|traces| traces.get_mut(at))
    }
}

fn evaluate_node(node: &Node, source: &impl Source, bounds: Bounds, tracer: &mut Tracer<'_>) -> Result<Option<Answer>> {
    let Bounds { values_max, window } = bounds;
    Ok(Some(match node {
        Node::Empty => Answer::default(),
        Node::All => Answer::certain(source.presence_in(PathNumber::ROOT, &[Presence::Object], window)?),
        Node::Equal { path, key } => Answer::certain(source.equal_in(*path, key, window)?),
        Node::EqualAny { keys, .. } if keys.len() as u64 > values_max => return Ok(None),
        Node::EqualAny { path, keys } => Answer::certain(source.equal_any(*path, keys, window)?),
        Node::Range { path, range } => {
            let Some(found) = source.range_within(*path, range, values_max)? else { return Ok(None) };
            Answer::certain(found).within(window)
        }
        Node::Presence { path, kinds } => Answer::certain(source.presence_in(*path, kinds, window)?),
        Node::Matching { path, range, test } => {
            let Some(found) = matching(source, *path, range, test, values_max)? else { return Ok(None) };
            found.within(window)
        }
        Node::Ids(ids) if ids.len() as u64 > values_max => return Ok(None),
        Node::Ids(ids) => Answer::certain(numbers_of(source, ids)?).within(window),
        Node::IdRange { .. } if values_max < u64::MAX => return Ok(None),
        Node::IdRange { lower, upper } => {
            Answer::certain(source.ids_in_range(as_str(lower), as_str(upper))?).within(window)
        }
        Node::Union(nodes) => return union(nodes, source, bounds, tracer),
        Node::Intersection(nodes) => return intersection(nodes, source, bounds, tracer),
        Node::Difference(from, without) => return difference(from, without, source, bounds, tracer),
        Node::Check(inner) => {
            let Some(answer) = evaluate_bounded(inner, source, bounds, tracer.child(0))? else { return Ok(None) };
            let is_undecided = answer.is_undecided;
            Answer { certain: DocumentSet::new(), maybe: answer.possible(), is_undecided }
        }
    }))
}

fn union(nodes: &[Node], source: &impl Source, bounds: Bounds, tracer: &mut Tracer<'_>) -> Result<Option<Answer>> {
    let (mut certain, mut maybe, mut is_undecided) = (Union::new(), Union::new(), false);
    for (at, node) in nodes.iter().enumerate() {
        let Some(answer) = evaluate_bounded(node, source, bounds, tracer.child(at))? else { return Ok(None) };
        certain.add_set(&answer.certain);
        maybe.add_set(&answer.maybe);
        is_undecided |= answer.is_undecided;
    }
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Some(Answer { certain, maybe, is_undecided }))
}

/// What is likely to be small first; what has many values only after all others had their turn, as far as it must be. As
/// soon as reading the documents found so far costs less than what else there is to evaluate, they are left undecided.
fn intersection(
    nodes: &[Node],
    source: &impl Source,
    bounds: Bounds,
    tracer: &mut Tracer<'_>,
) -> Result<Option<Answer>> {
    let mut waiting: Vec<usize> = (0..nodes.len()).collect();
    waiting.sort_by_key(|at| expected_size(&nodes[*at]));
    let mut all: Option<Answer> = None;
    let mut values = FIRST_VALUES;
    while !waiting.is_empty() {
        let turn = if waiting.len() == 1 { u64::MAX } else { values };
        let mut too_long = Vec::new();
        if values > FIRST_VALUES {
            waiting.sort_by_cached_key(|at| expected(&nodes[*at], source).map(|expected| expected.documents));
        }
        for at in waiting {
            let most = turn.min(worth(all.as_ref())).min(bounds.values_max);
            if values > FIRST_VALUES && is_hopeless(&nodes[at], source, most) {
                too_long.push(at);
                continue;
            }
            let Some(answer) =
                evaluate_bounded(&nodes[at], source, Bounds { values_max: most, ..bounds }, tracer.child(at))?
            else {
                too_long.push(at);
                continue;
            };
            let met = match all.take() {
                Some(all) => all.and(answer),
                None => answer,
            };
            if met.is_empty() {
                return Ok(Some(Answer::default()));
            }
            all = Some(met);
        }
        waiting = too_long;
        let worth = worth(all.as_ref());
        if !waiting.is_empty() && turn >= worth.min(bounds.values_max) {
            return Ok(if worth <= bounds.values_max { all.map(Answer::undecided) } else { None });
        }
        values = values.saturating_mul(VALUES_GROWTH);
    }
    Ok(all)
}

/// Whether a node is expected to have far more values than it may visit.
fn is_hopeless(node: &Node, source: &impl Source, values_max: u64) -> bool {
    let most = values_max.saturating_mul(HOPELESS);
    most < u64::MAX && expected(node, source).is_some_and(|expected| expected.values > most)
}

/// How many values may be visited to spare reading these documents.
fn worth(found: Option<&Answer>) -> u64 {
    match found.map(|found| found.certain.len() + found.maybe.len()) {
        Some(count) if count <= READ_MAX => count * READ_COST,
        _ => u64::MAX,
    }
}

fn difference(
    from: &Node,
    without: &Node,
    source: &impl Source,
    bounds: Bounds,
    tracer: &mut Tracer<'_>,
) -> Result<Option<Answer>> {
    let Some(from) = evaluate_bounded(from, source, bounds, tracer.child(0))? else { return Ok(None) };
    if from.is_empty() {
        return Ok(Some(from));
    }
    let Some(without) = evaluate_bounded(without, source, bounds, tracer.child(1))? else { return Ok(None) };
    let is_undecided = from.is_undecided || without.is_undecided;
    let mut maybe = from.certain.and(&without.maybe);
    maybe.or_with(&from.maybe.and_not(&without.certain));
    let mut certain = from.certain;
    certain.and_not_with(&without.certain);
    certain.and_not_with(&without.maybe);
    Ok(Some(Answer { certain, maybe, is_undecided }))
}

/// Roughly how large a node's set is, before anything is known of it: 0 is smallest.
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

/// Tries each distinct value in a range.
fn matching(
    source: &impl Source,
    path: PathNumber,
    range: &KeyRange,
    test: &ValueTest,
    values_max: u64,
) -> Result<Option<Answer>> {
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
        ValueTest::Modulo { .. } => None,
    };
    source.walk_holding(path, range, Direction::Ascending, literal, visit)?;
    if left.is_none() {
        return Ok(None);
    }
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Some(Answer { certain, maybe, is_undecided: false }))
}

/// Whether the value with this key passes; none if the key does not say.
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
    }
}

fn numbers_of(source: &impl Source, ids: &[String]) -> Result<DocumentSet> {
    let mut numbers = Vec::with_capacity(ids.len());
    for id in ids {
        numbers.extend(source.number_of(id)?);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(DocumentSet::from_sorted(numbers))
}

fn as_str(bound: &Bound<String>) -> Bound<&str> {
    match bound {
        Bound::Included(text) => Bound::Included(text),
        Bound::Excluded(text) => Bound::Excluded(text),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Answer {
    /// Documents that match, whatever else is asked.
    pub(in crate::query) fn certain(certain: DocumentSet) -> Self {
        Answer { certain, maybe: DocumentSet::new(), is_undecided: false }
    }

    /// What of it lies within a window.
    pub(in crate::query) fn within(self, window: Window) -> Self {
        if window == Window::ALL {
            return self;
        }
        Answer { certain: self.certain.within(window), maybe: self.maybe.within(window), ..self }
    }

    /// Adds what lies in later chunks.
    pub(in crate::query) fn append(&mut self, later: Answer) {
        self.certain.or_with(&later.certain);
        self.maybe.or_with(&later.maybe);
        self.is_undecided |= later.is_undecided;
    }

    /// All of it may match, but the whole selector must be asked.
    fn undecided(self) -> Self {
        Answer { certain: DocumentSet::new(), maybe: self.possible(), is_undecided: true }
    }

    /// Everything that matches or may match.
    pub(crate) fn possible(self) -> DocumentSet {
        if self.maybe.is_empty() {
            return self.certain;
        }
        let mut possible = self.certain;
        possible.or_with(&self.maybe);
        possible
    }

    /// As [`Answer::possible`], without making a set where there is one.
    pub(in crate::query) fn candidates(&self) -> Cow<'_, DocumentSet> {
        if self.maybe.is_empty() { Cow::Borrowed(&self.certain) } else { Cow::Owned(self.clone().possible()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.certain.is_empty() && self.maybe.is_empty()
    }

    /// Whether a document may match, and if so whether it must be checked.
    pub(crate) fn has(&self, document: DocumentNumber) -> Option<bool> {
        if self.certain.contains(document) {
            return Some(false);
        }
        self.maybe.contains(document).then_some(true)
    }

    /// What is in both; the smaller one is filtered.
    pub(crate) fn and(self, other: Answer) -> Answer {
        if self.maybe.is_empty() && other.maybe.is_empty() {
            let (mut certain, larger) = match self.certain.len() <= other.certain.len() {
                true => (self.certain, other.certain),
                false => (other.certain, self.certain),
            };
            certain.and_with(&larger);
            return Answer::certain(certain);
        }
        let is_undecided = self.is_undecided || other.is_undecided;
        let certain = self.certain.and(&other.certain);
        let mut maybe = self.possible();
        maybe.and_with(&other.possible());
        maybe.and_not_with(&certain);
        Answer { certain, maybe, is_undecided }
    }
}
