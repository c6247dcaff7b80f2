//! Whether a document matches, in the plainest way: by walking the selector as it was written over the whole value.
//!
//! This is the oracle. It shares nothing with the planner and the matcher of packed records (not the normal form, not
//! the access to fields, not the order of packed values), so that a test of one against the other means something.
//!
//! Semantics, which are those of CouchDB's Mango: a negation goes down to the conditions and turns each one round; a
//! condition on a field that isn't there is false, turned round or not, with one exception: `$exists: false`.

use super::selector::{Node, Place, Test};
use crate::value::{Path, Value, collate};

/// What a path leads to.
enum Found<'a> {
    Value(&'a Value),
    /// The last object on the way has no such field.
    Missing,
    /// The way leads through something that has no fields, or an array without such an element.
    NoWay,
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
        Node::Condition(Place::Itself, test) => passes(test, value) != negated,
        Node::Condition(Place::At(path), test) => match find(path, value) {
            Found::Value(found) => passes(test, found) != negated,
            Found::Missing => match test {
                Test::Exists(wanted) => *wanted == negated,
                _ => false,
            },
            Found::NoWay => false,
        },
    }
}

fn find<'a>(path: &Path, value: &'a Value) -> Found<'a> {
    let mut here = value;
    for segment in path.segments() {
        here = match here {
            Value::Object(object) => match object.get(segment) {
                Some(next) => next,
                None => return Found::Missing,
            },
            Value::Array(elements) => match index_of(segment).and_then(|index| elements.get(index)) {
                Some(next) => next,
                None => return Found::NoWay,
            },
            _ => return Found::NoWay,
        };
    }
    Found::Value(here)
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
        Test::Exists(wanted) => *wanted,
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

/// An array is in the list if one of its elements is; the array itself is not looked for.
fn is_in(list: &[Value], value: &Value) -> bool {
    match value {
        Value::Array(elements) => elements.iter().any(|element| list.iter().any(|listed| equal(element, listed))),
        plain => list.iter().any(|listed| equal(plain, listed)),
    }
}

/// A list of one array is also met by an array that is equal to it; an empty list by nothing.
fn has_all(list: &[Value], value: &Value) -> bool {
    let Value::Array(elements) = value else { return false };
    if let [Value::Array(_)] = list
        && equal(value, &list[0])
    {
        return true;
    }
    !list.is_empty() && list.iter().all(|listed| elements.iter().any(|element| equal(element, listed)))
}
