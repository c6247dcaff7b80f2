//! Segments come and go: making the file of a new one, reusing the file of a retired one.
//!
//! Invariants: the name `log/NNNNNNNNNN.log` belongs to a file whose header is flushed; a retired file gets a name of its own
//! (`log/free-N`), flushed, before a byte of it changes; it is changed only when nobody can read it any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commit::STEP_BYTES;
use super::segment::{DIRECTORY, DatabaseId, SEGMENT_HEADER_BYTES, Segment, encode_header, find, segment_name};
use super::vfs::{Vfs, VfsFile};
use super::{LogPosition, Shared};
use crate::{Error, Result};

/// So many retired files are kept for reuse.
const FREE_COUNT_MAX: usize = 2;

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
        make_segment(&*self.vfs, number, &self.database_id, self.segment_bytes, free)
    }

    /// A retired file that nobody reads.
    fn take_free(&self) -> Option<(String, Arc<dyn VfsFile>)> {
        let mut free = self.free.lock();
        let index = free.iter_mut().position(|candidate| Arc::get_mut(&mut candidate.segment).is_some())?;
        let Free { name, segment } = free.remove(index);
        Some((name, Arc::clone(&segment.file)))
    }

    pub(super) fn retire(&self, number: u32) -> Result<()> {
        // The lock on the free files makes retirements take turns.
        let mut free = self.free.lock();
        let list = Arc::clone(&self.segments.read());
        let segment =
            find(&list, number).ok_or_else(|| Error::not_found(format!("the log has no segment {number}")))?;
        if list.last().is_some_and(|last| last.number == number) {
            return Err(Error::invalid(format!("segment {number} is being appended to: it can't be retired")));
        }
        let keeps = self.vfs.is_persistent() && free.len() < FREE_COUNT_MAX;
        let kept_name = free_name(number);
        if keeps {
            let renamed = self.vfs.rename(&segment.name, &kept_name);
            renamed.map_err(|error| Error::io(format_args!("rename {}", segment.name), error))?;
        } else {
            let removed = self.vfs.remove(&segment.name);
            removed.map_err(|error| Error::io(format_args!("remove {}", segment.name), error))?;
        }
        self.forget(number);
        self.vfs.sync_dir(DIRECTORY).map_err(|error| {
            self.poison(&mut self.state.lock(), Error::io(format_args!("flush directory {DIRECTORY}"), error))
        })?;
        if keeps {
            free.push(Free { name: kept_name, segment: Arc::clone(segment) });
        }
        Ok(())
    }

    /// Takes a segment out of the set that readers start from.
    fn forget(&self, number: u32) {
        let mut segments = self.segments.write();
        let list = segments.iter().filter(|segment| segment.number != number).cloned().collect();
        *segments = Arc::new(list);
    }
}

/// Makes a segment's file, from a retired one or anew, and flushes it and its name.
pub(super) fn make_segment(
    vfs: &dyn Vfs,
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
    vfs.sync_dir(DIRECTORY).map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))?;
    Ok(Segment::new(number, name, file, SEGMENT_HEADER_BYTES))
}

/// Where a new log begins.
pub(super) const FIRST: LogPosition = LogPosition::new(1, SEGMENT_HEADER_BYTES);
