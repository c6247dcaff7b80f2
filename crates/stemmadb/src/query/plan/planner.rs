//! The planner: translates a selector and a sort into a [`Plan`], using only the catalog. It does no I/O.
//!
//! Each condition becomes a set of documents that contains every match. Where the index can decide the condition, the
//! set is exact; otherwise the set is wrapped in [`Node::Check`].
//!
//! What the index contains, and what follows from it:
//! - a term for each scalar at each path, so comparisons with scalars are terms and ranges;
//! - a presence for each kind of value at each path *that crosses no array*, so whole kinds, existence and negation
//!   (the difference from presence) are exact there. Within arrays, conditions that a nested array or object could meet
//!   are checked on the documents that have an array there;
//! - nothing about arrays and objects as a whole: equality with them is bounded by the terms they contain.

use std::collections::HashMap;
use std::sync::Arc;

use super::catalog::Catalog;
use super::{DeclaredWalk, DrivingCondition, Node, Order, Plan, Walk};
use crate::index::{PathNumber, Presence};
use crate::query::language::interval::{Interval, IntervalPart, KeyRange};
use crate::query::language::intervals::Intervals;
use crate::query::language::normal::{Check, Leaf, Normal};
use crate::query::language::selector::{Comparison, Target};
use crate::query::language::sort::Sort;
use crate::value::{Kind, Path, Value};
use disjunctions::limit_passes;

mod condition;
mod declared;
mod disjunctions;
mod driving;
mod element;
mod identity;

/// Plans a query. If `is_limited`, the rows of an unsorted query may come in any order.
pub(crate) fn plan(selector: &Arc<Normal>, sort: &Sort, is_limited: bool, catalog: Catalog<'_>) -> Plan {
    let planner = Planner { catalog };
    let driving_paths = match sort.keys.first() {
        Some(first) if first.language.is_some() => DrivingPaths::None,
        Some(first) => DrivingPaths::Only(&first.path),
        None if is_limited => DrivingPaths::Any,
        None => DrivingPaths::None,
    };
    let Filter { node, residual, driving_conditions, declared } = planner.filter(selector, driving_paths, sort);
    Plan {
        filter: node,
        residual,
        whole: Arc::clone(selector),
        order: planner.order(sort, declared),
        driving_conditions,
    }
}

struct Planner<'a> {
    catalog: Catalog<'a>,
}

/// The planned selector.
struct Filter {
    node: Node,
    /// The conditions that the index leaves undecided.
    residual: Normal,
    /// The conditions that can be walked.
    driving_conditions: Vec<DrivingCondition>,
    declared: Option<DeclaredWalk>,
}

/// The paths whose conditions may drive a walk.
#[derive(Clone, Copy)]
enum DrivingPaths<'s> {
    None,
    /// Only the condition on this path.
    Only(&'s Path),
    Any,
}

/// A condition on the value at one target: the intersection of the comparisons on it, or another check.
struct PathCondition<'s> {
    target: &'s Target,
    negated: bool,
    predicate: Predicate<'s>,
    /// The leaves of the normal form that this condition represents.
    leaves: Vec<&'s Leaf>,
    /// The disjunctions that it represents.
    disjunctions: Vec<&'s Normal>,
}

enum Predicate<'s> {
    /// The value is in an interval.
    Within(Interval),
    /// The value is in one of several intervals.
    WithinAny(Intervals),
    /// The value equals an array or object.
    Container(&'s Value),
    /// Any check except a comparison.
    Check(&'s Check),
}

impl Planner<'_> {
    fn filter(&self, selector: &Normal, driving_paths: DrivingPaths<'_>, sort: &Sort) -> Filter {
        let children = match selector {
            Normal::All(children) => children.as_slice(),
            one => std::slice::from_ref(one),
        };
        // A document that may match is in the set of every conjunct, so exact conjuncts need not be checked again.
        let mut nodes = Vec::new();
        let mut residual = Vec::new();
        let (conditions, others) = self.conditions(children);
        nodes.extend(conditions.iter().map(|condition| self.condition_node(condition)));
        nodes.extend(others.iter().map(|other| self.in_document(other)));
        limit_passes(&mut nodes);
        let (condition_nodes, other_nodes) = nodes.split_at(conditions.len());
        for (condition, _) in conditions.iter().zip(condition_nodes).filter(|(_, node)| !node.is_exact()) {
            residual.extend(condition.leaves.iter().map(|leaf| Normal::Leaf((*leaf).clone())));
            residual.extend(condition.disjunctions.iter().map(|disjunction| (*disjunction).clone()));
        }
        let undecided = others.iter().zip(other_nodes).filter(|(_, node)| !node.is_exact());
        residual.extend(undecided.map(|(other, _)| (*other).clone()));
        let driving_conditions = self.driving_conditions(&conditions, &nodes, driving_paths);
        let declared = self.declared(sort, &conditions, &nodes);
        Filter { node: Node::intersection(nodes), residual: Normal::all(residual), driving_conditions, declared }
    }

    fn order(&self, sort: &Sort, declared: Option<DeclaredWalk>) -> Order {
        let Some(first) = sort.keys.first() else { return Order::Insertion };
        let names: Vec<&str> = first.path.segments().collect();
        let walk = if first.language.is_some() || matches!(names.as_slice(), ["_id" | "_rev", ..]) {
            None
        } else {
            let readings = self.catalog.readings(Some(PathNumber::ROOT), &[], false, &names);
            let is_plain = !readings.is_excluded && readings.arrays.is_empty();
            is_plain.then(|| Walk { path: readings.readings.first().and_then(|reading| reading.number) })
        };
        Order::Sorted { keys: sort.keys.clone(), walk, declared: declared.map(Box::new) }
    }

    /// The documents that match a selector on documents.
    fn in_document(&self, selector: &Normal) -> Node {
        match selector {
            Normal::Everything => Node::All,
            Normal::Nothing => Node::Empty,
            Normal::Any(children) => Node::union(children.iter().map(|child| self.in_document(child))),
            Normal::All(children) => {
                let (conditions, others) = self.conditions(children);
                let nodes = conditions.iter().map(|condition| self.condition_node(condition));
                let others = others.iter().map(|other| self.in_document(other));
                let mut nodes: Vec<Node> = nodes.chain(others).collect();
                limit_passes(&mut nodes);
                Node::intersection(nodes)
            }
            Normal::Leaf(leaf) => self.condition_node(&self.condition(leaf)),
        }
    }

    /// Splits `children` into conditions and other nodes. Comparisons on one target are merged, and disjunctions of
    /// them.
    fn conditions<'s>(&self, children: &'s [Normal]) -> (Vec<PathCondition<'s>>, Vec<&'s Normal>) {
        let mut conditions: Vec<PathCondition<'s>> = Vec::new();
        let mut others = Vec::new();
        let mut intervals: HashMap<&Target, usize> = HashMap::new();
        for child in children {
            let Normal::Leaf(leaf) = child else {
                others.push(child);
                continue;
            };
            let condition = self.condition(leaf);
            let joinable = !condition.negated && matches!(condition.predicate, Predicate::Within(_));
            if !joinable {
                conditions.push(condition);
                continue;
            }
            match intervals.get(condition.target) {
                Some(earlier) => conditions[*earlier].join(condition),
                None => {
                    intervals.insert(condition.target, conditions.len());
                    conditions.push(condition);
                }
            }
        }
        conditions.extend(self.joined_disjunctions(&mut others));
        (conditions, others)
    }

    fn condition<'s>(&self, leaf: &'s Leaf) -> PathCondition<'s> {
        let (negated, predicate) = match &leaf.check {
            Check::Compare(comparison, operand) => {
                let (negated, comparison) = match comparison {
                    Comparison::NotEqual => (true, Comparison::Equal),
                    other => (false, *other),
                };
                let is_container = matches!(operand, Value::Array(_) | Value::Object(_));
                match Interval::of(comparison, operand, self.text_bytes_max()) {
                    Some(interval) if comparison != Comparison::Equal || !is_container => {
                        (negated, Predicate::Within(interval))
                    }
                    _ => (negated, Predicate::Container(operand)),
                }
            }
            check => (leaf.negated, Predicate::Check(check)),
        };
        PathCondition { target: &leaf.target, negated, predicate, leaves: vec![leaf], disjunctions: Vec::new() }
    }

    /// The documents that meet a condition.
    fn condition_node(&self, condition: &PathCondition<'_>) -> Node {
        let Target::Path(path) = condition.target else {
            // In normal form, conditions on elements occur only within arrays.
            return Node::check(Node::All);
        };
        if let Some(node) = self.identity(path, condition) {
            return node;
        }
        let names: Vec<&str> = path.segments().collect();
        let readings = self.catalog.readings(Some(PathNumber::ROOT), &[], false, &names);
        if readings.is_excluded {
            return Node::check(Node::All);
        }
        let plain = readings.readings.first().and_then(|reading| reading.number);
        let straight = match (&condition.predicate, condition.negated) {
            (Predicate::Check(Check::Exists), true) => self.missing(path),
            (_, true) => {
                Node::difference(present(plain), self.positive(plain, Reach::Straight, &names, &condition.predicate))
            }
            (_, false) => self.positive(plain, Reach::Straight, &names, &condition.predicate),
        };
        if readings.arrays.is_empty() {
            return straight;
        }
        let anchor = Node::union(readings.arrays.iter().map(|array| presence(Some(*array), Kind::Array)));
        let through_arrays =
            if condition.negated || readings.is_cut {
                anchor
            } else {
                let crossing = readings.readings.iter().filter(|reading| reading.crosses);
                Node::union(crossing.map(|reading| {
                    self.positive(reading.number, Reach::Crossing(&anchor), &names, &condition.predicate)
                }))
            };
        Node::union([straight, Node::check(through_arrays)])
    }

    /// Documents in which the path ends at an object without such a field. Those in which it ends at an array without
    /// such a position are found through the arrays.
    fn missing(&self, path: &Path) -> Node {
        let mut node = Node::Empty;
        let mut parent = Some(PathNumber::ROOT);
        let mut names = Vec::new();
        for name in path.segments() {
            names.push(name);
            if !self.catalog.covers(&names) {
                return Node::check(Node::All);
            }
            let child = parent.and_then(|parent| self.catalog.field(parent, name));
            let objects = if names.len() == 1 { Node::All } else { presence(parent, Kind::Object) };
            node = Node::union([node, Node::difference(objects, present(child))]);
            parent = child;
        }
        node
    }

    fn text_bytes_max(&self) -> usize {
        self.catalog.policy.text_bytes_max()
    }
}

impl<'s> PathCondition<'s> {
    /// Intersects this condition with another one on the same target.
    fn join(&mut self, other: PathCondition<'s>) {
        if let (Predicate::Within(interval), Predicate::Within(further)) = (&mut self.predicate, other.predicate) {
            *interval = interval.clone().intersection(further);
            self.leaves.extend(other.leaves);
        }
    }
}

/// How a path is reached.
#[derive(Clone, Copy)]
enum Reach<'n> {
    /// Without crossing an array: a document has at most one value there, and its kind is indexed.
    Straight,
    /// Through an array: a document may have several values there, of which the scalars are indexed. This set contains
    /// every document that has a value there.
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

/// Documents with this scalar at a path.
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

/// Documents with a value in an interval at a path.
///
/// Null and the booleans are only three values, so directly before a range they are merged into it. Within arrays,
/// where there is no presence, so are whole kinds of scalars.
fn within(path: Option<PathNumber>, reach: Reach<'_>, interval: &Interval) -> Node {
    let mut kinds = Vec::new();
    let mut nodes = Vec::new();
    // Whole kinds that a following range may extend, and the lower bound of that range.
    let mut open: Option<(Vec<u8>, Vec<Kind>)> = None;
    for part in interval.parts() {
        let is_open_kind = match (&part, reach) {
            (IntervalPart::Whole(kind), Reach::Straight) => *kind <= Kind::Bool,
            (IntervalPart::Whole(kind), Reach::Crossing(_)) => *kind <= Kind::String,
            _ => false,
        };
        match part {
            IntervalPart::Whole(kind) if is_open_kind => {
                let open = open.get_or_insert_with(|| (KeyRange::of_kind(kind).lower, Vec::new()));
                open.1.push(kind);
                continue;
            }
            IntervalPart::Keys(keys) => {
                let lower = open.take().map_or(keys.lower, |(lower, _)| lower);
                nodes.push(range(path, KeyRange { lower, upper: keys.upper }));
                continue;
            }
            _ => {}
        }
        close(path, reach, open.take(), &mut kinds, &mut nodes);
        nodes.push(match (part, reach) {
            (IntervalPart::Key(key), _) => equal(path, key),
            (IntervalPart::Keys(keys), _) => range(path, keys),
            (IntervalPart::CutKey(key), _) => Node::check(equal(path, key)),
            (IntervalPart::CutKeys(keys), _) => Node::check(range(path, keys)),
            (IntervalPart::Whole(kind), Reach::Straight) => {
                kinds.push(Presence::from(kind));
                continue;
            }
            (IntervalPart::Candidates(kind), Reach::Straight) => Node::check(presence(path, kind)),
            (IntervalPart::Whole(_) | IntervalPart::Candidates(_), Reach::Crossing(anchor)) => {
                Node::check(anchor.clone())
            }
        });
    }
    close(path, reach, open, &mut kinds, &mut nodes);
    nodes.dedup();
    if let (Some(path), false) = (path, kinds.is_empty()) {
        nodes.push(Node::Presence { path, kinds });
    }
    Node::union(nodes)
}

/// Adds whole kinds that no range extended: as presence or, within arrays, as a range of their keys.
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
