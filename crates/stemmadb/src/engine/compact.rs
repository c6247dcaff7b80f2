//! Gives back the space of records that nothing needs any more, a segment at a time.
//!
//! What is still needed of a segment is appended to the log again (*relocated*: the same revision and sequence at a new
//! position); once the tree points to the new places, the segment is retired. Nothing is ever copied as a whole, so
//! this needs room for one segment.
//!
//! Invariant: from the segments that are left, the log alone gives back every document with exactly the ancestry that is known, at its
//! place in the feed. A record that is no leaf any more tells of ancestry only; it may go once the leaves that descend from it tell the
//! same. Where ancestors were forgotten (`revs_limit`), records tell more than is known, and which of them are left makes a difference: then
//! all that is known is *stated* by a record of its own, behind every leaf that was moved, and whenever a record goes that is newer than the
//! last statement. So whatever is newer than that is still there, all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Result;
use crate::engine::write::Writer;
use crate::engine::{Progress, Store};
use crate::index::{DocumentNumber, difference};
use crate::layout::meta;
use crate::layout::record::{Forgotten, Record, RevisionRecord, records};
use crate::layout::{self, DocumentRow, LocalRow};
use crate::log::{Frame, LogPosition, SegmentInfo};
use crate::memtable::{DocumentState, LocalState, RecordLocation, ReplayMode, StoredRevision};
use crate::read::snapshot::Snapshot;
use crate::revision::{Leaf, Revision, Sequence};
use crate::tree::Table;
use crate::value::Body;

/// A segment is rewritten by itself when less than this share (in percent) of it is needed.
const WORTHWHILE_PERCENT: u64 = 50;

/// When asked to compact, anything below this share is rewritten.
const ASKED_PERCENT: u64 = 90;

/// So many bytes are appended at once, about: what is stated may take far more than the frame that it is stated for.
pub(super) const MOVED_BYTES: usize = 8 << 20;

impl Store {
    /// Rewrites the emptiest segment, if it is worth it.
    pub(super) fn compact_if_worthwhile(&self) -> Result<()> {
        let Some(_compaction) = self.compaction.try_lock() else { return Ok(()) };
        match self.emptiest_segment(WORTHWHILE_PERCENT)? {
            Some(segment) => self.compact_segment(segment, &mut |_| ()),
            None => Ok(()),
        }
    }

    /// Rewrites every segment of which a good part is not needed; returns how many bytes of segments were given back.
    pub(crate) fn compact(&self, progress: &mut dyn FnMut(Progress)) -> Result<u64> {
        self.refuse_if_closed()?;
        let _compaction = self.compaction.lock();
        self.checkpoint()?;
        self.parts.log.roll()?;
        let mut given_back = 0;
        let newest = self.parts.log.segments().last().map_or(0, |segment| segment.number);
        while let Some(segment) = self.emptiest_segment(ASKED_PERCENT)?.filter(|segment| *segment < newest) {
            let used = self.used_bytes(segment);
            let total = given_back + self.wasteful_bytes(newest)?;
            let mut show = |bytes: u64| progress(Progress { done: (given_back + bytes).min(total), total });
            self.compact_segment(segment, &mut show)?;
            given_back += used;
            progress(Progress { done: given_back, total: total.max(given_back) });
        }
        Ok(given_back)
    }

    /// The bytes of segments before `end` that are worth rewriting when asked.
    fn wasteful_bytes(&self, end: u32) -> Result<u64> {
        let wasteful = self.segments_below(ASKED_PERCENT)?;
        Ok(wasteful.iter().filter(|(_, segment)| segment.number < end).map(|(_, segment)| segment.used_bytes).sum())
    }

    fn used_bytes(&self, number: u32) -> u64 {
        self.parts
            .log
            .segments()
            .iter()
            .find(|segment| segment.number == number)
            .map_or(0, |segment| segment.used_bytes)
    }

    /// The segment with the smallest needed share, if that is below `percent`.
    fn emptiest_segment(&self, percent: u64) -> Result<Option<u32>> {
        let segments = self.segments_below(percent)?;
        Ok(segments.into_iter().min_by_key(|(share, _)| *share).map(|(_, segment)| segment.number))
    }

    /// The settled segments whose needed share is below `percent`, with that share.
    fn segments_below(&self, percent: u64) -> Result<Vec<(u64, SegmentInfo)>> {
        let live = meta::live_bytes(&*self.parts.tree.read()?)?;
        let replay_from = match meta::checkpoint(&*self.parts.tree.read()?)? {
            Some(checkpoint) => checkpoint.replay_from,
            None => return Ok(Vec::new()),
        };
        let share =
            |segment: &SegmentInfo| live.get(&segment.number).copied().unwrap_or(0) * 100 / segment.used_bytes.max(1);
        let segments = self.parts.log.segments();
        let settled = segments.iter().filter(|segment| !segment.is_active && segment.number < replay_from.segment());
        Ok(settled.map(|segment| (share(segment), *segment)).filter(|(share, _)| *share < percent).collect())
    }

    /// Rewrites one segment; `show` hears how many bytes of it are done.
    fn compact_segment(&self, number: u32, show: &mut dyn FnMut(u64)) -> Result<()> {
        self.parts.log.frames(number, &mut |frame| {
            self.relocate_frame(&frame)?;
            show(u64::from(frame.end.offset()));
            Ok(())
        })?;
        self.checkpoint()?;
        self.parts.log.retire(number)?;
        let mut tree = self.parts.tree.write()?;
        meta::forget_segment(&mut *tree, number)?;
        tree.commit()
    }

    /// Appends again what is still needed of one frame.
    fn relocate_frame(&self, frame: &Frame<'_>) -> Result<()> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut snapshot = self.newest_snapshot()?;
        let mut moved = Moved::default();
        for record in records(frame) {
            if moved.payload.len() >= MOVED_BYTES {
                self.append_moved(&mut writer, std::mem::take(&mut moved))?;
                snapshot = self.newest_snapshot()?;
            }
            let (RecordLocation { position, .. }, record) = record?;
            match record {
                Record::Revision(record) => moved.revision(&snapshot, &record, position)?,
                Record::Local { id, .. } => moved.local(&snapshot, id, position, &record)?,
                Record::Shape { number, .. } => {
                    let is_named_later = position.segment() < writer.named_in && (number as usize) < writer.named_count;
                    if !is_named_later {
                        record.encode(&mut moved.payload);
                    }
                }
                // The last settings in the log are in force, so old ones must not come after newer ones.
                Record::Settings(_) => {
                    Record::Settings(&self.parts.settings()).encode(&mut moved.payload);
                }
                Record::Leaves { number, .. } | Record::Statement { number, .. } => {
                    moved.statement(&snapshot, number, position)?;
                }
            }
        }
        self.append_moved(&mut writer, moved)
    }

    fn append_moved(&self, writer: &mut Writer, moved: Moved) -> Result<()> {
        if moved.payload.is_empty() {
            return Ok(());
        }
        let appended = self.parts.log.append(writer.next_sequence, &moved.payload)?;
        writer.log_end = appended.end;
        let active = self.active_memtable();
        let unchanged = difference(None, None);
        for document in moved.documents.into_values().filter(MovedDocument::is_changed) {
            active.insert(Arc::new(document.placed(appended.payload)), false, unchanged);
        }
        for (id, mut state) in moved.locals {
            state.stored = state.stored.placed(appended.payload);
            active.insert_local(&id, Sequence(writer.next_sequence.0 - 1), state);
        }
        self.seal_if_full(writer);
        Ok(())
    }
}

impl StoredRevision {
    /// The place of a record whose position so far is its offset in a payload that lies at `payload`.
    fn placed(self, payload: LogPosition) -> Self {
        StoredRevision { position: payload.advance(self.position.offset()), ..self }
    }
}

impl ReplayMode {
    /// Whether what a record at `position` tells is stated by a newer one.
    fn is_stated_after(self, position: LogPosition) -> bool {
        matches!(self, ReplayMode::Snapshot(place) if place.position > position)
    }
}

/// What of one frame is appended again, and the leaves that go with it. Positions are offsets until the frame's place is known.
#[derive(Default)]
struct Moved {
    payload: Vec<u8>,
    documents: BTreeMap<DocumentNumber, MovedDocument>,
    locals: Vec<(String, LocalState)>,
}

/// A document of which the frame has a record.
struct MovedDocument {
    /// As it is now: bodies are read through the old places until the new ones are known; only the ancestry that a leaf's record tells
    /// counts as it will.
    state: DocumentState,
    /// The leaves that were moved.
    leaves: SmallVec<[(Revision, StoredRevision); 1]>,
    /// What states it, if a record goes, or moves, that the last statement can't do without. The leaves in this segment are moved then.
    statement: Option<RecordLocation>,
}

impl MovedDocument {
    fn is_changed(&self) -> bool {
        !self.leaves.is_empty() || self.statement.is_some()
    }

    fn is_moved(&self, leaf: &Leaf<StoredRevision>) -> bool {
        self.leaves.iter().any(|(revision, _)| *revision == leaf.revision)
    }

    /// The state with the places in a payload that lies at `payload`.
    fn placed(mut self, payload: LogPosition) -> DocumentState {
        for (revision, stored) in self.leaves {
            self.state.tree.update_payload(&revision, stored.placed(payload));
        }
        if let Some(RecordLocation { position, length }) = self.statement {
            self.state.replay_mode =
                ReplayMode::Snapshot(RecordLocation { position: payload.advance(position.offset()), length });
        }
        self.state
    }

    /// As it is stated by a record at the offset `offset`.
    fn stated(&self, offset: u32) -> DocumentState {
        let mut state = DocumentState { replay_mode: ReplayMode::AnyOrder, ..self.state.clone() };
        for (revision, stored) in &self.leaves {
            let position = LogPosition::new(0, offset - stored.position.offset());
            state.tree.update_payload(revision, StoredRevision { position, ..*stored });
        }
        state
    }
}

impl Moved {
    fn revision(&mut self, snapshot: &Snapshot, record: &RevisionRecord<'_>, position: LogPosition) -> Result<()> {
        let Some(mut document) = self.take(snapshot, record.number)? else { return Ok(()) };
        if document.state.needs_snapshot_record() {
            self.revision_of_stated(snapshot, &mut document, &record.path[0], position)?;
        } else {
            self.revision_of_told(snapshot, &mut document, record, position)?;
        }
        self.documents.insert(record.number, document);
        Ok(())
    }

    /// Of a document whose records together tell what is known of it.
    fn revision_of_told(
        &mut self,
        snapshot: &Snapshot,
        document: &mut MovedDocument,
        record: &RevisionRecord<'_>,
        position: LogPosition,
    ) -> Result<()> {
        let revision = record.path[0];
        let leaf = document.state.tree.leaf(&revision).filter(|leaf| leaf.payload.position == position);
        if let Some(leaf) = leaf.cloned() {
            if !document.is_moved(&leaf) {
                self.push(document, &leaf, record.body);
            }
            return Ok(());
        }
        // Not where a body is read: what it tells of ancestry must be told by the leaf itself or those that descend from it.
        let leaves: SmallVec<[_; 1]> = document.state.tree.leaves().cloned().collect();
        for leaf in &leaves {
            let ancestry = document.state.tree.ancestry(&leaf.revision);
            let Some(distance) = ancestry.iter().position(|ancestor| *ancestor == revision) else { continue };
            let needed = (distance + record.path.len() - 1).min(ancestry.len() - 1);
            if (leaf.payload.logged_ancestors as usize) < needed {
                let read = snapshot.leaf_document(&document.state, leaf)?;
                self.push(document, leaf, read.packed_bytes());
            }
        }
        self.keep_sequence(snapshot, document, record)
    }

    /// Lets the winner tell the document's newest sequence, if a record that goes may be the only one that does: what else it told, leaves
    /// tell already. Every leaf that was moved tells it.
    fn keep_sequence(
        &mut self,
        snapshot: &Snapshot,
        document: &mut MovedDocument,
        record: &RevisionRecord<'_>,
    ) -> Result<()> {
        if record.relocated || record.sequence < document.state.sequence || document.is_changed() {
            return Ok(());
        }
        let Some(winner) = document.state.tree.winner().cloned() else { return Ok(()) };
        let read = snapshot.leaf_document(&document.state, &winner)?;
        self.push(document, &winner, read.packed_bytes());
        Ok(())
    }

    /// Of a document of which more is told than is known.
    fn revision_of_stated(
        &mut self,
        snapshot: &Snapshot,
        document: &mut MovedDocument,
        revision: &Revision,
        position: LogPosition,
    ) -> Result<()> {
        let is_read = document.state.tree.leaf(revision).is_some_and(|leaf| leaf.payload.position == position);
        if is_read || !document.state.replay_mode.is_stated_after(position) {
            self.write_statement(snapshot, document, position.segment())?;
        }
        Ok(())
    }

    /// A record that says what is known of a document, or knew.
    fn statement(&mut self, snapshot: &Snapshot, number: DocumentNumber, position: LogPosition) -> Result<()> {
        let Some(mut document) = self.take(snapshot, number)? else { return Ok(()) };
        if document.state.needs_snapshot_record() && !document.state.replay_mode.is_stated_after(position) {
            self.write_statement(snapshot, &mut document, position.segment())?;
        }
        self.documents.insert(number, document);
        Ok(())
    }

    /// States what is known of the document, behind its leaves in this segment, in whatever frames they lie: else it would be stated again for
    /// each of those frames.
    fn write_statement(&mut self, snapshot: &Snapshot, document: &mut MovedDocument, segment: u32) -> Result<()> {
        if document.statement.is_some() {
            return Ok(());
        }
        let leaves: SmallVec<[_; 1]> = document.state.tree.leaves().cloned().collect();
        for leaf in leaves.iter().filter(|leaf| leaf.payload.position.segment() == segment) {
            let read = snapshot.leaf_document(&document.state, leaf)?;
            self.push(document, leaf, read.packed_bytes());
        }
        let offset = self.payload.len() as u32;
        let row = DocumentRow::encode(&document.stated(offset))?;
        let length = Record::Statement { number: document.state.number, row: &row }.encode(&mut self.payload);
        document.statement = Some(RecordLocation { position: LogPosition::new(0, offset), length });
        Ok(())
    }

    /// The record's document, with what this frame has moved already; to be put back.
    fn take(&mut self, snapshot: &Snapshot, number: DocumentNumber) -> Result<Option<MovedDocument>> {
        if let Some(document) = self.documents.remove(&number) {
            return Ok(Some(document));
        }
        let Some(state) = snapshot.state(number)? else { return Ok(None) };
        let state = DocumentState::clone(&state);
        Ok(Some(MovedDocument { state, leaves: SmallVec::new(), statement: None }))
    }

    fn push(&mut self, document: &mut MovedDocument, leaf: &Leaf<StoredRevision>, body: &[u8]) {
        let state = &mut document.state;
        let mut path = state.tree.ancestry(&leaf.revision);
        if state.needs_snapshot_record() {
            // The statement tells; that there is a parent is for whoever finds this record without it.
            path.truncate(2);
        }
        let offset = self.payload.len() as u32;
        let logged_ancestors = path.len() as u32 - 1;
        let record = RevisionRecord {
            deleted: leaf.deleted,
            relocated: true,
            forgotten: Forgotten::Nothing,
            number: state.number,
            sequence: state.sequence,
            id: state.id.as_str(),
            path: path.into(),
            body,
        };
        let length = Record::Revision(record).encode(&mut self.payload);
        let stored = StoredRevision { position: LogPosition::new(0, offset), length, logged_ancestors };
        let old = leaf.payload;
        state.tree.update_payload(&leaf.revision, StoredRevision { logged_ancestors, ..old });
        document.leaves.push((leaf.revision, stored));
    }

    fn local(&mut self, snapshot: &Snapshot, id: &str, position: LogPosition, record: &Record<'_>) -> Result<()> {
        let Record::Local { deleted, generation, body, .. } = record else { return Ok(()) };
        let current = match snapshot.local_in_memory(id) {
            Some(state) => state.stored.position,
            None => match snapshot.tree.get(Table::Local, &layout::id_key(id))? {
                Some(value) => LocalRow::decode(value)?.position,
                None => return Ok(()),
            },
        };
        if current == position {
            let offset = self.payload.len() as u32;
            let moved = Record::Local { deleted: *deleted, relocated: true, generation: *generation, id, body };
            let length = moved.encode(&mut self.payload);
            let stored = StoredRevision { position: LogPosition::new(0, offset), length, logged_ancestors: 0 };
            let state = LocalState { generation: *generation, deleted: *deleted, stored, body: Body::new(*body) };
            self.locals.push((id.to_owned(), state));
        }
        Ok(())
    }
}
