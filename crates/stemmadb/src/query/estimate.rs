//! About how many documents a step of a plan gives, at little cost: look-ups in the index, and the first values of a range.
//!
//! An estimate is for people; what is done is decided by what steps give once they are evaluated.

use std::ops::ControlFlow;

use super::plan::Node;
use super::source::Source;
use crate::Result;
use crate::index::{PathNumber, Presence};
use crate::tree::Direction;

/// How many values of one range are looked at.
const VALUES_MAX: u64 = 64;
/// How many values of one list are looked up.
const KEYS_MAX: usize = 64;
/// What a range that goes on is taken to have, of all that have a scalar there.
const RANGE_SHARE: f64 = 1.0 / 3.0;

/// About how many documents a node gives; `all` is how many there are.
pub(super) fn estimate(node: &Node, source: &impl Source, all: u64) -> Result<u64> {
    let rows = match node {
        Node::Empty => 0,
        Node::All => all,
        Node::Equal { path, key } => source.equal_len(*path, key)?,
        Node::EqualAny { path, keys } => {
            let mut found = 0;
            for key in keys.iter().take(KEYS_MAX) {
                found += source.equal_len(*path, key)?;
            }
            found * keys.len() as u64 / keys.len().clamp(1, KEYS_MAX) as u64
        }
        Node::Presence { path, kinds } => source.presence(*path, kinds)?.len(),
        Node::Range { path, range } | Node::Matching { path, range, .. } => {
            let (mut found, mut left) = (0, Some(VALUES_MAX));
            source.walk(*path, range, Direction::Ascending, &mut |_, documents| {
                left = left.and_then(|left| left.checked_sub(1));
                if left.is_none() {
                    return Ok(ControlFlow::Break(()));
                }
                found += documents.len()?;
                Ok(ControlFlow::Continue(()))
            })?;
            match left {
                Some(_) => found,
                None => found.max((scalars(source, *path)? as f64 * RANGE_SHARE) as u64),
            }
        }
        Node::Ids(ids) => ids.len() as u64,
        Node::IdRange { .. } => (all as f64 * RANGE_SHARE) as u64,
        Node::Union(nodes) => {
            let each = nodes.iter().map(|node| estimate(node, source, all)).sum::<Result<u64>>();
            each?
        }
        Node::Intersection(nodes) => {
            let mut share = 1.0;
            for node in nodes {
                share *= estimate(node, source, all)? as f64 / all.max(1) as f64;
            }
            (share * all as f64).ceil() as u64
        }
        Node::Difference(from, without) => estimate(from, source, all)?.saturating_sub(estimate(without, source, all)?),
        Node::Check(inner) => estimate(inner, source, all)?,
    };
    Ok(rows.min(all))
}

/// How many documents have a scalar at a path, not counting those within arrays.
fn scalars(source: &impl Source, path: PathNumber) -> Result<u64> {
    Ok(source.presence(path, &[Presence::Null, Presence::Bool, Presence::Number, Presence::String])?.len())
}
