//! How is the copy's directory touched? Everything that is written there goes through here, and is done at once or not at all.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Where files are written before they get their names; gone when nobody writes.
const UNFINISHED: &str = ".stemma-mirror.tmp";

/// What may be in the directory of a new copy.
const WELCOME: [&str; 4] = [".git", ".gitignore", ".gitattributes", UNFINISHED];

/// The directory of a copy, taken by this process until dropped. Paths are relative to it.
pub(super) struct Disk {
    root: PathBuf,
    flush: bool,
    /// The directory, locked.
    directory: File,
}

fn fault<'p>(doing: &'p str, path: &'p Path) -> impl FnOnce(io::Error) -> Error + 'p {
    move |error| Error::io(format!("{doing} {}", path.display()), error)
}

/// Whether something was there.
fn if_there(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Disk {
    /// Takes the directory; makes it if there is none, and removes what was left unfinished.
    ///
    /// # Errors
    /// `Locked` if somebody else has it; `Unavailable` if it can't be made.
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
        disk.remove_all(UNFINISHED.as_ref())?;
        Ok(disk)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Refuses a directory with somebody else's files.
    ///
    /// # Errors
    /// `Invalid`.
    pub(super) fn refuse_strangers(&self) -> Result<()> {
        for entry in self.list(Path::new(""))? {
            if !WELCOME.iter().any(|name| entry == *name) {
                let place = self.root.display();
                return Err(Error::invalid(format!("{place} is neither empty nor a mirror"))
                    .with_hint("name a new or empty directory"));
            }
        }
        Ok(())
    }

    /// Whatever is done to the directory passes here first.
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        fuse::step()?;
        Ok(())
    }

    /// The names in a directory, in no order; none if there is no such directory.
    pub(super) fn list(&self, directory: &Path) -> Result<Vec<OsString>> {
        let path = self.root.join(directory);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fault("read", &path))?,
        };
        entries.map(|entry| Ok(entry.map_err(fault("read", &path))?.file_name())).collect()
    }

    /// The content of a file, if it is there.
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
        self.step().and_then(|()| fs::create_dir_all(&path)).map_err(fault("create", &path))
    }

    /// Writes a file in place of the one that is there.
    pub(super) fn write(&self, file: &Path, mut content: impl Read) -> Result<()> {
        let unfinished = self.unfinished(&mut content)?;
        self.finish(&unfinished, file)
    }

    /// As [`Disk::write`], and the file and its name are flushed, if anything is.
    pub(super) fn write_flushed(&self, file: &Path, mut content: &[u8]) -> Result<()> {
        let unfinished = self.unfinished(&mut content)?;
        if self.flush {
            let flushed = File::open(&unfinished).and_then(|file| file.sync_all());
            flushed.map_err(fault("flush", &unfinished))?;
        }
        self.finish(&unfinished, file)?;
        if self.flush {
            self.directory.sync_all().map_err(fault("flush", &self.root))?;
        }
        Ok(())
    }

    fn unfinished(&self, content: &mut dyn Read) -> Result<PathBuf> {
        self.create_directory(UNFINISHED.as_ref())?;
        let path = self.root.join(UNFINISHED).join("file");
        let written = self.step().and_then(|()| {
            let mut file = File::create(&path)?;
            io::copy(content, &mut file)?;
            file.flush()
        });
        written.map_err(fault("write", &path))?;
        Ok(path)
    }

    fn finish(&self, unfinished: &Path, file: &Path) -> Result<()> {
        let path = self.root.join(file);
        self.step().and_then(|()| fs::rename(unfinished, &path)).map_err(fault("write", &path))
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, file: &Path) -> Result<()> {
        let path = self.root.join(file);
        self.step().and_then(|()| if_there(fs::remove_file(&path))).map_err(fault("remove", &path)).map(|_| ())
    }

    /// Removes a directory, if it is there and has nothing in it.
    pub(super) fn remove_if_empty(&self, directory: &Path) -> Result<()> {
        let path = self.root.join(directory);
        match self.step().and_then(|()| if_there(fs::remove_dir(&path))) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome.map_err(fault("remove", &path)).map(|_| ()),
        }
    }

    /// Removes a directory and all that is in it, if it is there.
    pub(super) fn remove_all(&self, directory: &Path) -> Result<()> {
        let path = self.root.join(directory);
        self.step().and_then(|()| if_there(fs::remove_dir_all(&path))).map_err(fault("remove", &path)).map(|_| ())
    }

    /// Makes `link` lead to `target`, a path as seen from the link's directory. One that is there does so already.
    pub(super) fn link(&self, link: &Path, target: &Path) -> Result<()> {
        let path = self.root.join(link);
        match self.step().and_then(|()| symlink(target, &path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome.map_err(fault("link", &path)),
        }
    }

    /// Flushes all that was written, if anything is to be flushed. Costs one call for the whole file system.
    pub(super) fn flush_all(&self) -> Result<()> {
        if !self.flush {
            return Ok(());
        }
        flush_file_system(&self.directory).map_err(fault("flush", &self.root))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Only if it is empty; the next one looks after the rest.
        fs::remove_dir(self.root.join(UNFINISHED)).ok();
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

/// Breaks off, as if the process were killed.
#[cfg(test)]
pub(super) mod fuse {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static STEPS_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on so many steps of this thread pass, and none after them; or all.
    pub(in crate::mirror) fn set(steps: Option<u64>) {
        STEPS_LEFT.set(steps);
    }

    pub(super) fn step() -> io::Result<()> {
        match STEPS_LEFT.get() {
            Some(0) => Err(io::Error::other("the fuse has blown")),
            left => {
                STEPS_LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}
