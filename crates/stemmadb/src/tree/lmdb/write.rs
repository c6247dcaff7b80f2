//! Write transaction: LMDB's, on pages that the guard has verified, one block at a time.

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

/// A draft larger than this is stored even if more of its rows are yet to come.
const DRAFT_BYTES_MAX: usize = 16 << 10;

/// Waits for the previous writer and starts a transaction.
pub(super) fn begin<'t>(tree: &'t LmdbTree, handles: &'t Handles) -> Result<Box<dyn TreeTransaction + 't>> {
    let writer = tree.writer.lock();
    let transaction = tree.env.write_txn().map_err(|error| tree_error(WRITE, error))?;
    let block_writer = BlockWriter {
        handles,
        transaction,
        base: tree.current.read().clone(),
        guard: RefCell::default(),
        last_fences: Default::default(),
        encoded_block: Vec::new(),
    };
    Ok(Box::new(LmdbTransaction { tree, block_writer, drafts: Default::default(), _writer: writer }))
}

struct LmdbTransaction<'t> {
    tree: &'t LmdbTree,
    block_writer: BlockWriter<'t>,
    /// For each table the block that is being changed; unused while its fence is empty.
    drafts: [Option<Draft>; Table::ALL.len()],
    // Declared last so that it is dropped last: the next writer starts after this transaction has ended.
    _writer: MutexGuard<'t, ()>,
}

impl LmdbTransaction<'_> {
    /// The draft of the block that covers `key`, loaded if necessary.
    fn draft(&mut self, table: Table, key: &[u8]) -> Result<&mut Draft> {
        let slot = &mut self.drafts[table.index()];
        let mut draft = slot.take().unwrap_or_default();
        if draft.fence.is_empty() || !draft.covers(key) {
            self.block_writer.store(table, &mut draft)?;
            self.block_writer.load(table, key, &mut draft)?;
            debug_assert!(draft.covers(key), "a loaded draft covers the key it was loaded for");
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

    fn has_neighbor_with_prefix(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>> {
        if !is_storable(key) {
            return Ok(None);
        }
        Ok(self.draft(table, key)?.has_neighbor_with_prefix(key, prefix))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        let draft = self.draft(table, key)?;
        draft.put(key, value);
        if draft.row_bytes() > DRAFT_BYTES_MAX {
            let mut draft = self.drafts[table.index()].take().unwrap_or_default();
            self.block_writer.store(table, &mut draft)?;
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
        self.block_writer.clear(table)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { tree, mut block_writer, drafts, _writer } = *self;
        for (table, draft) in Table::ALL.into_iter().zip(drafts) {
            block_writer.store(table, &mut draft.unwrap_or_default())?;
        }
        block_writer.transaction.commit().map_err(|error| tree_error(WRITE, error))?;
        let newest = LmdbSnapshot::new(Pages::pin(&tree.env, &tree.map)?)?;
        let mut current = tree.current.write();
        debug_assert!(
            current.pages().meta().transaction <= newest.pages().meta().transaction,
            "a commit publishes a newer state"
        );
        *current = Arc::new(newest);
        Ok(())
    }
}

/// The blocks within LMDB's write transaction.
struct BlockWriter<'t> {
    handles: &'t Handles,
    transaction: RwTxn<'t>,
    /// The state that the transaction started from.
    base: Arc<LmdbSnapshot>,
    guard: RefCell<Guard>,
    /// The last fence of each table, once known; empty for an empty table.
    last_fences: [Option<Vec<u8>>; Table::ALL.len()],
    encoded_block: Vec<u8>,
}

impl BlockWriter<'_> {
    fn handle(&self, table: Table) -> Handle {
        self.handles[table.index()]
    }

    fn admit(&self, table: Table, key: &[u8]) -> Result<()> {
        self.guard.borrow_mut().admit(&self.base, table, key)
    }

    /// The block that covers `key`; `None` if the table is empty.
    fn floor(&self, table: Table, key: &[u8]) -> Result<Option<Block<'_>>> {
        self.admit(table, key)?;
        let found = self.handle(table).get_lower_than_or_equal_to(&self.transaction, key);
        match found.map_err(|error| tree_error(READ, error))? {
            Some((fence, stored)) => {
                let block = decode_block(table, fence, stored)?;
                if block.covers(key) { Ok(Some(block)) } else { Err(broken_block(table)) }
            }
            None if self.handle(table).is_empty(&self.transaction).map_err(|error| tree_error(READ, error))? => {
                Ok(None)
            }
            None => Err(broken_block(table)),
        }
    }

    /// Loads the block that covers `key` into `draft`; an empty first block if the table is empty.
    fn load(&self, table: Table, key: &[u8], draft: &mut Draft) -> Result<()> {
        let Some(block) = self.floor(table, key)? else {
            draft.begin(FIRST_FENCE, &[], 0);
            return Ok(());
        };
        draft.begin(block.fence(), &[], block.byte_count());
        draft.append(&block).ok_or_else(|| broken_block(table))
    }

    /// Stores `draft` if it was changed, and marks it unused.
    fn store(&mut self, table: Table, draft: &mut Draft) -> Result<()> {
        if !draft.is_changed {
            draft.fence.clear();
            return Ok(());
        }
        self.merge_next_blocks(table, draft)?;
        if draft.len() == 0 && draft.upper.is_empty() && draft.fence == FIRST_FENCE {
            if draft.stored_bytes > 0 {
                self.delete(table, &draft.fence)?;
            }
        } else {
            if draft.stored_bytes > block::capacity(&draft.fence) {
                // LMDB would store a smaller value in place of one on overflow pages and still count all the pages as
                // used.
                self.delete(table, &draft.fence)?;
            }
            for block_range in block::split_into_blocks(&draft.fence, &draft.upper, draft) {
                let mut encoded_block = std::mem::take(&mut self.encoded_block);
                encoded_block.clear();
                block::encode(&block_range.fence, &block_range.upper, draft, block_range.range, &mut encoded_block);
                encoded_block.extend_from_slice(&checksum(table, &block_range.fence, &encoded_block).to_be_bytes());
                self.put(table, &block_range.fence, &encoded_block)?;
                self.encoded_block = encoded_block;
            }
        }
        draft.fence.clear();
        draft.is_changed = false;
        Ok(())
    }

    /// Merges the next blocks into a draft that has become short, as long as they fit; into an empty one in any case.
    fn merge_next_blocks(&mut self, table: Table, draft: &mut Draft) -> Result<()> {
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
            draft.append(&decode_block(table, &next, stored)?).ok_or_else(|| broken_block(table))?;
            self.delete(table, &next)?;
        }
        Ok(())
    }

    fn put(&mut self, table: Table, fence: &[u8], encoded_block: &[u8]) -> Result<()> {
        self.admit(table, fence)?;
        // LMDB splits a full page in the middle unless `APPEND` states that the key is the last.
        let flags = if self.is_appended(table, fence)? { PutFlags::APPEND } else { PutFlags::empty() };
        let handle = self.handle(table);
        let put = handle.put_with_flags(&mut self.transaction, flags, fence, encoded_block);
        put.map_err(|error| tree_error(WRITE, error))
    }

    fn delete(&mut self, table: Table, fence: &[u8]) -> Result<()> {
        self.admit(table, fence)?;
        let handle = self.handle(table);
        handle.delete(&mut self.transaction, fence).map_err(|error| tree_error(WRITE, error)).map(|_| ())
    }

    fn clear(&mut self, table: Table) -> Result<()> {
        // LMDB reads all pages of the table to free them.
        verify::check_table(&self.base, table).map_err(|damage| damaged(Some(table), damage))?;
        self.guard.get_mut().admit_all(table);
        self.last_fences[table.index()] = Some(Vec::new());
        let handle = self.handle(table);
        handle.clear(&mut self.transaction).map_err(|error| tree_error(WRITE, error))
    }

    /// Whether `fence` is above every fence of `table`; if so, it becomes the last one.
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

/// The block in an LMDB row, if its checksum is valid.
fn decode_block<'a>(table: Table, fence: &'a [u8], stored: &'a [u8]) -> Result<Block<'a>> {
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
