//! Query plans: trees of set operations on the index.
//!
//! Evaluating a node yields two sets: documents that *certainly* match, and documents that *may* match and must be
//! checked. [`Node::Check`] moves everything below it into the second set. One tree therefore combines exact and
//! inexact parts, also below a difference, and the residual selector is checked only on documents that the index cannot
//! decide.
//!
//! Unions and intersections are flattened and [simplified](simplify) when they are built.

pub(in crate::query) mod catalog;
pub(in crate::query) mod planner;
pub(in crate::query) mod request;
mod simplify;

use std::ops::Bound;
use std::sync::Arc;

use super::language::interval::KeyRange;
use super::language::normal::Normal;
use super::language::operators::Pattern;
use super::language::sort::SortPath;
use crate::index::{PathNumber, Presence};

pub use request::Query;

/// The plan of a query.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The documents that match or may match.
    pub(crate) filter: Node,
    /// The conditions that a document that may match must be checked against.
    pub(crate) residual: Normal,
    /// The whole selector, for documents whose terms are incomplete.
    pub(crate) whole: Arc<Normal>,
    /// How rows are ordered.
    pub(crate) order: Order,
    /// Conditions whose values can be walked one after the other, instead of computing the union of their documents
    /// first.
    pub(crate) driving_conditions: Vec<DrivingCondition>,
}

/// How rows are ordered.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// By document number.
    Insertion,
    /// By paths; the id breaks ties.
    Sorted {
        keys: Vec<SortPath>,
        /// If the index has the first path's values in order, they can be walked. Otherwise rows are collected and
        /// sorted.
        walk: Option<Walk>,
        /// If a declared index has the rows in order, walking it is cheaper.
        declared: Option<Box<DeclaredWalk>>,
    },
}

/// A walk over a declared index that has the rows in order.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredWalk {
    pub(crate) name: String,
    pub(crate) path: PathNumber,
    /// The keys of documents that meet the conditions on the index's values.
    pub(crate) range: KeyRange,
    /// The key bytes before the sorted values: the values fixed by equalities.
    pub(crate) lead: Vec<u8>,
    /// Whether the requested order is the reverse of the index's order.
    pub(crate) is_reversed: bool,
    /// The conditions that `range` already enforces.
    pub(crate) covered: Vec<Node>,
    /// The other conditions.
    pub(crate) rest: Node,
}

/// A walk over the first sort path in the index.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// `None` if no document has this path.
    pub(crate) path: Option<PathNumber>,
}

/// A condition of a conjunction whose values are walked in order; named after the driving table of a join. Its path
/// crosses no array, so the walk visits each document once.
#[derive(Clone, Debug)]
pub(crate) struct DrivingCondition {
    /// Identifies the condition: planning the same selector again assigns the same ordinal.
    pub(crate) ordinal: u8,
    pub(crate) path: PathNumber,
    pub(crate) values: Values,
    /// Documents that meet the condition with other values than these; none of them has one of these values.
    pub(crate) others: Node,
    /// The other conditions.
    pub(crate) rest: Node,
}

/// The values of one path that meet a condition.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// All values in a range.
    Range(KeyRange),
    /// The values with these keys, in ascending order.
    Keys(Vec<Vec<u8>>),
    /// The values in a range that pass a test.
    Matching(KeyRange, ValueTest),
}

/// An expression that the index evaluates to a set of documents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// No document.
    Empty,
    /// Every live document.
    All,
    /// Documents with this term.
    Equal { path: PathNumber, key: Vec<u8> },
    /// Documents with one of these terms.
    EqualAny { path: PathNumber, keys: Vec<Vec<u8>> },
    /// Documents with a term in a range.
    Range { path: PathNumber, range: KeyRange },
    /// Documents with a value of one of these kinds at the path, without crossing arrays.
    Presence { path: PathNumber, kinds: Vec<Presence> },
    /// Documents with a term in a range that passes a test, which is evaluated once per distinct value.
    Matching { path: PathNumber, range: KeyRange, test: ValueTest },
    /// Documents with one of these ids.
    Ids(Vec<String>),
    /// Documents with an id in a range.
    IdRange { lower: Bound<String>, upper: Bound<String> },
    /// Documents in at least one of these sets.
    Union(Vec<Node>),
    /// Documents in all of these sets.
    Intersection(Vec<Node>),
    /// Documents in the first set and not in the second.
    Difference(Box<Node>, Box<Node>),
    /// Documents in this set, which may match but must be checked.
    Check(Box<Node>),
}

/// A test of distinct values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueTest {
    /// A regular expression found in a string. Strings with a cut key may match.
    Regex(Pattern),
    /// A remainder.
    Modulo { divisor: i64, remainder: i64 },
    /// One of several tests, each of the values in its range.
    Any(Vec<(KeyRange, ValueTest)>),
}

impl Node {
    /// The union of `nodes`, simplified.
    pub(crate) fn union(nodes: impl IntoIterator<Item = Node>) -> Node {
        let mut flat = Vec::new();
        for node in nodes {
            match node {
                Node::Empty => {}
                Node::All => return Node::All,
                Node::Union(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        let mut flat = simplify::union_parts(flat);
        match flat.len() {
            0 => Node::Empty,
            1 => flat.remove(0),
            _ => Node::Union(flat),
        }
    }

    /// The intersection of `nodes`, simplified.
    pub(crate) fn intersection(nodes: impl IntoIterator<Item = Node>) -> Node {
        let mut flat = Vec::new();
        let mut check = false;
        for node in nodes {
            match node {
                Node::Empty => return Node::Empty,
                Node::All => {}
                Node::Check(inner) if *inner == Node::All => check = true,
                Node::Intersection(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        let mut flat = simplify::intersection_parts(flat);
        if flat.contains(&Node::Empty) {
            return Node::Empty;
        }
        let node = match flat.len() {
            0 => Node::All,
            1 => flat.remove(0),
            _ => Node::Intersection(flat),
        };
        if check { Node::check(node) } else { node }
    }

    /// The documents in `from` and not in `without`, simplified.
    pub(crate) fn difference(from: Node, without: Node) -> Node {
        match (from, without) {
            (Node::Empty, _) | (_, Node::All) => Node::Empty,
            (from, Node::Empty) => from,
            (from, without) => Node::Difference(Box::new(from), Box::new(without)),
        }
    }

    /// Marks the documents in `node` as candidates that must be checked.
    pub(crate) fn check(node: Node) -> Node {
        match node {
            Node::Empty => Node::Empty,
            Node::Check(inner) => Node::Check(inner),
            other => Node::Check(Box::new(other)),
        }
    }

    /// Whether every document in the set certainly matches.
    pub(crate) fn is_exact(&self) -> bool {
        match self {
            Node::Check(_) => false,
            Node::Matching { test, .. } => test.is_exact(),
            Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().all(Node::is_exact),
            Node::Difference(from, without) => from.is_exact() && without.is_exact(),
            _ => true,
        }
    }

    /// The nodes whose intersection this is: itself, if it is none.
    pub(crate) fn conjuncts(&self) -> &[Node] {
        match self {
            Node::Intersection(nodes) => nodes,
            one => std::slice::from_ref(one),
        }
    }

    /// The child nodes.
    pub(crate) fn children(&self) -> Vec<&Node> {
        match self {
            Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().collect(),
            Node::Difference(from, without) => vec![from, without],
            Node::Check(inner) => vec![inner],
            _ => Vec::new(),
        }
    }
}

impl ValueTest {
    /// Whether the key of a value decides the test. Keys of long strings do not hold the whole text.
    fn is_exact(&self) -> bool {
        match self {
            ValueTest::Regex(_) => false,
            ValueTest::Modulo { .. } => true,
            ValueTest::Any(tests) => tests.iter().all(|(_, test)| test.is_exact()),
        }
    }
}
