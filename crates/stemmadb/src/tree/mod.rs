//! Tree: ordered tables derived from the log, which can be rebuilt from it. A log-structured merge tree.
//!
//! Each commit writes one *run*: its entries in key order, in a file that never changes. Reads merge the runs, the
//! newest first; merges in the background replace several runs by one. The manifest lists the runs.
//!
//! ```text
//! put, merge, delete ──► TreeTransaction ──commit──► run ─┐
//!                                                         ├──► manifest ──► current version ──► TreeSnapshot
//!                         several runs ──merge_step──► run ┘
//! ```
//!
//! Invariants:
//! - A [`TreeSnapshot`] never changes, blocks nobody, and keeps the files that it reads.
//! - A [`TreeTransaction`] is atomic. When `commit` returns, it is durable, and every later [`Tree::read`] sees it.
//! - A read returns exactly what was written, or fails with `Corrupt`: everything read is verified by checksum.
//!   `verify` finds all damage.
//! - Merges change how rows are stored, never which rows there are.
//!
//! Concurrency: any number of snapshots on any threads, and one transaction at a time (`write` waits for the previous
//! one, so a thread that holds a transaction must not start another). Merges run beside transactions. Locks are taken
//! in the order `merging`, `writer`, `installer`, `current`.

mod batch;
mod block;
mod cache;
mod directory;
mod export;
mod filter;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod lookup;
mod manifest;
mod merge;
mod merging;
mod run;
mod run_file;
#[cfg(test)]
pub(crate) mod trace;
mod verify;
mod version;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) use batch::TreeTransaction;
pub(crate) use block::{common_prefix, key_head};
pub(crate) use export::{IdentifiedFile, ListedFiles, TreeExport, is_file_name, manifest_path, run_path};
pub(crate) use merge::Scan;
pub(crate) use merging::MergeGoal;
pub(crate) use version::TreeSnapshot;

use crate::compression::Compression;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::vfs::Vfs;
use crate::{Error, Result};
use directory::TreeDirectory;
use manifest::{Manifest, RunList};
use merging::MergeState;
use run::{FileSlice, Run, StoredKey};
use run_file::{FileRecord, RunFile};
use version::Version;

/// The version of the formats of manifest and run files. A tree in an older one is computed again.
const FORMAT_VERSION: u32 = 3;

/// Hint for errors about a damaged tree.
const REBUILD: &str = "run `stemma rebuild`: the tree is computed again from the log, nothing is lost";

/// Maximum length of a key in bytes; the minimum is 1.
pub(crate) const KEY_BYTES_MAX: usize = 511;

/// A manifest that is longer than this part of the size of a file is replaced by one with a single list.
const MANIFEST_PART: u64 = 32;

/// Every stored key begins with the number of its table.
const TABLE_BYTES: usize = 1;

/// One ordered map of a tree. Its number begins the stored keys: never reuse a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Table {
    /// Counters, checkpoint position, dictionaries.
    Meta = 0,
    /// Document id to document number.
    Ids = 1,
    /// Document number to document.
    Docs = 2,
    /// Sequence to document number.
    Sequences = 3,
    /// Path, value and chunk to a container of document numbers.
    Postings = 4,
    /// `_local` documents.
    Local = 5,
    /// Rows and partial reductions of views.
    Views = 6,
    /// Digest of an attachment's content to its record in the log.
    Contents = 7,
}

impl Table {
    /// Every table, in the order of their numbers.
    pub(crate) const ALL: [Table; 8] = [
        Table::Meta,
        Table::Ids,
        Table::Docs,
        Table::Sequences,
        Table::Postings,
        Table::Local,
        Table::Views,
        Table::Contents,
    ];

    /// Its name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Ids => "ids",
            Table::Docs => "docs",
            Table::Sequences => "sequences",
            Table::Postings => "postings",
            Table::Local => "local",
            Table::Views => "views",
            Table::Contents => "contents",
        }
    }

    fn index(self) -> usize {
        self as usize
    }

    /// A key of the table as it is stored.
    fn stored_key(self, key: &[u8]) -> StoredKey {
        let mut stored = StoredKey::with_capacity(TABLE_BYTES + key.len());
        stored.push(self as u8);
        stored.extend_from_slice(key);
        stored
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the lower bound upwards.
    Ascending,
    /// From the upper bound downwards.
    Descending,
}

/// A row, valid until the scan advances: its key and its value.
pub(crate) type Row<'a> = (&'a [u8], &'a [u8]);

/// Bytes of a cached block. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Slice {
    bytes: Arc<[u8]>,
    start: u32,
    end: u32,
}

impl std::ops::Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start as usize..self.end as usize]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl From<&[u8]> for Slice {
    fn from(bytes: &[u8]) -> Self {
        Slice { bytes: bytes.into(), start: 0, end: bytes.len() as u32 }
    }
}

impl From<&Arc<[u8]>> for Slice {
    fn from(bytes: &Arc<[u8]>) -> Self {
        Slice { bytes: bytes.clone(), start: 0, end: bytes.len() as u32 }
    }
}

/// How the operands that [`TreeTransaction::merge`] writes add up to a value.
pub(crate) trait MergeOperator: Send + Sync {
    /// Appends one operand with the effect of `older` and then `newer`. Must be associative.
    ///
    /// # Errors
    /// `Corrupt` if one of them is not an operand.
    fn combine(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// The value that an operand stands for if nothing older exists; none if there is no row then. A value is an
    /// operand too.
    ///
    /// # Errors
    /// `Corrupt` if it is not an operand.
    fn finish<'a>(&self, operand: &'a [u8]) -> Result<Option<&'a [u8]>>;

    /// Whether an operand removes anything from what is older.
    fn removes(&self, operand: &[u8]) -> bool;
}

/// Size of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TreeSize {
    /// Bytes of all run files that are listed or still being read.
    pub(crate) file_bytes: u64,
    /// Bytes of the listed run files.
    pub(crate) live_bytes: u64,
    /// Memory used by cached blocks, block indexes and filters.
    pub(crate) memory_bytes: u64,
}

/// How a tree is opened.
pub(crate) struct TreeOptions {
    /// Memory for block indexes, filters and blocks that were read, in bytes.
    pub(crate) cache_bytes: u64,
    /// The size of a file, in bytes.
    pub(crate) file_bytes: u64,
    /// Nothing is written; the directory may be missing.
    pub(crate) read_only: bool,
    pub(crate) operator: Arc<dyn MergeOperator>,
}

/// Ordered tables with snapshots and one writer.
pub(crate) struct Tree {
    directory: Arc<TreeDirectory>,
    is_read_only: bool,
    file_bytes: u64,
    /// The code of the compression of new files.
    compression: std::sync::atomic::AtomicU8,
    operator: Arc<dyn MergeOperator>,
    /// Held by the transaction.
    writer: Mutex<()>,
    /// Held during one step of a merge.
    merging: Mutex<MergeState>,
    installer: Mutex<Installer>,
    current: RwLock<Arc<Version>>,
    run_count: AtomicUsize,
    closed: Arc<ClosedFlag>,
}

/// Whether the tree was closed. Shared by its snapshots and scans, which may outlive it.
#[derive(Default)]
struct ClosedFlag(std::sync::atomic::AtomicBool);

impl ClosedFlag {
    fn refuse(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) { Err(Error::database_closed()) } else { Ok(()) }
    }
}

/// What changes the list of runs.
struct Installer {
    manifest: Manifest,
    next_file: u64,
    next_run: u64,
    /// The ranges removed while a step of a merge is running: its result must not contain them.
    removed_ranges: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Earlier versions that snapshots may still read, the oldest first.
    past: Vec<PastVersion>,
}

/// A version that another one has replaced.
struct PastVersion {
    version: Weak<Version>,
    replaced_at: Instant,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("directory", &self.directory.path).finish_non_exhaustive()
    }
}

impl Tree {
    /// Opens the tree in `directory`; an empty one if there is no manifest, or one in an older format. Reads only the
    /// manifest and the names of the files; files are opened when they are first read. Files that the manifest does not
    /// list are deleted.
    ///
    /// # Errors
    /// `Corrupt` if the manifest is damaged, or a file is missing.
    pub(crate) fn open(vfs: Arc<dyn Vfs>, directory: &str, options: TreeOptions) -> Result<Self> {
        let (manifest, list) = Manifest::open(vfs.clone(), directory, options.file_bytes / MANIFEST_PART)?;
        let is_new = list.is_none();
        let list = list.unwrap_or_default();
        let directory = Arc::new(TreeDirectory::new(vfs, directory, options.cache_bytes));
        let mut files: HashMap<u64, Arc<RunFile>> = HashMap::new();
        let mut open_slice = |slice: manifest::SliceRecord| {
            // The slices of one file share it, so that it is deleted once.
            let file = files.entry(slice.file.number);
            let file = file.or_insert_with(|| Arc::new(RunFile::new(directory.clone(), slice.file))).clone();
            FileSlice { file, lower: slice.lower.map(Into::into), upper: slice.upper.map(Into::into) }
        };
        let open_run = |run: manifest::RunRecord| {
            let slices = run.slices.into_iter().map(&mut open_slice).collect();
            Arc::new(Run { id: run.id, is_merged: run.is_merged, slices })
        };
        let runs = list.runs.into_iter().map(open_run).collect();
        drop(files);
        let version = Version { runs, state: list.state };
        let installer = Installer {
            manifest,
            next_file: list.next_file.max(1),
            next_run: list.next_run.max(1),
            removed_ranges: None,
            past: Vec::new(),
        };
        let tree = Tree {
            directory,
            is_read_only: options.read_only,
            file_bytes: options.file_bytes,
            compression: std::sync::atomic::AtomicU8::new(Compression::None.code()),
            operator: options.operator,
            writer: Mutex::new(()),
            merging: Mutex::default(),
            installer: Mutex::new(installer),
            run_count: version.runs.len().into(),
            closed: Arc::default(),
            current: RwLock::new(Arc::new(version)),
        };
        let names = tree.file_names()?;
        tree.refuse_missing_files(&names)?;
        if !options.read_only {
            if is_new {
                tree.create_directory()?;
            }
            tree.delete_unlisted_files(names)?;
        }
        Ok(tree)
    }

    /// Sets the compression of files that are written from now on; none at first.
    pub(crate) fn set_compression(&self, compression: Compression) {
        self.compression.store(compression.code(), Ordering::Relaxed);
    }

    fn compression(&self) -> Compression {
        Compression::from_code(self.compression.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn create_directory(&self) -> Result<()> {
        let TreeDirectory { vfs, path, .. } = &*self.directory;
        vfs.create_dir_all(path).map_err(|error| Error::io(format_args!("create {path}"), error))
    }

    /// Returns `Corrupt` if a listed file does not exist, as in a copy that was made while files were merged.
    fn refuse_missing_files(&self, names: &[String]) -> Result<()> {
        let present: HashSet<u64> = names.iter().filter_map(|name| run_file::number_of(name)).collect();
        match self.current.read().file_numbers().difference(&present).min() {
            Some(number) => Err(run_file::missing(&self.directory.file_path(*number))),
            None => Ok(()),
        }
    }

    fn file_names(&self) -> Result<Vec<String>> {
        let TreeDirectory { vfs, path, .. } = &*self.directory;
        vfs.list(path).map_err(|error| Error::io(format_args!("list {path}"), error))
    }

    /// Deletes the files of earlier lists and versions.
    fn delete_unlisted_files(&self, names: Vec<String>) -> Result<()> {
        let unlisted = self.unlisted(names);
        if !unlisted.is_empty() {
            self.settle()?;
        }
        for name in unlisted {
            let path = format!("{}/{name}", self.directory.path);
            match self.directory.vfs.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(format_args!("delete {path}"), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of files that the current version does not list.
    fn unlisted(&self, mut names: Vec<String>) -> Vec<String> {
        let listed = self.current.read().file_numbers();
        names.retain(|name| {
            let is_listed = run_file::number_of(name).is_some_and(|number| listed.contains(&number));
            !is_listed && name != manifest::NAME
        });
        names
    }

    /// The newest committed state. Costs a clone of an `Arc`. It may outlive the tree.
    pub(crate) fn read(&self) -> Arc<TreeSnapshot> {
        Arc::new(self.snapshot_of(self.current.read().clone()))
    }

    fn snapshot_of(&self, version: Arc<Version>) -> TreeSnapshot {
        TreeSnapshot::new(version, self.operator.clone(), self.closed.clone())
    }

    /// Makes all later reads fail, by whatever snapshot or scan.
    pub(crate) fn close(&self) {
        self.closed.0.store(true, Ordering::Release);
    }

    /// Returns an error once the tree is closed.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn refuse_if_closed(&self) -> Result<()> {
        self.closed.refuse()
    }

    /// Starts a transaction after waiting for the previous one. Dropping it rolls it back.
    ///
    /// # Errors
    /// `Unavailable` if the tree was opened for reading only.
    pub(crate) fn write(&self) -> Result<TreeTransaction<'_>> {
        if self.is_read_only {
            return Err(Error::unavailable("the tree was opened for reading only"));
        }
        Ok(TreeTransaction::new(self, self.writer.lock()))
    }

    /// Removes every row, in one transaction.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut transaction = self.write()?;
        transaction.remove_stored_range(Vec::new(), vec![u8::MAX]);
        transaction.commit()
    }

    /// Changes the size of the block cache.
    pub(crate) fn set_cache_bytes(&self, bytes_max: u64) {
        self.directory.cache.set_bytes_max(bytes_max);
    }

    /// The current size. Reads nothing.
    pub(crate) fn size(&self) -> TreeSize {
        let retired_bytes = self.directory.retired_bytes();
        let version = self.current.read().clone();
        let live_bytes = version.byte_count();
        TreeSize { file_bytes: live_bytes + retired_bytes, live_bytes, memory_bytes: self.directory.cache.byte_count() }
    }

    /// Closes all files, which are opened again when they are next read: an idle tree has no open file.
    pub(crate) fn close_files(&self) {
        let version = self.current.read().clone();
        version.runs.iter().flat_map(|run| &run.slices).for_each(|slice| slice.file.close());
    }

    /// The oldest state that snapshots read, if it is not the current one; and how long ago another one replaced it.
    pub(crate) fn oldest_past(&self) -> Option<(TreeSnapshot, Duration)> {
        let installer = self.installer.lock();
        let mut alive = installer.past.iter().filter_map(|past| Some((past.version.upgrade()?, past.replaced_at)));
        let (version, replaced_at) = alive.next()?;
        Some((self.snapshot_of(version), replaced_at.elapsed()))
    }

    /// The number of runs that reads have to merge. Costs an atomic load.
    pub(crate) fn run_count(&self) -> usize {
        self.run_count.load(Ordering::Relaxed)
    }

    fn allocate_file(&self) -> u64 {
        let mut installer = self.installer.lock();
        let number = installer.next_file;
        installer.next_file += 1;
        number
    }

    fn open_file(&self, record: FileRecord) -> Arc<RunFile> {
        Arc::new(RunFile::new(self.directory.clone(), record))
    }

    /// Makes the names of new files durable.
    fn sync_directory(&self) -> Result<()> {
        let TreeDirectory { vfs, path, .. } = &*self.directory;
        vfs.sync_dir(path).map_err(|error| Error::io(format_args!("flush {path}"), error))
    }

    /// Makes sure that the current list of runs is durable, before something is deleted that it does not need. The list
    /// that was read when the tree was opened may not be.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut installer = self.installer.lock();
        if self.is_read_only || installer.manifest.is_absent() {
            return Ok(());
        }
        let list = installer.list(&self.current.read());
        installer.manifest.settle(&list)
    }

    /// Writes all files again that are encrypted otherwise than new ones, and the list of runs.
    ///
    /// # Errors
    /// Those of [`Tree::merge_all`].
    pub(crate) fn reencrypt(&self) -> Result<()> {
        let is_done = || {
            let version = self.current.read().clone();
            !version.runs.iter().any(|run| run.files().any(|file| file.is_stored_otherwise(self.compression())))
        };
        while !is_done() {
            self.merge_all()?;
        }
        let mut installer = self.installer.lock();
        if installer.manifest.is_absent() {
            return Ok(());
        }
        let list = installer.list(&self.current.read());
        installer.manifest.install_anew(&list)
    }

    /// Replaces the list of runs by what `change` makes of it, durably. Files that are no longer listed are deleted
    /// once they are no longer read.
    fn install(&self, change: impl FnOnce(&mut Installer, &Version) -> Version) -> Result<()> {
        let mut installer = self.installer.lock();
        let before = self.current.read().clone();
        let after = change(&mut installer, &before);
        debug_assert!(after.runs.iter().all(|run| !run.slices.is_empty()), "a listed run has files");
        let list = installer.list(&after);
        if let Err(error) = installer.manifest.install(&list) {
            let listed = before.file_numbers();
            let new =
                after.runs.iter().flat_map(|run| run.files()).filter(|file| !listed.contains(&file.record().number));
            new.for_each(|file| self.directory.retire_later(file.record()));
            return Err(error);
        }
        let listed = after.file_numbers();
        self.run_count.store(after.runs.len(), Ordering::Relaxed);
        *self.current.write() = Arc::new(after);
        for file in before.runs.iter().flat_map(|run| run.files()) {
            if !listed.contains(&file.record().number) {
                file.set_obsolete();
            }
        }
        installer.past.retain(|past| past.version.strong_count() > 0);
        installer.past.push(PastVersion { version: Arc::downgrade(&before), replaced_at: Instant::now() });
        self.directory.delete_waiting();
        Ok(())
    }
}

impl Installer {
    /// What the manifest records of a version.
    fn list(&self, version: &Version) -> RunList {
        RunList {
            state: version.state,
            next_file: self.next_file,
            next_run: self.next_run,
            runs: version.runs.iter().map(|run| version::record(run)).collect(),
        }
    }
}

/// Rejects a key that can't be stored. Such a key is a bug in the caller: ids are hashed and values bounded.
fn check_key(table: Table, key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "a key of {} bytes for table {table}: from 1 to {KEY_BYTES_MAX} are possible",
        key.len()
    )))
}

/// Whether the bounds cross, so that no key is between them.
pub(crate) fn is_crossed(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
            lower >= upper
        }
    }
}

#[cfg(test)]
mod tests;
