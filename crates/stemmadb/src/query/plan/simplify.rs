//! Simplification of unions and intersections: parts that read the same rows of the index are merged, so that many
//! conditions on one path cost one pass over its values, however many there are.
//!
//! In a union, the terms of a path become one list, overlapping ranges one range, tests of values one walk, and kinds
//! of values one presence. In an intersection, differences from one set become one difference: what `$nor` of many
//! conditions leaves is everything with a value minus the union of what they match.

#![allow(clippy::mutable_key_type, reason = "patterns are hashed and compared by their text")]

use std::collections::{HashMap, HashSet};

use super::{Node, ValueTest};
use crate::index::{PathNumber, Presence};
use crate::query::language::interval::KeyRange;

/// Parts of a union that are merged.
enum UnionPart {
    Terms(PathNumber, Vec<Vec<u8>>),
    Presence(PathNumber, Vec<Presence>),
    Ranges(PathNumber, Vec<KeyRange>),
    Tests(PathNumber, Vec<(KeyRange, ValueTest)>),
    Checks(Vec<Node>),
    Other(Node),
}

/// Which parts are merged with each other.
#[derive(PartialEq, Eq, Hash)]
enum UnionKey {
    Terms(PathNumber),
    Presence(PathNumber),
    Ranges(PathNumber),
    Tests(PathNumber),
    Checks,
}

/// Merges the parts of a union, each at the position of the first that it contains.
pub(super) fn union_parts(nodes: Vec<Node>) -> Vec<Node> {
    if nodes.len() < 2 {
        return nodes;
    }
    let mut parts: Vec<UnionPart> = Vec::with_capacity(nodes.len());
    let mut firsts: HashMap<UnionKey, usize> = HashMap::new();
    for node in nodes {
        let (key, part) = UnionPart::of(node);
        let first = key.as_ref().and_then(|key| firsts.get(key)).copied();
        match first.and_then(|first| parts.get_mut(first)) {
            Some(first) => first.append(part),
            None => {
                firsts.extend(key.map(|key| (key, parts.len())));
                parts.push(part);
            }
        }
    }
    without_repetitions(parts.into_iter().flat_map(UnionPart::finish).collect())
}

/// Merges the parts of an intersection, each at the position of the first that it contains.
pub(super) fn intersection_parts(nodes: Vec<Node>) -> Vec<Node> {
    let nodes = without_repetitions(nodes);
    let difference_count = nodes.iter().filter(|node| matches!(node, Node::Difference(..))).count();
    if difference_count < 2 {
        return nodes;
    }
    let mut subtracted: HashMap<Node, Vec<Node>> = HashMap::new();
    let mut parts: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node {
            Node::Difference(from, without) => match subtracted.get_mut(&*from) {
                Some(subtracted) => subtracted.push(*without),
                None => {
                    subtracted.insert((*from).clone(), vec![*without]);
                    // The place of the difference, which is completed below.
                    parts.push(Node::Difference(from, Box::new(Node::Empty)));
                }
            },
            other => parts.push(other),
        }
    }
    let complete = |part| match part {
        Node::Difference(from, _) => {
            let without = Node::union(subtracted.remove(&*from).unwrap_or_default());
            Node::difference(*from, without)
        }
        other => other,
    };
    parts.into_iter().map(complete).collect()
}

fn without_repetitions(mut nodes: Vec<Node>) -> Vec<Node> {
    if nodes.len() > 1 {
        let mut seen = HashSet::with_capacity(nodes.len());
        let is_new: Vec<bool> = nodes.iter().map(|node| seen.insert(node)).collect();
        let mut is_new = is_new.into_iter();
        nodes.retain(|_| is_new.next().unwrap_or(true));
    }
    nodes
}

impl UnionPart {
    fn of(node: Node) -> (Option<UnionKey>, UnionPart) {
        match node {
            Node::Equal { path, key } => (Some(UnionKey::Terms(path)), UnionPart::Terms(path, vec![key])),
            Node::EqualAny { path, keys } => (Some(UnionKey::Terms(path)), UnionPart::Terms(path, keys)),
            Node::Presence { path, kinds } => (Some(UnionKey::Presence(path)), UnionPart::Presence(path, kinds)),
            Node::Range { path, range } => (Some(UnionKey::Ranges(path)), UnionPart::Ranges(path, vec![range])),
            Node::Matching { path, range, test } => {
                (Some(UnionKey::Tests(path)), UnionPart::Tests(path, vec![(range, test)]))
            }
            Node::Check(inner) => (Some(UnionKey::Checks), UnionPart::Checks(vec![*inner])),
            other => (None, UnionPart::Other(other)),
        }
    }

    /// Adds a part with the same key.
    fn append(&mut self, other: UnionPart) {
        match (self, other) {
            (UnionPart::Terms(_, keys), UnionPart::Terms(_, further)) => keys.extend(further),
            (UnionPart::Presence(_, kinds), UnionPart::Presence(_, further)) => kinds.extend(further),
            (UnionPart::Ranges(_, ranges), UnionPart::Ranges(_, further)) => ranges.extend(further),
            (UnionPart::Tests(_, tests), UnionPart::Tests(_, further)) => tests.extend(further),
            (UnionPart::Checks(nodes), UnionPart::Checks(further)) => nodes.extend(further),
            _ => debug_assert!(false, "parts with one key are of one kind"),
        }
    }

    fn finish(self) -> Vec<Node> {
        match self {
            UnionPart::Terms(path, mut keys) => {
                keys.sort();
                keys.dedup();
                match keys.as_mut_slice() {
                    [key] => vec![Node::Equal { path, key: std::mem::take(key) }],
                    _ => vec![Node::EqualAny { path, keys }],
                }
            }
            UnionPart::Presence(path, mut kinds) => {
                kinds.sort();
                kinds.dedup();
                vec![Node::Presence { path, kinds }]
            }
            UnionPart::Ranges(path, ranges) => {
                merged_ranges(ranges).into_iter().map(|range| Node::Range { path, range }).collect()
            }
            UnionPart::Tests(path, tests) => merged_tests(path, tests),
            UnionPart::Checks(nodes) => vec![Node::check(Node::union(nodes))],
            UnionPart::Other(node) => vec![node],
        }
    }
}

/// The ranges in ascending order, with those merged that overlap or adjoin.
fn merged_ranges(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_by(|a, b| a.lower.cmp(&b.lower));
    let mut merged: Vec<KeyRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.lower <= last.upper => last.upper = std::mem::take(&mut last.upper).max(range.upper),
            _ => merged.push(range),
        }
    }
    merged
}

/// One walk for tests whose ranges overlap.
fn merged_tests(path: PathNumber, mut tests: Vec<(KeyRange, ValueTest)>) -> Vec<Node> {
    if tests.len() > 1 {
        // A union that was merged before is taken apart.
        tests = tests
            .into_iter()
            .flat_map(|(range, test)| match test {
                ValueTest::Any(tests) => tests,
                test => vec![(range, test)],
            })
            .collect();
        tests.sort_by(|(a, _), (b, _)| a.lower.cmp(&b.lower));
        let mut seen = HashSet::new();
        tests.retain(|test| seen.insert(test.clone()));
    }
    let mut walks: Vec<(KeyRange, Vec<(KeyRange, ValueTest)>)> = Vec::new();
    for (range, test) in tests {
        match walks.last_mut() {
            Some((whole, tests)) if range.lower < whole.upper => {
                whole.upper = std::mem::take(&mut whole.upper).max(range.upper.clone());
                tests.push((range, test));
            }
            _ => walks.push((range.clone(), vec![(range, test)])),
        }
    }
    let node = |(range, mut tests): (KeyRange, Vec<(KeyRange, ValueTest)>)| {
        let test = if tests.len() == 1 { tests.remove(0).1 } else { ValueTest::Any(tests) };
        Node::Matching { path, range, test }
    };
    walks.into_iter().map(node).collect()
}
