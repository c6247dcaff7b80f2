//! Walks every page that is in use and says what is wrong, without trusting any of them.
//!
//! Checked: each page is used once (by one table, or as free), carries its number and kind, lies at its table's depth, is
//! filled exactly by nodes in order, between the separators above it; each block has its checksum, its rows in order, and
//! follows the one before; what the tables' records count is what is there; no page is unaccounted for. So a flipped bit
//! in anything that is read is found.

use super::block::FIRST_FENCE;
use super::page::{Checked, Damage, FREE_FLAGS, LeafData, META_PAGES, NO_PAGE, Page, Root, overflow_pages, u64_at};
use super::pages::Pages;
use super::snapshot::LmdbSnapshot;
use super::{Table, damaged};
use crate::tree::TreeReport;

/// Progress is told once in so many pages.
const PROGRESS_PAGES: u64 = 1024;

/// Walks all tables and the list of free pages.
pub(super) fn verify(snapshot: &LmdbSnapshot, progress: &mut dyn FnMut(u64, u64)) -> TreeReport {
    let pages = snapshot.pages();
    let page_count = pages.meta().last_page + 1;
    let mut report = TreeReport { page_count, ..TreeReport::default() };
    let mut walk = Walk::new(pages, progress);
    for (part, table) in parts() {
        let root = match part {
            Part::Free => &pages.meta().free,
            Part::Main => &pages.meta().main,
            Part::Rows => snapshot.root(table),
        };
        let mut blocks = Blocks::new(snapshot, table);
        walk.tree(part, root, &mut |page| match part {
            Part::Rows => blocks.check(page),
            _ => Ok(()),
        });
        if part == Part::Rows {
            report.row_count += blocks.row_count;
            walk.problems.extend(blocks.finish(root));
        }
        for damage in walk.problems.drain(..) {
            let table = (part == Part::Rows).then_some(table);
            report.add(damaged(table, damage).message().to_owned());
        }
    }
    report.free_page_count = walk.free.iter().map(|word| u64::from(word.count_ones())).sum();
    let lost = walk.lost();
    if lost > 0 {
        report.add(format!("tree/data.mdb: {lost} pages are neither in use nor free"));
    }
    progress(page_count, page_count);
    report
}

/// Checks what LMDB reads by itself, the table of tables and the list of free pages; gives a bit for each page, set if it is free.
pub(super) fn free_pages(pages: &Pages) -> Checked<Vec<u64>> {
    let silent = &mut |_, _| {};
    let mut walk = Walk::new(pages, silent);
    walk.tree(Part::Free, &pages.meta().free, &mut |_| Ok(()));
    walk.tree(Part::Main, &pages.meta().main, &mut |_| Ok(()));
    walk.problems.first().map_or(Ok(walk.free), |damage| Err(*damage))
}

/// Checks all pages of one table.
pub(super) fn check_table(snapshot: &LmdbSnapshot, table: Table) -> Checked<()> {
    let silent = &mut |_, _| {};
    let mut walk = Walk::new(snapshot.pages(), silent);
    let mut blocks = Blocks::new(snapshot, table);
    walk.tree(Part::Rows, snapshot.root(table), &mut |page| blocks.check(page));
    walk.problems.extend(blocks.finish(snapshot.root(table)));
    walk.problems.first().map_or(Ok(()), |damage| Err(*damage))
}

/// Which kind of tree is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Transaction to the pages it freed.
    Free,
    /// Name to table.
    Main,
    /// A table.
    Rows,
}

fn parts() -> impl Iterator<Item = (Part, Table)> {
    let heads = [(Part::Free, Table::Meta), (Part::Main, Table::Meta)];
    heads.into_iter().chain(Table::ALL.map(|table| (Part::Rows, table)))
}

impl Part {
    fn flags(self) -> u16 {
        if self == Part::Free { FREE_FLAGS } else { 0 }
    }

    fn in_order(self, previous: &[u8], key: &[u8]) -> bool {
        match self {
            Part::Free => u64_at(previous, 0) < u64_at(key, 0),
            Part::Main | Part::Rows => previous < key,
        }
    }
}

struct Walk<'w> {
    pages: &'w Pages,
    /// A bit for each page that was seen in use or free.
    seen: Vec<u64>,
    seen_count: u64,
    /// A bit for each page that is free.
    free: Vec<u64>,
    entries: u64,
    problems: Vec<Damage>,
    progress: &'w mut dyn FnMut(u64, u64),
}

/// What was found below a root.
#[derive(Default)]
struct Found {
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
}

/// Where a page lies: its distance to the leaves, and the separators around it.
#[derive(Clone, Copy)]
struct Place<'k> {
    height: u16,
    lower: Option<&'k [u8]>,
    upper: Option<&'k [u8]>,
}

impl<'w> Walk<'w> {
    fn new(pages: &'w Pages, progress: &'w mut dyn FnMut(u64, u64)) -> Self {
        let words = pages.meta().last_page / 64 + 1;
        let (seen, free) = (vec![0; words as usize], vec![0; words as usize]);
        let mut walk = Walk { pages, seen, seen_count: 0, free, entries: 0, problems: Vec::new(), progress };
        for number in 0..META_PAGES {
            walk.mark_bit(number);
        }
        walk
    }

    /// Pages that were never seen.
    fn lost(&self) -> u64 {
        (self.pages.meta().last_page + 1).saturating_sub(self.seen_count)
    }

    fn tree(&mut self, part: Part, root: &Root, check: &mut dyn FnMut(&Page<'w>) -> Checked<()>) {
        let mut found = Found::default();
        if root.page != NO_PAGE {
            let place = Place { height: root.depth, lower: None, upper: None };
            self.below(part, root.page, place, &mut found, check);
        }
        self.entries += found.entries;
        let damage = |what| Damage { page: root.page, what };
        if root.flags != part.flags() {
            self.problems.push(damage("the record of the table is wrong"));
        } else if self.problems.is_empty()
            && (found.branch_pages, found.leaf_pages, found.overflow_pages, found.entries)
                != (root.branch_pages, root.leaf_pages, root.overflow_pages, root.entries)
        {
            self.problems.push(damage("the record of the table counts other rows or pages than there are"));
        }
    }

    fn below(
        &mut self,
        part: Part,
        number: u64,
        place: Place<'_>,
        found: &mut Found,
        check: &mut dyn FnMut(&Page<'w>) -> Checked<()>,
    ) {
        if let Err(damage) = self.page(part, number, place, found, check) {
            self.problems.push(damage);
        }
    }

    fn page(
        &mut self,
        part: Part,
        number: u64,
        place: Place<'_>,
        found: &mut Found,
        check: &mut dyn FnMut(&Page<'w>) -> Checked<()>,
    ) -> Checked<()> {
        let page = self.pages.page(number)?;
        self.mark(number)?;
        if page.is_leaf() != (place.height == 1) {
            return Err(page.damage("it is at the wrong depth"));
        }
        page.check_by(|previous, key| part.in_order(previous, key))?;
        check_place(part, &page, place)?;
        check(&page)?;
        if page.is_leaf() {
            found.leaf_pages += 1;
            return self.leaf(part, &page, found);
        }
        found.branch_pages += 1;
        for index in 0..page.count() {
            let lower = if index == 0 { place.lower } else { Some(page.key(index)?) };
            let upper = if index + 1 < page.count() { Some(page.key(index + 1)?) } else { place.upper };
            let place = Place { height: place.height - 1, lower, upper };
            self.below(part, page.child(index)?, place, found, check);
        }
        Ok(())
    }

    fn leaf(&mut self, part: Part, page: &Page<'_>, found: &mut Found) -> Checked<()> {
        found.entries += page.count() as u64;
        for index in 0..page.count() {
            let node = page.leaf_node(index)?;
            if let LeafData::Overflow { page, len } = node.data {
                let count = overflow_pages(len, self.pages.meta().page_bytes);
                found.overflow_pages += count;
                (page..page.saturating_add(count)).try_for_each(|number| self.mark(number))?;
            }
            let data = self.pages.data(node.data)?;
            match (part, node.data) {
                (Part::Free, _) => self.free_list(page, node.key, data)?,
                (Part::Main, LeafData::Table(_)) if Root::parse(data).is_some_and(|root| root.flags == 0) => {}
                (Part::Main, _) => return Err(page.damage("a table's record is wrong")),
                (Part::Rows, _) => {}
            }
        }
        Ok(())
    }

    /// A transaction's freed pages: their count, then their numbers.
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

    /// Marks a page as seen; was it not yet?
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

/// The blocks of a table, one after the other.
struct Blocks<'a> {
    snapshot: &'a LmdbSnapshot,
    table: Table,
    row_count: u64,
    /// The fence of the next block, empty after the last; none where pages are damaged.
    expected: Option<&'a [u8]>,
}

impl<'a> Blocks<'a> {
    fn new(snapshot: &'a LmdbSnapshot, table: Table) -> Self {
        Blocks { snapshot, table, row_count: 0, expected: Some(FIRST_FENCE) }
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

    /// What is missing at the end.
    fn finish(&self, root: &Root) -> Option<Damage> {
        let is_complete = root.page == NO_PAGE || self.expected.is_none_or(<[u8]>::is_empty);
        (!is_complete).then_some(Damage { page: root.page, what: "the last block of the table is missing" })
    }
}

fn check_place(part: Part, page: &Page<'_>, place: Place<'_>) -> Checked<()> {
    // A branch's first key means nothing.
    let first = usize::from(!page.is_leaf());
    let below = match place.lower {
        Some(lower) if first < page.count() => part.in_order(page.key(first)?, lower),
        _ => false,
    };
    let above = match place.upper {
        Some(upper) => !part.in_order(page.key(page.count() - 1)?, upper),
        None => false,
    };
    if below || above { Err(page.damage("it lies in the wrong place")) } else { Ok(()) }
}
