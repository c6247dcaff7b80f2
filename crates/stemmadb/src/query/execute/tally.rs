//! Counts without sets, where that can be: what the index keeps apart is counted apart, from the lengths of stored containers.

use smallvec::SmallVec;

use super::evaluate::evaluate;
use crate::Result;
use crate::index::{PathNumber, Presence};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::plan::Node;
use crate::query::source::Source;
use crate::value::Kind;

/// How many documents a node gives, as far as the index tells that at little cost, where all terms are complete.
pub(in crate::query) fn len(node: &Node, source: &impl Source) -> Result<Option<u64>> {
    match node {
        Node::Empty => Ok(Some(0)),
        Node::All => source.live_len().map(Some),
        Node::Equal { path, key } => source.equal_len(*path, key).map(Some),
        Node::Intersection(nodes) => joined_len(nodes, source),
        node => disjoint_len(node, source),
    }
}

fn joined_len(nodes: &[Node], source: &impl Source) -> Result<Option<u64>> {
    let live_len = source.live_len()?;
    let mut asking: SmallVec<[&Node; 4]> = SmallVec::new();
    for node in nodes {
        // What every document meets asks nothing.
        let asks_nothing = match node {
            Node::Equal { path, key } => source.equal_len(*path, key)? == live_len,
            _ => false,
        };
        if !asks_nothing {
            asking.push(node);
        }
    }
    match *asking {
        [] => Ok(Some(live_len)),
        [one] => len(one, source),
        [a @ Node::Equal { .. }, b @ (Node::Equal { .. } | Node::Presence { .. })] => {
            let set = |node| evaluate(node, source, None).map(|answer| answer.certain);
            Ok(Some(set(a)?.and_len(&set(b)?)))
        }
        _ => Ok(None),
    }
}

/// How many documents a node gives, if it asks for values of one path of which a document has only one, so that their documents
/// can be counted value by value.
fn disjoint_len(node: &Node, source: &impl Source) -> Result<Option<u64>> {
    let parts = match node {
        Node::Union(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let Some(asked) = Asked::of(parts) else { return Ok(None) };
    let mut count = 0;
    for range in &asked.ranges {
        // None also where a document may have several values at the path.
        let Some(met) = source.range_len(asked.path, range)? else { return Ok(None) };
        count += met;
    }
    if !asked.kinds.is_empty() {
        count += source.presence_len(asked.path, &asked.kinds)?;
    }
    Ok(Some(count))
}

/// Values of one path, no two of them the same.
struct Asked {
    path: PathNumber,
    ranges: Vec<KeyRange>,
    kinds: Vec<Presence>,
}

impl Asked {
    fn of(parts: &[Node]) -> Option<Self> {
        let (mut paths, mut ranges, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            match part {
                Node::Range { path, range } => {
                    paths.push(*path);
                    ranges.push(range.clone());
                }
                Node::Equal { path, key } => {
                    paths.push(*path);
                    ranges.push(KeyRange { lower: key.clone(), upper: successor(key) });
                }
                Node::Presence { path, kinds: some } => {
                    paths.push(*path);
                    kinds.extend_from_slice(some);
                }
                _ => return None,
            }
        }
        let path = *paths.first()?;
        let mut claimed = ranges.clone();
        for kind in &kinds {
            claimed.push(KeyRange::of_kind(kind_of(*kind)?));
        }
        claimed.sort_by(|a, b| a.lower.cmp(&b.lower));
        let is_disjoint = claimed.windows(2).all(|pair| pair[0].upper <= pair[1].lower);
        (is_disjoint && paths.iter().all(|other| *other == path)).then_some(Asked { path, ranges, kinds })
    }
}

fn kind_of(presence: Presence) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| Presence::from(*kind) == presence)
}
