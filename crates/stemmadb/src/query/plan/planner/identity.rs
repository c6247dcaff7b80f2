//! Planning of conditions on `_id` and `_rev`. Every document has them, and they are not in the path index, except for
//! the collection that an id names.

use std::ops::Bound;

use super::{PathCondition, Planner};
use crate::index::{PathNumber, collection_key_of_prefix};
use crate::query::language::normal::Check;
use crate::query::language::selector::Comparison;
use crate::query::plan::Node;
use crate::value::{Kind, Path, Value};

impl Planner<'_> {
    /// Returns the documents that meet a condition on `_id` or `_rev`; `None` if the path is another.
    pub(super) fn identity(&self, path: &Path, condition: &PathCondition<'_>) -> Option<Node> {
        let mut names = path.segments();
        let first = names.next()?;
        let is_id = first == "_id";
        if !is_id && first != "_rev" {
            return None;
        }
        if names.next().is_some() {
            // A string has no fields, and a path through it does not count as missing either.
            return Some(Node::Empty);
        }
        let nodes = condition.leaves.iter().map(|leaf| {
            let node = match &leaf.check {
                Check::BeginsWith(prefix) if is_id => self.beginning_with(prefix),
                check => string_check(check, is_id),
            };
            if leaf.negated { Node::difference(Node::All, node) } else { node }
        });
        Some(Node::intersection(nodes))
    }

    /// Documents whose id has this prefix. A prefix that names a collection is a single term.
    fn beginning_with(&self, prefix: &str) -> Node {
        let has_terms = !self.catalog.declared.lacks_collections;
        match collection_key_of_prefix(prefix).filter(|_| has_terms) {
            Some(key) => Node::Equal { path: PathNumber::ROOT, key },
            None => prefix_range(prefix),
        }
    }
}

/// Documents whose id meets a check. Revisions are not indexed, so only their kind is known.
fn string_check(check: &Check, is_id: bool) -> Node {
    match check {
        Check::Exists | Check::Type(Kind::String) => Node::All,
        Check::Compare(comparison, Value::String(text)) if is_id => compare(*comparison, text),
        Check::Compare(comparison, operand) if operand.kind() != Kind::String => {
            if comparison.holds(Kind::String.cmp(&operand.kind())) { Node::All } else { Node::Empty }
        }
        Check::OneOf(values) | Check::In(values) if is_id => {
            let ids: Vec<String> = values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            if ids.is_empty() { Node::Empty } else { Node::Ids(ids) }
        }
        Check::Regex(pattern) if is_id => Node::check(match pattern.literal_prefix() {
            Some(prefix) => prefix_range(prefix),
            None => Node::All,
        }),
        Check::Compare(..) | Check::OneOf(_) | Check::In(_) | Check::BeginsWith(_) | Check::Regex(_) => {
            Node::check(Node::All)
        }
        Check::Type(_)
        | Check::Modulo { .. }
        | Check::Size(_)
        | Check::All(_)
        | Check::ElemMatch(_)
        | Check::AllMatch(_)
        | Check::KeyMapMatch(_) => Node::Empty,
    }
}

fn compare(comparison: Comparison, text: &str) -> Node {
    let text = text.to_owned();
    let (lower, upper) = match comparison {
        Comparison::Equal => return Node::Ids(vec![text]),
        Comparison::NotEqual => return Node::difference(Node::All, Node::Ids(vec![text])),
        Comparison::Less => (Bound::Unbounded, Bound::Excluded(text)),
        Comparison::LessOrEqual => (Bound::Unbounded, Bound::Included(text)),
        Comparison::GreaterOrEqual => (Bound::Included(text), Bound::Unbounded),
        Comparison::Greater => (Bound::Excluded(text), Bound::Unbounded),
    };
    Node::IdRange { lower, upper }
}

fn prefix_range(prefix: &str) -> Node {
    let upper = match next_text(prefix) {
        Some(next) => Bound::Excluded(next),
        None => Bound::Unbounded,
    };
    Node::IdRange { lower: Bound::Included(prefix.to_owned()), upper }
}

/// The smallest text above everything that begins with `prefix`.
fn next_text(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            other => char::from_u32(other as u32 + 1),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}
