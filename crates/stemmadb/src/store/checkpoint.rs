//! Merges sealed memtables into the tree, in many small transactions: nobody waits long for the tree's writer, and pages are reused
//! at once.
//!
//! Invariants:
//! - The log is flushed past a memtable before the first slice of it is committed.
//! - Postings come first, then documents, the checkpoint position last. Recovery works out index differences from the
//!   documents in the tree: as long as a document's row is old, its terms can be merged again; once it is new, they are all in.
//! - The tree knows a shape only after the durable log does: a shape that no frame names may get another meaning after a crash.
//! - A document's rows and the live bytes they account for change in one transaction.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::Result;
use crate::index::{self, Container, PathNumber};
use crate::log::Level;
use crate::memtable::{DocumentState, LocalState, Memtable, Overlay, Stored, Walk};
use crate::revision::Sequence;
use crate::store::layout::{self, DocumentRow, IdRow, LocalRow};
use crate::store::meta::{self, Checkpoint};
use crate::store::{Sealed, Store, StoreParts};
use crate::tree::{Direction, Table, TreeTransaction};

/// Everything a sealed memtable holds is visible to its checkpoint.
const EVERYTHING: Sequence = Sequence(u64::MAX >> 1);

/// Which entries of the dictionaries the tree already has.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Persisted {
    pub(super) path_count: usize,
    pub(super) shape_count: usize,
}

impl Store {
    /// Merges everything written so far into the tree. Costs about a page write per distinct term.
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

    /// Merges the memtables that are sealed now, oldest first.
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
            view.sealed.remove(0);
            drop(view);
            self.memory_freed.notify_all();
        }
    }
}

impl StoreParts {
    fn merge(&self, sealed: &Sealed, persisted: &mut Persisted) -> Result<()> {
        self.log.commit(sealed.log_end, Level::Flushed)?;
        self.publisher.advance(self.log.written(), self.log.durable());
        let mut slices = Slices { parts: self, transaction: None, row_count: 0 };
        let path_count = self.paths.len();
        let shape_count = persisted.shape_count.max(sealed.shape_count);
        let tree = slices.transaction()?;
        meta::put_paths(tree, &self.paths, persisted.path_count)?;
        meta::put_shapes(tree, &self.shapes, persisted.shape_count..shape_count)?;
        merge_postings(&mut slices, &sealed.memtable)?;
        slices.commit()?;
        *persisted = Persisted { path_count, shape_count };
        merge_documents(&mut slices, &sealed.memtable)?;
        let checkpoint = Checkpoint {
            replay_from: sealed.log_end,
            next_sequence: sealed.next_sequence,
            next_number: sealed.next_number,
        };
        meta::put_checkpoint(slices.transaction()?, &checkpoint)?;
        slices.commit()
    }
}

/// A tree transaction that is committed and begun again every so many rows.
struct Slices<'a> {
    parts: &'a StoreParts,
    transaction: Option<Box<dyn TreeTransaction + 'a>>,
    row_count: usize,
}

impl<'a> Slices<'a> {
    fn transaction(&mut self) -> Result<&mut (dyn TreeTransaction + 'a)> {
        let transaction = match self.transaction.take() {
            Some(transaction) => transaction,
            None => self.parts.tree.write()?,
        };
        Ok(&mut **self.transaction.insert(transaction))
    }

    /// Notes that rows changed; commits when the slice is full.
    fn count(&mut self, rows: usize) -> Result<()> {
        self.row_count += rows;
        if self.row_count >= self.parts.options.slice_rows { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.row_count = 0;
        self.transaction.take().map_or(Ok(()), |transaction| transaction.commit())
    }
}

fn merge_postings(slices: &mut Slices<'_>, memtable: &std::sync::Arc<Memtable>) -> Result<()> {
    for (path, presence) in memtable.presences() {
        let mut overlay = Overlay::default();
        memtable.presence(path, presence, EVERYTHING, &mut overlay);
        overlay.settle();
        merge_term(slices, path, &presence.key(), &overlay)?;
    }
    for path in memtable.paths() {
        let terms =
            Walk::new(memtable.clone(), path, Bound::Unbounded, Bound::Unbounded, Direction::Ascending, EVERYTHING);
        for (key, overlay) in terms {
            merge_term(slices, path, &key, &overlay)?;
        }
    }
    Ok(())
}

/// Changes one term's containers, a chunk of documents at a time.
fn merge_term(slices: &mut Slices<'_>, path: PathNumber, key: &[u8], overlay: &Overlay) -> Result<()> {
    for changes in overlay.changes().chunk_by(|left, right| left.0.chunk() == right.0.chunk()) {
        let chunk = changes[0].0.chunk();
        let row_key = index::posting_key(path, key, chunk);
        let tree = slices.transaction()?;
        let pick = |wanted: bool| -> Vec<u16> {
            changes.iter().filter(|(_, gained)| *gained == wanted).map(|(number, _)| number.low()).collect()
        };
        let mut value = Vec::new();
        let stored = tree.get(Table::Postings, &row_key)?;
        if Container::update_stored(stored, &pick(true), &pick(false), &mut value)? == 0 {
            tree.delete(Table::Postings, &row_key)?;
        } else {
            tree.put(Table::Postings, &row_key, &value)?;
        }
        slices.count(1)?;
    }
    Ok(())
}

fn merge_documents(slices: &mut Slices<'_>, memtable: &Memtable) -> Result<()> {
    // Three rows each, of which only that of the id lies where it likes, if the document is new.
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
            live.remove(&Stored { position: old.position, length: old.length, logged_ancestors: 0 });
        }
        live.add(&state.stored);
        let LocalState { generation, deleted, stored: Stored { position, length, .. }, .. } = *state;
        tree.put(Table::Local, &key, &LocalRow { generation, deleted, position, length }.encode())?;
    }
    live.apply(tree)
}

/// Puts one document's rows, and takes away the rows and live bytes of the state before.
fn merge_document(tree: &mut dyn TreeTransaction, state: &DocumentState, live: &mut LiveChanges) -> Result<()> {
    let key = layout::number_key(state.number.0);
    let old = match tree.get(Table::Docs, &key)? {
        Some(value) => Some(DocumentRow::decode(value)?.state(state.number)?),
        None => None,
    };
    if let Some(old) = &old {
        old.tree.leaves().for_each(|leaf| live.remove(&leaf.payload));
        if old.sequence != state.sequence {
            tree.delete(Table::Sequences, &layout::number_key(old.sequence.0))?;
        }
    }
    state.tree.leaves().for_each(|leaf| live.add(&leaf.payload));
    tree.put(Table::Docs, &key, &DocumentRow::encode(state)?)?;
    tree.put(Table::Ids, &layout::id_key(state.id.as_str()), &IdRow::of(state)?.encode())?;
    if old.is_none_or(|old| old.sequence != state.sequence) {
        tree.put(Table::Sequences, &layout::number_key(state.sequence.0), &layout::number_key(state.number.0))?;
    }
    Ok(())
}

/// How the live bytes of segments change in one slice.
#[derive(Default)]
struct LiveChanges(BTreeMap<u32, i64>);

impl LiveChanges {
    fn add(&mut self, stored: &Stored) {
        *self.0.entry(stored.position.segment()).or_default() += i64::from(stored.length);
    }

    fn remove(&mut self, stored: &Stored) {
        *self.0.entry(stored.position.segment()).or_default() -= i64::from(stored.length);
    }

    fn apply(&self, tree: &mut dyn TreeTransaction) -> Result<()> {
        self.0.iter().try_for_each(|(segment, change)| meta::change_live_bytes(tree, *segment, *change))
    }
}
