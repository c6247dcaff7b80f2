//! The writer's transaction: LMDB's, on a way that the guard has checked, a block at a time.

use std::cell::RefCell;
use std::sync::Arc;

use heed::{PutFlags, RwTxn};

use super::block::{self, Block, FIRST_FENCE};
use super::cursor::{Cursor, Goal};
use super::draft::Draft;
use super::error::tree_error;
use super::guard::Guard;
use super::pages::Pages;
use super::snapshot::{CHECKSUM_BYTES, LmdbSnapshot};
use super::{Handle, Handles, LmdbTree, READ, WRITE, checksum, damaged, verify};
use crate::sync::MutexGuard;
use crate::tree::lmdb::block::Rows as _;
use crate::tree::{REBUILD, Table, TreeTransaction, check_key, is_storable};
use crate::{Error, Result};

/// A draft with more than this is stored, however many rows are yet to come.
const DRAFT_BYTES_MAX: usize = 16 << 10;

/// Waits for the writer before, and begins.
pub(super) fn begin<'t>(tree: &'t LmdbTree, handles: &'t Handles) -> Result<Box<dyn TreeTransaction + 't>> {
    let writer = tree.writer.lock();
    let transaction = tree.env.write_txn().map_err(|error| tree_error(WRITE, error))?;
    let stored = Stored {
        handles,
        transaction,
        base: tree.current.read().clone(),
        guard: RefCell::default(),
        last_fences: Default::default(),
        sealed: Vec::new(),
    };
    Ok(Box::new(LmdbTransaction { tree, stored, drafts: Default::default(), _writer: writer }))
}

struct LmdbTransaction<'t> {
    tree: &'t LmdbTree,
    stored: Stored<'t>,
    /// The block of each table that is being changed; of no use until it covers something.
    drafts: [Option<Draft>; Table::ALL.len()],
    // Declared last, dropped last: the next writer begins when this transaction has ended.
    _writer: MutexGuard<'t, ()>,
}

impl LmdbTransaction<'_> {
    /// The draft of the block that covers `key`, made from what is stored if need be.
    fn draft(&mut self, table: Table, key: &[u8]) -> Result<&mut Draft> {
        let slot = &mut self.drafts[table.index()];
        let mut draft = slot.take().unwrap_or_default();
        if draft.fence.is_empty() || !draft.covers(key) {
            self.stored.store(table, &mut draft)?;
            self.stored.load(table, key, &mut draft)?;
        }
        Ok(slot.insert(draft))
    }
}

impl TreeTransaction for LmdbTransaction<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<&[u8]>> {
        if !is_storable(key) {
            return Ok(None);
        }
        Ok(self.draft(table, key)?.get(key))
    }

    fn has_beside(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>> {
        if !is_storable(key) {
            return Ok(None);
        }
        Ok(self.draft(table, key)?.has_beside(key, prefix))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        let draft = self.draft(table, key)?;
        draft.put(key, value);
        if draft.row_bytes() > DRAFT_BYTES_MAX {
            let mut draft = self.drafts[table.index()].take().unwrap_or_default();
            self.stored.store(table, &mut draft)?;
        }
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        if !is_storable(key) {
            return Ok(false);
        }
        Ok(self.draft(table, key)?.delete(key))
    }

    fn clear_table(&mut self, table: Table) -> Result<()> {
        self.drafts[table.index()] = None;
        self.stored.clear(table)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { tree, mut stored, drafts, _writer } = *self;
        for (table, draft) in Table::ALL.into_iter().zip(drafts) {
            stored.store(table, &mut draft.unwrap_or_default())?;
        }
        stored.transaction.commit().map_err(|error| tree_error(WRITE, error))?;
        let newest = LmdbSnapshot::new(Pages::pin(&tree.env, &tree.map)?)?;
        *tree.current.write() = Arc::new(newest);
        Ok(())
    }
}

/// Blocks as LMDB's transaction has them.
struct Stored<'t> {
    handles: &'t Handles,
    transaction: RwTxn<'t>,
    /// The state that it changes.
    base: Arc<LmdbSnapshot>,
    guard: RefCell<Guard>,
    /// The last fence of each table, once known; empty if the table is.
    last_fences: [Option<Vec<u8>>; Table::ALL.len()],
    sealed: Vec<u8>,
}

impl Stored<'_> {
    fn handle(&self, table: Table) -> Handle {
        self.handles[table.index()]
    }

    fn admit(&self, table: Table, key: &[u8]) -> Result<()> {
        self.guard.borrow_mut().admit(&self.base, table, key)
    }

    /// The block that covers `key`; none if the table is empty.
    fn floor(&self, table: Table, key: &[u8]) -> Result<Option<Block<'_>>> {
        self.admit(table, key)?;
        let found = self.handle(table).get_lower_than_or_equal_to(&self.transaction, key);
        match found.map_err(|error| tree_error(READ, error))? {
            Some((fence, stored)) => {
                let block = unseal(table, fence, stored)?;
                if block.covers(key) { Ok(Some(block)) } else { Err(broken_block(table)) }
            }
            None if self.handle(table).is_empty(&self.transaction).map_err(|error| tree_error(READ, error))? => {
                Ok(None)
            }
            None => Err(broken_block(table)),
        }
    }

    /// Fills `draft` with the block that covers `key`; the first of a table, if it is empty.
    fn load(&self, table: Table, key: &[u8], draft: &mut Draft) -> Result<()> {
        let Some(block) = self.floor(table, key)? else {
            draft.begin(FIRST_FENCE, &[], 0);
            return Ok(());
        };
        draft.begin(block.fence(), &[], block.byte_count());
        draft.append(&block).ok_or_else(|| broken_block(table))
    }

    /// Stores what `draft` became, if it was changed, and leaves it without use.
    fn store(&mut self, table: Table, draft: &mut Draft) -> Result<()> {
        if !draft.is_changed {
            draft.fence.clear();
            return Ok(());
        }
        self.join(table, draft)?;
        if draft.len() == 0 && draft.upper.is_empty() && draft.fence == FIRST_FENCE {
            if draft.stored_bytes > 0 {
                self.delete(table, &draft.fence)?;
            }
        } else {
            if draft.stored_bytes > block::capacity(&draft.fence) {
                // On overflow pages, LMDB would put a smaller value in place, and still count all the pages as its own.
                self.delete(table, &draft.fence)?;
            }
            for piece in block::cut(&draft.fence, &draft.upper, draft) {
                let mut sealed = std::mem::take(&mut self.sealed);
                sealed.clear();
                block::encode(&piece.fence, &piece.upper, draft, piece.range, &mut sealed);
                sealed.extend_from_slice(&checksum(table, &piece.fence, &sealed).to_be_bytes());
                self.put(table, &piece.fence, &sealed)?;
                self.sealed = sealed;
            }
        }
        draft.fence.clear();
        draft.is_changed = false;
        Ok(())
    }

    /// Takes the next blocks into a draft that has become short, as far as they fit; into an empty one in any case.
    fn join(&mut self, table: Table, draft: &mut Draft) -> Result<()> {
        let room = block::capacity(&draft.fence);
        while !draft.upper.is_empty() && draft.row_bytes() < room / 4 {
            let next = std::mem::take(&mut draft.upper);
            self.admit(table, &next)?;
            let found = self.handle(table).get(&self.transaction, &next).map_err(|error| tree_error(READ, error))?;
            let stored = found.ok_or_else(|| broken_block(table))?;
            if draft.len() > 0 && draft.row_bytes() + stored.len() > room * 3 / 4 {
                draft.upper = next;
                return Ok(());
            }
            draft.append(&unseal(table, &next, stored)?).ok_or_else(|| broken_block(table))?;
            self.delete(table, &next)?;
        }
        Ok(())
    }

    fn put(&mut self, table: Table, fence: &[u8], sealed: &[u8]) -> Result<()> {
        self.admit(table, fence)?;
        // LMDB splits a full page in the middle unless it is told that the key is the last.
        let flags = if self.is_appended(table, fence)? { PutFlags::APPEND } else { PutFlags::empty() };
        let handle = self.handle(table);
        let put = handle.put_with_flags(&mut self.transaction, flags, fence, sealed);
        put.map_err(|error| tree_error(WRITE, error))
    }

    fn delete(&mut self, table: Table, fence: &[u8]) -> Result<()> {
        self.admit(table, fence)?;
        let handle = self.handle(table);
        handle.delete(&mut self.transaction, fence).map_err(|error| tree_error(WRITE, error)).map(|_| ())
    }

    fn clear(&mut self, table: Table) -> Result<()> {
        // LMDB walks all pages of the table to free them.
        verify::check_table(&self.base, table).map_err(|damage| damaged(Some(table), damage))?;
        self.guard.get_mut().forget(table);
        self.last_fences[table.index()] = Some(Vec::new());
        let handle = self.handle(table);
        handle.clear(&mut self.transaction).map_err(|error| tree_error(WRITE, error))
    }

    /// Whether `fence` comes after every fence of `table`; remembers it if so.
    fn is_appended(&mut self, table: Table, fence: &[u8]) -> Result<bool> {
        let last = &mut self.last_fences[table.index()];
        let last = match last {
            Some(last) => last,
            None => last.insert(last_fence(&self.base, table)?),
        };
        if fence <= last.as_slice() {
            return Ok(false);
        }
        last.clear();
        last.extend_from_slice(fence);
        Ok(true)
    }
}

fn last_fence(base: &LmdbSnapshot, table: Table) -> Result<Vec<u8>> {
    let last = || {
        let Some(cursor) = Cursor::new(base.pages(), base.root(table), Goal::Last)? else { return Ok(Vec::new()) };
        let leaf = cursor.leaf();
        leaf.page.key(leaf.index).map(<[u8]>::to_vec)
    };
    last().map_err(|damage| damaged(Some(table), damage))
}

/// The block as it was stored, if its checksum is right.
fn unseal<'a>(table: Table, fence: &'a [u8], stored: &'a [u8]) -> Result<Block<'a>> {
    let block = match stored.split_last_chunk::<CHECKSUM_BYTES>() {
        Some((block, sum)) if u32::from_be_bytes(*sum) == checksum(table, fence, block) => Block::parse(fence, block),
        _ => None,
    };
    block.ok_or_else(|| broken_block(table))
}

#[cold]
fn broken_block(table: Table) -> Error {
    Error::corrupt(format!(
        "tree/data.mdb is damaged: a block of table {table} fails its checksum, or is not in its place"
    ))
    .with_hint(REBUILD)
}
