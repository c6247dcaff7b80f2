//! Which files, and how are they touched? Everything the log and the blobs do to a disk goes through [`Vfs`].
//!
//! Names are relative, with `/` between parts: `log/0000000001.log`. What an implementation promises is POSIX and not more:
//! bytes are safe after [`VfsFile::sync_data`], names after [`Vfs::sync_dir`] of their directory, and until then a crash
//! may keep any part of them, in any order. [`disk`] is the real one, [`memory`] for databases that live
//! in RAM only, [`reading`] for those that are not written to, [`fault`] for tests: it fails, lies and loses power.
//!
//! Concurrency: every method may be called from any thread at any time.

mod disk;
mod fault;
mod memory;
mod reading;

use std::io;
use std::sync::Arc;

use crate::{Error, Result};

pub(crate) use disk::DiskVfs;
pub use fault::{Call, Failure, FaultVfs, Random};
pub(crate) use memory::MemoryVfs;
pub(crate) use reading::ReadingVfs;

/// The name of the file whose lock says that a process has the database open.
const LOCK: &str = "LOCK";

/// A directory of files: the whole world of a database.
pub(crate) trait Vfs: Send + Sync {
    /// Opens an existing file for reading and writing; [`io::ErrorKind::NotFound`] if there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>>;

    /// Creates an empty file; [`io::ErrorKind::AlreadyExists`] if there is one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>>;

    /// The names (last part only) of the files and directories in `directory`, in no order; empty if it does not exist.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Gives a file another name, replacing what had it. Atomic: after a crash the file has the one or the other name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file's name. Who has it open can go on reading it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals in `directory` survive a crash. `""` is the database's own directory.
    fn sync_dir(&self, directory: &str) -> io::Result<()>;

    /// Creates a directory and those above it. Each new one's name is flushed before this returns.
    fn create_dir_all(&self, directory: &str) -> io::Result<()>;

    /// Takes the exclusive lock of the whole database; [`io::ErrorKind::WouldBlock`] if somebody has it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>>;

    /// Whether files outlive the process. If not, nothing is preallocated, recycled or zeroed: it would only cost memory.
    fn is_persistent(&self) -> bool;
}

/// An open file.
pub(crate) trait VfsFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes and returns how many: fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, growing the file as needed (a gap reads as zeros). After an error any part may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes every finished write and the file's length survive a crash. After an error nothing may be assumed.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;
}

/// Holds a lock until dropped.
pub(crate) trait VfsLock: Send + Sync {}

/// The right to use a database, held until dropped: one process, and one handle in it, at a time.
pub(crate) struct DatabaseLock {
    _lock: Box<dyn VfsLock>,
}

impl DatabaseLock {
    /// Takes the lock, or says that another process has it.
    pub(crate) fn acquire(vfs: &dyn Vfs) -> Result<Self> {
        match vfs.lock(LOCK) {
            Ok(lock) => Ok(DatabaseLock { _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Error::locked("the database is open already, here or in another process")
                    .with_hint("close it there first; a process that died holds no lock"))
            }
            Err(error) => Err(Error::io(format_args!("lock {LOCK}"), error)),
        }
    }
}

/// Reads exactly `buffer.len()` bytes; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
pub(crate) fn read_exact_at(file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let read = file.read_at(buffer, offset)?;
    if read < buffer.len() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends too early"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
