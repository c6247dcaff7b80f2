//! Merges a view's overlay into the tree, and removes slots from the tree.
//!
//! Invariants:
//! - The log is flushed before any part of a state is written: the tree never holds changes that the durable log lacks.
//! - A state is written with its position in one transaction.

use std::ops::Bound;

use super::definition::Mapping;
use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference, Phase, SlotNumber, SlotRecord};
use super::partials;
use super::reduce::Reducer;
use super::state::ViewState;
use crate::engine::Store;
use crate::index::DocumentNumber;
use crate::tree::{Direction, Table, Tree, TreeSnapshot, TreeTransaction};
use crate::{Error, Result};

/// A writer of one slot.
pub(super) struct SlotWriter<'a> {
    tree: &'a Tree,
    slot: SlotNumber,
    prefix: Vec<u8>,
    transaction: Option<TreeTransaction<'a>>,
}

/// Builds the record of a view's slot for a state.
pub(super) fn record(mapping: &dyn Mapping, state: &ViewState, phase: Phase) -> SlotRecord {
    SlotRecord {
        name: mapping.name().into(),
        version: mapping.version().into(),
        position: state.position,
        row_count: state.row_count,
        failed_count: state.failed_count,
        phase,
    }
}

impl<'a> SlotWriter<'a> {
    pub(super) fn new(store: &'a Store, slot: SlotNumber) -> Self {
        SlotWriter { tree: &store.parts.tree, slot, prefix: layout::slot_prefix(slot), transaction: None }
    }

    /// Writes the changes of `overlay` and the slot's record, in one transaction.
    pub(super) fn write(&mut self, overlay: &Overlay, after: &SlotRecord) -> Result<()> {
        for (local_key, change) in overlay.iter() {
            self.put_or_delete(local_key, change.as_deref())?;
        }
        self.put_record(after)?;
        self.commit()
    }

    /// Rebuilds all partial reductions from `rows`, and writes them with `after`, in one transaction.
    pub(super) fn reduce_all(
        &mut self,
        rows: &Layered,
        reducer: Option<&dyn Reducer>,
        after: &SlotRecord,
    ) -> Result<()> {
        let (lower, upper) = layout::PARTIAL_BOUNDS;
        self.remove_range(lower, upper)?;
        if let Some(reducer) = reducer {
            partials::rebuild(rows, reducer, &mut |level, row, partial| {
                self.put_or_delete(&layout::local_partial_key(level, row), Some(partial))
            })?;
        }
        self.put_record(after)?;
        self.commit()
    }

    /// Removes the rows of the slot from `lower` (included) to `upper` (excluded).
    fn remove_range(&mut self, lower: &[u8], upper: &[u8]) -> Result<()> {
        let (lower, upper) = ([&*self.prefix, lower].concat(), [&*self.prefix, upper].concat());
        self.transaction()?.remove_range(Table::Views, &lower, &upper);
        Ok(())
    }

    /// Removes the whole slot from the tree, in one transaction.
    pub(super) fn remove(&mut self) -> Result<()> {
        let end = layout::prefix_end(&self.prefix).ok_or_else(|| Error::internal("a slot without an end"))?;
        let prefix = self.prefix.clone();
        let slot = layout::slot_record_key(self.slot);
        let transaction = self.transaction()?;
        transaction.remove_range(Table::Views, &prefix, &end);
        transaction.delete(Table::Views, &slot)?;
        self.commit()
    }

    fn put_record(&mut self, record: &SlotRecord) -> Result<()> {
        let (key, value) = (layout::slot_record_key(self.slot), record.encode());
        self.transaction()?.put(Table::Views, &key, &value)
    }

    fn put_or_delete(&mut self, local_key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let key = [&*self.prefix, local_key].concat();
        let transaction = self.transaction()?;
        match value {
            Some(value) => transaction.put(Table::Views, &key, value),
            None => transaction.delete(Table::Views, &key),
        }
    }

    fn transaction(&mut self) -> Result<&mut TreeTransaction<'a>> {
        let transaction = match self.transaction.take() {
            Some(transaction) => transaction,
            None => self.tree.write()?,
        };
        Ok(self.transaction.insert(transaction))
    }

    fn commit(&mut self) -> Result<()> {
        self.transaction.take().map_or(Ok(()), TreeTransaction::commit)
    }
}

/// Lists the slots in the tree.
pub(super) fn slots(tree: &TreeSnapshot) -> Result<Vec<(SlotNumber, SlotRecord)>> {
    let (lower, upper) = layout::SLOT_RANGE;
    let mut rows = tree.scan(Table::Views, Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    let mut found = Vec::new();
    while let Some((key, value)) = rows.next()? {
        found.push((layout::slot_of_record_key(key)?, SlotRecord::decode(value)?));
    }
    Ok(found)
}

/// Returns the documents that could not be mapped with the reason, at most `limit`.
pub(super) fn failures(rows: &Layered, limit: usize) -> Result<Vec<(DocumentNumber, String)>> {
    let (lower, upper) = layout::BACK_REFERENCE_RANGE;
    let mut scan = rows.scan(Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    let mut found = Vec::new();
    while let Some((local_key, value)) = scan.next()? {
        if let BackReference::Failed(why) = BackReference::decode(value)? {
            found.push((layout::document_of_local_key(local_key)?, why));
            if found.len() == limit {
                break;
            }
        }
    }
    Ok(found)
}
