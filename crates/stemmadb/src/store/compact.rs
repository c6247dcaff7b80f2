//! Gives back the space of records that nothing needs any more, a segment at a time.
//!
//! What is still needed of a segment is appended to the log again (*relocated*: the same revision and sequence at a new
//! position); once the tree points to the new places, the segment is retired. Nothing is ever copied as a whole, so
//! this needs room for one segment.
//!
//! Invariant: from the segments that are left, the log alone gives back every document with all of its known ancestry, at its place in the
//! feed. A record that is no leaf any more tells of ancestry only; it may go once the leaves that descend from it tell the same. Where
//! ancestors were forgotten (`revs_limit`), no leaf tells: then the leaves themselves are written down, so that no older record is taken
//! for one.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::Result;
use crate::index::{DocumentNumber, difference};
use crate::log::{Frame, LogPosition, SegmentInfo};
use crate::memtable::{DocumentState, LocalState, Stored};
use crate::revision::{Leaf, Revision, Sequence};
use crate::store::layout::{self, LocalRow};
use crate::store::record::{Record, RevisionRecord};
use crate::store::snapshot::Snapshot;
use crate::store::write::Writer;
use crate::store::{Progress, Store, meta};
use crate::tree::Table;
use crate::value::Body;

/// A segment is rewritten by itself when less than this share (in percent) of it is needed.
const WORTHWHILE_PERCENT: u64 = 50;

/// When asked to compact, anything below this share is rewritten.
const ASKED_PERCENT: u64 = 90;

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
        let mut stated = HashSet::new();
        self.parts.log.frames(number, &mut |frame| {
            self.relocate_frame(&frame, &mut stated)?;
            show(u64::from(frame.end.offset()));
            Ok(())
        })?;
        self.checkpoint()?;
        self.parts.log.retire(number)?;
        let mut tree = self.parts.tree.write()?;
        meta::forget_segment(&mut *tree, number)?;
        tree.commit()
    }

    /// Appends again what is still needed of one frame. `stated` are the documents whose leaves were written down on the way.
    fn relocate_frame(&self, frame: &Frame<'_>, stated: &mut HashSet<DocumentNumber>) -> Result<()> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let snapshot = self.newest_snapshot()?;
        let mut moved = Moved::default();
        let mut offset = 0;
        while offset < frame.payload.len() {
            let (record, length) = Record::decode(&frame.payload[offset..])?;
            let position = frame.position.advance(offset as u32);
            offset += length;
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
                Record::Leaves { number, .. } => {
                    moved.looked_at.insert(number);
                }
            }
        }
        moved.state_leaves(&snapshot, stated)?;
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
        // A later state of the same document was made before the earlier leaf had its place.
        let mut placed: HashMap<_, SmallVec<[_; 1]>> = HashMap::new();
        for (mut state, revision, stored) in moved.states {
            let of_document = placed.entry(state.number).or_default();
            of_document.push((revision, stored.placed(appended.payload)));
            for (revision, stored) in of_document {
                state.tree.update_payload(revision, *stored);
            }
            active.insert(Arc::new(state), false, unchanged);
        }
        for (id, mut state) in moved.locals {
            state.stored = state.stored.placed(appended.payload);
            active.insert_local(&id, Sequence(writer.next_sequence.0 - 1), state);
        }
        self.seal_if_full(writer);
        Ok(())
    }
}

impl Stored {
    /// The place of a record whose position so far is its offset in a payload that lies at `payload`.
    fn placed(self, payload: LogPosition) -> Self {
        Stored { position: payload.advance(self.position.offset()), ..self }
    }
}

/// What of one frame is appended again. Positions are offsets until the frame's place is known.
#[derive(Default)]
struct Moved {
    payload: Vec<u8>,
    states: Vec<(DocumentState, Revision, Stored)>,
    locals: Vec<(String, LocalState)>,
    /// Documents of which something may have been given up.
    looked_at: BTreeSet<DocumentNumber>,
}

impl Moved {
    fn revision(&mut self, snapshot: &Snapshot, record: &RevisionRecord<'_>, position: LogPosition) -> Result<()> {
        let Some(state) = self.current(snapshot, record.number)? else { return Ok(()) };
        self.looked_at.insert(record.number);
        let revision = record.path[0];
        if let Some(leaf) = state.tree.leaf(&revision)
            && leaf.payload.position == position
        {
            self.push(&state, leaf, record.body);
            return Ok(());
        }
        // Not where a body is read: what it tells of ancestry must be told by the leaf itself or those that descend from it.
        for leaf in state.tree.leaves() {
            let ancestry = state.tree.ancestry(&leaf.revision);
            let Some(distance) = ancestry.iter().position(|ancestor| *ancestor == revision) else { continue };
            let needed = (distance + record.path.len() - 1).min(ancestry.len() - 1);
            if (leaf.payload.logged_ancestors as usize) < needed {
                let document = snapshot.leaf_document(&state, leaf)?;
                self.push(&state, leaf, document.packed_bytes());
            }
        }
        self.keep_sequence(snapshot, record, &state)
    }

    /// Lets the winner tell the document's newest sequence, if a record that goes may be the only one that does: it brought ancestors
    /// which were forgotten at once. Every leaf that was moved tells it.
    fn keep_sequence(&mut self, snapshot: &Snapshot, record: &RevisionRecord<'_>, state: &DocumentState) -> Result<()> {
        let is_told = self.states.iter().any(|(moved, ..)| moved.number == record.number);
        if record.relocated || record.sequence < state.sequence || is_told {
            return Ok(());
        }
        let Some(winner) = state.tree.winner() else { return Ok(()) };
        let document = snapshot.leaf_document(state, winner)?;
        self.push(state, winner, document.packed_bytes());
        Ok(())
    }

    /// The state of the record's document, with what this frame has moved already.
    fn current(&self, snapshot: &Snapshot, number: DocumentNumber) -> Result<Option<DocumentState>> {
        let moved = self.states.iter().rev().find(|(state, ..)| state.number == number);
        match moved {
            // Its moved leaf has no place yet; the body is at hand only through the old one.
            Some((state, ..)) => Ok(Some(state.clone())),
            None => Ok(snapshot.state(number)?.map(|state| (*state).clone())),
        }
    }

    /// Writes down the leaves of documents that don't know all of their ancestry: behind every leaf that was moved, and once
    /// for each document of the segment.
    fn state_leaves(&mut self, snapshot: &Snapshot, stated: &mut HashSet<DocumentNumber>) -> Result<()> {
        for number in std::mem::take(&mut self.looked_at) {
            let Some(state) = self.current(snapshot, number)? else { continue };
            let is_moved = self.states.iter().any(|(moved, ..)| moved.number == number);
            if !state.tree.is_complete() && (stated.insert(number) || is_moved) {
                let leaves = state.tree.leaves().map(|leaf| leaf.revision).collect();
                Record::Leaves { number, leaves }.encode(&mut self.payload);
            }
        }
        Ok(())
    }

    fn push(&mut self, state: &DocumentState, leaf: &Leaf<Stored>, body: &[u8]) {
        let path = state.tree.ancestry(&leaf.revision);
        let offset = self.payload.len() as u32;
        let logged_ancestors = path.len() as u32 - 1;
        let record = RevisionRecord {
            deleted: leaf.deleted,
            relocated: true,
            number: state.number,
            sequence: state.sequence,
            id: state.id.as_str(),
            path: path.into(),
            body,
        };
        let length = Record::Revision(record).encode(&mut self.payload);
        let stored = Stored { position: LogPosition::new(0, offset), length, logged_ancestors };
        let mut state = state.clone();
        // Read through the old place until the new one is known; only the ancestry it tells counts from now on.
        let old = leaf.payload;
        state.tree.update_payload(&leaf.revision, Stored { logged_ancestors, ..old });
        self.states.push((state, leaf.revision, stored));
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
            let stored = Stored { position: LogPosition::new(0, offset), length, logged_ancestors: 0 };
            let state = LocalState { generation: *generation, deleted: *deleted, stored, body: Body::new(*body) };
            self.locals.push((id.to_owned(), state));
        }
        Ok(())
    }
}
