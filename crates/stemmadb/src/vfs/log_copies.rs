//! How much disk space the local copies of logs in stores may take.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::log_storage::FileId;
use super::stored_file::Entry;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A bound on the local copies of logs in stores: [`Options::log_copies`](crate::Options::log_copies). Clones share it,
/// so one can be given to several databases.
///
/// Databases keep copies of what they write to the log and read of it, until all open ones that share a bound have more
/// than its bytes. Then the files that were not used for the longest time are removed, and read again from the store, a
/// MiB at a time, when they are needed. The newest segment of each database (up to 64 MiB) always stays, and copies of
/// databases that are closed do not count.
///
/// ```
/// use stemmadb::log_storage::LogCopies;
///
/// let copies = LogCopies::up_to(10 << 30);
/// assert_eq!(copies.bytes(), 0);
/// ```
#[derive(Clone)]
pub struct LogCopies(Arc<State>);

struct State {
    bytes_max: u64,
    bytes: AtomicU64,
    /// The bytes that the last removal left; 0 if some were removed since.
    left: AtomicU64,
    /// Counts the uses of files.
    clock: AtomicU64,
    files: Mutex<HashMap<FileId, Weak<Entry>>>,
    /// Held by the thread that removes copies.
    removing: Mutex<()>,
}

impl LogCopies {
    /// Up to this many bytes.
    #[must_use]
    pub fn up_to(bytes: u64) -> Self {
        LogCopies(Arc::new(State {
            bytes_max: bytes,
            bytes: 0.into(),
            left: 0.into(),
            clock: 0.into(),
            files: Mutex::default(),
            removing: Mutex::default(),
        }))
    }

    /// The bytes that the copies of open databases have now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Acquire)
    }

    /// A time that is later than all before.
    pub(super) fn now(&self) -> u64 {
        self.0.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// The copy of a file has `after` bytes instead of `before`.
    pub(super) fn count(&self, file: FileId, entry: &Weak<Entry>, before: u64, after: u64) {
        match after >= before {
            true => self.0.bytes.fetch_add(after - before, Ordering::AcqRel),
            false => {
                self.0.left.store(0, Ordering::Release);
                self.0.bytes.fetch_sub(before - after, Ordering::AcqRel)
            }
        };
        if before == 0 && after > 0 {
            self.0.files.lock().insert(file, entry.clone());
        } else if before > 0 && after == 0 {
            self.0.files.lock().remove(&file);
        }
    }

    /// Removes copies until the rest has at most the bytes allowed, or cannot be removed now.
    pub(super) fn make_room(&self) {
        // What could not be removed the last time is not looked at again until there is more.
        if self.bytes() <= self.0.bytes_max.max(self.0.left.load(Ordering::Acquire)) {
            return;
        }
        // Another thread that removes copies removes enough.
        let Some(_turn) = self.0.removing.try_lock() else { return };
        let mut files: Vec<Arc<Entry>> = self.0.files.lock().values().filter_map(Weak::upgrade).collect();
        files.sort_by_cached_key(|file| file.last_used());
        for file in files {
            if self.bytes() <= self.0.bytes_max {
                return;
            }
            // A copy that can't be removed is still correct.
            file.remove_copy().ok();
        }
        self.0.left.store(self.bytes(), Ordering::Release);
    }
}

impl std::fmt::Debug for LogCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogCopies({} of {} bytes)", self.bytes(), self.0.bytes_max)
    }
}
