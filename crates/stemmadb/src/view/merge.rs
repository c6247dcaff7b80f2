//! Brings a view's contents into the tree, in slices, and takes those of a slot out again.
//!
//! Invariants:
//! - The log is flushed before anything of a state is written: the tree never holds what the durable log does not.
//! - What fits one slice is written with its position in one transaction. Otherwise the slot is `Unfinished` meanwhile: back
//!   references are first widened to the old rows and the new, so that whatever part of the rows is there when it is cut short, they
//!   name it; partial reductions are made anew then.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::definition::Mapping;
use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference, Phase, SlotNumber, SlotRecord};
use super::partials;
use super::reduce::Reducer;
use super::state::State;
use crate::Result;
use crate::engine::Store;
use crate::index::DocumentNumber;
use crate::tree::{Direction, Table, Tree, TreeSnapshot, TreeTransaction};

/// Writes to one slot.
pub(super) struct Merge<'a> {
    tree: &'a dyn Tree,
    slot: SlotNumber,
    prefix: Vec<u8>,
    slice_rows: usize,
    transaction: Option<Box<dyn TreeTransaction + 'a>>,
    row_count: usize,
}

/// The record of a slot of this view in a state.
pub(super) fn record(mapping: &dyn Mapping, state: &State, phase: Phase) -> SlotRecord {
    SlotRecord {
        name: mapping.name().into(),
        version: mapping.version().into(),
        position: state.position,
        row_count: state.row_count,
        failed_count: state.failed_count,
        phase,
    }
}

/// A key within the slot, and its value; none to remove it.
type Written = (Vec<u8>, Option<Vec<u8>>);

impl<'a> Merge<'a> {
    pub(super) fn new(store: &'a Store, slot: SlotNumber) -> Self {
        Merge {
            tree: &*store.parts.tree,
            slot,
            prefix: layout::slot_prefix(slot),
            slice_rows: store.parts.options.slice_rows,
            transaction: None,
            row_count: 0,
        }
    }

    /// Writes what `overlay` changes and then the slot's record; `before` is the record that is there.
    pub(super) fn write(&mut self, overlay: &Overlay, before: &SlotRecord, after: &SlotRecord) -> Result<()> {
        let is_whole = overlay.len() < self.slice_rows;
        let mut exact = Vec::new();
        if !is_whole {
            self.put_record(&SlotRecord { phase: Phase::Unfinished, ..before.clone() })?;
            self.commit()?;
            exact = self.widen(overlay)?;
            self.commit()?;
        }
        for (place, change) in overlay.iter() {
            if is_whole || !layout::is_back_reference(place) {
                self.change(place, change.as_deref())?;
                self.count(!is_whole)?;
            }
        }
        for (place, change) in &exact {
            self.change(place, change.as_deref())?;
            self.count(true)?;
        }
        self.put_record(after)?;
        self.commit()
    }

    /// Writes back references that name the rows before and the rows now; returns those to be written exactly in the end.
    fn widen(&mut self, overlay: &Overlay) -> Result<Vec<Written>> {
        let mut exact = Vec::new();
        for (place, change) in overlay.iter().filter(|(place, _)| layout::is_back_reference(place)) {
            let key = [&*self.prefix, place].concat();
            let stored = self.transaction()?.get(Table::Views, &key)?;
            let old = stored.map(BackReference::decode).transpose()?;
            let new = change.as_deref().map(BackReference::decode).transpose()?;
            let wide = union(old.as_ref(), new.as_ref()).encode();
            if Some(&*wide) != change.as_deref() {
                exact.push((place.to_vec(), change.as_deref().map(<[u8]>::to_vec)));
            }
            self.change(place, Some(&wide))?;
            self.count(true)?;
        }
        Ok(exact)
    }

    /// Makes every partial reduction anew from `rows`, then writes `after`.
    pub(super) fn reduce_all(
        &mut self,
        rows: &Layered,
        reducer: Option<&dyn Reducer>,
        after: &SlotRecord,
    ) -> Result<()> {
        self.remove_range(rows, layout::partial_range())?;
        if let Some(reducer) = reducer {
            partials::rebuild(rows, reducer, &mut |level, row, partial| {
                self.change(&layout::partial_place(level, row), Some(partial))?;
                self.count(true)
            })?;
        }
        self.put_record(after)?;
        self.commit()
    }

    fn remove_range(&mut self, rows: &Layered, range: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Result<()> {
        let (lower, upper) = (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice));
        let mut scan = rows.scan(lower, upper, Direction::Ascending)?;
        while let Some((place, _)) = scan.next()? {
            let place = place.to_vec();
            self.change(&place, None)?;
            self.count(true)?;
        }
        self.commit()
    }

    /// Takes the whole slot out of the tree.
    pub(super) fn remove(&mut self, record: &SlotRecord) -> Result<()> {
        self.put_record(&SlotRecord { phase: Phase::Dropped, ..record.clone() })?;
        self.commit()?;
        let rows = Layered::new(self.tree.read()?, self.prefix.as_slice().into(), Overlay::default());
        self.remove_range(&rows, (Bound::Unbounded, Bound::Unbounded))?;
        let slot = layout::slot_key(self.slot);
        self.transaction()?.delete(Table::Views, &slot)?;
        self.commit()
    }

    fn put_record(&mut self, record: &SlotRecord) -> Result<()> {
        let (key, value) = (layout::slot_key(self.slot), record.encode());
        self.transaction()?.put(Table::Views, &key, &value)
    }

    fn change(&mut self, place: &[u8], value: Option<&[u8]>) -> Result<()> {
        let key = [&*self.prefix, place].concat();
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

    /// Notes that a row was changed; commits where a slice is full and may end.
    fn count(&mut self, may_end: bool) -> Result<()> {
        self.row_count += 1;
        if may_end && self.row_count >= self.slice_rows { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.row_count = 0;
        self.transaction.take().map_or(Ok(()), |transaction| transaction.commit())
    }
}

/// Names every row that either names.
fn union(old: Option<&BackReference>, new: Option<&BackReference>) -> BackReference {
    let (old, new) = (old.map_or(&[][..], BackReference::keys), new.map_or(&[][..], BackReference::keys));
    let mut counts: BTreeMap<&Vec<u8>, (usize, usize)> = BTreeMap::new();
    old.iter().for_each(|key| counts.entry(key).or_default().0 += 1);
    new.iter().for_each(|key| counts.entry(key).or_default().1 += 1);
    let keys = counts.into_iter().flat_map(|(key, (old, new))| std::iter::repeat_n(key.clone(), old.max(new)));
    BackReference::Rows(keys.collect())
}

/// The slots that the tree has.
pub(super) fn slots(tree: &dyn TreeSnapshot) -> Result<Vec<(SlotNumber, SlotRecord)>> {
    let (lower, upper) = layout::SLOT_RANGE;
    let mut rows = tree.scan(Table::Views, Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    let mut found = Vec::new();
    while let Some((key, value)) = rows.next()? {
        found.push((layout::slot_of_key(key)?, SlotRecord::decode(value)?));
    }
    Ok(found)
}

/// The documents that could not be mapped, with the reason, up to `limit`.
pub(super) fn failures(rows: &Layered, limit: usize) -> Result<Vec<(DocumentNumber, String)>> {
    let (lower, upper) = layout::BACK_REFERENCE_RANGE;
    let mut scan = rows.scan(Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)?;
    let mut found = Vec::new();
    while let Some((place, value)) = scan.next()? {
        if let BackReference::Failed(why) = BackReference::decode(value)? {
            found.push((layout::document_of_place(place)?, why));
            if found.len() == limit {
                break;
            }
        }
    }
    Ok(found)
}
