//! Partial reductions: what the rows between two boundaries come to, at several levels, so that a range is reduced in O(log n).
//!
//! Invariants:
//! - A row is a boundary of level k if the hash of its own key ends in k groups of zero bits; the beginning of all rows is one
//!   of every level. So which boundaries there are depends on the rows alone, not on the order in which they came.
//! - For each boundary of level k there is the reduction of the rows from it up to the next one of level k or higher.
//!   Nothing is stored of level 0: those are the rows.
//!
//! A change of a row changes one group at each level, of some sixteen or thirty-two members.

use std::collections::BTreeSet;
use std::ops::Bound;

use twox_hash::XxHash3_64;

use super::layered::Layered;
use super::layout::{self, RowKey};
use super::reduce::{Fold, Reducer};
use crate::Result;
use crate::tree::Direction;

/// Zero bits that make a boundary of the next level: groups of sixteen.
const GROUP_BITS: u32 = 4;

/// The highest level: a reduction on it covers some 16.8 million rows.
pub(super) const LEVEL_MAX: u8 = 6;

/// The highest level of which this row is a boundary.
pub(super) fn level_of(row: &[u8]) -> u8 {
    ((XxHash3_64::oneshot(row).trailing_zeros() / GROUP_BITS) as u8).min(LEVEL_MAX)
}

/// A boundary or the end of rows: none after all of them.
type End = Option<Vec<u8>>;

/// The last boundary of `level` at or before `row`, or strictly before it.
fn boundary_before(layered: &Layered, level: u8, row: &[u8], strictly: bool) -> Result<Vec<u8>> {
    let (lower, upper) = (layout::partial_place(level, &[]), layout::partial_place(level, row));
    let upper = if strictly { Bound::Excluded(&*upper) } else { Bound::Included(&*upper) };
    let mut scan = layered.scan(Bound::Included(&lower), upper, Direction::Descending)?;
    match scan.next()? {
        Some((place, _)) => Ok(layout::row_of_partial(place)?.to_vec()),
        None => Ok(Vec::new()),
    }
}

/// The first boundary of `level` after `row`.
fn boundary_after(layered: &Layered, level: u8, row: &[u8]) -> Result<End> {
    let (lower, upper) = (layout::partial_place(level, row), layout::partial_place(level + 1, &[]));
    let mut scan = layered.scan(Bound::Excluded(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    scan.next()?.map(|(place, _)| Ok(layout::row_of_partial(place)?.to_vec())).transpose()
}

fn fold_rows(layered: &Layered, fold: &mut dyn Fold, from: &[u8], to: Option<&[u8]>, limit: usize) -> Result<End> {
    let (lower, upper) = (layout::row_place(from), to.map_or_else(layout::rows_end, layout::row_place));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut count = 0;
    while let Some((place, value)) = scan.next()? {
        let row = layout::row_of_place(place).unwrap_or_default();
        if count == limit {
            return Ok(Some(row.to_vec()));
        }
        fold.row(RowKey::decode(row)?.key, value)?;
        count += 1;
    }
    Ok(None)
}

/// Folds the stored reductions of `level` from one boundary to another.
fn fold_parts(layered: &Layered, fold: &mut dyn Fold, level: u8, from: &[u8], to: Option<&[u8]>) -> Result<()> {
    let lower = layout::partial_place(level, from);
    let upper = to.map_or_else(|| layout::partial_place(level + 1, &[]), |to| layout::partial_place(level, to));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    while let Some((_, partial)) = scan.next()? {
        if !partial.is_empty() {
            fold.part(partial)?;
        }
    }
    Ok(())
}

/// Brings partial reductions up to date after rows were put, changed or removed.
pub(super) fn refresh(layered: &mut Layered, reducer: &dyn Reducer, changed: &BTreeSet<Vec<u8>>) -> Result<()> {
    if changed.is_empty() {
        return Ok(());
    }
    let mut dirty: Vec<BTreeSet<Vec<u8>>> = vec![BTreeSet::new(); usize::from(LEVEL_MAX) + 1];
    place_boundaries(layered, changed, &mut dirty)?;
    for row in changed {
        // Where a boundary came or went, what lies before it ends elsewhere; and the group above has another member or one less,
        // even if no member is different.
        let highest = level_of(row);
        for level in 1..=(highest + 1).min(LEVEL_MAX) {
            dirty[usize::from(level)].insert(boundary_before(layered, level, row, level <= highest)?);
        }
    }
    for level in 1..=LEVEL_MAX {
        for boundary in std::mem::take(&mut dirty[usize::from(level)]) {
            let partial = reduce_group(layered, reducer, level, &boundary)?;
            let is_changed = layered.put(&layout::partial_place(level, &boundary), &partial)?;
            if is_changed && level < LEVEL_MAX {
                dirty[usize::from(level) + 1].insert(boundary_before(layered, level + 1, &boundary, false)?);
            }
        }
    }
    Ok(())
}

/// Makes a place for each new boundary, to be filled, and removes those whose row is gone.
fn place_boundaries(layered: &mut Layered, changed: &BTreeSet<Vec<u8>>, dirty: &mut [BTreeSet<Vec<u8>>]) -> Result<()> {
    for row in changed {
        let highest = level_of(row);
        let is_there = highest > 0 && layered.get(&layout::row_place(row))?.is_some();
        for level in 1..=highest {
            let place = layout::partial_place(level, row);
            if !is_there {
                layered.remove(&place)?;
                continue;
            }
            if layered.get(&place)?.is_none() {
                layered.put(&place, &[])?;
            }
            dirty[usize::from(level)].insert(row.clone());
        }
    }
    for level in 1..=LEVEL_MAX {
        let first = layout::partial_place(level, &[]);
        if layered.get(&first)?.is_none() {
            layered.put(&first, &[])?;
        }
    }
    Ok(())
}

/// What the group that begins at `boundary` comes to.
fn reduce_group(layered: &Layered, reducer: &dyn Reducer, level: u8, boundary: &[u8]) -> Result<Vec<u8>> {
    let end = boundary_after(layered, level, boundary)?;
    let mut fold = reducer.begin();
    if level == 1 {
        fold_rows(layered, &mut *fold, boundary, end.as_deref(), usize::MAX)?;
    } else {
        fold_parts(layered, &mut *fold, level - 1, boundary, end.as_deref())?;
    }
    fold.finish()
}

/// Rows that are folded one by one before it is tried to take whole groups.
const FEW_ROWS: usize = 32;

/// What the rows from `from` up to `to` (none: to the end) come to: nothing if there are none.
pub(super) fn reduce_range(
    layered: &Layered,
    reducer: &dyn Reducer,
    from: &[u8],
    to: Option<&[u8]>,
) -> Result<Vec<u8>> {
    let mut fold = reducer.begin();
    let mut start = from.to_vec();
    if !from.is_empty() || to.is_some() {
        match fold_rows(layered, &mut *fold, from, to, FEW_ROWS)? {
            Some(next) => start = next,
            None => return fold.finish(),
        }
    }
    fold_range(layered, &mut *fold, LEVEL_MAX, &start, to)?;
    fold.finish()
}

/// Folds a range by whole groups of `level`, and what is left at both ends by smaller ones.
fn fold_range(layered: &Layered, fold: &mut dyn Fold, level: u8, from: &[u8], to: Option<&[u8]>) -> Result<()> {
    if to.is_some_and(|to| from >= to) {
        return Ok(());
    }
    if level == 0 {
        return fold_rows(layered, fold, from, to, usize::MAX).map(|_| ());
    }
    // The first boundary within the range, and the last.
    let is_first = layered.get(&layout::partial_place(level, from))?.is_some();
    let first = if is_first { Some(from.to_vec()) } else { boundary_after(layered, level, from)? };
    let Some(first) = first.filter(|first| to.is_none_or(|to| &**first <= to)) else {
        return fold_range(layered, fold, level - 1, from, to);
    };
    let last = match to {
        None => None,
        Some(to) => Some(boundary_before(layered, level, to, false)?),
    };
    fold_range(layered, fold, level - 1, from, Some(&first))?;
    fold_parts(layered, fold, level, &first, last.as_deref())?;
    match last {
        None => Ok(()),
        Some(last) => fold_range(layered, fold, level - 1, &last, to),
    }
}

/// Takes a partial reduction, with its level and boundary.
type Put<'a> = dyn FnMut(u8, &[u8], &[u8]) -> Result<()> + 'a;

/// Makes every partial reduction anew, from the rows in order; hands each to `put` with its level and boundary.
pub(super) fn rebuild(layered: &Layered, reducer: &dyn Reducer, put: &mut Put<'_>) -> Result<()> {
    let open = (0..LEVEL_MAX).map(|_| (Vec::new(), reducer.begin())).collect();
    let mut groups = OpenGroups { reducer, open, put };
    let (lower, upper) = (layout::row_place(&[]), layout::rows_end());
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    while let Some((place, value)) = scan.next()? {
        let row = layout::row_of_place(place).unwrap_or_default();
        groups.close(level_of(row), row)?;
        groups.open[0].1.row(RowKey::decode(row)?.key, value)?;
    }
    groups.close(LEVEL_MAX, &[])
}

/// Of each level from the first up, the group that is being folded.
struct OpenGroups<'a, 'p> {
    reducer: &'a dyn Reducer,
    /// Where each began, and what it comes to so far.
    open: Vec<(Vec<u8>, Box<dyn Fold + 'a>)>,
    put: &'a mut Put<'p>,
}

impl OpenGroups<'_, '_> {
    /// Ends the groups up to `level` where the next ones begin.
    fn close(&mut self, level: u8, next: &[u8]) -> Result<()> {
        for closing in 1..=level {
            let at = usize::from(closing) - 1;
            let (begin, fold) = std::mem::replace(&mut self.open[at], (next.to_vec(), self.reducer.begin()));
            let partial = fold.finish()?;
            (self.put)(closing, &begin, &partial)?;
            if let Some((_, above)) = self.open.get_mut(at + 1).filter(|_| !partial.is_empty()) {
                above.part(&partial)?;
            }
        }
        Ok(())
    }
}

/// How many rows lie from `from` up to `to`. Costs a walk over them.
pub(super) fn count_rows(layered: &Layered, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
    let (lower, upper) = (layout::row_place(from), to.map_or_else(layout::rows_end, layout::row_place));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut count = 0;
    while scan.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}
