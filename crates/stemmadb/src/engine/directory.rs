//! The directory of a database on disk: its lock, its log and its tree, opened to write, to read, or to rebuild the tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::{DatabaseLock, DiskVfs, ReadOnlyVfs, Vfs};
use crate::options::Options;
use crate::tree::{LmdbOptions, LmdbTree, MemoryTree, Tree};
use crate::{Error, Result};

/// The tree's directory in the database's.
const TREE: &str = "tree";

/// Where the old tree waits until a rebuild has come to its end.
const TREE_BEFORE_REBUILD: &str = "tree.before-rebuild";

/// The opened files of a database, and the options to open it with.
pub(crate) struct OpenedDirectory {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) tree: Box<dyn Tree>,
    pub(crate) options: Options,
    pub(crate) path: PathBuf,
    /// To be held until everything else is closed.
    pub(crate) lock: Arc<DatabaseLock>,
}

/// Opens the files of the database at `path`; makes them if `options` say so.
pub(crate) fn open(path: &Path, options: Options) -> Result<OpenedDirectory> {
    if options.read_only {
        return open_to_read(path, options);
    }
    let (vfs, lock) = lock_to_write(path, options.create)?;
    open_locked(path, vfs, lock, options)
}

/// Gives `start` the files of the closed database at `path` without its tree. If `start` fails, the tree is put back.
pub(crate) fn rebuild<T>(path: &Path, options: Options, start: impl FnOnce(OpenedDirectory) -> Result<T>) -> Result<T> {
    let (vfs, lock) = lock_to_write(path, false)?;
    let (tree, before) = (path.join(TREE), path.join(TREE_BEFORE_REBUILD));
    if tree.exists() {
        remove_directory(&before)?;
        rename(&tree, &before)?;
    }
    let rebuilt = open_locked(path, vfs, lock.clone(), options).and_then(start);
    match &rebuilt {
        Ok(_) => remove_directory(&before)?,
        Err(_) if before.exists() => {
            remove_directory(&tree)?;
            rename(&before, &tree)?;
        }
        Err(_) => {}
    }
    drop(lock);
    rebuilt
}

/// Locks the database at `path` and opens its log to be read only.
pub(crate) fn lock_to_read(path: &Path) -> Result<(ReadOnlyVfs, DatabaseLock)> {
    refuse_strangers(path, false)?;
    let vfs = ReadOnlyVfs::new(path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    let lock = DatabaseLock::acquire(&vfs)?;
    Ok((vfs, lock))
}

/// Opens without changing anything on the disk: what recovery writes stays in memory.
fn open_to_read(path: &Path, options: Options) -> Result<OpenedDirectory> {
    let (vfs, lock) = lock_to_read(path)?;
    let tree_path = path.join(TREE);
    let has_tree = tree_path.join("data.mdb").exists();
    let tree: Box<dyn Tree> = match has_tree {
        true => Box::new(LmdbTree::open(&tree_path, &LmdbOptions { read_only: true, ..LmdbOptions::default() })?),
        false => Box::new(MemoryTree::new()),
    };
    // Nothing can be merged into a tree on the disk.
    let memory_bytes = if has_tree { usize::MAX } else { options.memory_bytes };
    let options = Options { memory_bytes, ..options };
    Ok(OpenedDirectory { vfs: Arc::new(vfs), tree, options, path: path.to_owned(), lock: Arc::new(lock) })
}

/// Takes the directory for this process; makes it if it may.
fn lock_to_write(path: &Path, create: bool) -> Result<(DiskVfs, Arc<DatabaseLock>)> {
    if !create || path.exists() {
        refuse_strangers(path, create)?;
    }
    let vfs = DiskVfs::new(path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    let lock = DatabaseLock::acquire(&vfs)?;
    Ok((vfs, Arc::new(lock)))
}

fn open_locked(path: &Path, vfs: DiskVfs, lock: Arc<DatabaseLock>, options: Options) -> Result<OpenedDirectory> {
    let tree_path = path.join(TREE);
    std::fs::create_dir_all(&tree_path).map_err(|error| Error::io(format!("create {}", tree_path.display()), error))?;
    let tree = Box::new(LmdbTree::open(&tree_path, &LmdbOptions::default())?);
    Ok(OpenedDirectory { vfs: Arc::new(vfs), tree, options, path: path.to_owned(), lock })
}

/// Refuses a path that is there but is no database, before anything is written to it.
fn refuse_strangers(path: &Path, create: bool) -> Result<()> {
    let not_a_database = |what: &str| {
        Error::invalid(format!("{} {what}", path.display()))
            .with_hint("a Stemma database is a directory with a `log` directory in it; give a new or empty directory to create one")
    };
    if !path.exists() {
        return Err(Error::not_found(format!("there is no database at {}", path.display()))
            .with_hint("check the path; `stemma import` or `stemma put` makes a new database"));
    }
    if !path.is_dir() {
        return Err(not_a_database("is a file, not a database"));
    }
    if path.join("log").is_dir() {
        return Ok(());
    }
    // A crash while a database was made leaves only these.
    let ours = [std::ffi::OsStr::new("LOCK"), std::ffi::OsStr::new(TREE)];
    let entries = path.read_dir().map_err(|error| Error::io(format!("read {}", path.display()), error))?;
    let has_strangers = entries.flatten().any(|entry| !ours.contains(&&*entry.file_name()));
    if create && !has_strangers { Ok(()) } else { Err(not_a_database("is not a Stemma database")) }
}

fn remove_directory(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to)
        .map_err(|error| Error::io(format!("rename {} to {}", from.display(), to.display()), error))
}
