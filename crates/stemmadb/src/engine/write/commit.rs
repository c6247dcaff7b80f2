//! Committing a transaction: checks it as a whole, appends its frame, and applies it to memtable and caches.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::author::current_author;
use super::{Predecessor, Receipt, StagedEdit, StagedLocal, Transaction, Writer};
use crate::document::Document;
use crate::engine::commit_hook::OnAppended;
use crate::index::{DocumentTerms, difference};
use crate::layout::record::{Record, RevisionRecord};
use crate::log::{Digest, Level, LogPosition, Payload};
use crate::memtable::{DocumentState, LocalState, RecordLocation, StoredRevision};
use crate::publish::{Published, Written};
use crate::read::read_timestamp::ReadTimestamp;
use crate::revision::{Revision, Sequence};
use crate::{Error, Result};

/// The largest transaction, in bytes of its frame: more than should be held in memory at a time.
const FRAME_BYTES_MAX: usize = 1 << 30;

impl Transaction<'_> {
    /// Appends the transaction to the log's buffer, applies it to the memtable, and queues it for publication.
    ///
    /// On success the transaction is part of the database, although readers see it only once it is published. Returns
    /// none if there was nothing to write.
    pub(in crate::engine) fn commit(mut self, writer: &mut Writer, level: Level) -> Result<Option<Receipt>> {
        if self.staged.is_empty() && self.locals.is_empty() {
            return Ok(None);
        }
        assert!(!self.base.is_published, "a speculative transaction is never committed");
        debug_assert_eq!(self.base.at.next(), writer.next_sequence, "no other transaction committed in between");
        let store = self.store;
        let parts = &store.parts;

        // 0. On a full disk, accept only what helps to free space.
        if self.staged.iter().any(|edit| !edit.deleted) || self.locals.iter().any(|local| !local.deleted) {
            store.refuse_if_deletions_only()?;
        }

        // 1. Check unique constraints on the state that the transaction leaves behind.
        self.check_unique_keys()?;

        // 2. Delete expired documents whose reserved values are taken over.
        self.delete_displaced()?;

        // 3. Encode the frame: the shapes and dictionaries that the log has to name, the contents that it lacks, then
        //    one record for each edit.
        let mut payload = parts.log.new_payload();
        payload.reserve(320 * self.staged.len() + 64, self.staged.len());
        let names_all = writer.named_in != writer.log_end.segment() && parts.may_name_all_shapes();
        let unnamed = if names_all { 0 } else { writer.logged_shape_count };
        let shape_count = parts.log_shapes_since(unnamed, &mut payload);
        let dictionary_count = if names_all { parts.log_dictionaries(&mut payload) } else { 0 };
        let contents = self.encode_contents(&mut payload)?;
        let locations = self.encode(&mut payload)?;
        let mut locations = locations.into_iter();

        // 4. Ask the commit hooks, which can refuse the transaction.
        let on_appended = self.ask_commit_hooks()?;
        let end_ms = self.staged.iter().filter_map(|staged| staged.new_terms.as_ref()?.end_ms()).min();

        // 5. Append the frame to the log's buffer. This is the last step that can fail.
        let first_sequence = writer.next_sequence;
        let appended = parts.log.append(first_sequence, &payload)?;

        // 6. Advance the writer past the frame.
        debug_assert!(writer.log_end < appended.end, "frames are appended in order");
        debug_assert!(writer.next_number <= self.next_number, "document numbers ascend");
        writer.logged_shape_count = shape_count;
        if names_all {
            (writer.named_in, writer.named_count) = (appended.end.segment(), shape_count);
            writer.named_dictionary_count = dictionary_count;
        }
        writer.log_end = appended.end;
        writer.next_number = self.next_number;

        // 7. Apply contents and edits to the memtable, and invalidate cached documents and results.
        let active = store.active_memtable();
        let bytes_before = active.byte_count();
        for (digest, offset, length) in contents {
            let location = RecordLocation { position: appended.payload.advance(offset), length };
            active.insert_content(digest, Some(location));
        }
        let previous_sequence = Sequence(first_sequence.0.saturating_sub(1));
        let (mut last_sequence, written) = self.apply_edits(appended.payload, &mut locations, previous_sequence);

        // 8. Apply local documents. They are not events, but their own sequence hides them from earlier snapshots.
        if !self.locals.is_empty() {
            last_sequence = last_sequence.next();
            self.apply_locals(appended.payload, &mut locations, last_sequence);
        }
        debug_assert!(locations.next().is_none(), "every encoded record is applied");
        let memory_bytes = active.byte_count() - bytes_before;
        writer.next_sequence = last_sequence.next();

        // 9. Notify the commit hooks and the expiration thread.
        on_appended.into_iter().for_each(|done| done(last_sequence));
        if let Some(end_ms) = end_ms {
            store.add_expiration(end_ms);
        }

        // 10. Queue the transaction for publication, and start a checkpoint if the memtable is full.
        let published = Published { after: previous_sequence, sequence: last_sequence, written };
        parts.publisher.enqueue(appended.end, level, self.next_number, published);
        store.seal_if_full(writer);
        Ok(Some(Receipt { end: appended.end, last_sequence, memory_bytes }))
    }

    /// Applies the edits to the memtable and the caches; their records are at `locations` in the payload at `payload`.
    ///
    /// Returns the last sequence assigned and, if the publisher is observed, the documents whose winner changed.
    fn apply_edits(
        &mut self,
        payload: LogPosition,
        locations: &mut impl Iterator<Item = (u32, u32)>,
        previous_sequence: Sequence,
    ) -> (Sequence, Option<Vec<Written>>) {
        let parts = &self.store.parts;
        let active = self.store.active_memtable();
        let mut last_sequence = previous_sequence;
        // A revision may become a leaf's ancestor and a leaf again within one transaction.
        let mut logged = HashMap::new();
        let edits_once = self.newest.len() == self.staged.len();
        let mut written = parts.publisher.is_observed().then(Vec::new);
        let read_timestamp = self.base.read_timestamp.clone();
        if let Some(last) = self.staged.iter().map(|staged| staged.state.sequence).max() {
            parts.caches.documents.begin(last);
        }
        for mut staged in self.staged.drain(..) {
            let (offset, length) = locations.next().expect("each staged edit was encoded");
            let position = payload.advance(offset);
            let stored = StoredRevision { position, length, logged_ancestors: staged.path.len() as u32 - 1 };
            if edits_once {
                staged.state.tree.update_payload(&staged.path[0], stored);
            } else {
                logged.insert((staged.state.number, staged.path[0]), stored);
                for revision in staged.unwritten_leaves() {
                    if let Some(stored) = logged.get(&(staged.state.number, revision)) {
                        staged.state.tree.update_payload(&revision, *stored);
                    }
                }
            }
            debug_assert_eq!(staged.state.sequence, last_sequence.next(), "each edit has the next sequence");
            last_sequence = staged.state.sequence;
            if let Some(written) = &mut written {
                written.extend(staged.written(read_timestamp.as_ref(), &parts.shapes));
            }
            let change = difference(staged.old_terms.as_ref(), staged.new_terms.as_ref());
            let number = staged.state.number;
            parts.caches.documents.touch(number, last_sequence, staged.new_terms.as_ref(), change);
            active.insert(Arc::new(staged.state), true, change);
        }
        (last_sequence, written)
    }

    /// Applies the local documents to the memtable, all at `sequence`.
    fn apply_locals(
        &mut self,
        payload: LogPosition,
        locations: &mut impl Iterator<Item = (u32, u32)>,
        sequence: Sequence,
    ) {
        let active = self.store.active_memtable();
        for local in self.locals.drain(..) {
            let (offset, length) = locations.next().expect("each local document was encoded");
            let stored = StoredRevision { position: payload.advance(offset), length, logged_ancestors: 0 };
            let StagedLocal { id, generation, deleted, body } = local;
            active.insert_local(&id, sequence, LocalState { generation, deleted, stored, body });
        }
    }

    /// Like [`Transaction::delete_expired_holders`], for values that commit hooks reserve for one document.
    fn delete_displaced(&mut self) -> Result<()> {
        let hooks = self.store.commit_hooks.present();
        if hooks.is_empty() || self.base.expired()?.is_none() {
            return Ok(());
        }
        let written = self.written()?;
        for hook in hooks {
            let displaced = hook.displaced(&self.base, &written)?;
            displaced.into_iter().try_for_each(|number| self.delete_if_expired(number).map(|_| ()))?;
        }
        Ok(())
    }

    /// Asks the commit hooks; returns their callbacks for after the append.
    fn ask_commit_hooks(&self) -> Result<Vec<OnAppended>> {
        let hooks = self.store.commit_hooks.present();
        if hooks.is_empty() {
            return Ok(Vec::new());
        }
        let written = self.written()?;
        hooks.iter().map(|hook| hook.admit(&self.base, &written)).collect()
    }

    /// The documents written so far: each once, in its final state, without its previous state.
    pub(crate) fn written(&self) -> Result<Vec<Written>> {
        let mut written = Vec::with_capacity(self.newest.len());
        for &at in self.newest.values() {
            let state = &self.staged[at].state;
            let new = if state.is_live() { Some(self.winner(state)?) } else { None };
            let checks_uniqueness =
                self.staged.iter().any(|other| other.state.number == state.number && other.checks_uniqueness);
            written.push(Written { number: state.number, id: state.id.clone(), old: None, new, checks_uniqueness });
        }
        Ok(written)
    }

    /// Encodes the contents that neither the log nor a file has; returns the digest, offset and length of each record.
    fn encode_contents(&self, payload: &mut Payload) -> Result<Vec<(Digest, u32, u32)>> {
        let mut encoded = Vec::new();
        for (digest, blob) in &self.contents {
            let Some(bytes) = blob.content_to_log() else { continue };
            if self.base.live_content(digest)?.is_none() {
                let offset = payload.len() as u32;
                let record = Record::Content { removed: false, relocated: false, digest: *digest, bytes };
                encoded.push((*digest, offset, record.encode(payload)));
            }
        }
        Ok(encoded)
    }

    /// Encodes every staged write; returns the offset and length of each record.
    fn encode(&self, payload: &mut Payload) -> Result<Vec<(u32, u32)>> {
        let author = current_author(self.store)?;
        let mut locations = Vec::with_capacity(self.staged.len() + self.locals.len());
        let edits_once = self.newest.len() == self.staged.len();
        let mut encoded = HashMap::new();
        for staged in &self.staged {
            let offset = payload.len() as u32;
            let number = staged.state.number;
            let predecessor = match staged.predecessor {
                Some(Predecessor::Staged(revision)) => encoded
                    .get(&(number, revision))
                    .map(|&(start, length)| RecordLocation { position: LogPosition::new(0, offset - start), length }),
                Some(Predecessor::Logged(location)) => Some(location),
                None => None,
            };
            let record = RevisionRecord {
                deleted: staged.deleted,
                relocated: false,
                pruned: staged.pruned,
                origin: None,
                number,
                sequence: staged.state.sequence,
                id: staged.state.id.as_str(),
                author: author.as_deref(),
                path: staged.path.clone(),
                predecessor,
                body: self.store.parts.compression.store(staged.body.packed()),
            };
            let location = (offset, Record::Revision(record).encode(payload));
            if !edits_once {
                encoded.insert((number, staged.path[0]), location);
            }
            locations.push(location);
        }
        for local in &self.locals {
            let offset = payload.len() as u32;
            let StagedLocal { id, generation, deleted, body } = local;
            let (deleted, generation) = (*deleted, *generation);
            let record = Record::Local { deleted, relocated: false, generation, id, body: body.packed() };
            locations.push((offset, record.encode(payload)));
        }
        if payload.len() > FRAME_BYTES_MAX {
            return Err(Error::invalid(format!("a transaction of {} bytes is too large", payload.len()))
                .with_hint("at most 1 GiB can be written at once: split it"));
        }
        debug_assert_eq!(locations.len(), self.staged.len() + self.locals.len(), "one record for each write");
        Ok(locations)
    }
}

impl StagedEdit {
    /// How the edit changed the winner, for the observer; none if it did not.
    fn written(
        &mut self,
        read_timestamp: Option<&ReadTimestamp>,
        shapes: &Arc<crate::value::Shapes>,
    ) -> Option<Written> {
        if self.old.is_none() && self.new_terms.is_none() {
            return None;
        }
        let has_expired = self.has_expired(read_timestamp);
        let DocumentState { number, id, sequence, body, tree, .. } = &self.state;
        let leaf = tree.winner().filter(|leaf| !leaf.deleted);
        let own_document = || {
            let (leaf, body) = (leaf?, body.as_ref()?);
            Some(Document::new(id.clone(), leaf.revision, *sequence, false, body.clone(), shapes.clone()))
        };
        let new = self.promoted.take().or_else(own_document).filter(|_| !has_expired);
        Some(Written {
            number: *number,
            id: id.clone(),
            old: self.old.take(),
            new,
            checks_uniqueness: self.checks_uniqueness,
        })
    }

    /// Whether the new winner had expired before it was written.
    pub(super) fn has_expired(&self, read_timestamp: Option<&ReadTimestamp>) -> bool {
        let end_ms = self.new_terms.as_ref().and_then(DocumentTerms::end_ms);
        read_timestamp.is_some_and(|read_timestamp| end_ms.is_some_and(|end_ms| end_ms <= read_timestamp.now_ms))
    }

    /// The leaves that this transaction wrote and that do not have a log position yet.
    fn unwritten_leaves(&self) -> SmallVec<[Revision; 1]> {
        self.state.tree.leaves().filter(|leaf| leaf.payload.length == 0).map(|leaf| leaf.revision).collect()
    }
}
