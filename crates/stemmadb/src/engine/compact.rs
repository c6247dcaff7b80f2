//! Compaction: reclaims the space of log records that are no longer needed, one segment at a time.
//!
//! The live records of a segment are appended to the log again (*relocated*: same revision and sequence, new position).
//! Once the tree points to the new positions, the segment is retired. Compaction never copies the whole database, so it
//! needs free space for one segment. Small frames are joined to frames of about 64 KiB.
//!
//! Invariant: the remaining segments alone are enough to rebuild every document with exactly its known ancestry and its
//! position in the feed. A record of a revision that is no longer a leaf contributes ancestry only; it may be dropped
//! once the leaves that descend from it name the same ancestors. Where ancestors were pruned (`revs_limit`), records
//! name more ancestors than are known, and replaying a different subset of them gives a different result. For such a
//! document compaction writes a *snapshot record*, which holds all that is known of the document. It is written after
//! every relocated leaf, and whenever a record newer than the last snapshot record is dropped, so all records newer
//! than the last snapshot record still exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::compression::StoredBody;
use crate::engine::history::{PastKeeper, TRIMMED_FILES};
use crate::engine::write::Writer;
use crate::engine::{ActiveTaskKind, Operation, Store};
use crate::index::{DocumentNumber, difference};
use crate::layout::meta;
use crate::layout::record::{Origin, PrunedAncestors, Record, RevisionRecord, records};
use crate::layout::{self, DocumentRow, LocalRow};
use crate::log::{Digest, Frame, LogPosition, OwnedFrame, Payload, RetiredFile, RetiredSegment, SegmentInfo};
use crate::memtable::{DocumentState, LocalState, RecordLocation, ReplayMode, StoredRevision};
use crate::options::Progress;
use crate::read::snapshot::Snapshot;
use crate::revision::{Leaf, Revision, Sequence};
use crate::tree::Table;
use crate::value::Body;
use crate::{Error, Result};

/// A segment is compacted in the background when less than this share of its bytes, in percent, is live.
const BACKGROUND_PERCENT: u64 = 50;

/// If the log as a whole has more than this many percent of its live bytes, its emptiest segment is compacted.
const LOG_PERCENT_MAX: u64 = 150;

/// An explicit compaction rewrites segments below this share, in percent.
const EXPLICIT_PERCENT: u64 = 90;

/// An explicit compaction rewrites the active segment if it has at least this many dead bytes.
const EXPLICIT_BYTES_MIN: u64 = 4096;

/// Frames of a segment are rewritten together until they have this size, in bytes.
const GROUP_BYTES: usize = 64 << 10;

/// The approximate maximum size of one append, in bytes. Snapshot records may take far more space than the frame that
/// they are written for.
pub(super) const RELOCATION_BYTES: usize = 8 << 20;

impl Store {
    /// Compacts the segment with the smallest live share if the log wastes enough space; returns whether it did.
    pub(super) fn compact_if_worthwhile(&self) -> Result<bool> {
        let Some(_compaction) = self.compaction.try_lock() else { return Ok(false) };
        let Some(segment) = self.wasteful_segment()? else { return Ok(false) };
        let total = self.used_bytes(segment);
        let task = self.list_task_at(ActiveTaskKind::Compaction, "", Progress { done: 0, total });
        let mut show = |bytes: u64| task.show(Progress { done: bytes.min(total), total });
        self.compact_segment(segment, RetiredFile::KeptForReuse, &mut show)?;
        self.reclaim_history(TRIMMED_FILES)?;
        Ok(true)
    }

    /// The segment to compact in the background next, if any.
    pub(super) fn wasteful_segment(&self) -> Result<Option<u32>> {
        let live_bytes: u64 = meta::live_bytes(&self.parts.tree.read())?.values().sum();
        let is_wasteful = self.parts.log.used_bytes() * 100 > live_bytes * LOG_PERCENT_MAX;
        self.emptiest_segment(if is_wasteful { EXPLICIT_PERCENT } else { BACKGROUND_PERCENT })
    }

    /// Compacts every segment with a sufficient share of dead bytes, and gives the files of retired segments back to
    /// the file system. Returns by how many bytes the files of the log shrank. Files that snapshots still read are not
    /// counted: they are deleted later.
    pub(crate) fn compact(&self, progress: &mut dyn FnMut(Progress)) -> Result<u64> {
        self.refuse_if_closed()?;
        let _running = self.begin(Operation::Compact)?;
        let _compaction = self.compaction.lock();
        let task = self.list_task(ActiveTaskKind::Compaction, "");
        let mut progress = task.showing(progress);
        let begun_at = self.parts.log.end();
        if self.parts.compression.lacks_dictionary() {
            self.train_dictionary()?;
        }
        self.checkpoint()?;
        if !self.parts.declared().history.keeps_past() {
            self.hide_superseded_revisions(begun_at)?;
        }
        let bytes_before = self.parts.log.file_bytes()?;
        // Nothing is reused from here on: a reused file keeps its length.
        self.parts.log.remove_free()?;
        if self.is_active_segment_wasteful()? {
            self.complete_segment()?;
        }
        let (mut done_bytes, mut retired) = (0, Vec::new());
        let newest = self.parts.log.segments().last().map_or(0, |segment| segment.number);
        while let Some(segment) = self.segments_to_rewrite(newest)?.first().map(|segment| segment.number) {
            let used = self.used_bytes(segment);
            let total = done_bytes + self.wasteful_bytes(newest)?;
            let mut show = |bytes: u64| progress(Progress { done: (done_bytes + bytes).min(total), total });
            retired.push(self.compact_segment(segment, RetiredFile::Removed, &mut show)?);
            done_bytes += used;
            progress(Progress { done: done_bytes, total: total.max(done_bytes) });
        }
        self.reclaim_history(usize::MAX)?;
        self.parts.tree.merge_all()?;
        let held_bytes: u64 = retired.iter().map(RetiredSegment::held_bytes).sum();
        Ok(bytes_before.saturating_sub(self.parts.log.file_bytes()? + held_bytes))
    }

    /// Ends the reading of revisions that were replaced before `position`, whether or not their records are removed.
    /// The log is flushed up to there: otherwise, records written after a crash could count as older.
    fn hide_superseded_revisions(&self, position: LogPosition) -> Result<()> {
        if self.parts.compacted_before() == position {
            return Ok(());
        }
        self.raise_floor(self.newest_sequence())?;
        let mut tree = self.parts.tree.write()?;
        meta::put_compacted_before(&mut tree, position)?;
        tree.commit()?;
        self.parts.set_compacted_before(position);
        Ok(())
    }

    /// Whether the live share of the active segment is below that of segments which an explicit compaction rewrites,
    /// its file is longer than needed, or its records are compressed otherwise. Everything in memory was merged.
    fn is_active_segment_wasteful(&self) -> Result<bool> {
        let live = meta::live_bytes(&self.parts.tree.read())?;
        let segments = self.parts.log.segments();
        let Some(active) = segments.last() else { return Ok(false) };
        let live_bytes = live.get(&active.number).copied().unwrap_or(0);
        let bytes = self.bytes_without_dictionaries(active) + self.parts.log.unused_bytes()?;
        let is_sparse =
            bytes.saturating_sub(live_bytes) >= EXPLICIT_BYTES_MIN && live_bytes * 100 < bytes * EXPLICIT_PERCENT;
        Ok(is_sparse || live_bytes > 0 && self.is_compressed_otherwise(active))
    }

    /// Ends the active segment and moves the checkpoint beyond it, so that it can be compacted.
    pub(super) fn complete_segment(&self) -> Result<()> {
        self.parts.log.roll()?;
        {
            let mut writer = self.writer.lock();
            self.refuse_if_closed()?;
            // Everything before is in memtables or in the tree: whatever is appended is put into the active memtable
            // under the writer lock.
            writer.log_end = self.parts.log.end();
            self.seal_even_if_empty(&mut writer);
        }
        self.merge_sealed()
    }

    /// The bytes of a segment without the dictionaries, which it may have and which would be written again.
    fn bytes_without_dictionaries(&self, segment: &SegmentInfo) -> u64 {
        segment.used_bytes.saturating_sub(self.parts.compression.dictionary_bytes() as u64)
    }

    /// Whether a segment may have records that are compressed otherwise than new ones.
    fn is_compressed_otherwise(&self, segment: &SegmentInfo) -> bool {
        segment.number <= self.parts.compression_setting().since.segment()
    }

    /// The segments before `end` that an explicit compaction rewrites, the emptiest first.
    fn segments_to_rewrite(&self, end: u32) -> Result<Vec<SegmentInfo>> {
        let mut segments = self.complete_segments()?;
        segments.retain(|(share, segment)| {
            segment.number < end && (*share < EXPLICIT_PERCENT || self.is_compressed_otherwise(segment))
        });
        segments.sort_by_key(|(share, _)| *share);
        Ok(segments.into_iter().map(|(_, segment)| segment).collect())
    }

    /// The bytes of segments before `end` that an explicit compaction rewrites.
    fn wasteful_bytes(&self, end: u32) -> Result<u64> {
        Ok(self.segments_to_rewrite(end)?.iter().map(|segment| segment.used_bytes).sum())
    }

    fn used_bytes(&self, number: u32) -> u64 {
        self.parts
            .log
            .segments()
            .iter()
            .find(|segment| segment.number == number)
            .map_or(0, |segment| segment.used_bytes)
    }

    /// The segment with the smallest live share, if that is below `percent`.
    fn emptiest_segment(&self, percent: u64) -> Result<Option<u32>> {
        let segments = self.complete_segments()?.into_iter().filter(|(share, _)| *share < percent);
        Ok(segments.min_by_key(|(share, _)| *share).map(|(_, segment)| segment.number))
    }

    /// The segments that are complete and checkpointed, each with its live share in percent.
    fn complete_segments(&self) -> Result<Vec<(u64, SegmentInfo)>> {
        let live = meta::live_bytes(&self.parts.tree.read())?;
        let replay_from = match meta::checkpoint(&self.parts.tree.read())? {
            Some(checkpoint) => checkpoint.replay_from,
            None => return Ok(Vec::new()),
        };
        let share = |segment: &SegmentInfo| {
            let live_bytes = live.get(&segment.number).copied().unwrap_or(0);
            live_bytes * 100 / self.bytes_without_dictionaries(segment).max(1)
        };
        let segments = self.parts.log.segments();
        let settled = segments.iter().filter(|segment| !segment.is_active && segment.number < replay_from.segment());
        Ok(settled.map(|segment| (share(segment), *segment)).collect())
    }

    /// Compacts one segment; `show` receives the number of its bytes that are done.
    pub(super) fn compact_segment(
        &self,
        number: u32,
        retired_file: RetiredFile,
        show: &mut dyn FnMut(u64),
    ) -> Result<RetiredSegment> {
        let is_retirable = |segment: &SegmentInfo| segment.number != number || !segment.is_active;
        assert!(self.parts.log.segments().iter().all(is_retirable), "the active segment is never compacted");
        let mut group = FrameGroup::default();
        let mut past = PastKeeper::begin(self, number)?;
        self.parts.log.frames(number, &mut |frame| {
            past.transaction(frame.first_sequence, frame.time_us);
            group.add(&frame);
            if group.byte_count >= GROUP_BYTES {
                self.relocate_group(&std::mem::take(&mut group), &mut past)?;
            }
            show(u64::from(frame.end.offset()));
            Ok(())
        })?;
        self.relocate_group(&group, &mut past)?;
        self.checkpoint()?;
        past.finish()?;
        self.parts.tree.settle()?;
        let retired = self.parts.log.retire_file(number, retired_file)?;
        self.note_outdated_copy();
        let mut tree = self.parts.tree.write()?;
        meta::forget_segment(&mut tree, number)?;
        tree.commit()?;
        Ok(retired)
    }

    /// Keeps to the pace of writers, and to their memory. Does the checkpoint that frees some itself: background work
    /// that is being stopped does none.
    fn make_room(&self) -> Result<()> {
        if self.background.is_stopping() {
            return Err(Error::closed("the database is being closed, so compaction ends"));
        }
        self.wait_for_turn();
        if self.memory_bytes() > self.parts.memory_bytes_max() { self.merge_sealed() } else { Ok(()) }
    }

    /// Relocates the live records of several frames, and passes the replaced revisions on.
    fn relocate_group(&self, group: &FrameGroup, past: &mut PastKeeper<'_>) -> Result<()> {
        let frames: Vec<Frame<'_>> = group.frames.iter().map(OwnedFrame::frame).collect();
        for Replaced { frame, location, newest_generation } in self.relocate_frames(&frames)? {
            let Frame { position: start, payload, time_us, .. } = frames[frame];
            let offset = (location.position.offset() - start.offset()) as usize;
            let record = &payload[offset..offset + location.length as usize];
            past.replaced(location.position, time_us, record, newest_generation)?;
        }
        Ok(())
    }

    /// Relocates the live records of these frames. Returns the replaced revisions.
    fn relocate_frames(&self, frames: &[Frame<'_>]) -> Result<Vec<Replaced>> {
        self.make_room()?;
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut snapshot = self.newest_snapshot()?;
        let relocation = || Relocation::new(self.parts.log.new_payload());
        let (mut moved, mut replaced) = (relocation(), Vec::new());
        let with_index = |(index, frame)| records(frame).map(move |record| (index, record));
        for (index, record) in frames.iter().enumerate().flat_map(with_index) {
            if moved.payload.len() >= RELOCATION_BYTES {
                self.append_relocated(&mut writer, std::mem::replace(&mut moved, relocation()))?;
                snapshot = self.newest_snapshot()?;
            }
            let (location, record) = record?;
            let position = location.position;
            match record {
                Record::Revision(record) => {
                    let newest = moved.revision(&snapshot, &record, position, frames[index].time_us)?;
                    let of = |newest_generation| Replaced { frame: index, location, newest_generation };
                    replaced.extend(newest.map(of));
                }
                Record::Local { id, .. } => moved.local(&snapshot, id, position, &record)?,
                Record::Shape { number, .. } => {
                    let is_named_later = position.segment() < writer.named_in && (number as usize) < writer.named_count;
                    if !is_named_later {
                        record.encode(&mut moved.payload);
                    }
                }
                Record::Dictionary { number, .. } => {
                    let is_named_later =
                        position.segment() < writer.named_in && (number as usize) < writer.named_dictionary_count;
                    if !is_named_later {
                        record.encode(&mut moved.payload);
                    }
                }
                // The last settings record in the log is the one in force, so old settings must not be appended after
                // newer ones.
                Record::Settings(_) => {
                    Record::Settings(&self.parts.settings()).encode(&mut moved.payload);
                }
                Record::Leaves { number, .. } | Record::Snapshot { number, .. } => {
                    moved.relocate_snapshot_record(&snapshot, number, position)?;
                }
                Record::Content { digest, bytes, .. } => moved.content(&snapshot, digest, position, bytes)?,
            }
        }
        self.append_relocated(&mut writer, moved)?;
        Ok(replaced)
    }

    fn append_relocated(&self, writer: &mut Writer, moved: Relocation) -> Result<()> {
        if moved.payload.is_empty() {
            return Ok(());
        }
        let appended = self.parts.log.append(writer.next_sequence, &moved.payload)?;
        writer.log_end = appended.end;
        let active = self.active_memtable();
        let unchanged = difference(None, None);
        for document in moved.documents.into_values().filter(RelocatedDocument::is_changed) {
            active.insert(Arc::new(document.at_payload(appended.payload)), false, unchanged);
        }
        for (id, mut state) in moved.locals {
            state.stored = state.stored.at_payload(appended.payload);
            active.insert_local(&id, Sequence(writer.next_sequence.0 - 1), state);
        }
        for (digest, RecordLocation { position, length }) in moved.contents {
            let location = RecordLocation { position: appended.payload.advance(position.offset()), length };
            active.insert_content(digest, Some(location));
        }
        self.seal_if_full(writer);
        Ok(())
    }
}

impl StoredRevision {
    /// The record's final location. Its position so far is an offset into a payload, which was appended at `payload`.
    fn at_payload(self, payload: LogPosition) -> Self {
        debug_assert_eq!(self.position.segment(), 0, "a staged position is an offset into its payload");
        StoredRevision { position: payload.advance(self.position.offset()), ..self }
    }
}

impl ReplayMode {
    /// Whether a snapshot record newer than `position` replaces what the record at `position` says.
    fn has_snapshot_after(self, position: LogPosition) -> bool {
        matches!(self, ReplayMode::Snapshot(location) if location.position > position)
    }
}

/// The record of a replaced revision in a group of frames.
struct Replaced {
    /// The index of its frame.
    frame: usize,
    location: RecordLocation,
    /// The newest generation of its document.
    newest_generation: u32,
}

/// Copies of consecutive frames of a segment.
#[derive(Default)]
struct FrameGroup {
    frames: Vec<OwnedFrame>,
    byte_count: usize,
}

impl FrameGroup {
    fn add(&mut self, frame: &Frame<'_>) {
        self.frames.push(OwnedFrame::of(frame));
        self.byte_count += frame.payload.len();
    }
}

/// The records of a group of frames that are relocated, and the leaves that move with them. Positions are offsets until
/// the payload is appended.
struct Relocation {
    payload: Payload,
    documents: BTreeMap<DocumentNumber, RelocatedDocument>,
    locals: Vec<(String, LocalState)>,
    contents: Vec<(Digest, RecordLocation)>,
}

/// A document that the group of frames has a record of.
struct RelocatedDocument {
    /// The current state. Bodies are read from the old locations until the new ones are known; only the count of
    /// ancestors in a leaf's record is already that of the relocated record.
    state: DocumentState,
    /// The relocated leaves.
    leaves: SmallVec<[(Revision, StoredRevision); 1]>,
    /// The new snapshot record, if a record that the previous one depends on was dropped or relocated. The leaves in
    /// this segment are then relocated too.
    snapshot_record: Option<RecordLocation>,
}

impl RelocatedDocument {
    fn is_changed(&self) -> bool {
        !self.leaves.is_empty() || self.snapshot_record.is_some()
    }

    fn is_moved(&self, leaf: &Leaf<StoredRevision>) -> bool {
        self.leaves.iter().any(|(revision, _)| *revision == leaf.revision)
    }

    /// The state with final locations, for a payload appended at `payload`.
    fn at_payload(mut self, payload: LogPosition) -> DocumentState {
        for (revision, stored) in self.leaves {
            self.state.tree.update_payload(&revision, stored.at_payload(payload));
        }
        if let Some(RecordLocation { position, length }) = self.snapshot_record {
            self.state.replay_mode =
                ReplayMode::Snapshot(RecordLocation { position: payload.advance(position.offset()), length });
        }
        self.state
    }

    /// The state to encode in a snapshot record at offset `offset`.
    fn snapshot_state(&self, offset: u32) -> DocumentState {
        let mut state = DocumentState { replay_mode: ReplayMode::AnyOrder, ..self.state.clone() };
        for (revision, stored) in &self.leaves {
            debug_assert!(stored.position.offset() <= offset, "a snapshot record follows the leaves that it refers to");
            let position = LogPosition::new(0, offset - stored.position.offset());
            state.tree.update_payload(revision, StoredRevision { position, ..*stored });
        }
        state
    }
}

/// What the record of a leaf keeps when it is relocated.
struct StoredLeaf<'r> {
    origin: Origin,
    author: Option<&'r str>,
    predecessor: Option<RecordLocation>,
    body: StoredBody<'r>,
}

impl<'r> StoredLeaf<'r> {
    /// Of a record at `position`, in a frame with this commit time; with its body as it is to be stored.
    fn of(record: &RevisionRecord<'r>, position: LogPosition, time_us: u64, body: StoredBody<'r>) -> Self {
        let (origin, predecessor) = (record.origin(time_us), record.predecessor_of(position));
        StoredLeaf { origin, author: record.author, predecessor, body }
    }
}

impl Relocation {
    fn new(payload: Payload) -> Self {
        Relocation { payload, documents: BTreeMap::new(), locals: Vec::new(), contents: Vec::new() }
    }

    /// Relocates what the record of a revision contributes. If the revision was replaced, returns the newest generation
    /// of its document.
    fn revision(
        &mut self,
        snapshot: &Snapshot,
        record: &RevisionRecord<'_>,
        position: LogPosition,
        time_us: u64,
    ) -> Result<Option<u32>> {
        let Some(mut document) = self.take(snapshot, record.number)? else { return Ok(None) };
        let is_replaced = document.state.tree.leaf(&record.path[0]).is_none();
        let newest_generation = is_replaced.then(|| document.state.newest_generation());
        if document.state.needs_snapshot_record() {
            self.relocate_covered_revision(snapshot, &mut document, &record.path[0], position)?;
        } else {
            self.relocate_revision(snapshot, &mut document, record, position, time_us)?;
        }
        self.documents.insert(record.number, document);
        Ok(newest_generation)
    }

    /// Relocates a record of a document whose records together define its state.
    fn relocate_revision(
        &mut self,
        snapshot: &Snapshot,
        document: &mut RelocatedDocument,
        record: &RevisionRecord<'_>,
        position: LogPosition,
        time_us: u64,
    ) -> Result<()> {
        let revision = record.path[0];
        let leaf = document.state.tree.leaf(&revision).filter(|leaf| leaf.payload.position == position);
        if let Some(leaf) = leaf.cloned() {
            if !document.is_moved(&leaf) {
                let body = snapshot.parts.compression.restore(&record.body)?;
                self.push(document, &leaf, StoredLeaf::of(record, position, time_us, body));
            }
            return Ok(());
        }
        // The record's body is not needed. The ancestors that it names must be named by the leaf itself or by the
        // leaves that descend from it.
        let leaves: SmallVec<[_; 1]> = document.state.tree.leaves().cloned().collect();
        for leaf in &leaves {
            let ancestry = document.state.tree.ancestry(&leaf.revision);
            let Some(distance) = ancestry.iter().position(|ancestor| *ancestor == revision) else { continue };
            let needed = (distance + record.path.len() - 1).min(ancestry.len() - 1);
            if (leaf.payload.logged_ancestors as usize) < needed {
                self.push_stored(snapshot, document, leaf)?;
            }
        }
        self.keep_sequence(snapshot, document, record, position)
    }

    /// Relocates the winner if the dropped record may be the only one with the document's newest sequence. Everything
    /// else in the record is already covered by the leaves, and every relocated leaf carries the sequence.
    fn keep_sequence(
        &mut self,
        snapshot: &Snapshot,
        document: &mut RelocatedDocument,
        record: &RevisionRecord<'_>,
        position: LogPosition,
    ) -> Result<()> {
        if record.relocated || record.sequence < document.state.sequence || document.is_changed() {
            return Ok(());
        }
        // A leaf after a record with the newest sequence was relocated, with that sequence.
        if document.state.tree.leaves().any(|leaf| leaf.payload.position > position) {
            return Ok(());
        }
        let Some(winner) = document.state.tree.winner().cloned() else { return Ok(()) };
        self.push_stored(snapshot, document, &winner)
    }

    /// Relocates a record of a document whose records name more ancestors than are known.
    fn relocate_covered_revision(
        &mut self,
        snapshot: &Snapshot,
        document: &mut RelocatedDocument,
        revision: &Revision,
        position: LogPosition,
    ) -> Result<()> {
        let is_read = document.state.tree.leaf(revision).is_some_and(|leaf| leaf.payload.position == position);
        if is_read || !document.state.replay_mode.has_snapshot_after(position) {
            self.write_snapshot_record(snapshot, document, position.segment())?;
        }
        Ok(())
    }

    /// Handles a snapshot record or a leaves record of a document.
    fn relocate_snapshot_record(
        &mut self,
        snapshot: &Snapshot,
        number: DocumentNumber,
        position: LogPosition,
    ) -> Result<()> {
        let Some(mut document) = self.take(snapshot, number)? else { return Ok(()) };
        if document.state.needs_snapshot_record() && !document.state.replay_mode.has_snapshot_after(position) {
            self.write_snapshot_record(snapshot, &mut document, position.segment())?;
        }
        self.documents.insert(number, document);
        Ok(())
    }

    /// Writes a snapshot record of the document, after all its leaves in this segment, whichever frames they are in:
    /// otherwise each of those frames would need another snapshot record.
    fn write_snapshot_record(
        &mut self,
        snapshot: &Snapshot,
        document: &mut RelocatedDocument,
        segment: u32,
    ) -> Result<()> {
        if document.snapshot_record.is_some() {
            return Ok(());
        }
        let leaves: SmallVec<[_; 1]> = document.state.tree.leaves().cloned().collect();
        for leaf in leaves.iter().filter(|leaf| leaf.payload.position.segment() == segment) {
            self.push_stored(snapshot, document, leaf)?;
        }
        let offset = self.payload.len() as u32;
        let row = DocumentRow::encode(&document.snapshot_state(offset))?;
        let length = Record::Snapshot { number: document.state.number, row: &row }.encode(&mut self.payload);
        document.snapshot_record = Some(RecordLocation { position: LogPosition::new(0, offset), length });
        Ok(())
    }

    /// Removes and returns the document's state, including what this frame has already relocated. The caller puts it
    /// back.
    fn take(&mut self, snapshot: &Snapshot, number: DocumentNumber) -> Result<Option<RelocatedDocument>> {
        if let Some(document) = self.documents.remove(&number) {
            return Ok(Some(document));
        }
        let Some(state) = snapshot.state(number)? else { return Ok(None) };
        let state = DocumentState::clone(&state);
        Ok(Some(RelocatedDocument { state, leaves: SmallVec::new(), snapshot_record: None }))
    }

    /// Relocates a leaf whose record is not at hand.
    fn push_stored(
        &mut self,
        snapshot: &Snapshot,
        document: &mut RelocatedDocument,
        leaf: &Leaf<StoredRevision>,
    ) -> Result<()> {
        let position = leaf.payload.position;
        let bytes = snapshot.leaf_record(&document.state, leaf)?;
        let Record::Revision(record) = snapshot.parts.record(&bytes, position)?.0 else {
            return Err(Error::internal("the record of a leaf is not one of a revision"));
        };
        let time_us = if record.relocated { 0 } else { snapshot.segments.time_at(position)? };
        let body = snapshot.parts.compression.restore(&record.body)?;
        self.push(document, leaf, StoredLeaf::of(&record, position, time_us, body));
        Ok(())
    }

    fn push(&mut self, document: &mut RelocatedDocument, leaf: &Leaf<StoredRevision>, stored_leaf: StoredLeaf<'_>) {
        debug_assert!(
            document.state.tree.leaf(&leaf.revision).is_some(),
            "compaction relocates only the records of current leaves"
        );
        let state = &mut document.state;
        let mut path = state.tree.ancestry(&leaf.revision);
        if state.needs_snapshot_record() {
            // The snapshot record holds the ancestry. The parent is for readers that find this record without the
            // snapshot record.
            path.truncate(2);
        }
        let offset = self.payload.len() as u32;
        let logged_ancestors = path.len() as u32 - 1;
        let record = RevisionRecord {
            deleted: leaf.deleted,
            relocated: true,
            pruned: PrunedAncestors::Nothing,
            origin: Some(stored_leaf.origin),
            number: state.number,
            sequence: state.sequence,
            id: state.id.as_str(),
            author: stored_leaf.author,
            path: path.into(),
            predecessor: stored_leaf.predecessor,
            body: stored_leaf.body,
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
                Some(value) => LocalRow::decode(&value)?.position,
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

    /// Relocates a content record if it is the one that is read. Removal records are dropped: at worst, a rebuild finds
    /// an older record of the content, which the next sweep removes again.
    fn content(&mut self, snapshot: &Snapshot, digest: Digest, position: LogPosition, bytes: &[u8]) -> Result<()> {
        let current = snapshot.live_content(&digest)?;
        if current.is_some_and(|current| current.position == position) {
            let offset = self.payload.len() as u32;
            let moved = Record::Content { removed: false, relocated: true, digest, bytes };
            let length = moved.encode(&mut self.payload);
            self.contents.push((digest, RecordLocation { position: LogPosition::new(0, offset), length }));
        }
        Ok(())
    }
}
