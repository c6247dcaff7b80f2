//! Files that are kept open between reads, unless the databases of the process have too many files open.
//!
//! The open ones are in a queue of the process, which is used only if there is a limit ([`super::OpenFileLimit`]).
//! While files are scarce, the oldest ones are closed; the next read opens them again.
//!
//! Concurrency: the queue's lock is held while files are closed, never while one is opened. A file that is being read
//! from is closed by its last reader.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::VfsFile;
use super::open_files::{files_are_scarce, is_limited};
use crate::sync::{Mutex, RwLock};

/// The shortest queue that is searched for files which are not open any more.
const QUEUE_SEARCHED_MIN: usize = 1024;

/// The most files that are closed when one is opened.
const CLOSED_AT_ONCE: usize = 8;

/// A file that is opened on demand.
#[derive(Default)]
pub(crate) struct CachedFile(Arc<Slot>);

#[derive(Default)]
struct Slot {
    file: RwLock<Option<Arc<dyn VfsFile>>>,
    is_queued: AtomicBool,
}

/// The open files of all databases, oldest first.
#[derive(Default)]
struct Queue {
    slots: VecDeque<Weak<Slot>>,
    searched_at: usize,
}

fn queue() -> &'static Mutex<Queue> {
    static QUEUE: OnceLock<Mutex<Queue>> = OnceLock::new();
    QUEUE.get_or_init(Mutex::default)
}

impl CachedFile {
    /// Returns the file, opened by `open` if necessary.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn get_or_open(
        &self,
        open: impl FnOnce() -> io::Result<Arc<dyn VfsFile>>,
    ) -> io::Result<Arc<dyn VfsFile>> {
        if let Some(file) = &*self.0.file.read() {
            return Ok(file.clone());
        }
        let file = {
            let mut slot = self.0.file.write();
            if let Some(file) = &*slot {
                return Ok(file.clone());
            }
            slot.insert(open()?).clone()
        };
        if is_limited() {
            queue().lock().add(&self.0);
        }
        Ok(file)
    }

    /// Closes the file; the next read opens it again.
    pub(crate) fn close(&self) {
        *self.0.file.write() = None;
    }
}

impl Queue {
    /// Adds a file that was just opened, and closes the oldest ones while files are scarce.
    fn add(&mut self, slot: &Arc<Slot>) {
        for _ in 0..CLOSED_AT_ONCE {
            if !files_are_scarce() {
                break;
            }
            let Some(oldest) = self.slots.pop_front() else { break };
            if let Some(oldest) = oldest.upgrade() {
                oldest.is_queued.store(false, Ordering::Release);
                // One that is locked is being opened: it is in the queue again soon.
                if let Some(mut file) = oldest.file.try_write() {
                    *file = None;
                }
            }
        }
        if !slot.is_queued.swap(true, Ordering::AcqRel) {
            self.slots.push_back(Arc::downgrade(slot));
        }
        if self.slots.len() > self.searched_at.max(QUEUE_SEARCHED_MIN) {
            self.slots.retain(|slot| slot.strong_count() > 0);
            self.searched_at = 2 * self.slots.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{MemoryVfs, Vfs};

    #[test]
    fn a_closed_file_is_opened_again() {
        let vfs = MemoryVfs::new();
        vfs.create("a").unwrap().write_at(b"x", 0).unwrap();
        let file = CachedFile::default();
        let mut open_count = 0;
        for closes in [false, true, false] {
            let opened = file.get_or_open(|| {
                open_count += 1;
                vfs.open("a")
            });
            assert_eq!(opened.unwrap().len().unwrap(), 1);
            if closes {
                file.close();
            }
        }
        assert_eq!(open_count, 2);
    }
}
