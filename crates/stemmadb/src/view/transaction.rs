//! Views at a sequence other than the newest: within a transaction, including its own writes, and as of the past.
//!
//! The view's newest state is updated, in memory and for this one reading, to the sequence of a snapshot. If the view
//! is ahead of it, documents written since are mapped in their earlier state. Then a transaction's own writes are
//! mapped.

use std::sync::Arc;

use super::definition::Mapping;
use super::layout::{self, SlotNumber};
use super::materialized::{MaterializedView, NewestState, ViewReading};
use super::state::{ViewState, ViewUpdate, is_mapped};
use crate::Result;
use crate::document::Document;
use crate::engine::Transaction;
use crate::publish::Written;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::transact::{Attempt, ReadPredicate};

/// Documents mapped per batch.
const BATCH_COUNT: usize = 512;

/// A transaction that a view can be read within: a [`Transaction`] or an [`Attempt`] at one. See
/// [`ViewQuery::within`](super::ViewQuery::within) for an example.
pub trait ViewSession: sealed::Sealed {
    /// The transaction to read through.
    #[doc(hidden)]
    fn transaction(&mut self) -> &Transaction<'_>;

    /// Records a read dependency on every document for which `is_read` returns true.
    #[doc(hidden)]
    fn depend(&mut self, is_read: ReadPredicate);
}

impl ViewSession for Transaction<'_> {
    fn transaction(&mut self) -> &Transaction<'_> {
        self
    }

    fn depend(&mut self, _: ReadPredicate) {}
}

impl ViewSession for Attempt<'_> {
    fn transaction(&mut self) -> &Transaction<'_> {
        Attempt::transaction(self)
    }

    fn depend(&mut self, is_read: ReadPredicate) {
        Attempt::depend(self, is_read);
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for crate::Transaction<'_> {}
    impl Sealed for crate::Attempt<'_> {}
}

/// Returns the view as the session sees it, and records the dependencies of reading it.
pub(super) fn reading<S: ViewSession>(materialized: &MaterializedView, session: &mut S) -> Result<ViewReading> {
    let mapping = materialized.mapping.clone();
    // A row can only be added, removed or changed by a document that has rows before or after the change.
    session.depend(Box::new(move |document| has_rows(&*mapping, document)));
    let transaction = session.transaction();
    let (base, written) = (transaction.base(), transaction.written()?);
    reading_with(materialized, base, &written, transaction.snapshot()?)
}

/// Returns the view as of a snapshot.
pub(super) fn reading_as_of(materialized: &MaterializedView, base: &Snapshot) -> Result<ViewReading> {
    reading_with(materialized, base, &[], base.clone())
}

/// Returns the view as of `base` and with what was written since. `snapshot` has both.
fn reading_with(
    materialized: &MaterializedView,
    base: &Snapshot,
    written: &[Written],
    snapshot: Snapshot,
) -> Result<ViewReading> {
    let (mut update, has_partials) = begin_update(materialized, base)?;
    for written in written {
        update.apply(written.number, written.new.as_ref())?;
    }
    if let Some(ended) = snapshot.expired()? {
        ended.iter().try_for_each(|number| update.apply(number, None))?;
    }
    match has_partials {
        true => update.refresh_partials(materialized.reducer.as_deref())?,
        false => update.reduce_all(materialized.reducer.as_deref())?,
    }
    let (rows, reducer) = (update.layered().clone(), materialized.reducer.clone());
    Ok(ViewReading { snapshot, rows, reducer, is_stale: false, position: base.sequence() })
}

fn has_rows(mapping: &dyn Mapping, document: &Document) -> Result<bool> {
    if !is_mapped(mapping, document) {
        return Ok(false);
    }
    let emitted = mapping.map(&[document])?;
    // A document that can't be mapped has no rows now, but may have some after a change.
    Ok(emitted.iter().all(|emitted| emitted.as_ref().map_or(true, |rows| !rows.is_empty())))
}

/// Returns the rows of the documents of `base`; and whether partial reductions exist, except for changed documents.
fn begin_update<'c>(materialized: &'c MaterializedView, base: &Snapshot) -> Result<(ViewUpdate<'c>, bool)> {
    let Some(NewestState { tree, prefix, state }) = materialized.newest()? else {
        let nothing: Arc<[u8]> = layout::slot_prefix(SlotNumber(u64::MAX)).into();
        let update = ViewUpdate::begin(&*materialized.mapping, base.tree().clone(), nothing, &ViewState::default());
        return Ok((catch_up(update, base)?, false));
    };
    let is_ahead = state.position > base.sequence();
    let mut update = ViewUpdate::begin(&*materialized.mapping, tree, prefix, &state);
    if !is_ahead {
        return Ok((catch_up(update, base)?, true));
    }
    // The view contains later states of these documents. Each document is listed once, at its latest event.
    let now = materialized.store()?.snapshot()?;
    let mut after = base.sequence();
    while after < now.sequence() {
        let found = now.events_after(after, BATCH_COUNT)?;
        for (_, number) in found.events {
            let before = base.state(number)?.filter(|state| state.is_live());
            let before = before.map(|state| base.winner(&state)).transpose()?;
            update.apply(number, before.as_ref())?;
        }
        after = found.reached;
    }
    Ok((update, true))
}

fn catch_up<'c>(mut update: ViewUpdate<'c>, base: &Snapshot) -> Result<ViewUpdate<'c>> {
    let end: Sequence = base.sequence();
    while update.position() < end {
        update.apply_feed_batch(base, BATCH_COUNT)?;
    }
    Ok(update)
}
