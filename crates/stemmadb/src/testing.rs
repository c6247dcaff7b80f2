//! Support for Stemma's own tests: fault injection, crash images and fuzz targets. Not part of the public API.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use crate::sync::Mutex;
use crate::transact::{self, Attempt, ReadValidation};
use crate::tree::{MemoryTree, Table, Tree, TreeReport, TreeSize, TreeSnapshot, TreeTransaction};
use crate::{Database, Durability, Error, Options, Result};

pub use crate::log::{Call, Failure, FaultVfs, Random};
pub use crate::options::Clock;

#[cfg(any(test, fuzzing))]
pub mod fuzz;

/// Copies a directory recursively.
///
/// # Errors
/// Errors of the file system.
pub fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Runs a fuzz target on every file of its corpus directory.
///
/// # Errors
/// Errors of the file system; `NotFound` if the corpus has three files or fewer.
pub fn replay(corpus: &Path, target: fn(&[u8])) -> io::Result<()> {
    let inputs = corpus.read_dir()?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    if inputs.len() <= 3 {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is gone", corpus.display())));
    }
    for input in inputs {
        println!("{}", input.display());
        target(&std::fs::read(&input)?);
    }
    Ok(())
}

/// Sets limits far below any practical ones, so that a few hundred writes fill memtables, roll segments and split
/// checkpoints into many slices.
#[must_use]
pub fn with_small_limits(mut options: Options, memory_bytes: usize, segment_bytes: u32, slice_rows: usize) -> Options {
    options.memory_bytes = memory_bytes;
    options.segment_bytes = segment_bytes;
    options.slice_rows = slice_rows;
    options
}

/// [`Database::optimistic`] without its conflict check, as a negative control for tests of that check.
///
/// # Errors
/// Errors of `work`.
pub fn optimistic_unchecked<T>(db: &Database, work: impl FnMut(&mut Attempt<'_>) -> Result<T>) -> Result<T> {
    transact::optimistic(db.store(), Durability::None, ReadValidation::Disabled, work)
}

/// Storage for a database with planned failures: its log on a [`FaultVfs`], its tree in memory with failing commits.
/// Both outlive the database. Clones share the same storage.
#[derive(Clone)]
pub struct TestStorage {
    disk: FaultVfs,
    tree: FaultTree,
}

impl TestStorage {
    /// Creates empty storage; the seed determines the random decisions of the disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        TestStorage { disk: FaultVfs::new(seed), tree: FaultTree::new(MemoryTree::new()) }
    }

    /// Opens the database in this storage, creating it if necessary. Only one can be open at a time.
    pub fn open(&self, options: Options) -> Result<Database> {
        Database::start(Arc::new(self.disk.clone()), Box::new(self.tree.clone()), options, None, None, &mut |_| ())
    }

    /// Returns the disk of the log.
    #[must_use]
    pub fn disk(&self) -> &FaultVfs {
        &self.disk
    }

    /// Makes the `nth` (from 1) commit of the tree from now on fail; with `is_sticky`, every later one as well.
    pub fn fail_commit(&self, nth: u64, failure: Failure, is_sticky: bool) {
        let mut plan = self.tree.plan.lock();
        plan.failing = Some((plan.count + nth, failure, is_sticky));
    }

    /// Returns the number of tree commits started.
    #[must_use]
    pub fn commit_count(&self) -> u64 {
        self.tree.plan.lock().count
    }

    /// Cancels all planned failures.
    pub fn heal(&self) {
        self.disk.heal();
        self.tree.plan.lock().failing = None;
    }

    /// Returns the storage as a power loss at this point may leave it.
    #[must_use]
    pub fn crash_image(&self, seed: u64) -> TestStorage {
        loop {
            let begun_count = self.commit_count();
            let (disk, tree) = (self.disk.crash_image(seed), self.tree.tree.fork());
            // A commit started in between may refer to log data that the disk's image lacks.
            if self.commit_count() == begun_count {
                return TestStorage { disk, tree: FaultTree::new(tree) };
            }
        }
    }
}

/// The digests of all blobs in the storage, sorted.
#[must_use]
pub fn blob_digests(storage: &TestStorage) -> Vec<String> {
    let blobs = crate::log::Blobs::new(Arc::new(storage.disk.clone()));
    let mut digests: Vec<_> = blobs.list().unwrap_or_default().iter().map(ToString::to_string).collect();
    digests.sort();
    digests
}

/// An in-memory tree with planned commit failures.
#[derive(Clone)]
struct FaultTree {
    tree: Arc<MemoryTree>,
    plan: Arc<Mutex<CommitPlan>>,
}

#[derive(Default)]
struct CommitPlan {
    count: u64,
    failing: Option<(u64, Failure, bool)>,
}

impl FaultTree {
    fn new(tree: MemoryTree) -> Self {
        FaultTree { tree: Arc::new(tree), plan: Arc::default() }
    }
}

impl fmt::Debug for FaultTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree.fmt(f)
    }
}

impl Tree for FaultTree {
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>> {
        self.tree.read()
    }

    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>> {
        Ok(Box::new(FaultTransaction { tree: self, transaction: self.tree.write()? }))
    }

    fn size(&self) -> Result<TreeSize> {
        self.tree.size()
    }

    fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<TreeReport> {
        self.tree.verify(progress)
    }
}

struct FaultTransaction<'t> {
    tree: &'t FaultTree,
    transaction: Box<dyn TreeTransaction + 't>,
}

impl TreeTransaction for FaultTransaction<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<&[u8]>> {
        self.transaction.get(table, key)
    }

    fn has_neighbor_with_prefix(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>> {
        self.transaction.has_neighbor_with_prefix(table, key, prefix)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.put(table, key, value)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        self.transaction.delete(table, key)
    }

    fn clear_table(&mut self, table: Table) -> Result<()> {
        self.transaction.clear_table(table)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let mut plan = self.tree.plan.lock();
        plan.count += 1;
        if let Some((at, failure, is_sticky)) = plan.failing
            && (plan.count == at || is_sticky && plan.count > at)
        {
            return Err(Error::io("write tree/data.mdb", failure.error()));
        }
        drop(plan);
        self.transaction.commit()
    }
}
