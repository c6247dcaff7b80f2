//! Virtual file system: all file access of the log and the blobs goes through [`Vfs`].
//!
//! Names are relative, with `/` between components: `log/0000000001.log`. An implementation guarantees what POSIX does,
//! and no more: bytes are durable after [`VfsFile::sync_data`], names after [`Vfs::sync_dir`] of their directory; until
//! then a crash may preserve any part of the changes, in any order. [`disk`] is the real disk, [`memory`] serves
//! in-memory databases, [`read_only`] serves databases opened read-only, [`stored`] puts the log into a
//! [`LogStorage`], and `fault` injects I/O errors, lost flushes and power loss for tests. [`open_files`] counts the
//! open files of the process.
//!
//! Concurrency: every method may be called from any thread at any time.

mod cached_file;
mod cluster_store;
mod directory;
mod disk;
mod extents;
#[cfg(any(test, feature = "testing", fuzzing))]
mod fault;
mod gate;
mod keyed;
mod log_copies;
mod log_storage;
mod memory;
mod open_files;
mod read_only;
mod stored;
mod stored_file;
mod subdirectory;

use std::io;
use std::sync::Arc;

use crate::cipher::Keyring;
use crate::{Error, Result};

pub(crate) use cached_file::CachedFile;
pub use cluster_store::{ClusterRecords, ClusterStore, LogClaim, LogOwnership, RecordChange};
use directory::Directory;
pub(crate) use disk::DiskVfs;
#[cfg(any(test, feature = "testing", fuzzing))]
pub use fault::{Call, Failure, FaultVfs, Random};
pub(crate) use gate::{Gate, GatedVfs};
pub(crate) use keyed::KeyedVfs;
pub use log_copies::LogCopies;
pub use log_storage::{Deposed, FileId, FileState, LogStorage, NameChange, StoredFile, StoredLog};
pub(crate) use memory::MemoryVfs;
pub(crate) use open_files::files_are_scarce;
pub use open_files::{OpenFileLimit, is_exhausted, open_file_count};
pub(crate) use read_only::ReadOnlyVfs;
pub(crate) use stored::{LogRole, Look, StoredVfs};
pub(crate) use subdirectory::{Subdirectory, remove_recursively};

/// The file whose lock shows that a process of an earlier version has the database open.
const LOCK: &str = "LOCK";

/// A directory of files: the storage of one database.
pub(crate) trait Vfs: Send + Sync {
    /// Opens an existing file for reading and writing; [`io::ErrorKind::NotFound`] if there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>>;

    /// Creates an empty file; [`io::ErrorKind::AlreadyExists`] if there is one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>>;

    /// The names (last part only) of the files and directories in `directory`, in no order; empty if it does not exist.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Renames a file, replacing any file at the new name. Atomic: after a crash the file has one name or the other.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file's name. Open handles can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals in `directory` durable. `""` is the database's own directory.
    fn sync_dir(&self, directory: &str) -> io::Result<()>;

    /// Creates a directory and its missing ancestors. The name of each new one is flushed before this returns.
    fn create_dir_all(&self, directory: &str) -> io::Result<()>;

    /// Acquires the exclusive lock of the whole database; [`io::ErrorKind::WouldBlock`] if it is held.
    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &str) -> io::Result<()>;

    /// Gives the file `from` of another directory a second name here, `to`, which must be free: a hard link. Returns
    /// false if the two are not on one file system, or links are not possible. The caller flushes the name.
    fn link_from(&self, _source: &dyn Vfs, _from: &str, _to: &str) -> io::Result<bool> {
        Ok(false)
    }

    /// The directory on disk, if its files can be linked.
    fn linkable_directory(&self) -> Option<&Directory> {
        None
    }

    /// The keys that the files are encrypted with, if they are.
    fn keyring(&self) -> Option<&Arc<Keyring>> {
        None
    }

    /// Whether the log is in a store, so that copies of the tree belong there, too.
    fn keeps_tree_copies(&self) -> bool {
        false
    }

    /// Whether files outlive the process. If not, nothing is preallocated, recycled or zeroed, since that would only
    /// cost memory.
    fn is_persistent(&self) -> bool;
}

/// An open file.
pub(crate) trait VfsFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes and returns how many: fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, growing the file as needed (gaps read as zeros). After an error any part may have been
    /// written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes every completed write and the file's length durable. After an error nothing may be assumed.
    fn sync_data(&self) -> io::Result<()>;

    /// Truncates the file or extends it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    /// Whether the file has other names, in this directory or another one: then its bytes must not change.
    fn is_shared(&self) -> io::Result<bool> {
        Ok(false)
    }
}

/// Holds a lock until dropped.
pub(crate) trait VfsLock: Send + Sync {}

/// The exclusive right to use a database, held until dropped: one process, and one handle in it, at a time. Dropping it
/// closes its gate first.
pub(crate) struct DatabaseLock {
    /// Closed before the lock is released.
    gate: Option<Arc<Gate>>,
    _lock: Box<dyn VfsLock>,
}

impl DatabaseLock {
    /// Acquires the lock of files behind a gate, which is closed before the lock is released.
    pub(crate) fn acquire_with_gate<V: Vfs>(vfs: &GatedVfs<V>) -> Result<Self> {
        let mut lock = Self::acquire(vfs)?;
        lock.gate = Some(vfs.gate().clone());
        Ok(lock)
    }

    /// Acquires the lock; returns `Locked` if the database is open already, here or in another process.
    pub(crate) fn acquire(vfs: &dyn Vfs) -> Result<Self> {
        match vfs.lock(LOCK) {
            Ok(lock) => Ok(DatabaseLock { gate: None, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Error::locked("the database is open already, here or in another process")
                    .with_hint("close it there first; a process that died holds no lock"))
            }
            Err(error) => Err(Error::io(format_args!("lock {LOCK}"), error)),
        }
    }
}

impl Drop for DatabaseLock {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }
}

/// Creates an empty file in place of one that a crash may have left under its name.
pub(crate) fn create_anew(vfs: &dyn Vfs, name: &str) -> io::Result<Arc<dyn VfsFile>> {
    match vfs.create(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => vfs.remove(name).and_then(|()| vfs.create(name)),
        created => created,
    }
}

/// Reads exactly `buffer.len()` bytes; [`io::ErrorKind::UnexpectedEof`] if the file ends earlier.
pub(crate) fn read_exact_at(file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let read = file.read_at(buffer, offset)?;
    if read < buffer.len() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends too early"));
    }
    Ok(())
}

/// Reads all bytes of a file.
pub(crate) fn read_whole(file: &dyn VfsFile) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    read_exact_at(file, &mut bytes, 0).map(|()| bytes)
}

#[cfg(test)]
mod tests;
