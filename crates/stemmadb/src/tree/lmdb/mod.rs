//! The tree on disk: one LMDB environment, a named database for each table, every commit synced.
//!
//! LMDB writes and pins states; reading is ours (`pages.rs`, `page.rs`, `cursor.rs`, `snapshot.rs`), because LMDB trusts
//! every byte of its file: a flipped bit gives a wrong row, or leads it beyond the file, which kills the process. The
//! writer needs LMDB to read too, so its way is checked before it is gone (`guard.rs`). See docs/decisions/0002-tree-pages.md.
//!
//! Layout: `data.mdb` and `lock.mdb` in the tree's directory. LMDB's rows are blocks of ours (`block.rs`): a fence, and what is stored
//! under it: the block, then four bytes, big-endian: the low half of XXH3-64 of the block, seeded with XXH3-64 of the
//! fence, seeded with the table's number.
//!
//! Invariants
//! - LMDB reads no page of the file that was not checked since the tree was opened, or by this transaction.
//! - The newest snapshot is kept and shared by all readers until the next commit replaces it. It holds no page back: LMDB
//!   never reuses pages of its last commit.
//!
//! Concurrency: snapshots are shared between threads. `writer` is held by the transaction until its snapshot is in place.

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

/// How to open a tree on disk.
#[derive(Debug, Clone)]
pub(crate) struct LmdbOptions {
    /// The most the file may grow to: address space, not memory. Halved down to 1 GiB where the system refuses.
    pub(crate) map_bytes: usize,
    /// The most snapshots of different commits that may be held at once.
    pub(crate) readers_max: u32,
    /// Open for reading only; the file must exist.
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
    /// None if opened for reading only.
    handles: Option<Handles>,
}

impl LmdbTree {
    /// Opens the tree in `directory`, which exists; makes it if it is not there. Reads a few pages, and the list of free ones.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged there, cut short or not a tree: remove it and build it again.
    /// `Unavailable` if this process has it open already, or holds a snapshot of it, or the disk is full or read-only.
    pub(crate) fn open(directory: &Path, options: &LmdbOptions) -> Result<Self> {
        head::check_file(directory)?;
        let env = open_environment(directory, options)?;
        let file = env.try_clone_inner_file().map_err(|error| tree_error(OPEN, error))?;
        let map = Arc::new(Map::new(&file, env.info().map_size)?);
        // LMDB's own way to the tables and the free pages is checked before it goes there.
        let pages = Pages::pin(&env, &map)?;
        if pages.meta().main.page != NO_PAGE {
            // Tables are made together: one that is missing has a damaged name, and would be made again, empty.
            LmdbSnapshot::new(pages)?;
        }
        env.clear_stale_readers().map_err(|error| tree_error(OPEN, error))?;
        let handles = if options.read_only { None } else { Some(open_tables(&env)?) };
        let current = RwLock::new(Arc::new(LmdbSnapshot::new(Pages::pin(&env, &map)?)?));
        Ok(LmdbTree { current, env, map, writer: Mutex::new(()), handles })
    }

    /// The files of a tree in `directory`: remove them (closed) and it will be built again.
    #[cfg(test)]
    pub(crate) fn files(directory: &Path) -> [std::path::PathBuf; 2] {
        [directory.join("data.mdb"), directory.join("lock.mdb")]
    }

    /// Writes a compact copy of the newest state to the file `path`, after checking all of it. Writers may go on meanwhile.
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
            // SAFETY: read-only is harmless; and nobody has to be locked out, since the database's own lock keeps writers out.
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

/// Opens the tables; makes those that are not there.
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

/// What is stored after a block.
#[inline]
fn checksum(table: Table, fence: &[u8], block: &[u8]) -> u32 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(table as u64, fence), block) as u32
}

#[cold]
fn damaged(table: Option<Table>, damage: Damage) -> Error {
    let Damage { page, what } = damage;
    let place = table.map_or_else(String::new, |table| format!(" of table {table}"));
    Error::corrupt(format!("tree/data.mdb is damaged: page {page}{place}: {what}")).with_hint(REBUILD)
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
