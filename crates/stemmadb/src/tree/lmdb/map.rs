//! Read-only memory mapping of the tree's file, in addition to LMDB's own mapping of the same pages.
//!
//! Like LMDB, it maps much more than the file's length, so that the file can grow within the mapping.

use std::ffi::c_void;
use std::fs::File;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Error, Result};

/// A mapping of a file from its start.
pub(super) struct Map {
    start: *mut c_void,
    len: usize,
}

// SAFETY: the memory is read-only, and unmapped by the one owner.
#[expect(unsafe_code, reason = "a read-only mapping belongs to no thread")]
unsafe impl Send for Map {}

// SAFETY: as above.
#[expect(unsafe_code, reason = "a read-only mapping belongs to no thread")]
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of the file, which may be shorter.
    #[expect(unsafe_code, reason = "mapping a file is unsafe by nature")]
    pub(super) fn new(file: &File, len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the system's choice; it touches no memory of ours.
        let mapped = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let start = mapped.map_err(|error| Error::io("map tree/data.mdb", error.into()))?;
        Ok(Map { start, len })
    }

    /// The `len` bytes at `at`, if they are within the mapping.
    ///
    /// # Safety
    /// The caller guarantees that the file is at least that long and that nobody writes to these bytes while they are
    /// borrowed.
    #[expect(unsafe_code, reason = "the only function that turns mapped memory into a slice")]
    #[inline]
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self`; the caller guarantees the rest.
        Some(unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().add(at), len) })
    }
}

impl Drop for Map {
    #[expect(unsafe_code, reason = "a mapping must be unmapped")]
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length; no slice of it outlives `self`.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
    }
}
