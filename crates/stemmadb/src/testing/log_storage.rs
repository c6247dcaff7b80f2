//! A log storage in memory, with injected faults.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError};

use uuid::Uuid;

use crate::vfs::{Deposed, FileId, FileState, LogStorage, NameChange, StoredFile, StoredLog};

/// A log storage in memory. Each value is one that may own the log; [`MemoryLogStorage::another_owner`] makes others.
#[derive(Default)]
pub struct MemoryLogStorage {
    log: Arc<std::sync::Mutex<MemoryLog>>,
    epoch: std::sync::atomic::AtomicU64,
    fault: std::sync::Mutex<Option<StorageFault>>,
    is_unreachable: std::sync::atomic::AtomicBool,
    read_count: std::sync::atomic::AtomicU64,
}

/// A fault of a log storage.
#[derive(Debug, Clone, Copy)]
pub struct StorageFault {
    /// How many calls that change something succeed before.
    pub after_calls: u64,
    /// Whether the call that fails takes effect nevertheless. Later ones fail without effect.
    pub takes_effect: bool,
}

#[derive(Default)]
struct MemoryLog {
    id: Option<Uuid>,
    epoch: u64,
    names: BTreeMap<String, StoredFile>,
    files: BTreeMap<FileId, Vec<u8>>,
    unnamed: Vec<FileId>,
    change_count: u64,
}

impl MemoryLogStorage {
    /// A log that does not exist yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another process that may take over the same log.
    #[must_use]
    pub fn another_owner(&self) -> Self {
        MemoryLogStorage { log: self.log.clone(), ..Self::default() }
    }

    /// What identifies the log, which exists from then on.
    pub(super) fn id(&self) -> Uuid {
        *self.lock().id.get_or_insert_with(Uuid::new_v4)
    }

    /// Injects a fault.
    pub fn fail(&self, fault: StorageFault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    /// Has all calls of this value fail from now on, or succeed again.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.is_unreachable.store(is_unreachable, std::sync::atomic::Ordering::Release);
    }

    /// Deletes the log. The next owner creates another one.
    pub fn delete_log(&self) {
        let mut log = self.lock();
        let epoch = log.epoch + 1;
        *log = MemoryLog { epoch, ..MemoryLog::default() };
    }

    /// How often this value was asked for something: looks, lengths, and reads.
    #[must_use]
    pub fn read_count(&self) -> u64 {
        self.read_count.load(std::sync::atomic::Ordering::Acquire)
    }

    fn read_log(&self) -> io::Result<std::sync::MutexGuard<'_, MemoryLog>> {
        self.read_count.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        self.refuse_if_unreachable()?;
        Ok(self.lock())
    }

    fn refuse_if_unreachable(&self) -> io::Result<()> {
        match self.is_unreachable.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(io::Error::new(io::ErrorKind::TimedOut, "the store can't be reached")),
            false => Ok(()),
        }
    }

    /// How often something was changed.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.lock().change_count
    }

    /// The names of the files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// How many files have bytes, whether they have a name or not.
    #[must_use]
    pub fn file_count(&self) -> usize {
        self.lock().files.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MemoryLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, as its owner, unless a fault is due.
    fn change(&self, is_fenced: bool, apply: impl FnOnce(&mut MemoryLog) -> io::Result<()>) -> io::Result<()> {
        self.refuse_if_unreachable()?;
        let mut log = self.lock();
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *fault {
            Some(StorageFault { after_calls: 0, takes_effect }) => {
                if std::mem::take(takes_effect) {
                    apply(&mut log)?;
                }
                return Err(io::Error::new(io::ErrorKind::TimedOut, "injected"));
            }
            Some(fault) => fault.after_calls -= 1,
            None => {}
        }
        if is_fenced && self.epoch.load(std::sync::atomic::Ordering::Acquire) != log.epoch {
            return Err(Deposed.into());
        }
        log.change_count += 1;
        apply(&mut log)
    }
}

impl MemoryLog {
    /// The files that have names, with their lengths.
    fn named_files(&self) -> Vec<StoredFile> {
        let with_length = |file: &StoredFile| StoredFile {
            bytes: match file.state {
                FileState::Open => self.files.get(&file.id).map_or(0, |bytes| bytes.len() as u64),
                _ => file.bytes,
            },
            ..file.clone()
        };
        self.names.values().map(with_length).collect()
    }
}

impl LogStorage for MemoryLogStorage {
    fn take_over(&self) -> io::Result<StoredLog> {
        self.refuse_if_unreachable()?;
        let mut log = self.lock();
        log.epoch += 1;
        self.epoch.store(log.epoch, std::sync::atomic::Ordering::Release);
        for id in std::mem::take(&mut log.unnamed) {
            log.files.remove(&id);
        }
        let id = *log.id.get_or_insert_with(Uuid::new_v4);
        Ok(StoredLog { id, files: log.named_files() })
    }

    fn look(&self) -> io::Result<StoredLog> {
        let log = self.read_log()?;
        let id = log.id.ok_or(io::ErrorKind::NotFound)?;
        Ok(StoredLog { id, files: log.named_files() })
    }

    fn length(&self, file: FileId) -> io::Result<Option<u64>> {
        Ok(self.read_log()?.files.get(&file).map(|bytes| bytes.len() as u64))
    }

    fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(true, |log| {
            let stored = log.files.entry(file).or_default();
            if stored.len() as u64 != offset {
                return Err(io::Error::other(format!("append at {offset}, but the file has {} bytes", stored.len())));
            }
            stored.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(false, |log| {
            let stored = log.files.entry(file).or_default();
            let end = offset as usize + bytes.len();
            stored.resize(end.max(stored.len()), 0);
            stored[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let log = self.read_log()?;
        let stored = log.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        let from = (offset as usize).min(stored.len());
        let count = buffer.len().min(stored.len() - from);
        buffer[..count].copy_from_slice(&stored[from..from + count]);
        Ok(count)
    }

    fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        self.change(true, |log| {
            for change in changes {
                match change {
                    NameChange::Set(file) => log.names.insert(file.name.clone(), file.clone()),
                    NameChange::Remove(name) => log.names.remove(name),
                };
            }
            log.unnamed.extend(unnamed.iter().map(|file| file.id));
            Ok(())
        })
    }

    fn delete(&self, file: &StoredFile) -> io::Result<()> {
        self.change(false, |log| {
            if log.names.values().any(|named| named.id == file.id) {
                return Err(io::Error::other("a file with a name is deleted"));
            }
            log.files.remove(&file.id);
            log.unnamed.retain(|id| *id != file.id);
            Ok(())
        })
    }
}
