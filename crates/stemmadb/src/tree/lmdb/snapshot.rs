//! A committed state of the tree on disk, read block by block, each verified.
//!
//! What a read promises on a damaged file: a row that is returned is right (its block's checksum covers table, fence and
//! rows), and none is left out: a block says which keys it covers, a scan sees that blocks follow each other without a gap, and
//! nothing leads to a page that the state has freed, where blocks would be old ones.

use std::ops::Bound;

use super::block::Block;
use super::cursor::{Cursor, Goal};
use super::page::{Checked, Damage, NO_PAGE, Page, Root};
use super::pages::Pages;
use super::scan::Scan;
use super::{checksum, damaged};
use crate::Result;
use crate::tree::{Direction, NoRows, Rows, Table, TreeSnapshot, is_crossed, is_storable};

/// Bytes of a block's checksum, after it.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// The state at a commit, shared by all readers of that state.
pub(super) struct LmdbSnapshot {
    pages: Pages,
    roots: [Root; Table::ALL.len()],
}

impl LmdbSnapshot {
    /// Finds the tables' roots.
    ///
    /// # Errors
    /// `Corrupt` if one is not there.
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

    /// The block that covers `key`; none if the table is empty.
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

    /// As `find`, in the block of the key before, if that covers this one too.
    fn find_near<'a>(&'a self, table: Table, key: &[u8], near: &mut Option<Block<'a>>) -> Checked<Option<&'a [u8]>> {
        if near.is_none_or(|block| !block.covers(key)) {
            *near = self.floor(table, key)?;
        }
        match near {
            Some(block) => block.get(key).ok_or(self.broken(table)),
            None => Ok(None),
        }
    }

    /// A block has the right checksum and is none.
    #[cold]
    fn broken(&self, table: Table) -> Damage {
        Damage { page: self.root(table).page, what: BROKEN }
    }
}

/// Said of the page where the search for the block ended.
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

/// At the last node not above `key`; none if the table is empty.
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
        let mut near = None;
        let find = |key: &&[u8]| match is_storable(key) {
            true => self.find_near(table, key, &mut near).map_err(|damage| damaged(Some(table), damage)),
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
        // No key is empty.
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
