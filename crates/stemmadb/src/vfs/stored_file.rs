//! A file of a log storage, with a local copy of what was written and read.
//!
//! Invariants: the local copy has the bytes of its `present` ranges, and everything that is not in the store yet. Bytes
//! in the store never change. A marker exists only while the copy has all bytes.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::extents::Extents;
use super::log_copies::LogCopies;
use super::log_storage::{FileId, FileState, LogStorage, StoredFile};
use super::{Vfs, VfsFile, create_anew, read_exact_at, read_whole};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};

/// The directory of the local copies.
pub(super) const COPIES: &str = "cache";

/// What the name of a copy's marker ends with.
pub(super) const MARKER: &str = ".complete";

/// Bytes that are fetched at once.
const FETCH_BYTES: u64 = if cfg!(test) { 4 << 10 } else { 1 << 20 };

/// Where files are.
pub(super) struct Places {
    pub(super) local: Arc<dyn Vfs>,
    pub(super) storage: Arc<dyn LogStorage>,
    /// The bound on local copies, if there is one.
    pub(super) copies: Option<LogCopies>,
}

/// A file of the log.
pub(super) struct Entry {
    pub(super) id: FileId,
    places: Arc<Places>,
    this: Weak<Entry>,
    state: Mutex<EntryState>,
    /// Whether the local copy has all bytes, and nothing will be added.
    is_copied: AtomicBool,
    /// Held by the thread that passes bytes to the store.
    flushing: Mutex<()>,
    /// The open local copy.
    copy: Mutex<Weak<dyn VfsFile>>,
    /// Held while bytes that are present are relied upon; exclusively to remove them.
    using: RwLock<()>,
    last_used: AtomicU64,
}

struct EntryState {
    name: String,
    state: FileState,
    length: u64,
    /// Bytes that the store has.
    stored: u64,
    /// Bytes that the local copy has.
    present: Extents,
    /// How many of them the bound on local copies has counted.
    counted: u64,
    /// Whether a file that is written once was written since it was stored.
    is_changed: bool,
}

impl Entry {
    /// A file of the store. `is_copied`: the local copy is complete.
    pub(super) fn found(places: &Arc<Places>, file: StoredFile, is_copied: bool) -> Arc<Self> {
        let StoredFile { name, id, bytes, state } = file;
        let mut present = Extents::default();
        present.add(0..if is_copied { bytes } else { 0 });
        let state = EntryState { name, state, length: bytes, stored: bytes, present, counted: 0, is_changed: false };
        let entry = Self::with_state(places, id, state, is_copied);
        entry.count(&mut entry.state.lock());
        entry
    }

    /// A new, empty file.
    pub(super) fn new(places: &Arc<Places>, name: &str, state: FileState) -> Arc<Self> {
        let (name, present) = (name.to_owned(), Extents::default());
        let state = EntryState { name, state, length: 0, stored: 0, present, counted: 0, is_changed: true };
        Self::with_state(places, FileId::new(), state, false)
    }

    fn with_state(places: &Arc<Places>, id: FileId, state: EntryState, is_copied: bool) -> Arc<Self> {
        Arc::new_cyclic(|this| Entry {
            id,
            places: places.clone(),
            this: this.clone(),
            state: Mutex::new(state),
            is_copied: is_copied.into(),
            flushing: Mutex::default(),
            copy: Mutex::new(Weak::<NoFile>::new()),
            using: RwLock::default(),
            last_used: 0.into(),
        })
    }

    /// Tells the bound on local copies how many bytes this one has.
    fn count(&self, state: &mut EntryState) {
        let Some(copies) = &self.places.copies else { return };
        let bytes = state.present.bytes();
        copies.count(self.id, &self.this, state.counted, bytes);
        state.counted = bytes;
    }

    /// When the local copy was used last, by the clock of the bound on local copies.
    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Acquire)
    }

    /// Removes the local copy's bytes, if the store has them and nobody uses them now.
    pub(super) fn remove_copy(&self) -> io::Result<()> {
        let local = &*self.places.local;
        let (Some(_alone), Some(_turn)) = (self.using.try_write(), self.flushing.try_lock()) else { return Ok(()) };
        let is_finished = self.state.lock().state != FileState::Open && self.is_stored();
        let copy = self.copy()?;
        // With another name, it takes no space of its own.
        if !is_finished || copy.is_shared()? {
            return Ok(());
        }
        if self.is_copied.swap(false, Ordering::AcqRel) && local.is_persistent() {
            remove_if_present(local, &marker_name(self.id))?;
            local.sync_dir(COPIES)?;
        }
        {
            let mut state = self.state.lock();
            state.present = Extents::default();
            self.count(&mut state);
        }
        copy.set_len(0)
    }

    pub(super) fn name(&self) -> String {
        self.state.lock().name.clone()
    }

    pub(super) fn rename(&self, name: &str) {
        name.clone_into(&mut self.state.lock().name);
    }

    /// The file as the store is to know it.
    pub(super) fn stored(&self) -> StoredFile {
        let state = self.state.lock();
        // The store itself keeps the length of an open file.
        let bytes = if state.state == FileState::Open { 0 } else { state.stored };
        StoredFile { name: state.name.clone(), id: self.id, bytes, state: state.state }
    }

    /// The file, with all bytes that the store may have of it.
    pub(super) fn to_delete(&self) -> StoredFile {
        let bytes = self.length();
        StoredFile { bytes, ..self.stored() }
    }

    /// Nothing is appended any more.
    pub(super) fn seal(&self) {
        let mut state = self.state.lock();
        if state.state == FileState::Open {
            state.state = FileState::Sealed;
        }
    }

    /// Takes note of what the owner of the log has appended to a file since. The length of a file never shrinks.
    pub(super) fn grow(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.length = state.length.max(bytes);
        state.stored = state.length;
    }

    /// Copies all bytes that the store has.
    pub(super) fn fetch_all(&self) -> io::Result<()> {
        if self.is_copied.load(Ordering::Acquire) {
            return Ok(());
        }
        let _use = self.using.read();
        let copy = self.copy()?;
        self.fetch(&*copy, 0..self.length())?;
        self.keep_copy(&*copy)
    }

    /// Gives the complete local copy a second name, or copies it if that is not possible.
    pub(super) fn copy_to(&self, name: &str) -> io::Result<()> {
        let local = &*self.places.local;
        let _use = self.using.read();
        self.fetch_all()?;
        if local.link_from(local, &copy_name(self.id), name)? {
            return Ok(());
        }
        let bytes = read_whole(&*self.copy()?)?;
        let file = create_anew(local, name)?;
        file.write_at(&bytes, 0)?;
        file.sync_data()
    }

    /// Whether the store has no bytes of it.
    pub(super) fn is_new(&self) -> bool {
        self.state.lock().stored == 0
    }

    pub(super) fn is_whole(&self) -> bool {
        self.state.lock().state == FileState::Whole
    }

    /// Whether everything that was written is in the store.
    pub(super) fn is_stored(&self) -> bool {
        let state = self.state.lock();
        state.stored == state.length && !state.is_changed
    }

    /// The local copy, opened if necessary.
    pub(super) fn copy(&self) -> io::Result<Arc<dyn VfsFile>> {
        let local = &*self.places.local;
        let mut copy = self.copy.lock();
        if let Some(open) = copy.upgrade() {
            return Ok(open);
        }
        let name = copy_name(self.id);
        let opened = match local.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => local.create(&name)?,
            opened => opened?,
        };
        *copy = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Makes a local file that never changes the local copy; returns false if it can't be linked.
    pub(super) fn link(&self, from: &str) -> io::Result<bool> {
        let local = &*self.places.local;
        match local.link_from(local, from, &copy_name(self.id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Ok(true) => {}
            other => return other,
        }
        let length = self.copy()?.len()?;
        let mut state = self.state.lock();
        state.present.add(0..length);
        state.length = length;
        Ok(true)
    }

    pub(super) fn length(&self) -> u64 {
        self.state.lock().length
    }

    pub(super) fn read_at(&self, copy: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.length().saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.note_use();
        let _use = self.using.read();
        if !self.is_copied.load(Ordering::Acquire) {
            self.fetch(copy, offset..offset + count as u64)?;
        }
        read_exact_at(copy, &mut buffer[..count], offset)?;
        Ok(count)
    }

    /// Remembers that the local copy is used now.
    fn note_use(&self) {
        if let Some(copies) = &self.places.copies {
            self.last_used.store(copies.now(), Ordering::Release);
        }
    }

    /// Removes other copies if all together have too many bytes.
    pub(super) fn make_room(&self) {
        if let Some(copies) = &self.places.copies {
            copies.make_room();
        }
    }

    /// Copies a range from the store, unless it is there already.
    fn fetch(&self, copy: &dyn VfsFile, range: Range<u64>) -> io::Result<()> {
        let mut wanted = range;
        loop {
            let missing = {
                let state = self.state.lock();
                if state.present.first_missing(&wanted).is_none() {
                    return Ok(());
                }
                wanted.start -= wanted.start % FETCH_BYTES;
                wanted.end = wanted.end.next_multiple_of(FETCH_BYTES).min(state.stored).max(wanted.end);
                state.present.first_missing(&wanted)
            };
            let Some(missing) = missing else { return Ok(()) };
            let mut bytes = vec![0; (missing.end - missing.start).min(FETCH_BYTES) as usize];
            if self.places.storage.read(self.id, missing.start, &mut bytes)? < bytes.len() {
                let what = format!("the store has fewer bytes of {} than it had", self.name());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            copy.write_at(&bytes, missing.start)?;
            let mut state = self.state.lock();
            state.present.add(missing.start..missing.start + bytes.len() as u64);
            self.count(&mut state);
        }
    }

    pub(super) fn write_at(&self, copy: &dyn VfsFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        self.note_use();
        let _use = self.using.read();
        let (stored, is_whole) = {
            let state = self.state.lock();
            (state.stored, state.state == FileState::Whole)
        };
        let mut skipped = 0;
        if is_whole {
            self.fetch(copy, 0..stored)?;
        } else if offset < stored {
            // Recovery writes again what it is not sure about.
            skipped = (stored - offset).min(bytes.len() as u64) as usize;
            let mut known = vec![0; skipped];
            self.read_at(copy, &mut known, offset)?;
            if known != bytes[..skipped] {
                return Err(io::Error::other(format!("{} can't be changed at offset {offset}", self.name())));
            }
        }
        copy.write_at(&bytes[skipped..], offset + skipped as u64)?;
        let mut state = self.state.lock();
        // Gaps read as zeros.
        let start = state.length.min(offset + skipped as u64);
        state.present.add(start..end);
        self.count(&mut state);
        state.length = state.length.max(end);
        state.is_changed = true;
        Ok(())
    }

    pub(super) fn set_len(&self, copy: &dyn VfsFile, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.state == FileState::Whole {
            copy.set_len(bytes)?;
            let length = state.length;
            state.present.add(length.min(bytes)..bytes);
            self.count(&mut state);
            (state.length, state.is_changed) = (bytes, true);
            return Ok(());
        }
        match bytes == state.length {
            true => Ok(()),
            false => Err(io::Error::other(format!("the length of {} can't be changed", state.name))),
        }
    }

    /// Passes to the store what it lacks.
    pub(super) fn store(&self, copy: &dyn VfsFile) -> io::Result<()> {
        let _turn = self.flushing.lock();
        let (is_whole, stored, length) = {
            let mut state = self.state.lock();
            let is_changed = std::mem::take(&mut state.is_changed);
            if !is_changed {
                return Ok(());
            }
            (state.state == FileState::Whole, state.stored, state.length)
        };
        let passed = match is_whole {
            true => self.store_whole(copy, length),
            false => self.append(copy, stored..length),
        };
        let mut state = self.state.lock();
        match passed {
            Ok(()) => state.stored = length,
            Err(_) => state.is_changed = true,
        }
        passed
    }

    fn append(&self, copy: &dyn VfsFile, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        read_exact_at(copy, &mut bytes, range.start)?;
        self.places.storage.append(self.id, range.start, &bytes)
    }

    fn store_whole(&self, copy: &dyn VfsFile, length: u64) -> io::Result<()> {
        let mut buffer = vec![0; FETCH_BYTES.min(length) as usize];
        let mut offset = 0;
        while offset < length {
            let count = (length - offset).min(FETCH_BYTES) as usize;
            read_exact_at(copy, &mut buffer[..count], offset)?;
            self.places.storage.write(self.id, offset, &buffer[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    /// Marks the local copy as complete, if it is, so that it is used again after the database is reopened.
    pub(super) fn keep_copy(&self, copy: &dyn VfsFile) -> io::Result<()> {
        let local = &*self.places.local;
        let _use = self.using.read();
        let is_complete = {
            let state = self.state.lock();
            state.state != FileState::Open && state.present.first_missing(&(0..state.length)).is_none()
        };
        if !is_complete || !self.is_stored() || self.is_copied.swap(true, Ordering::AcqRel) || !local.is_persistent() {
            return Ok(());
        }
        copy.sync_data()?;
        local.sync_dir(COPIES)?;
        create_anew(local, &marker_name(self.id))?;
        Ok(())
    }

    /// Deletes the bytes, in the store and here.
    pub(super) fn delete(&self) -> io::Result<()> {
        self.places.storage.delete(&self.to_delete())?;
        self.delete_copy()
    }

    /// Deletes the local copy.
    pub(super) fn delete_copy(&self) -> io::Result<()> {
        remove_if_present(&*self.places.local, &marker_name(self.id))?;
        remove_if_present(&*self.places.local, &copy_name(self.id))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.present = Extents::default();
        self.count(&mut state);
    }
}

fn remove_if_present(local: &dyn Vfs, name: &str) -> io::Result<()> {
    match local.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The name of the local copy of a file.
pub(super) fn copy_name(id: FileId) -> String {
    format!("{COPIES}/{}", id.0.simple())
}

/// The name of an empty file that exists if the local copy is complete.
pub(super) fn marker_name(id: FileId) -> String {
    format!("{COPIES}/{}{MARKER}", id.0.simple())
}

/// Stands for a file that is not open.
struct NoFile;

impl VfsFile for NoFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
}
