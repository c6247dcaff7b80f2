//! File operations in the mirror's directory. Each file is replaced atomically.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Directory for files that are not yet renamed to their final name; removed when no write is in progress.
const TEMPORARY_DIRECTORY: &str = ".stemma-mirror.tmp";

/// Names that a directory may contain before a mirror is created in it.
const ALLOWED_NAMES: [&str; 4] = [".git", ".gitignore", ".gitattributes", TEMPORARY_DIRECTORY];

/// The directory of a mirror, locked by this process until dropped. Paths are relative to it.
pub(super) struct Disk {
    root: PathBuf,
    flush: bool,
    /// Open handle that holds the lock.
    directory: File,
}

fn fault<'p>(doing: &'p str, path: &'p Path) -> impl FnOnce(io::Error) -> Error + 'p {
    move |error| Error::io(format!("{doing} {}", path.display()), error)
}

/// Converts `NotFound` to `false`.
fn existed(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Disk {
    /// Locks the directory, creating it if needed, and removes unfinished files.
    ///
    /// # Errors
    /// `Locked` if another process holds the lock; `Unavailable` if the directory can't be created.
    pub(super) fn open(root: &Path, flush: bool) -> Result<Self> {
        fs::create_dir_all(root).map_err(fault("create", root))?;
        let directory = File::open(root).map_err(fault("open", root))?;
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::locked(format!("{} is being written by another mirror", root.display()))
                    .with_hint("end that one first"));
            }
            Err(TryLockError::Error(error)) => return Err(fault("lock", root)(error)),
        }
        let disk = Disk { root: root.to_owned(), flush, directory };
        disk.remove_all(TEMPORARY_DIRECTORY.as_ref())?;
        Ok(disk)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Refuses a directory with files that no mirror wrote.
    ///
    /// # Errors
    /// `Invalid` if there are such files.
    pub(super) fn refuse_foreign_files(&self) -> Result<()> {
        for entry in self.list(Path::new(""))? {
            if !ALLOWED_NAMES.iter().any(|name| entry == *name) {
                let path = self.root.display();
                return Err(Error::invalid(format!("{path} is neither empty nor a mirror"))
                    .with_hint("name a new or empty directory"));
            }
        }
        Ok(())
    }

    /// Called before every modification of the directory; tests inject failures here.
    fn before_step(&self) -> io::Result<()> {
        #[cfg(test)]
        interruption::before_step()?;
        Ok(())
    }

    /// Returns the names in a directory, unordered; empty if there is no such directory.
    pub(super) fn list(&self, directory: &Path) -> Result<Vec<OsString>> {
        let path = self.root.join(directory);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fault("read", &path))?,
        };
        entries.map(|entry| Ok(entry.map_err(fault("read", &path))?.file_name())).collect()
    }

    /// Returns the content of a file, or `None` if there is no such file.
    pub(super) fn read(&self, file: &Path) -> Result<Option<Vec<u8>>> {
        let path = self.root.join(file);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            content => content.map(Some).map_err(fault("read", &path)),
        }
    }

    pub(super) fn exists(&self, file: &Path) -> bool {
        self.root.join(file).exists()
    }

    pub(super) fn create_directory(&self, directory: &Path) -> Result<()> {
        let path = self.root.join(directory);
        if path.is_dir() {
            return Ok(());
        }
        self.before_step().and_then(|()| fs::create_dir_all(&path)).map_err(fault("create", &path))
    }

    /// Writes a file, atomically replacing an existing one.
    pub(super) fn write(&self, file: &Path, mut content: impl Read) -> Result<()> {
        let temporary = self.write_temporary(&mut content)?;
        self.rename_into_place(&temporary, file)
    }

    /// Like [`Disk::write`], and flushes the file and its name if flushing is enabled.
    pub(super) fn write_flushed(&self, file: &Path, mut content: &[u8]) -> Result<()> {
        let temporary = self.write_temporary(&mut content)?;
        if self.flush {
            let flushed = File::open(&temporary).and_then(|file| file.sync_all());
            flushed.map_err(fault("flush", &temporary))?;
        }
        self.rename_into_place(&temporary, file)?;
        if self.flush {
            self.directory.sync_all().map_err(fault("flush", &self.root))?;
        }
        Ok(())
    }

    fn write_temporary(&self, content: &mut dyn Read) -> Result<PathBuf> {
        self.create_directory(TEMPORARY_DIRECTORY.as_ref())?;
        let path = self.root.join(TEMPORARY_DIRECTORY).join("file");
        let written = self.before_step().and_then(|()| {
            let mut file = File::create(&path)?;
            io::copy(content, &mut file)?;
            file.flush()
        });
        written.map_err(fault("write", &path))?;
        Ok(path)
    }

    fn rename_into_place(&self, temporary: &Path, file: &Path) -> Result<()> {
        let path = self.root.join(file);
        self.before_step().and_then(|()| fs::rename(temporary, &path)).map_err(fault("write", &path))
    }

    /// Removes a file if it exists.
    pub(super) fn remove(&self, file: &Path) -> Result<()> {
        let path = self.root.join(file);
        self.before_step().and_then(|()| existed(fs::remove_file(&path))).map_err(fault("remove", &path)).map(|_| ())
    }

    /// Removes a directory if it exists and is empty.
    pub(super) fn remove_if_empty(&self, directory: &Path) -> Result<()> {
        let path = self.root.join(directory);
        match self.before_step().and_then(|()| existed(fs::remove_dir(&path))) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome.map_err(fault("remove", &path)).map(|_| ()),
        }
    }

    /// Removes a directory with its content if it exists.
    pub(super) fn remove_all(&self, directory: &Path) -> Result<()> {
        let path = self.root.join(directory);
        self.before_step().and_then(|()| existed(fs::remove_dir_all(&path))).map_err(fault("remove", &path)).map(|_| ())
    }

    /// Creates a link to `target`, a path relative to the link's directory. An existing link already has this target.
    pub(super) fn link(&self, link: &Path, target: &Path) -> Result<()> {
        let path = self.root.join(link);
        match self.before_step().and_then(|()| symlink(target, &path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome.map_err(fault("link", &path)),
        }
    }

    /// Flushes everything that was written, if flushing is enabled. Costs one call for the whole file system.
    pub(super) fn flush_all(&self) -> Result<()> {
        if !self.flush {
            return Ok(());
        }
        flush_file_system(&self.directory).map_err(fault("flush", &self.root))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Succeeds only if the directory is empty; otherwise the next open removes it.
        fs::remove_dir(self.root.join(TEMPORARY_DIRECTORY)).ok();
    }
}

#[cfg(target_os = "linux")]
fn flush_file_system(directory: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(directory)?)
}

#[cfg(all(unix, not(target_os = "linux")))]
#[expect(clippy::unnecessary_wraps, reason = "as on Linux")]
fn flush_file_system(_: &File) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn flush_file_system(_: &File) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "all files at once can't be flushed here"))
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

/// Simulates a kill of the process after a number of steps.
#[cfg(test)]
pub(super) mod interruption {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static STEPS_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets this many further steps of this thread succeed and none after them; `None`: all.
    pub(in crate::mirror) fn set(steps: Option<u64>) {
        STEPS_LEFT.set(steps);
    }

    pub(super) fn before_step() -> io::Result<()> {
        match STEPS_LEFT.get() {
            Some(0) => Err(io::Error::other("simulated kill")),
            left => {
                STEPS_LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}
