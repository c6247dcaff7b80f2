//! Snapshot of a committed state of the tree on disk; every block read is verified.
//!
//! Guarantees on a damaged file: a returned row is correct (the block's checksum covers table, fence and rows), and no
//! row is skipped. Blocks record the keys they cover, a scan checks that consecutive blocks leave no gap, and pages
//! freed in this state, where outdated blocks may remain, are never read.

use std::ops::Bound;

use super::block::Block;
use super::cursor::{Cursor, Goal};
use super::page::{Checked, Damage, NO_PAGE, Page, Root};
use super::pages::Pages;
use super::scan::Scan;
use super::{checksum, damaged};
use crate::Result;
use crate::tree::{Direction, NoRows, Rows, Table, TreeSnapshot, is_crossed, is_storable};

/// Length of the checksum after a block.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// The state at one commit, shared by all its readers.
pub(super) struct LmdbSnapshot {
    pages: Pages,
    roots: [Root; Table::ALL.len()],
}

impl LmdbSnapshot {
    /// Looks up the root of each table.
    ///
    /// # Errors
    /// `Corrupt` if one is missing.
    pub(super) fn new(pages: Pages) -> Result<Self> {
        let mut roots = [pages.meta().main; Table::ALL.len()];
        for table in Table::ALL {
            roots[table.index()] = table_root(&pages, table).map_err(|damage| damaged(None, damage))?;
        }
        Ok(LmdbSnapshot { pages, roots })
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn root(&self, table: Table) -> &Root {
        &self.roots[table.index()]
    }

    /// The block in a leaf's node `index`.
    #[inline]
    pub(super) fn block<'a>(&'a self, table: Table, page: &Page<'a>, index: usize) -> Checked<Block<'a>> {
        let node = page.leaf_node(index)?;
        let stored = self.pages.data(node.data)?;
        let (block, sum) = stored.split_last_chunk::<CHECKSUM_BYTES>().ok_or(page.damage("a block is too short"))?;
        if u32::from_be_bytes(*sum) != checksum(table, node.key, block) {
            return Err(page.damage("a block fails its checksum"));
        }
        Block::parse(node.key, block).ok_or(page.damage(BROKEN))
    }

    /// The block that covers `key`; `None` if the table is empty.
    fn floor<'a>(&'a self, table: Table, key: &[u8]) -> Checked<Option<Block<'a>>> {
        let root = self.root(table);
        if root.page == NO_PAGE {
            return Ok(None);
        }
        let page = find_leaf(&self.pages, root, key)?;
        let block = match page.search(key, true)? {
            0 => {
                let Some(cursor) = floor_cursor(&self.pages, root, key)? else { return Ok(None) };
                self.block(table, &cursor.leaf().page, cursor.leaf().index)?
            }
            index => self.block(table, &page, index - 1)?,
        };
        if block.covers(key) { Ok(Some(block)) } else { Err(page.damage(GAP)) }
    }

    fn find<'a>(&'a self, table: Table, key: &[u8]) -> Checked<Option<&'a [u8]>> {
        match self.floor(table, key)? {
            Some(block) => block.get(key).ok_or(self.broken(table)),
            None => Ok(None),
        }
    }

    /// As `find`, but tries the block of the previous key first.
    fn find_near<'a>(
        &'a self,
        table: Table,
        key: &[u8],
        previous_block: &mut Option<Block<'a>>,
    ) -> Checked<Option<&'a [u8]>> {
        if previous_block.is_none_or(|block| !block.covers(key)) {
            *previous_block = self.floor(table, key)?;
        }
        match previous_block {
            Some(block) => block.get(key).ok_or(self.broken(table)),
            None => Ok(None),
        }
    }

    /// The error for a block with a valid checksum but invalid content.
    #[cold]
    fn broken(&self, table: Table) -> Damage {
        Damage { page: self.root(table).page, what: BROKEN }
    }
}

/// Reported for the page where the search for the block ended.
const GAP: &str = "a block that should follow, or come before, is not there";
const BROKEN: &str = "a block is not what was put there";

/// The leaf where `key` belongs.
fn find_leaf<'a>(pages: &'a Pages, root: &Root, key: &[u8]) -> Checked<Page<'a>> {
    let mut page = pages.page(root.page)?;
    for _ in 1..root.depth {
        if page.is_leaf() {
            return Err(page.damage("it is at the wrong depth"));
        }
        page = pages.page(page.child(page.search(key, true)? - 1)?)?;
    }
    if page.is_leaf() { Ok(page) } else { Err(page.damage("it is at the wrong depth")) }
}

/// A cursor at the last node not above `key`; `None` if the table is empty.
fn floor_cursor<'a>(pages: &'a Pages, root: &Root, key: &[u8]) -> Checked<Option<Cursor<'a>>> {
    let Some(mut cursor) = Cursor::new(pages, root, Goal::After(key))? else { return Ok(None) };
    match cursor.previous()? {
        true => Ok(Some(cursor)),
        false => Err(cursor.leaf().page.damage(GAP)),
    }
}

fn table_root(pages: &Pages, table: Table) -> Checked<Root> {
    let main = &pages.meta().main;
    let damage = |what| super::page::Damage { page: main.page, what };
    if main.page == NO_PAGE {
        return Err(damage("a table is missing"));
    }
    let name = table.name().as_bytes();
    let page = find_leaf(pages, main, name)?;
    let index = page.search(name, false)?;
    let node = if index < page.count() { Some(page.leaf_node(index)?) } else { None };
    let node = node.filter(|node| node.key == name).ok_or(damage("a table is missing"))?;
    let root = Root::parse(pages.data(node.data)?).filter(|root| root.flags == 0);
    root.ok_or(page.damage("a table's record is wrong"))
}

impl TreeSnapshot for LmdbSnapshot {
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>> {
        if !is_storable(key) {
            return Ok(None);
        }
        self.find(table, key).map_err(|damage| damaged(Some(table), damage))
    }

    fn get_many<'a>(&'a self, table: Table, keys: &[&[u8]]) -> Result<Vec<Option<&'a [u8]>>> {
        let mut previous_block = None;
        let find = |key: &&[u8]| match is_storable(key) {
            true => self.find_near(table, key, &mut previous_block).map_err(|damage| damaged(Some(table), damage)),
            false => Ok(None),
        };
        keys.iter().map(find).collect()
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>> {
        // Keys are never empty.
        let lower = match lower {
            Bound::Included([]) | Bound::Excluded([]) => Bound::Unbounded,
            lower => lower,
        };
        if is_crossed(lower, upper) || matches!(upper, Bound::Included([]) | Bound::Excluded([])) {
            return Ok(Box::new(NoRows));
        }
        let rows = match direction {
            Direction::Ascending => Scan::ascending(self, table, lower, upper),
            Direction::Descending => Scan::descending(self, table, lower, upper),
        };
        match rows.map_err(|damage| damaged(Some(table), damage))? {
            Some(rows) => Ok(Box::new(rows)),
            None => Ok(Box::new(NoRows)),
        }
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        let count = || {
            let mut cursor = Cursor::new(&self.pages, self.root(table), Goal::First)?;
            let mut count = 0;
            while let Some(at) = &mut cursor {
                count += self.block(table, &at.leaf().page, at.leaf().index)?.count() as u64;
                if !at.next()? {
                    break;
                }
            }
            Ok(count)
        };
        count().map_err(|damage| damaged(Some(table), damage))
    }
}
