//! Opening: which frames are there, and is what follows them a crash's end or damage?
//!
//! Frames are read in order, each verified, up to the first place X where there is none. If a segment was begun after X's,
//! X's was sealed and flushed, so X must be its seal. In the last segment, X is the end of the log, unless a valid frame
//! behind X says that X was flushed when it was written, or the caller knows so: then X is damaged.
//!
//! Only when nothing is damaged is anything changed ([`mend`]). A crash in between makes opening begin again, and it
//! ends the same: nothing before X is changed, and X is where it was.

use std::sync::Arc;

use super::frame::{ALIGNMENT, FRAME_HEADER_BYTES, FrameKind};
use super::handles::Handles;
use super::mark::Expected;
use super::position::LogPosition;
use super::repair::{self, Mended};
use super::retire::{FIRST, sync_names};
use super::scan::Scanner;
use super::segment::{
    DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, open_segment, parse_segment_name, segment_name,
};
use super::vfs::Vfs;
use super::{Frame, LogOptions};
use crate::revision::Sequence;
use crate::{Error, Result};

/// A log as found and put right.
pub(super) struct Recovered {
    pub(super) mended: Mended,
    pub(super) database_id: DatabaseId,
    pub(super) last_sequence: Sequence,
}

/// What reading found; nothing is changed yet.
pub(super) struct Survey {
    /// The names in the log's directory.
    pub(super) names: Vec<String>,
    pub(super) segments: Vec<Arc<Segment>>,
    /// How the last segment ends; none if there is no segment.
    pub(super) last: Option<Walked>,
    /// What the last mark says, if one was read.
    pub(super) marked: Option<Expected>,
    last_sequence: Sequence,
}

/// How far the frames of a segment go.
pub(super) struct Walked {
    /// The first place without a frame, or the seal's.
    pub(super) end: u32,
    /// How much of what is before the end is padding, which no checksum covers.
    pub(super) padding: u32,
    pub(super) is_sealed: bool,
    /// The furthest offset that a frame proves to be durable.
    pub(super) proven: u32,
    pub(super) is_marked: bool,
    /// Where the last frame header behind the end says its frame ends; the end itself if there is none.
    pub(super) recognised: u64,
    last_sequence: Option<Sequence>,
    marked: Option<Expected>,
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
    let survey = replay(names, segments, options, visit)?;

    vfs.create_dir_all(DIRECTORY).map_err(|error| Error::io(format_args!("create {DIRECTORY}"), error))?;
    let mended = repair::mend(vfs, handles, &survey, &database_id, options.segment_bytes)?;
    // The names may have been changed by a process that was killed before it flushed them.
    sync_names(vfs)?;
    vfs.sync_dir("").map_err(|error| Error::io("flush the database's directory", error))?;
    Ok(Recovered { mended, database_id, last_sequence: survey.last_sequence })
}

/// Opens all segments, in order, and checks that they are one database's.
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

/// Shows the frames from the replay's beginning on, sets each segment's end, and finds how the log ends.
fn replay(names: Vec<String>, segments: Vec<Arc<Segment>>, options: &LogOptions, visit: Visit<'_>) -> Result<Survey> {
    let from = options.replay_from.unwrap_or_default();
    let known = options.durable_at_least.max(from);
    let mut survey = Survey { names, segments, last: None, marked: None, last_sequence: Sequence::ZERO };
    let Some(last) = survey.segments.last().map(|last| last.number) else {
        return if known <= FIRST { Ok(survey) } else { Err(missing_end(&segment_name(known.segment()), known)) };
    };
    if last < known.segment() {
        return Err(missing_end(&segment_name(known.segment()), known));
    }
    for segment in &survey.segments {
        if segment.number < from.segment() {
            segment.set_used(end_of_sealed(segment)?);
            continue;
        }
        let start = if segment.number == from.segment() { from.offset() } else { SEGMENT_HEADER_BYTES };
        let mut walked = walk(segment, start, visit)?;
        segment.set_used(walked.end);
        survey.last_sequence = walked.last_sequence.unwrap_or(survey.last_sequence);
        survey.marked = walked.marked.take().or(survey.marked);
        if segment.number < last && !walked.is_sealed {
            return Err(not_sealed(segment, walked.end));
        }
        survey.last = Some(walked);
    }
    check_end(&mut survey, from, known)?;
    Ok(survey)
}

/// Refuses a log that ends too early or lacks a segment; looks at what is behind the end.
fn check_end(survey: &mut Survey, from: LogPosition, known: LogPosition) -> Result<()> {
    let since = Expected::since(from.segment().max(FIRST.segment()));
    survey.marked.as_ref().unwrap_or(&since).check(&survey.segments)?;
    let (Some(last), Some(walked)) = (survey.segments.last(), &mut survey.last) else { return Ok(()) };
    if LogPosition::new(last.number, walked.end) < known {
        return Err(last.damaged(walked.end, &format!("the log ends here, but once it reached {known}")));
    }
    if !walked.is_sealed {
        if LogPosition::new(last.number, walked.end) == from {
            check_chain(last, walked.end)?;
        }
        walked.recognised = look_behind(last, walked.end)?;
    }
    Ok(())
}

/// Refuses an end where no frame ends. The caller said that replay begins there, and no frame does: were that wrong, whole frames
/// would be overwritten.
fn check_chain(segment: &Segment, end: u32) -> Result<()> {
    let mut scanner = Scanner::new(segment, u64::from(end));
    let mut offset = SEGMENT_HEADER_BYTES;
    while offset < end {
        let Some(header) = scanner.header_at(offset)? else {
            return Err(segment.damaged(offset, &format!("no row of frames leads from here to offset {end}")));
        };
        offset += header.frame_bytes();
    }
    Ok(())
}

/// Verifies and shows the frames of one segment from `start` on.
fn walk(segment: &Segment, start: u32, visit: Visit<'_>) -> Result<Walked> {
    let bytes = segment.length()?;
    if start < SEGMENT_HEADER_BYTES || !start.is_multiple_of(ALIGNMENT) {
        return Err(Error::invalid(format!("replay can't begin at offset {start} of {}", segment.name())));
    }
    if u64::from(start) > bytes {
        return Err(segment.damaged(bytes as u32, &format!("the file ends here, but once it reached offset {start}")));
    }
    let mut scanner = Scanner::new(segment, bytes);
    let mut walked = Walked {
        end: start,
        padding: 0,
        is_sealed: false,
        proven: start,
        is_marked: false,
        recognised: u64::from(start),
        last_sequence: None,
        marked: None,
    };
    while let Some(found) = scanner.frame_at(walked.end)? {
        walked.proven = walked.proven.max(found.header.durable);
        walked.last_sequence = Some(found.header.first_sequence);
        walked.is_marked = found.header.kind == FrameKind::Mark;
        match found.header.kind {
            FrameKind::Seal => {
                walked.is_sealed = true;
                return Ok(walked);
            }
            FrameKind::Mark => walked.marked = Some(Expected::decode(segment.number, found.payload)?),
            FrameKind::Data => visit(Frame::of(&found))?,
        }
        walked.end = found.end().offset();
        walked.padding = walked.end - found.payload_position().offset() - found.header.payload_bytes;
        walked.recognised = u64::from(walked.end);
    }
    Ok(walked)
}

/// Where a segment that is not replayed ends: the seal is the last thing in its file, unless a crash kept the file long.
fn end_of_sealed(segment: &Segment) -> Result<u32> {
    let bytes = segment.length()?;
    let seal = u32::try_from(bytes.saturating_sub(u64::from(FRAME_HEADER_BYTES))).unwrap_or(0);
    if seal >= SEGMENT_HEADER_BYTES && seal.is_multiple_of(ALIGNMENT) {
        let found = Scanner::new(segment, bytes).frame_at(seal)?.map(|found| found.header.kind);
        if found == Some(FrameKind::Seal) {
            return Ok(seal);
        }
    }
    let walked = walk(segment, SEGMENT_HEADER_BYTES, &mut |_| Ok(()))?;
    if walked.is_sealed { Ok(walked.end) } else { Err(not_sealed(segment, walked.end)) }
}

/// Looks behind the end of the last segment for frames. One that proves the end to have been flushed makes it damage. Returns
/// where the last that is recognised by its header ends.
fn look_behind(segment: &Segment, end: u32) -> Result<u64> {
    let bytes = segment.length()?.min(u64::from(u32::MAX));
    let mut scanner = Scanner::new(segment, bytes);
    let mut recognised = u64::from(end);
    let mut offset = end;
    while u64::from(offset) + u64::from(FRAME_HEADER_BYTES) <= bytes {
        if let Some(header) = scanner.header_at(offset)? {
            recognised = recognised.max(u64::from(offset) + u64::from(header.frame_bytes()));
            if header.durable > end && scanner.frame_at(offset)?.is_some() {
                let what =
                    format!("a frame's checksum is wrong, though by the frame at offset {offset} it was flushed");
                return Err(segment.damaged(end, &what));
            }
        }
        offset += ALIGNMENT;
    }
    Ok(recognised)
}

fn not_sealed(segment: &Segment, end: u32) -> Error {
    segment.damaged(end, "a frame's checksum is wrong, though the segment was finished and flushed")
}

fn missing_end(name: &str, known: LogPosition) -> Error {
    Error::corrupt(format!("{name} is missing, but once the log reached {known}"))
        .with_hint("restore the file, then open again")
}
