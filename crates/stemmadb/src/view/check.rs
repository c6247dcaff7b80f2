//! Consistency check of the views in the tree: rows and back references match; boundaries are those of the rows;
//! partial reductions equal recomputed ones where the reducer is built in.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference, Phase, RowKey};
use super::merge;
use super::partials;
use super::reduce::{BuiltIn, Reducer};
use crate::Result;
use crate::tree::{Direction, TreeSnapshot};

/// Maximum number of problems reported per view.
const PROBLEMS_MAX: usize = 20;

/// Returns the problems of all views in a tree, one line each.
pub(super) fn check(tree: &Arc<TreeSnapshot>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (slot, record) in merge::slots(tree)? {
        if record.phase != Phase::Ready {
            continue;
        }
        let rows = Layered::new(tree.clone(), layout::slot_prefix(slot).into(), Overlay::default());
        let reducer = BuiltIn::ALL.into_iter().find(|reducer| record.version.ends_with(reducer.name()));
        let found = check_rows(&rows, reducer.as_ref().map(|reducer| reducer as &dyn Reducer), record.row_count)?;
        problems
            .extend(found.into_iter().take(PROBLEMS_MAX).map(|problem| format!("view `{}`: {problem}", record.name)));
    }
    Ok(problems)
}

/// Returns the problems of one slot.
pub(super) fn check_rows(rows: &Layered, reducer: Option<&dyn Reducer>, row_count: u64) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let (counted, named) = (count_documents(rows, &mut problems)?, count_references(rows, &mut problems)?);
    if counted != row_count {
        problems.push(format!("{counted} rows, not the {row_count} that were counted"));
    }
    if counted != named {
        problems.push(format!("{counted} rows, but back references name {named}"));
    }
    if let Some(reducer) = reducer.filter(|_| counted > 0) {
        check_partials(rows, reducer, &mut problems)?;
    }
    Ok(problems)
}

fn scan<'a>(rows: &'a Layered, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Result<super::layered::Scan<'a>> {
    let (lower, upper) = (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice));
    rows.scan(lower, upper, Direction::Ascending)
}

fn count_documents(rows: &Layered, problems: &mut Vec<String>) -> Result<u64> {
    let mut count = 0;
    let mut found = scan(rows, &(Bound::Included(layout::local_row_key(&[])), Bound::Excluded(layout::rows_end())))?;
    while let Some((local_key, _)) = found.next()? {
        count += 1;
        let row = layout::row_of_local_key(local_key).unwrap_or_default();
        let document = RowKey::decode(row)?.document;
        let reference = rows
            .get(&layout::local_back_reference_key(document))?
            .map(|stored| BackReference::decode(&stored))
            .transpose()?;
        if !reference.is_some_and(|reference| reference.rows(document).iter().any(|named| named == row)) {
            problems.push(format!("a row of document number {} that its back reference does not name", document.0));
        }
    }
    Ok(count)
}

fn count_references(rows: &Layered, problems: &mut Vec<String>) -> Result<u64> {
    let mut count = 0;
    let (lower, upper) = layout::BACK_REFERENCE_RANGE;
    let mut found = rows.scan(Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    while let Some((local_key, value)) = found.next()? {
        let document = layout::document_of_local_key(local_key)?;
        for row in BackReference::decode(value)?.rows(document) {
            count += 1;
            if rows.get(&layout::local_row_key(&row))?.is_none() {
                problems.push(format!("a row that document number {} should have is not there", document.0));
            }
        }
    }
    Ok(count)
}

fn check_partials(rows: &Layered, reducer: &dyn Reducer, problems: &mut Vec<String>) -> Result<()> {
    let mut expected = BTreeMap::new();
    partials::rebuild(rows, reducer, &mut |level, row, partial| {
        expected.insert(layout::local_partial_key(level, row), partial.to_vec());
        Ok(())
    })?;
    let (lower, upper) = layout::PARTIAL_BOUNDS;
    let mut found = rows.scan(Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    let mut matched = 0;
    while let Some((local_key, partial)) = found.next()? {
        match expected.get(local_key) {
            Some(wanted) if wanted == partial => matched += 1,
            Some(_) => problems.push("a partial reduction is not what its rows come to".to_owned()),
            None => problems.push("a partial reduction begins where no boundary is".to_owned()),
        }
    }
    if matched < expected.len() {
        problems.push(format!("{} partial reductions are missing or wrong", expected.len() - matched));
    }
    Ok(())
}
