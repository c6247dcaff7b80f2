//! Planning of many conditions at once: disjunctions of comparisons on one path, as `$nor` of ranges leaves, and more
//! conditions than are worth a pass over the index each.

use std::collections::{BTreeMap, HashMap};

use super::{PathCondition, Planner, Predicate};
use crate::query::language::intervals::Intervals;
use crate::query::language::normal::{Leaf, Normal};
use crate::query::language::selector::Target;
use crate::query::plan::Node;

/// The number of conditions of a conjunction that may each take a pass over values. The others are checked on
/// documents, each of which is read once.
const PASSES_MAX: usize = if cfg!(test) { 3 } else { 16 };

impl Planner<'_> {
    /// Removes the disjunctions of comparisons on one path from `others`, if there are several on the same path, and
    /// returns one condition for each path.
    pub(super) fn joined_disjunctions<'s>(&self, others: &mut Vec<&'s Normal>) -> Vec<PathCondition<'s>> {
        let mut counts: HashMap<&Target, usize> = HashMap::new();
        for (target, _) in others.iter().filter_map(|other| disjunction(other)) {
            *counts.entry(target).or_default() += 1;
        }
        if counts.values().all(|count| *count == 1) {
            return Vec::new();
        }
        let mut sets: BTreeMap<&Target, (Vec<&Normal>, Vec<Intervals>)> = BTreeMap::new();
        others.retain(|other| {
            let several = disjunction(other).filter(|(target, _)| counts.get(target).is_some_and(|count| *count > 1));
            let Some((target, leaves)) = several else { return true };
            let Some(intervals) = Intervals::of_any(leaves, self.text_bytes_max()) else { return true };
            let (disjunctions, sets) = sets.entry(target).or_default();
            disjunctions.push(other);
            sets.push(intervals);
            false
        });
        let joined = sets.into_iter().filter_map(|(target, (disjunctions, sets))| {
            let predicate = Predicate::WithinAny(Intervals::intersection(sets)?);
            Some(PathCondition { target, negated: false, predicate, leaves: Vec::new(), disjunctions })
        });
        joined.collect()
    }
}

fn leaf(node: &Normal) -> Option<&Leaf> {
    match node {
        Normal::Leaf(leaf) => Some(leaf),
        _ => None,
    }
}

/// The target and the leaves of a disjunction whose leaves are all on one target.
fn disjunction(node: &Normal) -> Option<(&Target, Vec<&Leaf>)> {
    let Normal::Any(children) = node else { return None };
    let leaves: Vec<&Leaf> = children.iter().map(leaf).collect::<Option<_>>()?;
    let target = &leaves.first()?.target;
    let is_identity = matches!(target, Target::Path(path) if matches!(path.segments().next(), Some("_id" | "_rev")));
    (!is_identity && leaves.iter().all(|leaf| leaf.target == *target)).then_some((target, leaves))
}

/// Leaves conditions that take a pass over values to the documents, except for the first ones. Differences are not
/// counted: those from one set take one pass together.
pub(super) fn limit_passes(nodes: &mut [Node]) {
    for node in nodes.iter_mut().filter(|node| takes_pass(node)).skip(PASSES_MAX) {
        *node = Node::check(Node::All);
    }
}

fn takes_pass(node: &Node) -> bool {
    !matches!(node, Node::Difference(..)) && has_pass(node)
}

fn has_pass(node: &Node) -> bool {
    match node {
        Node::Range { .. } | Node::Matching { .. } | Node::IdRange { .. } => true,
        other => other.children().into_iter().any(has_pass),
    }
}
