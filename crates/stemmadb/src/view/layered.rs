//! A slot's contents as one ordered map: the tree's rows with an in-memory overlay of later changes.
//!
//! Invariants: a key in the overlay hides the tree's row; cloning an overlay costs one `Arc` clone, so readers keep
//! their copy while it is changed.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::Result;
use crate::tree::{self, Direction, Slice, Table, TreeSnapshot};

/// A key within a slot.
pub(super) type OverlayKey = Arc<[u8]>;
/// A value, or `None` if the row is removed.
pub(super) type OverlayValue = Option<Arc<[u8]>>;

/// In-memory changes on top of the tree.
#[derive(Clone, Default)]
pub(super) struct Overlay {
    changes: OrdMap<OverlayKey, OverlayValue>,
    bytes: usize,
}

/// Approximate memory overhead of a change besides its key and value, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 96;

impl Overlay {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Approximate memory use in bytes.
    pub(super) fn byte_count(&self) -> usize {
        self.bytes
    }

    /// Iterates over the changes in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&OverlayKey, &OverlayValue)> {
        self.changes.iter()
    }

    fn set(&mut self, key: &[u8], change: OverlayValue) {
        let bytes =
            |change: &OverlayValue| ENTRY_OVERHEAD_BYTES + key.len() + change.as_ref().map_or(0, |value| value.len());
        self.bytes += bytes(&change);
        if let Some(old) = self.changes.insert(key.into(), change) {
            self.bytes -= bytes(&old);
        }
    }

    fn discard(&mut self, key: &[u8]) {
        if let Some(old) = self.changes.remove(key) {
            self.bytes -= ENTRY_OVERHEAD_BYTES + key.len() + old.map_or(0, |value| value.len());
        }
    }

    /// Returns this overlay without the changes that a merge of `merged` wrote to the tree.
    pub(super) fn without(&self, merged: &Overlay) -> Overlay {
        let mut left = self.clone();
        for (key, change) in merged.iter() {
            if left.changes.get(key) == Some(change) {
                left.discard(key);
            }
        }
        left
    }
}

/// A slot's rows in the tree with an overlay on top.
#[derive(Clone)]
pub(super) struct Layered {
    tree: Arc<TreeSnapshot>,
    prefix: Arc<[u8]>,
    overlay: Overlay,
    /// Whether a removal is recorded even if the tree has no such row.
    is_merging: bool,
}

impl Layered {
    pub(super) fn new(tree: Arc<TreeSnapshot>, prefix: Arc<[u8]>, overlay: Overlay) -> Self {
        Layered { tree, prefix, overlay, is_merging: false }
    }

    /// Allows changes while a merge may be writing earlier changes to the tree.
    pub(super) fn beside_merges(self) -> Self {
        Layered { is_merging: true, ..self }
    }

    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    pub(super) fn into_overlay(self) -> Overlay {
        self.overlay
    }

    fn tree_key(&self, key: &[u8]) -> Vec<u8> {
        [&*self.prefix, key].concat()
    }

    fn in_tree(&self, key: &[u8]) -> Result<Option<Slice>> {
        self.tree.get(Table::Views, &self.tree_key(key))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        match self.overlay.changes.get(key) {
            Some(change) => Ok(change.as_ref().map(Slice::from)),
            None => self.in_tree(key),
        }
    }

    /// Writes a row; returns whether it changed anything.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        if self.get(key)?.as_deref() == Some(value) {
            return Ok(false);
        }
        self.overlay.set(key, Some(value.into()));
        Ok(true)
    }

    /// Removes a row; returns whether there was one.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<bool> {
        if self.get(key)?.is_none() {
            return Ok(false);
        }
        if self.is_merging || self.in_tree(key)?.is_some() {
            self.overlay.set(key, None);
        } else {
            self.overlay.discard(key);
        }
        Ok(true)
    }

    /// Scans the rows between `lower` and `upper`.
    pub(super) fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Scan<'_>> {
        let end = super::layout::prefix_end(&self.prefix);
        let tree_lower = match lower {
            Bound::Included(key) => Bound::Included(self.tree_key(key)),
            Bound::Excluded(key) => Bound::Excluded(self.tree_key(key)),
            Bound::Unbounded => Bound::Included(self.prefix.to_vec()),
        };
        let tree_upper = match upper {
            Bound::Included(key) => Bound::Included(self.tree_key(key)),
            Bound::Excluded(key) => Bound::Excluded(self.tree_key(key)),
            Bound::Unbounded => end.map_or(Bound::Unbounded, Bound::Excluded),
        };
        let bounds = (tree_lower.as_ref().map(Vec::as_slice), tree_upper.as_ref().map(Vec::as_slice));
        let rows = self.tree.scan(Table::Views, bounds.0, bounds.1, direction)?;
        // `OrdMap::range` must not be called with crossed bounds.
        let changes: OverlayIter<'_> = if self.overlay.is_empty() || tree::is_crossed(lower, upper) {
            Box::new(std::iter::empty())
        } else {
            let range = self.overlay.changes.range::<_, [u8]>((lower, upper));
            match direction {
                Direction::Ascending => Box::new(range),
                Direction::Descending => Box::new(range.rev()),
            }
        };
        Ok(Scan {
            rows,
            changes,
            direction,
            prefix_bytes: self.prefix.len(),
            row_key: Vec::new(),
            row_value: Vec::new(),
            has_row: false,
            change: None,
            needs_row: true,
            needs_change: true,
        })
    }
}

type OverlayIter<'a> = Box<dyn Iterator<Item = (&'a OverlayKey, &'a OverlayValue)> + 'a>;

/// An iterator over the rows of a [`Layered`].
pub(super) struct Scan<'a> {
    rows: tree::Scan,
    changes: OverlayIter<'a>,
    direction: Direction,
    prefix_bytes: usize,
    /// The tree's next row: key within the slot, and value; if there is one.
    row_key: Vec<u8>,
    row_value: Vec<u8>,
    has_row: bool,
    change: Option<(&'a OverlayKey, &'a OverlayValue)>,
    /// Whether the next row or change has to be fetched.
    needs_row: bool,
    needs_change: bool,
}

impl<'a> Scan<'a> {
    /// Returns the next row, valid until the next call.
    pub(super) fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        loop {
            self.fetch()?;
            let change_first = match (self.has_row, self.change) {
                (false, None) => return Ok(None),
                (true, None) => false,
                (false, Some(_)) => true,
                (true, Some((key, _))) => {
                    let order = (**key).cmp(&self.row_key);
                    // A change of the same key hides the row.
                    self.needs_row = order.is_eq();
                    match self.direction {
                        Direction::Ascending => order.is_le(),
                        Direction::Descending => order.is_ge(),
                    }
                }
            };
            if !change_first {
                self.needs_row = true;
                return Ok(Some((&self.row_key, &self.row_value)));
            }
            self.needs_change = true;
            if let Some((key, Some(value))) = self.change {
                return Ok(Some((key, value)));
            }
        }
    }

    fn fetch(&mut self) -> Result<()> {
        if std::mem::take(&mut self.needs_row) {
            self.has_row = false;
            if let Some((key, value)) = self.rows.next()? {
                self.row_key.clear();
                self.row_key.extend_from_slice(key.get(self.prefix_bytes..).unwrap_or_default());
                self.row_value.clear();
                self.row_value.extend_from_slice(value);
                self.has_row = true;
            }
        }
        if std::mem::take(&mut self.needs_change) {
            self.change = self.changes.next();
        }
        Ok(())
    }
}
