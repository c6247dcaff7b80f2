//! Merges a view's overlay into the tree in slices, and removes slots from the tree.
//!
//! Invariants:
//! - The log is flushed before any part of a state is written: the tree never holds changes that the durable log lacks.
//! - Changes that fit into one slice are written with the position in one transaction. Otherwise the slot is
//!   `Unfinished` during the merge: back references are first extended to name both the old and the new rows, so that
//!   they name whichever rows exist if the merge is interrupted; partial reductions are then rebuilt.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::definition::Mapping;
use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference, Phase, SlotNumber, SlotRecord};
use super::partials;
use super::reduce::Reducer;
use super::state::ViewState;
use crate::Result;
use crate::engine::Store;
use crate::index::DocumentNumber;
use crate::tree::{Direction, Table, Tree, TreeSnapshot, TreeTransaction};

/// A writer of one slot.
pub(super) struct SlotWriter<'a> {
    tree: &'a dyn Tree,
    slot: SlotNumber,
    prefix: Vec<u8>,
    slice_rows: usize,
    transaction: Option<Box<dyn TreeTransaction + 'a>>,
    row_count: usize,
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

/// A key within the slot, and its new value; `None` removes it.
type SlotChange = (Vec<u8>, Option<Vec<u8>>);

impl<'a> SlotWriter<'a> {
    pub(super) fn new(store: &'a Store, slot: SlotNumber) -> Self {
        SlotWriter {
            tree: &*store.parts.tree,
            slot,
            prefix: layout::slot_prefix(slot),
            slice_rows: store.parts.options.slice_rows,
            transaction: None,
            row_count: 0,
        }
    }

    /// Writes the changes of `overlay`, then the slot's record; `before` is the record in the tree.
    pub(super) fn write(&mut self, overlay: &Overlay, before: &SlotRecord, after: &SlotRecord) -> Result<()> {
        let is_whole = overlay.len() < self.slice_rows;
        let mut exact = Vec::new();
        if !is_whole {
            self.put_record(&SlotRecord { phase: Phase::Unfinished, ..before.clone() })?;
            self.commit()?;
            exact = self.widen(overlay)?;
            self.commit()?;
        }
        for (local_key, change) in overlay.iter() {
            if is_whole || !layout::is_back_reference(local_key) {
                self.put_or_delete(local_key, change.as_deref())?;
                self.count_row(!is_whole)?;
            }
        }
        for (local_key, change) in &exact {
            self.put_or_delete(local_key, change.as_deref())?;
            self.count_row(true)?;
        }
        self.put_record(after)?;
        self.commit()
    }

    /// Writes back references that name both old and new rows; returns the final ones, to be written last.
    fn widen(&mut self, overlay: &Overlay) -> Result<Vec<SlotChange>> {
        let mut exact = Vec::new();
        for (local_key, change) in overlay.iter().filter(|(local_key, _)| layout::is_back_reference(local_key)) {
            let key = [&*self.prefix, local_key].concat();
            let stored = self.transaction()?.get(Table::Views, &key)?;
            let old = stored.map(BackReference::decode).transpose()?;
            let new = change.as_deref().map(BackReference::decode).transpose()?;
            let wide = union(old.as_ref(), new.as_ref()).encode();
            if Some(&*wide) != change.as_deref() {
                exact.push((local_key.to_vec(), change.as_deref().map(<[u8]>::to_vec)));
            }
            self.put_or_delete(local_key, Some(&wide))?;
            self.count_row(true)?;
        }
        Ok(exact)
    }

    /// Rebuilds all partial reductions from `rows`, then writes `after`.
    pub(super) fn reduce_all(
        &mut self,
        rows: &Layered,
        reducer: Option<&dyn Reducer>,
        after: &SlotRecord,
    ) -> Result<()> {
        self.remove_range(rows, layout::partial_range())?;
        if let Some(reducer) = reducer {
            partials::rebuild(rows, reducer, &mut |level, row, partial| {
                self.put_or_delete(&layout::local_partial_key(level, row), Some(partial))?;
                self.count_row(true)
            })?;
        }
        self.put_record(after)?;
        self.commit()
    }

    fn remove_range(&mut self, rows: &Layered, range: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Result<()> {
        let (lower, upper) = (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice));
        let mut scan = rows.scan(lower, upper, Direction::Ascending)?;
        while let Some((local_key, _)) = scan.next()? {
            let local_key = local_key.to_vec();
            self.put_or_delete(&local_key, None)?;
            self.count_row(true)?;
        }
        self.commit()
    }

    /// Removes the whole slot from the tree.
    pub(super) fn remove(&mut self, record: &SlotRecord) -> Result<()> {
        self.put_record(&SlotRecord { phase: Phase::Dropped, ..record.clone() })?;
        self.commit()?;
        let rows = Layered::new(self.tree.read()?, self.prefix.as_slice().into(), Overlay::default());
        self.remove_range(&rows, (Bound::Unbounded, Bound::Unbounded))?;
        let slot = layout::slot_record_key(self.slot);
        self.transaction()?.delete(Table::Views, &slot)?;
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
            None => transaction.delete(Table::Views, &key).map(|_| ()),
        }
    }

    fn transaction(&mut self) -> Result<&mut (dyn TreeTransaction + 'a)> {
        let transaction = match self.transaction.take() {
            Some(transaction) => transaction,
            None => self.tree.write()?,
        };
        Ok(&mut **self.transaction.insert(transaction))
    }

    /// Counts a changed row; commits if the slice is full and `may_commit` allows it.
    fn count_row(&mut self, may_commit: bool) -> Result<()> {
        self.row_count += 1;
        if may_commit && self.row_count >= self.slice_rows { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.row_count = 0;
        self.transaction.take().map_or(Ok(()), |transaction| transaction.commit())
    }
}

/// A back reference that names every row of either.
fn union(old: Option<&BackReference>, new: Option<&BackReference>) -> BackReference {
    let (old, new) = (old.map_or(&[][..], BackReference::keys), new.map_or(&[][..], BackReference::keys));
    let mut counts: BTreeMap<&Vec<u8>, (usize, usize)> = BTreeMap::new();
    old.iter().for_each(|key| counts.entry(key).or_default().0 += 1);
    new.iter().for_each(|key| counts.entry(key).or_default().1 += 1);
    let keys = counts.into_iter().flat_map(|(key, (old, new))| std::iter::repeat_n(key.clone(), old.max(new)));
    BackReference::Rows(keys.collect())
}

/// Lists the slots in the tree.
pub(super) fn slots(tree: &dyn TreeSnapshot) -> Result<Vec<(SlotNumber, SlotRecord)>> {
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
