//! The directory of a database on disk: opens its lock, log and tree for writing, for reading, or for rebuilding the
//! tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::{CacheBudgets, CacheShares};
use crate::cipher::{EncryptionKey, KEY_FILE};
use crate::engine::{key_file, shipped_tree};
use crate::layout::meta;
use crate::layout::posting_operand::PostingOperator;
use crate::log::{LogPosition, history_name, segment_numbers};
use crate::options::{LogStorageOption, Options};
use crate::tree::{Tree, TreeOptions};
use crate::vfs::{DatabaseLock, DiskVfs, GatedVfs, LogRole, LogStorage, MemoryVfs, ReadOnlyVfs, StoredVfs, Vfs};
use crate::{Error, Result};

/// The tree's directory within the database directory.
pub(crate) const TREE: &str = "tree";

/// The directory of a log within the database directory.
const LOG: &str = "log";

/// Holds the old tree until a rebuild has succeeded.
const TREE_BEFORE_REBUILD: &str = "tree.before-rebuild";

/// The opened files of a database, and the options to open it with.
pub(crate) struct OpenedDirectory {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) tree: Tree,
    pub(crate) options: Options,
    pub(crate) path: PathBuf,
    /// Must be held until all other files are closed.
    pub(crate) lock: Arc<DatabaseLock>,
}

/// How many segments the copy of the tree in the store may be ahead of the tree of a replica, which is used then:
/// replaying them is cheaper than fetching the copy.
const SEGMENTS_BEHIND_MAX: u32 = 4;

/// Opens the files of the database at `path`; creates them if `options` allow it.
pub(crate) fn open(path: &Path, options: Options) -> Result<OpenedDirectory> {
    if let Some(storage) = options.log_storage.of(path) {
        return open_stored(path, storage, options, false);
    }
    if options.read_only {
        return open_to_read(path, options);
    }
    let (vfs, lock) = lock_to_write(path, options.create)?;
    open_locked(path, vfs, lock, options)
}

/// Calls `start` with the files of the closed database at `path` and an empty tree. If `start` fails, the old tree is
/// restored.
pub(crate) fn rebuild<T>(path: &Path, options: Options, start: impl FnOnce(OpenedDirectory) -> Result<T>) -> Result<T> {
    if let Some(storage) = options.log_storage.of(path) {
        return start(open_stored(path, storage, options, true)?);
    }
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

/// Begins to encrypt the closed database at `path`: see [`key_file::begin_encryption`].
pub(crate) fn begin_encryption(path: &Path, key: &EncryptionKey) -> Result<()> {
    let (vfs, _lock) = lock_to_write(path, false)?;
    key_file::begin_encryption(&vfs, key)
}

/// Begins to decrypt the closed database at `path`: see [`key_file::begin_decryption`].
pub(crate) fn begin_decryption(path: &Path, key: &EncryptionKey) -> Result<()> {
    let (vfs, _lock) = lock_to_write(path, false)?;
    key_file::begin_decryption(&vfs, key)
}

/// Locks the database at `path` and opens its log for reading only.
pub(crate) fn lock_to_read(path: &Path) -> Result<(GatedVfs<ReadOnlyVfs>, DatabaseLock)> {
    refuse_strangers(path, false)?;
    let vfs = ReadOnlyVfs::new(path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    let vfs = GatedVfs::new(vfs);
    let lock = DatabaseLock::acquire_with_gate(&vfs)?;
    Ok((vfs, lock))
}

/// Opens the files without changing anything on disk: what recovery writes stays in memory.
fn open_to_read(path: &Path, options: Options) -> Result<OpenedDirectory> {
    let (vfs, lock) = lock_to_read(path)?;
    let vfs = key_file::unlock(Arc::new(vfs), options.encryption.as_ref(), true)?;
    let tree = open_tree(vfs.clone(), &options)?;
    // Without a complete tree, one is built in memory. Nothing can be merged into a read-only tree on disk, so the
    // memtables hold everything.
    let (tree, memory_bytes) = match is_complete(&tree)? {
        true => (tree, usize::MAX),
        false => (memory_tree(&options)?, options.memory_bytes),
    };
    let options = Options { memory_bytes, ..options };
    Ok(OpenedDirectory { vfs, tree, options, path: path.to_owned(), lock: Arc::new(lock) })
}

/// Whether recovery can go on from a tree. Otherwise it is rebuilt: nothing was merged into it yet, or its rebuild was
/// interrupted.
fn is_complete(tree: &Tree) -> Result<bool> {
    let snapshot = tree.read();
    Ok(meta::checkpoint(&snapshot)?.is_some() && meta::settings(&snapshot)?.is_some())
}

/// Locks the directory for this process; creates it if `create` is set.
fn lock_to_write(path: &Path, create: bool) -> Result<(GatedVfs<DiskVfs>, Arc<DatabaseLock>)> {
    if !create || path.exists() {
        refuse_strangers(path, create)?;
    }
    let vfs = DiskVfs::new(path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    let vfs = GatedVfs::new(vfs);
    let lock = DatabaseLock::acquire_with_gate(&vfs)?;
    Ok((vfs, Arc::new(lock)))
}

/// Takes over a log in a store; the directory at `path` holds what is derived from it. `is_fresh`: whether the tree is
/// built again.
fn open_stored(path: &Path, storage: Arc<dyn LogStorage>, options: Options, is_fresh: bool) -> Result<OpenedDirectory> {
    if options.read_only {
        return Err(Error::invalid("a database whose log is in a store can't be opened for reading only")
            .with_hint("open it for writing, or restore a backup and read that"));
    }
    let (stored, vfs, lock) = take_over(path, storage, &options)?;
    if !options.create && is_empty(&stored)? {
        return Err(no_log());
    }
    let vfs = key_file::unlock(vfs, options.encryption.as_ref(), false)?;
    let tree = open_newest_tree(&stored, &vfs, &options, is_fresh)?;
    Ok(OpenedDirectory { vfs, tree, options, path: path.to_owned(), lock })
}

/// The files of a database to be, whose log is to be in a store. The lock must be held until they are complete.
///
/// # Errors
/// `Invalid` if the store has the log already.
pub(crate) fn create_stored(path: &Path, storage: Arc<dyn LogStorage>) -> Result<(Arc<dyn Vfs>, Arc<DatabaseLock>)> {
    let (stored, vfs, lock) = take_over(path, storage, &Options::new())?;
    match is_empty(&stored)? {
        true => Ok((vfs, lock)),
        false => Err(Error::invalid("the store has a log of this name already").with_hint("name another one")),
    }
}

/// Takes over a log in a store; the directory at `path` is to have what is derived from it.
fn take_over(
    path: &Path,
    storage: Arc<dyn LogStorage>,
    options: &Options,
) -> Result<(StoredVfs, Arc<dyn Vfs>, Arc<DatabaseLock>)> {
    let local = DiskVfs::new(path).map_err(|error| Error::io(format_args!("open {}", path.display()), error))?;
    refuse_log(&local, path)?;
    let role = LogRole::Owner(options.retired_segment_delay);
    let stored = StoredVfs::new(Arc::new(local), storage, is_derived, role, options.log_copies.clone());
    let vfs = GatedVfs::new(stored.clone());
    let lock = Arc::new(DatabaseLock::acquire_with_gate(&vfs)?);
    stored.take_over().map_err(|error| Error::io("take over the log", error))?;
    Ok((stored, Arc::new(vfs), lock))
}

/// Whether a log in a store has no segments.
fn is_empty(stored: &StoredVfs) -> Result<bool> {
    let segments = stored.list(LOG).map_err(|error| Error::io("list the log", error))?;
    Ok(segments.is_empty())
}

/// Creates the files of a database in memory. In test builds, its log may be in a store.
pub(crate) fn in_memory(options: &Options) -> Result<(Arc<dyn Vfs>, Tree)> {
    let local = Arc::new(MemoryVfs::new());
    let Some(storage) = LogStorageOption::in_memory() else {
        let vfs = key_file::unlock(local, options.encryption.as_ref(), false)?;
        let tree = open_tree(vfs.clone(), options)?;
        return Ok((vfs, tree));
    };
    let role = LogRole::Owner(options.retired_segment_delay);
    let stored = StoredVfs::new(local, storage, is_derived, role, options.log_copies.clone());
    stored.take_over().map_err(|error| Error::io("take over the log", error))?;
    let vfs = key_file::unlock(Arc::new(stored.clone()), options.encryption.as_ref(), false)?;
    let tree = open_newest_tree(&stored, &vfs, options, false)?;
    Ok((vfs, tree))
}

/// Opens a replica of the database whose log is in a store: the directory at `path` has what is derived from the log,
/// and copies of all segments. `before`: another directory of the same log, whose copies are used.
pub(crate) fn open_replica(
    path: &Path,
    storage: Arc<dyn LogStorage>,
    options: Options,
    before: Option<&Path>,
) -> Result<(OpenedDirectory, StoredVfs)> {
    let opened = |error| Error::io(format_args!("open {}", path.display()), error);
    let local = DiskVfs::new(path).map_err(opened)?;
    refuse_log(&local, path)?;
    if let Some(before) = before {
        let before = DiskVfs::new(before).map_err(opened)?;
        StoredVfs::link_copies(&local, &before).map_err(opened)?;
    }
    let stored = StoredVfs::new(Arc::new(local), storage, is_derived, LogRole::Replica, None);
    let vfs = GatedVfs::new(stored.clone());
    let lock = Arc::new(DatabaseLock::acquire_with_gate(&vfs)?);
    stored.take_over().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => no_log().with_hint("its owner creates it: try again"),
        _ => Error::io("look at the log", error),
    })?;
    if stored.list(LOG).map_err(opened)?.is_empty() {
        return Err(no_log().with_hint("its owner is creating it: try again"));
    }
    stored.fetch_segments().map_err(|error| Error::io("copy the log", error))?;
    let vfs = key_file::unlock(Arc::new(vfs), options.encryption.as_ref(), true)?;
    let tree = open_newest_tree(&stored, &vfs, &options, false)?;
    let files = tree.export().identified_files();
    let copied = stored.copy_lent(files.iter().map(|file| file.path.as_str()));
    copied.map_err(|error| Error::io("copy the tree", error))?;
    Ok((OpenedDirectory { vfs, tree, options, path: path.to_owned(), lock }, stored))
}

/// The directory of the replica with this number, below that of all of them.
pub(crate) fn generation(path: &Path, number: u32) -> PathBuf {
    path.join(number.to_string())
}

/// The numbers of the replicas below a directory, in order.
pub(crate) fn generations(path: &Path) -> Result<Vec<u32>> {
    let failed = |error| Error::io(format_args!("read {}", path.display()), error);
    let entries = match path.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Deletes the directories of all replicas but one, except those that are open. What can't be deleted is tried again
/// the next time.
pub(crate) fn remove_other_generations(path: &Path, kept: u32) {
    for number in generations(path).unwrap_or_default().into_iter().filter(|number| *number != kept) {
        let directory = generation(path, number);
        let is_unused = DiskVfs::new(&directory).is_ok_and(|files| DatabaseLock::acquire(&files).is_ok());
        if is_unused {
            remove_directory(&directory).ok();
        }
    }
}

fn no_log() -> Error {
    Error::not_found("the store has no log of this database")
}

/// Opens the tree in the directory, or the copy in the store if that is newer, or an empty one if replay can continue
/// from neither.
fn open_newest_tree(stored: &StoredVfs, vfs: &Arc<dyn Vfs>, options: &Options, is_fresh: bool) -> Result<Tree> {
    let failed = |error| Error::io("open the tree", error);
    if !is_fresh {
        let behind_max = if options.is_replica { SEGMENTS_BEHIND_MAX } else { 0 };
        let shipped = shipped_tree::position(&**vfs)?;
        if let Some((tree, position)) = open_usable(stored, vfs, options)
            && shipped.is_none_or(|shipped| shipped.segment() <= position.segment() + behind_max)
        {
            return Ok(tree);
        }
        if let Some(shipped) = shipped {
            stored.remove_derived(TREE).map_err(failed)?;
            shipped_tree::adopt(vfs, shipped).map_err(failed)?;
            if let Some((tree, _)) = open_usable(stored, vfs, options) {
                return Ok(tree);
            }
        }
    }
    stored.remove_derived(TREE).map_err(failed)?;
    stored.end_lending();
    open_tree(vfs.clone(), options)
}

/// The tree, with the position of its checkpoint, if replay can continue from it. One that is damaged is built again.
fn open_usable(stored: &StoredVfs, vfs: &Arc<dyn Vfs>, options: &Options) -> Option<(Tree, LogPosition)> {
    shipped_tree::lend(stored).ok()?;
    let tree = open_tree(vfs.clone(), options).ok()?;
    let position = continuation(&tree, &**vfs).ok()??;
    shipped_tree::has_all_files(&tree, stored).then_some((tree, position))
}

/// Whether a name belongs to a file that is derived from the log.
fn is_derived(name: &str) -> bool {
    name == TREE || name.strip_prefix(TREE).is_some_and(|rest| rest.starts_with(['/', '.']))
}

/// Returns an error if the directory has a log of its own, which would be ignored.
fn refuse_log(local: &DiskVfs, path: &Path) -> Result<()> {
    let names = local.list(LOG).map_err(|error| Error::io(format_args!("list {}", path.display()), error))?;
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!("{} has a log of its own, so it can't be that of a log in a store", path.display()))
        .with_hint("give another directory, or open the database without a log storage"))
}

/// Where replay continues from the tree, if it can: the log still has everything from there on, and everything that the
/// tree refers to. Another owner may have compacted the log since.
fn continuation(tree: &Tree, vfs: &dyn Vfs) -> Result<Option<LogPosition>> {
    let snapshot = tree.read();
    let Some(checkpoint) = meta::checkpoint(&snapshot)? else { return Ok(None) };
    let (from, segments) = (checkpoint.replay_from, segment_numbers(vfs)?);
    let last = segments.last().copied().unwrap_or(0).max(from.segment());
    let live = meta::live_bytes(&snapshot)?.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(number, _)| number);
    let has_segments = (from.segment()..=last).chain(live).all(|number| segments.contains(&number));
    let has_history = meta::history_files(&snapshot)?.iter().all(|number| vfs.open(&history_name(*number)).is_ok());
    Ok((has_segments && has_history).then_some(from))
}

fn open_locked(
    path: &Path,
    vfs: GatedVfs<DiskVfs>,
    lock: Arc<DatabaseLock>,
    options: Options,
) -> Result<OpenedDirectory> {
    let vfs = key_file::unlock(Arc::new(vfs), options.encryption.as_ref(), false)?;
    let tree = open_tree(vfs.clone(), &options)?;
    Ok(OpenedDirectory { vfs, tree, options, path: path.to_owned(), lock })
}

/// The budgets of the caches.
pub(crate) fn cache_budgets(options: &Options) -> CacheBudgets {
    CacheBudgets::of(options.cache_bytes, options.index_cache_bytes, options.document_cache_bytes)
}

/// Opens the tree of the database in `vfs`; an empty one if there is none.
pub(crate) fn open_tree(vfs: Arc<dyn Vfs>, options: &Options) -> Result<Tree> {
    let tree_options = TreeOptions {
        cache_bytes: CacheShares::of(cache_budgets(options)).tree_bytes,
        file_bytes: options.tree_file_bytes,
        read_only: options.read_only,
        operator: Arc::new(PostingOperator),
    };
    Tree::open(vfs, TREE, tree_options)
}

/// An empty tree in memory.
pub(crate) fn memory_tree(options: &Options) -> Result<Tree> {
    open_tree(Arc::new(MemoryVfs::new()), &Options { read_only: false, ..options.clone() })
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
    let ours = ["LOCK", TREE, KEY_FILE, "KEYS.new"].map(std::ffi::OsStr::new);
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
