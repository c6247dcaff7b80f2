//! Directory of a tree: where run files are, and which of them the list of runs does not name.
//!
//! A file that a new list no longer names is *retired*: it is deleted once nothing reads it. A file that could not be
//! deleted, or whose first list failed to be written, is deleted after the next change of the list.
//!
//! Concurrency: nothing else is locked under the lock of the retired files.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::cache::BlockCache;
use super::run_file::{FileRecord, file_name};
use crate::sync::Mutex;
use crate::vfs::Vfs;

/// The directory of a tree.
pub(super) struct TreeDirectory {
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) path: String,
    pub(super) cache: BlockCache,
    retired: Mutex<BTreeMap<u64, RetiredFile>>,
}

/// A file that exists and is not listed.
struct RetiredFile {
    byte_count: u64,
    /// Whether it waits for its readers. Otherwise it is deleted after the next change of the list.
    is_read: bool,
}

impl TreeDirectory {
    pub(super) fn new(vfs: Arc<dyn Vfs>, path: &str, cache_bytes: u64) -> Self {
        let cache = BlockCache::new(cache_bytes);
        TreeDirectory { vfs, path: path.to_owned(), cache, retired: Mutex::default() }
    }

    pub(super) fn file_path(&self, number: u64) -> String {
        format!("{}/{}", self.path, file_name(number))
    }

    /// Records that a file is no longer listed, before its last reader can be gone.
    pub(super) fn retire(&self, file: &FileRecord) {
        self.insert(file.number, RetiredFile { byte_count: file.byte_count, is_read: true });
    }

    /// Records that a list with this new file failed to be written: after a crash it may be the newest one, until
    /// another list was written.
    pub(super) fn retire_later(&self, file: &FileRecord) {
        self.insert(file.number, RetiredFile { byte_count: file.byte_count, is_read: false });
    }

    fn insert(&self, number: u64, file: RetiredFile) {
        self.retired.lock().insert(number, file);
    }

    /// Deletes a file that nothing lists and nothing reads.
    pub(super) fn delete(&self, number: u64) {
        let deleted = self.vfs.remove(&self.file_path(number));
        let mut retired = self.retired.lock();
        match deleted {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                retired.entry(number).or_insert(RetiredFile { byte_count: 0, is_read: false }).is_read = false;
            }
            _ => _ = retired.remove(&number),
        }
    }

    /// Deletes the files that only waited for another list to be written.
    pub(super) fn delete_waiting(&self) {
        let retired = self.retired.lock();
        let waiting: Vec<u64> = retired.iter().filter(|(_, file)| !file.is_read).map(|(number, _)| *number).collect();
        drop(retired);
        waiting.into_iter().for_each(|number| self.delete(number));
    }

    /// The numbers of the files that exist and are not listed.
    pub(super) fn retired_numbers(&self) -> Vec<u64> {
        self.retired.lock().keys().copied().collect()
    }

    /// The bytes of the files that exist and are not listed.
    pub(super) fn retired_bytes(&self) -> u64 {
        self.retired.lock().values().map(|file| file.byte_count).sum()
    }
}
