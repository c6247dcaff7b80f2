//! Choice of the declared index that has the rows of a query in order.
//!
//! An index can be used for a sort by its last paths, all in its directions or all in the opposite ones, if equalities
//! fix the values at its preceding paths. Comparisons with the value at the first sort path also narrow the walk. An
//! index contains the key of every document, whatever the policy, and its keys are those of whole values. Conditions
//! that the key range enforces therefore need not be checked again.

use super::{Interval, PathCondition, Planner, Predicate};
use crate::index::{DeclaredIndex, IndexPath};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::language::selector::Target;
use crate::query::language::sort::{Sort, SortPath};
use crate::query::plan::{DeclaredWalk, Node};
use crate::value::Path;
use crate::value::collate::key;

impl Planner<'_> {
    /// Returns the declared index to walk: the one that covers most conditions. `nodes` are the sets of `conditions`,
    /// followed by those of the other parts of the selector.
    pub(super) fn declared(
        &self,
        sort: &Sort,
        conditions: &[PathCondition<'_>],
        nodes: &[Node],
    ) -> Option<DeclaredWalk> {
        if sort.keys.is_empty() || nodes.contains(&Node::Empty) {
            return None;
        }
        let ready = self.catalog.declared.indexes.iter().filter(|index| index.is_ready);
        ready.filter_map(|index| walk(index, &sort.keys, conditions, nodes)).max_by_key(|walk| walk.covered.len())
    }
}

fn walk(
    index: &DeclaredIndex,
    keys: &[SortPath],
    conditions: &[PathCondition<'_>],
    nodes: &[Node],
) -> Option<DeclaredWalk> {
    let paths = &index.definition.paths;
    let (leading, sorted) = paths.split_at(paths.len().checked_sub(keys.len())?);
    let is_reversed = is_reversed(sorted, keys)?;
    let mut covered = Vec::new();
    let mut lead = Vec::new();
    for path in leading {
        let (at, interval) = interval_on(conditions, path)?;
        let range = interval.whole_keys();
        if range.upper != successor(&range.lower) || key::length(&range.lower).ok() != Some(range.lower.len()) {
            return None;
        }
        append(&mut lead, &range.lower, path.descending);
        covered.push(at);
    }
    let mut within = None;
    if let Some((path, (at, interval))) = sorted.first().and_then(|path| Some((path, interval_on(conditions, path)?))) {
        within = range_of(&lead, &interval.whole_keys(), path.descending);
        covered.extend(within.is_some().then_some(at));
    }
    let range = match within {
        Some(range) => range,
        None => KeyRange { lower: key::composite_bound(&lead)?, upper: successor(&key::composite_bound(&lead)?) },
    };
    let rest = nodes.iter().enumerate().filter(|(at, _)| !covered.contains(at)).map(|(_, node)| node.clone());
    Some(DeclaredWalk {
        name: index.definition.name.clone(),
        path: index.path,
        range,
        lead,
        is_reversed,
        rest: Node::intersection(rest),
        covered: covered.iter().filter_map(|at| nodes.get(*at).cloned()).collect(),
    })
}

/// Whether the sort keys are in the reverse order of the index paths; `None` if they match in neither direction.
fn is_reversed(paths: &[IndexPath], keys: &[SortPath]) -> Option<bool> {
    let is_reversed = paths.first()?.descending != keys.first()?.descending;
    let are_same = paths.iter().zip(keys).all(|(path, key)| {
        path.path == key.path && path.language == key.language && (path.descending != key.descending) == is_reversed
    });
    are_same.then_some(is_reversed)
}

/// The intersected comparisons with the value at the path, and the position of their condition.
fn interval_on<'q>(conditions: &'q [PathCondition<'_>], path: &IndexPath) -> Option<(usize, &'q Interval)> {
    if path.language.is_some() {
        return None;
    }
    let is_on = |target: &Target, path: &Path| matches!(target, Target::Path(target) if target == path);
    let mut conditions = conditions.iter().enumerate();
    conditions.find_map(|(at, condition)| match &condition.predicate {
        Predicate::Within(interval) if !condition.negated && is_on(condition.target, &path.path) => {
            Some((at, interval))
        }
        _ => None,
    })
}

fn append(bytes: &mut Vec<u8>, encoded: &[u8], descending: bool) {
    bytes.extend(encoded.iter().map(|byte| if descending { !byte } else { *byte }));
}

/// The keys that begin with `lead` and continue with a key of the range.
fn range_of(lead: &[u8], range: &KeyRange, descending: bool) -> Option<KeyRange> {
    let bound = |bytes: &[u8]| key::composite_bound(&[lead, bytes].concat());
    if !descending {
        return Some(KeyRange { lower: bound(&range.lower)?, upper: bound(&range.upper)? });
    }
    // Inverted, keys that begin with a bound still sort after it.
    let inverted = |bytes: &[u8]| {
        let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        successor(&inverted)
    };
    Some(KeyRange { lower: bound(&inverted(&range.upper))?, upper: bound(&inverted(&range.lower))? })
}
