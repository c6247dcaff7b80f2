//! The tree on disk: one LMDB environment, a named database for each table, every commit synced.
//!
//! Layout: `data.mdb` and `lock.mdb` in the tree's directory. A stored value is what was put, then four bytes: the
//! CRC32C (big-endian) of the table's number, the key and the value.
//!
//! Invariants
//! - LMDB checks nothing that it reads, so this file does: a value lies within the mapped file, its checksum is right, a
//!   scan's keys ascend (or descend) and lie within the bounds. Anything else is `Corrupt`.
//! - The newest snapshot is kept and shared by all readers until the next commit replaces it. It holds no page back: LMDB
//!   never reuses pages of its last commit.
//!
//! - The file is kept at least `PADDING_BYTES` longer than its last page, so that a damaged offset leads to zeros, not
//!   beyond the end of the file, where reading kills the process.
//!
//! Concurrency: snapshots are shared between threads. LMDB's read transactions change nothing while they read, once
//! each table was touched (see `Reader`). `writer` is held by the transaction until the new snapshot is in place.

use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heed::types::Bytes;
use heed::{
    CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoRange, RoRevRange, RoTxn, RwTxn, WithoutTls,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::lmdb_error::tree_error;
use super::{Direction, Row, Rows, Table, Tree, TreeRead, TreeSize, TreeSnapshot, TreeTransaction};
use super::{check_key, is_crossed, is_storable};
use crate::{Error, Result};

type Handle = Database<'static, Bytes, Bytes>;

const READ: &str = "read tree/data.mdb";
const WRITE: &str = "write tree/data.mdb";
const OPEN: &str = "open tree/data.mdb";
const CHECKSUM_BYTES: usize = 4;
/// A damaged length or offset within a page reaches at most 64 KiB beyond it.
const PADDING_BYTES: u64 = 128 << 10;
/// The file grows by this much at least, so that most commits don't change its length.
const GROWTH_BYTES: u64 = 1 << 20;

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
    // Declared first, dropped first: the environment closes when its last transaction is gone.
    current: RwLock<Arc<LmdbSnapshot>>,
    environment: Arc<Environment>,
    writer: Mutex<()>,
    read_only: bool,
}

/// The open environment and its tables.
struct Environment {
    env: Env<WithoutTls>,
    tables: [Handle; Table::ALL.len()],
    mapped: Mapped,
}

impl LmdbTree {
    /// Opens the tree in `directory`, which exists; makes it if it is not there.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, cut short or not a tree; `Unavailable` if this process has it open already, or
    /// the disk is full or read-only.
    pub(crate) fn open(directory: &Path, options: &LmdbOptions) -> Result<Self> {
        let env = open_environment(directory, options)?;
        check_length(&env)?;
        env.clear_stale_readers().map_err(|error| tree_error(OPEN, error))?;
        if !options.read_only {
            pad(&env)?;
        }
        let tables = open_tables(&env, options.read_only)?;
        let mapped = Mapped::new(&env)?;
        let environment = Arc::new(Environment { env, tables, mapped });
        let current = RwLock::new(Arc::new(LmdbSnapshot::begin(&environment)?));
        Ok(LmdbTree { current, environment, writer: Mutex::new(()), read_only: options.read_only })
    }

    /// The files of a tree in `directory`: remove them (closed) and it will be built again.
    pub(crate) fn files(directory: &Path) -> [PathBuf; 2] {
        [directory.join("data.mdb"), directory.join("lock.mdb")]
    }

    /// Writes a compact copy of the newest state to the new file `path`. Writers may go on meanwhile.
    pub(crate) fn copy(&self, path: &Path) -> Result<()> {
        let doing = "copy tree/data.mdb";
        let copied = self.environment.env.copy_to_path(path, heed::CompactionOption::Enabled);
        let file = copied.map_err(|error| tree_error(doing, error))?;
        file.sync_all().map_err(|error| Error::io(doing, error))
    }
}

impl fmt::Debug for LmdbTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LmdbTree").field("path", &self.environment.env.path()).finish_non_exhaustive()
    }
}

impl Tree for LmdbTree {
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>> {
        Ok(self.current.read().clone())
    }

    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>> {
        if self.read_only {
            return Err(Error::unavailable("the tree was opened for reading only"));
        }
        let writer = self.writer.lock();
        let transaction = self.environment.env.write_txn().map_err(|error| tree_error(WRITE, error))?;
        Ok(Box::new(LmdbTransaction {
            tree: self,
            transaction,
            last_keys: Default::default(),
            sealed: Vec::new(),
            _writer: writer,
        }))
    }

    fn size(&self) -> Result<TreeSize> {
        let snapshot = self.current.read().clone();
        let env = &self.environment.env;
        let file_bytes = env.real_disk_size().map_err(|error| tree_error(READ, error))?;
        let root = env.unnamed_database_stat();
        let page_bytes = u64::from(root.page_size);
        let mut pages = 2 + root.branch_pages + root.leaf_pages + root.overflow_pages;
        let mut row_count = 0;
        for table in Table::ALL {
            let stat = snapshot.reader.stat(self.environment.tables[table.index()])?;
            pages += stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
            row_count += stat.entries as u64;
        }
        Ok(TreeSize { file_bytes, live_bytes: pages as u64 * page_bytes, row_count })
    }
}

#[expect(unsafe_code, reason = "mapping a file is unsafe by nature; heed says so with an unsafe `open`")]
fn open_environment(directory: &Path, options: &LmdbOptions) -> Result<Env<WithoutTls>> {
    let mut map_bytes = options.map_bytes.next_multiple_of(1 << 16);
    loop {
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(map_bytes).max_readers(options.readers_max).max_dbs(Table::ALL.len() as u32);
        if options.read_only {
            // SAFETY: read-only is harmless; the unsafe flags are those which give up syncing or locking.
            unsafe { open.flags(EnvFlags::READ_ONLY) };
        }
        // SAFETY: the mapped file belongs to this database alone: its directory is locked by the log's `LOCK` before
        // the tree is opened, and nothing in this crate writes to it but LMDB. What LMDB reads from it is checked.
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

/// Reading a mapped page beyond the end of the file kills the process, so a file cut short is refused here.
fn check_length(env: &Env<WithoutTls>) -> Result<()> {
    let file_bytes = env.real_disk_size().map_err(|error| tree_error(OPEN, error))?;
    let page_bytes = u64::from(env.unnamed_database_stat().page_size);
    let needed_bytes = (env.info().last_page_number as u64 + 1).saturating_mul(page_bytes);
    if file_bytes >= needed_bytes {
        return Ok(());
    }
    Err(Error::corrupt(format!("tree/data.mdb is cut short: {file_bytes} bytes of {needed_bytes}"))
        .with_hint("run `stemma rebuild`: the tree is computed again from the log, nothing is lost"))
}

fn open_tables(env: &Env<WithoutTls>, read_only: bool) -> Result<[Handle; Table::ALL.len()]> {
    let opened = if read_only { open_existing_tables(env) } else { create_tables(env) };
    let handles = opened.map_err(|error| tree_error(OPEN, error))?;
    let handles: Option<Vec<Handle>> = handles.into_iter().collect();
    handles
        .and_then(|handles| handles.try_into().ok())
        .ok_or_else(|| Error::corrupt("tree/data.mdb lacks a table").with_hint("open the database for writing once"))
}

fn create_tables(env: &Env<WithoutTls>) -> heed::Result<Vec<Option<Handle>>> {
    let transaction = env.write_txn()?;
    let handles = env.create_databases_and_commit(transaction, |opener, transaction| {
        let create = |table: Table| opener.create_database::<Bytes, Bytes>(transaction, Some(table.name()));
        let handles = Table::ALL.map(create);
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(handles))
    })?;
    handles.unwrap_commit().into_iter().map(|handle| handle.map(Some)).collect()
}

fn open_existing_tables(env: &Env<WithoutTls>) -> heed::Result<Vec<Option<Handle>>> {
    let transaction = env.read_txn()?;
    let handles = env.open_databases_and_commit(transaction, |opener, transaction| {
        let handles = Table::ALL.map(|table| opener.open_database::<Bytes, Bytes>(transaction, Some(table.name())));
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(handles))
    })?;
    handles.unwrap_commit().into_iter().collect()
}

/// Extends the file beyond its last page. The caller is the only writer.
fn pad(env: &Env<WithoutTls>) -> Result<()> {
    let file = env.try_clone_inner_file().map_err(|error| tree_error(WRITE, error))?;
    let file_bytes = file.metadata().map_err(|error| Error::io(READ, error))?.len();
    let page_bytes = u64::from(env.unnamed_database_stat().page_size);
    let used_bytes = (env.info().last_page_number as u64 + 1) * page_bytes;
    if file_bytes < used_bytes + PADDING_BYTES {
        file.set_len(used_bytes + GROWTH_BYTES).map_err(|error| Error::io("extend tree/data.mdb", error))?;
    }
    Ok(())
}

/// Where the file is mapped and how much of that may be touched.
struct Mapped {
    start: usize,
    end: usize,
    /// The address after the file's last byte, as far as known: the file only grows.
    file_end: AtomicUsize,
}

impl Mapped {
    fn new(env: &Env<WithoutTls>) -> Result<Self> {
        let info = env.info();
        let start = info.map_addr as usize;
        let mapped = Mapped { start, end: start.saturating_add(info.map_size), file_end: AtomicUsize::new(start) };
        mapped.refresh(env)?;
        Ok(mapped)
    }

    fn refresh(&self, env: &Env<WithoutTls>) -> Result<usize> {
        let file_bytes = env.real_disk_size().map_err(|error| tree_error(READ, error))?;
        let file_end = self.start.saturating_add(file_bytes as usize);
        self.file_end.fetch_max(file_end, Ordering::Relaxed);
        Ok(file_end)
    }

    /// Whether `bytes` can be read: mapped and within the file, or on the heap (a page that this transaction changed).
    fn is_readable(&self, env: &Env<WithoutTls>, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr() as usize;
        let end = start.saturating_add(bytes.len());
        if end <= self.file_end.load(Ordering::Relaxed) || start < self.start || start >= self.end {
            return true;
        }
        self.refresh(env).is_ok_and(|file_end| end <= file_end)
    }
}

/// A read transaction that many threads may use at once.
struct Reader(RoTxn<'static, WithoutTls>);

// SAFETY: `RoTxn<WithoutTls>` is `Send`; what it lacks for `Sync` is that LMDB asks for one user at a time. In LMDB's code
// a read transaction is written to in two cases only while it reads: the first use of a named table in a transaction loads
// the table's root (`DB_STALE`), which `LmdbSnapshot::begin` does for every table before anyone shares it; and a damaged
// page sets the error bit of its flags (`mt_flags |= MDB_TXN_ERROR`), a store of one aligned word whose only effect is that
// later reads fail. Cursors of read transactions are not linked into them, and end on the stack or in their own allocation.
#[expect(unsafe_code, reason = "LMDB's read transactions are read-only after their tables were touched")]
unsafe impl Sync for Reader {}

impl Reader {
    fn stat(&self, handle: Handle) -> Result<heed::DatabaseStat> {
        handle.stat(&self.0).map_err(|error| tree_error(READ, error))
    }
}

/// The state at a commit, shared by all readers of that state.
struct LmdbSnapshot {
    reader: Reader,
    environment: Arc<Environment>,
}

impl LmdbSnapshot {
    fn begin(environment: &Arc<Environment>) -> Result<Self> {
        let reader = environment.env.clone().static_read_txn().map_err(|error| tree_error(READ, error))?;
        for handle in &environment.tables {
            // Touch each table while the transaction is ours alone: see `Reader`.
            handle.get(&reader, &[0]).map_err(|error| tree_error(READ, error))?;
        }
        Ok(LmdbSnapshot { reader: Reader(reader), environment: environment.clone() })
    }

    fn view(&self, table: Table) -> View<'_> {
        View { transaction: &self.reader.0, environment: &self.environment, table }
    }
}

impl TreeSnapshot for LmdbSnapshot {}

impl TreeRead for LmdbSnapshot {
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>> {
        self.view(table).get(key)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>> {
        self.view(table).scan(lower, upper, direction)
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        self.view(table).row_count()
    }
}

/// One table as one transaction sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    transaction: &'a RoTxn<'a, WithoutTls>,
    environment: &'a Environment,
    table: Table,
}

impl<'a> View<'a> {
    fn handle(self) -> Handle {
        self.environment.tables[self.table.index()]
    }

    fn get(self, key: &[u8]) -> Result<Option<&'a [u8]>> {
        if !is_storable(key) {
            return Ok(None);
        }
        match self.handle().get(self.transaction, key).map_err(|error| tree_error(READ, error))? {
            Some(stored) => self.unseal(key, stored).map(Some),
            None => Ok(None),
        }
    }

    fn scan(self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Rows<'a>> {
        if is_crossed(lower, upper) {
            return Ok(Box::new(std::iter::empty()));
        }
        let bounds = (lower, upper);
        let stored = match direction {
            Direction::Ascending => self.handle().range(self.transaction, &bounds).map(Stored::Ascending),
            Direction::Descending => self.handle().rev_range(self.transaction, &bounds).map(Stored::Descending),
        };
        let stored = stored.map_err(|error| tree_error(READ, error))?;
        Ok(Box::new(LmdbRows { stored: Some(stored), view: self, previous: None }))
    }

    /// The value as it was put, if the row can be read and carries the right checksum.
    fn unseal(self, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
        let Environment { env, mapped, .. } = self.environment;
        if !is_storable(key) || !mapped.is_readable(env, key) || !mapped.is_readable(env, stored) {
            return Err(damaged(self.table, "a row reaches beyond its bounds"));
        }
        let Some((value, crc)) = stored.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(damaged(self.table, "a row is too short"));
        };
        if u32::from_be_bytes(*crc) != checksum(self.table, key, value) {
            return Err(damaged(self.table, "a row fails its checksum"));
        }
        Ok(value)
    }

    fn row_count(self) -> Result<u64> {
        self.handle().len(self.transaction).map_err(|error| tree_error(READ, error))
    }
}

/// Rows as LMDB finds them, not checked yet.
enum Stored<'a> {
    Ascending(RoRange<'a, Bytes, Bytes>),
    Descending(RoRevRange<'a, Bytes, Bytes>),
}

/// A scan that checks each row's place and checksum.
struct LmdbRows<'a> {
    /// None after an error.
    stored: Option<Stored<'a>>,
    view: View<'a>,
    previous: Option<&'a [u8]>,
}

impl<'a> LmdbRows<'a> {
    fn advance(&mut self) -> Option<Result<Row<'a>>> {
        let (found, in_order): (_, fn(&[u8], &[u8]) -> bool) = match self.stored.as_mut()? {
            Stored::Ascending(rows) => (rows.next()?, |previous, key| previous < key),
            Stored::Descending(rows) => (rows.next()?, |previous, key| previous > key),
        };
        Some(found.map_err(|error| tree_error(READ, error)).and_then(|(key, stored)| {
            let value = self.view.unseal(key, stored)?;
            if self.previous.is_some_and(|previous| !in_order(previous, key)) {
                return Err(damaged(self.view.table, "rows are out of order"));
            }
            self.previous = Some(key);
            Ok((key, value))
        }))
    }
}

impl<'a> Iterator for LmdbRows<'a> {
    type Item = Result<Row<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.advance();
        if matches!(row, Some(Err(_))) {
            self.stored = None;
        }
        row
    }
}

struct LmdbTransaction<'t> {
    tree: &'t LmdbTree,
    transaction: RwTxn<'t>,
    /// The last key of each table, once known; empty if the table is.
    last_keys: [Option<Vec<u8>>; Table::ALL.len()],
    sealed: Vec<u8>,
    _writer: MutexGuard<'t, ()>,
}

impl LmdbTransaction<'_> {
    fn handle(&self, table: Table) -> Handle {
        self.tree.environment.tables[table.index()]
    }

    fn view(&self, table: Table) -> View<'_> {
        View { transaction: &self.transaction, environment: &self.tree.environment, table }
    }

    /// Whether `key` comes after every key of `table`; remembers it if so.
    fn is_appended(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        let last = &mut self.last_keys[table.index()];
        let last = match last {
            Some(last) => last,
            None => {
                let handle = self.tree.environment.tables[table.index()];
                let found = handle.last(&self.transaction).map_err(|error| tree_error(READ, error))?;
                last.insert(found.map_or_else(Vec::new, |(key, _)| key.to_vec()))
            }
        };
        if key <= last.as_slice() {
            return Ok(false);
        }
        last.clear();
        last.extend_from_slice(key);
        Ok(true)
    }
}

impl TreeRead for LmdbTransaction<'_> {
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>> {
        self.view(table).get(key)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>> {
        self.view(table).scan(lower, upper, direction)
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        self.view(table).row_count()
    }
}

impl TreeTransaction for LmdbTransaction<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        // LMDB splits a full page in the middle unless it is told that the key is the last.
        let flags = if self.is_appended(table, key)? { PutFlags::APPEND } else { PutFlags::empty() };
        self.sealed.clear();
        self.sealed.extend_from_slice(value);
        self.sealed.extend_from_slice(&checksum(table, key, value).to_be_bytes());
        let handle = self.handle(table);
        let put = handle.put_with_flags(&mut self.transaction, flags, key, &self.sealed);
        put.map_err(|error| tree_error(WRITE, error))
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        if !is_storable(key) {
            return Ok(false);
        }
        let handle = self.handle(table);
        handle.delete(&mut self.transaction, key).map_err(|error| tree_error(WRITE, error))
    }

    fn clear_table(&mut self, table: Table) -> Result<()> {
        self.last_keys[table.index()] = None;
        let handle = self.handle(table);
        handle.clear(&mut self.transaction).map_err(|error| tree_error(WRITE, error))
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { tree, transaction, _writer, .. } = *self;
        transaction.commit().map_err(|error| tree_error(WRITE, error))?;
        pad(&tree.environment.env)?;
        let newest = Arc::new(LmdbSnapshot::begin(&tree.environment)?);
        *tree.current.write() = newest;
        Ok(())
    }
}

fn checksum(table: Table, key: &[u8], value: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&[table as u8]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, key), value)
}

#[cold]
fn damaged(table: Table, what: &str) -> Error {
    Error::corrupt(format!("tree/data.mdb is damaged: {what} in table {table}"))
        .with_hint("run `stemma rebuild`: the tree is computed again from the log, nothing is lost")
}
