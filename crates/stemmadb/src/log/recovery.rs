//! Opening: which frames are there, and is what follows them a crash's end or damage?
//!
//! Frames are read in order, each verified, up to the first place X where there is none. If a segment was begun after X's,
//! X's was sealed and flushed, so X must be its seal. In the last segment, X is the end of the log, unless a valid frame
//! behind X says that X was flushed when it was written, or the caller knows so: then X is damaged.
//!
//! Then, in this order, each flushed before the next: the bytes of a torn end are copied to `log/torn-SEGMENT-OFFSET`; they are
//! zeroed, so that no frame among them can come to life behind later ones; what no frame proves to be durable is written
//! again (after a failed flush the system may think it clean) and flushed. All of it ends the same when a crash makes it
//! begin again: nothing before X is changed, and X is where it was.

use std::sync::Arc;

use super::frame::{ALIGNMENT, FRAME_HEADER_BYTES, FrameKind};
use super::position::LogPosition;
use super::retire::{FIRST, Free, UNFINISHED, free_name, make_segment, parse_free_name};
use super::scan::Scanner;
use super::segment::{
    DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, SegmentList, open_segment, parse_segment_name, segment_name,
};
use super::vfs::{Vfs, VfsFile};
use super::{Frame, LogOptions};
use crate::revision::Sequence;
use crate::{Error, Result};

/// So many torn ends are kept.
const TORN_COUNT_MAX: usize = 4;

/// Of a torn end so much is kept.
const TORN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Behind the end, where no frame is recognised, so much is kept of what is not zero.
const TORN_BYTES_UNRECOGNISED: u64 = 64 * 1024;

/// A log as found and put right.
pub(super) struct Recovered {
    pub(super) segments: SegmentList,
    pub(super) free: Vec<Free>,
    pub(super) database_id: DatabaseId,
    pub(super) last_sequence: Sequence,
    /// Whether the last frame is a mark.
    pub(super) is_marked: bool,
}

type Visit<'a> = &'a mut dyn FnMut(Frame<'_>) -> Result<()>;

/// How far the frames of a segment go.
struct Walked {
    /// The first place without a frame, or the seal's.
    end: u32,
    is_sealed: bool,
    /// The furthest offset that a frame proves to be durable.
    proven: u32,
    last_sequence: Sequence,
    is_marked: bool,
}

pub(super) fn recover(vfs: &Arc<dyn Vfs>, options: &LogOptions, visit: Visit<'_>) -> Result<Recovered> {
    let vfs = &**vfs;
    vfs.create_dir_all(DIRECTORY).map_err(|error| Error::io(format_args!("create {DIRECTORY}"), error))?;
    let names = vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
    let (segments, found_id) = open_segments(vfs, &names, options)?;
    let database_id = found_id.or(options.database_id).unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    let mut recovered =
        Recovered { segments, free: Vec::new(), database_id, last_sequence: Sequence::ZERO, is_marked: false };
    let last = replay(&mut recovered, options, visit)?;
    clear_leftovers(vfs, &names, &mut recovered)?;
    match last {
        Some(walked) if !walked.is_sealed => mend_end(vfs, &names, &recovered, &walked)?,
        _ => {
            let number = recovered.segments.last().map_or(FIRST.segment(), |segment| segment.number + 1);
            if let Some(sealed) = recovered.segments.last() {
                flush(&sealed.name, &*sealed.file)?;
            }
            let segment = make_segment(vfs, number, &database_id, options.segment_bytes, None)?;
            recovered.segments.push(Arc::new(segment));
            recovered.is_marked = false;
        }
    }
    Ok(recovered)
}

/// Opens all segments, in order, and checks that they are one database's.
fn open_segments(vfs: &dyn Vfs, names: &[String], options: &LogOptions) -> Result<(SegmentList, Option<DatabaseId>)> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    numbers.sort_unstable();
    let mut id = options.database_id;
    let mut segments = SegmentList::with_capacity(numbers.len());
    for number in numbers {
        let (segment, found) = open_segment(vfs, number)?;
        if *id.get_or_insert(found) != found {
            return Err(Error::corrupt(format!("{} belongs to another database", segment.name))
                .with_hint("put the file back where it came from"));
        }
        segments.push(Arc::new(segment));
    }
    let found = if segments.is_empty() { None } else { id };
    Ok((segments, found))
}

/// Shows the frames from the replay's beginning on, sets each segment's end, and returns how the last one ended.
fn replay(recovered: &mut Recovered, options: &LogOptions, visit: Visit<'_>) -> Result<Option<Walked>> {
    let known = options.durable_at_least.max(options.replay_from.unwrap_or_default());
    let Some(last) = recovered.segments.last().cloned() else {
        return if known > FIRST {
            Err(Error::corrupt(format!("the log is missing, though it reached {known} once")))
        } else {
            Ok(None)
        };
    };
    let from = options.replay_from.unwrap_or_default();
    let mut result = None;
    let mut expected = from.segment();
    for segment in &recovered.segments {
        if segment.number < from.segment() {
            segment.set_used(end_of_sealed(segment)?);
            continue;
        }
        if expected != 0 && segment.number != expected {
            return Err(Error::corrupt(format!("{} is missing", segment_name(expected))));
        }
        let start = if segment.number == from.segment() { from.offset() } else { SEGMENT_HEADER_BYTES };
        let walked = walk(segment, start, visit)?;
        segment.set_used(walked.end);
        if segment.number < last.number && !walked.is_sealed {
            return Err(segment.damaged(walked.end, "a frame's checksum is wrong, and a later segment follows"));
        }
        expected = if expected == 0 { 0 } else { segment.number + 1 };
        recovered.last_sequence = walked.last_sequence.max(recovered.last_sequence);
        recovered.is_marked = walked.is_marked;
        result = Some(walked);
    }
    let end = LogPosition::new(last.number, last.used());
    if end < known {
        return Err(last.damaged(end.offset(), &format!("the log ends here, though it reached {known} once")));
    }
    Ok(result)
}

/// Verifies and shows the frames of one segment from `start` on.
fn walk(segment: &Segment, start: u32, visit: Visit<'_>) -> Result<Walked> {
    let bytes = length(segment)?;
    let mut scanner = Scanner::new(segment, bytes);
    let mut walked =
        Walked { end: start, is_sealed: false, proven: start, last_sequence: Sequence::ZERO, is_marked: false };
    if start < SEGMENT_HEADER_BYTES || !start.is_multiple_of(ALIGNMENT) {
        return Err(Error::corrupt(format!("replay can't begin at offset {start} of {}", segment.name)));
    }
    while let Some(found) = scanner.frame_at(walked.end)? {
        walked.proven = walked.proven.max(found.header.durable);
        walked.last_sequence = found.header.first_sequence;
        walked.is_marked = found.header.kind == FrameKind::Mark;
        if found.header.kind == FrameKind::Seal {
            walked.is_sealed = true;
            return Ok(walked);
        }
        if let Some(frame) = Frame::of(&found) {
            visit(frame)?;
        }
        walked.end = found.end().offset();
    }
    Ok(walked)
}

/// Where a segment that is not replayed ends: the seal is the last thing in its file, unless a crash kept the file long.
fn end_of_sealed(segment: &Segment) -> Result<u32> {
    let bytes = length(segment)?;
    let seal = u32::try_from(bytes.saturating_sub(u64::from(FRAME_HEADER_BYTES))).unwrap_or(0);
    if seal >= SEGMENT_HEADER_BYTES && seal.is_multiple_of(ALIGNMENT) {
        let found = Scanner::new(segment, bytes).frame_at(seal)?.map(|found| found.header.kind);
        if found == Some(FrameKind::Seal) {
            return Ok(seal);
        }
    }
    let walked = walk(segment, SEGMENT_HEADER_BYTES, &mut |_| Ok(()))?;
    if !walked.is_sealed {
        return Err(segment.damaged(walked.end, "a frame's checksum is wrong, and a later segment follows"));
    }
    Ok(walked.end)
}

/// What lies behind the end of the last segment.
struct Behind {
    /// Where the last recognised frame header's frame ends; the end itself if there is none.
    recognised: u64,
}

/// Looks behind the end for frames; one that proves the end to have been flushed makes it damage.
fn look_behind(segment: &Segment, end: u32) -> Result<Behind> {
    let bytes = length(segment)?;
    let mut scanner = Scanner::new(segment, bytes);
    let mut recognised = u64::from(end);
    let mut offset = end;
    while u64::from(offset) + u64::from(FRAME_HEADER_BYTES) <= bytes.min(u64::from(u32::MAX - ALIGNMENT)) {
        if let Some(header) = scanner.header_at(offset)? {
            recognised = recognised.max(u64::from(offset) + u64::from(header.frame_bytes()));
            if header.durable > end && scanner.frame_at(offset)?.is_some() {
                let what = format!(
                    "a frame's checksum is wrong, and the frame at offset {offset} was written after it was flushed"
                );
                return Err(segment.damaged(end, &what));
            }
        }
        offset += ALIGNMENT;
    }
    Ok(Behind { recognised })
}

/// Makes the end of the last segment one that frames can be appended to.
fn mend_end(vfs: &dyn Vfs, names: &[String], recovered: &Recovered, walked: &Walked) -> Result<()> {
    let Some(segment) = recovered.segments.last() else { return Ok(()) };
    let end = u64::from(walked.end);
    let behind = look_behind(segment, walked.end)?;
    let mut torn = Vec::new();
    if behind.recognised > end || !walked.is_marked {
        torn = torn_bytes(segment, end, behind.recognised)?;
    }
    if !torn.is_empty() {
        keep_torn(vfs, names, segment, walked.end, &torn)?;
    }
    rewrite(segment, walked.proven.min(walked.end), walked.end)?;
    zero(segment, end, behind.recognised.max(end + torn.len() as u64))?;
    flush(&segment.name, &*segment.file)
}

/// The bytes behind the end that are worth keeping, up to the last that is not zero.
fn torn_bytes(segment: &Segment, end: u64, recognised: u64) -> Result<Vec<u8>> {
    let until = recognised.max(end + TORN_BYTES_UNRECOGNISED).min(end + TORN_BYTES_MAX);
    let mut scanner = Scanner::new(segment, length(segment)?);
    let bytes = scanner.bytes(end, (until - end) as usize)?;
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    Ok(bytes[..used].to_vec())
}

/// Copies a torn end aside, flushed. A copy made by an earlier, interrupted recovery is the better one and stays.
fn keep_torn(vfs: &dyn Vfs, names: &[String], segment: &Segment, offset: u32, bytes: &[u8]) -> Result<()> {
    let name = format!("torn-{:010}-{offset:010}", segment.number);
    if names.contains(&name) {
        return Ok(());
    }
    let mut kept: Vec<&String> = names.iter().filter(|name| name.starts_with("torn-")).collect();
    kept.sort_unstable();
    let surplus = (kept.len() + 1).saturating_sub(TORN_COUNT_MAX);
    for old in &kept[..surplus] {
        let old = format!("{DIRECTORY}/{old}");
        vfs.remove(&old).map_err(|error| Error::io(format_args!("remove {old}"), error))?;
    }
    let path = format!("{DIRECTORY}/{name}");
    let file = vfs.create(UNFINISHED).map_err(|error| Error::io(format_args!("create {UNFINISHED}"), error))?;
    file.write_at(bytes, 0).map_err(|error| Error::io(format_args!("write {path}"), error))?;
    flush(&path, &*file)?;
    vfs.rename(UNFINISHED, &path).map_err(|error| Error::io(format_args!("rename {UNFINISHED} to {path}"), error))?;
    vfs.sync_dir(DIRECTORY).map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))
}

/// Writes the bytes from `start` to `end` again, as they are.
fn rewrite(segment: &Segment, start: u32, end: u32) -> Result<()> {
    let mut scanner = Scanner::new(segment, u64::from(end));
    let mut offset = u64::from(start);
    while offset < u64::from(end) {
        let bytes = scanner.bytes(offset, (u64::from(end) - offset).min(1 << 18) as usize)?;
        if bytes.is_empty() {
            return Err(segment.damaged(offset as u32, "the file ends here while being read"));
        }
        write(segment, bytes, offset)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

fn zero(segment: &Segment, start: u64, end: u64) -> Result<()> {
    let zeros = [0; 16 * 1024];
    let mut offset = start;
    while offset < end {
        let count = (end - offset).min(zeros.len() as u64);
        write(segment, &zeros[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

fn write(segment: &Segment, bytes: &[u8], offset: u64) -> Result<()> {
    let written = segment.file.write_at(bytes, offset);
    written.map_err(|error| Error::io(format_args!("write {} at offset {offset}", segment.name), error))
}

fn flush(name: &str, file: &dyn VfsFile) -> Result<()> {
    file.sync_data().map_err(|error| Error::io(format_args!("flush {name}"), error))
}

fn length(segment: &Segment) -> Result<u64> {
    segment.file.len().map_err(|error| Error::io(format_args!("examine {}", segment.name), error))
}

/// Removes what an interrupted act left, and takes retired files for reuse.
fn clear_leftovers(vfs: &dyn Vfs, names: &[String], recovered: &mut Recovered) -> Result<()> {
    for name in names {
        let path = format!("{DIRECTORY}/{name}");
        let is_free = parse_free_name(name).is_some_and(|number| free_name(number) == path);
        if path == UNFINISHED || is_free && recovered.free.len() >= 2 {
            vfs.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), error))?;
        } else if is_free {
            let file = vfs.open(&path).map_err(|error| Error::io(format_args!("open {path}"), error))?;
            recovered.free.push(Free { segment: Arc::new(Segment::new(0, path.clone(), file, 0)), name: path });
        }
    }
    Ok(())
}
