//! Tree verification: reads every page in use and reports all problems, without trusting any page.
//!
//! Checks that each page is used once (by one table or as free), has its own number and kind, is at its table's depth,
//! is filled exactly by nodes in order, and is between its separators; that each block has a valid checksum and sorted
//! rows and follows the previous one; that the counts in the tables' records are right; and that every page is
//! accounted for. Any flipped bit in data that is ever read is therefore counts.

use super::block::FIRST_FENCE;
use super::page::{Checked, Damage, FREE_FLAGS, LeafData, META_PAGES, NO_PAGE, Page, Root, overflow_pages, u64_at};
use super::pages::Pages;
use super::snapshot::LmdbSnapshot;
use super::{Table, damaged};
use crate::tree::TreeReport;

/// Progress is reported once per this many pages.
const PROGRESS_PAGES: u64 = 1024;

/// Verifies all tables and the free list.
pub(super) fn verify(snapshot: &LmdbSnapshot, progress: &mut dyn FnMut(u64, u64)) -> TreeReport {
    let pages = snapshot.pages();
    let page_count = pages.meta().last_page + 1;
    let mut report = TreeReport { page_count, ..TreeReport::default() };
    let mut walk = PageWalk::new(pages, progress);
    for (kind, table) in btrees() {
        let root = match kind {
            BTreeKind::Free => &pages.meta().free,
            BTreeKind::Main => &pages.meta().main,
            BTreeKind::Rows => snapshot.root(table),
        };
        let mut blocks = BlockChain::new(snapshot, table);
        walk.tree(kind, root, &mut |page| match kind {
            BTreeKind::Rows => blocks.check(page),
            _ => Ok(()),
        });
        if kind == BTreeKind::Rows {
            report.row_count += blocks.row_count;
            walk.problems.extend(blocks.finish(root));
        }
        for damage in walk.problems.drain(..) {
            let table = (kind == BTreeKind::Rows).then_some(table);
            report.add(damaged(table, damage).message().to_owned());
        }
    }
    report.free_page_count = walk.free.iter().map(|word| u64::from(word.count_ones())).sum();
    let unseen_count = walk.unseen_count();
    if unseen_count > 0 {
        report.add(format!("tree/data.mdb: {unseen_count} pages are neither in use nor free"));
    }
    progress(page_count, page_count);
    report
}

/// Verifies what LMDB reads on its own, the table of tables and the free list; returns one bit per page, set if the
/// page is free.
pub(super) fn free_pages(pages: &Pages) -> Checked<Vec<u64>> {
    let silent = &mut |_, _| {};
    let mut walk = PageWalk::new(pages, silent);
    walk.tree(BTreeKind::Free, &pages.meta().free, &mut |_| Ok(()));
    walk.tree(BTreeKind::Main, &pages.meta().main, &mut |_| Ok(()));
    walk.problems.first().map_or(Ok(walk.free), |damage| Err(*damage))
}

/// Verifies all pages of one table.
pub(super) fn check_table(snapshot: &LmdbSnapshot, table: Table) -> Checked<()> {
    let silent = &mut |_, _| {};
    let mut walk = PageWalk::new(snapshot.pages(), silent);
    let mut blocks = BlockChain::new(snapshot, table);
    walk.tree(BTreeKind::Rows, snapshot.root(table), &mut |page| blocks.check(page));
    walk.problems.extend(blocks.finish(snapshot.root(table)));
    walk.problems.first().map_or(Ok(()), |damage| Err(*damage))
}

/// Kind of B-tree in an LMDB file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BTreeKind {
    /// Free list: transaction number to the pages it freed.
    Free,
    /// Table of tables: name to record.
    Main,
    /// A table.
    Rows,
}

fn btrees() -> impl Iterator<Item = (BTreeKind, Table)> {
    let heads = [(BTreeKind::Free, Table::Meta), (BTreeKind::Main, Table::Meta)];
    heads.into_iter().chain(Table::ALL.map(|table| (BTreeKind::Rows, table)))
}

impl BTreeKind {
    fn flags(self) -> u16 {
        if self == BTreeKind::Free { FREE_FLAGS } else { 0 }
    }

    fn in_order(self, previous: &[u8], key: &[u8]) -> bool {
        match self {
            BTreeKind::Free => u64_at(previous, 0) < u64_at(key, 0),
            BTreeKind::Main | BTreeKind::Rows => previous < key,
        }
    }
}

struct PageWalk<'w> {
    pages: &'w Pages,
    /// One bit per page, set once it was seen in use or free.
    seen: Vec<u64>,
    seen_count: u64,
    /// One bit per page, set if it is free.
    free: Vec<u64>,
    entries: u64,
    problems: Vec<Damage>,
    progress: &'w mut dyn FnMut(u64, u64),
}

/// Counts of the pages and entries below a root.
#[derive(Default)]
struct PageCounts {
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
}

/// Expected position of a page: its distance to the leaves and the separators around it.
#[derive(Clone, Copy)]
struct PageBounds<'k> {
    height: u16,
    lower: Option<&'k [u8]>,
    upper: Option<&'k [u8]>,
}

impl<'w> PageWalk<'w> {
    fn new(pages: &'w Pages, progress: &'w mut dyn FnMut(u64, u64)) -> Self {
        let words = pages.meta().last_page / 64 + 1;
        let (seen, free) = (vec![0; words as usize], vec![0; words as usize]);
        let mut walk = PageWalk { pages, seen, seen_count: 0, free, entries: 0, problems: Vec::new(), progress };
        for number in 0..META_PAGES {
            walk.mark_bit(number);
        }
        walk
    }

    /// Number of pages that were never seen.
    fn unseen_count(&self) -> u64 {
        (self.pages.meta().last_page + 1).saturating_sub(self.seen_count)
    }

    fn tree(&mut self, kind: BTreeKind, root: &Root, check: &mut dyn FnMut(&Page<'w>) -> Checked<()>) {
        let mut counts = PageCounts::default();
        if root.page != NO_PAGE {
            let bounds = PageBounds { height: root.depth, lower: None, upper: None };
            self.below(kind, root.page, bounds, &mut counts, check);
        }
        self.entries += counts.entries;
        let damage = |what| Damage { page: root.page, what };
        if root.flags != kind.flags() {
            self.problems.push(damage("the record of the table is wrong"));
        } else if self.problems.is_empty()
            && (counts.branch_pages, counts.leaf_pages, counts.overflow_pages, counts.entries)
                != (root.branch_pages, root.leaf_pages, root.overflow_pages, root.entries)
        {
            self.problems.push(damage("the record of the table counts other rows or pages than there are"));
        }
    }

    fn below(
        &mut self,
        kind: BTreeKind,
        number: u64,
        bounds: PageBounds<'_>,
        counts: &mut PageCounts,
        check: &mut dyn FnMut(&Page<'w>) -> Checked<()>,
    ) {
        if let Err(damage) = self.page(kind, number, bounds, counts, check) {
            self.problems.push(damage);
        }
    }

    fn page(
        &mut self,
        kind: BTreeKind,
        number: u64,
        bounds: PageBounds<'_>,
        counts: &mut PageCounts,
        check: &mut dyn FnMut(&Page<'w>) -> Checked<()>,
    ) -> Checked<()> {
        let page = self.pages.page(number)?;
        self.mark(number)?;
        if page.is_leaf() != (bounds.height == 1) {
            return Err(page.damage("it is at the wrong depth"));
        }
        page.check_by(|previous, key| kind.in_order(previous, key))?;
        check_bounds(kind, &page, bounds)?;
        check(&page)?;
        if page.is_leaf() {
            counts.leaf_pages += 1;
            return self.leaf(kind, &page, counts);
        }
        counts.branch_pages += 1;
        for index in 0..page.count() {
            let lower = if index == 0 { bounds.lower } else { Some(page.key(index)?) };
            let upper = if index + 1 < page.count() { Some(page.key(index + 1)?) } else { bounds.upper };
            let bounds = PageBounds { height: bounds.height - 1, lower, upper };
            self.below(kind, page.child(index)?, bounds, counts, check);
        }
        Ok(())
    }

    fn leaf(&mut self, kind: BTreeKind, page: &Page<'_>, counts: &mut PageCounts) -> Checked<()> {
        counts.entries += page.count() as u64;
        for index in 0..page.count() {
            let node = page.leaf_node(index)?;
            if let LeafData::Overflow { page, len } = node.data {
                let count = overflow_pages(len, self.pages.meta().page_bytes);
                counts.overflow_pages += count;
                (page..page.saturating_add(count)).try_for_each(|number| self.mark(number))?;
            }
            let data = self.pages.data(node.data)?;
            match (kind, node.data) {
                (BTreeKind::Free, _) => self.free_list(page, node.key, data)?,
                (BTreeKind::Main, LeafData::Table(_)) if Root::parse(data).is_some_and(|root| root.flags == 0) => {}
                (BTreeKind::Main, _) => return Err(page.damage("a table's record is wrong")),
                (BTreeKind::Rows, _) => {}
            }
        }
        Ok(())
    }

    /// The pages freed by a transaction: their count, then their numbers.
    fn free_list(&mut self, page: &Page<'_>, key: &[u8], data: &[u8]) -> Checked<()> {
        let damage = page.damage("the list of free pages is wrong");
        let transaction = u64_at(key, 0).filter(|_| key.len() == 8).ok_or(damage)?;
        let count = u64_at(data, 0).ok_or(damage)?;
        if transaction > self.pages.meta().transaction || count > (data.len() as u64 / 8).saturating_sub(1) {
            return Err(damage);
        }
        for index in 1..=count as usize {
            let number = u64_at(data, index * 8).ok_or(damage)?;
            self.mark(number)?;
            self.free[(number / 64) as usize] |= 1 << (number % 64);
        }
        Ok(())
    }

    fn mark(&mut self, number: u64) -> Checked<()> {
        if !(META_PAGES..=self.pages.meta().last_page).contains(&number) {
            return Err(Damage { page: number, what: "there is no such page" });
        }
        if !self.mark_bit(number) {
            return Err(Damage { page: number, what: "it is used twice" });
        }
        if self.seen_count.is_multiple_of(PROGRESS_PAGES) {
            (self.progress)(self.seen_count, self.pages.meta().last_page + 1);
        }
        Ok(())
    }

    /// Marks a page as seen; returns false if it was seen before.
    fn mark_bit(&mut self, number: u64) -> bool {
        let (word, bit) = (&mut self.seen[(number / 64) as usize], 1 << (number % 64));
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.seen_count += 1;
        true
    }
}

/// Checks the chain of blocks of a table.
struct BlockChain<'a> {
    snapshot: &'a LmdbSnapshot,
    table: Table,
    row_count: u64,
    /// The fence of the next block, empty after the last; `None` after a damaged page.
    expected: Option<&'a [u8]>,
}

impl<'a> BlockChain<'a> {
    fn new(snapshot: &'a LmdbSnapshot, table: Table) -> Self {
        BlockChain { snapshot, table, row_count: 0, expected: Some(FIRST_FENCE) }
    }

    fn check(&mut self, page: &Page<'a>) -> Checked<()> {
        if !page.is_leaf() {
            return Ok(());
        }
        for index in 0..page.count() {
            let expected = self.expected.take();
            let block = self.snapshot.block(self.table, page, index)?;
            if !block.is_sound() {
                return Err(page.damage("the rows of a block are out of order"));
            }
            self.row_count += block.count() as u64;
            self.expected = Some(block.upper());
            if expected.is_some_and(|expected| expected != block.fence()) {
                return Err(page.damage("a block does not follow the one before"));
            }
        }
        Ok(())
    }

    /// The problem of a chain that ends before the last block.
    fn finish(&self, root: &Root) -> Option<Damage> {
        let is_complete = root.page == NO_PAGE || self.expected.is_none_or(<[u8]>::is_empty);
        (!is_complete).then_some(Damage { page: root.page, what: "the last block of the table is missing" })
    }
}

fn check_bounds(kind: BTreeKind, page: &Page<'_>, bounds: PageBounds<'_>) -> Checked<()> {
    // The first key of a branch is meaningless.
    let first = usize::from(!page.is_leaf());
    let below = match bounds.lower {
        Some(lower) if first < page.count() => kind.in_order(page.key(first)?, lower),
        _ => false,
    };
    let above = match bounds.upper {
        Some(upper) => !kind.in_order(page.key(page.count() - 1)?, upper),
        None => false,
    };
    if below || above { Err(page.damage("its keys belong to another page")) } else { Ok(()) }
}
