//! Reading the past: a snapshot as of an earlier sequence.
//!
//! Memtables show any sequence since the last checkpoint by themselves. Before that, the tree is too new: an *overlay*,
//! a memtable on top of it, takes back what it has of later transactions. It holds each document that was changed
//! since, in the state that it had, and the terms that it gained or lost. So a past snapshot answers every question
//! that a current one does.
//!
//! Cost of an overlay: proportional to the documents that were changed since; for each, reads of its newer revisions in
//! the log and the terms of two bodies. The overlays used last are kept.

use std::ops::Bound;
use std::sync::Arc;

use crate::Result;
use crate::engine::Store;
use crate::index::{DocumentNumber, DocumentTerms, difference};
use crate::layout::{self, meta};
use crate::log::LogPosition;
use crate::memtable::{DocumentState, Memtable, ReplayMode, StoredRevision};
use crate::read::snapshot::{PastReader, Snapshot};
use crate::revision::{RevisionTree, Sequence};
use crate::sync::{Mutex, refuse_if_cancelled};
use crate::tree::{Direction, Table};

/// An overlay of more bytes is not kept.
const OVERLAY_BYTES_MAX: usize = 16 << 20;

/// How many overlays are kept.
const OVERLAYS_MAX: usize = 4;

/// The overlays that were used last, the newest last.
#[derive(Default)]
pub(super) struct Overlays(Mutex<Vec<(OverlayKey, Arc<Memtable>)>>);

/// An overlay belongs to one state of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OverlayKey {
    at: Sequence,
    tree_next_sequence: Sequence,
    tree_replay_from: LogPosition,
    declared_generation: u64,
}

/// A document's state at an earlier time, and its terms in the tree and then.
struct PastDocument {
    state: DocumentState,
    existed: bool,
    newer_terms: Option<DocumentTerms>,
    past_terms: Option<DocumentTerms>,
}

impl Store {
    /// A snapshot as of an earlier sequence.
    ///
    /// # Errors
    /// `Invalid` for a sequence in the future; `NotFound` for one before the history that is kept.
    pub(crate) fn as_of(&self, at: Sequence) -> Result<Snapshot> {
        let held = self.past_readers.hold(at);
        let mut snapshot = self.snapshot()?;
        self.refuse_beyond_history(at, snapshot.at)?;
        let (newest, memtables) = (snapshot.at, snapshot.memtables.clone());
        snapshot.past = Some(Arc::new(PastReader { _held: held, newest, memtables }));
        if let Some(read_timestamp) = snapshot.read_timestamp.take() {
            snapshot.read_timestamp = Some(read_timestamp.at(self.time_of(&snapshot, at)?));
        }
        snapshot.is_published = false;
        snapshot.at = at;
        let checkpoint = meta::checkpoint(&snapshot.tree)?;
        let Some(checkpoint) = checkpoint.filter(|checkpoint| at.next() < checkpoint.next_sequence) else {
            return Ok(snapshot);
        };
        let key = OverlayKey {
            at,
            tree_next_sequence: checkpoint.next_sequence,
            tree_replay_from: checkpoint.replay_from,
            declared_generation: snapshot.declared.generation,
        };
        snapshot.memtables.clear();
        let overlay = match self.overlays.get(&key) {
            Some(overlay) => overlay,
            None => {
                let overlay = Arc::new(self.overlay(&snapshot)?);
                self.overlays.put(key, &overlay);
                overlay
            }
        };
        snapshot.memtables.push(overlay);
        Ok(snapshot)
    }

    /// The highest sequence that was committed up to a time, in microseconds since 1970.
    pub(crate) fn sequence_at(&self, time_us: u64) -> Result<Sequence> {
        self.parts.refuse_if_closed()?;
        let published = self.parts.publisher.published();
        let after = self.parts.log.first_sequence_after(time_us)?;
        Ok(after.map_or(published, |after| Sequence(after.0.saturating_sub(1)).min(published)))
    }

    /// The overlay that makes the tree of `past`, which has no memtables yet, show its sequence.
    fn overlay(&self, past: &Snapshot) -> Result<Memtable> {
        let mut documents = Vec::new();
        let lower = layout::number_key(past.at.0);
        let mut rows =
            past.tree.scan(Table::Sequences, Bound::Excluded(&lower), Bound::Unbounded, Direction::Ascending)?;
        while let Some((_, value)) = rows.next()? {
            refuse_if_cancelled()?;
            let number = DocumentNumber(layout::number_of_key(Table::Sequences, value)?);
            documents.push(self.past_document(past, number)?);
        }
        documents.sort_by_key(|document| document.state.sequence);
        let overlay = Memtable::new();
        for PastDocument { state, existed, newer_terms, past_terms } in documents {
            overlay.insert(Arc::new(state), existed, difference(newer_terms.as_ref(), past_terms.as_ref()));
        }
        Ok(overlay)
    }

    fn past_document(&self, past: &Snapshot, number: DocumentNumber) -> Result<PastDocument> {
        let newer = past.state(number)?.ok_or_else(|| layout::damaged(Table::Docs))?;
        let mut tree = RevisionTree::new();
        let mut sequence = None;
        for leaf in newer.tree.leaves() {
            let ancestry = newer.tree.ancestry(&leaf.revision);
            let found = past.stored_revisions(&newer, leaf).find_map(|revision| match revision {
                Ok(revision) if revision.origin.sequence > past.at => None,
                found => Some(found),
            });
            let Some(revision) = found.transpose()? else { continue };
            let Some(step) = ancestry.iter().position(|known| known == revision.document.revision()) else { continue };
            let location = revision.location;
            let stored = StoredRevision { position: location.position, length: location.length, logged_ancestors: 0 };
            tree.merge(&ancestry[step..], revision.document.is_deleted(), stored)?;
            sequence = sequence.max(Some(revision.origin.sequence));
        }
        let state = DocumentState {
            number,
            id: newer.id.clone(),
            sequence: sequence.unwrap_or(past.at),
            tree,
            replay_mode: ReplayMode::AnyOrder,
            body: None,
        };
        Ok(PastDocument {
            newer_terms: self.terms_of_winner(past, &newer)?,
            past_terms: self.terms_of_winner(past, &state)?,
            existed: sequence.is_some(),
            state,
        })
    }

    /// When the transaction with this sequence was committed, in milliseconds since 1970; now, if that is not known.
    fn time_of(&self, snapshot: &Snapshot, at: Sequence) -> Result<i64> {
        let now_ms = self.parts.options.clock.now_ms();
        if at >= snapshot.at {
            return Ok(now_ms);
        }
        let time_us = self.parts.log.time_of(at)?;
        Ok(time_us.map_or(now_ms, |time_us| i64::try_from(time_us / 1000).unwrap_or(now_ms)))
    }
}

impl Overlays {
    fn get(&self, key: &OverlayKey) -> Option<Arc<Memtable>> {
        let mut overlays = self.0.lock();
        let at = overlays.iter().position(|(other, _)| other == key)?;
        let found = overlays.remove(at);
        let overlay = Arc::clone(&found.1);
        overlays.push(found);
        Some(overlay)
    }

    /// Keeps an overlay, if it is not large.
    fn put(&self, key: OverlayKey, overlay: &Arc<Memtable>) {
        if overlay.byte_count() > OVERLAY_BYTES_MAX {
            return;
        }
        let mut overlays = self.0.lock();
        // Those of earlier states of the tree are not used again.
        overlays.retain(|(other, _)| other.tree_replay_from == key.tree_replay_from);
        if overlays.len() == OVERLAYS_MAX {
            overlays.remove(0);
        }
        overlays.push((key, Arc::clone(overlay)));
    }
}
