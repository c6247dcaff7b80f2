//! Partial reductions: reductions of the rows between boundaries at several levels, so that any range is reduced in
//! O(log n).
//!
//! Invariants:
//! - A row is a boundary of level k if the hash of its row key ends in k groups of zero bits; the beginning of all rows
//!   is a boundary of every level. The boundaries therefore depend on the rows alone, not on the order in which they
//!   were added.
//! - For each boundary of level k, the reduction of the rows from it to the next boundary of level k or higher is
//!   stored. Level 0 stores nothing: it is the rows themselves.
//!
//! A change of one row changes one group per level, of some sixteen or thirty-two members.

use std::collections::BTreeSet;
use std::ops::Bound;

use twox_hash::XxHash3_64;

use super::layered::Layered;
use super::layout::{self, RowKey};
use super::reduce::{Fold, Reducer};
use crate::Result;
use crate::tree::Direction;

/// Zero bits per level: groups have sixteen members on average.
const GROUP_BITS: u32 = 4;

/// The highest level; one of its reductions covers about 16.8 million rows.
pub(super) const LEVEL_MAX: u8 = 6;

/// The highest level that this row is a boundary of.
pub(super) fn level_of(row: &[u8]) -> u8 {
    ((XxHash3_64::oneshot(row).trailing_zeros() / GROUP_BITS) as u8).min(LEVEL_MAX)
}

/// A boundary; `None` is the end of all rows.
type RangeEnd = Option<Vec<u8>>;

/// Returns the last boundary of `level` at or before `row`, or strictly before it.
fn boundary_before(layered: &Layered, level: u8, row: &[u8], strictly: bool) -> Result<Vec<u8>> {
    let (lower, upper) = (layout::local_partial_key(level, &[]), layout::local_partial_key(level, row));
    let upper = if strictly { Bound::Excluded(&*upper) } else { Bound::Included(&*upper) };
    let mut scan = layered.scan(Bound::Included(&lower), upper, Direction::Descending)?;
    match scan.next()? {
        Some((local_key, _)) => Ok(layout::row_of_partial(local_key)?.to_vec()),
        None => Ok(Vec::new()),
    }
}

/// Returns the first boundary of `level` after `row`.
fn boundary_after(layered: &Layered, level: u8, row: &[u8]) -> Result<RangeEnd> {
    let (lower, upper) = (layout::local_partial_key(level, row), layout::local_partial_key(level + 1, &[]));
    let mut scan = layered.scan(Bound::Excluded(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    scan.next()?.map(|(local_key, _)| Ok(layout::row_of_partial(local_key)?.to_vec())).transpose()
}

fn fold_rows(layered: &Layered, fold: &mut dyn Fold, from: &[u8], to: Option<&[u8]>, limit: usize) -> Result<RangeEnd> {
    let (lower, upper) = (layout::local_row_key(from), to.map_or_else(layout::rows_end, layout::local_row_key));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut count = 0;
    while let Some((local_key, value)) = scan.next()? {
        let row = layout::row_of_local_key(local_key).unwrap_or_default();
        if count == limit {
            return Ok(Some(row.to_vec()));
        }
        fold.row(RowKey::decode(row)?.key, value)?;
        count += 1;
    }
    Ok(None)
}

/// Folds the stored reductions of `level` between two boundaries.
fn fold_parts(layered: &Layered, fold: &mut dyn Fold, level: u8, from: &[u8], to: Option<&[u8]>) -> Result<()> {
    let lower = layout::local_partial_key(level, from);
    let upper = to.map_or_else(|| layout::local_partial_key(level + 1, &[]), |to| layout::local_partial_key(level, to));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    while let Some((_, partial)) = scan.next()? {
        if !partial.is_empty() {
            fold.part(partial)?;
        }
    }
    Ok(())
}

/// Updates the partial reductions after rows were added, changed or removed.
pub(super) fn refresh(layered: &mut Layered, reducer: &dyn Reducer, changed: &BTreeSet<Vec<u8>>) -> Result<()> {
    if changed.is_empty() {
        return Ok(());
    }
    let mut dirty: Vec<BTreeSet<Vec<u8>>> = vec![BTreeSet::new(); usize::from(LEVEL_MAX) + 1];
    update_boundaries(layered, changed, &mut dirty)?;
    for row in changed {
        // If a boundary was added or removed, the group before it has a new end; the group of the next level then has
        // one member more or less, even if no member's value changed.
        let highest = level_of(row);
        for level in 1..=(highest + 1).min(LEVEL_MAX) {
            dirty[usize::from(level)].insert(boundary_before(layered, level, row, level <= highest)?);
        }
    }
    for level in 1..=LEVEL_MAX {
        for boundary in std::mem::take(&mut dirty[usize::from(level)]) {
            let partial = reduce_group(layered, reducer, level, &boundary)?;
            let is_changed = layered.put(&layout::local_partial_key(level, &boundary), &partial)?;
            if is_changed && level < LEVEL_MAX {
                dirty[usize::from(level) + 1].insert(boundary_before(layered, level + 1, &boundary, false)?);
            }
        }
    }
    Ok(())
}

/// Creates an empty entry for each new boundary, and removes the entries of boundaries whose row is gone.
fn update_boundaries(
    layered: &mut Layered,
    changed: &BTreeSet<Vec<u8>>,
    dirty: &mut [BTreeSet<Vec<u8>>],
) -> Result<()> {
    for row in changed {
        let highest = level_of(row);
        let is_there = highest > 0 && layered.get(&layout::local_row_key(row))?.is_some();
        for level in 1..=highest {
            let local_key = layout::local_partial_key(level, row);
            if !is_there {
                layered.remove(&local_key)?;
                continue;
            }
            if layered.get(&local_key)?.is_none() {
                layered.put(&local_key, &[])?;
            }
            dirty[usize::from(level)].insert(row.clone());
        }
    }
    for level in 1..=LEVEL_MAX {
        let first = layout::local_partial_key(level, &[]);
        if layered.get(&first)?.is_none() {
            layered.put(&first, &[])?;
        }
    }
    Ok(())
}

/// Computes the reduction of the group that begins at `boundary`.
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

/// Number of rows folded individually before whole groups are considered.
const FEW_ROWS: usize = 32;

/// Reduces the rows from `from` to `to` (`None`: the end); returns empty bytes if there are no rows.
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

/// Folds a range by whole groups of `level`, and by smaller groups at both ends.
fn fold_range(layered: &Layered, fold: &mut dyn Fold, level: u8, from: &[u8], to: Option<&[u8]>) -> Result<()> {
    if to.is_some_and(|to| from >= to) {
        return Ok(());
    }
    if level == 0 {
        return fold_rows(layered, fold, from, to, usize::MAX).map(|_| ());
    }
    // The first and the last boundary within the range.
    let is_first = layered.get(&layout::local_partial_key(level, from))?.is_some();
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

/// Receives a partial reduction: level, boundary, and bytes.
type PartialSink<'a> = dyn FnMut(u8, &[u8], &[u8]) -> Result<()> + 'a;

/// Rebuilds all partial reductions from the rows in order, and passes each to `put`.
pub(super) fn rebuild(layered: &Layered, reducer: &dyn Reducer, put: &mut PartialSink<'_>) -> Result<()> {
    let open = (0..LEVEL_MAX).map(|_| (Vec::new(), reducer.begin())).collect();
    let mut groups = OpenGroups { reducer, open, put };
    let (lower, upper) = (layout::local_row_key(&[]), layout::rows_end());
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    while let Some((local_key, value)) = scan.next()? {
        let row = layout::row_of_local_key(local_key).unwrap_or_default();
        groups.close(level_of(row), row)?;
        groups.open[0].1.row(RowKey::decode(row)?.key, value)?;
    }
    groups.close(LEVEL_MAX, &[])
}

/// The groups being folded, one per level from level 1 up.
struct OpenGroups<'a, 'p> {
    reducer: &'a dyn Reducer,
    /// The boundary at which each group begins, and its fold.
    open: Vec<(Vec<u8>, Box<dyn Fold + 'a>)>,
    put: &'a mut PartialSink<'p>,
}

impl OpenGroups<'_, '_> {
    /// Ends the groups up to `level` at the boundary `next`.
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

/// Counts the rows from `from` to `to`. Costs a scan of them.
pub(super) fn count_rows(layered: &Layered, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
    let (lower, upper) = (layout::local_row_key(from), to.map_or_else(layout::rows_end, layout::local_row_key));
    let mut scan = layered.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut count = 0;
    while scan.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}
