//! A plan: how the index answers a query, as a tree of set operations.
//!
//! Evaluating a node gives two sets: documents that *certainly* match, and documents that *may* match and must be looked
//! at. [`Node::Check`] moves everything below it to the second. So one tree serves exact and inexact parts side by side,
//! also below a difference, and the residual selector is only asked of documents that the index can't decide.
//!
//! Joins are flat, and simplified as they are made.

pub(in crate::query) mod facts;
pub(in crate::query) mod planner;
pub(in crate::query) mod request;

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use super::language::interval::KeyRange;
use super::language::normal::Normal;
use super::language::operators::Pattern;
use super::language::sort::SortPath;
use crate::index::{PathNumber, Presence};

pub use request::Query;

/// How a query is answered.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Which documents match, or may match.
    pub(crate) filter: Node,
    /// What a document that may match must meet.
    pub(crate) residual: Normal,
    /// The whole selector: for documents whose terms are incomplete.
    pub(crate) whole: Arc<Normal>,
    /// How rows come into order.
    pub(crate) order: Order,
    /// Conditions whose values may be walked one after the other, instead of uniting their documents first.
    pub(crate) drives: Vec<Drive>,
}

/// How rows come into order.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// By document number.
    Insertion,
    /// By paths, and ties by id.
    Sorted {
        keys: Vec<SortPath>,
        /// If the index has the first path's values in order, they may be walked; else rows are collected and sorted.
        walk: Option<Walk>,
        /// If a declared index has the rows in order, it may be walked: that is cheaper.
        declared: Option<Box<DeclaredWalk>>,
    },
}

/// A declared index which has the rows in order.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredWalk {
    pub(crate) name: String,
    pub(crate) path: PathNumber,
    /// The keys of documents that meet the conditions on its values.
    pub(crate) range: KeyRange,
    /// The bytes of a key that come before the values which are sorted by: those that equalities ask for.
    pub(crate) lead: Vec<u8>,
    /// Whether the order asked for is the other way round.
    pub(crate) is_reversed: bool,
    /// What the conditions ask which the range meets.
    pub(crate) met: Vec<Node>,
    /// What the other conditions ask.
    pub(crate) rest: Node,
}

/// The first sort path, as the index knows it.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// None if no document has this path.
    pub(crate) path: Option<PathNumber>,
}

/// One of several conditions that must all be met, on the value at one path that crosses no array. Its values can be
/// walked in order, and each document comes up once.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    /// Which of the conditions it is: the same one whenever the same selector is planned.
    pub(crate) ordinal: u8,
    pub(crate) path: PathNumber,
    pub(crate) values: Values,
    /// Documents that meet the condition with anything but these values: none of them has one of these.
    pub(crate) others: Node,
    /// What the other conditions ask.
    pub(crate) rest: Node,
}

/// The values of one path that meet a condition.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// All in a range.
    Range(KeyRange),
    /// Those with one of these keys, which ascend.
    Keys(Vec<Vec<u8>>),
    /// Those in a range that pass a test.
    Matching(KeyRange, ValueTest),
}

/// A set of documents, by what the index knows.
#[derive(Clone, Debug, PartialEq)]
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
    /// Documents with a term in a range that passes a test; the test is made once for each distinct value.
    Matching { path: PathNumber, range: KeyRange, test: ValueTest },
    /// Documents with one of these ids.
    Ids(Vec<String>),
    /// Documents with an id in a range.
    IdRange { lower: Bound<String>, upper: Bound<String> },
    /// Documents in one of these sets.
    Union(Vec<Node>),
    /// Documents in all of these sets.
    Intersection(Vec<Node>),
    /// Documents in the first set and not in the second.
    Difference(Box<Node>, Box<Node>),
    /// Documents in this set, which may match.
    Check(Box<Node>),
}

/// A test of distinct values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueTest {
    /// A pattern found in a string. Strings that were cut may match.
    Regex(Pattern),
    /// A remainder.
    Modulo { divisor: i64, remainder: i64 },
}

impl Node {
    /// Documents in one of `nodes`.
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
        let mut flat = joined_terms(flat);
        match flat.len() {
            0 => Node::Empty,
            1 => flat.remove(0),
            _ => Node::Union(flat),
        }
    }

    /// Documents in all of `nodes`.
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
        let node = match flat.len() {
            0 => Node::All,
            1 => flat.remove(0),
            _ => Node::Intersection(flat),
        };
        if check { Node::check(node) } else { node }
    }

    /// Documents in `from` and not in `without`.
    pub(crate) fn difference(from: Node, without: Node) -> Node {
        match (from, without) {
            (Node::Empty, _) | (_, Node::All) => Node::Empty,
            (from, Node::Empty) => from,
            (from, without) => Node::Difference(Box::new(from), Box::new(without)),
        }
    }

    /// Documents in `node`, which may match.
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
            Node::Check(_) | Node::Matching { test: ValueTest::Regex(_), .. } => false,
            Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().all(Node::is_exact),
            Node::Difference(from, without) => from.is_exact() && without.is_exact(),
            _ => true,
        }
    }

    /// The nodes directly below.
    pub(crate) fn children(&self) -> Vec<&Node> {
        match self {
            Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().collect(),
            Node::Difference(from, without) => vec![from, without],
            Node::Check(inner) => vec![inner],
            _ => Vec::new(),
        }
    }
}

/// Looks for terms of one path together, in the place of the first.
fn joined_terms(nodes: Vec<Node>) -> Vec<Node> {
    let mut joined: Vec<Node> = Vec::with_capacity(nodes.len());
    let mut places: HashMap<PathNumber, usize> = HashMap::new();
    for node in nodes {
        let (path, keys) = match node {
            Node::Equal { path, key } => (path, vec![key]),
            Node::EqualAny { path, keys } => (path, keys),
            other => {
                joined.push(other);
                continue;
            }
        };
        match places.get(&path).and_then(|at| joined.get_mut(*at)) {
            Some(Node::EqualAny { keys: earlier, .. }) => earlier.extend(keys),
            _ => {
                places.insert(path, joined.len());
                joined.push(Node::EqualAny { path, keys });
            }
        }
    }
    for node in &mut joined {
        if let Node::EqualAny { path, keys } = node {
            keys.sort();
            keys.dedup();
            if let [key] = keys.as_mut_slice() {
                *node = Node::Equal { path: *path, key: std::mem::take(key) };
            }
        }
    }
    joined
}
