//! Cutting a copied log at a sequence.

use std::io::Read;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::manifest::Manifest;
use super::transfer::{open_file, write_all};
use crate::layout::record::{Record, records};
use crate::log::{Frame, FrameVisit, HistoryInfo, read_frames, segment_file_name};
use crate::revision::Sequence;
use crate::vfs::Vfs;
use crate::{Error, Result};

/// The name of a file that is not a segment yet. Opening a database removes it.
const UNFINISHED: &str = "log/unfinished";

/// A segment of a copied log.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedSegment {
    pub(super) number: u32,
    /// The sequence and the commit time of its first frame, if there is one.
    pub(super) first: Option<(u64, u64)>,
}

/// Where a log is cut: before the first transaction that is later than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutAt {
    Sequence(Sequence),
    /// Microseconds since 1970.
    Time(u64),
}

impl CutAt {
    pub(super) fn of_time(time: SystemTime) -> Self {
        CutAt::Time(time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64))
    }

    /// Whether something with this sequence and commit time is later.
    pub(super) fn is_before(self, sequence: u64, time_us: u64) -> bool {
        match self {
            CutAt::Sequence(at) => sequence > at.get(),
            CutAt::Time(at_us) => time_us > at_us,
        }
    }
}

impl CutAt {
    /// Compares with the end of a backup: greater if the backup ends before.
    pub(super) fn compare(self, manifest: &Manifest) -> std::cmp::Ordering {
        match self {
            CutAt::Sequence(at) => at.get().cmp(&manifest.last_sequence),
            CutAt::Time(at_us) => at_us.cmp(&manifest.last_time_us),
        }
    }

    /// Whether the history of a segment was written later. Then the cut log has the segment itself.
    pub(super) fn is_before_history(self, info: &HistoryInfo) -> bool {
        self.is_before(info.until.sequence.get(), info.until.time_us)
    }
}

impl std::fmt::Display for CutAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CutAt::Sequence(sequence) => write!(f, "sequence {}", sequence.get()),
            CutAt::Time(time_us) => write!(f, "the time {time_us} µs since 1970"),
        }
    }
}

/// Ends the copied log in `vfs` before the first transaction that is later than `at`, and thus after everything that
/// was written before it. Returns whether there is one. `segments` are ascending.
///
/// The file of the last segment is replaced, not truncated: it may be shared.
///
/// # Errors
/// `Corrupt` if a frame is damaged; `Unavailable` if a file can't be read or written.
pub(super) fn cut(vfs: &Arc<dyn Vfs>, segments: &[CopiedSegment], at: CutAt) -> Result<bool> {
    // Sequences and times of frames ascend, so earlier segments have no later ones.
    let begins_before =
        |segment: &CopiedSegment| segment.first.is_some_and(|(first, time_us)| !at.is_before(first, time_us));
    let start = segments.iter().rposition(begins_before).unwrap_or(0);
    for (index, segment) in segments.iter().enumerate().skip(start) {
        let mut is_found = false;
        let (offset, _) = read_frames(vfs, segment.number, &mut |frame| {
            is_found = at.is_before(frame.first_sequence.get(), frame.time_us) && takes_sequence(&frame)?;
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
