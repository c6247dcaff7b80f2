//! Counting without building sets, from the lengths of stored containers, where the index allows it.

use smallvec::SmallVec;

use super::evaluate::evaluate;
use crate::Result;
use crate::index::{PathNumber, Presence};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::plan::Node;
use crate::query::source::IndexStatistics;
use crate::value::Kind;

/// Returns how many documents a node matches if the index can count them cheaply. Requires that all terms are complete.
pub(in crate::query) fn len(node: &Node, source: &impl IndexStatistics) -> Result<Option<u64>> {
    match node {
        Node::Empty => Ok(Some(0)),
        Node::All => source.live_len().map(Some),
        Node::Equal { path, key } => source.equal_len(*path, key).map(Some),
        Node::Intersection(nodes) => intersection_len(nodes, source),
        node => disjoint_len(node, source),
    }
}

fn intersection_len(nodes: &[Node], source: &impl IndexStatistics) -> Result<Option<u64>> {
    let live_len = source.live_len()?;
    let mut selective: SmallVec<[&Node; 4]> = SmallVec::new();
    for node in nodes {
        // A term that every document has does not restrict the result.
        let is_trivial = match node {
            Node::Equal { path, key } => source.equal_len(*path, key)? == live_len,
            _ => false,
        };
        if !is_trivial {
            selective.push(node);
        }
    }
    match *selective {
        [] => Ok(Some(live_len)),
        [one] => len(one, source),
        [a @ Node::Equal { .. }, b @ (Node::Equal { .. } | Node::Presence { .. })] => {
            let set = |node| evaluate(node, source, None).map(|match_set| match_set.certain);
            Ok(Some(set(a)?.and_len(&set(b)?)))
        }
        _ => Ok(None),
    }
}

/// Counts a node that consists of disjoint values of one path at which a document has only one value, by adding up the
/// counts of the values.
fn disjoint_len(node: &Node, source: &impl IndexStatistics) -> Result<Option<u64>> {
    let parts = match node {
        Node::Union(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let Some(values) = DisjointValues::of(parts) else { return Ok(None) };
    let mut count = 0;
    for range in &values.ranges {
        // `None` also if a document may have several values at the path.
        let Some(len) = source.range_len(values.path, range)? else { return Ok(None) };
        count += len;
    }
    if !values.kinds.is_empty() {
        count += source.presence_len(values.path, &values.kinds)?;
    }
    Ok(Some(count))
}

/// Values of one path, no two of which overlap.
struct DisjointValues {
    path: PathNumber,
    ranges: Vec<KeyRange>,
    kinds: Vec<Presence>,
}

impl DisjointValues {
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
        (is_disjoint && paths.iter().all(|other| *other == path)).then_some(DisjointValues { path, ranges, kinds })
    }
}

fn kind_of(presence: Presence) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| Presence::from(*kind) == presence)
}
