//! Selectors: trees of conditions on paths, combined by *and*, *or* and *not*.
//!
//! Mango JSON ([`Selector::parse`]) and the Rust functions ([`field`](fn@super::field) and its conditions) produce the
//! same tree, and it prints as Mango JSON.
//!
//! Invariants: a tree is at most [`DEPTH_MAX`] levels deep, so every walk over it may recurse; it has at most
//! [`CONDITIONS_MAX`] conditions and [`LISTED_MAX`] listed values. A builder with an invalid argument stores the error,
//! and every use of the selector returns it.

use std::fmt;
use std::ops::Not;
use std::sync::Arc;

use super::matcher::Matcher;
use super::normal::Normal;
use super::operators::Pattern;
use super::parse;
use super::print;
use super::reference;
use crate::document::Document;
use crate::value::{ElementPath, Kind, Limits, Path, Value};
use crate::{Error, Result};

/// The deepest nesting of conditions.
pub(crate) const DEPTH_MAX: usize = 64;
/// The largest number of conditions in one selector.
pub(crate) const CONDITIONS_MAX: usize = 16_384;
/// The largest number of regular expressions in one selector; each may take one or two megabytes.
pub(crate) const PATTERNS_MAX: usize = 64;
/// The largest total number of values in the lists (`$in`, `$nin`, `$all`) of one selector.
pub(crate) const LISTED_MAX: usize = 65_536;

/// Conditions that decide which documents match, combined by *and*, *or* and *not*. Cheap to clone.
///
/// Built by [`field()`](crate::field()) and its conditions, or parsed from Mango JSON. A selector built from an invalid
/// argument (a malformed path or pattern, too deep a tree) returns the error when it is used or when
/// [`Selector::check`] is called.
///
/// ```
/// # use stemmadb::{Selector, field};
/// # fn main() -> stemmadb::Result<()> {
/// let built = field("year").ge(1960).and(field("title").exists());
/// let parsed = Selector::parse_text(r#"{"year": {"$gte": 1960}, "title": {"$exists": true}}"#)?;
/// assert_eq!(built, parsed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Selector {
    tree: Result<Arc<Tree>, Arc<Error>>,
}

/// A tree of conditions with its size, so that checking the bounds needs no walk over it.
struct Tree {
    node: Node,
    size: Size,
}

/// The size of a tree, in the measures that are bounded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    depth: usize,
    condition_count: usize,
    listed_count: usize,
    pattern_count: usize,
}

/// A node of a selector as written.
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
    /// A test of the value at a target.
    Condition(Target, Test),
}

/// The value that a condition tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    /// The current value itself: an array element inside `$elemMatch` and `$allMatch`, a field name inside
    /// `$keyMapMatch`.
    Element,
    /// The value at a path below the current value, which is the document or an array element.
    Path(Path),
}

/// A target as it is written: the arrays in whose elements it is looked for, outermost first, and the target in an
/// element of the innermost one. Only a path with `[]` has arrays.
#[derive(Clone, Debug)]
pub(crate) struct TargetPath {
    arrays: Vec<Target>,
    target: Target,
}

impl TargetPath {
    /// The current value itself.
    pub(crate) const ELEMENT: TargetPath = TargetPath { arrays: Vec::new(), target: Target::Element };

    /// Parses a path, in which `[]` stands for some element of an array.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is malformed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if !ElementPath::is_in(text) {
            return Ok(TargetPath { arrays: Vec::new(), target: Target::Path(Path::parse(text)?) });
        }
        let parts = ElementPath::parse(text)?.between_arrays().into_iter();
        let mut arrays: Vec<_> = parts.map(|part| part.map_or(Target::Element, Target::Path)).collect();
        let target = arrays.pop().expect("a path has a last part");
        Ok(TargetPath { arrays, target })
    }

    /// The condition that the value at this path passes `test`, whose size is `size`.
    pub(crate) fn condition(self, test: Test, size: Size) -> (Node, Size) {
        let innermost = (Node::Condition(self.target, test), size);
        self.arrays.into_iter().rev().fold(innermost, |(node, size), array| {
            (Node::Condition(array, Test::ElemMatch(Box::new(node))), size.below(1))
        })
    }
}

/// A test of the target's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// `$eq $ne $lt $lte $gt $gte`, in collation order.
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
        /// Compared without normalization.
        remainder: i64,
    },
    /// `$size`: an array of this length.
    Size(u64),
    /// `$all`: an array that contains each of these.
    All(Vec<Value>),
    /// `$elemMatch`: an array with a matching element.
    ElemMatch(Box<Node>),
    /// `$allMatch`: a non-empty array whose elements all match.
    AllMatch(Box<Node>),
    /// `$keyMapMatch`: an object with a matching field name.
    KeyMapMatch(Box<Node>),
}

/// A comparison in collation order.
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
    /// Parses a Mango JSON selector: an object such as `{"year": {"$gte": 1960}}`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with the field and the operator; for an unknown operator, the hint names
    /// the most similar one.
    pub fn parse(json: &Value) -> Result<Self> {
        let (node, size) = parse::selector(json)?;
        Ok(Selector::from_tree(node, size))
    }

    /// Parses the text of a Mango JSON selector. See [`Selector`] for an example.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is not JSON or not a selector.
    pub fn parse_text(json: &str) -> Result<Self> {
        Selector::parse(&Value::parse(json.as_bytes())?)
    }

    /// Returns the selector that matches every document: `{}`.
    pub fn everything() -> Self {
        Selector::from_tree(Node::Everything, Size::default())
    }

    /// Returns the selector that matches no document: `{"_id": {"$in": []}}`.
    pub fn nothing() -> Self {
        Selector::from_tree(Node::Nothing, Size::default())
    }

    /// Checks that the selector is valid.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the error of the builder that was called with an invalid argument.
    pub fn check(&self) -> Result<()> {
        self.node().map(|_| ())
    }

    /// Matches documents that match both selectors.
    #[must_use]
    pub fn and(self, other: Selector) -> Self {
        all_of([self, other])
    }

    /// Matches documents that match at least one of the two selectors.
    #[must_use]
    pub fn or(self, other: Selector) -> Self {
        any_of([self, other])
    }

    /// Whether a document matches. Include `_id` and `_rev` among its fields if the selector refers to them.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the selector itself is invalid.
    pub fn matches(&self, document: &Value) -> Result<bool> {
        Ok(reference::matches(self.node()?, document))
    }

    /// Whether a document of a database matches.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the selector itself is invalid; `Corrupt` if the stored bytes are
    /// damaged.
    pub fn matches_document(&self, document: &Document) -> Result<bool> {
        let mut value = document.value()?;
        if let Value::Object(object) = &mut value {
            object.insert("_id", document.id().as_str());
            object.insert("_rev", document.revision().to_string());
        }
        self.matches(&value)
    }

    /// Prepares the selector for matching many documents.
    pub(crate) fn matcher(&self) -> Result<Matcher> {
        self.normal().map(Matcher::new)
    }

    /// Prints the selector as Mango JSON; parsing it gives an equal selector.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the selector itself is invalid.
    pub fn to_value(&self) -> Result<Value> {
        Ok(print::selector(self.node()?))
    }

    /// The normal form, which the planner and the matcher use.
    pub(crate) fn normal(&self) -> Result<Normal> {
        Normal::of(self.node()?)
    }

    /// The tree, or the error of an invalid selector.
    pub(crate) fn node(&self) -> Result<&Node> {
        match &self.tree {
            Ok(tree) => Ok(&tree.node),
            Err(error) => Err(error.duplicate()),
        }
    }

    /// Creates a selector with one condition.
    pub(crate) fn condition(target: TargetPath, test: Test) -> Self {
        let size = Size::of_condition(&test);
        match test.check_operands() {
            Ok(()) => {
                let (node, size) = target.condition(test, size);
                Selector::bounded(node, size)
            }
            Err(error) => Selector::wrong(error),
        }
    }

    /// Creates a selector with a condition that contains a selector.
    pub(crate) fn nesting(target: TargetPath, inner: Selector, test: impl FnOnce(Box<Node>) -> Test) -> Self {
        match inner.into_parts() {
            Ok((node, size)) => {
                let (node, size) = target.condition(test(Box::new(node)), size.below(1));
                Selector::bounded(node, size)
            }
            Err(error) => Selector { tree: Err(error) },
        }
    }

    /// Creates an invalid selector, whose uses return `error`.
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
                    // A nested node of the same kind is flattened and adds no level.
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

/// Matches documents that match all of `selectors`; every document if there are none.
///
/// ```
/// # use stemmadb::{all_of, field};
/// let selector = all_of(["title", "year"].map(|name| field(name).exists()));
/// ```
pub fn all_of(selectors: impl IntoIterator<Item = Selector>) -> Selector {
    Selector::joined(selectors, Node::all, |node| matches!(node, Node::All(_)))
}

/// Matches documents that match at least one of `selectors`; no document if there are none.
///
/// ```
/// # use stemmadb::{any_of, field};
/// let selector = any_of([field("year").lt(1900), field("tags").contains("classic")]);
/// ```
pub fn any_of(selectors: impl IntoIterator<Item = Selector>) -> Selector {
    Selector::joined(selectors, Node::any, |node| matches!(node, Node::Any(_)))
}

/// Negates each condition of a selector. Conditions on missing fields stay false.
///
/// So `not(field("year").gt(5))` matches documents with `year <= 5`, and documents without a year match neither.
///
/// ```
/// # use stemmadb::{field, not};
/// let selector = not(field("year").gt(1960));
/// ```
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
    /// Selectors are equal if they are written alike. An invalid selector equals no selector.
    fn eq(&self, other: &Selector) -> bool {
        match (&self.tree, &other.tree) {
            (Ok(left), Ok(right)) => left.node == right.node,
            _ => false,
        }
    }
}

impl Node {
    /// The conjunction of `nodes`; nested conjunctions are flattened.
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

    /// The disjunction of `nodes`; nested disjunctions are flattened.
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

/// Replaces each node from which `open` extracts children by these children. Extends the first extracted list in place,
/// so adding nodes one by one is cheap.
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
    /// The number of listed values.
    pub(crate) fn listed_count(&self) -> usize {
        match self {
            Test::In(values) | Test::NotIn(values) | Test::All(values) => values.len(),
            _ => 0,
        }
    }

    /// Rejects operands that no document can contain, whose nesting would not be bounded.
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
    /// The comparison that holds exactly if this one does not.
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

    /// Whether the comparison holds for a value with this order relative to the operand.
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
    /// The size of one condition without a nested selector.
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

    /// The size of a tree below one more level, which adds `condition_count` conditions.
    pub(crate) fn below(self, condition_count: usize) -> Size {
        Size { depth: self.depth + 1, condition_count: self.condition_count + condition_count, ..self }
    }

    /// Rejects a tree above the bounds of a selector.
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
