//! Cache of open file handles: a log may have more segments than a process may have open files.
//!
//! The file of a sealed segment is opened on the first read and closed after many others have been opened. *Pinned*
//! files stay open: the active segment's while anything in it is not flushed, because only the handle that wrote is
//! guaranteed to receive a delayed write error, and a retired one's, because it no longer has a name to open it by.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use crate::cipher::Keyring;
use crate::sync::{Mutex, RwLock};
use crate::vfs::{Vfs, VfsFile, files_are_scarce};

/// Maximum number of open files besides pinned ones. Tests use a low limit to exercise closing.
const OPEN_COUNT_MAX: usize = if cfg!(test) { 2 } else { 128 };

/// The same while the databases of this process have too many files open.
const SCARCE_COUNT_MAX: usize = if cfg!(test) { 2 } else { 4 };

/// The unpinned open files of one log, oldest first.
pub(super) struct Handles {
    vfs: Arc<dyn Vfs>,
    open: Mutex<VecDeque<Weak<RwLock<FileSlot>>>>,
}

impl Handles {
    pub(super) fn new(vfs: Arc<dyn Vfs>) -> Arc<Self> {
        Arc::new(Handles { vfs, open: Mutex::default() })
    }

    /// Registers an open file as closable, and closes the oldest files if too many are open.
    fn add(&self, slot: &Arc<RwLock<FileSlot>>) {
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(slot));
        let count_max = if files_are_scarce() { SCARCE_COUNT_MAX } else { OPEN_COUNT_MAX };
        while open.len() > count_max {
            let oldest = open.pop_front().and_then(|oldest| oldest.upgrade());
            if let Some(oldest) = oldest {
                oldest.write().close();
            }
        }
    }
}

#[derive(Default)]
struct FileSlot {
    file: Option<Arc<dyn VfsFile>>,
    is_pinned: bool,
}

impl FileSlot {
    fn close(&mut self) {
        if !self.is_pinned {
            self.file = None;
        }
    }
}

/// A file that is opened on demand.
pub(super) struct Handle {
    name: String,
    handles: Arc<Handles>,
    slot: Arc<RwLock<FileSlot>>,
}

impl Handle {
    /// The file `name`, not yet open.
    pub(super) fn closed(handles: &Arc<Handles>, name: String) -> Self {
        Handle { name, handles: Arc::clone(handles), slot: Arc::default() }
    }

    /// An open file that stays open until it is unpinned.
    pub(super) fn pinned(handles: &Arc<Handles>, name: String, file: Arc<dyn VfsFile>) -> Self {
        let slot = FileSlot { file: Some(file), is_pinned: true };
        Handle { name, handles: Arc::clone(handles), slot: Arc::new(RwLock::new(slot)) }
    }

    /// The keys of the database.
    pub(super) fn keyring(&self) -> Option<&Arc<Keyring>> {
        self.handles.vfs.keyring()
    }

    /// The name of the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The file, opened if necessary. The returned handle stays usable after the cache closes its own.
    pub(super) fn file(&self) -> io::Result<Arc<dyn VfsFile>> {
        if let Some(file) = &self.slot.read().file {
            return Ok(Arc::clone(file));
        }
        let file = {
            let mut slot = self.slot.write();
            if let Some(file) = &slot.file {
                return Ok(Arc::clone(file));
            }
            let file = self.handles.vfs.open(&self.name)?;
            slot.file = Some(Arc::clone(&file));
            file
        };
        self.handles.add(&self.slot);
        Ok(file)
    }

    /// Keeps the file open until it is unpinned.
    pub(super) fn pin(&self) -> io::Result<()> {
        if self.slot.read().is_pinned {
            return Ok(());
        }
        let mut slot = self.slot.write();
        if slot.file.is_none() {
            slot.file = Some(self.handles.vfs.open(&self.name)?);
        }
        slot.is_pinned = true;
        Ok(())
    }

    /// Closes the file, which is opened again when it is next used.
    pub(super) fn close(&self) {
        let mut slot = self.slot.write();
        slot.is_pinned = false;
        slot.close();
    }

    /// Allows the cache to close the file and reopen it by name.
    pub(super) fn unpin(&self) {
        self.slot.write().is_pinned = false;
        self.handles.add(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{MemoryVfs, Vfs};

    fn is_open(handle: &Handle) -> bool {
        handle.slot.read().file.is_some()
    }

    #[test]
    fn open_files_are_limited_and_pinned_files_stay_open() {
        let vfs = Arc::new(MemoryVfs::new());
        let handles = Handles::new(Arc::clone(&vfs) as Arc<dyn Vfs>);
        let handle = |number: usize| {
            vfs.create(&number.to_string()).unwrap();
            Handle::closed(&handles, number.to_string())
        };
        let all: Vec<Handle> = (0..10).map(handle).collect();
        all[1].pin().unwrap();
        for handle in &all {
            handle.file().unwrap();
            handle.file().unwrap();
        }
        let open = |all: &[Handle]| (0..10).filter(|&number| is_open(&all[number])).collect::<Vec<_>>();
        assert_eq!(open(&all), [1, 8, 9]);
        all[1].unpin();
        assert_eq!(open(&all), [1, 9]);
        all[4].file().unwrap().write_at(b"x", 0).unwrap();
        assert_eq!(open(&all), [1, 4]);
        vfs.remove("0").unwrap();
        assert_eq!(all[0].file().err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
