//! The directory of a database: opened once, and locked by its handle.
//!
//! All files are found relative to the handle, so a directory that is renamed stays the one that is read and written,
//! and a new one of the same name is another database. The lock belongs to the directory itself, not to a file in it:
//! nothing that can be deleted or recreated stands for it.
//!
//! Versions before this one locked a file, `LOCK`. It is locked for a moment, so that such a process is noticed; and
//! for as long as the database is open where directories can't be locked, such as on some network file systems.
//!
//! On other platforms than Unix, files are found by the directory's path, and the file is locked.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::VfsLock;
use crate::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(unix))]
use by_path as platform;
#[cfg(unix)]
use relative as platform;

pub(super) use platform::Handle;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    ReadWrite,
    /// For reading and writing; the file must not exist.
    CreateNew,
    /// For reading and writing; the file is created if it does not exist.
    Create,
}

/// An open directory.
pub(crate) struct Directory {
    handle: Handle,
    /// Whether this handle holds the lock: the system's lock does not exclude the handle that holds it.
    is_locked: AtomicBool,
}

/// Who may share the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockMode {
    /// Nobody.
    Exclusive,
    /// Others that read.
    Shared,
}

impl Directory {
    /// Opens the existing directory at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Directory { handle: Handle::open(path)?, is_locked: AtomicBool::new(false) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Locks the directory; [`io::ErrorKind::WouldBlock`] if another handle or process has locked it.
    pub(super) fn lock(self: &Arc<Self>, file_name: &str, mode: LockMode) -> io::Result<Box<dyn VfsLock>> {
        let access = if mode == LockMode::Shared { Access::Read } else { Access::Create };
        let file = match self.handle.open_file(file_name, access) {
            Ok(file) => Some(file),
            // The database was never opened for writing by an earlier version, or it is a copy.
            Err(error) if mode == LockMode::Shared && error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(file) = &file {
            try_lock(file, mode)?;
        }
        let Some(handle) = self.handle.lockable() else { return Ok(Box::new(FileLock { _file: file })) };
        if mode == LockMode::Exclusive && self.is_locked.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match try_lock(handle, mode) {
            Ok(()) => Ok(Box::new(DirectoryLock { directory: self.clone() })),
            Err(error) => {
                self.is_locked.store(false, Ordering::Release);
                match error.kind() {
                    io::ErrorKind::WouldBlock => Err(error),
                    // The file system has no locks of directories.
                    _ => Ok(Box::new(FileLock { _file: file })),
                }
            }
        }
    }
}

fn try_lock(file: &File, mode: LockMode) -> io::Result<()> {
    let locked = match mode {
        LockMode::Exclusive => file.try_lock(),
        LockMode::Shared => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The lock belongs to the open directory: the system releases it when the process ends, for whatever reason.
struct DirectoryLock {
    directory: Arc<Directory>,
}

impl VfsLock for DirectoryLock {}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Without an error: the handle is open, and closing it releases the lock as well.
        self.directory.handle.lockable().map(File::unlock);
        self.directory.is_locked.store(false, Ordering::Release);
    }
}

/// The lock of the file, which is released when the file is closed.
struct FileLock {
    _file: Option<File>,
}

impl VfsLock for FileLock {}

#[cfg(unix)]
mod relative {
    //! Files relative to the open directory.

    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, Dir, Mode, OFlags};

    use super::Access;
    use crate::vfs::open_files::{CountedFile, open_with_retry};

    /// An open directory.
    pub(crate) struct Handle {
        directory: File,
        _counted: CountedFile,
    }

    impl Handle {
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = open(|| rustix::fs::open(path, flags, Mode::empty()))?;
            Ok(Handle { directory, _counted: CountedFile::new() })
        }

        /// The directory, if it can be locked.
        pub(crate) fn lockable(&self) -> Option<&File> {
            Some(&self.directory)
        }

        pub(crate) fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
            let flags = match access {
                Access::Read => OFlags::RDONLY,
                Access::ReadWrite => OFlags::RDWR,
                Access::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
                Access::Create => OFlags::RDWR | OFlags::CREATE,
            };
            let mode = Mode::from_raw_mode(0o666);
            open(|| rustix::fs::openat(&self.directory, name, flags | OFlags::CLOEXEC, mode))
        }

        /// Opens a directory below this one; `""` is this one.
        fn subdirectory(&self, name: &str) -> io::Result<File> {
            let name = if name.is_empty() { "." } else { name };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(|| rustix::fs::openat(&self.directory, name, flags, Mode::empty()))
        }

        /// The names in a directory; empty if it does not exist.
        pub(crate) fn list(&self, name: &str) -> io::Result<Vec<String>> {
            let directory = match self.subdirectory(name) {
                Ok(directory) => directory,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut names = Vec::new();
            for entry in Dir::new(directory)? {
                // Stemma's file names are always UTF-8.
                if let Ok(name) = entry?.file_name().to_str()
                    && name != "."
                    && name != ".."
                {
                    names.push(name.to_owned());
                }
            }
            Ok(names)
        }

        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            Ok(rustix::fs::renameat(&self.directory, from, &self.directory, to)?)
        }

        pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
            Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?)
        }

        pub(crate) fn remove_directory(&self, name: &str) -> io::Result<()> {
            Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR)?)
        }

        /// Gives the file `from` of `source` a second name here; false if links between the two are not possible.
        pub(crate) fn link_from(&self, source: &Handle, from: &str, to: &str) -> io::Result<bool> {
            use rustix::io::Errno;
            match rustix::fs::linkat(&source.directory, from, &self.directory, to, AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }

        /// Flushes the names in a directory.
        pub(crate) fn sync(&self, name: &str) -> io::Result<()> {
            if name.is_empty() { self.directory.sync_all() } else { self.subdirectory(name)?.sync_all() }
        }

        /// Creates a directory; returns whether it did not exist.
        pub(crate) fn create(&self, name: &str) -> io::Result<bool> {
            match rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => Ok(true),
                Err(rustix::io::Errno::EXIST) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    }

    /// Opens a file; repeats calls that a signal interrupts, or that fail for want of descriptors.
    fn open(mut call: impl FnMut() -> rustix::io::Result<OwnedFd>) -> io::Result<File> {
        open_with_retry(|| {
            loop {
                match call() {
                    Err(rustix::io::Errno::INTR) => {}
                    result => return Ok(File::from(result?)),
                }
            }
        })
    }
}

#[cfg(not(unix))]
mod by_path {
    //! Files by the directory's path.

    use std::fs::{File, OpenOptions};
    use std::io;
    use std::path::{Path, PathBuf};

    use super::Access;

    /// The path of a directory.
    pub(crate) struct Handle(PathBuf);

    impl Handle {
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            Ok(Handle(path.to_owned()))
        }

        /// The directory, if it can be locked.
        pub(crate) fn lockable(&self) -> Option<&File> {
            None
        }

        pub(crate) fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
            let mut options = OpenOptions::new();
            options.read(true).write(access != Access::Read);
            options.create_new(access == Access::CreateNew).create(access == Access::Create);
            options.open(self.0.join(name))
        }

        /// The names in a directory; empty if it does not exist.
        pub(crate) fn list(&self, name: &str) -> io::Result<Vec<String>> {
            let entries = match std::fs::read_dir(self.0.join(name)) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut names = Vec::new();
            for entry in entries {
                // Stemma's file names are always UTF-8.
                names.extend(entry?.file_name().into_string());
            }
            Ok(names)
        }

        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            std::fs::rename(self.0.join(from), self.0.join(to))
        }

        pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
            std::fs::remove_file(self.0.join(name))
        }

        pub(crate) fn remove_directory(&self, name: &str) -> io::Result<()> {
            std::fs::remove_dir(self.0.join(name))
        }

        /// Links are not used where the number of a file's names can't be read.
        pub(crate) fn link_from(&self, _source: &Handle, _from: &str, _to: &str) -> io::Result<bool> {
            Ok(false)
        }

        /// A directory can't be opened for flushing; the file system journals its names.
        pub(crate) fn sync(&self, _name: &str) -> io::Result<()> {
            Ok(())
        }

        /// Creates a directory; returns whether it did not exist.
        pub(crate) fn create(&self, name: &str) -> io::Result<bool> {
            match std::fs::create_dir(self.0.join(name)) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error),
            }
        }
    }
}
