//! Commit times: when a position of the log was written, and what was written up to a time.
//!
//! Times ascend with the log, so both are searches. Each segment has a sparse index of its frames, which is built when it
//! is first needed: that reads the segment once.

use super::LogPosition;
use super::frame::{FrameHeader, FrameKind};
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
    /// Offset and commit time of some frames, in order. The first frame is among them.
    entries: Vec<(u32, u64)>,
    /// The end of the frames that were considered.
    end: u32,
}

impl FrameIndex {
    /// Adds the frames that the segment got since.
    fn extend(&mut self, segment: &Segment) -> Result<()> {
        let used = segment.used();
        let mut offset = self.end.max(SEGMENT_HEADER_BYTES);
        let mut scanner = Scanner::new(segment, u64::from(used));
        while offset < used {
            let header = header_at(segment, &mut scanner, offset)?;
            if self.entries.last().is_none_or(|&(last, _)| offset - last >= STEP_BYTES) {
                self.entries.push((offset, header.time_us));
            }
            offset += header.frame_bytes();
            self.end = offset;
        }
        Ok(())
    }

    /// The offset of an indexed frame from which to search for the frame that `is_before` rejects first.
    fn start(&self, is_before: impl Fn(&(u32, u64)) -> bool) -> u32 {
        let index = self.entries.partition_point(is_before);
        self.entries.get(index.saturating_sub(1)).map_or(SEGMENT_HEADER_BYTES, |&(offset, _)| offset)
    }
}

fn header_at(segment: &Segment, scanner: &mut Scanner<'_>, offset: u32) -> Result<FrameHeader> {
    let header = scanner.header_at(offset)?;
    header.ok_or_else(|| segment.damaged(offset, "a frame's checksum is wrong"))
}

impl Segment {
    /// The commit time of the frame that contains `offset`.
    fn time_at(&self, offset: u32) -> Result<u64> {
        let mut index = self.frame_index.lock();
        index.extend(self)?;
        let mut at = index.start(|&(start, _)| start <= offset);
        let mut scanner = Scanner::new(self, u64::from(self.used()));
        loop {
            let header = header_at(self, &mut scanner, at)?;
            at += header.frame_bytes();
            if offset < at {
                return Ok(header.time_us);
            }
        }
    }

    /// The first transaction after `time_us`.
    fn first_after(&self, time_us: u64) -> Result<Option<FrameHeader>> {
        let mut index = self.frame_index.lock();
        index.extend(self)?;
        let mut at = index.start(|&(_, time)| time <= time_us);
        let used = self.used();
        let mut scanner = Scanner::new(self, u64::from(used));
        while at < used {
            let header = header_at(self, &mut scanner, at)?;
            if header.kind == FrameKind::Data && header.time_us > time_us {
                return Ok(Some(header));
            }
            at += header.frame_bytes();
        }
        Ok(None)
    }

    /// The commit time of the first frame; `None` if there is no frame.
    fn first_time(&self) -> Result<Option<u64>> {
        if self.used() == SEGMENT_HEADER_BYTES {
            return Ok(None);
        }
        let mut scanner = Scanner::new(self, u64::from(self.used()));
        header_at(self, &mut scanner, SEGMENT_HEADER_BYTES).map(|header| Some(header.time_us))
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
    /// history is kept; `None` if there is
    /// no such transaction.
    pub(super) fn first_sequence_after(&self, time_us: u64) -> Result<Option<Sequence>> {
        self.commit(self.end(), Level::Written)?;
        let list = self.list();
        let mut found = self.history.first_sequence_after(time_us)?;
        for segment in list.segments.iter().rev() {
            let first_time = segment.first_time()?;
            if let Some(header) = segment.first_after(time_us)? {
                found = Some(found.map_or(header.first_sequence, |found| found.min(header.first_sequence)));
            }
            if first_time.is_some_and(|first| first <= time_us) {
                break;
            }
        }
        Ok(found)
    }
}
