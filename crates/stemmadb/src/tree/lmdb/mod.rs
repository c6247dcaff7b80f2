//! Tree on disk: one LMDB environment with a named database for each table; every commit is synced.
//!
//! LMDB writes the pages and pins committed states. Reading is implemented here (`pages.rs`, `page.rs`, `cursor.rs`,
//! `snapshot.rs`), because LMDB trusts every byte of its file: a flipped bit gives a wrong row or leads it beyond the
//! file, which kills the process. The writer cannot avoid LMDB's own reads, so the pages on its path are verified first
//! (`guard.rs`). See docs/decisions/0002-tree-pages.md.
//!
//! Layout: `data.mdb` and `lock.mdb` in the tree's directory. Each LMDB row is a block of rows (`block.rs`). Its key is
//! the block's fence; its value is the block followed by four bytes, big-endian: the low half of the XXH3-64 of the
//! block, seeded with the XXH3-64 of the fence, which is seeded with the table's number.
//!
//! Invariants:
//! - LMDB reads no page of the file that was not verified since the tree was opened or by the current transaction.
//! - The newest snapshot is kept and shared by all readers until the next commit replaces it. It does not delay page
//!   reuse: LMDB never reuses pages of its last commit.
//!
//! Concurrency: snapshots are shared between threads. A transaction holds `writer` until its snapshot is published.

mod block;
mod cursor;
mod draft;
mod error;
mod guard;
mod head;
mod map;
mod page;
mod pages;
mod scan;
mod snapshot;
mod verify;
mod write;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use twox_hash::XxHash3_64;

use self::error::tree_error;
use self::map::Map;
use self::page::{Damage, META_PAGES, NO_PAGE};
use self::pages::Pages;
use self::snapshot::LmdbSnapshot;
use super::{REBUILD, Table, Tree, TreeReport, TreeSize, TreeSnapshot, TreeTransaction};
use crate::sync::{Mutex, RwLock};
use crate::{Error, Result};

type Handle = Database<'static, Bytes, Bytes>;
type Handles = [Handle; Table::ALL.len()];

const READ: &str = "read tree/data.mdb";
const WRITE: &str = "write tree/data.mdb";
const OPEN: &str = "open tree/data.mdb";
#[cfg(test)]
const COPY: &str = "copy tree/data.mdb";

/// Options for opening a tree on disk.
#[derive(Debug, Clone)]
pub(crate) struct LmdbOptions {
    /// Maximum size of the file: address space, not memory. Halved down to 1 GiB if the system refuses it.
    pub(crate) map_bytes: usize,
    /// Maximum number of snapshots of different commits held at the same time.
    pub(crate) readers_max: u32,
    /// Open read-only; the file must exist.
    pub(crate) read_only: bool,
}

impl Default for LmdbOptions {
    fn default() -> Self {
        LmdbOptions { map_bytes: 1 << 40, readers_max: 1024, read_only: false }
    }
}

/// A tree in an LMDB file.
pub(crate) struct LmdbTree {
    current: RwLock<Arc<LmdbSnapshot>>,
    env: Env<WithoutTls>,
    map: Arc<Map>,
    writer: Mutex<()>,
    /// `None` if opened read-only.
    handles: Option<Handles>,
}

impl LmdbTree {
    /// Opens the tree in `directory`, which must exist, creating the tree if necessary. Reads a few pages and the free
    /// list.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged in these pages, truncated or not a tree: remove it and rebuild it.
    /// `Unavailable` if this process has it open already or holds a snapshot of it, or if the disk is full or
    /// read-only.
    pub(crate) fn open(directory: &Path, options: &LmdbOptions) -> Result<Self> {
        head::check_file(directory)?;
        let env = open_environment(directory, options)?;
        let file = env.try_clone_inner_file().map_err(|error| tree_error(OPEN, error))?;
        let map = Arc::new(Map::new(&file, env.info().map_size)?);
        // The pages on LMDB's own path to the tables and the free list are verified before it reads them.
        let pages = Pages::pin(&env, &map)?;
        if pages.meta().main.page != NO_PAGE {
            // Tables are created together. A missing one has a damaged name, and LMDB would create it again, empty.
            LmdbSnapshot::new(pages)?;
        }
        env.clear_stale_readers().map_err(|error| tree_error(OPEN, error))?;
        let handles = if options.read_only { None } else { Some(open_tables(&env)?) };
        let current = RwLock::new(Arc::new(LmdbSnapshot::new(Pages::pin(&env, &map)?)?));
        Ok(LmdbTree { current, env, map, writer: Mutex::new(()), handles })
    }

    /// The files of a tree in `directory`: if they are removed while it is closed, the tree will be rebuilt.
    #[cfg(test)]
    pub(crate) fn files(directory: &Path) -> [std::path::PathBuf; 2] {
        [directory.join("data.mdb"), directory.join("lock.mdb")]
    }

    /// Verifies the newest state and writes a compact copy of it to the file `path`. Does not block writers.
    #[cfg(test)]
    pub(crate) fn copy(&self, path: &Path) -> Result<()> {
        self.verify(&mut |_, _| {})?.into_result()?;
        let copied = self.env.copy_to_path(path, heed::CompactionOption::Enabled);
        let file = copied.map_err(|error| tree_error(COPY, error))?;
        file.sync_all().map_err(|error| Error::io(COPY, error))
    }
}

impl fmt::Debug for LmdbTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LmdbTree").field("path", &self.env.path()).finish_non_exhaustive()
    }
}

impl Tree for LmdbTree {
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>> {
        Ok(self.current.read().clone())
    }

    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>> {
        let Some(handles) = &self.handles else {
            return Err(Error::unavailable("the tree was opened for reading only"));
        };
        write::begin(self, handles)
    }

    fn size(&self) -> Result<TreeSize> {
        let snapshot = self.current.read().clone();
        let file_bytes = self.env.real_disk_size().map_err(|error| tree_error(READ, error))?;
        let meta = snapshot.pages().meta();
        let roots = Table::ALL.map(|table| *snapshot.root(table));
        let pages = roots.iter().chain([&meta.free, &meta.main]).map(|root| root.pages());
        let pages = pages.fold(META_PAGES, u64::saturating_add);
        Ok(TreeSize { file_bytes, live_bytes: pages.saturating_mul(meta.page_bytes as u64) })
    }

    fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<TreeReport> {
        let snapshot = self.current.read().clone();
        Ok(verify::verify(&snapshot, progress))
    }
}

#[expect(unsafe_code, reason = "mapping a file is unsafe by nature; heed says so with an unsafe `open`")]
fn open_environment(directory: &Path, options: &LmdbOptions) -> Result<Env<WithoutTls>> {
    let mut map_bytes = options.map_bytes.next_multiple_of(1 << 16);
    loop {
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(map_bytes).max_readers(options.readers_max).max_dbs(Table::ALL.len() as u32);
        if options.read_only {
            // SAFETY: read-only access is harmless, and no lock is needed, since the database's own lock excludes
            // writers.
            unsafe { open.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK) };
        }
        // SAFETY: the mapped file belongs to this database alone: its directory is locked by the log's `LOCK` before
        // the tree is opened, and nothing in this crate writes to it but LMDB.
        match unsafe { open.open(directory) } {
            Ok(env) => return Ok(env),
            Err(heed::Error::Io(error)) if is_out_of_memory(&error) && map_bytes > 1 << 30 => map_bytes /= 2,
            Err(error) => return Err(tree_error(OPEN, error)),
        }
    }
}

fn is_out_of_memory(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::OutOfMemory
}

/// Opens the tables, creating missing ones.
fn open_tables(env: &Env<WithoutTls>) -> Result<Handles> {
    let transaction = env.write_txn().map_err(|error| tree_error(OPEN, error))?;
    let opened = env.create_databases_and_commit(transaction, |opener, transaction| {
        let mut handles = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            handles.push(opener.create_database::<Bytes, Bytes>(transaction, Some(table.name()))?);
        }
        let handles: [_; Table::ALL.len()] = handles.try_into().expect("one handle was pushed for each table");
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(handles))
    });
    Ok(opened.map_err(|error| tree_error(OPEN, error))?.unwrap_commit())
}

/// The checksum that is stored after a block.
#[inline]
fn checksum(table: Table, fence: &[u8], block: &[u8]) -> u32 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(table as u64, fence), block) as u32
}

#[cold]
fn damaged(table: Option<Table>, damage: Damage) -> Error {
    let Damage { page, what } = damage;
    let table = table.map_or_else(String::new, |table| format!(" of table {table}"));
    Error::corrupt(format!("tree/data.mdb is damaged: page {page}{table}: {what}")).with_hint(REBUILD)
}

#[cfg(test)]
pub(super) fn example_block(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut draft = draft::Draft::default();
    draft.begin(block::FIRST_FENCE, &[], 0);
    rows.iter().for_each(|(key, value)| draft.put(key, value));
    let mut stored = Vec::new();
    block::encode(block::FIRST_FENCE, &[], &draft, 0..rows.len(), &mut stored);
    stored
}

#[cfg(test)]
mod tests;
