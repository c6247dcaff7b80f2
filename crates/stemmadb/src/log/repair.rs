//! Putting right what a crash left of the log, so that frames can be appended to it.
//!
//! First the bytes of a torn end are copied to `log/torn-SEGMENT-OFFSET` and the copy is flushed. Then they are
//! zeroed, so that no frame among them comes to life behind later ones; what no frame proves to be durable is written again, as
//! it is, and flushed: after a failed flush, or a killed process, the system may hold as clean what the disk does not have.

use std::sync::Arc;

use super::frame::FRAME_HEADER_BYTES;
use super::frame::Seed;
use super::handles::{Handle, Handles};
use super::recovery::{Survey, Walked};
use super::retire::{
    FIRST, FREE_COUNT_MAX, Free, UNFINISHED, free_name, make_segment, parse_free_name, sync_names, unname,
};
use super::scan::Scanner;
use super::segment::{DIRECTORY, DatabaseId, Segment};
use super::vfs::{Vfs, VfsFile};
use crate::{Error, Result};

/// So many torn ends are kept.
const TORN_COUNT_MAX: usize = 4;

/// Of a torn end so much is kept.
const TORN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Behind the last frame header recognised, so much is kept of what is not zero.
const TORN_BYTES_UNRECOGNISED: u64 = 64 * 1024;

const STEP_BYTES: usize = 256 * 1024;

/// A log that can be appended to.
pub(super) struct Mended {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) free: Vec<Free>,
    /// Whether the last frame is a mark, and nothing was behind it.
    pub(super) is_marked: bool,
}

/// Makes the log one that can be appended to. Does the same again when interrupted.
pub(super) fn mend(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    survey: &Survey,
    database_id: &DatabaseId,
    segment_bytes: u32,
) -> Result<Mended> {
    let mut free = clear_leftovers(vfs, handles, &survey.names, Seed::of(database_id))?;
    let mut is_marked = false;
    if let (Some(last), Some(walked)) = (survey.segments.last(), &survey.last) {
        last.pin()?;
        let was_torn = mend_last(vfs, &survey.names, last, walked)?;
        is_marked = walked.is_marked && !walked.is_sealed && !was_torn;
    }
    // Only now is the mark that says what was retired known to be durable.
    let mut segments = finish_retirements(vfs, survey, segment_bytes, &mut free)?;
    for segment in segments.iter().rev().skip(1) {
        shorten(segment)?;
    }
    if survey.last.as_ref().is_none_or(|walked| walked.is_sealed) {
        let number = segments.last().map_or(FIRST.segment(), |segment| segment.number + 1);
        if let Some(sealed) = segments.last() {
            sealed.handle.unpin();
        }
        segments.push(Arc::new(make_segment(vfs, handles, number, database_id, segment_bytes, None)?));
    }
    Ok(Mended { segments, free, is_marked })
}

/// Removes what an interrupted act left, and takes retired files for reuse.
fn clear_leftovers(vfs: &dyn Vfs, handles: &Arc<Handles>, names: &[String], seed: Seed) -> Result<Vec<Free>> {
    let mut free = Vec::new();
    for name in names {
        let path = format!("{DIRECTORY}/{name}");
        let is_free = parse_free_name(name).is_some_and(|number| free_name(number) == path);
        if path == UNFINISHED || is_free && free.len() >= FREE_COUNT_MAX {
            vfs.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), error))?;
        } else if is_free {
            let file = vfs.open(&path).map_err(|error| Error::io(format_args!("open {path}"), error))?;
            let handle = Handle::pinned(handles, path.clone(), file);
            free.push(Free { segment: Arc::new(Segment::new(0, handle, seed)), name: path });
        }
    }
    Ok(free)
}

/// Takes out the segments that the last mark leaves out: their retirement was decided and flushed.
fn finish_retirements(
    vfs: &dyn Vfs,
    survey: &Survey,
    segment_bytes: u32,
    free: &mut Vec<Free>,
) -> Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::with_capacity(survey.segments.len() + 1);
    for segment in &survey.segments {
        if survey.marked.as_ref().is_none_or(|marked| marked.contains(segment.number)) {
            segments.push(Arc::clone(segment));
        } else {
            free.extend(unname(vfs, segment, free.len() < FREE_COUNT_MAX, segment_bytes)?);
            sync_names(vfs)?;
        }
    }
    Ok(segments)
}

/// Cuts what a sealed segment's file has beyond the seal: then opening finds the seal at once.
fn shorten(segment: &Segment) -> Result<()> {
    let sealed = u64::from(segment.used() + FRAME_HEADER_BYTES);
    if segment.length()? <= sealed {
        return Ok(());
    }
    segment.shorten(sealed)
}

/// Makes the last segment durable, and its end, if it is not sealed, one that frames can follow. Returns whether it was torn: then
/// a mark must follow, so that the next torn end lies elsewhere and is kept, too.
fn mend_last(vfs: &dyn Vfs, names: &[String], segment: &Segment, walked: &Walked) -> Result<bool> {
    if walked.is_sealed {
        rewrite(segment, walked.proven, walked.end + FRAME_HEADER_BYTES)?;
        segment.flush()?;
        shorten(segment)?;
        return Ok(false);
    }
    let end = u64::from(walked.end);
    let torn = if walked.recognised > end || !walked.is_marked {
        torn_bytes(segment, end, walked.recognised)?
    } else {
        Vec::new()
    };
    if !torn.is_empty() {
        keep_torn(vfs, names, segment, walked.end, &torn)?;
    }
    let whole = end - u64::from(unwritten_padding(segment, walked)?);
    zero(segment, whole, walked.recognised.max(end + torn.len() as u64))?;
    rewrite(segment, walked.proven, walked.end)?;
    segment.flush()?;
    Ok(!torn.is_empty())
}

/// The padding of the last frame, if its write was cut short within it: then what was there before is there still.
fn unwritten_padding(segment: &Segment, walked: &Walked) -> Result<u32> {
    let mut scanner = Scanner::new(segment, u64::from(walked.end));
    let bytes = scanner.bytes(u64::from(walked.end - walked.padding), walked.padding as usize)?;
    Ok(if bytes.iter().all(|&byte| byte == 0) { 0 } else { walked.padding })
}

/// The bytes behind the end that are worth keeping, up to the last that is not zero.
fn torn_bytes(segment: &Segment, end: u64, recognised: u64) -> Result<Vec<u8>> {
    let until = recognised.max(end + TORN_BYTES_UNRECOGNISED).min(end + TORN_BYTES_MAX);
    let mut scanner = Scanner::new(segment, segment.length()?);
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
    sync_names(vfs)
}

/// Writes the bytes from `start` to `end` again, as they are.
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
