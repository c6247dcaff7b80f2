//! The directory of a database on disk: opens its lock, log and tree for writing, for reading, or for rebuilding the
//! tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::{DatabaseLock, DiskVfs, ReadOnlyVfs, Vfs};
use crate::options::Options;
use crate::tree::{LmdbOptions, LmdbTree, MemoryTree, Tree};
use crate::{Error, Result};

/// The tree's directory within the database directory.
const TREE: &str = "tree";

/// Holds the old tree until a rebuild has succeeded.
const TREE_BEFORE_REBUILD: &str = "tree.before-rebuild";

/// The opened files of a database, and the options to open it with.
pub(crate) struct OpenedDirectory {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) tree: Box<dyn Tree>,
    pub(crate) options: Options,
    pub(crate) path: PathBuf,
    /// Must be held until all other files are closed.
    pub(crate) lock: Arc<DatabaseLock>,
}

/// Opens the files of the database at `path`; creates them if `options` allow it.
pub(crate) fn open(path: &Path, options: Options) -> Result<OpenedDirectory> {
    if options.read_only {
        return open_to_read(path, options);
    }
    let (vfs, lock) = lock_to_write(path, options.create)?;
    open_locked(path, vfs, lock, options)
}

/// Calls `start` with the files of the closed database at `path` and an empty tree. If `start` fails, the old tree is
/// restored.
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

/// Locks the database at `path` and opens its log for reading only.
pub(crate) fn lock_to_read(path: &Path) -> Result<(ReadOnlyVfs, DatabaseLock)> {
    refuse_strangers(path, false)?;
    let vfs = ReadOnlyVfs::new(path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    let lock = DatabaseLock::acquire(&vfs)?;
    Ok((vfs, lock))
}

/// Opens the files without changing anything on disk: what recovery writes stays in memory.
fn open_to_read(path: &Path, options: Options) -> Result<OpenedDirectory> {
    let (vfs, lock) = lock_to_read(path)?;
    let tree_path = path.join(TREE);
    let has_tree = tree_path.join("data.mdb").exists();
    let tree: Box<dyn Tree> = match has_tree {
        true => Box::new(LmdbTree::open(&tree_path, &LmdbOptions { read_only: true, ..LmdbOptions::default() })?),
        false => Box::new(MemoryTree::new()),
    };
    // Nothing can be merged into a read-only tree on disk, so the memtables hold everything.
    let memory_bytes = if has_tree { usize::MAX } else { options.memory_bytes };
    let options = Options { memory_bytes, ..options };
    Ok(OpenedDirectory { vfs: Arc::new(vfs), tree, options, path: path.to_owned(), lock: Arc::new(lock) })
}

/// Locks the directory for this process; creates it if `create` is set.
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

/// Returns an error if the path exists but is not a database, before anything is written to it.
fn refuse_strangers(path: &Path, create: bool) -> Result<()> {
    let not_a_database = |what: &str| {
        Error::invalid(format!("{} {what}", path.display())).with_hint(
            "a Stemma database is a directory with a `log` directory in it; \
                 give a new or empty directory to create one",
        )
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
    // A crash during creation leaves only these.
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
