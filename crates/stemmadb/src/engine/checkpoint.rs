//! Checkpoint: merges sealed memtables into the tree in many small transactions, so that no other user of the tree's
//! writer waits long and freed pages are reused early.
//!
//! Invariants:
//! - The log is flushed past a memtable, and all of it is published, before the first slice of it is committed.
//! - Postings are merged first, then documents, then the checkpoint position. Recovery computes index differences from
//!   the documents in the tree: while a document's row is old, its terms can be merged again; once the row is new, all
//!   its terms are merged.
//! - The checkpoint position never moves back.
//! - The tree holds a shape only after the durable log does: a shape that no frame names may be redefined after a
//!   crash.
//! - A document's rows and the live bytes that they account for change in one transaction; so do postings and the
//!   statistics that count them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::engine::statistics::PathStatistics;
use crate::engine::{Sealed, Store};
use crate::index::{self, Container, PathNumber, ordered_bytes};
use crate::layout::meta::{self, Checkpoint};
use crate::layout::settings::Settings;
use crate::layout::{self, DocumentRow, IdRow, LocalRow};
use crate::log::Level;
use crate::memtable::{
    DocumentState, LocalState, Memtable, MemtableTermWalk, PostingOverlay, RecordLocation, StoredRevision,
};
use crate::read::StoreParts;
use crate::read::statistics;
use crate::revision::Sequence;
use crate::tree::{Direction, Table, TreeTransaction};
use crate::{Error, Result};

/// Everything in a sealed memtable is visible to its checkpoint.
const EVERYTHING: Sequence = Sequence(u64::MAX >> 1);

/// How many dictionary entries the tree already holds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Persisted {
    pub(super) path_count: usize,
    pub(super) shape_count: usize,
}

impl Store {
    /// Merges everything written so far into the tree. Costs about one page write per distinct term.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        if self.parts.options.read_only {
            return Ok(());
        }
        {
            let mut writer = self.writer.lock();
            self.seal(&mut writer);
        }
        self.merge_sealed()
    }

    /// Merges the memtables that are sealed at this time, oldest first.
    pub(super) fn merge_sealed(&self) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        loop {
            let Some(sealed) = self.view.read().sealed.first().cloned() else { return Ok(()) };
            let merged = self.parts.merge(&sealed, &mut upkeep.persisted);
            if let Err(error) = merged {
                *self.broken.lock() =
                    Some(error.duplicate().within("the checkpoint failed, so nothing more is written"));
                self.memory_freed.notify_all();
                return Err(error);
            }
            let mut view = self.view.write();
            assert!(
                Arc::ptr_eq(&view.sealed[0].memtable, &sealed.memtable),
                "checkpoints are serialized, so the merged memtable is still the oldest"
            );
            view.sealed.remove(0);
            assert!(
                view.sealed.first().is_none_or(|next| sealed.log_end <= next.log_end),
                "the checkpoint position never moves back"
            );
            drop(view);
            self.memory_freed.notify_all();
        }
    }
}

impl StoreParts {
    fn merge(&self, sealed: &Sealed, persisted: &mut Persisted) -> Result<()> {
        self.log.commit(sealed.log_end, Level::Flushed)?;
        // Every reader sees the tree, so what is merged must be published before.
        if !self.publisher.advance(&self.log) {
            return Err(Error::closed("the log failed, so nothing more is merged into the tree"));
        }
        let has_chunks = sealed.next_number.chunk() > 0;
        let mut slices = Slices { parts: self, transaction: None, row_count: 0, counting: None, has_chunks };
        let path_count = self.paths.len();
        let shape_count = persisted.shape_count.max(sealed.shape_count);
        assert!(persisted.path_count <= path_count, "dictionaries only grow");
        let tree = slices.transaction()?;
        meta::put_paths(tree, &self.paths, persisted.path_count)?;
        meta::put_shapes(tree, &self.shapes, persisted.shape_count..shape_count)?;
        let overfull = merge_postings(&mut slices, &sealed.memtable)?;
        slices.commit()?;
        self.divide_statistics(overfull)?;
        *persisted = Persisted { path_count, shape_count };
        merge_documents(&mut slices, &sealed.memtable)?;
        let checkpoint = Checkpoint {
            replay_from: sealed.log_end,
            next_sequence: sealed.next_sequence,
            next_number: sealed.next_number,
        };
        let tree = slices.transaction()?;
        meta::put_checkpoint(tree, &checkpoint)?;
        meta::put_settings(tree, &Settings::encode(&self.policy, &sealed.declared))?;
        slices.commit()
    }
}

/// A tree transaction that is committed and restarted after a number of rows.
struct Slices<'a> {
    parts: &'a StoreParts,
    transaction: Option<Box<dyn TreeTransaction + 'a>>,
    row_count: usize,
    /// The statistics of the path being merged.
    counting: Option<PathStatistics>,
    /// Whether documents span more than one chunk.
    has_chunks: bool,
}

impl<'a> Slices<'a> {
    fn transaction(&mut self) -> Result<&mut (dyn TreeTransaction + 'a)> {
        let transaction = match self.transaction.take() {
            Some(transaction) => transaction,
            None => self.parts.tree.write()?,
        };
        Ok(&mut **self.transaction.insert(transaction))
    }

    /// Commits once enough rows have changed.
    fn end_if_full(&mut self) -> Result<()> {
        if self.row_count >= self.parts.options.slice_rows { self.commit() } else { Ok(()) }
    }

    /// Whether a term has documents in chunks that its merge does not touch; `row_key` is the key of a row that the
    /// merge touches.
    fn has_others(
        &mut self,
        path: PathNumber,
        key: &[u8],
        row_key: &[u8],
        is_touched: impl Fn(u64) -> bool,
    ) -> Result<bool> {
        // Presence keys have no statistics.
        if !self.has_chunks || self.counting.is_none() {
            return Ok(false);
        }
        let term = &row_key[..ordered_bytes(u64::from(path.0)).len() + key.len()];
        match self.transaction()?.has_neighbor_with_prefix(Table::Postings, row_key, term)? {
            Some(has_others) => Ok(has_others),
            // This is the only writer of the tree, and every row of the term that this transaction changed is touched.
            None => statistics::has_others(&*self.parts.tree.read()?, path, key, is_touched),
        }
    }

    fn commit(&mut self) -> Result<()> {
        self.row_count = 0;
        if let Some(mut counting) = self.counting.take() {
            counting.put(self.transaction()?)?;
            self.counting = Some(counting);
        }
        self.transaction.take().map_or(Ok(()), |transaction| transaction.commit())
    }
}

/// Merges all postings. Returns the statistics whose value ranges have grown too large.
fn merge_postings(slices: &mut Slices<'_>, memtable: &std::sync::Arc<Memtable>) -> Result<Vec<PathStatistics>> {
    let mut overlay = PostingOverlay::default();
    for (path, presence) in memtable.presences() {
        overlay.clear();
        memtable.presence(path, presence, EVERYTHING, &mut overlay);
        overlay.settle();
        merge_term(slices, path, &presence.key(), &overlay)?;
        slices.end_if_full()?;
    }
    let mut overfull = Vec::new();
    for path in memtable.paths() {
        slices.counting = Some(PathStatistics::begin(&*slices.parts.tree.read()?, path)?);
        let terms = MemtableTermWalk::new(
            memtable.clone(),
            path,
            Bound::Unbounded,
            Bound::Unbounded,
            Direction::Ascending,
            EVERYTHING,
        );
        for (key, overlay) in terms {
            let (entry_change, value_change) = merge_term(slices, path, &key, &overlay)?;
            if let Some(counting) = &mut slices.counting {
                counting.add(&key, entry_change, value_change)?;
            }
            slices.end_if_full()?;
        }
        if let Some(mut counting) = slices.counting.take() {
            counting.put(slices.transaction()?)?;
            overfull.extend(slices.parts.publish_statistics(counting));
        }
    }
    Ok(overfull)
}

/// Changes one term's containers, one chunk of documents at a time. Returns the change in the number of documents that
/// have the term, and whether the term is new (1) or gone (-1).
fn merge_term(slices: &mut Slices<'_>, path: PathNumber, key: &[u8], overlay: &PostingOverlay) -> Result<(i64, i64)> {
    debug_assert!(
        overlay.changes().is_sorted_by(|left, right| left.0 < right.0),
        "an overlay lists each document once, in ascending order"
    );
    let (mut was_there, mut is_there, mut change) = (None, false, 0);
    let is_touched = |chunk: u64| overlay.changes().iter().any(|(number, _)| number.chunk() == chunk);
    let mut row_key = Vec::new();
    for changes in overlay.changes().chunk_by(|left, right| left.0.chunk() == right.0.chunk()) {
        row_key = index::posting_key(path, key, changes[0].0.chunk());
        let tree = slices.transaction()?;
        let pick = |gains: bool| -> Vec<u16> {
            changes.iter().filter(|(_, gained)| *gained == gains).map(|(number, _)| number.low()).collect()
        };
        let mut value = Vec::new();
        let stored = tree.get(Table::Postings, &row_key)?;
        let before = stored.map_or(Ok(0), Container::stored_len)?;
        let after = Container::update_stored(stored, &pick(true), &pick(false), &mut value)?;
        change += i64::from(after) - i64::from(before);
        is_there |= after > 0;
        if before > 0 {
            was_there = Some(true);
        } else if was_there.is_none() {
            was_there = Some(slices.has_others(path, key, &row_key, is_touched)?);
        }
        let tree = slices.transaction()?;
        if after == 0 {
            tree.delete(Table::Postings, &row_key)?;
        } else {
            tree.put(Table::Postings, &row_key, &value)?;
        }
        slices.row_count += 1;
    }
    let was_there = was_there.unwrap_or_default();
    let is_there = is_there || (was_there && slices.has_others(path, key, &row_key, is_touched)?);
    Ok((change, i64::from(is_there) - i64::from(was_there)))
}

fn merge_documents(slices: &mut Slices<'_>, memtable: &Memtable) -> Result<()> {
    // Each document changes three rows; only the row of a new document's id is at an arbitrary position.
    let chunk_count = (slices.parts.options.slice_rows / 2).max(1);
    for documents in memtable.newest_documents().chunks(chunk_count) {
        let mut live = LiveChanges::default();
        let tree = slices.transaction()?;
        for state in documents {
            merge_document(tree, state, &mut live)?;
        }
        live.apply(tree)?;
        slices.commit()?;
    }
    let mut live = LiveChanges::default();
    let tree = slices.transaction()?;
    for (id, state) in memtable.newest_locals() {
        let key = layout::id_key(&id);
        if let Some(value) = tree.get(Table::Local, &key)? {
            let old = LocalRow::decode(value)?;
            live.remove(RecordLocation { position: old.position, length: old.length });
        }
        live.add(state.stored.location());
        let LocalState { generation, deleted, stored: StoredRevision { position, length, .. }, .. } = *state;
        tree.put(Table::Local, &key, &LocalRow { generation, deleted, position, length }.encode())?;
    }
    live.apply(tree)
}

/// Writes one document's rows, and removes the rows and live bytes of its previous state.
fn merge_document(tree: &mut dyn TreeTransaction, state: &DocumentState, live: &mut LiveChanges) -> Result<()> {
    let key = layout::number_key(state.number.0);
    let old = match tree.get(Table::Docs, &key)? {
        Some(value) => Some(DocumentRow::decode(value)?.state(state.number)?),
        None => None,
    };
    if let Some(old) = &old {
        old.record_locations().for_each(|place| live.remove(place));
        if old.sequence != state.sequence {
            tree.delete(Table::Sequences, &layout::number_key(old.sequence.0))?;
        }
    }
    state.record_locations().for_each(|place| live.add(place));
    tree.put(Table::Docs, &key, &DocumentRow::encode(state)?)?;
    tree.put(Table::Ids, &layout::id_key(state.id.as_str()), &IdRow::of(state)?.encode())?;
    if old.is_none_or(|old| old.sequence != state.sequence) {
        tree.put(Table::Sequences, &layout::number_key(state.sequence.0), &layout::number_key(state.number.0))?;
    }
    Ok(())
}

/// The changes of segments' live bytes in one slice.
#[derive(Default)]
struct LiveChanges(BTreeMap<u32, i64>);

impl LiveChanges {
    fn add(&mut self, place: RecordLocation) {
        *self.0.entry(place.position.segment()).or_default() += i64::from(place.length);
    }

    fn remove(&mut self, place: RecordLocation) {
        *self.0.entry(place.position.segment()).or_default() -= i64::from(place.length);
    }

    fn apply(&self, tree: &mut dyn TreeTransaction) -> Result<()> {
        self.0.iter().try_for_each(|(segment, change)| meta::change_live_bytes(tree, *segment, *change))
    }
}
