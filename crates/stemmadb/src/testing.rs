//! Support for Stemma's own tests: fault injection, crash images and fuzz targets. Not part of the public API.

use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cipher::EncryptionKey;
use crate::engine::{directory, key_file};
use crate::transact::{self, Attempt, ReadValidation};
use crate::tree::{Direction, MergeGoal, MergeOperator, Table, Tree, TreeOptions};
use crate::vfs::{DiskVfs, Vfs};
use crate::{Blob, Database, Durability, Error, Options, Result};

pub use default_logs::LOG_STORAGE_VARIABLE;
pub(crate) use default_logs::default_log_storage;
pub use log_server::serve_logs;
pub use log_storage::{MemoryLogStorage, StorageFault};
pub use memory_cluster::{MakeLog, MemoryCluster, MemoryMember};

pub use crate::options::Clock;
pub use crate::vfs::{Call, Failure, FaultVfs, Random};

mod default_logs;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod log_server;
mod log_storage;
mod memory_cluster;

/// The variable of the environment with the key that databases of test builds are encrypted with, if their options set
/// none: whole test suites run encrypted if it is set.
pub const KEY_VARIABLE: &str = "STEMMA_TEST_KEY";

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

/// Sets limits far below any practical ones, so that a few hundred writes fill memtables, roll segments and make many
/// files of the tree, each with about `file_rows` rows.
#[must_use]
pub fn with_small_limits(mut options: Options, memory_bytes: usize, segment_bytes: u32, file_rows: usize) -> Options {
    const ROW_BYTES: u64 = 32;
    options.memory_bytes = memory_bytes;
    options.segment_bytes = segment_bytes;
    options.tree_file_bytes = file_rows as u64 * ROW_BYTES;
    options.dictionary_bytes = 6 << 10;
    options.retired_segment_delay = Duration::ZERO;
    options
}

/// Sets how long the owner of a log in a store keeps the bytes of retired segments.
#[must_use]
pub fn with_retired_segment_delay(mut options: Options, delay: Duration) -> Options {
    options.retired_segment_delay = delay;
    options
}

/// [`Database::optimistic`] without its conflict check, as a negative control for tests of that check.
///
/// # Errors
/// Errors of `work`.
pub fn optimistic_unchecked<T>(db: &Database, work: impl FnMut(&mut Attempt<'_>) -> Result<T>) -> Result<T> {
    transact::optimistic(db.store(), Durability::None, ReadValidation::Disabled, work)
}

/// Storage for a database with planned failures. It outlives the database. Clones share the same storage.
#[derive(Clone)]
pub struct TestStorage {
    disk: FaultVfs,
}

impl TestStorage {
    /// Creates empty storage; the seed determines the random decisions of the disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        TestStorage { disk: FaultVfs::new(seed) }
    }

    /// Opens the database in this storage, creating it if necessary. Only one can be open at a time.
    pub fn open(&self, options: Options) -> Result<Database> {
        open_database(Arc::new(self.disk.clone()), options)
    }

    /// Returns the disk.
    #[must_use]
    pub fn disk(&self) -> &FaultVfs {
        &self.disk
    }

    /// Makes the `nth` (from 1) change of the tree's list of runs from now on fail; with `is_sticky`, every later one
    /// as well.
    pub fn fail_commit(&self, nth: u64, failure: Failure, is_sticky: bool) {
        self.disk.fail(Call::WriteManifest, nth, failure, is_sticky);
    }

    /// Returns the number of changes of the tree's list of runs that were begun.
    #[must_use]
    pub fn commit_count(&self) -> u64 {
        self.disk.count(Call::WriteManifest)
    }

    /// Cancels all planned failures.
    pub fn heal(&self) {
        self.disk.heal();
    }

    /// Begins to encrypt the closed database, or to decrypt it. [`change_encryption`] completes that.
    ///
    /// # Errors
    /// Those of [`encryption::encrypt`](crate::encryption::encrypt).
    pub fn begin_encryption(&self, key: &EncryptionKey, encrypts: bool) -> Result<()> {
        match encrypts {
            true => key_file::begin_encryption(&self.disk, key),
            false => key_file::begin_decryption(&self.disk, key),
        }
    }

    /// The names and contents of all files.
    ///
    /// # Errors
    /// `Unavailable` if a directory can't be listed.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for directory in ["", "log", "tree", "history", "blobs"] {
            let names = self.disk.list(directory).map_err(|error| Error::io("list files", error))?;
            let path = |name: &String| if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
            let files = names.iter().map(path).filter_map(|name| Some((name.clone(), self.disk.content(&name)?)));
            found.extend(files);
        }
        Ok(found)
    }

    /// Returns the storage as a power loss at this point may leave it.
    #[must_use]
    pub fn crash_image(&self, seed: u64) -> TestStorage {
        TestStorage { disk: self.disk.crash_image(seed) }
    }
}

/// Opens the database in `vfs`, creating it if necessary.
pub(crate) fn open_database(vfs: Arc<dyn Vfs>, options: Options) -> Result<Database> {
    let vfs = key_file::unlock(vfs, options.encryption.as_ref(), options.read_only)?;
    let tree = directory::open_tree(vfs.clone(), &options)?;
    Database::start(vfs, tree, options, None, None, &mut |_| ())
}

/// Completes the encryption or decryption of an open database.
///
/// # Errors
/// Those of [`encryption::encrypt`](crate::encryption::encrypt).
pub fn change_encryption(db: &Database, encrypts: bool) -> Result<()> {
    match encrypts {
        true => db.store().complete_encryption(&mut |_| ()),
        false => db.store().complete_decryption(&mut |_| ()),
    }
}

/// The digests of all attachment contents that are stored, in the log or in files, sorted.
///
/// # Errors
/// `Corrupt` if stored bytes are damaged; `Unavailable` if they can't be read.
pub fn content_digests(db: &Database) -> Result<Vec<String>> {
    let snapshot = db.snapshot()?;
    let mut digests = snapshot.parts.blobs.list()?;
    snapshot.live_contents(&mut |digest, _| {
        digests.push(digest);
        Ok(())
    })?;
    let mut digests: Vec<_> = digests.iter().map(ToString::to_string).collect();
    digests.sort();
    Ok(digests)
}

/// Stores content in a file of its own, whatever its length, as older versions did.
///
/// # Errors
/// `Unavailable` if the disk is full or can't be written.
pub fn store_in_file(db: &Database, mut content: &[u8]) -> Result<Arc<Blob>> {
    db.store().parts.blobs.store_in_file(&mut content).map(Arc::new)
}

/// The tree by itself, for benchmarks beside other storage engines. Keys begin with the number of a table. Operands of
/// merges are ascending lists of `u16`, big-endian; they are united.
pub struct BareTree(Tree);

/// The operands of [`BareTree`].
struct Union;

impl MergeOperator for Union {
    fn combine(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let (older, newer) = (older.as_chunks::<2>().0, newer.as_chunks::<2>().0);
        let start = out.len();
        older.iter().chain(newer).for_each(|member| out.extend_from_slice(member));
        if older.last() >= newer.first() {
            out[start..].as_chunks_mut::<2>().0.sort_unstable();
        }
        Ok(())
    }

    fn finish<'a>(&self, operand: &'a [u8]) -> Result<Option<&'a [u8]>> {
        Ok(Some(operand))
    }

    fn removes(&self, _operand: &[u8]) -> bool {
        false
    }
}

impl BareTree {
    /// Opens the tree in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// Errors of the file system; `Corrupt` if the tree is damaged.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self> {
        let vfs = DiskVfs::new(directory).map_err(|error| Error::io("open the directory", error))?;
        let options = TreeOptions { cache_bytes, file_bytes: 32 << 20, read_only: false, operator: Arc::new(Union) };
        Tree::open(Arc::new(vfs), "tree", options).map(BareTree)
    }

    /// Writes rows, each with whether it is merged, in one transaction.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write<'r>(&self, rows: impl Iterator<Item = (bool, &'r [u8], &'r [u8])>) -> Result<()> {
        let mut transaction = self.0.write()?;
        for (is_merged, key, value) in rows {
            let (table, key) = split_table(key);
            match is_merged {
                true => transaction.merge(table, key, value)?,
                false => transaction.put(table, key, value)?,
            }
        }
        transaction.commit()
    }

    /// Does one step of the merges that are due.
    ///
    /// # Errors
    /// Errors of the file system; `Corrupt` if the tree is damaged.
    pub fn merge_step(&self) -> Result<bool> {
        self.0.merge_step(MergeGoal::Pace)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corrupt` if the tree is damaged.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (table, key) = split_table(key);
        Ok(self.0.read().get(table, key)?.map(|value| value.to_vec()))
    }

    /// Calls `visit` with the rows from `lower` (included) to `upper` (excluded) of one table, until it returns false.
    ///
    /// # Errors
    /// `Corrupt` if the tree is damaged.
    pub fn scan(&self, lower: &[u8], upper: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let (table, lower) = split_table(lower);
        let upper = match upper.split_first() {
            Some((number, upper)) if *number == table as u8 => Bound::Excluded(upper),
            _ => Bound::Unbounded,
        };
        let mut rows = self.0.read().scan(table, Bound::Included(lower), upper, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

fn split_table(key: &[u8]) -> (Table, &[u8]) {
    let (number, key) = key.split_first().expect("a key begins with the number of its table");
    (Table::ALL[usize::from(*number)], key)
}
