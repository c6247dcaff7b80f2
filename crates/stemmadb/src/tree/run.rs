//! Run: the entries of one commit or merge, sorted, in one or several files; and a cursor over it.
//!
//! Invariants: the slices of a run are sorted and disjoint. A slice shows the part of a file between two keys: what a
//! merge has taken over, or what was removed as a range, is cut off without writing anything.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Direction;
use super::block::{BlockCursor, Kind};
use super::run_file::RunFile;
use crate::Result;

/// The part of a file from `lower` (included) to `upper` (excluded).
#[derive(Debug, Clone)]
pub(super) struct FileSlice {
    pub(super) file: Arc<RunFile>,
    pub(super) lower: Option<Arc<[u8]>>,
    pub(super) upper: Option<Arc<[u8]>>,
}

impl FileSlice {
    /// All of a file.
    pub(super) fn whole(file: Arc<RunFile>) -> Self {
        FileSlice { file, lower: None, upper: None }
    }

    /// A key not above any key of the slice.
    pub(super) fn start(&self) -> &[u8] {
        let first: &[u8] = &self.file.record().first_key;
        self.lower.as_deref().map_or(first, |lower| lower.max(first))
    }

    /// Whether all keys of the slice are below `key`.
    fn is_below(&self, key: &[u8]) -> bool {
        self.file.record().last_key.as_slice() < key || self.upper.as_deref().is_some_and(|upper| upper <= key)
    }

    /// Whether the slice may have `key`.
    #[inline]
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.lower.as_deref().is_none_or(|lower| lower <= key) && self.upper.as_deref().is_none_or(|upper| key < upper)
    }

    /// Where a scan of it begins; ascending: whether it begins behind that key; descending: whether it includes it.
    fn start_of_scan<'a>(&'a self, bounds: &'a Bounds, direction: Direction) -> (&'a [u8], bool) {
        match (direction, self.lower.as_deref(), self.upper.as_deref()) {
            (Direction::Ascending, Some(lower), _) if lower > bounds.lower.as_slice() => (lower, false),
            (Direction::Ascending, ..) => (&bounds.lower, bounds.is_after),
            (Direction::Descending, _, Some(upper)) if upper <= bounds.upper.as_slice() => (upper, false),
            (Direction::Descending, ..) => (&bounds.upper, bounds.includes_upper),
        }
    }

    /// The part at or above `key`; none if that is empty.
    pub(super) fn from(&self, key: &[u8]) -> Option<Self> {
        if self.is_below(key) {
            return None;
        }
        let lower = if self.start() >= key { self.lower.clone() } else { Some(key.into()) };
        Some(FileSlice { lower, ..self.clone() })
    }

    /// The part below `key`; none if that is empty.
    pub(super) fn below(&self, key: &[u8]) -> Option<Self> {
        if self.start() >= key {
            return None;
        }
        let upper = if self.is_below(key) { self.upper.clone() } else { Some(key.into()) };
        Some(FileSlice { upper, ..self.clone() })
    }
}

/// Sorted entries in files.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: u64,
    /// Whether a merge wrote it; otherwise a commit did.
    pub(super) is_merged: bool,
    pub(super) slices: Vec<FileSlice>,
}

impl Run {
    /// Its files. The slices of one file are next to each other.
    pub(super) fn files(&self) -> impl Iterator<Item = &RunFile> {
        let mut last = None;
        self.slices.iter().map(|slice| &*slice.file).filter(move |file| {
            let number = Some(file.record().number);
            std::mem::replace(&mut last, number) != number
        })
    }

    /// The size of its files. Parts that are cut off count too.
    pub(super) fn byte_count(&self) -> u64 {
        self.files().map(|file| file.record().byte_count).sum()
    }

    /// The number of entries that only hide or remove older ones.
    pub(super) fn tombstone_count(&self) -> u64 {
        self.files().map(|file| file.record().tombstone_count).sum()
    }

    pub(super) fn entry_count(&self) -> u64 {
        self.files().map(|file| file.record().entry_count).sum()
    }

    /// Whether some of its files have parts that are cut off.
    pub(super) fn is_cut(&self) -> bool {
        self.slices.iter().any(|slice| slice.lower.is_some() || slice.upper.is_some())
    }

    /// The slice that may have `key`.
    #[inline]
    pub(super) fn slice_of(&self, key: &[u8]) -> Option<&FileSlice> {
        let slice = match &*self.slices {
            [only] => only,
            slices => slices.get(slices.partition_point(|slice| slice.is_below(key)))?,
        };
        slice.covers(key).then_some(slice)
    }

    /// Its slices without the keys from `lower` (included) to `upper` (excluded).
    pub(super) fn without(&self, lower: &[u8], upper: &[u8]) -> Vec<FileSlice> {
        self.slices.iter().flat_map(|slice| [slice.below(lower), slice.from(upper)].into_iter().flatten()).collect()
    }
}

/// A complete key. Most are short.
pub(super) type StoredKey = SmallVec<[u8; 64]>;

/// The bounds of a scan.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) lower: StoredKey,
    /// Whether the scan begins above `lower`, not at it.
    pub(super) is_after: bool,
    pub(super) upper: StoredKey,
    /// Whether the scan includes `upper`.
    pub(super) includes_upper: bool,
}

impl Bounds {
    fn is_above(&self, key: &[u8]) -> bool {
        if self.includes_upper { key > self.upper.as_slice() } else { key >= self.upper.as_slice() }
    }

    fn is_below(&self, key: &[u8]) -> bool {
        if self.is_after { key <= self.lower.as_slice() } else { key < self.lower.as_slice() }
    }
}

/// A cursor over one run within bounds, in one direction. It holds the run's files.
pub(super) struct RunCursor {
    run: Arc<Run>,
    direction: Direction,
    /// Whether blocks are kept in the cache.
    is_cached: bool,
    slice: usize,
    block: usize,
    entries: Option<BlockCursor>,
    /// Whether the block has keys that may be outside of the bounds or the slice.
    needs_check: bool,
}

/// What a key means for a cursor that met it.
enum Check {
    Inside,
    OutsideSlice,
    OutsideBounds,
}

impl RunCursor {
    /// A cursor at the first entry within the bounds; none if there is no entry.
    pub(super) fn start(
        run: &Arc<Run>,
        bounds: &Bounds,
        direction: Direction,
        is_cached: bool,
    ) -> Result<Option<Self>> {
        let slice = match direction {
            Direction::Ascending => run.slices.partition_point(|slice| slice.is_below(&bounds.lower)),
            Direction::Descending => {
                let after = run.slices.partition_point(|slice| !bounds.is_above(slice.start()));
                let Some(last) = after.checked_sub(1) else { return Ok(None) };
                last
            }
        };
        if run.slices.get(slice).is_none_or(|slice| {
            bounds.is_above(slice.start()) || (direction == Direction::Descending && slice.is_below(&bounds.lower))
        }) {
            return Ok(None);
        }
        let mut cursor =
            RunCursor { run: run.clone(), direction, is_cached, slice, block: 0, entries: None, needs_check: true };
        let found = cursor.enter_slice(bounds)?;
        Ok(cursor.settle(found, bounds)?.then_some(cursor))
    }

    /// The current key.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        self.entries().key()
    }

    #[inline]
    pub(super) fn kind(&self) -> Kind {
        self.entries().kind()
    }

    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        self.entries().value()
    }

    #[inline]
    fn entries(&self) -> &BlockCursor {
        self.entries.as_ref().expect("a cursor that is handed out has a block")
    }

    /// Moves to the next entry in its direction; returns false at the end.
    #[inline]
    pub(super) fn advance(&mut self, bounds: &Bounds) -> Result<bool> {
        let entries = self.entries.as_mut().expect("a cursor that is handed out has a block");
        let moved = match self.direction {
            Direction::Ascending => entries.advance(),
            Direction::Descending => entries.retreat(),
        };
        match moved {
            Some(true) if !self.needs_check => Ok(true),
            moved => self.settle(moved, bounds),
        }
    }

    /// Goes on to the next block or slice until there is an entry within the bounds; returns false if there is none.
    /// `found`: whether the block cursor is at an entry, or `None` if the block is malformed.
    fn settle(&mut self, mut found: Option<bool>, bounds: &Bounds) -> Result<bool> {
        loop {
            let is_found = found.ok_or_else(|| self.malformed())?;
            let check = if is_found && self.needs_check { self.check(bounds) } else { Check::Inside };
            found = match check {
                Check::Inside if is_found => return Ok(true),
                Check::OutsideBounds => return Ok(false),
                Check::Inside if self.has_next_block()? => self.enter_next_block(bounds)?,
                Check::Inside | Check::OutsideSlice if self.move_to_next_slice(bounds) => self.enter_slice(bounds)?,
                Check::Inside | Check::OutsideSlice => return Ok(false),
            };
        }
    }

    fn has_next_block(&self) -> Result<bool> {
        Ok(match self.direction {
            Direction::Ascending => self.block + 1 < self.run.slices[self.slice].file.index()?.block_count(),
            Direction::Descending => self.block > 0,
        })
    }

    fn enter_next_block(&mut self, bounds: &Bounds) -> Result<Option<bool>> {
        match self.direction {
            Direction::Ascending => {
                self.load(self.block + 1, bounds)?;
                Ok(self.entries_mut().advance())
            }
            Direction::Descending => {
                self.load(self.block - 1, bounds)?;
                Ok(self.entries_mut().seek_last())
            }
        }
    }

    fn entries_mut(&mut self) -> &mut BlockCursor {
        self.entries.as_mut().expect("a block was loaded")
    }

    #[cold]
    fn malformed(&self) -> crate::Error {
        self.run.slices[self.slice].file.malformed(self.block)
    }

    fn check(&self, bounds: &Bounds) -> Check {
        let (slice, key) = (&self.run.slices[self.slice], self.key());
        let (is_outside_bounds, is_outside_slice) = match self.direction {
            Direction::Ascending => (bounds.is_above(key), slice.upper.as_deref().is_some_and(|upper| key >= upper)),
            Direction::Descending => (bounds.is_below(key), slice.lower.as_deref().is_some_and(|lower| key < lower)),
        };
        match (is_outside_bounds, is_outside_slice) {
            (true, _) => Check::OutsideBounds,
            (false, true) => Check::OutsideSlice,
            (false, false) => Check::Inside,
        }
    }

    /// Enters block `number` of the current slice.
    fn load(&mut self, number: usize, bounds: &Bounds) -> Result<()> {
        let slice = &self.run.slices[self.slice];
        let block = if self.is_cached { slice.file.block(number)? } else { slice.file.block_once(number)? };
        let index = slice.file.index()?;
        self.needs_check = match self.direction {
            Direction::Ascending => {
                let is_inside = |end: &[u8]| {
                    end <= bounds.upper.as_slice() && slice.upper.as_deref().is_none_or(|upper| end <= upper)
                };
                number + 1 >= index.block_count() || !is_inside(slice.file.fence(number + 1)?)
            }
            Direction::Descending => {
                let fence = slice.file.fence(number)?;
                let is_inside =
                    fence > bounds.lower.as_slice() && slice.lower.as_deref().is_none_or(|lower| lower <= fence);
                !is_inside
            }
        };
        self.block = number;
        match &mut self.entries {
            Some(entries) => entries.enter(block),
            None => self.entries = Some(BlockCursor::new(block)),
        }
        Ok(())
    }

    /// Moves to the next slice that may have entries within the bounds, if there is one.
    fn move_to_next_slice(&mut self, bounds: &Bounds) -> bool {
        let next = match self.direction {
            Direction::Ascending => Some(self.slice + 1),
            Direction::Descending => self.slice.checked_sub(1),
        };
        let slice = next.and_then(|next| self.run.slices.get(next));
        let is_within = slice.is_some_and(|slice| match self.direction {
            Direction::Ascending => !bounds.is_above(slice.start()),
            Direction::Descending => !slice.is_below(&bounds.lower),
        });
        self.slice = next.filter(|_| is_within).unwrap_or(self.slice);
        is_within
    }

    /// Moves to the first entry of the current slice in the cursor's direction; returns what the block cursor does.
    fn enter_slice(&mut self, bounds: &Bounds) -> Result<Option<bool>> {
        let slice = &self.run.slices[self.slice];
        let block = slice.file.index()?.find(slice.start_of_scan(bounds, self.direction).0);
        self.load(block, bounds)?;
        let (from, flag) = self.run.slices[self.slice].start_of_scan(bounds, self.direction);
        let entries = self.entries.as_mut().expect("a block was loaded");
        Ok(match self.direction {
            Direction::Ascending => entries.seek(from, flag),
            Direction::Descending => entries.seek_before(from, flag),
        })
    }
}
