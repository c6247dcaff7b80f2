//! Segment files: creating them, retiring them and reusing the files of retired segments.
//!
//! Invariants: a file named `log/NNNNNNNNNN.log` has a flushed header; a retired file is renamed to `log/free-N`, and
//! the rename is flushed, before any of its bytes change; its bytes change only when no reader can access it any more,
//! and no backup or branch shares the file.

use std::sync::{Arc, Weak};

use super::commit::PREALLOCATION_BYTES;
use super::frame::FrameFormat;
use super::handles::{Handle, Handles};
use super::segment::{DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, encode_header, no_segment, segment_name};
use super::shared::Shared;
use super::{Level, LogPosition};
use crate::sync::atomic::Ordering;
use crate::vfs::{Vfs, VfsFile};
use crate::{Error, Result};

/// Maximum number of retired files kept for reuse.
pub(super) const FREE_COUNT_MAX: usize = 1;

/// Name of a file that is not a segment yet.
pub(super) const UNFINISHED: &str = "log/unfinished";

/// The file of a retired segment, available for reuse once no older reader holds the segment.
pub(super) struct FreeFile {
    pub(super) name: String,
    pub(super) segment: Arc<Segment>,
}

/// What becomes of the file of a retired segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetiredFile {
    /// It becomes that of a later segment, unless another one waits for that.
    KeptForReuse,
    /// It is given back to the file system.
    Removed,
}

/// A retired segment, which readers may still hold.
#[derive(Debug)]
pub(crate) struct RetiredSegment {
    segment: Weak<Segment>,
    bytes: u64,
}

impl RetiredSegment {
    /// Bytes of the file, if readers hold it; otherwise zero.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.segment.strong_count() > 0 { self.bytes } else { 0 }
    }
}

/// Whether a file has other names, or may have: then its bytes must not change.
pub(super) fn is_shared(file: &dyn VfsFile) -> bool {
    file.is_shared().unwrap_or(true)
}

pub(super) fn free_name(number: u32) -> String {
    format!("{DIRECTORY}/free-{number:010}")
}

pub(super) fn parse_free_name(name: &str) -> Option<u32> {
    name.strip_prefix("free-")?.parse().ok()
}

impl Shared {
    /// Creates the file of segment `number`: flushed, named, empty except for its header.
    pub(super) fn create_segment(&self, number: u32, format: FrameFormat) -> Result<Segment> {
        let free = self.take_free();
        if free.is_some() {
            self.counters.recycled.fetch_add(1, Ordering::Relaxed);
        }
        make_segment(&*self.vfs, &self.handles, (number, format), &self.database_id, self.segment_bytes, free)
    }

    /// A retired file without readers that no backup or branch shares. Shared ones are removed: a backup may have
    /// linked the file until its last reader was gone.
    fn take_free(&self) -> Option<(String, Arc<dyn VfsFile>)> {
        let mut free = self.free.lock();
        loop {
            let index = free.iter_mut().position(|candidate| Arc::get_mut(&mut candidate.segment).is_some())?;
            let FreeFile { name, segment } = free.remove(index);
            let file = segment.handle.file().ok()?;
            if !is_shared(&*file) {
                return Some((name, file));
            }
            // If this fails, the file is removed when the database is opened next.
            self.vfs.remove(&name).ok();
        }
    }

    /// Retires a segment; returns it, so that the caller can tell whether readers still hold it.
    pub(super) fn retire(&self, number: u32, file: RetiredFile) -> Result<RetiredSegment> {
        let _turn = self.retiring.lock();
        let segment = self.remove_from_list(number)?;
        // From here on every mark omits the segment. This mark is flushed before the file loses its name, so that
        // recovery can explain a missing file and can complete the removal of one that still exists.
        let mark = self.append_mark(true)?;
        self.commit(mark, Level::Flushed)?;
        let is_wanted = file == RetiredFile::KeptForReuse && self.free.lock().len() < FREE_COUNT_MAX;
        let freed = release_file(&*self.vfs, &segment, is_wanted, self.segment_bytes)?;
        sync_names(&*self.vfs).map_err(|error| self.poison(&mut self.state.lock(), error))?;
        self.free.lock().extend(freed);
        let bytes = segment.length()?;
        Ok(RetiredSegment { segment: Arc::downgrade(&segment), bytes })
    }

    /// Removes the files that are kept for reuse. Readers of their segments keep them open.
    pub(super) fn remove_free(&self) -> Result<()> {
        let free = std::mem::take(&mut *self.free.lock());
        if free.is_empty() {
            return Ok(());
        }
        for FreeFile { name, .. } in &free {
            self.vfs.remove(name).map_err(|error| Error::io(format_args!("remove {name}"), error))?;
        }
        sync_names(&*self.vfs)
    }

    /// Bytes of all files of the log, with those that are kept for reuse.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let list = self.list();
        let free: Vec<_> = self.free.lock().iter().map(|file| Arc::clone(&file.segment)).collect();
        list.segments.iter().chain(&free).map(|segment| segment.length()).sum()
    }

    /// Bytes of the active segment's file beyond what is used and what is allocated for the next writes.
    pub(super) fn unused_bytes(&self) -> Result<u64> {
        let active = self.last_segment();
        Ok(active.length()?.saturating_sub(u64::from(active.used()) + PREALLOCATION_BYTES))
    }

    /// Removes a segment from the newest list.
    fn remove_from_list(&self, number: u32) -> Result<Arc<Segment>> {
        let mut list = self.list.write();
        let segment = Arc::clone(list.find(number).ok_or_else(|| no_segment(number))?);
        if list.segments.last().is_some_and(|last| last.number == number) {
            return Err(Error::invalid(format!("segment {number} is being appended to: it can't be retired")));
        }
        let segments = list.segments.iter().filter(|segment| segment.number != number).cloned().collect();
        *list = list.followed_by(segments);
        Ok(segment)
    }
}

/// Renames a retired segment's file for reuse if `is_wanted`, the file has the usual size, and no backup or branch
/// shares it; removes it otherwise. The directory change is not flushed yet.
pub(super) fn release_file(
    vfs: &dyn Vfs,
    segment: &Arc<Segment>,
    is_wanted: bool,
    segment_bytes: u32,
) -> Result<Option<FreeFile>> {
    let old = segment.name();
    segment.pin()?;
    if !is_wanted || !vfs.is_persistent() || segment.used() > segment_bytes || segment.is_shared() {
        vfs.remove(old).map_err(|error| Error::io(format_args!("remove {old}"), error))?;
        return Ok(None);
    }
    let name = free_name(segment.number);
    vfs.rename(old, &name).map_err(|error| Error::io(format_args!("rename {old} to {name}"), error))?;
    Ok(Some(FreeFile { name, segment: Arc::clone(segment) }))
}

/// Flushes name changes in the log's directory.
pub(super) fn sync_names(vfs: &dyn Vfs) -> Result<()> {
    vfs.sync_dir(DIRECTORY).map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))
}

/// Creates a segment file, new or from a retired one, and flushes the file and its name.
pub(super) fn make_segment(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    (number, format): (u32, FrameFormat),
    database_id: &DatabaseId,
    segment_bytes: u32,
    free: Option<(String, Arc<dyn VfsFile>)>,
) -> Result<Segment> {
    let name = segment_name(number);
    let is_new = free.is_none();
    let (old_name, file) = match free {
        Some(free) => free,
        None => {
            let file = vfs.create(UNFINISHED).map_err(|error| Error::io(format_args!("create {UNFINISHED}"), error))?;
            (UNFINISHED.to_owned(), file)
        }
    };
    let mut bytes = encode_header(format, number, database_id).to_vec();
    if is_new && vfs.is_persistent() {
        bytes.resize(PREALLOCATION_BYTES.min(u64::from(segment_bytes)) as usize, 0);
    }
    file.write_at(&bytes, 0).map_err(|error| Error::io(format_args!("write {old_name}"), error))?;
    file.sync_data().map_err(|error| Error::io(format_args!("flush {old_name}"), error))?;
    vfs.rename(&old_name, &name).map_err(|error| Error::io(format_args!("rename {old_name} to {name}"), error))?;
    sync_names(vfs)?;
    Ok(Segment::new(number, Handle::pinned(handles, name, file), format))
}

/// Position of the first frame of a new log.
pub(super) const FIRST_POSITION: LogPosition = LogPosition::new(1, SEGMENT_HEADER_BYTES);
