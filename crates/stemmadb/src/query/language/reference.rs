//! The reference evaluator: matches a selector, as written, against a whole unpacked value.
//!
//! Tests compare the planner and the packed matcher with it. It therefore shares no code with them: neither the normal
//! form, nor field access, nor the comparison of packed values.
//!
//! The semantics are those of CouchDB's Mango: a negation is pushed down to the conditions and negates each one. A
//! condition on an absent field is false, negated or not, with one exception: `$exists: false`, for which a position
//! that an array does not have is absent, too.

use super::selector::{Node, Target, Test};
use crate::value::{Path, Value, collate};

/// The result of following a path.
enum ValueLookup<'a> {
    Value(&'a Value),
    /// The last object on the path has no such field, or the last array no such position.
    Missing,
    /// The path passes through a scalar, or names a field of an array.
    Unreachable,
}

/// Whether `value` (a whole document with its `_id` and `_rev`, or an element) matches.
pub(in crate::query) fn matches(node: &Node, value: &Value) -> bool {
    holds(node, value, false)
}

fn holds(node: &Node, value: &Value, negated: bool) -> bool {
    match node {
        Node::Everything => !negated,
        Node::Nothing => negated,
        Node::All(nodes) if negated => nodes.iter().any(|node| holds(node, value, true)),
        Node::All(nodes) => nodes.iter().all(|node| holds(node, value, false)),
        Node::Any(nodes) if negated => nodes.iter().all(|node| holds(node, value, true)),
        Node::Any(nodes) => nodes.iter().any(|node| holds(node, value, false)),
        Node::Not(inner) => holds(inner, value, !negated),
        Node::Condition(Target::Element, test) => passes(test, value) != negated,
        Node::Condition(Target::Path(path), test) => match find(path, value) {
            ValueLookup::Value(found) => passes(test, found) != negated,
            ValueLookup::Missing => match test {
                Test::Exists(exists) => *exists == negated,
                _ => false,
            },
            ValueLookup::Unreachable => false,
        },
    }
}

fn find<'a>(path: &Path, value: &'a Value) -> ValueLookup<'a> {
    let mut current = value;
    for segment in path.segments() {
        current = match current {
            Value::Object(object) => match object.get(segment) {
                Some(next) => next,
                None => return ValueLookup::Missing,
            },
            Value::Array(elements) => match index_of(segment).map(|index| elements.get(index)) {
                Some(Some(next)) => next,
                Some(None) => return ValueLookup::Missing,
                None => return ValueLookup::Unreachable,
            },
            _ => return ValueLookup::Unreachable,
        };
    }
    ValueLookup::Value(current)
}

fn index_of(segment: &str) -> Option<usize> {
    let index: usize = segment.parse().ok()?;
    (index.to_string() == segment).then_some(index)
}

fn passes(test: &Test, value: &Value) -> bool {
    match test {
        Test::Compare(comparison, operand) => comparison.holds(collate::compare(value, operand)),
        Test::In(list) => is_in(list, value),
        Test::NotIn(list) => !is_in(list, value),
        Test::Exists(exists) => *exists,
        Test::Type(kind) => value.kind() == *kind,
        Test::BeginsWith(prefix) => matches!(value, Value::String(string) if string.starts_with(prefix.as_str())),
        Test::Regex(pattern) => matches!(value, Value::String(string) if pattern.is_match(string)),
        Test::Modulo { divisor, remainder } => match value {
            Value::Number(number) => {
                number.to_integer().is_some_and(|integer| integer % i128::from(*divisor) == i128::from(*remainder))
            }
            _ => false,
        },
        Test::Size(size) => matches!(value, Value::Array(elements) if elements.len() as u64 == *size),
        Test::All(list) => has_all(list, value),
        Test::ElemMatch(inner) => {
            matches!(value, Value::Array(elements) if elements.iter().any(|element| matches(inner, element)))
        }
        Test::AllMatch(inner) => match value {
            Value::Array(elements) => !elements.is_empty() && elements.iter().all(|element| matches(inner, element)),
            _ => false,
        },
        Test::KeyMapMatch(inner) => match value {
            Value::Object(object) => object.names().any(|name| matches(inner, &Value::String(name.to_owned()))),
            _ => false,
        },
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    collate::compare(left, right).is_eq()
}

/// Whether one of the elements of an array is listed; the array itself is not searched for. A value that is not an
/// array must itself be listed.
fn is_in(list: &[Value], value: &Value) -> bool {
    match value {
        Value::Array(elements) => elements.iter().any(|element| list.iter().any(|listed| equal(element, listed))),
        plain => list.iter().any(|listed| equal(plain, listed)),
    }
}

/// A list of one array also matches an array that equals it. An empty list matches nothing.
fn has_all(list: &[Value], value: &Value) -> bool {
    let Value::Array(elements) = value else { return false };
    if let [Value::Array(_)] = list
        && equal(value, &list[0])
    {
        return true;
    }
    !list.is_empty() && list.iter().all(|listed| elements.iter().any(|element| equal(element, listed)))
}
