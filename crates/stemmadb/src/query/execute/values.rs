//! The values of one path that meet a condition, one after the other.

use std::ops::ControlFlow;

use super::evaluate::passes;
use crate::Result;
use crate::index::PathNumber;
use crate::query::language::interval::KeyRange;
use crate::query::plan::Values;
use crate::query::source::{Posting, Source};
use crate::tree::Direction;
use crate::value::collate::key::is_cut;

/// What a walk calls with each value's key, its documents, and whether they certainly meet the condition.
pub(in crate::query) type Visit<'a> = dyn FnMut(&[u8], &mut dyn Posting, bool) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` with the values whose keys are `within`, in order, until it breaks. Returns how many distinct values were looked at.
pub(in crate::query) fn walk(
    source: &impl Source,
    path: PathNumber,
    values: &Values,
    within: &KeyRange,
    direction: Direction,
    visit: &mut Visit<'_>,
) -> Result<u64> {
    let mut looked_at = 0;
    match values {
        Values::Range(range) => {
            source.walk(path, &range.intersection(within), direction, &mut |key, documents| {
                looked_at += 1;
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
                looked_at += 1;
                let mut documents = source.equal(path, key)?;
                if !documents.is_empty() && visit(key, &mut documents, true)?.is_break() {
                    break;
                }
            }
        }
        Values::Matching(range, test) => {
            source.walk(path, &range.intersection(within), direction, &mut |key, documents| {
                looked_at += 1;
                match passes(test, key)? {
                    Some(false) => Ok(ControlFlow::Continue(())),
                    passes => visit(key, documents, passes == Some(true) && !is_cut(key)),
                }
            })?;
        }
    }
    Ok(looked_at)
}
