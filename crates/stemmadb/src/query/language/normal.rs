//! The normal form of a selector: no negation above a condition, no empty joins, sorted lists.
//!
//! The planner and the matcher of packed records work on it. Negations go down to the conditions, as CouchDB's
//! normaliser does it: `not (a or b)` is `not a and not b`, and `not (x > 5)` is `x <= 5`, which a missing `x` does not
//! meet. Conditions which have no opposite (a pattern, a type) keep a mark.
//!
//! Invariants: joins have two children or more, none of them of their own kind nor `Everything` or `Nothing`;
//! lists are sorted in the order of values and hold each value once; depth is that of the selector at most.

use std::collections::HashMap;

use super::operators::Pattern;
use super::selector::{Comparison, Node, Place, Test};
use crate::value::{Kind, Value, collate};
use crate::{Error, Result};

/// A selector in its normal form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Normal {
    /// Matches every document.
    Everything,
    /// Matches no document.
    Nothing,
    /// Matches if all of these do.
    All(Vec<Normal>),
    /// Matches if one of these does.
    Any(Vec<Normal>),
    /// One condition.
    Leaf(Leaf),
}

/// A condition on the value at a place: false if there is no such value, but for `Exists` negated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaf {
    /// Where it looks.
    pub(crate) place: Place,
    /// Whether the value must fail the check. Never with `Check::Compare`, which turns round itself.
    pub(crate) negated: bool,
    /// What the value must pass.
    pub(crate) check: Check,
}

/// What a condition asks of the value it finds; see [`Test`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    Compare(Comparison, Value),
    /// The value itself is one of these scalars: several equalities, of which one must hold.
    OneOf(Vec<Value>),
    /// The value itself is listed, or an element of it.
    In(Vec<Value>),
    Exists,
    Type(Kind),
    BeginsWith(String),
    Regex(Pattern),
    Modulo {
        divisor: i64,
        remainder: i64,
    },
    Size(u64),
    All(Vec<Value>),
    ElemMatch(Box<Normal>),
    AllMatch(Box<Normal>),
    KeyMapMatch(Box<Normal>),
}

impl Normal {
    /// The normal form of a selector on documents.
    pub(crate) fn of(node: &Node) -> Result<Normal> {
        normalise(node, false, false)
    }

    /// All of `children`, simplified.
    pub(crate) fn all(children: impl IntoIterator<Item = Normal>) -> Normal {
        let mut flat = Vec::new();
        for child in children {
            match child {
                Normal::Everything => {}
                Normal::Nothing => return Normal::Nothing,
                Normal::All(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Normal::Everything,
            1 => flat.remove(0),
            _ => Normal::All(flat),
        }
    }

    /// Any of `children`, simplified.
    pub(crate) fn any(children: impl IntoIterator<Item = Normal>) -> Normal {
        let mut flat = Vec::new();
        for child in children {
            match child {
                Normal::Nothing => {}
                Normal::Everything => return Normal::Everything,
                Normal::Any(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        join_equalities(&mut flat);
        match flat.len() {
            0 => Normal::Nothing,
            1 => flat.remove(0),
            _ => Normal::Any(flat),
        }
    }
}

/// Makes one condition of the equalities that ask for a scalar at one place.
fn join_equalities(alternatives: &mut Vec<Normal>) {
    let mut firsts: HashMap<Place, usize> = HashMap::new();
    let mut joined: Vec<Normal> = Vec::with_capacity(alternatives.len());
    for alternative in alternatives.drain(..) {
        match Equality::of(alternative) {
            Err(other) => joined.push(other),
            Ok(Equality { place, mut values }) => match firsts.get(&place).map(|first| &mut joined[*first]) {
                Some(Normal::Leaf(Leaf { check: Check::OneOf(listed), .. })) => listed.append(&mut values),
                _ => {
                    firsts.insert(place.clone(), joined.len());
                    joined.push(Normal::Leaf(Leaf { place, negated: false, check: Check::OneOf(values) }));
                }
            },
        }
    }
    for joined in &mut joined {
        if let Normal::Leaf(Leaf { check, .. }) = joined
            && let Check::OneOf(values) = check
        {
            *values = sorted(values);
            if let [only] = values.as_slice() {
                *check = Check::Compare(Comparison::Equal, only.clone());
            }
        }
    }
    *alternatives = joined;
}

/// A condition that one of some scalars is at a place.
struct Equality {
    place: Place,
    values: Vec<Value>,
}

impl Equality {
    /// The condition as one, or as it was.
    fn of(condition: Normal) -> std::result::Result<Self, Normal> {
        match condition {
            Normal::Leaf(Leaf { place, negated: false, check: Check::Compare(Comparison::Equal, value) })
                if !matches!(value, Value::Array(_) | Value::Object(_)) =>
            {
                Ok(Equality { place, values: vec![value] })
            }
            Normal::Leaf(Leaf { place, negated: false, check: Check::OneOf(values) }) => Ok(Equality { place, values }),
            other => Err(other),
        }
    }
}

fn normalise(node: &Node, negated: bool, inner: bool) -> Result<Normal> {
    let each = |nodes: &[Node]| nodes.iter().map(|node| normalise(node, negated, inner)).collect::<Result<Vec<_>>>();
    Ok(match node {
        Node::Everything | Node::Nothing => {
            if matches!(node, Node::Everything) != negated {
                Normal::Everything
            } else {
                Normal::Nothing
            }
        }
        Node::All(nodes) if negated => Normal::any(each(nodes)?),
        Node::All(nodes) => Normal::all(each(nodes)?),
        Node::Any(nodes) if negated => Normal::all(each(nodes)?),
        Node::Any(nodes) => Normal::any(each(nodes)?),
        Node::Not(node) => normalise(node, !negated, inner)?,
        Node::Condition(Place::Itself, _) if !inner => {
            return Err(Error::invalid("a condition on an element stands outside elem_match").with_hint(
                "use field(\"…\") at the top, and element() only inside elem_match, all_match and key_match",
            ));
        }
        Node::Condition(place, test) => leaf(place, test, negated)?,
    })
}

fn leaf(place: &Place, test: &Test, negated: bool) -> Result<Normal> {
    let (negated, check) = match test {
        Test::Compare(comparison, operand) => {
            let comparison = if negated { comparison.negated() } else { *comparison };
            (false, Check::Compare(comparison, operand.clone()))
        }
        Test::In(values) => (negated, Check::In(sorted(values))),
        Test::NotIn(values) => (!negated, Check::In(sorted(values))),
        Test::Exists(wanted) => (*wanted == negated, Check::Exists),
        Test::Type(kind) => (negated, Check::Type(*kind)),
        Test::BeginsWith(prefix) => (negated, Check::BeginsWith(prefix.clone())),
        Test::Regex(pattern) => match pattern.only_prefix() {
            Some(prefix) => (negated, Check::BeginsWith(prefix.into())),
            None => (negated, Check::Regex(pattern.clone())),
        },
        Test::Modulo { divisor, remainder } => (negated, Check::Modulo { divisor: *divisor, remainder: *remainder }),
        Test::Size(size) => (negated, Check::Size(*size)),
        // Not without its repetitions: a list of one array has a second meaning.
        Test::All(values) => (negated, Check::All(values.clone())),
        Test::ElemMatch(inner) => (negated, Check::ElemMatch(Box::new(normalise(inner, false, true)?))),
        Test::AllMatch(inner) => (negated, Check::AllMatch(Box::new(normalise(inner, false, true)?))),
        Test::KeyMapMatch(inner) => (negated, Check::KeyMapMatch(Box::new(normalise(inner, false, true)?))),
    };
    if *place == Place::Itself && check == Check::Exists {
        return Ok(if negated { Normal::Nothing } else { Normal::Everything });
    }
    Ok(Normal::Leaf(Leaf { place: place.clone(), negated, check }))
}

fn sorted(values: &[Value]) -> Vec<Value> {
    let mut values = values.to_vec();
    values.sort_by(collate::compare);
    values.dedup_by(|a, b| collate::compare(a, b).is_eq());
    values
}
