//! Segments come and go: making the file of a new one, reusing the file of a retired one.
//!
//! Invariants: the name `log/NNNNNNNNNN.log` belongs to a file whose header is flushed; a retired file gets a name of its own
//! (`log/free-N`), flushed, before a byte of it changes; it is changed only when nobody can read it any more.

use std::sync::Arc;

use super::commit::STEP_BYTES;
use super::frame::Seed;
use super::handles::{Handle, Handles};
use super::segment::{DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, encode_header, no_segment, segment_name};
use super::shared::Shared;
use super::vfs::{Vfs, VfsFile};
use super::{Level, LogPosition};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// So many retired files are kept for reuse.
pub(super) const FREE_COUNT_MAX: usize = 2;

/// The name of a file before it is a segment.
pub(super) const UNFINISHED: &str = "log/unfinished";

/// A retired segment's file, waiting for reuse. Readers from before may hold the segment still.
pub(super) struct Free {
    pub(super) name: String,
    pub(super) segment: Arc<Segment>,
}

pub(super) fn free_name(number: u32) -> String {
    format!("{DIRECTORY}/free-{number:010}")
}

pub(super) fn parse_free_name(name: &str) -> Option<u32> {
    name.strip_prefix("free-")?.parse().ok()
}

impl Shared {
    /// The file of segment `number`: flushed, named, empty but for its header.
    pub(super) fn create_segment(&self, number: u32) -> Result<Segment> {
        let free = self.take_free();
        if free.is_some() {
            self.counters.recycled.fetch_add(1, Ordering::Relaxed);
        }
        make_segment(&*self.vfs, &self.handles, number, &self.database_id, self.segment_bytes, free)
    }

    /// A retired file that nobody reads.
    fn take_free(&self) -> Option<(String, Arc<dyn VfsFile>)> {
        let mut free = self.free.lock();
        let index = free.iter_mut().position(|candidate| Arc::get_mut(&mut candidate.segment).is_some())?;
        let Free { name, segment } = free.remove(index);
        let file = segment.handle.file().ok()?;
        Some((name, file))
    }

    pub(super) fn retire(&self, number: u32) -> Result<()> {
        let _turn = self.retiring.lock();
        let segment = self.forget(number)?;
        // From here on every mark leaves it out; this one is flushed before the file loses its name, so that whoever finds the
        // file gone knows why, and whoever finds it there may finish the work.
        let mark = self.append_mark(true)?;
        self.commit(mark, Level::Flushed)?;
        let freed = unname(&*self.vfs, &segment, self.free.lock().len() < FREE_COUNT_MAX, self.segment_bytes)?;
        sync_names(&*self.vfs).map_err(|error| self.poison(&mut self.state.lock(), error))?;
        self.free.lock().extend(freed);
        Ok(())
    }

    /// Takes a segment out of the newest list.
    fn forget(&self, number: u32) -> Result<Arc<Segment>> {
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

/// Takes its name from a retired segment's file: it is kept under another if it is wanted and of the usual size, or removed.
/// The change is not flushed yet.
pub(super) fn unname(
    vfs: &dyn Vfs,
    segment: &Arc<Segment>,
    is_wanted: bool,
    segment_bytes: u32,
) -> Result<Option<Free>> {
    let old = segment.name();
    segment.pin()?;
    if !is_wanted || !vfs.is_persistent() || segment.used() > segment_bytes {
        vfs.remove(old).map_err(|error| Error::io(format_args!("remove {old}"), error))?;
        return Ok(None);
    }
    let name = free_name(segment.number);
    vfs.rename(old, &name).map_err(|error| Error::io(format_args!("rename {old} to {name}"), error))?;
    Ok(Some(Free { name, segment: Arc::clone(segment) }))
}

/// Makes changes of names survive.
pub(super) fn sync_names(vfs: &dyn Vfs) -> Result<()> {
    vfs.sync_dir(DIRECTORY).map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))
}

/// Makes a segment's file, from a retired one or anew, and flushes it and its name.
pub(super) fn make_segment(
    vfs: &dyn Vfs,
    handles: &Arc<Handles>,
    number: u32,
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
    let mut bytes = encode_header(number, database_id).to_vec();
    if is_new && vfs.is_persistent() {
        bytes.resize(STEP_BYTES.min(u64::from(segment_bytes)) as usize, 0);
    }
    file.write_at(&bytes, 0).map_err(|error| Error::io(format_args!("write {old_name}"), error))?;
    file.sync_data().map_err(|error| Error::io(format_args!("flush {old_name}"), error))?;
    vfs.rename(&old_name, &name).map_err(|error| Error::io(format_args!("rename {old_name} to {name}"), error))?;
    sync_names(vfs)?;
    Ok(Segment::new(number, Handle::pinned(handles, name, file), Seed::of(database_id)))
}

/// Where a new log begins.
pub(super) const FIRST: LogPosition = LogPosition::new(1, SEGMENT_HEADER_BYTES);
