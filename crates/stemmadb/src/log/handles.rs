//! Which files are open? A log may have more segments than a process may have files open.
//!
//! A finished segment's file is opened when it is read, and closed when many others were opened since. *Pinned* files stay open: the active
//! segment's, since only the handle that wrote is sure to hear that a write failed later, and a retired one's, which has no name to be
//! opened by.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use super::vfs::{Vfs, VfsFile};
use crate::sync::{Mutex, RwLock};

/// So many files are open besides the pinned ones. Tests have few files, and close most.
const OPEN_COUNT_MAX: usize = if cfg!(test) { 2 } else { 128 };

/// The files of one log that are open and not pinned, those opened first in front.
pub(super) struct Handles {
    vfs: Arc<dyn Vfs>,
    open: Mutex<VecDeque<Weak<RwLock<Slot>>>>,
}

impl Handles {
    pub(super) fn new(vfs: Arc<dyn Vfs>) -> Arc<Self> {
        Arc::new(Handles { vfs, open: Mutex::default() })
    }

    /// Makes a file that is open one that may be closed, and closes others if too many are.
    fn add(&self, slot: &Arc<RwLock<Slot>>) {
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(slot));
        while open.len() > OPEN_COUNT_MAX {
            let oldest = open.pop_front().and_then(|oldest| oldest.upgrade());
            if let Some(oldest) = oldest {
                oldest.write().close();
            }
        }
    }
}

#[derive(Default)]
struct Slot {
    file: Option<Arc<dyn VfsFile>>,
    is_pinned: bool,
}

impl Slot {
    fn close(&mut self) {
        if !self.is_pinned {
            self.file = None;
        }
    }
}

/// A file that is opened when needed.
pub(super) struct Handle {
    name: String,
    handles: Arc<Handles>,
    slot: Arc<RwLock<Slot>>,
}

impl Handle {
    /// The file `name`, not open yet.
    pub(super) fn closed(handles: &Arc<Handles>, name: String) -> Self {
        Handle { name, handles: Arc::clone(handles), slot: Arc::default() }
    }

    /// A file that is open, and stays so until it is unpinned.
    pub(super) fn pinned(handles: &Arc<Handles>, name: String, file: Arc<dyn VfsFile>) -> Self {
        let slot = Slot { file: Some(file), is_pinned: true };
        Handle { name, handles: Arc::clone(handles), slot: Arc::new(RwLock::new(slot)) }
    }

    /// The name it is opened by.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The file, opened if it was not. Whoever has it can use it, even when it is closed for others.
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

    /// Keeps the file open from now on.
    pub(super) fn pin(&self) -> io::Result<()> {
        let mut slot = self.slot.write();
        if slot.file.is_none() {
            slot.file = Some(self.handles.vfs.open(&self.name)?);
        }
        slot.is_pinned = true;
        Ok(())
    }

    /// From now on the file may be closed, and opened again by its name.
    pub(super) fn unpin(&self) {
        self.slot.write().is_pinned = false;
        self.handles.add(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::super::vfs::{MemoryVfs, Vfs};
    use super::*;

    fn is_open(handle: &Handle) -> bool {
        handle.slot.read().file.is_some()
    }

    #[test]
    fn few_files_are_open_and_pinned_ones_stay_so() {
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
