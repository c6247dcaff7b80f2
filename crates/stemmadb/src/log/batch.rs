//! Frames that wait to be written: the bytes of one group, and where they go.

use smallvec::SmallVec;

use super::frame::{ALIGNMENT, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Seed, frame_bytes};
use super::position::LogPosition;
use super::segment::SEGMENT_HEADER_BYTES;
use crate::revision::Sequence;

/// A buffer larger than this is given back after use.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// A run of frames in one segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) segment: u32,
    /// Where in the segment it begins.
    pub(super) offset: u32,
    /// Which bytes of the batch it is.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether its last frame is the segment's seal.
    pub(super) sealed: bool,
}

impl Part {
    /// The offset in the segment behind its last byte.
    pub(super) fn end_offset(&self) -> u32 {
        self.offset + (self.end - self.start) as u32
    }
}

/// Frames in the order they were appended.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) parts: SmallVec<[Part; 2]>,
    pub(super) frame_count: u64,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether writing it goes on in another segment than `active`.
    pub(super) fn rolls(&self, active: u32) -> bool {
        self.parts.iter().any(|part| part.segment != active)
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.frame_count = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// The bytes at `position`, if they are all here.
    pub(super) fn find(&self, position: LogPosition, count: usize) -> Option<&[u8]> {
        let part = self.parts.iter().find(|part| {
            part.segment == position.segment() && (part.offset..part.end_offset()).contains(&position.offset())
        })?;
        let start = part.start + (position.offset() - part.offset) as usize;
        let end = start.checked_add(count)?;
        (end <= part.end).then(|| &self.bytes[start..end])
    }

    /// Says anew, in the first frame, what is durable: it was appended while an earlier group was still being flushed.
    pub(super) fn restamp(&mut self, seed: Seed, durable: LogPosition) {
        let Some(part) = self.parts.iter().find(|part| part.start < part.end) else { return };
        let place = LogPosition::new(part.segment, part.offset);
        let bytes = &mut self.bytes[part.start..part.start + FRAME_HEADER_BYTES as usize];
        let Ok(header) = <&mut [u8; FRAME_HEADER_BYTES as usize]>::try_from(bytes) else { return };
        if let Some(known) = FrameHeader::decode(seed, place, header) {
            *header = FrameHeader { durable: durable_offset(place, durable), ..known }.encode(seed, place);
        }
    }
}

/// What a frame at `place` says of `durable`: an offset in its own segment. Earlier segments are flushed before it is written.
fn durable_offset(place: LogPosition, durable: LogPosition) -> u32 {
    if durable.segment() == place.segment() { durable.offset() } else { SEGMENT_HEADER_BYTES }
}

/// The end of the log as appended, and what of it waits to be written.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) seed: Seed,
    /// Where the next frame goes.
    pub(super) next: LogPosition,
    /// Frames and seal of the current segment end here at the latest.
    pub(super) capacity: u32,
    pub(super) last_sequence: Sequence,
    /// Whether the last frame is a mark: nothing to say at closing.
    pub(super) is_marked: bool,
}

/// What a seal takes at the end of a segment.
const SEAL_BYTES: u32 = FRAME_HEADER_BYTES;

impl Tail {
    /// Whether a frame of `payload_bytes` needs a new segment.
    pub(super) fn is_full_for(&self, payload_bytes: usize) -> bool {
        u64::from(self.next.offset()) + u64::from(frame_bytes(payload_bytes) + SEAL_BYTES) > u64::from(self.capacity)
    }

    /// Ends the segment with a seal and goes on in the next, with room for a frame of `payload_bytes` at least.
    pub(super) fn roll(&mut self, batch: &mut Batch, durable: LogPosition, capacity: u32) {
        let sequence = self.last_sequence;
        self.push(batch, FrameKind::Seal, sequence, &[], crc32c::crc32c(&[]), durable);
        if let Some(part) = batch.parts.last_mut() {
            part.sealed = true;
        }
        let number = self.next.segment() + 1;
        self.next = LogPosition::new(number, SEGMENT_HEADER_BYTES);
        self.capacity = capacity;
        let start = batch.bytes.len();
        batch.parts.push(Part { segment: number, offset: SEGMENT_HEADER_BYTES, start, end: start, sealed: false });
    }

    /// Adds a frame and returns its place.
    pub(super) fn push(
        &mut self,
        batch: &mut Batch,
        kind: FrameKind,
        first_sequence: Sequence,
        payload: &[u8],
        payload_checksum: u32,
        durable: LogPosition,
    ) -> LogPosition {
        let place = self.next;
        let header = FrameHeader {
            kind,
            payload_bytes: payload.len() as u32,
            durable: durable_offset(place, durable),
            first_sequence,
            payload_checksum,
        };
        batch.extend_to(place);
        batch.bytes.extend_from_slice(&header.encode(self.seed, place));
        batch.bytes.extend_from_slice(payload);
        let end = batch.bytes.len().next_multiple_of(ALIGNMENT as usize);
        batch.bytes.resize(end, 0);
        if let Some(part) = batch.parts.last_mut() {
            part.end = end;
        }
        batch.frame_count += 1;
        self.next = place.advance(header.frame_bytes());
        self.last_sequence = first_sequence;
        self.is_marked = kind == FrameKind::Mark;
        debug_assert_eq!(batch.parts.last().map(Part::end_offset), Some(self.next.offset()));
        place
    }
}

impl Batch {
    /// Makes the last part one that ends at `place`.
    fn extend_to(&mut self, place: LogPosition) {
        if self.parts.is_empty() {
            let start = self.bytes.len();
            let (segment, offset) = (place.segment(), place.offset());
            self.parts.push(Part { segment, offset, start, end: start, sealed: false });
        }
    }
}
