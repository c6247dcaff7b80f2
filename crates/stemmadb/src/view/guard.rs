//! Eager and unique views: kept in step with every write, before it is appended.
//!
//! Only what a document written here brings is judged to be unique: revisions from elsewhere are never refused for what they share.
//!
//! Invariant: a state that a write has brought is shown to readers of that write, and to nobody before it is published.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};

use super::cell::Cell;
use super::definition::Refresh;
use super::layered::Layered;
use super::layout::{self, RowKey, end_of};
use super::registry::ViewRegistry;
use super::state::Working;
use crate::engine::{CommitHook, OnAppended};
use crate::index::{DocumentNumber, DocumentSet};
use crate::publish::Written;
use crate::read::Snapshot;
use crate::tree::Direction;
use crate::{Error, Result};

/// Asks a view about each write.
pub(super) struct ViewGuard {
    pub(super) views: Weak<ViewRegistry>,
    pub(super) cell: Weak<Cell>,
}

impl CommitHook for ViewGuard {
    fn admit(&self, base: &Snapshot, written: &[Written]) -> Result<OnAppended> {
        let Some(cell) = self.cell() else { return Ok(Box::new(|_| ())) };
        let mut working = with_written(&cell, base, written)?;
        if cell.mapping.refresh() == Refresh::Unique
            && let Some((holder, other)) = shared_by(&cell, base, written, &working)?
        {
            return Err(refusal(&cell, base, written, holder, other));
        }
        working.settle(cell.reducer.as_deref())?;
        let mut state = working.finish();
        let (views, cell) = (self.views.clone(), cell.clone());
        Ok(Box::new(move |sequence| {
            state.position = sequence;
            cell.push(state);
            if let (true, Some(views)) = (cell.is_large(), views.upgrade()) {
                views.save_in_background(&cell);
            }
        }))
    }

    fn displaced(&self, base: &Snapshot, written: &[Written]) -> Result<Vec<DocumentNumber>> {
        let mut displaced = Vec::new();
        let is_unique = |cell: &Arc<Cell>| cell.mapping.refresh() == Refresh::Unique;
        if let (Some(cell), Some(ended)) = (self.cell().filter(is_unique), base.ended()?) {
            let working = with_written(&cell, base, written)?;
            sharers(&cell, base, written, &working, |holder, _| {
                displaced.extend(Some(holder).filter(|holder| ended.contains(*holder)));
                ControlFlow::Continue(())
            })?;
        }
        Ok(displaced)
    }
}

impl ViewGuard {
    fn cell(&self) -> Option<Arc<Cell>> {
        self.cell.upgrade().filter(|cell| !cell.is_replaced())
    }
}

/// The view with what is written.
fn with_written<'c>(cell: &'c Cell, base: &Snapshot, written: &[Written]) -> Result<Working<'c>> {
    let mut working = cell.work_within_write(base)?;
    for Written { number, new, .. } in written {
        working.apply(*number, new.as_ref())?;
    }
    Ok(working)
}

fn refusal(cell: &Cell, base: &Snapshot, written: &[Written], holder: DocumentNumber, other: DocumentNumber) -> Error {
    let id = |number| match written.iter().find(|written| written.number == number) {
        Some(written) => written.id.to_string(),
        None => base.id(number).map(|id| id.to_string()).unwrap_or_default(),
    };
    // The one that was there already holds the key.
    let is_new = |number| written.iter().any(|written| written.number == number);
    let (holder, other) = if is_new(holder) && !is_new(other) { (other, holder) } else { (holder, other) };
    let (name, holder, other) = (cell.mapping.name(), id(holder), id(other));
    Error::conflict(format!(
        "document `{holder}` has the key already that `{other}` would have in the unique view `{name}`"
    ))
    .with_hint("write another key, or change the document that has it")
}

/// A document that has the key already of a row which a document brings that is written here, and that one. What has ended holds no key.
fn shared_by(
    cell: &Cell,
    base: &Snapshot,
    written: &[Written],
    working: &Working<'_>,
) -> Result<Option<(DocumentNumber, DocumentNumber)>> {
    let (ended, mut shared) = (base.ended()?, None);
    sharers(cell, base, written, working, |holder, other| {
        if ended.is_some_and(|ended| ended.contains(holder)) {
            return ControlFlow::Continue(());
        }
        shared = Some((holder, other));
        ControlFlow::Break(())
    })?;
    Ok(shared)
}

/// Shows each document that has the key of a row which a document brings that is written here, and that one. A document keeps what it has.
fn sharers(
    cell: &Cell,
    base: &Snapshot,
    written: &[Written],
    working: &Working<'_>,
    mut show: impl FnMut(DocumentNumber, DocumentNumber) -> ControlFlow<()>,
) -> Result<()> {
    let judged: BTreeSet<DocumentNumber> =
        written.iter().filter(|written| written.is_judged).map(|written| written.number).collect();
    let (before, rows) = (cell.work_within_write(base)?, working.layered());
    for row in working.changed() {
        let (RowKey { key, document }, place) = (RowKey::decode(row)?, layout::row_place(row));
        let is_brought = rows.get(&place)?.is_some() && before.layered().get(&place)?.is_none();
        if !is_brought || !judged.contains(&document) {
            continue;
        }
        let upper = end_of(key).map_or_else(layout::rows_end, |end| layout::row_place(&end));
        let lower = layout::row_place(key);
        let mut scan = rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        while let Some((place, _)) = scan.next()? {
            let holder = RowKey::decode(layout::row_of_place(place).unwrap_or_default())?.document;
            if holder != document && show(holder, document).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Two documents that share a key, of those that have not ended. Costs a walk over all rows.
pub(super) fn first_shared(
    rows: &Layered,
    ended: Option<&DocumentSet>,
) -> Result<Option<(DocumentNumber, DocumentNumber)>> {
    let (lower, upper) = (layout::row_place(&[]), layout::rows_end());
    let mut scan = rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut last: Option<(Vec<u8>, DocumentNumber)> = None;
    while let Some((place, _)) = scan.next()? {
        let RowKey { key, document } = RowKey::decode(layout::row_of_place(place).unwrap_or_default())?;
        if ended.is_some_and(|ended| ended.contains(document)) {
            continue;
        }
        if let Some((last_key, holder)) = &last
            && last_key == key
            && *holder != document
        {
            return Ok(Some((*holder, document)));
        }
        last = Some((key.to_vec(), document));
    }
    Ok(None)
}

/// A guard for the cell, to be kept as long as the view is.
pub(super) fn of(views: &Arc<ViewRegistry>, cell: &Arc<Cell>) -> Arc<dyn CommitHook> {
    Arc::new(ViewGuard { views: Arc::downgrade(views), cell: Arc::downgrade(cell) })
}
