//! Recovery: replays the log and decides whether the bytes after its last frame are a torn write or damage.
//!
//! Frames are read in order and verified up to the first offset X without a valid frame. If a later segment exists, X's
//! segment was sealed and flushed, so X must be its seal. In the last segment, X is the end of the log, unless a valid
//! frame after X records that X was flushed when that frame was written, or the caller knows that it was: then X is
//! damaged.
//!
//! Files are modified only if nothing is damaged ([`repair`]). A crash during recovery restarts it with
//! the same result: nothing before X changes, and X stays where it is.

use std::sync::Arc;

use super::frame::{ALIGNMENT, FrameHeader, FrameKind};
use super::handles::Handles;
use super::mark::ExpectedSegments;
use super::position::LogPosition;
use super::repair::{self, RepairedLog};
use super::retire::{FIRST_POSITION, sync_names};
use super::scan::Scanner;
use super::segment::{
    DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, open_segment, parse_segment_name, segment_name,
};
use super::{Frame, LogOptions};
use crate::revision::Sequence;
use crate::vfs::Vfs;
use crate::{Error, Result};

/// A log that recovery has replayed, and repaired unless it is followed.
pub(super) struct Recovered {
    pub(super) repaired: RepairedLog,
    pub(super) database_id: DatabaseId,
    pub(super) last_sequence: Sequence,
    /// Commit time of the last frame, in microseconds since 1970.
    pub(super) last_time_us: u64,
}

/// Result of reading the log, before any file is modified.
pub(super) struct LogScan {
    /// File names in the log's directory.
    pub(super) names: Vec<String>,
    pub(super) segments: Vec<Arc<Segment>>,
    /// How the last segment ends; `None` if there is no segment.
    pub(super) last: Option<SegmentScan>,
    /// The segments that the last mark lists, if a mark was read.
    pub(super) marked: Option<ExpectedSegments>,
    pub(super) last_sequence: Sequence,
    pub(super) last_time_us: u64,
}

impl LogScan {
    /// Takes note of a frame, in the order of the log.
    fn see(&mut self, header: &FrameHeader) {
        self.last_sequence = self.last_sequence.max(header.first_sequence);
        self.last_time_us = self.last_time_us.max(header.time_us);
    }
}

/// Result of scanning one segment for frames.
pub(super) struct SegmentScan {
    /// The first offset without a frame, or the seal's offset.
    pub(super) end: u32,
    /// Length of the last frame's padding, which no checksum covers.
    pub(super) padding: u32,
    pub(super) is_sealed: bool,
    /// The highest offset that a frame proves to be durable.
    pub(super) proven: u32,
    pub(super) is_marked: bool,
    /// The end of the last frame after `end` that has a valid header; `end` if there is none.
    pub(super) recognized: u64,
    /// The header of the last frame, the seal included.
    last_header: Option<FrameHeader>,
    marked: Option<ExpectedSegments>,
}

type Visit<'a> = &'a mut dyn FnMut(Frame<'_>) -> Result<()>;

pub(super) fn recover(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    options: &LogOptions,
    visit: Visit<'_>,
) -> Result<Recovered> {
    let names = vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
    let (segments, found_id) = open_segments(handles, &names, options)?;
    let database_id = found_id.or(options.database_id).unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    let log_scan = replay(names, segments, options, visit)?;
    if options.follows {
        return follow(log_scan, database_id);
    }

    vfs.create_dir_all(DIRECTORY).map_err(|error| Error::io(format_args!("create {DIRECTORY}"), error))?;
    let repaired = repair::repair(vfs, handles, &log_scan, &database_id, options.segment_bytes)?;
    // The names may have been changed by a process that was killed before it flushed them.
    sync_names(vfs)?;
    vfs.sync_dir("").map_err(|error| Error::io("flush the database's directory", error))?;
    let LogScan { last_sequence, last_time_us, .. } = log_scan;
    Ok(Recovered { repaired, database_id, last_sequence, last_time_us })
}

/// The log as another process has it open. There is nothing to repair: only its owner writes.
fn follow(log_scan: LogScan, database_id: DatabaseId) -> Result<Recovered> {
    let LogScan { segments, last_sequence, last_time_us, .. } = log_scan;
    if segments.is_empty() {
        return Err(Error::not_found("the log has no segment yet"));
    }
    let repaired = RepairedLog { segments, free: Vec::new(), is_marked: false };
    Ok(Recovered { repaired, database_id, last_sequence, last_time_us })
}

/// Opens all segments, in order, and checks that they belong to the same database.
fn open_segments(
    handles: &Arc<Handles>,
    names: &[String],
    options: &LogOptions,
) -> Result<(Vec<Arc<Segment>>, Option<DatabaseId>)> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    numbers.sort_unstable();
    let mut id = options.database_id;
    let mut segments = Vec::with_capacity(numbers.len());
    for number in numbers {
        let (segment, found) = open_segment(handles, number)?;
        if *id.get_or_insert(found) != found {
            return Err(Error::corrupt(format!("{} belongs to another database", segment.name()))
                .with_hint("put the file back where it came from"));
        }
        segments.push(Arc::new(segment));
    }
    let found = if segments.is_empty() { None } else { id };
    Ok((segments, found))
}

/// Passes the frames from the start of replay on to `visit`, sets each segment's end, and finds how the log ends.
fn replay(names: Vec<String>, segments: Vec<Arc<Segment>>, options: &LogOptions, visit: Visit<'_>) -> Result<LogScan> {
    let from = options.replay_from.unwrap_or_default();
    let known = options.durable_at_least.max(from);
    let mut log_scan =
        LogScan { names, segments, last: None, marked: None, last_sequence: Sequence::ZERO, last_time_us: 0 };
    let Some(last) = log_scan.segments.last().map(|last| last.number) else {
        return if known <= FIRST_POSITION {
            Ok(log_scan)
        } else {
            Err(missing_end(&segment_name(known.segment()), known))
        };
    };
    if last < known.segment() {
        return Err(missing_end(&segment_name(known.segment()), known));
    }
    for segment in log_scan.segments.clone() {
        let segment = &*segment;
        if segment.number < from.segment() {
            let (end, seal) = end_of_sealed(segment)?;
            segment.set_used(end);
            log_scan.see(&seal);
            continue;
        }
        let start = if segment.number == from.segment() { from.offset() } else { SEGMENT_HEADER_BYTES };
        let mut scanned = scan_segment(segment, start, visit)?;
        segment.set_used(scanned.end);
        scanned.last_header.iter().for_each(|header| log_scan.see(header));
        log_scan.marked = scanned.marked.take().or(log_scan.marked);
        if segment.number < last && !scanned.is_sealed {
            return Err(not_sealed(segment, scanned.end));
        }
        log_scan.last = Some(scanned);
    }
    check_end(&mut log_scan, from, known)?;
    Ok(log_scan)
}

/// Returns an error if the log ends too early or lacks a segment; scans the bytes after its end.
fn check_end(log_scan: &mut LogScan, from: LogPosition, known: LogPosition) -> Result<()> {
    let starting_at = ExpectedSegments::starting_at(from.segment().max(FIRST_POSITION.segment()));
    log_scan.marked.as_ref().unwrap_or(&starting_at).check(&log_scan.segments)?;
    let (Some(last), Some(mut scanned)) = (log_scan.segments.last().cloned(), log_scan.last.take()) else {
        return Ok(());
    };
    if LogPosition::new(last.number, scanned.end) < known {
        return Err(last.damaged(scanned.end, &format!("the log ends here, but once it reached {known}")));
    }
    if !scanned.is_sealed {
        if LogPosition::new(last.number, scanned.end) == from {
            let header = check_frame_boundary(&last, scanned.end)?;
            header.iter().for_each(|header| log_scan.see(header));
        }
        scanned.recognized = scan_beyond_end(&last, scanned.end)?;
    }
    log_scan.last = Some(scanned);
    Ok(())
}

/// Returns an error if no frame ends at `end`. The caller requested replay from there and found no frame: if that
/// position were wrong, later appends would overwrite complete frames. Returns the header of the last frame before
/// `end`.
fn check_frame_boundary(segment: &Segment, end: u32) -> Result<Option<FrameHeader>> {
    let mut scanner = Scanner::new(segment, u64::from(end));
    let (mut offset, mut last) = (SEGMENT_HEADER_BYTES, None);
    while offset < end {
        let Some(header) = scanner.header_at(offset)? else {
            return Err(segment.damaged(offset, &format!("no row of frames leads from here to offset {end}")));
        };
        offset += header.frame_bytes();
        last = Some(header);
    }
    Ok(last)
}

/// Verifies the frames of one segment from `start` on and passes them to `visit`.
fn scan_segment(segment: &Segment, start: u32, visit: Visit<'_>) -> Result<SegmentScan> {
    let bytes = segment.length()?;
    if start < SEGMENT_HEADER_BYTES || !start.is_multiple_of(ALIGNMENT) {
        return Err(Error::invalid(format!("replay can't begin at offset {start} of {}", segment.name())));
    }
    if u64::from(start) > bytes {
        return Err(segment.damaged(bytes as u32, &format!("the file ends here, but once it reached offset {start}")));
    }
    let mut scanner = Scanner::new(segment, bytes);
    let mut scanned = SegmentScan {
        end: start,
        padding: 0,
        is_sealed: false,
        proven: start,
        is_marked: false,
        recognized: u64::from(start),
        last_header: None,
        marked: None,
    };
    while let Some(found) = scanner.frame_at(scanned.end)? {
        scanned.proven = scanned.proven.max(found.header.durable);
        scanned.last_header = Some(found.header);
        scanned.is_marked = found.header.kind == FrameKind::Mark;
        match found.header.kind {
            FrameKind::Seal => {
                scanned.is_sealed = true;
                return Ok(scanned);
            }
            FrameKind::Mark => scanned.marked = Some(ExpectedSegments::decode(segment.number, found.mark_payload())?),
            FrameKind::Data => visit(Frame::from_scan(&found))?,
        }
        scanned.end = found.end().offset();
        scanned.padding = scanned.end - found.payload_position().offset() - found.header.payload_bytes;
        scanned.recognized = u64::from(scanned.end);
    }
    Ok(scanned)
}

/// The end of a segment that is not replayed, with its seal. The seal is the last frame in its file, unless a crash
/// prevented truncating the file.
fn end_of_sealed(segment: &Segment) -> Result<(u32, FrameHeader)> {
    let bytes = segment.length()?;
    let seal = u32::try_from(bytes.saturating_sub(u64::from(segment.format.header_bytes()))).unwrap_or(0);
    if seal >= SEGMENT_HEADER_BYTES && seal.is_multiple_of(ALIGNMENT) {
        let found = Scanner::new(segment, bytes).frame_at(seal)?.map(|found| found.header);
        if let Some(header) = found.filter(|header| header.kind == FrameKind::Seal) {
            return Ok((seal, header));
        }
    }
    let scanned = scan_segment(segment, SEGMENT_HEADER_BYTES, &mut |_| Ok(()))?;
    match scanned.last_header.filter(|_| scanned.is_sealed) {
        Some(seal) => Ok((scanned.end, seal)),
        None => Err(not_sealed(segment, scanned.end)),
    }
}

/// Searches the bytes after the end of the last segment for frames. A frame that proves the end to have been flushed
/// makes it damage. Returns the end of the last frame with a valid header.
fn scan_beyond_end(segment: &Segment, end: u32) -> Result<u64> {
    let bytes = segment.length()?.min(u64::from(u32::MAX));
    let mut scanner = Scanner::new(segment, bytes);
    let mut recognized = u64::from(end);
    let mut offset = end;
    while u64::from(offset) + u64::from(segment.format.header_bytes()) <= bytes {
        if let Some(header) = scanner.header_at(offset)? {
            recognized = recognized.max(u64::from(offset) + u64::from(header.frame_bytes()));
            if header.durable > end && scanner.frame_at(offset)?.is_some() {
                let what =
                    format!("a frame's checksum is wrong, though by the frame at offset {offset} it was flushed");
                return Err(segment.damaged(end, &what));
            }
        }
        offset += ALIGNMENT;
    }
    Ok(recognized)
}

fn not_sealed(segment: &Segment, end: u32) -> Error {
    segment.damaged(end, "a frame's checksum is wrong, though the segment was finished and flushed")
}

fn missing_end(name: &str, known: LogPosition) -> Error {
    Error::corrupt(format!("{name} is missing, but once the log reached {known}"))
        .with_hint("restore the file, then open again")
}
