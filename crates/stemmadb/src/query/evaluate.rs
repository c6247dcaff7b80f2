//! A plan's filter to sets of documents.
//!
//! Every node gives what certainly matches and, apart from it, what may match. Joins evaluate what is likely to be small
//! first, stop when nothing is left, and intersect in the order of the sizes found.

use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

use super::interval::KeyRange;
use super::plan::{Node, ValueTest};
use super::source::Source;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence, Union};
use crate::tree::Direction;
use crate::value::Value;
use crate::value::collate::key;

/// The documents of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Those that match.
    pub(crate) certain: DocumentSet,
    /// Those that may match; none of them is in `certain`.
    pub(crate) maybe: DocumentSet,
}

/// What evaluating a node took: one per node of the plan, shaped like it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// What came of it; none if it was not evaluated.
    pub(crate) measured: Option<Measured>,
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
    let Some(trace) = trace else { return evaluate_node(node, source, &mut Tracer(None)) };
    let started = Instant::now();
    trace.children = node.children().iter().map(|_| Trace::default()).collect();
    let answer = evaluate_node(node, source, &mut Tracer(Some(&mut trace.children)))?;
    trace.measured = Some(Measured {
        certain_count: answer.certain.len(),
        maybe_count: answer.maybe.len(),
        time: started.elapsed(),
    });
    Ok(answer)
}

/// The traces of a node's children, if they are measured.
struct Tracer<'t>(Option<&'t mut Vec<Trace>>);

impl Tracer<'_> {
    fn child(&mut self, at: usize) -> Option<&mut Trace> {
        self.0.as_mut().and_then(|traces| traces.get_mut(at))
    }
}

fn evaluate_node(node: &Node, source: &impl Source, tracer: &mut Tracer<'_>) -> Result<Answer> {
    Ok(match node {
        Node::Empty => Answer::default(),
        Node::All => Answer::certain(source.presence(PathNumber::ROOT, &[Presence::Object])?),
        Node::Equal { path, key } => Answer::certain(source.equal(*path, key)?),
        Node::EqualAny { path, keys } => Answer::certain(source.equal_any(*path, keys)?),
        Node::Range { path, range } => Answer::certain(source.range(*path, range)?),
        Node::Presence { path, kinds } => Answer::certain(source.presence(*path, kinds)?),
        Node::Matching { path, range, test } => matching(source, *path, range, test)?,
        Node::Ids(ids) => Answer::certain(numbers_of(source, ids)?),
        Node::IdRange { lower, upper } => Answer::certain(source.ids_in_range(as_str(lower), as_str(upper))?),
        Node::Union(nodes) => union(nodes, source, tracer)?,
        Node::Intersection(nodes) => intersection(nodes, source, tracer)?,
        Node::Difference(from, without) => difference(from, without, source, tracer)?,
        Node::Check(inner) => {
            let answer = evaluate(inner, source, tracer.child(0))?;
            Answer { certain: DocumentSet::new(), maybe: answer.possible() }
        }
    })
}

fn union(nodes: &[Node], source: &impl Source, tracer: &mut Tracer<'_>) -> Result<Answer> {
    let (mut certain, mut maybe) = (Union::new(), Union::new());
    for (at, node) in nodes.iter().enumerate() {
        let answer = evaluate(node, source, tracer.child(at))?;
        certain.add_set(&answer.certain);
        maybe.add_set(&answer.maybe);
    }
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Answer { certain, maybe })
}

fn intersection(nodes: &[Node], source: &impl Source, tracer: &mut Tracer<'_>) -> Result<Answer> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|at| expected_size(&nodes[*at]));
    let mut answers = Vec::with_capacity(nodes.len());
    for at in order {
        let answer = evaluate(&nodes[at], source, tracer.child(at))?;
        if answer.is_empty() {
            return Ok(Answer::default());
        }
        answers.push(answer);
    }
    answers.sort_by_key(|answer| answer.certain.len() + answer.maybe.len());
    let mut answers = answers.into_iter();
    let Some(mut all) = answers.next() else { return Ok(Answer::default()) };
    for answer in answers {
        all = all.and(answer);
        if all.is_empty() {
            break;
        }
    }
    Ok(all)
}

fn difference(from: &Node, without: &Node, source: &impl Source, tracer: &mut Tracer<'_>) -> Result<Answer> {
    let from = evaluate(from, source, tracer.child(0))?;
    if from.is_empty() {
        return Ok(from);
    }
    let without = evaluate(without, source, tracer.child(1))?;
    let mut maybe = from.certain.and(&without.maybe);
    maybe.or_with(&from.maybe.and_not(&without.certain));
    let mut certain = from.certain;
    certain.and_not_with(&without.certain);
    certain.and_not_with(&without.maybe);
    Ok(Answer { certain, maybe })
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
fn matching(source: &impl Source, path: PathNumber, range: &KeyRange, test: &ValueTest) -> Result<Answer> {
    let (mut certain, mut maybe) = (Union::new(), Union::new());
    source.walk(path, range, Direction::Ascending, &mut |value_key, documents| {
        match passes(test, value_key)? {
            Some(true) => certain.add_set(&documents),
            Some(false) => {}
            None => maybe.add_set(&documents),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let certain = certain.finish();
    let mut maybe = maybe.finish();
    maybe.and_not_with(&certain);
    Ok(Answer { certain, maybe })
}

/// Whether the value with this key passes; none if the key does not say.
fn passes(test: &ValueTest, value_key: &[u8]) -> Result<Option<bool>> {
    match test {
        ValueTest::Regex(pattern) => {
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
    fn certain(certain: DocumentSet) -> Self {
        Answer { certain, maybe: DocumentSet::new() }
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

    fn and(self, other: Answer) -> Answer {
        if self.maybe.is_empty() && other.maybe.is_empty() {
            let mut certain = self.certain;
            certain.and_with(&other.certain);
            return Answer { certain, maybe: DocumentSet::new() };
        }
        let certain = self.certain.and(&other.certain);
        let mut maybe = self.possible();
        maybe.and_with(&other.possible());
        maybe.and_not_with(&certain);
        Answer { certain, maybe }
    }
}
