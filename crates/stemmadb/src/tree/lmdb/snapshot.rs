//! A committed state of the tree on disk, read row by row, each row verified.
//!
//! What a read promises on a damaged file: a row that is returned is right (its checksum covers table, key and value). `get`
//! says that a key is absent only after checking its leaf whole and its neighbours; a scan checks each leaf after its
//! first whole, and the borders between leaves. What remains hidden: rows of the first leaf of a scan when its
//! search went astray, and rows lost to an old page that a wrong page number names. `verify` finds those.

use std::ops::Bound;

use smallvec::SmallVec;

use super::cursor::{Cursor, Goal, Separators};
use super::guard::check_place;
use super::page::{Checked, LeafNode, NO_PAGE, Page, Root};
use super::pages::Pages;
use super::{checksum, damaged};
use crate::Result;
use crate::tree::{Direction, Row, Rows, Table, TreeRead, TreeSnapshot, is_crossed, is_storable};

/// Bytes of a row's checksum, after its value.
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

    /// The value of a row as it was put.
    #[inline]
    pub(super) fn value<'a>(&'a self, table: Table, page: &Page<'_>, node: &LeafNode<'a>) -> Checked<&'a [u8]> {
        let stored = self.pages.data(node.data)?;
        let (value, sum) = stored.split_last_chunk::<CHECKSUM_BYTES>().ok_or(page.damage("a row is too short"))?;
        if u32::from_be_bytes(*sum) != checksum(table, node.key, value) {
            return Err(page.damage("a row fails its checksum"));
        }
        Ok(value)
    }

    fn find<'a>(&'a self, table: Table, key: &[u8]) -> Checked<Option<&'a [u8]>> {
        let root = self.root(table);
        if root.page == NO_PAGE {
            return Ok(None);
        }
        let Some((page, node)) = find_node(&self.pages, root, key)? else { return Ok(None) };
        self.value(table, &page, &node).map(Some)
    }

    /// As `find`, beginning at the leaf of the key before, if this one belongs there too.
    fn find_near<'a>(&'a self, table: Table, key: &[u8], near: &mut Option<Near<'a>>) -> Checked<Option<&'a [u8]>> {
        let leaf = match near {
            Some(leaf) if is_between(key, leaf.separators) => leaf,
            _ => match Cursor::new(&self.pages, self.root(table), Goal::From(key))? {
                Some(cursor) => near.insert(Near { page: cursor.leaf().page, separators: cursor.separators()? }),
                None => return Ok(None),
            },
        };
        let index = leaf.page.search(key, false)?;
        if index < leaf.page.count() {
            let node = leaf.page.leaf_node(index)?;
            if node.key == key {
                return self.value(table, &leaf.page, &node).map(Some);
            }
        }
        check_absent(&self.pages, self.root(table), key, &leaf.page, leaf.separators)?;
        Ok(None)
    }
}

/// A leaf, and the keys that belong there.
struct Near<'a> {
    page: Page<'a>,
    separators: Separators<'a>,
}

fn is_between(key: &[u8], (lower, upper): Separators<'_>) -> bool {
    lower.is_none_or(|lower| lower <= key) && upper.is_none_or(|upper| key < upper)
}

/// The row under `key` in the tree with this root, not verified.
fn find_node<'a>(pages: &'a Pages, root: &Root, key: &[u8]) -> Checked<Option<(Page<'a>, LeafNode<'a>)>> {
    let mut page = pages.page(root.page)?;
    // The last branches that had a node before, and after, the one taken: their separators are the leaf's.
    let (mut lower, mut upper) = (None, None);
    for _ in 1..root.depth {
        if page.is_leaf() {
            return Err(page.damage("it is at the wrong depth"));
        }
        let next = page.search(key, true)?;
        if next > 1 {
            lower = Some((page, next - 1));
        }
        if next < page.count() {
            upper = Some((page, next));
        }
        page = pages.page(page.child(next - 1)?)?;
    }
    if !page.is_leaf() {
        return Err(page.damage("it is at the wrong depth"));
    }
    let index = page.search(key, false)?;
    if index < page.count() {
        let node = page.leaf_node(index)?;
        if node.key == key {
            return Ok(Some((page, node)));
        }
    }
    let separator = |found: Option<(Page<'a>, usize)>| found.map(|(branch, index)| branch.key(index)).transpose();
    check_absent(pages, root, key, &page, (separator(lower)?, separator(upper)?))?;
    Ok(None)
}

/// Makes sure that `key` was not merely missed: `leaf`, where it belongs, is whole and in its place, and if the key would
/// be its first or last, the neighbour's keys lie beyond.
fn check_absent(pages: &Pages, root: &Root, key: &[u8], leaf: &Page<'_>, separators: Separators<'_>) -> Checked<()> {
    leaf.check()?;
    check_place(leaf, separators)?;
    if leaf.key(0)? < key && key < leaf.key(leaf.count() - 1)? {
        return Ok(());
    }
    let Some(mut cursor) = Cursor::new(pages, root, Goal::From(key))? else { return Ok(()) };
    let index = cursor.leaf().index;
    if index == leaf.count() && cursor.next_leaf()? && cursor.leaf().page.key(0)? <= key {
        return Err(leaf.damage("a key lies beyond the page where it belongs"));
    }
    if index == 0 && cursor.previous_leaf()? {
        let previous = cursor.leaf();
        if previous.page.key(previous.index)? >= key {
            return Err(leaf.damage("a key lies before the page where it belongs"));
        }
    }
    Ok(())
}

fn table_root(pages: &Pages, table: Table) -> Checked<Root> {
    let main = &pages.meta().main;
    let damage = |what| super::page::Damage { page: main.page, what };
    let found = match main.page {
        NO_PAGE => None,
        _ => find_node(pages, main, table.name().as_bytes())?,
    };
    let (page, node) = found.ok_or(damage("a table is missing"))?;
    let root = Root::parse(pages.data(node.data)?).filter(|root| root.flags == 0);
    root.ok_or(page.damage("a table's record is wrong"))
}

impl TreeSnapshot for LmdbSnapshot {}

impl TreeRead for LmdbSnapshot {
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
        if is_crossed(lower, upper) {
            return Ok(Box::new(std::iter::empty()));
        }
        let rows = match direction {
            Direction::Ascending => LmdbRows::ascending(self, table, lower, upper),
            Direction::Descending => LmdbRows::descending(self, table, lower, upper),
        };
        match rows.map_err(|damage| damaged(Some(table), damage))? {
            Some(rows) => Ok(Box::new(rows)),
            None => Ok(Box::new(std::iter::empty())),
        }
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        Ok(self.root(table).entries)
    }
}

/// The bound at which a scan ends.
type End = Bound<SmallVec<[u8; 64]>>;

/// A scan: the rest of a leaf's nodes, and the cursor that leads to more.
struct LmdbRows<'a> {
    snapshot: &'a LmdbSnapshot,
    table: Table,
    direction: Direction,
    cursor: Cursor<'a>,
    page: Page<'a>,
    /// The nodes of `page` that are not returned yet: from `next` and before `stop`.
    next: usize,
    stop: usize,
    end: End,
    /// Whether no page after this one has rows within the bound.
    is_last: bool,
    /// The row before, in a page that was not checked whole.
    previous: Option<&'a [u8]>,
    is_checked: bool,
}

impl<'a> LmdbRows<'a> {
    fn ascending(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Checked<Option<Self>> {
        let goal = Goal::lower(lower);
        let cursor = Cursor::new(&snapshot.pages, snapshot.root(table), goal)?;
        let Some(mut rows) = cursor.map(|cursor| Self::new(snapshot, table, Direction::Ascending, cursor, upper))
        else {
            return Ok(None);
        };
        rows.next = rows.cursor.leaf().index;
        rows.clip()?;
        Ok(Some(rows))
    }

    fn descending(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Checked<Option<Self>> {
        let goal = Goal::upper(upper);
        let cursor = Cursor::new(&snapshot.pages, snapshot.root(table), goal)?;
        let Some(mut rows) = cursor.map(|cursor| Self::new(snapshot, table, Direction::Descending, cursor, lower))
        else {
            return Ok(None);
        };
        if upper != Bound::Unbounded {
            rows.stop = rows.cursor.leaf().index;
        }
        rows.clip()?;
        Ok(Some(rows))
    }

    fn new(
        snapshot: &'a LmdbSnapshot,
        table: Table,
        direction: Direction,
        cursor: Cursor<'a>,
        end: Bound<&[u8]>,
    ) -> Self {
        let page = cursor.leaf().page;
        let (next, stop) = (0, page.count());
        let end = end.map(SmallVec::from_slice);
        let (is_last, is_checked, previous) = (false, false, None);
        LmdbRows { snapshot, table, direction, cursor, page, next, stop, end, is_last, previous, is_checked }
    }

    /// Cuts the page's nodes at the end of the scan.
    fn clip(&mut self) -> Checked<()> {
        let (key, is_included) = match &self.end {
            Bound::Unbounded => return Ok(()),
            Bound::Included(key) => (key.as_slice(), true),
            Bound::Excluded(key) => (key.as_slice(), false),
        };
        match self.direction {
            Direction::Ascending => {
                let last = self.page.key(self.page.count() - 1)?;
                if last > key || (last == key && !is_included) {
                    self.stop = self.page.search(key, is_included)?;
                    self.is_last = true;
                }
            }
            Direction::Descending => {
                let first = self.page.key(0)?;
                if first < key || (first == key && !is_included) {
                    self.next = self.page.search(key, !is_included)?;
                    self.is_last = true;
                }
            }
        }
        Ok(())
    }

    /// Goes on to the next page within the bounds; false at the end.
    fn turn(&mut self) -> Checked<bool> {
        if self.is_last {
            return Ok(false);
        }
        let found = match self.direction {
            Direction::Ascending => self.cursor.next_leaf()?,
            Direction::Descending => self.cursor.previous_leaf()?,
        };
        if found {
            self.page = self.cursor.leaf().page;
            self.page.check()?;
            self.is_checked = true;
            (self.next, self.stop) = (0, self.page.count());
            self.clip()?;
        }
        Ok(found)
    }

    #[inline]
    fn advance(&mut self) -> Checked<Option<Row<'a>>> {
        while self.next >= self.stop {
            if !self.turn()? {
                self.is_last = true;
                return Ok(None);
            }
        }
        let index = match self.direction {
            Direction::Ascending => self.next,
            Direction::Descending => self.stop - 1,
        };
        let node = self.page.leaf_node(index)?;
        let value = self.snapshot.value(self.table, &self.page, &node)?;
        match self.direction {
            Direction::Ascending => self.next += 1,
            Direction::Descending => self.stop -= 1,
        }
        if !self.is_checked {
            self.check_order(node.key)?;
        }
        Ok(Some((node.key, value)))
    }
}

impl<'a> LmdbRows<'a> {
    #[inline]
    fn check_order(&mut self, key: &'a [u8]) -> Checked<()> {
        let in_order = self.previous.is_none_or(|previous| match self.direction {
            Direction::Ascending => previous < key,
            Direction::Descending => previous > key,
        });
        self.previous = Some(key);
        if in_order { Ok(()) } else { Err(self.page.damage("its keys are out of order")) }
    }
}

impl<'a> Iterator for LmdbRows<'a> {
    type Item = Result<Row<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(row) => row.map(Ok),
            Err(damage) => {
                (self.next, self.stop, self.is_last) = (0, 0, true);
                Some(Err(damaged(Some(self.table), damage)))
            }
        }
    }
}
