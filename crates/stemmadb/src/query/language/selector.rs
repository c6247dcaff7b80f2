//! A selector: which documents are asked for.
//!
//! A selector is a tree of conditions on paths, joined by *and*, *or* and *not*. Mango JSON ([`Selector::parse`]) and the
//! Rust functions ([`field`](fn@super::field) and its conditions) make the same tree, and it prints back as Mango JSON.
//!
//! Invariants: a tree is at most [`DEPTH_MAX`] levels deep, so every walk over it may recurse; it holds at most
//! [`CONDITIONS_MAX`] conditions and [`LISTED_MAX`] listed values. A builder that is handed something wrong keeps the
//! problem, and every use of the selector reports it.

use std::fmt;
use std::ops::Not;
use std::sync::Arc;

use super::matcher::Matcher;
use super::naive;
use super::normal::Normal;
use super::operators::Pattern;
use super::parse;
use super::print;
use crate::value::{Kind, Limits, Path, Value};
use crate::{Error, Result};

/// How deep conditions may nest.
pub(crate) const DEPTH_MAX: usize = 64;
/// How many conditions one selector may have.
pub(crate) const CONDITIONS_MAX: usize = 16_384;
/// How many regular expressions one selector may have: each may take a megabyte or two.
pub(crate) const PATTERNS_MAX: usize = 64;
/// How many values the lists of one selector (`$in`, `$nin`, `$all`) may have together.
pub(crate) const LISTED_MAX: usize = 65_536;

/// Which documents are asked for: conditions on paths, joined by *and*, *or* and *not*.
///
/// Cheap to clone. A selector made by the Rust functions from something wrong (an impossible path or pattern, too deep a
/// tree) says so when it is used, or when [`Selector::check`] is called.
#[derive(Clone)]
pub struct Selector {
    tree: Result<Arc<Tree>, Arc<Error>>,
}

/// A tree of conditions with its size, so that the bounds hold without walking it again.
struct Tree {
    node: Node,
    size: Size,
}

/// How large a tree is, in the three measures that are bounded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    depth: usize,
    condition_count: usize,
    listed_count: usize,
    pattern_count: usize,
}

/// One node of a selector, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// Matches every document.
    Everything,
    /// Matches no document.
    Nothing,
    /// `$and`.
    All(Vec<Node>),
    /// `$or`, never empty.
    Any(Vec<Node>),
    /// `$not`; of [`Node::Any`] it prints as `$nor`.
    Not(Box<Node>),
    /// A test of the value at a place.
    Condition(Place, Test),
}

/// Where a condition looks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The value at hand: an array's element inside `$elemMatch` and `$allMatch`, a key inside `$keyMapMatch`.
    Itself,
    /// A path below the value at hand: the document, or an array's element.
    At(Path),
}

/// What a condition asks of the value it finds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// `$eq $ne $lt $lte $gt $gte`, in the order of all values.
    Compare(Comparison, Value),
    /// `$in`: equal to one of these, or an array with an element equal to one of these.
    In(Vec<Value>),
    /// `$nin`: not `$in`.
    NotIn(Vec<Value>),
    /// `$exists`.
    Exists(bool),
    /// `$type`.
    Type(Kind),
    /// `$beginsWith`: a string with this prefix.
    BeginsWith(String),
    /// `$regex`: a string in which the pattern is found.
    Regex(Pattern),
    /// `$mod`: an integer with this remainder; the remainder has the sign of the integer.
    Modulo {
        /// Not zero.
        divisor: i64,
        /// Compared as it is.
        remainder: i64,
    },
    /// `$size`: an array of this length.
    Size(u64),
    /// `$all`: an array in which each of these is an element.
    All(Vec<Value>),
    /// `$elemMatch`: an array with an element that matches.
    ElemMatch(Box<Node>),
    /// `$allMatch`: an array that is not empty and whose elements all match.
    AllMatch(Box<Node>),
    /// `$keyMapMatch`: an object with a key that matches.
    KeyMapMatch(Box<Node>),
}

/// A comparison in the order of all values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Selector {
    /// The selector that Mango JSON asks for: an object such as `{"year": {"$gte": 1960}}`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the place and the operator, and the nearest operator if it is unknown.
    pub fn parse(json: &Value) -> Result<Self> {
        let (node, size) = parse::selector(json)?;
        Ok(Selector::from_tree(node, size))
    }

    /// The selector that Mango JSON text asks for.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it isn't JSON, or not a selector.
    pub fn parse_text(json: &str) -> Result<Self> {
        Selector::parse(&Value::parse(json.as_bytes())?)
    }

    /// The selector that matches every document: `{}`.
    pub fn everything() -> Self {
        Selector::from_tree(Node::Everything, Size::default())
    }

    /// The selector that matches no document: `{"_id": {"$in": []}}`.
    pub fn nothing() -> Self {
        Selector::from_tree(Node::Nothing, Size::default())
    }

    /// Whether the selector can be used.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with what was wrong where the selector was made.
    pub fn check(&self) -> Result<()> {
        self.node().map(|_| ())
    }

    /// Documents which match both.
    #[must_use]
    pub fn and(self, other: Selector) -> Self {
        all_of([self, other])
    }

    /// Documents which match one of both, or both.
    #[must_use]
    pub fn or(self, other: Selector) -> Self {
        any_of([self, other])
    }

    /// Whether a document, with its `_id` and `_rev` among its fields if they matter, matches.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the selector itself is wrong.
    pub fn matches(&self, document: &Value) -> Result<bool> {
        Ok(naive::matches(self.node()?, document))
    }

    /// The selector made ready for many documents.
    pub(crate) fn matcher(&self) -> Result<Matcher> {
        self.normal().map(Matcher::new)
    }

    /// The same selector as Mango JSON; parsing it gives this selector again.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the selector itself is wrong.
    pub fn to_value(&self) -> Result<Value> {
        Ok(print::selector(self.node()?))
    }

    /// The normal form, which is planned and matched.
    pub(crate) fn normal(&self) -> Result<Normal> {
        Normal::of(self.node()?)
    }

    /// The tree, or what was wrong with it.
    pub(crate) fn node(&self) -> Result<&Node> {
        match &self.tree {
            Ok(tree) => Ok(&tree.node),
            Err(error) => Err(error.duplicate()),
        }
    }

    /// A selector of a condition on the value at a place.
    pub(crate) fn condition(place: Place, test: Test) -> Self {
        let size = Size::of_condition(&test);
        match test.check_operands() {
            Ok(()) => Selector::bounded(Node::Condition(place, test), size),
            Err(error) => Selector::wrong(error),
        }
    }

    /// A selector of a condition that holds a selector itself.
    pub(crate) fn nesting(place: Place, inner: Selector, test: impl FnOnce(Box<Node>) -> Test) -> Self {
        match inner.into_parts() {
            Ok((node, size)) => Selector::bounded(Node::Condition(place, test(Box::new(node))), size.below(1)),
            Err(error) => Selector { tree: Err(error) },
        }
    }

    /// A selector that only reports `error`.
    pub(crate) fn wrong(error: Error) -> Self {
        Selector { tree: Err(Arc::new(error)) }
    }

    fn from_tree(node: Node, size: Size) -> Self {
        Selector { tree: Ok(Arc::new(Tree { node, size })) }
    }

    fn bounded(node: Node, size: Size) -> Self {
        match size.check() {
            Ok(()) => Selector::from_tree(node, size),
            Err(error) => Selector::wrong(error),
        }
    }

    fn into_parts(self) -> Result<(Node, Size), Arc<Error>> {
        let tree = self.tree?;
        Ok(match Arc::try_unwrap(tree) {
            Ok(tree) => (tree.node, tree.size),
            Err(shared) => (shared.node.clone(), shared.size),
        })
    }

    fn joined(
        parts: impl IntoIterator<Item = Selector>,
        join: fn(Vec<Node>) -> Node,
        is_joined: fn(&Node) -> bool,
    ) -> Self {
        let mut nodes = Vec::new();
        let mut sum = Size::default();
        for part in parts {
            match part.into_parts() {
                Ok((node, size)) => {
                    // What was joined in the same way before is no level of its own.
                    let level = usize::from(is_joined(&node));
                    nodes.push(node);
                    sum = sum.beside(Size { depth: size.depth - level, ..size });
                }
                Err(error) => return Selector { tree: Err(error) },
            }
            if let Err(error) = sum.check() {
                return Selector::wrong(error);
            }
        }
        Selector::bounded(join(nodes), sum.below(0))
    }
}

impl Not for Selector {
    type Output = Selector;

    fn not(self) -> Selector {
        match self.into_parts() {
            Ok((node, size)) => Selector::bounded(Node::Not(Box::new(node)), size.below(0)),
            Err(error) => Selector { tree: Err(error) },
        }
    }
}

/// Documents which match all of `selectors`; every document if there are none.
pub fn all_of(selectors: impl IntoIterator<Item = Selector>) -> Selector {
    Selector::joined(selectors, Node::all, |node| matches!(node, Node::All(_)))
}

/// Documents which match at least one of `selectors`; no document if there are none.
pub fn any_of(selectors: impl IntoIterator<Item = Selector>) -> Selector {
    Selector::joined(selectors, Node::any, |node| matches!(node, Node::Any(_)))
}

/// Documents which do not match: each condition within is turned round, and a condition on a missing field stays false.
/// So `not(field("year").gt(5))` asks for `year <= 5`, and documents without a year match neither.
pub fn not(selector: Selector) -> Selector {
    !selector
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_value() {
            Ok(value) => f.write_str(&value.to_json()),
            Err(error) => write!(f, "invalid selector: {error}"),
        }
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({self})")
    }
}

impl PartialEq for Selector {
    /// Two selectors are equal if they are written alike; a wrong selector equals none.
    fn eq(&self, other: &Selector) -> bool {
        match (&self.tree, &other.tree) {
            (Ok(left), Ok(right)) => left.node == right.node,
            _ => false,
        }
    }
}

impl Node {
    /// All of `nodes`, those of an inner *and* taken out of it.
    pub(crate) fn all(nodes: Vec<Node>) -> Node {
        let mut flat = flattened(nodes, |node| match node {
            Node::All(inner) => Ok(inner),
            other => Err(other),
        });
        match flat.len() {
            0 => Node::Everything,
            1 => flat.remove(0),
            _ => Node::All(flat),
        }
    }

    /// Any of `nodes`, those of an inner *or* taken out of it.
    pub(crate) fn any(nodes: Vec<Node>) -> Node {
        let mut flat = flattened(nodes, |node| match node {
            Node::Any(inner) => Ok(inner),
            other => Err(other),
        });
        match flat.len() {
            0 => Node::Nothing,
            1 => flat.remove(0),
            _ => Node::Any(flat),
        }
    }
}

/// Puts the nodes that `open` takes out of a join in its place. Grows the first join, so adding one by one is cheap.
fn flattened(nodes: Vec<Node>, open: impl Fn(Node) -> Result<Vec<Node>, Node>) -> Vec<Node> {
    let mut flat = Vec::new();
    for node in nodes {
        match open(node) {
            Ok(inner) if flat.is_empty() => flat = inner,
            Ok(inner) => flat.extend(inner),
            Err(other) => flat.push(other),
        }
    }
    flat
}

impl Test {
    /// How many values it lists.
    pub(crate) fn listed_count(&self) -> usize {
        match self {
            Test::In(values) | Test::NotIn(values) | Test::All(values) => values.len(),
            _ => 0,
        }
    }

    /// Refuses operands that no document could hold, on which recursion would not be bounded.
    pub(crate) fn check_operands(&self) -> Result<()> {
        let operands = match self {
            Test::Compare(_, operand) => std::slice::from_ref(operand),
            Test::In(values) | Test::NotIn(values) | Test::All(values) => values.as_slice(),
            _ => &[],
        };
        let limits = Limits::default();
        operands.iter().try_for_each(|operand| operand.check(&limits))
    }
}

impl Comparison {
    /// The comparison that holds when this one does not.
    pub(crate) fn negated(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::GreaterOrEqual,
            Comparison::LessOrEqual => Comparison::Greater,
            Comparison::Equal => Comparison::NotEqual,
            Comparison::NotEqual => Comparison::Equal,
            Comparison::GreaterOrEqual => Comparison::Less,
            Comparison::Greater => Comparison::LessOrEqual,
        }
    }

    /// Whether it holds of a value that stands in this order to the operand.
    pub(crate) fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::GreaterOrEqual => order.is_ge(),
            Comparison::Greater => order.is_gt(),
        }
    }
}

impl Size {
    /// The size of one condition that nests no selector.
    pub(crate) fn of_condition(test: &Test) -> Size {
        let pattern_count = usize::from(matches!(test, Test::Regex(_)));
        Size { depth: 1, condition_count: 1, listed_count: test.listed_count(), pattern_count }
    }

    /// The size of two trees side by side.
    pub(crate) fn beside(self, other: Size) -> Size {
        Size {
            depth: self.depth.max(other.depth),
            condition_count: self.condition_count + other.condition_count,
            listed_count: self.listed_count + other.listed_count,
            pattern_count: self.pattern_count + other.pattern_count,
        }
    }

    /// The size of a tree below one more level, which has `condition_count` conditions itself.
    pub(crate) fn below(self, condition_count: usize) -> Size {
        Size { depth: self.depth + 1, condition_count: self.condition_count + condition_count, ..self }
    }

    /// Refuses a tree that is larger than a selector may be.
    pub(crate) fn check(self) -> Result<()> {
        if self.depth > DEPTH_MAX {
            return Err(Error::invalid(format!("the selector nests deeper than {DEPTH_MAX} levels"))
                .with_hint("join conditions side by side with $and, $or or $in"));
        }
        if self.condition_count > CONDITIONS_MAX {
            return Err(Error::invalid(format!("the selector has more than {CONDITIONS_MAX} conditions"))
                .with_hint("join equalities on one field with $in, or ask in several queries"));
        }
        if self.pattern_count > PATTERNS_MAX {
            return Err(Error::invalid(format!("the selector has more than {PATTERNS_MAX} regular expressions"))
                .with_hint("join them to one with |, or use $in or $beginsWith"));
        }
        if self.listed_count > LISTED_MAX {
            return Err(Error::invalid(format!("the selector lists more than {LISTED_MAX} values"))
                .with_hint("ask in several queries"));
        }
        Ok(())
    }
}
