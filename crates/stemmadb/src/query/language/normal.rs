//! The normal form of a selector: negations pushed down to the conditions, no empty conjunctions or disjunctions,
//! sorted lists.
//!
//! The planner and the packed matcher use it. Negations are pushed down as in CouchDB's normalizer: `not (a or b)` is
//! `not a and not b`, and `not (x > 5)` is `x <= 5`, which a missing `x` does not meet. Conditions without an opposite
//! (a pattern, a type) keep a `negated` flag.
//!
//! Invariants: `All` and `Any` have at least two children, none of which is of the same kind, `Everything` or
//! `Nothing`; lists are sorted in collation order and contain each value once; the depth is at most that of the
//! selector.

use std::collections::HashMap;

use super::operators::Pattern;
use super::selector::{Comparison, Node, Target, Test};
use crate::value::{Kind, Value, collate};
use crate::{Error, Result};

/// A selector in normal form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Normal {
    /// Matches every document.
    Everything,
    /// Matches no document.
    Nothing,
    /// Matches if all of these match.
    All(Vec<Normal>),
    /// Matches if one of these matches.
    Any(Vec<Normal>),
    /// A single condition.
    Leaf(Leaf),
}

/// A condition on the value at a target. False if there is no such value, except for a negated `Exists`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaf {
    /// The value that is checked.
    pub(crate) target: Target,
    /// Whether the value must fail the check. Never set with `Check::Compare`, whose comparison is inverted instead.
    pub(crate) negated: bool,
    /// The check on the value.
    pub(crate) check: Check,
}

/// A check of the value that a condition finds; see [`Test`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    Compare(Comparison, Value),
    /// The value itself is one of these scalars. Replaces several equalities, one of which must hold, or negated,
    /// several inequalities, all of which must hold.
    OneOf(Vec<Value>),
    /// The value itself, or an element of it, is listed.
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
    /// Normalizes a selector on documents.
    pub(crate) fn of(node: &Node) -> Result<Normal> {
        normalize(node, false, false)
    }

    /// The conjunction of `children`, simplified.
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
        join_comparisons(&mut flat, true);
        match flat.len() {
            0 => Normal::Everything,
            1 => flat.remove(0),
            _ => Normal::All(flat),
        }
    }

    /// The disjunction of `children`, simplified.
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
        join_comparisons(&mut flat, false);
        match flat.len() {
            0 => Normal::Nothing,
            1 => flat.remove(0),
            _ => Normal::Any(flat),
        }
    }
}

/// Merges equalities with scalars on one target into one condition; with `negated`, inequalities. So `$nor` of many
/// equalities asks once which documents have a value.
fn join_comparisons(conditions: &mut Vec<Normal>, negated: bool) {
    let mut firsts: HashMap<Target, usize> = HashMap::new();
    let mut joined: Vec<Normal> = Vec::with_capacity(conditions.len());
    for condition in conditions.drain(..) {
        match ScalarComparison::of(condition, negated) {
            Err(other) => joined.push(other),
            Ok(ScalarComparison { target, mut values }) => match firsts.get(&target).map(|first| &mut joined[*first]) {
                Some(Normal::Leaf(Leaf { check: Check::OneOf(listed), .. })) => listed.append(&mut values),
                _ => {
                    firsts.insert(target.clone(), joined.len());
                    joined.push(Normal::Leaf(Leaf { target, negated, check: Check::OneOf(values) }));
                }
            },
        }
    }
    for joined in &mut joined {
        if let Normal::Leaf(leaf) = joined
            && let Check::OneOf(values) = &mut leaf.check
        {
            *values = sorted(values);
            if let [only] = values.as_slice() {
                let comparison = if leaf.negated { Comparison::NotEqual } else { Comparison::Equal };
                leaf.check = Check::Compare(comparison, only.clone());
                leaf.negated = false;
            }
        }
    }
    *conditions = joined;
}

/// A condition that the value at a target is, or is not, one of some scalars.
struct ScalarComparison {
    target: Target,
    values: Vec<Value>,
}

impl ScalarComparison {
    /// Returns an equality or, with `negated`, an inequality; another condition unchanged as an error.
    fn of(condition: Normal, negated: bool) -> std::result::Result<Self, Normal> {
        let wanted = if negated { Comparison::NotEqual } else { Comparison::Equal };
        match condition {
            Normal::Leaf(Leaf { target, negated: false, check: Check::Compare(comparison, value) })
                if comparison == wanted && !matches!(value, Value::Array(_) | Value::Object(_)) =>
            {
                Ok(ScalarComparison { target, values: vec![value] })
            }
            Normal::Leaf(Leaf { target, negated: is_negated, check: Check::OneOf(values) })
                if is_negated == negated =>
            {
                Ok(ScalarComparison { target, values })
            }
            other => Err(other),
        }
    }
}

fn normalize(node: &Node, negated: bool, inner: bool) -> Result<Normal> {
    let each = |nodes: &[Node]| nodes.iter().map(|node| normalize(node, negated, inner)).collect::<Result<Vec<_>>>();
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
        Node::Not(node) => normalize(node, !negated, inner)?,
        Node::Condition(Target::Element, _) if !inner => {
            return Err(Error::invalid("a condition on an element is outside elem_match").with_hint(
                "use field(\"…\") at the top, and element() only inside elem_match, all_match and key_match",
            ));
        }
        Node::Condition(target, test) => leaf(target, test, negated)?,
    })
}

fn leaf(target: &Target, test: &Test, negated: bool) -> Result<Normal> {
    let (negated, check) = match test {
        Test::Compare(comparison, operand) => {
            let comparison = if negated { comparison.negated() } else { *comparison };
            (false, Check::Compare(comparison, operand.clone()))
        }
        Test::In(values) => (negated, Check::In(sorted(values))),
        Test::NotIn(values) => (!negated, Check::In(sorted(values))),
        Test::Exists(exists) => (*exists == negated, Check::Exists),
        Test::Type(kind) => (negated, Check::Type(*kind)),
        Test::BeginsWith(prefix) => (negated, Check::BeginsWith(prefix.clone())),
        Test::Regex(pattern) => match pattern.only_prefix() {
            Some(prefix) => (negated, Check::BeginsWith(prefix.into())),
            None => (negated, Check::Regex(pattern.clone())),
        },
        Test::Modulo { divisor, remainder } => (negated, Check::Modulo { divisor: *divisor, remainder: *remainder }),
        Test::Size(size) => (negated, Check::Size(*size)),
        // Repetitions must be kept: a list of one array has a second meaning.
        Test::All(values) => (negated, Check::All(values.clone())),
        Test::ElemMatch(inner) => (negated, Check::ElemMatch(Box::new(normalize(inner, false, true)?))),
        Test::AllMatch(inner) => (negated, Check::AllMatch(Box::new(normalize(inner, false, true)?))),
        Test::KeyMapMatch(inner) => (negated, Check::KeyMapMatch(Box::new(normalize(inner, false, true)?))),
    };
    if *target == Target::Element && check == Check::Exists {
        return Ok(if negated { Normal::Nothing } else { Normal::Everything });
    }
    Ok(Normal::Leaf(Leaf { target: target.clone(), negated, check }))
}

fn sorted(values: &[Value]) -> Vec<Value> {
    let mut values = values.to_vec();
    values.sort_by(collate::compare);
    values.dedup_by(|a, b| collate::compare(a, b).is_eq());
    values
}
