//! A directory as a backup target.
//!
//! Invariants: a file of a backup is flushed when [`Target::flush`] returns, with its name; a manifest gets its name
//! only when it is complete and flushed.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::target::{LocalFile, Target};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::vfs::{DatabaseLock, DiskVfs, ReadOnlyVfs, Vfs, VfsFile};
use crate::{Error, ErrorKind, Result};

/// The name of a manifest that is being written.
const UNFINISHED: &str = "unfinished";

const STEP_BYTES: usize = 1 << 20;

/// Backups in a directory. On the file system of the database, files are hard-linked where possible.
///
/// Linked files share their blocks with the database: such a backup costs no space and protects from mistakes, but not
/// from a damaged disk. Copy it to another disk, or make the backup there.
///
/// ```
/// use stemmadb::Database;
/// use stemmadb::backup::{self, At, DirectoryTarget, RestoreOptions};
///
/// # fn main() -> stemmadb::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("stemma-backup-{}", std::process::id()));
/// # std::fs::remove_dir_all(&directory).ok();
/// let db = Database::open(directory.join("library.stemma"))?;
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// db.maintenance().backup(directory.join("backups"))?;
///
/// let target = DirectoryTarget::open(directory.join("backups"))?;
/// assert!(backup::verify(&target)?.is_sound());
/// backup::restore(&target, directory.join("restored.stemma"), RestoreOptions::new().at(At::Latest))?;
/// # drop(db); std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
pub struct DirectoryTarget {
    vfs: Arc<dyn Vfs>,
    name: String,
    is_read_only: bool,
    /// Whether the directory of files is known to exist.
    has_files: AtomicBool,
}

impl DirectoryTarget {
    /// The directory at `path`, for making backups; created if it does not exist.
    ///
    /// # Errors
    /// `Unavailable` if it can't be created or opened; `Invalid` if it is a database.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        refuse_database(path)?;
        let vfs = DiskVfs::new(path).map_err(|error| Error::io(format_args!("open {}", path.display()), error))?;
        Ok(Self::of(Arc::new(vfs), path.display().to_string()))
    }

    /// The existing directory at `path`, for verifying and restoring. Nothing in it is changed.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Unavailable` if it can't be opened; `Invalid` if it is a database.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        refuse_database(path)?;
        let vfs = ReadOnlyVfs::new(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::not_found(format!("there are no backups at {}", path.display())),
            _ => Error::io(format_args!("open {}", path.display()), error),
        })?;
        Ok(DirectoryTarget { is_read_only: true, ..Self::of(Arc::new(vfs), path.display().to_string()) })
    }

    pub(super) fn of(vfs: Arc<dyn Vfs>, name: String) -> Self {
        DirectoryTarget { vfs, name, is_read_only: false, has_files: false.into() }
    }

    fn failed(&self, operation: &str, name: &str, error: io::Error) -> Error {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let error = Error::io(format_args!("{operation} {name} in {}", self.name), error);
        if missing { Error::not_found(error.message()) } else { error }
    }

    fn refuse_if_read_only(&self) -> Result<()> {
        match self.is_read_only {
            true => Err(Error::invalid(format!("{} was opened for reading only", self.name))
                .with_hint("make backups with `DirectoryTarget::create`")),
            false => Ok(()),
        }
    }

    /// Removes a file that an interrupted backup may have left.
    fn remove_leftover(&self, name: &str) -> io::Result<()> {
        match self.vfs.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Creates the directory of a file.
    fn prepare(&self, name: &str) -> io::Result<()> {
        self.remove_leftover(name)?;
        if let Some((directory, _)) = name.rsplit_once('/')
            && !self.has_files.load(Ordering::Acquire)
        {
            self.vfs.create_dir_all(directory)?;
            self.has_files.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn write(&self, name: &str, content: &mut dyn Read) -> io::Result<()> {
        self.prepare(name)?;
        let file = self.vfs.create(name)?;
        let (mut buffer, mut offset) = (vec![0; STEP_BYTES], 0);
        loop {
            let count = match content.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            file.write_at(&buffer[..count], offset)?;
            offset += count as u64;
        }
        file.sync_data()
    }
}

/// Returns an error for the directory of a database: backups in it would be lost with it.
fn refuse_database(path: &Path) -> Result<()> {
    if path.join("log").is_dir() {
        return Err(Error::invalid(format!("{} is a database, not a directory of backups", path.display()))
            .with_hint("name another directory, on another disk if possible"));
    }
    Ok(())
}

impl std::fmt::Debug for DirectoryTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DirectoryTarget").field(&self.name).finish()
    }
}

impl Target for DirectoryTarget {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn lock(&self) -> Result<Box<dyn Send>> {
        self.refuse_if_read_only()?;
        let lock = DatabaseLock::acquire(&*self.vfs).map_err(|error| match error.kind() {
            ErrorKind::Locked => Error::locked(format!("another backup to {} is being made", self.name))
                .with_hint("try again when it has ended"),
            _ => error,
        })?;
        Ok(Box::new(lock))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.refuse_if_read_only()?;
        let put = || {
            let mut content = bytes;
            self.write(UNFINISHED, &mut content)?;
            // The lock keeps other writers from creating it meanwhile.
            if self.vfs.open(name).is_ok() {
                self.vfs.remove(UNFINISHED)?;
                return Ok(false);
            }
            self.vfs.rename(UNFINISHED, name)?;
            self.vfs.sync_dir("").map(|()| true)
        };
        put().map_err(|error| self.failed("create", name, error))
    }

    fn put(&self, name: &str, content: &mut dyn Read) -> Result<()> {
        self.refuse_if_read_only()?;
        self.write(name, content).map_err(|error| self.failed("write", name, error))
    }

    fn put_linked(&self, name: &str, file: &LocalFile<'_>) -> Result<bool> {
        self.refuse_if_read_only()?;
        let linked = self.prepare(name).and_then(|()| self.vfs.link_from(file.vfs, file.name, name));
        linked.map_err(|error| self.failed("link", name, error))
    }

    fn flush(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        if self.has_files.load(Ordering::Acquire) {
            self.vfs.sync_dir(super::manifest::FILES).map_err(|error| self.failed("flush", "files", error))?;
        }
        self.vfs.sync_dir("").map_err(|error| self.failed("flush", "the names", error))
    }

    fn get(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let file = self.vfs.open(name).map_err(|error| self.failed("open", name, error))?;
        Ok(Box::new(FileReader { file, offset: 0 }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (directory, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let names = self.vfs.list(directory).map_err(|error| self.failed("list", prefix, error))?;
        let full = |name: String| if directory.is_empty() { name } else { format!("{directory}/{name}") };
        Ok(names.into_iter().filter(|name| name.starts_with(start)).map(full).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.refuse_if_read_only()?;
        self.remove_leftover(name).map_err(|error| self.failed("delete", name, error))
    }
}

/// Reads a file from its start to its end.
pub(super) struct FileReader {
    pub(super) file: Arc<dyn VfsFile>,
    pub(super) offset: u64,
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
