//! Batch of pending frames: the encoded bytes of one group commit and their target segments.

use smallvec::SmallVec;

use super::cipher::SegmentWriter;
use super::frame::{ALIGNMENT, FrameFormat, FrameHeader, FrameKind, TIME_END};
use super::position::LogPosition;
use super::segment::SEGMENT_HEADER_BYTES;
use crate::cipher::TAG_BYTES;
use crate::revision::Sequence;

/// A buffer larger than this is freed after use.
const RETAINED_CAPACITY_BYTES: usize = 4 * 1024 * 1024;

/// A run of frames in one segment.
#[derive(Debug, Clone)]
pub(super) struct BatchPart {
    pub(super) segment: u32,
    /// The format of the segment.
    pub(super) format: FrameFormat,
    /// Encrypts for the segment.
    writer: Option<SegmentWriter>,
    /// Offset in the segment.
    pub(super) offset: u32,
    /// Byte range in the batch.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether its last frame is the segment's seal.
    pub(super) sealed: bool,
}

impl BatchPart {
    /// The offset in the segment after its last byte.
    pub(super) fn end_offset(&self) -> u32 {
        self.offset + (self.end - self.start) as u32
    }
}

/// Frames in the order in which they were appended.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) parts: SmallVec<[BatchPart; 2]>,
    pub(super) frame_count: u64,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether writing it starts a segment other than `active`.
    pub(super) fn rolls(&self, active: u32) -> bool {
        self.parts.iter().any(|part| part.segment != active)
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.frame_count = 0;
        self.bytes.clear();
        self.bytes.shrink_to(RETAINED_CAPACITY_BYTES);
    }

    /// The `count` bytes at `position`, if the batch contains all of them, with the format of their segment.
    pub(super) fn find(&self, position: LogPosition, count: usize) -> Option<(FrameFormat, &[u8])> {
        let part = self.parts.iter().find(|part| {
            part.segment == position.segment() && (part.offset..part.end_offset()).contains(&position.offset())
        })?;
        let start = part.start + (position.offset() - part.offset) as usize;
        let end = start.checked_add(count)?;
        (end <= part.end).then(|| (part.format, &self.bytes[start..end]))
    }

    /// Updates the durable offset in the first frame's header: an earlier group may have been flushed since it was
    /// appended. Only now is that header encrypted.
    pub(super) fn restamp(&mut self, durable: LogPosition) {
        let Some(part) = self.parts.iter().find(|part| part.start < part.end) else { return };
        let (format, position) = (part.format, LogPosition::new(part.segment, part.offset));
        let bytes = &mut self.bytes[part.start..part.start + format.header_bytes() as usize];
        let known = format.decode(position, bytes);
        debug_assert!(known.is_some(), "a pending batch starts with a valid frame");
        if let Some(known) = known {
            let mut header = FrameHeader { durable: durable_offset(position, durable), ..known };
            if let Some(writer) = &part.writer {
                header = writer.seal_header(&header, format, position.offset());
            }
            bytes.copy_from_slice(&format.encode(&header, position));
        }
    }
}

/// The durable offset that a frame at `position` records: an offset in its own segment, since earlier segments are
/// flushed before it is written.
fn durable_offset(position: LogPosition, durable: LogPosition) -> u32 {
    debug_assert!(durable <= position, "a frame can't claim that bytes after itself are durable");
    if durable.segment() == position.segment() { durable.offset() } else { SEGMENT_HEADER_BYTES }
}

/// A frame to append.
pub(super) struct NewFrame<'p> {
    pub(super) kind: FrameKind,
    pub(super) first_sequence: Sequence,
    pub(super) payload: &'p [u8],
    /// Where records begin in the payload.
    pub(super) record_starts: &'p [u32],
    /// The clock's time, in microseconds since 1970.
    pub(super) now_us: u64,
}

/// The segment that follows one that is full.
pub(super) struct NextSegment {
    /// Maximum offset of its frames and seal.
    pub(super) capacity: u32,
    pub(super) format: FrameFormat,
    pub(super) writer: Option<SegmentWriter>,
}

/// The append position of the log and the properties of the current segment.
#[derive(Debug)]
pub(super) struct LogTail {
    /// The format of the current segment, which is never of an older version.
    pub(super) format: FrameFormat,
    /// Encrypts for the current segment.
    pub(super) writer: Option<SegmentWriter>,
    /// Position of the next frame.
    pub(super) next: LogPosition,
    /// Maximum offset of the current segment's frames and seal.
    pub(super) capacity: u32,
    pub(super) last_sequence: Sequence,
    /// The commit time of the last frame, in microseconds since 1970.
    pub(super) last_time_us: u64,
    /// Whether the last frame is a mark: then closing needs no other.
    pub(super) is_marked: bool,
}

impl LogTail {
    /// Whether a frame of `payload_bytes` needs a new segment.
    pub(super) fn is_full_for(&self, payload_bytes: usize) -> bool {
        u64::from(self.next.offset()) + u64::from(self.format.version.frame_bytes(payload_bytes) + self.seal_bytes())
            > u64::from(self.capacity)
    }

    /// Bytes that a seal takes at the end of a segment.
    fn seal_bytes(&self) -> u32 {
        self.format.header_bytes()
    }

    /// Ends the segment with a seal and continues in the next one.
    pub(super) fn roll(&mut self, batch: &mut Batch, durable: LogPosition, next: NextSegment, now_us: u64) {
        debug_assert!(self.next.offset() > SEGMENT_HEADER_BYTES, "a segment is sealed only after it has a frame");
        let (first_sequence, kind) = (self.last_sequence, FrameKind::Seal);
        let seal = NewFrame { kind, first_sequence, payload: &[], record_starts: &[], now_us };
        self.push(batch, &seal, durable);
        if let Some(part) = batch.parts.last_mut() {
            part.sealed = true;
        }
        let number = self.next.segment() + 1;
        self.next = LogPosition::new(number, SEGMENT_HEADER_BYTES);
        (self.capacity, self.format, self.writer) = (next.capacity, next.format, next.writer);
        batch.start_part(self);
    }

    /// Adds a frame and returns its position. Its commit time is later than that of the frame before it.
    pub(super) fn push(&mut self, batch: &mut Batch, frame: &NewFrame<'_>, durable: LogPosition) -> LogPosition {
        let position = self.next;
        let NewFrame { kind, first_sequence, payload, record_starts, now_us } = *frame;
        self.last_time_us = now_us.max(self.last_time_us + 1).min(TIME_END - 1);
        let is_first = batch.parts.iter().all(|part| part.start == part.end);
        if batch.parts.is_empty() {
            batch.start_part(self);
        }
        debug_assert!(
            batch.parts.last().is_some_and(|part| {
                !part.sealed && part.segment == position.segment() && part.end_offset() == position.offset()
            }),
            "frames follow each other without gap or overlap, and none follows the seal of its segment"
        );
        let header_at = batch.bytes.len();
        let header_bytes = self.format.header_bytes();
        let payload_at = header_at + header_bytes as usize;
        batch.bytes.resize(payload_at, 0);
        batch.bytes.extend_from_slice(payload);
        let bound = &mut batch.bytes[payload_at..];
        let payload_position = position.advance(header_bytes);
        match &self.writer {
            Some(writer) => writer.seal_payload(bound, record_starts, payload_position.offset()),
            None => self.format.seed.bind(bound, record_starts, payload_position),
        }
        let mut header = FrameHeader {
            version: self.format.version,
            kind,
            payload_bytes: payload.len() as u32,
            durable: durable_offset(position, durable),
            first_sequence,
            time_us: self.last_time_us,
            payload_checksum: crc32c::crc32c(bound),
            session: 0,
            tag: [0; TAG_BYTES],
        };
        // That of a batch's first frame is encrypted when the batch is taken.
        if let (Some(writer), false) = (&self.writer, is_first) {
            header = writer.seal_header(&header, self.format, position.offset());
        }
        batch.bytes[header_at..payload_at].copy_from_slice(&self.format.encode(&header, position));
        let end = batch.bytes.len().next_multiple_of(ALIGNMENT as usize);
        batch.bytes.resize(end, 0);
        if let Some(part) = batch.parts.last_mut() {
            part.end = end;
        }
        batch.frame_count += 1;
        self.next = position.advance(header.frame_bytes());
        self.last_sequence = first_sequence;
        self.is_marked = kind == FrameKind::Mark;
        debug_assert_eq!(batch.parts.last().map(BatchPart::end_offset), Some(self.next.offset()));
        position
    }
}

impl Batch {
    /// Starts a part at the tail's position.
    fn start_part(&mut self, tail: &LogTail) {
        let start = self.bytes.len();
        self.parts.push(BatchPart {
            segment: tail.next.segment(),
            format: tail.format,
            writer: tail.writer.clone(),
            offset: tail.next.offset(),
            start,
            end: start,
            sealed: false,
        });
    }
}
