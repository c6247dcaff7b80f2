//! Export of the log: the files that a backup or a branch copies or links, and reading the frames of such a copy.
//!
//! The log up to any frame boundary is a complete log. An export therefore names every segment that existed at some
//! time since a [`SegmentSet`] was taken, up to a position that is durable. Segments that were retired since are in it
//! too: recovery drops those that the last mark before that position omits.
//!
//! Invariant: the bytes of an exported segment never change, since the set keeps its file from being reused. A sealed
//! segment's file ends with its seal, so it may be linked.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::frame::FrameKind;
use super::handles::Handles;
use super::history::Moment;
use super::scan::Scanner;
use super::segment::{DIRECTORY, SEGMENT_HEADER_BYTES, Segment, open_segment, parse_segment_name, segment_name};
use super::set::SegmentSet;
use super::{DatabaseId, Frame, Log, LogPosition};
use crate::revision::Sequence;
use crate::vfs::Vfs;
use crate::{Error, Result};

/// A segment of an export, or its beginning.
pub(crate) struct ExportedSegment {
    segment: Arc<Segment>,
    /// How many bytes of the file belong to the export.
    pub(crate) byte_count: u64,
    /// Whether the export has the segment to its end.
    pub(crate) is_sealed: bool,
}

impl ExportedSegment {
    pub(crate) fn number(&self) -> u32 {
        self.segment.number
    }

    /// The name of the file, unless it was retired since.
    pub(crate) fn file_name(&self) -> &str {
        self.segment.name()
    }

    /// Reads up to `buffer.len()` bytes at `offset`; returns how many.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.byte_count.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.segment.read_some(&mut buffer[..count], offset)
    }

    /// The sequence and the commit time of the first frame; none if there is no frame.
    pub(crate) fn first_moment(&self) -> Result<Option<Moment>> {
        let mut scanner = Scanner::new(&self.segment, self.byte_count);
        let first = scanner.header_at(SEGMENT_HEADER_BYTES)?;
        Ok(first.map(|header| Moment { sequence: header.first_sequence, time_us: header.time_us }))
    }
}

impl SegmentSet {
    /// The segments that existed at some time since this set was taken, ascending, up to `end`: the end of a frame that
    /// is flushed.
    pub(crate) fn export(&self, end: LogPosition) -> Vec<ExportedSegment> {
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for list in self.list.with_successors() {
            segments.extend(list.segments.iter().filter(|segment| segment.number <= end.segment()).cloned());
        }
        segments.sort_by_key(|segment| segment.number);
        segments.dedup_by_key(|segment| segment.number);
        let exported = |segment: Arc<Segment>| {
            // A segment that was sealed after `end` has frames beyond it.
            let is_sealed = segment.number < end.segment();
            let byte_count = match is_sealed {
                true => segment.used() + segment.format.header_bytes(),
                false => end.offset(),
            };
            ExportedSegment { segment, byte_count: u64::from(byte_count), is_sealed }
        };
        segments.into_iter().map(exported).collect()
    }

    /// Bytes of the segments that were retired since this set was taken, and that it keeps.
    pub(crate) fn held_bytes(&self) -> u64 {
        let current = self.log.list();
        let mut held = std::collections::BTreeMap::new();
        for list in self.list.with_successors() {
            let retired = list.segments.iter().filter(|segment| current.find(segment.number).is_none());
            held.extend(retired.map(|segment| (segment.number, u64::from(segment.used()))));
        }
        held.values().sum()
    }
}

impl Log {
    /// When the transaction with this sequence was committed, in microseconds since 1970; `None` if that is not known.
    pub(crate) fn commit_time_of(&self, sequence: Sequence) -> Result<Option<u64>> {
        self.shared.time_of(sequence)
    }

    /// Whether all segments of a set are still part of the log.
    pub(crate) fn has_all_of(&self, set: &SegmentSet) -> bool {
        let current = self.shared.list();
        set.list.segments.iter().all(|segment| current.find(segment.number).is_some())
    }
}

/// What a reader of frames does next.
pub(crate) type FrameVisit = ControlFlow<()>;

/// Verifies the frames of segment `number` in the directory `vfs` and passes those with data to `visit`, in order, up
/// to the one for which it breaks. Returns the offset where that frame starts, or where the last frame ends, and the id
/// of the database.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset if the file has anything but frames.
pub(crate) fn read_frames(
    vfs: &Arc<dyn Vfs>,
    number: u32,
    visit: &mut dyn FnMut(Frame<'_>) -> Result<FrameVisit>,
) -> Result<(u32, DatabaseId)> {
    let handles = Handles::new(vfs.clone());
    let (segment, id) = open_segment(&handles, number)?;
    let length = segment.length()?;
    let mut scanner = Scanner::new(&segment, length);
    let mut offset = SEGMENT_HEADER_BYTES;
    while u64::from(offset) < length {
        let Some(found) = scanner.frame_at(offset)? else {
            return Err(segment.damaged(offset, "a frame's checksum is wrong"));
        };
        if found.header.kind == FrameKind::Data && visit(Frame::from_scan(&found))?.is_break() {
            return Ok((offset, id));
        }
        offset = found.end().offset();
    }
    Ok((offset, id))
}

/// Whether the database directory `vfs` has a log.
pub(crate) fn has_segments(vfs: &dyn Vfs) -> Result<bool> {
    Ok(!segment_numbers(vfs)?.is_empty())
}

/// The numbers of the segments in the database directory `vfs`.
pub(crate) fn segment_numbers(vfs: &dyn Vfs) -> Result<BTreeSet<u32>> {
    let names = vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
    Ok(names.iter().filter_map(|name| parse_segment_name(name)).collect())
}

/// The name of the file of segment `number`, relative to the database directory.
pub(crate) fn segment_file_name(number: u32) -> String {
    segment_name(number)
}
