//! Walks over the values of one path that meet a condition.

use std::ops::ControlFlow;

use super::evaluate::passes;
use crate::Result;
use crate::index::PathNumber;
use crate::query::language::interval::KeyRange;
use crate::query::plan::Values;
use crate::query::source::{IndexReader, Posting};
use crate::tree::Direction;
use crate::value::collate::key::is_cut;

/// Callback of a walk: receives each value's key, its documents, and whether they certainly meet the condition.
pub(in crate::query) type VisitMatch<'a> = dyn FnMut(&[u8], &mut dyn Posting, bool) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` with the values whose keys are `within`, in order, until it breaks. Returns the number of distinct
/// values visited.
pub(in crate::query) fn walk(
    source: &impl IndexReader,
    path: PathNumber,
    values: &Values,
    within: &KeyRange,
    direction: Direction,
    visit: &mut VisitMatch<'_>,
) -> Result<u64> {
    let mut visited = 0;
    match values {
        Values::Range(range) => {
            source.walk(path, &range.intersection(within), direction, &mut |key, documents| {
                visited += 1;
                visit(key, documents, true)
            })?;
        }
        Values::Keys(keys) => {
            let keys = keys.iter().filter(|key| within.holds(key));
            let keys: Vec<&Vec<u8>> = match direction {
                Direction::Ascending => keys.collect(),
                Direction::Descending => keys.rev().collect(),
            };
            for key in keys {
                visited += 1;
                let mut documents = source.equal(path, key)?;
                if !documents.is_empty() && visit(key, &mut documents, true)?.is_break() {
                    break;
                }
            }
        }
        Values::Matching(range, test) => {
            source.walk(path, &range.intersection(within), direction, &mut |key, documents| {
                visited += 1;
                match passes(test, key)? {
                    Some(false) => Ok(ControlFlow::Continue(())),
                    passes => visit(key, documents, passes == Some(true) && !is_cut(key)),
                }
            })?;
        }
    }
    Ok(visited)
}
