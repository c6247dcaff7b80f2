//! Cursor: the path of pages from a table's root to a leaf.
//!
//! Invariant: a leaf is at the depth recorded for its table and, whenever a cursor moves across leaves, between the
//! separators on its path. Scanning therefore detects a wrong child pointer or separator.

use smallvec::SmallVec;

use super::page::{Checked, NO_PAGE, Page, Root};
use super::pages::Pages;

/// A page on the path and the index of the node taken in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level<'a> {
    pub(super) page: Page<'a>,
    pub(super) index: usize,
}

/// The separators around a page: its keys are not below the first and below the second; `None` is unbounded.
pub(super) type Separators<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Target of a descent from a root.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'k> {
    First,
    Last,
    /// The first node not below the key, in the leaf where the key belongs.
    From(&'k [u8]),
    /// The first node above the key, in the leaf where the key belongs.
    After(&'k [u8]),
}

impl Goal<'_> {
    fn index(self, page: &Page<'_>) -> Checked<usize> {
        match self {
            Goal::First => Ok(0),
            Goal::Last => Ok(page.count() - 1),
            // A branch's child holds its node's key and those after it: take the node before the first one above the
            // key.
            Goal::From(key) | Goal::After(key) if !page.is_leaf() => page.search(key, true).map(|index| index - 1),
            Goal::From(key) => page.search(key, false),
            Goal::After(key) => page.search(key, true),
        }
    }
}

/// A path from a table's root to one of its leaves.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    pages: &'a Pages,
    depth: usize,
    levels: SmallVec<[Level<'a>; 5]>,
}

impl<'a> Cursor<'a> {
    /// The path to `goal`; `None` if the table is empty.
    pub(super) fn new(pages: &'a Pages, root: &Root, goal: Goal<'_>) -> Checked<Option<Self>> {
        if root.page == NO_PAGE {
            return Ok(None);
        }
        let mut cursor = Cursor { pages, depth: usize::from(root.depth), levels: SmallVec::new() };
        cursor.descend(root.page, goal)?;
        Ok(Some(cursor))
    }

    /// The leaf and the index of the node in it, which may be one past the last.
    pub(super) fn leaf(&self) -> Level<'a> {
        *self.levels.last().expect("a cursor always ends at a leaf")
    }

    /// The branches above the leaf, from the root.
    pub(super) fn branches(&self) -> &[Level<'a>] {
        &self.levels[..self.levels.len() - 1]
    }

    /// The separators on the path to this leaf.
    pub(super) fn separators(&self) -> Checked<Separators<'a>> {
        let branches = self.branches();
        let lower = branches.iter().rev().find(|level| level.index > 0);
        let upper = branches.iter().rev().find(|level| level.index + 1 < level.page.count());
        let lower = lower.map(|level| level.page.key(level.index)).transpose()?;
        let upper = upper.map(|level| level.page.key(level.index + 1)).transpose()?;
        Ok((lower, upper))
    }

    /// Moves to the next node; returns false, without moving, at the last one.
    pub(super) fn next(&mut self) -> Checked<bool> {
        let Level { page, index } = self.leaf();
        if index + 1 >= page.count() {
            return self.next_leaf();
        }
        self.move_to(index + 1);
        Ok(true)
    }

    /// Moves to the previous node; returns false, without moving, at the first one.
    pub(super) fn previous(&mut self) -> Checked<bool> {
        match self.leaf().index {
            0 => self.previous_leaf(),
            index => {
                self.move_to(index - 1);
                Ok(true)
            }
        }
    }

    fn move_to(&mut self, index: usize) {
        if let Some(leaf) = self.levels.last_mut() {
            leaf.index = index;
        }
    }

    /// Moves to the first node of the next leaf; returns false, without moving, at the last leaf.
    pub(super) fn next_leaf(&mut self) -> Checked<bool> {
        let left = self.leaf().page;
        let Some(depth) = self.branches().iter().rposition(|level| level.index + 1 < level.page.count()) else {
            return Ok(false);
        };
        let Level { page: branch, index } = self.levels[depth];
        self.levels.truncate(depth + 1);
        self.levels[depth].index = index + 1;
        self.descend(branch.child(index + 1)?, Goal::First)?;
        self.check_separator(left, branch.key(index + 1)?, self.leaf().page)?;
        Ok(true)
    }

    /// Moves to the last node of the previous leaf; returns false, without moving, at the first leaf.
    pub(super) fn previous_leaf(&mut self) -> Checked<bool> {
        let right = self.leaf().page;
        let Some(depth) = self.branches().iter().rposition(|level| level.index > 0) else { return Ok(false) };
        let Level { page: branch, index } = self.levels[depth];
        self.levels.truncate(depth + 1);
        self.levels[depth].index = index - 1;
        self.descend(branch.child(index - 1)?, Goal::Last)?;
        self.check_separator(self.leaf().page, branch.key(index)?, right)?;
        Ok(true)
    }

    fn check_separator(&self, left: Page<'a>, separator: &[u8], right: Page<'a>) -> Checked<()> {
        if left.key(left.count() - 1)? >= separator {
            return Err(left.damage("it holds a key of the page after it"));
        }
        if right.key(0)? < separator {
            return Err(right.damage("it holds a key of the page before it"));
        }
        Ok(())
    }

    fn descend(&mut self, mut number: u64, goal: Goal<'_>) -> Checked<()> {
        loop {
            let page = self.pages.page(number)?;
            if page.is_leaf() != (self.levels.len() + 1 == self.depth) {
                return Err(page.damage("it is at the wrong depth"));
            }
            let index = goal.index(&page)?;
            self.levels.push(Level { page, index });
            if page.is_leaf() {
                return Ok(());
            }
            number = page.child(index)?;
        }
    }
}
