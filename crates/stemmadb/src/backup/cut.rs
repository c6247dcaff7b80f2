//! Cutting a copied log at a sequence.

use std::io::Read;
use std::sync::Arc;

use super::transfer::{open_file, write_all};
use crate::layout::record::{Record, records};
use crate::log::{Frame, FrameVisit, read_frames, segment_file_name};
use crate::revision::Sequence;
use crate::vfs::Vfs;
use crate::{Error, Result};

/// The name of a file that is not a segment yet. Opening a database removes it.
const UNFINISHED: &str = "log/unfinished";

/// A segment of a copied log.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedSegment {
    pub(super) number: u32,
    /// The sequence of its first frame, if there is one.
    pub(super) first_sequence: Option<u64>,
}

/// Ends the copied log in `vfs` before the first frame that takes a sequence above `sequence`, and thus after
/// everything that was written before that frame. Returns whether there is one. `segments` are ascending.
///
/// The file of the last segment is replaced, not truncated: it may be shared.
///
/// # Errors
/// `Corrupt` if a frame is damaged; `Unavailable` if a file can't be read or written.
pub(super) fn cut(vfs: &Arc<dyn Vfs>, segments: &[CopiedSegment], sequence: Sequence) -> Result<bool> {
    // The sequences of frames ascend, so earlier segments have no higher ones.
    let is_before = |segment: &CopiedSegment| segment.first_sequence.is_some_and(|first| first <= sequence.get());
    let start = segments.iter().rposition(is_before).unwrap_or(0);
    for (index, segment) in segments.iter().enumerate().skip(start) {
        let mut is_found = false;
        let (offset, _) = read_frames(vfs, segment.number, &mut |frame| {
            is_found = frame.first_sequence > sequence && takes_sequence(&frame)?;
            Ok(if is_found { FrameVisit::Break(()) } else { FrameVisit::Continue(()) })
        })?;
        if !is_found {
            continue;
        }
        for later in &segments[index + 1..] {
            let name = segment_file_name(later.number);
            vfs.remove(&name).map_err(|error| Error::io(format_args!("remove {name}"), error))?;
        }
        let length = u64::from(offset);
        replace_by_copy(vfs, &segment_file_name(segment.number), length)?;
        return Ok(true);
    }
    Ok(false)
}

/// Whether a frame is a transaction. Others only move records or change settings.
fn takes_sequence(frame: &Frame<'_>) -> Result<bool> {
    for record in records(frame) {
        match record?.1 {
            Record::Revision(record) if !record.relocated => return Ok(true),
            Record::Local { relocated: false, .. } => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// Replaces a file by a copy of its first `length` bytes.
fn replace_by_copy(vfs: &Arc<dyn Vfs>, name: &str, length: u64) -> Result<()> {
    let file = vfs.create(UNFINISHED).map_err(|error| Error::io(format_args!("create {UNFINISHED}"), error))?;
    let mut content = open_file(&**vfs, name)?.take(length);
    write_all(&file, name, 0, &mut content, &mut |_| ())?;
    let replaced = file.sync_data().and_then(|()| vfs.rename(UNFINISHED, name)).and_then(|()| vfs.sync_dir("log"));
    replaced.map_err(|error| Error::io(format_args!("cut {name}"), error))
}
