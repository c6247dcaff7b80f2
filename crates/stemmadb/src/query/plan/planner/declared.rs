//! Which declared index has the rows of a query in order?
//!
//! One serves a sort by its last paths, all in its directions or all the other way round, if equalities fix the values at the paths before
//! them. Comparisons with the value at the first sort path narrow the walk as well. An index has the key of every document whatever the
//! policy, and its keys are those of whole values, so what the range of keys meets need not be asked again.

use super::{Ask, Interval, Planner, Question};
use crate::index::{DeclaredIndex, IndexPath};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::language::selector::Place;
use crate::query::language::sort::{Sort, SortPath};
use crate::query::plan::{DeclaredWalk, Node};
use crate::value::Path;
use crate::value::collate::key;

impl Planner<'_> {
    /// The declared index to walk: of several, the one in which most is fixed. `nodes` are the answers to the questions, and to whatever
    /// else is asked.
    pub(super) fn declared(&self, sort: &Sort, questions: &[Question<'_>], nodes: &[Node]) -> Option<DeclaredWalk> {
        if sort.keys.is_empty() || nodes.contains(&Node::Empty) {
            return None;
        }
        let ready = self.facts.declared.indexes.iter().filter(|index| index.is_ready);
        ready.filter_map(|index| walk(index, &sort.keys, questions, nodes)).max_by_key(|walk| walk.met.len())
    }
}

fn walk(index: &DeclaredIndex, keys: &[SortPath], questions: &[Question<'_>], nodes: &[Node]) -> Option<DeclaredWalk> {
    let paths = &index.definition.paths;
    let (leading, sorted) = paths.split_at(paths.len().checked_sub(keys.len())?);
    let is_reversed = is_reversed(sorted, keys)?;
    let mut met = Vec::new();
    let mut lead = Vec::new();
    for path in leading {
        let (at, interval) = asked(questions, path)?;
        let range = interval.whole_keys();
        if range.upper != successor(&range.lower) || key::length(&range.lower).ok() != Some(range.lower.len()) {
            return None;
        }
        append(&mut lead, &range.lower, path.descending);
        met.push(at);
    }
    let mut within = None;
    if let Some((path, (at, interval))) = sorted.first().and_then(|path| Some((path, asked(questions, path)?))) {
        within = range_of(&lead, &interval.whole_keys(), path.descending);
        met.extend(within.is_some().then_some(at));
    }
    let range = match within {
        Some(range) => range,
        None => KeyRange { lower: key::composite_bound(&lead)?, upper: successor(&key::composite_bound(&lead)?) },
    };
    let rest = nodes.iter().enumerate().filter(|(at, _)| !met.contains(at)).map(|(_, node)| node.clone());
    Some(DeclaredWalk {
        name: index.definition.name.clone(),
        path: index.path,
        range,
        lead,
        is_reversed,
        rest: Node::intersection(rest),
        met: met.iter().filter_map(|at| nodes.get(*at).cloned()).collect(),
    })
}

/// Whether rows in the order of these keys are in the order of the paths turned round; none if they are in neither.
fn is_reversed(paths: &[IndexPath], keys: &[SortPath]) -> Option<bool> {
    let is_reversed = paths.first()?.descending != keys.first()?.descending;
    let are_same = paths.iter().zip(keys).all(|(path, key)| {
        path.path == key.path && path.language == key.language && (path.descending != key.descending) == is_reversed
    });
    are_same.then_some(is_reversed)
}

/// The comparisons with the value at the path, joined; and which question they are.
fn asked<'q>(questions: &'q [Question<'_>], path: &IndexPath) -> Option<(usize, &'q Interval)> {
    if path.language.is_some() {
        return None;
    }
    let is_on = |place: &Place, path: &Path| matches!(place, Place::At(place) if place == path);
    let mut questions = questions.iter().enumerate();
    questions.find_map(|(at, question)| match &question.ask {
        Ask::Within(interval) if !question.negated && is_on(question.place, &path.path) => Some((at, interval)),
        _ => None,
    })
}

fn append(bytes: &mut Vec<u8>, encoded: &[u8], descending: bool) {
    bytes.extend(encoded.iter().map(|byte| if descending { !byte } else { *byte }));
}

/// The keys that begin with `lead` and go on with one of a range.
fn range_of(lead: &[u8], range: &KeyRange, descending: bool) -> Option<KeyRange> {
    let bound = |bytes: &[u8]| key::composite_bound(&[lead, bytes].concat());
    if !descending {
        return Some(KeyRange { lower: bound(&range.lower)?, upper: bound(&range.upper)? });
    }
    // Turned round, what begins with a bound still comes after it.
    let turned = |bytes: &[u8]| {
        let turned: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        successor(&turned)
    };
    Some(KeyRange { lower: bound(&turned(&range.upper))?, upper: bound(&turned(&range.lower))? })
}
