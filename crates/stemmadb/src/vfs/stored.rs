//! The files of a database whose log is in a [`LogStorage`]: its tree is in a local directory, everything else in the
//! store, with local copies of what was written and read.
//!
//! Names are changed in memory, and passed to the store by `sync_dir`, as a disk does. A file gets its first name in
//! the store before its bytes, so that the next owner finds and removes it if it is never finished.
//! The bytes of a file are deleted after the store has taken its last name, once no reader has it open. Those of a
//! segment are kept for a while longer, because replicas may not have read it to its end.
//!
//! A replica changes nothing in the store. It takes over the names that the owner has given ([`StoredVfs::look`]).
//!
//! Locks: `committing`, then `names`, then those of an [`Entry`]; only `committing` is held while the store is called.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::log_copies::LogCopies;
use super::log_storage::{FileState, LogStorage, NameChange, StoredFile};
use super::stored_file::{COPIES, Entry, MARKER, Places, copy_name, marker_name};
use super::subdirectory::remove_recursively;
use super::{LOCK, Vfs, VfsFile, VfsLock, create_anew, read_exact_at, read_whole};
use crate::sync::Mutex;

/// The local file with the id of the log that the directory belongs to.
const LOG_ID: &str = "LOG";

/// The directory of attachment contents in files.
const CONTENTS: &str = "blobs/";

/// A local directory for derived files, and a store for all others.
#[derive(Clone)]
pub(crate) struct StoredVfs(Arc<Inner>);

struct Inner {
    places: Arc<Places>,
    is_derived: fn(&str) -> bool,
    role: LogRole,
    /// The log that the local files belong to; set once it was looked at or taken over.
    log_id: OnceLock<Uuid>,
    names: Mutex<Names>,
    committing: Mutex<()>,
}

/// What a replica found when it looked at the log again.
pub(crate) enum Look {
    /// The same log. The names that lead to other files than before, or to none.
    Same(Vec<String>),
    /// The log was deleted, and another one was created with its name.
    Another,
}

#[derive(Default)]
struct Names {
    files: BTreeMap<String, Arc<Entry>>,
    /// The names that the store has.
    committed: BTreeMap<String, StoredFile>,
    /// Names that may differ from those in the store.
    changed: BTreeSet<String>,
    /// Files that lost their names, which the store may not know yet.
    removed: Vec<Arc<Entry>>,
    /// Files without a name in the store, which readers may still have open.
    unnamed: Vec<UnnamedFile>,
    /// Derived files that are read from the store if the local directory does not have them.
    lent: BTreeMap<String, Arc<Entry>>,
}

/// A file without a name in the store.
struct UnnamedFile {
    entry: Arc<Entry>,
    /// When its bytes may be deleted.
    deleted_at: Instant,
}

/// What a process does with a log in a store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogRole {
    /// It owns the log, and keeps the bytes of retired segments for this time.
    Owner(Duration),
    /// It reads what another process writes: everything that is not derived is read only.
    Replica,
}

impl StoredVfs {
    /// `is_derived`: which names belong to the local directory; `copies`: the bound on local copies, if there is one.
    pub(crate) fn new(
        local: Arc<dyn Vfs>,
        storage: Arc<dyn LogStorage>,
        is_derived: fn(&str) -> bool,
        role: LogRole,
        copies: Option<LogCopies>,
    ) -> Self {
        let (log_id, names, committing) = Default::default();
        let places = Arc::new(Places { local, storage, copies });
        StoredVfs(Arc::new(Inner { places, is_derived, role, log_id, names, committing }))
    }

    /// Takes over the log; a replica only looks at it. Local files of another log are deleted.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        let inner = &*self.0;
        let log = match inner.role {
            LogRole::Replica => inner.places.storage.look()?,
            LogRole::Owner(_) => inner.places.storage.take_over()?,
        };
        inner.log_id.set(log.id).ok();
        let id = log.id.simple().to_string();
        if inner.local_log_id()?.as_ref() != Some(&id) {
            for name in inner.places.local.list("")?.iter().filter(|name| *name != LOCK) {
                remove_recursively(&*inner.places.local, name)?;
            }
            inner.places.local.sync_dir("")?;
            let file = create_anew(&*inner.places.local, LOG_ID)?;
            file.write_at(id.as_bytes(), 0)?;
            file.sync_data()?;
        }
        inner.places.local.create_dir_all(COPIES)?;
        let complete = inner.clean_copies(&log.files)?;
        let last_segment = last_segment(&log.files);
        let mut names = inner.names.lock();
        for file in log.files {
            let (name, is_copied) = (file.name.clone(), complete.contains(&file.name));
            let entry = Entry::found(&inner.places, file, is_copied);
            names.committed.insert(name.clone(), entry.stored());
            // Another one was finished before the last one got its name.
            if is_segment(&name) && Some(&name) != last_segment.as_ref() {
                entry.seal();
            }
            names.changed.insert(name.clone());
            names.files.insert(name, entry);
        }
        Ok(())
    }
}

impl StoredVfs {
    /// Takes over the names that the owner of the log has given and taken since, and what it has appended. Local copies
    /// of files that have lost their names are deleted once no reader has them open.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the log does not exist any more; errors of the store.
    pub(crate) fn look(&self) -> io::Result<Look> {
        let inner = &*self.0;
        let log = inner.places.storage.look()?;
        if inner.log_id.get() != Some(&log.id) {
            return Ok(Look::Another);
        }
        let last_segment = last_segment(&log.files);
        let (mut changed, mut found) = (Vec::new(), BTreeSet::new());
        let unused = {
            let mut names = inner.names.lock();
            for file in log.files {
                let (name, bytes) = (file.name.clone(), file.bytes);
                let is_finished =
                    file.state != FileState::Open || is_segment(&name) && Some(&name) != last_segment.as_ref();
                let entry = match names.files.get(&name).filter(|known| known.id == file.id) {
                    Some(known) => known.clone(),
                    None => {
                        changed.push(name.clone());
                        let entry = Entry::found(&inner.places, file, false);
                        let replaced = names.files.insert(name.clone(), entry.clone());
                        names.unnamed.extend(replaced.map(UnnamedFile::new));
                        entry
                    }
                };
                entry.grow(bytes);
                if is_finished {
                    entry.seal();
                }
                found.insert(name);
            }
            let removed: Vec<String> = names.files.keys().filter(|name| !found.contains(*name)).cloned().collect();
            for name in removed {
                // Segments stay until the log itself says that they are retired: see `forget_segment`.
                if !is_segment(&name) {
                    let entry = names.files.remove(&name);
                    names.unnamed.extend(entry.map(UnnamedFile::new));
                }
                changed.push(name);
            }
            names.take_unused()
        };
        unused.iter().try_for_each(|entry| entry.delete_copy())?;
        Ok(Look::Same(changed))
    }

    /// Forgets a segment, whose copy is deleted once no reader has it open.
    ///
    /// # Errors
    /// Errors of the directory.
    pub(crate) fn forget_segment(&self, name: &str) -> io::Result<()> {
        let unused = {
            let mut names = self.0.names.lock();
            let entry = names.files.remove(name);
            names.unnamed.extend(entry.map(UnnamedFile::new));
            names.take_unused()
        };
        unused.iter().try_for_each(|entry| entry.delete_copy())
    }

    /// Takes over what was appended to a segment. Returns false if its bytes were deleted, or it is not known.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn measure_segment(&self, name: &str) -> io::Result<bool> {
        let (segment, unused) = {
            let mut names = self.0.names.lock();
            (names.files.get(name).cloned(), names.take_unused())
        };
        unused.iter().try_for_each(|entry| entry.delete_copy())?;
        let Some(segment) = segment else { return Ok(false) };
        let Some(bytes) = self.0.places.storage.length(segment.id)? else { return Ok(false) };
        segment.grow(bytes);
        Ok(true)
    }

    /// Copies all segments that are not complete here: from then on, nothing reads them from the store.
    ///
    /// # Errors
    /// Errors of the store, also if the owner has deleted a segment meanwhile; errors of the directory.
    pub(crate) fn fetch_segments(&self) -> io::Result<()> {
        let segments: Vec<Arc<Entry>> = self.0.names.lock().segments().cloned().collect();
        segments.iter().try_for_each(|segment| segment.fetch_all())
    }

    /// Copies these derived files if they are lent, and takes all others back.
    ///
    /// # Errors
    /// Errors of the store and of the directory.
    pub(crate) fn copy_lent<'n>(&self, derived: impl Iterator<Item = &'n str>) -> io::Result<()> {
        let local = &*self.0.places.local;
        for name in derived {
            let lent = self.0.names.lock().lent.get(name).cloned();
            match (lent, local.open(name)) {
                (Some(lent), Err(error)) if error.kind() == io::ErrorKind::NotFound => lent.copy_to(name)?,
                (_, opened) => _ = opened?,
            }
            if let Some((directory, _)) = name.rsplit_once('/') {
                local.sync_dir(directory)?;
            }
        }
        self.end_lending();
        Ok(())
    }

    /// Gives the complete copies of another directory second names here, if that is possible. Those of another log are
    /// deleted by [`StoredVfs::take_over`].
    ///
    /// # Errors
    /// Errors of the directories.
    pub(crate) fn link_copies(local: &dyn Vfs, from: &dyn Vfs) -> io::Result<()> {
        local.create_dir_all(COPIES)?;
        for name in from.list(COPIES)?.iter().filter(|name| name.ends_with(MARKER)) {
            let copy = format!("{COPIES}/{}", name.trim_end_matches(MARKER));
            let marker = format!("{COPIES}/{name}");
            match local.link_from(from, &copy, &copy) {
                Ok(true) => _ = local.link_from(from, &marker, &marker)?,
                Ok(false) => break,
                // It was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        local.sync_dir(COPIES)?;
        let id = read_whole(&*from.open(LOG_ID)?)?;
        let file = create_anew(local, LOG_ID)?;
        file.write_at(&id, 0)?;
        file.sync_data()
    }

    /// Takes over a name that the owner has given since the last look.
    fn find_new(&self, name: &str) -> io::Result<Option<Arc<Entry>>> {
        let inner = &*self.0;
        let log = inner.places.storage.look()?;
        let Some(file) = log.files.into_iter().find(|file| file.name == name) else { return Ok(None) };
        let entry = Entry::found(&inner.places, file, false);
        Ok(Some(inner.names.lock().files.entry(name.to_owned()).or_insert(entry).clone()))
    }

    /// Lets `derived` be read from the file `stored`, if the local directory does not have it.
    pub(crate) fn lend(&self, derived: &str, stored: &str) -> io::Result<()> {
        let mut names = self.0.names.lock();
        let entry = names.files.get(stored).cloned().ok_or(io::ErrorKind::NotFound)?;
        names.lent.insert(derived.to_owned(), entry);
        Ok(())
    }

    /// Takes all lent files back.
    pub(crate) fn end_lending(&self) {
        self.0.names.lock().lent.clear();
    }

    /// Whether the local directory has `derived`, or it is lent from the file `stored`.
    pub(crate) fn is_lent_or_local(&self, derived: &str, stored: &str) -> bool {
        let lent_name = self.0.names.lock().lent.get(derived).map(|entry| entry.name());
        lent_name.is_some_and(|name| name == stored) || self.0.places.local.open(derived).is_ok()
    }

    /// Removes all derived files. Files that are lent can be read again.
    pub(crate) fn remove_derived(&self, directory: &str) -> io::Result<()> {
        remove_recursively(&*self.0.places.local, directory)
    }
}

/// The name of the last segment of the log.
fn last_segment(files: &[StoredFile]) -> Option<String> {
    files.iter().map(|file| &file.name).filter(|name| is_segment(name)).max().cloned()
}

/// Whether a file is a segment of the log.
fn is_segment(name: &str) -> bool {
    name.starts_with("log/") && name.ends_with(".log")
}

impl Inner {
    fn is_replica(&self) -> bool {
        matches!(self.role, LogRole::Replica)
    }

    fn refuse_on_replica(&self) -> io::Result<()> {
        match self.is_replica() {
            true => Err(io::Error::other("a replica changes nothing in the store")),
            false => Ok(()),
        }
    }

    /// The log that the local files belong to.
    fn local_log_id(&self) -> io::Result<Option<String>> {
        let file = match self.places.local.open(LOG_ID) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = [0; 32];
        match read_exact_at(&*file, &mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|()| String::from_utf8(bytes.to_vec()).ok()),
        }
    }

    /// Removes local copies that are incomplete or of no use; returns the names of the files that are complete.
    fn clean_copies(&self, files: &[StoredFile]) -> io::Result<BTreeSet<String>> {
        let present: BTreeSet<String> =
            self.places.local.list(COPIES)?.into_iter().map(|name| format!("{COPIES}/{name}")).collect();
        let is_complete = |file: &&StoredFile| {
            file.state != FileState::Open
                && present.contains(&copy_name(file.id))
                && present.contains(&marker_name(file.id))
        };
        let complete: Vec<&StoredFile> = files.iter().filter(is_complete).collect();
        let kept: BTreeSet<String> =
            complete.iter().flat_map(|file| [copy_name(file.id), marker_name(file.id)]).collect();
        // Markers come first: a copy without its marker is removed the next time.
        for name in present.iter().rev().filter(|name| !kept.contains(*name)) {
            self.places.local.remove(name)?;
        }
        Ok(complete.into_iter().map(|file| file.name.clone()).collect())
    }

    /// Passes the names that were changed to the store, and deletes files that have none.
    fn commit_names(&self) -> io::Result<()> {
        let _turn = self.committing.lock();
        let (changes, changed, removed) = {
            let mut names = self.names.lock();
            let changed = std::mem::take(&mut names.changed);
            (names.changes(&changed), changed, std::mem::take(&mut names.removed))
        };
        let unnamed: Vec<StoredFile> = removed.iter().map(|entry| entry.to_delete()).collect();
        if !changes.is_empty()
            && let Err(error) = self.places.storage.change_names(&changes, &unnamed)
        {
            let mut names = self.names.lock();
            names.changed.extend(changed);
            names.removed.extend(removed);
            return Err(error);
        }
        let unused = {
            let mut names = self.names.lock();
            for change in changes {
                match change {
                    NameChange::Set(file) => names.committed.insert(file.name.clone(), file),
                    NameChange::Remove(name) => names.committed.remove(&name),
                };
            }
            names.unnamed.extend(removed.into_iter().map(|entry| self.without_name(entry)));
            names.take_unused()
        };
        unused.iter().try_for_each(|entry| entry.delete())
    }

    /// A file that the owner has taken the last name of.
    fn without_name(&self, entry: Arc<Entry>) -> UnnamedFile {
        match self.role {
            LogRole::Owner(delay) if is_segment(&entry.name()) => {
                UnnamedFile { entry, deleted_at: Instant::now() + delay }
            }
            _ => UnnamedFile::new(entry),
        }
    }

    /// Whether the store knows the name of a file.
    fn is_committed(&self, entry: &Entry) -> bool {
        let name = entry.name();
        self.names.lock().committed.get(&name).is_some_and(|file| file.id == entry.id)
    }
}

impl UnnamedFile {
    /// One whose bytes may be deleted at once.
    fn new(entry: Arc<Entry>) -> Self {
        UnnamedFile { entry, deleted_at: Instant::now() }
    }
}

impl Names {
    /// What has to become of the names in the store.
    fn changes(&self, changed: &BTreeSet<String>) -> Vec<NameChange> {
        let change = |name: &String| {
            let committed = self.committed.get(name);
            match self.files.get(name).map(|entry| entry.stored()) {
                Some(file) => (committed != Some(&file)).then_some(NameChange::Set(file)),
                None => committed.map(|_| NameChange::Remove(name.clone())),
            }
        };
        changed.iter().filter_map(change).collect()
    }

    /// The segments of the log, in order.
    fn segments(&self) -> impl Iterator<Item = &Arc<Entry>> {
        // A slash is before a zero.
        let in_log = self.files.range("log/".to_owned().."log0".to_owned());
        in_log.filter(|(name, _)| is_segment(name)).map(|(_, entry)| entry)
    }

    /// Takes the files without a name that no reader has open, and that need not be kept.
    fn take_unused(&mut self) -> Vec<Arc<Entry>> {
        if self.unnamed.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let is_unused = |file: &UnnamedFile| Arc::strong_count(&file.entry) == 1 && file.deleted_at <= now;
        let (unused, used) = std::mem::take(&mut self.unnamed).into_iter().partition::<Vec<_>, _>(is_unused);
        self.unnamed = used;
        unused.into_iter().map(|file| file.entry).collect()
    }

    fn take(&mut self, name: &str) -> io::Result<Arc<Entry>> {
        self.changed.insert(name.to_owned());
        self.files.remove(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Vfs for StoredVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let found = if (self.0.is_derived)(name) {
            match self.0.places.local.open(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.0.names.lock().lent.get(name).cloned(),
                opened => return opened,
            }
        } else {
            self.0.names.lock().files.get(name).cloned()
        };
        let found = match found {
            // A document may refer to a content that was stored after the last look.
            None if self.0.is_replica() && name.starts_with(CONTENTS) => self.find_new(name)?,
            found => found,
        };
        let entry = found.ok_or(io::ErrorKind::NotFound)?;
        let copy = entry.copy()?;
        Ok(Arc::new(StoredHandle { entry, copy, vfs: self.0.clone() }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        if (self.0.is_derived)(name) {
            return self.0.places.local.create(name);
        }
        self.0.refuse_on_replica()?;
        // The log appends to its segments; all other files are written once.
        let state = if name.starts_with("log/") { FileState::Open } else { FileState::Whole };
        let entry = {
            let mut names = self.0.names.lock();
            if names.files.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let entry = Entry::new(&self.0.places, name, state);
            names.files.insert(name.to_owned(), entry.clone());
            names.changed.insert(name.to_owned());
            entry
        };
        let copy = entry.copy()?;
        Ok(Arc::new(StoredHandle { entry, copy, vfs: self.0.clone() }))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        // Of `blobs/ab/cd`, the directory `blobs` has `ab`.
        let first_part = |name: &String| {
            let below = if directory.is_empty() { name } else { name.strip_prefix(directory)?.strip_prefix('/')? };
            Some(below.split_once('/').map_or(below, |(part, _)| part).to_owned())
        };
        let is_derived = (self.0.is_derived)(directory);
        let local = if is_derived { self.0.places.local.list(directory)? } else { Vec::new() };
        let names = self.0.names.lock();
        let mut found: BTreeSet<String> = local.into_iter().collect();
        match is_derived {
            true => found.extend(names.lent.keys().filter_map(first_part)),
            false => found.extend(names.files.keys().filter_map(first_part)),
        }
        Ok(found.into_iter().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if (self.0.is_derived)(from) {
            return self.0.places.local.rename(from, to);
        }
        self.0.refuse_on_replica()?;
        let mut names = self.0.names.lock();
        let entry = names.take(from)?;
        entry.rename(to);
        names.changed.insert(to.to_owned());
        if let Some(replaced) = names.files.insert(to.to_owned(), entry) {
            names.removed.push(replaced);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if (self.0.is_derived)(name) {
            let was_lent = self.0.names.lock().lent.remove(name).is_some();
            return match self.0.places.local.remove(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && was_lent => Ok(()),
                removed => removed,
            };
        }
        self.0.refuse_on_replica()?;
        let mut names = self.0.names.lock();
        let entry = names.take(name)?;
        names.removed.push(entry);
        Ok(())
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        if (self.0.is_derived)(directory) {
            return self.0.places.local.sync_dir(directory);
        }
        if directory.is_empty() {
            self.0.places.local.sync_dir("")?;
        }
        // A replica has changed no names.
        if self.0.is_replica() { Ok(()) } else { self.0.commit_names() }
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        match (self.0.is_derived)(directory) {
            true => self.0.places.local.create_dir_all(directory),
            false => Ok(()),
        }
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.0.places.local.lock(name)
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        if (self.0.is_derived)(name) {
            return self.0.places.local.remove_dir(name);
        }
        match self.list(name)?.is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    /// Links only files of this directory's own tree: `source` has to be this one.
    fn link_from(&self, _source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        if !(self.0.is_derived)(from) || (self.0.is_derived)(to) {
            return Ok(false);
        }
        self.0.refuse_on_replica()?;
        let entry = Entry::new(&self.0.places, to, FileState::Whole);
        if !entry.link(from)? {
            return Ok(false);
        }
        let mut names = self.0.names.lock();
        if names.files.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.files.insert(to.to_owned(), entry);
        names.changed.insert(to.to_owned());
        Ok(true)
    }

    fn keeps_tree_copies(&self) -> bool {
        !self.0.is_replica()
    }

    fn is_persistent(&self) -> bool {
        // Nothing is written ahead, and no file is used again.
        false
    }
}

/// An open file of the log.
struct StoredHandle {
    entry: Arc<Entry>,
    copy: Arc<dyn VfsFile>,
    vfs: Arc<Inner>,
}

impl VfsFile for StoredHandle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.entry.read_at(&*self.copy, buffer, offset);
        self.entry.make_room();
        read
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.vfs.refuse_on_replica()?;
        self.entry.write_at(&*self.copy, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let is_new = self.entry.is_new() && !self.vfs.is_committed(&self.entry);
        if is_new {
            self.vfs.commit_names()?;
        }
        self.entry.store(&*self.copy)?;
        if self.entry.is_whole() {
            self.vfs.names.lock().changed.insert(self.entry.name());
            if !is_new {
                self.vfs.commit_names()?;
            }
            self.entry.keep_copy(&*self.copy)?;
        }
        self.entry.make_room();
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.vfs.refuse_on_replica()?;
        self.entry.set_len(&*self.copy, bytes)?;
        if !self.entry.is_whole() && self.entry.is_stored() {
            // The log cuts a segment that it has finished.
            self.entry.seal();
            self.vfs.names.lock().changed.insert(self.entry.name());
            self.entry.keep_copy(&*self.copy)?;
        }
        self.entry.make_room();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.entry.length())
    }
}
