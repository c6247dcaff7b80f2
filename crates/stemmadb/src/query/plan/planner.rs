//! Selector to plan. Pure: it knows the dictionary of paths and the policy, and does no I/O.
//!
//! Each condition becomes a set of documents that holds every one that matches. Where the index can decide, the set is
//! exact; where it can't, the condition's set is wrapped in [`Node::Check`].
//!
//! What the index holds, and what follows:
//! - a term for each scalar at each path, so comparisons with scalars are terms and ranges;
//! - a presence for each kind of value at each path *that crosses no array*, so whole kinds, existence and negation
//!   (a difference from presence) are exact there; within arrays, whatever a nested array or object could meet is checked
//!   on documents which have an array there;
//! - nothing about the contents of arrays and objects as such: equality with them is bounded by the terms they hold.

use std::collections::HashMap;
use std::sync::Arc;

use super::facts::Facts;
use super::{DeclaredWalk, Drive, Node, Order, Plan, Walk};
use crate::index::{PathNumber, Presence};
use crate::query::language::interval::{Interval, KeyRange, Piece};
use crate::query::language::normal::{Check, Leaf, Normal};
use crate::query::language::selector::{Comparison, Place};
use crate::query::language::sort::Sort;
use crate::value::{Kind, Path, Value};

mod condition;
mod declared;
mod drive;
mod element;
mod identity;

/// Everything about how a query is answered that can be known without reading. If it `is_limited`, rows in no order may
/// come in any.
pub(crate) fn plan(selector: &Arc<Normal>, sort: &Sort, is_limited: bool, facts: Facts<'_>) -> Plan {
    let planner = Planner { facts };
    let wanted = match sort.keys.first() {
        Some(first) if first.language.is_some() => Wanted::None,
        Some(first) => Wanted::Only(&first.path),
        None if is_limited => Wanted::Any,
        None => Wanted::None,
    };
    let Filter { node, residual, drives, declared } = planner.filter(selector, wanted, sort);
    Plan { filter: node, residual, whole: Arc::clone(selector), order: planner.order(sort, declared), drives }
}

struct Planner<'a> {
    facts: Facts<'a>,
}

/// What is made of a selector.
struct Filter {
    node: Node,
    /// What the index leaves undecided.
    residual: Normal,
    /// Which of the conditions can be walked.
    drives: Vec<Drive>,
    declared: Option<DeclaredWalk>,
}

/// Which conditions are worth walking.
#[derive(Clone, Copy)]
enum Wanted<'s> {
    None,
    /// The one on this path.
    Only(&'s Path),
    Any,
}

/// What is asked of the value at one place: the comparisons on it joined, or another condition.
struct Question<'s> {
    place: &'s Place,
    negated: bool,
    ask: Ask<'s>,
    /// The conditions this question stands for.
    asked: Vec<&'s Leaf>,
}

enum Ask<'s> {
    /// Between two marks.
    Within(Interval),
    /// Equal to an array or object.
    Container(&'s Value),
    /// Any check but a comparison.
    Check(&'s Check),
}

impl Planner<'_> {
    fn filter(&self, selector: &Normal, wanted: Wanted<'_>, sort: &Sort) -> Filter {
        let children = match selector {
            Normal::All(children) => children.as_slice(),
            one => std::slice::from_ref(one),
        };
        // A document that may match is in every conjunct's set, so what is exact of the conjuncts need not be asked again.
        let mut nodes = Vec::new();
        let mut residual = Vec::new();
        let (questions, others) = self.questions(children);
        for question in &questions {
            let node = self.answer(question);
            if !node.is_exact() {
                residual.extend(question.asked.iter().map(|leaf| Normal::Leaf((*leaf).clone())));
            }
            nodes.push(node);
        }
        for other in others {
            let node = self.in_document(other);
            if !node.is_exact() {
                residual.push(other.clone());
            }
            nodes.push(node);
        }
        let drives = self.drives(&questions, &nodes, wanted);
        let declared = self.declared(sort, &questions, &nodes);
        Filter { node: Node::intersection(nodes), residual: Normal::all(residual), drives, declared }
    }

    fn order(&self, sort: &Sort, declared: Option<DeclaredWalk>) -> Order {
        let Some(first) = sort.keys.first() else { return Order::Insertion };
        let names: Vec<&str> = first.path.segments().collect();
        let walk = if first.language.is_some() || matches!(names.as_slice(), ["_id" | "_rev", ..]) {
            None
        } else {
            let ways = self.facts.ways(Some(PathNumber::ROOT), &[], false, &names);
            let is_plain = !ways.is_excluded && ways.arrays.is_empty();
            is_plain.then(|| Walk { path: ways.ways.first().and_then(|way| way.number) })
        };
        Order::Sorted { keys: sort.keys.clone(), walk, declared: declared.map(Box::new) }
    }

    /// The documents that meet a selector on documents.
    fn in_document(&self, selector: &Normal) -> Node {
        match selector {
            Normal::Everything => Node::All,
            Normal::Nothing => Node::Empty,
            Normal::Any(children) => Node::union(children.iter().map(|child| self.in_document(child))),
            Normal::All(children) => {
                let (questions, others) = self.questions(children);
                let answers = questions.iter().map(|question| self.answer(question));
                let others = others.iter().map(|other| self.in_document(other));
                Node::intersection(answers.chain(others))
            }
            Normal::Leaf(leaf) => self.answer(&self.question(leaf)),
        }
    }

    /// The conditions among `children`, those that compare the value at one place joined; and the other children.
    fn questions<'s>(&self, children: &'s [Normal]) -> (Vec<Question<'s>>, Vec<&'s Normal>) {
        let mut questions: Vec<Question<'s>> = Vec::new();
        let mut others = Vec::new();
        let mut intervals: HashMap<&Place, usize> = HashMap::new();
        for child in children {
            let Normal::Leaf(leaf) = child else {
                others.push(child);
                continue;
            };
            let question = self.question(leaf);
            let joinable = !question.negated && matches!(question.ask, Ask::Within(_));
            if !joinable {
                questions.push(question);
                continue;
            }
            match intervals.get(question.place) {
                Some(earlier) => questions[*earlier].join(question),
                None => {
                    intervals.insert(question.place, questions.len());
                    questions.push(question);
                }
            }
        }
        (questions, others)
    }

    fn question<'s>(&self, leaf: &'s Leaf) -> Question<'s> {
        let (negated, ask) = match &leaf.check {
            Check::Compare(comparison, operand) => {
                let (negated, comparison) = match comparison {
                    Comparison::NotEqual => (true, Comparison::Equal),
                    other => (false, *other),
                };
                let is_container = matches!(operand, Value::Array(_) | Value::Object(_));
                match Interval::of(comparison, operand, self.text_bytes_max()) {
                    Some(interval) if comparison != Comparison::Equal || !is_container => {
                        (negated, Ask::Within(interval))
                    }
                    _ => (negated, Ask::Container(operand)),
                }
            }
            check => (leaf.negated, Ask::Check(check)),
        };
        Question { place: &leaf.place, negated, ask, asked: vec![leaf] }
    }

    /// The documents that meet a question.
    fn answer(&self, question: &Question<'_>) -> Node {
        let Place::At(path) = question.place else {
            // The normal form has conditions on elements only within arrays.
            return Node::check(Node::All);
        };
        if let Some(node) = self.identity(path, question) {
            return node;
        }
        let names: Vec<&str> = path.segments().collect();
        let ways = self.facts.ways(Some(PathNumber::ROOT), &[], false, &names);
        if ways.is_excluded {
            return Node::check(Node::All);
        }
        let plain = ways.ways.first().and_then(|way| way.number);
        let straight = match (&question.ask, question.negated) {
            (Ask::Check(Check::Exists), true) => self.missing(path),
            (_, true) => Node::difference(present(plain), self.positive(plain, Reach::Straight, &names, &question.ask)),
            (_, false) => self.positive(plain, Reach::Straight, &names, &question.ask),
        };
        if ways.arrays.is_empty() {
            return straight;
        }
        let anchor = Node::union(ways.arrays.iter().map(|array| presence(Some(*array), Kind::Array)));
        let through_arrays = if question.negated || ways.is_cut {
            anchor
        } else {
            let crossing = ways.ways.iter().filter(|way| way.crosses);
            Node::union(crossing.map(|way| self.positive(way.number, Reach::Crossing(&anchor), &names, &question.ask)))
        };
        Node::union([straight, Node::check(through_arrays)])
    }

    /// Documents in which the path ends at an object that has no such field.
    fn missing(&self, path: &Path) -> Node {
        let mut node = Node::Empty;
        let mut parent = Some(PathNumber::ROOT);
        let mut names = Vec::new();
        for name in path.segments() {
            names.push(name);
            if !self.facts.covers(&names) {
                return Node::check(Node::All);
            }
            let child = parent.and_then(|parent| self.facts.field(parent, name));
            let objects = if names.len() == 1 { Node::All } else { presence(parent, Kind::Object) };
            node = Node::union([node, Node::difference(objects, present(child))]);
            parent = child;
        }
        node
    }

    fn text_bytes_max(&self) -> usize {
        self.facts.policy.text_bytes_max()
    }
}

impl<'s> Question<'s> {
    /// Asks what another question on the same place asks, too.
    fn join(&mut self, other: Question<'s>) {
        if let (Ask::Within(interval), Ask::Within(further)) = (&mut self.ask, other.ask) {
            *interval = interval.clone().intersection(further);
            self.asked.extend(other.asked);
        }
    }
}

/// How a path is reached.
#[derive(Clone, Copy)]
enum Reach<'n> {
    /// Without crossing an array: a document has one value there, and its kind is indexed.
    Straight,
    /// Through an array: a document has several values there, of which the scalars are indexed. Every document which has
    /// a value there is in this set.
    Crossing(&'n Node),
}

/// Documents with a value of this kind at a path that crosses no array.
fn presence(path: Option<PathNumber>, kind: Kind) -> Node {
    match path {
        Some(path) => Node::Presence { path, kinds: vec![Presence::from(kind)] },
        None => Node::Empty,
    }
}

/// Documents with any value at a path that crosses no array.
fn present(path: Option<PathNumber>) -> Node {
    match path {
        Some(path) => Node::Presence { path, kinds: Kind::ALL.into_iter().map(Presence::from).collect() },
        None => Node::Empty,
    }
}

/// Documents with a scalar in a range at a path.
fn range(path: Option<PathNumber>, range: KeyRange) -> Node {
    match path {
        Some(path) if !range.is_empty() => Node::Range { path, range },
        _ => Node::Empty,
    }
}

/// Documents with a scalar at a path.
fn equal(path: Option<PathNumber>, key: Vec<u8>) -> Node {
    match path {
        Some(path) => Node::Equal { path, key },
        None => Node::Empty,
    }
}

/// Documents with one of these scalars at a path.
fn equal_any(path: Option<PathNumber>, mut keys: Vec<Vec<u8>>) -> Node {
    keys.sort();
    keys.dedup();
    match (path, keys.len()) {
        (None, _) | (_, 0) => Node::Empty,
        (Some(path), 1) => Node::Equal { path, key: keys.remove(0) },
        (Some(path), _) => Node::EqualAny { path, keys },
    }
}

/// Documents in which the pieces of an interval are found at a path.
///
/// Null and the truth values are three values at most, so before a range they are part of it. So are whole kinds of
/// scalars within arrays, where there is no presence.
fn within(path: Option<PathNumber>, reach: Reach<'_>, interval: &Interval) -> Node {
    let mut kinds = Vec::new();
    let mut nodes = Vec::new();
    // Whole kinds that a range may still continue, and from where.
    let mut open: Option<(Vec<u8>, Vec<Kind>)> = None;
    for piece in interval.pieces() {
        let is_open_kind = match (&piece, reach) {
            (Piece::Whole(kind), Reach::Straight) => *kind <= Kind::Bool,
            (Piece::Whole(kind), Reach::Crossing(_)) => *kind <= Kind::String,
            _ => false,
        };
        match piece {
            Piece::Whole(kind) if is_open_kind => {
                let open = open.get_or_insert_with(|| (KeyRange::of_kind(kind).lower, Vec::new()));
                open.1.push(kind);
                continue;
            }
            Piece::Keys(keys) => {
                let lower = open.take().map_or(keys.lower, |(lower, _)| lower);
                nodes.push(range(path, KeyRange { lower, upper: keys.upper }));
                continue;
            }
            _ => {}
        }
        close(path, reach, open.take(), &mut kinds, &mut nodes);
        nodes.push(match (piece, reach) {
            (Piece::Key(key), _) => equal(path, key),
            (Piece::Keys(keys), _) => range(path, keys),
            (Piece::CutKey(key), _) => Node::check(equal(path, key)),
            (Piece::CutKeys(keys), _) => Node::check(range(path, keys)),
            (Piece::Whole(kind), Reach::Straight) => {
                kinds.push(Presence::from(kind));
                continue;
            }
            (Piece::Part(kind), Reach::Straight) => Node::check(presence(path, kind)),
            (Piece::Whole(_) | Piece::Part(_), Reach::Crossing(anchor)) => Node::check(anchor.clone()),
        });
    }
    close(path, reach, open, &mut kinds, &mut nodes);
    nodes.dedup();
    if let (Some(path), false) = (path, kinds.is_empty()) {
        nodes.push(Node::Presence { path, kinds });
    }
    Node::union(nodes)
}

/// Whole kinds that no range continued: presence, or within arrays the range of their keys.
fn close(
    path: Option<PathNumber>,
    reach: Reach<'_>,
    open: Option<(Vec<u8>, Vec<Kind>)>,
    kinds: &mut Vec<Presence>,
    nodes: &mut Vec<Node>,
) {
    let Some((lower, whole)) = open else { return };
    match (reach, whole.last()) {
        (Reach::Crossing(_), Some(last)) => {
            nodes.push(range(path, KeyRange { lower, upper: KeyRange::of_kind(*last).upper }));
        }
        _ => kinds.extend(whole.into_iter().map(Presence::from)),
    }
}
