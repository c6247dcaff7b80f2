//! Commit times: when a position of the log was written, and what was written up to a time.
//!
//! Times ascend with the log, so both are searches. Each segment has a sparse index of its frames, which is built when it
//! is first needed: that reads the segment once.

use super::LogPosition;
use super::frame::{FrameHeader, FrameKind};
use super::history::Moment;
use super::scan::Scanner;
use super::segment::{SEGMENT_HEADER_BYTES, Segment, no_segment};
use super::shared::Shared;
use super::{Level, set::SegmentList};
use crate::Result;
use crate::revision::Sequence;

/// A frame is indexed if it begins at least this many bytes after the one that was indexed last.
const STEP_BYTES: u32 = if cfg!(test) { 256 } else { 64 * 1024 };

/// A sparse index of the frames of one segment.
#[derive(Debug, Default)]
pub(super) struct FrameIndex {
    /// Some frames, in order. The first frame is among them.
    entries: Vec<IndexedFrame>,
    /// The end of the frames that were considered.
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct IndexedFrame {
    offset: u32,
    time_us: u64,
    first_sequence: Sequence,
}

impl FrameIndex {
    /// Adds the frames that the segment got since.
    fn extend(&mut self, segment: &Segment) -> Result<()> {
        let mut frames = Frames::of(segment, self.end);
        while let Some((offset, header)) = frames.next()? {
            if self.entries.last().is_none_or(|last| offset - last.offset >= STEP_BYTES) {
                let FrameHeader { time_us, first_sequence, .. } = header;
                self.entries.push(IndexedFrame { offset, time_us, first_sequence });
            }
            self.end = frames.offset;
        }
        Ok(())
    }

    /// The offset of the last indexed frame of those that come first and pass `is_before`; that of the first frame, if
    /// there is none.
    fn last(&self, is_before: impl Fn(&IndexedFrame) -> bool) -> u32 {
        let index = self.entries.partition_point(is_before);
        self.entries.get(index.saturating_sub(1)).map_or(SEGMENT_HEADER_BYTES, |frame| frame.offset)
    }
}

/// The frames of a segment from an offset on.
struct Frames<'s> {
    segment: &'s Segment,
    scanner: Scanner<'s>,
    offset: u32,
    end: u32,
}

impl<'s> Frames<'s> {
    fn of(segment: &'s Segment, from: u32) -> Self {
        let end = segment.used();
        Frames { segment, scanner: Scanner::new(segment, u64::from(end)), offset: from.max(SEGMENT_HEADER_BYTES), end }
    }

    /// The next frame and where it begins.
    fn next(&mut self) -> Result<Option<(u32, FrameHeader)>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let at = self.offset;
        let header = self.scanner.header_at(at)?;
        let header = header.ok_or_else(|| self.segment.damaged(at, "a frame's checksum is wrong"))?;
        self.offset += header.frame_bytes();
        Ok(Some((at, header)))
    }
}

impl Segment {
    /// The frames from the last indexed one on that comes first and passes `is_before`.
    fn frames_from(&self, is_before: impl Fn(&IndexedFrame) -> bool) -> Result<Frames<'_>> {
        let mut index = self.frame_index.lock();
        index.extend(self)?;
        Ok(Frames::of(self, index.last(is_before)))
    }

    /// The commit time of the frame that contains `offset`.
    fn time_at(&self, offset: u32) -> Result<u64> {
        let mut frames = self.frames_from(|frame| frame.offset <= offset)?;
        while let Some((_, header)) = frames.next()? {
            if offset < frames.offset {
                return Ok(header.time_us);
            }
        }
        Err(self.damaged(offset, "no frame is there"))
    }

    /// The first transaction after `time_us`.
    fn first_after(&self, time_us: u64) -> Result<Option<FrameHeader>> {
        let mut frames = self.frames_from(|frame| frame.time_us <= time_us)?;
        while let Some((_, header)) = frames.next()? {
            if header.kind == FrameKind::Data && header.time_us > time_us {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// The last transaction that begins at or before `sequence`.
    fn last_up_to(&self, sequence: Sequence) -> Result<Option<FrameHeader>> {
        let mut frames = self.frames_from(|frame| frame.first_sequence <= sequence)?;
        let mut last = None;
        while let Some((_, header)) = frames.next()? {
            if header.kind == FrameKind::Data && header.first_sequence <= sequence {
                last = Some(header);
            } else if header.first_sequence > sequence {
                break;
            }
        }
        Ok(last)
    }

    /// The first frame; `None` if there is none.
    fn first_frame(&self) -> Result<Option<FrameHeader>> {
        Ok(Frames::of(self, SEGMENT_HEADER_BYTES).next()?.map(|(_, header)| header))
    }
}

impl Shared {
    /// The commit time of the frame that contains `position`, in microseconds since 1970; 0 if a version wrote it that
    /// did not record it.
    pub(super) fn time_at(&self, list: &SegmentList, position: LogPosition) -> Result<u64> {
        self.commit(self.end(), Level::Written)?;
        match list.find_since(position.segment()) {
            Some(segment) => segment.time_at(position.offset()),
            None => self.history.time_at(position)?.ok_or_else(|| no_segment(position.segment())),
        }
    }

    /// The first sequence of the first transaction after `time_us`, among the segments that exist and those whose
    /// history is kept; `None` if there is no such transaction.
    pub(super) fn first_sequence_after(&self, time_us: u64) -> Result<Option<Sequence>> {
        self.commit(self.end(), Level::Written)?;
        let list = self.list();
        let start = last_segment(&list, |first| first.time_us <= time_us)?;
        for segment in &list.segments[start..] {
            if let Some(header) = segment.first_after(time_us)? {
                let in_history = self.history.first_sequence_after(time_us)?;
                return Ok(Some(in_history.map_or(header.first_sequence, |found| found.min(header.first_sequence))));
            }
        }
        self.history.first_sequence_after(time_us)
    }

    /// When the transaction with this sequence was committed, in microseconds since 1970; `None` if that is not known.
    pub(super) fn time_of(&self, sequence: Sequence) -> Result<Option<u64>> {
        self.commit(self.end(), Level::Written)?;
        let list = self.list();
        let start = last_segment(&list, |first| first.first_sequence <= sequence)?;
        let mut found = self.history.last_up_to(sequence)?;
        for segment in list.segments[..=start.min(list.segments.len().saturating_sub(1))].iter().rev() {
            if let Some(FrameHeader { first_sequence, time_us, .. }) = segment.last_up_to(sequence)? {
                if found.is_none_or(|found| found.sequence < first_sequence) {
                    found = Some(Moment { sequence: first_sequence, time_us });
                }
                break;
            }
        }
        Ok(found.map(|found| found.time_us).filter(|&time_us| time_us > 0))
    }
}

/// The index of the last segment whose first frame passes; 0 if there is none.
fn last_segment(list: &SegmentList, is_before: impl Fn(&FrameHeader) -> bool) -> Result<usize> {
    for (index, segment) in list.segments.iter().enumerate().rev() {
        if segment.first_frame()?.is_some_and(|first| is_before(&first)) {
            return Ok(index);
        }
    }
    Ok(0)
}
