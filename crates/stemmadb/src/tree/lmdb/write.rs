//! The writer's transaction: LMDB's, on a way that the guard has checked.

use std::cell::RefCell;
use std::ops::Bound;
use std::sync::Arc;

use heed::{PutFlags, RoRange, RoRevRange, RwTxn};
use parking_lot::MutexGuard;

use super::cursor::{Cursor, Goal};
use super::error::tree_error;
use super::guard::{Guard, Reach, Scout};
use super::pages::Pages;
use super::snapshot::{CHECKSUM_BYTES, LmdbSnapshot};
use super::{Handle, Handles, LmdbTree, READ, WRITE, checksum, damaged, verify};
use crate::Result;
use crate::tree::{Direction, Row, Rows, Table, TreeRead, TreeTransaction, check_key, is_crossed, is_storable};

/// Waits for the writer before, and begins.
pub(super) fn begin<'t>(tree: &'t LmdbTree, handles: &'t Handles) -> Result<Box<dyn TreeTransaction + 't>> {
    let writer = tree.writer.lock();
    let transaction = tree.env.write_txn().map_err(|error| tree_error(WRITE, error))?;
    Ok(Box::new(LmdbTransaction {
        tree,
        handles,
        transaction,
        base: tree.current.read().clone(),
        guard: RefCell::default(),
        last_keys: Default::default(),
        sealed: Vec::new(),
        _writer: writer,
    }))
}

struct LmdbTransaction<'t> {
    tree: &'t LmdbTree,
    handles: &'t Handles,
    transaction: RwTxn<'t>,
    /// The state that it changes.
    base: Arc<LmdbSnapshot>,
    guard: RefCell<Guard>,
    /// The last key of each table, once known; empty if the table is.
    last_keys: [Option<Vec<u8>>; Table::ALL.len()],
    sealed: Vec<u8>,
    // Declared last, dropped last: the next writer begins when this transaction has ended.
    _writer: MutexGuard<'t, ()>,
}

impl LmdbTransaction<'_> {
    fn handle(&self, table: Table) -> Handle {
        self.handles[table.index()]
    }

    /// Whether `key` comes after every key of `table`; remembers it if so.
    fn is_appended(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        let last = &mut self.last_keys[table.index()];
        let last = match last {
            Some(last) => last,
            None => last.insert(last_key(&self.base, table)?),
        };
        if key <= last.as_slice() {
            return Ok(false);
        }
        last.clear();
        last.extend_from_slice(key);
        Ok(true)
    }
}

fn last_key(base: &LmdbSnapshot, table: Table) -> Result<Vec<u8>> {
    let last = || {
        let Some(cursor) = Cursor::new(base.pages(), base.root(table), Goal::Last)? else { return Ok(Vec::new()) };
        let leaf = cursor.leaf();
        leaf.page.key(leaf.index).map(<[u8]>::to_vec)
    };
    last().map_err(|damage| damaged(Some(table), damage))
}

impl TreeRead for LmdbTransaction<'_> {
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>> {
        if !is_storable(key) {
            return Ok(None);
        }
        self.guard.borrow_mut().admit(&self.base, table, key, Reach::Leaf)?;
        match self.handle(table).get(&self.transaction, key).map_err(|error| tree_error(READ, error))? {
            Some(stored) => unseal(table, key, stored).map(Some),
            None => Ok(None),
        }
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>> {
        if is_crossed(lower, upper) {
            return Ok(Box::new(std::iter::empty()));
        }
        let scout =
            Scout::new(&self.base, table, lower, upper, direction).map_err(|damage| damaged(Some(table), damage))?;
        let bounds = (lower, upper);
        let stored = match direction {
            Direction::Ascending => self.handle(table).range(&self.transaction, &bounds).map(Stored::Ascending),
            Direction::Descending => self.handle(table).rev_range(&self.transaction, &bounds).map(Stored::Descending),
        };
        let stored = stored.map_err(|error| tree_error(READ, error))?;
        Ok(Box::new(WriterRows { stored: Some(stored), scout, table }))
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        self.handle(table).len(&self.transaction).map_err(|error| tree_error(READ, error))
    }
}

impl TreeTransaction for LmdbTransaction<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        self.guard.get_mut().admit(&self.base, table, key, Reach::Leaf)?;
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
        self.guard.get_mut().admit(&self.base, table, key, Reach::Neighbours)?;
        let handle = self.handle(table);
        handle.delete(&mut self.transaction, key).map_err(|error| tree_error(WRITE, error))
    }

    fn clear_table(&mut self, table: Table) -> Result<()> {
        // LMDB walks all pages of the table to free them.
        verify::check_table(&self.base, table).map_err(|damage| damaged(Some(table), damage))?;
        self.guard.get_mut().forget(table);
        self.last_keys[table.index()] = Some(Vec::new());
        let handle = self.handle(table);
        handle.clear(&mut self.transaction).map_err(|error| tree_error(WRITE, error))
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { tree, transaction, _writer, .. } = *self;
        transaction.commit().map_err(|error| tree_error(WRITE, error))?;
        let newest = LmdbSnapshot::new(Pages::pin(&tree.env, &tree.map)?)?;
        *tree.current.write() = Arc::new(newest);
        Ok(())
    }
}

/// The value as it was put, if its checksum is right.
fn unseal<'a>(table: Table, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
    match stored.split_last_chunk::<CHECKSUM_BYTES>() {
        Some((value, sum)) if u32::from_be_bytes(*sum) == checksum(table, key, value) => Ok(value),
        _ => Err(crate::Error::corrupt(format!("tree/data.mdb is damaged: a row of table {table} fails its checksum"))
            .with_hint(crate::tree::REBUILD)),
    }
}

/// Rows as LMDB finds them.
enum Stored<'a> {
    Ascending(RoRange<'a, heed::types::Bytes, heed::types::Bytes>),
    Descending(RoRevRange<'a, heed::types::Bytes, heed::types::Bytes>),
}

/// A scan by LMDB, and the scout that goes before it.
struct WriterRows<'a> {
    /// None after an error.
    stored: Option<Stored<'a>>,
    scout: Scout<'a>,
    table: Table,
}

impl<'a> WriterRows<'a> {
    fn advance(&mut self) -> Option<Result<Row<'a>>> {
        let found = match self.stored.as_mut()? {
            Stored::Ascending(rows) => rows.next()?,
            Stored::Descending(rows) => rows.next()?,
        };
        Some(found.map_err(|error| tree_error(READ, error)).and_then(|(key, stored)| {
            let value = unseal(self.table, key, stored)?;
            self.scout.follow(key).map_err(|damage| damaged(Some(self.table), damage))?;
            Ok((key, value))
        }))
    }
}

impl<'a> Iterator for WriterRows<'a> {
    type Item = Result<Row<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.advance();
        if matches!(row, Some(Err(_))) {
            self.stored = None;
        }
        row
    }
}
