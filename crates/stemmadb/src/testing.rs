//! For Stemma's own tests of what must never happen. No part of what this crate promises.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use crate::sync::Mutex;
use crate::transact::{self, Attempt, Checking};
use crate::tree::{MemoryTree, Table, Tree, TreeReport, TreeSize, TreeSnapshot, TreeTransaction};
use crate::{Database, Durability, Error, Options, Result};

pub use crate::log::{Call, Failure, FaultVfs, Random};
pub use crate::options::Clock;

#[cfg(any(test, fuzzing))]
pub mod fuzz;

/// Copies a directory with all that is in it.
///
/// # Errors
/// What the file system says.
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

/// Gives a fuzzer's target each input of its corpus, which lies in a directory.
///
/// # Errors
/// What the file system says; `NotFound` if there is hardly any.
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

/// Bounds far smaller than anyone may ask for, so that a few hundred writes fill memtables, roll segments and cut checkpoints
/// into many slices.
#[must_use]
pub fn small(mut options: Options, memory_bytes: usize, segment_bytes: u32, slice_rows: usize) -> Options {
    options.memory_bytes = memory_bytes;
    options.segment_bytes = segment_bytes;
    options.slice_rows = slice_rows;
    options
}

/// [`Database::optimistic`] without its check: what it prevents happens.
///
/// # Errors
/// Those of `work`.
pub fn optimistic_unchecked<T>(db: &Database, work: impl FnMut(&mut Attempt<'_>) -> Result<T>) -> Result<T> {
    transact::optimistic(db.store(), Durability::None, Checking::Nothing, work)
}

/// A place for a database whose disk fails as planned: its log on a [`FaultVfs`], its tree in memory, where commits fail as
/// planned too. Both outlive the database. Clones are the same place.
#[derive(Clone)]
pub struct Place {
    disk: FaultVfs,
    tree: FaultTree,
}

impl Place {
    /// An empty one; the seed decides what the disk does by chance.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Place { disk: FaultVfs::new(seed), tree: FaultTree::of(MemoryTree::new()) }
    }

    /// Opens the database that is here, or makes it. One at a time.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open(&self, options: Options) -> Result<Database> {
        Database::start(Arc::new(self.disk.clone()), Box::new(self.tree.clone()), options, None, None, &mut |_| ())
    }

    /// The disk of the log.
    #[must_use]
    pub fn disk(&self) -> &FaultVfs {
        &self.disk
    }

    /// Lets the `nth` (from 1) commit of the tree from now on fail, and with `is_sticky` every one after it.
    pub fn fail_commit(&self, nth: u64, failure: Failure, is_sticky: bool) {
        let mut plan = self.tree.plan.lock();
        plan.failing = Some((plan.count + nth, failure, is_sticky));
    }

    /// How many commits of the tree were begun.
    #[must_use]
    pub fn commit_count(&self) -> u64 {
        self.tree.plan.lock().count
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.disk.heal();
        self.tree.plan.lock().failing = None;
    }

    /// The place as a loss of power at this moment may leave it.
    #[must_use]
    pub fn crash_image(&self, seed: u64) -> Place {
        loop {
            let begun_count = self.commit_count();
            let (disk, tree) = (self.disk.crash_image(seed), self.tree.tree.fork());
            // A commit that was begun in between may rest on what the image of the disk lacks.
            if self.commit_count() == begun_count {
                return Place { disk, tree: FaultTree::of(tree) };
            }
        }
    }
}

/// The digests of all contents of files that lie there, in order.
#[must_use]
pub fn contents(place: &Place) -> Vec<String> {
    let blobs = crate::log::Blobs::new(Arc::new(place.disk.clone()));
    let mut digests: Vec<_> = blobs.list().unwrap_or_default().iter().map(ToString::to_string).collect();
    digests.sort();
    digests
}

/// A tree in memory whose commits fail as planned.
#[derive(Clone)]
struct FaultTree {
    tree: Arc<MemoryTree>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    count: u64,
    failing: Option<(u64, Failure, bool)>,
}

impl FaultTree {
    fn of(tree: MemoryTree) -> Self {
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

    fn has_beside(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>> {
        self.transaction.has_beside(table, key, prefix)
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
