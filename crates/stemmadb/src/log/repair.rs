//! Repair of a log after a crash, so that frames can be appended to it.
//!
//! The bytes of a torn end are first copied to `log/torn-SEGMENT-OFFSET`, and the copy is flushed. They are then
//! zeroed, so that no frame among them can become valid again after later frames are appended. Frames that no other
//! frame proves to be durable are rewritten unchanged and flushed: after a failed flush or a killed process, the
//! operating system may consider pages clean that never reached the disk.

use std::sync::Arc;

use super::cipher::{SegmentWriter, new_session};
use super::frame::{FrameFormat, FrameHeader, FrameKind, Version};
use super::handles::{Handle, Handles};
use super::position::LogPosition;
use super::recovery::{LogScan, SegmentScan};
use super::retire::{
    FIRST_POSITION, FREE_COUNT_MAX, FreeFile, UNFINISHED, free_name, is_shared, make_segment, parse_free_name,
    release_file, sync_names,
};
use super::scan::Scanner;
use super::segment::{DIRECTORY, DatabaseId, Segment};
use crate::cipher::TAG_BYTES;
use crate::vfs::{Vfs, VfsFile};
use crate::{Error, Result};

/// Maximum number of copies of torn ends.
const TORN_COUNT_MAX: usize = 4;

/// Maximum length of the copy of a torn end.
const TORN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Maximum number of bytes copied after the last recognized frame header, up to the last non-zero byte.
const TORN_BYTES_UNRECOGNIZED: u64 = 64 * 1024;

const STEP_BYTES: usize = 256 * 1024;

/// A log that can be appended to.
pub(super) struct RepairedLog {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) free: Vec<FreeFile>,
    /// Whether the last frame is a mark with nothing after it.
    pub(super) is_marked: bool,
}

/// Repairs the log so that frames can be appended. Idempotent: an interrupted repair can be repeated.
pub(super) fn repair(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    survey: &LogScan,
    database_id: &DatabaseId,
    segment_bytes: u32,
) -> Result<RepairedLog> {
    let format = FrameFormat::current(database_id, vfs.keyring().and_then(|keyring| keyring.active()));
    let mut free = clear_leftovers(vfs, handles, &survey.names, FrameFormat::current(database_id, None))?;
    let (mut is_marked, mut is_continued) = (false, false);
    if let (Some(last), Some(walked)) = (survey.segments.last(), &survey.last) {
        last.pin()?;
        let was_torn = mend_last(vfs, &survey.names, last, walked)?;
        // Two frames at one position that differ could be exchanged, so nothing encrypted follows a torn end.
        is_continued = !walked.is_sealed && last.format == format && !(was_torn && format.is_encrypted());
        is_marked = walked.is_marked && is_continued && !was_torn;
        if !walked.is_sealed && !is_continued {
            seal(vfs, last, survey)?;
        }
    }
    // Only now is the mark that omits the retired segments known to be durable.
    let mut segments = finish_retirements(vfs, survey, segment_bytes, &mut free)?;
    for segment in segments.iter().rev().skip(1) {
        shorten(segment)?;
    }
    if !is_continued {
        let number = segments.last().map_or(FIRST_POSITION.segment(), |segment| segment.number + 1);
        if let Some(sealed) = segments.last() {
            sealed.handle.unpin();
        }
        segments.push(Arc::new(make_segment(vfs, handles, (number, format), database_id, segment_bytes, None)?));
    }
    Ok(RepairedLog { segments, free, is_marked })
}

/// Removes unfinished files and collects retired files for reuse.
fn clear_leftovers(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    names: &[String],
    format: FrameFormat,
) -> Result<Vec<FreeFile>> {
    let mut free = Vec::new();
    for name in names {
        let path = format!("{DIRECTORY}/{name}");
        let is_free = parse_free_name(name).is_some_and(|number| free_name(number) == path);
        let remove = || vfs.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), error));
        if path == UNFINISHED || is_free && free.len() >= FREE_COUNT_MAX {
            remove()?;
        } else if is_free {
            let file = vfs.open(&path).map_err(|error| Error::io(format_args!("open {path}"), error))?;
            if is_shared(&*file) {
                remove()?;
                continue;
            }
            let handle = Handle::pinned(handles, path.clone(), file);
            free.push(FreeFile { segment: Arc::new(Segment::new(0, handle, format)), name: path });
        }
    }
    Ok(free)
}

/// Removes the segments that the last mark omits: their retirement was decided and flushed.
fn finish_retirements(
    vfs: &dyn Vfs,
    survey: &LogScan,
    segment_bytes: u32,
    free: &mut Vec<FreeFile>,
) -> Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::with_capacity(survey.segments.len() + 1);
    for segment in &survey.segments {
        if survey.marked.as_ref().is_none_or(|marked| marked.contains(segment.number)) {
            segments.push(Arc::clone(segment));
        } else {
            free.extend(release_file(vfs, segment, free.len() < FREE_COUNT_MAX, segment_bytes)?);
            sync_names(vfs)?;
        }
    }
    Ok(segments)
}

/// Truncates the file of a sealed segment after its seal, so that opening finds the seal without scanning.
fn shorten(segment: &Segment) -> Result<()> {
    let sealed = u64::from(segment.used() + segment.format.header_bytes());
    if segment.length()? <= sealed {
        return Ok(());
    }
    segment.shorten(sealed)
}

/// Ends a segment with a seal that is not continued: it is of an older version, is encrypted otherwise than new
/// segments, or had a torn end. Everything in it is flushed.
fn seal(vfs: &dyn Vfs, segment: &Segment, survey: &LogScan) -> Result<()> {
    let end = segment.used();
    let has_times = segment.format.version != Version::One;
    let mut header = FrameHeader {
        version: segment.format.version,
        kind: FrameKind::Seal,
        payload_bytes: 0,
        durable: end,
        first_sequence: survey.last_sequence,
        time_us: if has_times { survey.last_time_us + 1 } else { 0 },
        payload_checksum: crc32c::crc32c(&[]),
        session: 0,
        tag: [0; TAG_BYTES],
    };
    if let (Some(keyring), true) = (vfs.keyring(), segment.format.is_encrypted()) {
        let session = new_session(keyring)?;
        let writer = SegmentWriter::new(Some(keyring), segment.format, segment.number, session)?;
        header = writer.map_or(header, |writer| writer.seal_header(&header, segment.format, end));
    }
    segment.write(&segment.format.encode(&header, LogPosition::new(segment.number, end)), u64::from(end))?;
    segment.flush()?;
    shorten(segment)
}

/// Makes the last segment durable and, unless it is sealed, prepares its end for appending. Returns whether it had a
/// torn end: then a mark must follow, so that the next torn end has a different offset and is copied, too.
fn mend_last(vfs: &dyn Vfs, names: &[String], segment: &Segment, walked: &SegmentScan) -> Result<bool> {
    if walked.is_sealed {
        rewrite(segment, walked.proven, walked.end + segment.format.header_bytes())?;
        segment.flush()?;
        shorten(segment)?;
        return Ok(false);
    }
    let end = u64::from(walked.end);
    let torn = if walked.recognized > end || !walked.is_marked {
        torn_bytes(segment, end, walked.recognized)?
    } else {
        Vec::new()
    };
    if !torn.is_empty() {
        keep_torn(vfs, names, segment, walked.end, &torn)?;
    }
    let whole = end - u64::from(unwritten_padding(segment, walked)?);
    zero(segment, whole, walked.recognized.max(end + torn.len() as u64))?;
    rewrite(segment, walked.proven, walked.end)?;
    segment.flush()?;
    Ok(!torn.is_empty())
}

/// Length of the last frame's padding if it is not all zeros: the write was cut short within it, over the bytes of a
/// recycled file.
fn unwritten_padding(segment: &Segment, walked: &SegmentScan) -> Result<u32> {
    let mut scanner = Scanner::new(segment, u64::from(walked.end));
    let bytes = scanner.bytes(u64::from(walked.end - walked.padding), walked.padding as usize)?;
    Ok(if bytes.iter().all(|&byte| byte == 0) { 0 } else { walked.padding })
}

/// The bytes after the end that are worth copying, up to the last non-zero byte.
fn torn_bytes(segment: &Segment, end: u64, recognized: u64) -> Result<Vec<u8>> {
    let until = recognized.max(end + TORN_BYTES_UNRECOGNIZED).min(end + TORN_BYTES_MAX);
    let mut scanner = Scanner::new(segment, segment.length()?);
    let bytes = scanner.bytes(end, (until - end) as usize)?;
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    Ok(bytes[..used].to_vec())
}

/// Copies a torn end to its own file and flushes it. A copy made by an earlier, interrupted recovery is more complete
/// and is kept.
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
    sync_names(vfs)
}

/// Removes the copies of torn ends.
pub(super) fn remove_torn(vfs: &dyn Vfs) -> Result<()> {
    let names = vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
    for name in names.iter().filter(|name| name.starts_with("torn-")) {
        let path = format!("{DIRECTORY}/{name}");
        vfs.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), error))?;
    }
    sync_names(vfs)
}

/// Rewrites the bytes from `start` to `end` unchanged.
fn rewrite(segment: &Segment, start: u32, end: u32) -> Result<()> {
    let mut scanner = Scanner::new(segment, u64::from(end));
    let mut offset = u64::from(start);
    while offset < u64::from(end) {
        let bytes = scanner.bytes(offset, (u64::from(end) - offset).min(STEP_BYTES as u64) as usize)?;
        if bytes.is_empty() {
            return Err(segment.damaged(offset as u32, "the file ended here while it was read"));
        }
        segment.write(bytes, offset)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

fn zero(segment: &Segment, start: u64, end: u64) -> Result<()> {
    let zeros = vec![0; STEP_BYTES.min((end - start) as usize)];
    let mut offset = start;
    while offset < end {
        let count = (end - offset).min(zeros.len() as u64);
        segment.write(&zeros[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

fn flush(name: &str, file: &dyn VfsFile) -> Result<()> {
    file.sync_data().map_err(|error| Error::io(format_args!("flush {name}"), error))
}
