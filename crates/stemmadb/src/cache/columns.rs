//! Columns: in-memory copies of frequently read paths, with the values in order, the documents of each value, and the
//! rank of each document.
//!
//! A *column* is a copy of one path's scalars in one state of the tree. It is built once reads of the path have cost
//! about as much as building it. It is dropped when the tree changes, and when another column needs its memory that
//! costs as much to do without, while this one is not read. Results never depend on a column: a path without one is
//! read from the tree.
//!
//! Invariants:
//! - A column holds exactly the scalar postings of its path in its state of the tree. Memtables are applied to it as
//!   they are to the tree.
//! - All columns together stay within their memory bound, but for those that a running read has taken.
//!
//! Concurrency: any number of readers. One column is built at a time; a reader that finds a build in progress reads the
//! tree.

use std::cmp::Ordering;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering as MemoryOrdering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hashbrown::HashMap;
use memchr::memmem;

use crate::Result;
use crate::cache::histograms::HistogramCache;
use crate::index::{Container, DocumentNumber, Histogram, PathNumber, PostingKey};
use crate::layout::posting_bounds;
use crate::sync::{Mutex, RwLock};
use crate::tree::{Direction, Table, TreeSnapshot};
use crate::value::collate::key;

/// A path has no column before this many rows were read of it, however cheap the column is.
const SPENT_MIN: u64 = 256;
/// The cost of finding the first row of a walk, in rows.
const ROWS_A_WALK: u64 = 64;
/// Copying this many documents costs as much as copying one value.
const DOCUMENTS_A_VALUE: u64 = 8;
/// The assumed cost of a column of a path without statistics, in rows.
const UNKNOWN_COST: u64 = 1 << 16;
/// The approximate time to copy a row, in nanoseconds.
const ROW_NANOS: u64 = 60;
/// A column may be built after only 1/`IDLE_DISCOUNT` of its cost was spent on reads, if the last build was at least
/// `IDLE_SHARE` times as long ago as this one takes; in the place of others, if they were not read for as long.
const IDLE_DISCOUNT: u64 = 32;
const IDLE_SHARE: u64 = 20;
/// The fewest bytes of a column for each value, besides its documents: its key and two offsets.
const VALUE_BYTES_MIN: u64 = 10;
/// The bytes of a column for each document of a value: its number and its rank.
const ENTRY_BYTES: u64 = 2 * size_of::<u32>() as u64;
/// This part of the columns' memory holds decoded histograms.
const HISTOGRAM_SHARE: u64 = 16;
/// The rank of documents that have no scalar at the path.
const NO_RANK: u32 = u32::MAX;

/// The scalars at one path, in key order. The *rank* of a value is the number of values below it.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// All keys, concatenated, and the end of each.
    keys: Vec<u8>,
    key_ends: Vec<u32>,
    /// The documents of each value in number order, concatenated, and the end of each value's documents.
    documents: Vec<u32>,
    ends: Vec<u32>,
    /// Ranks of strings that the index truncates.
    cut: Vec<u32>,
    longest_key_bytes: usize,
    /// The rank of each document's value, by document number; computed on first use.
    ranks: OnceLock<Vec<u32>>,
}

impl Column {
    /// Copies a path's rows; none if they take more than `bytes_max`. About `entry_count` documents are expected.
    fn read(tree: &TreeSnapshot, path: PathNumber, entry_count: u64, bytes_max: u64) -> Result<Option<Self>> {
        let (lower, upper) = posting_bounds(path, Bound::Unbounded, Bound::Unbounded);
        let mut rows =
            tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let reserved = entry_count.min(bytes_max / ENTRY_BYTES) as usize;
        let mut column = Column { documents: Vec::with_capacity(reserved), ..Column::default() };
        while let Some((row_key, stored)) = rows.next()? {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            if column.ends.is_empty() || column.key(column.len() - 1) != value {
                column.begin_value(value);
            }
            for low in Container::decode(stored)?.iter() {
                match u32::try_from(DocumentNumber::from_parts(chunk, low).0) {
                    Ok(number) if number != NO_RANK => column.documents.push(number),
                    _ => return Ok(None),
                }
            }
            if let Some(end) = column.ends.last_mut() {
                *end = column.documents.len() as u32;
            }
            if column.byte_count() > bytes_max {
                return Ok(None);
            }
        }
        column.shrink();
        Ok(Some(column))
    }

    /// Releases unused capacity.
    fn shrink(&mut self) {
        self.keys.shrink_to_fit();
        for numbers in [&mut self.key_ends, &mut self.ends, &mut self.documents, &mut self.cut] {
            numbers.shrink_to_fit();
        }
    }

    fn begin_value(&mut self, value: &[u8]) {
        if key::is_cut(value) {
            self.cut.push(self.len() as u32);
        }
        self.longest_key_bytes = self.longest_key_bytes.max(value.len());
        self.keys.extend_from_slice(value);
        self.key_ends.push(self.keys.len() as u32);
        self.ends.push(self.documents.len() as u32);
    }

    /// The approximate size, including ranks.
    fn byte_count(&self) -> u64 {
        (self.keys.len() + size_of::<u32>() * (2 * self.key_ends.len() + 2 * self.documents.len())) as u64
    }

    /// The number of distinct values.
    pub(crate) fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// The number of (value, document) pairs.
    pub(crate) fn document_count(&self) -> u64 {
        self.documents.len() as u64
    }

    /// Whether every key holds its complete value, in at most `key_bytes_max` bytes.
    pub(crate) fn is_whole(&self, key_bytes_max: usize) -> bool {
        self.cut.is_empty() && self.longest_key_bytes <= key_bytes_max
    }

    /// The key of a value.
    #[inline]
    pub(crate) fn key(&self, rank: usize) -> &[u8] {
        &self.keys[start(&self.key_ends, rank)..start(&self.key_ends, rank + 1)]
    }

    /// The documents that have a value, by number.
    #[inline]
    pub(crate) fn documents(&self, rank: usize) -> &[u32] {
        self.documents_within(&(rank..rank + 1))
    }

    /// The documents that have one of several values, value by value.
    #[inline]
    pub(crate) fn documents_within(&self, ranks: &Range<usize>) -> &[u32] {
        &self.documents[start(&self.ends, ranks.start)..start(&self.ends, ranks.end)]
    }

    /// The rank of the value with this key; if there is none, the number of values below it.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The ranks of the values between two keys.
    pub(crate) fn span(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<usize> {
        let below = |key: &[u8]| self.find(key).unwrap_or_else(|below| below);
        let up_to = |key: &[u8]| self.find(key).map_or_else(|below| below, |rank| rank + 1);
        let start = match lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => below(key),
            Bound::Excluded(key) => up_to(key),
        };
        let end = match upper {
            Bound::Unbounded => self.len(),
            Bound::Included(key) => up_to(key),
            Bound::Excluded(key) => below(key),
        };
        start..end.max(start)
    }

    /// The rank of a document's value, if each document has at most one; none if it has no scalar.
    #[inline]
    pub(crate) fn rank(&self, document: DocumentNumber) -> Option<u32> {
        let rank = *self.ranks().get(usize::try_from(document.0).ok()?)?;
        (rank != NO_RANK).then_some(rank)
    }

    fn ranks(&self) -> &[u32] {
        self.ranks.get_or_init(|| {
            let length = self.documents.iter().max().map_or(0, |last| *last as usize + 1);
            let mut ranks = vec![NO_RANK; length];
            for rank in 0..self.len() {
                self.documents(rank).iter().for_each(|number| ranks[*number as usize] = rank as u32);
            }
            ranks
        })
    }

    /// The values among `ranks` whose text may contain `literal`, which must not contain a zero byte. Includes all that
    /// do, and few others.
    pub(crate) fn containing(&self, literal: &[u8], ranks: &Range<usize>) -> Vec<u32> {
        let (mut at, end) = (start(&self.key_ends, ranks.start), start(&self.key_ends, ranks.end));
        let finder = memmem::Finder::new(literal);
        // The truncated part may contain the literal.
        let mut found: Vec<u32> = self.cut.iter().copied().filter(|rank| ranks.contains(&(*rank as usize))).collect();
        while let Some(place) = finder.find(&self.keys[at..end]) {
            let place = (at + place) as u32;
            let rank = self.key_ends.partition_point(|end| *end <= place);
            found.push(rank as u32);
            at = self.key_ends[rank] as usize;
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The start of a value's range, given the end of each range.
#[inline]
fn start(ends: &[u32], rank: usize) -> usize {
    if rank == 0 { 0 } else { ends[rank - 1] as usize }
}

/// The columns of one state of the tree.
#[derive(Debug)]
pub(crate) struct Columns {
    budget: Arc<ColumnBudget>,
    /// None once the tree has a newer state: older ones have no columns, however long a snapshot holds them.
    paths: RwLock<Option<HashMap<PathNumber, ColumnState>>>,
    /// The size of all columns.
    byte_count: AtomicU64,
    /// Locked while a column is built.
    building: Mutex<()>,
}

/// The state of a path's column.
#[derive(Debug)]
enum ColumnState {
    NotBuilt(Demand),
    Ready {
        column: Arc<Column>,
        /// In nanoseconds since the database was opened.
        last_read: AtomicU64,
    },
    /// The column exceeds the memory bound even without any other.
    TooLarge,
}

/// What speaks for building a column.
#[derive(Debug, Clone, Copy, Default)]
struct Demand {
    /// The number of rows that were read without it since `first_counted`.
    rows: u64,
    /// In nanoseconds since the database was opened.
    first_counted: u64,
    /// Computed once it is needed.
    estimate: Option<Estimate>,
}

/// Estimated time and memory of a column.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    /// The time to build it, in rows.
    cost: u64,
    entry_count: u64,
    /// A lower bound of its size.
    bytes_min: u64,
}

impl Estimate {
    fn of(histogram: Option<Arc<Histogram>>, cost_max: u64) -> Self {
        let Some(histogram) = histogram else {
            return Estimate { cost: UNKNOWN_COST.min(cost_max), entry_count: 0, bytes_min: 0 };
        };
        let (value_count, entry_count) = (histogram.value_count(), histogram.entry_count());
        let cost = value_count.saturating_add(entry_count / DOCUMENTS_A_VALUE).min(cost_max);
        let bytes_min = entry_count
            .saturating_mul(ENTRY_BYTES)
            .saturating_add(value_count.min(entry_count).saturating_mul(VALUE_BYTES_MIN));
        Estimate { cost, entry_count, bytes_min }
    }
}

impl Columns {
    fn new(budget: Arc<ColumnBudget>) -> Self {
        Columns {
            budget,
            paths: RwLock::new(Some(HashMap::new())),
            byte_count: AtomicU64::new(0),
            building: Mutex::default(),
        }
    }

    /// Counts `row_count` rows that one read of a path has visited.
    pub(crate) fn spend(&self, path: PathNumber, row_count: u64) {
        if self.budget.bytes_max() == 0 {
            return;
        }
        let now = self.budget.now();
        let mut paths = self.paths.write();
        let Some(paths) = &mut *paths else { return };
        let new = ColumnState::NotBuilt(Demand { first_counted: now, ..Demand::default() });
        if let ColumnState::NotBuilt(demand) = paths.entry(path).or_insert(new) {
            demand.rows = demand.rows.saturating_add(row_count).saturating_add(ROWS_A_WALK);
        }
    }

    /// The column of a path, if it exists or is worth building now. `histogram` returns the path's statistics.
    pub(crate) fn get(
        &self,
        tree: &TreeSnapshot,
        path: PathNumber,
        histogram: impl FnOnce() -> Option<Arc<Histogram>>,
    ) -> Result<Option<Arc<Column>>> {
        let cost_max = self.budget.cost_max;
        let mut demand = match self.find(path) {
            Found::Column(column) => return Ok(Some(column)),
            Found::Demand(demand) if demand.rows >= SPENT_MIN.min(cost_max) => demand,
            _ => return Ok(None),
        };
        let estimate = *demand.estimate.get_or_insert_with(|| Estimate::of(histogram(), cost_max));
        self.set(path, ColumnState::NotBuilt(demand));
        if !self.budget.allows(demand.rows, estimate.cost) {
            return Ok(None);
        }
        let Some(_building) = self.building.try_lock() else { return Ok(None) };
        if let Found::Column(column) = self.find(path) {
            return Ok(Some(column));
        }
        let is_paid = demand.rows >= estimate.cost;
        let since = if is_paid { demand.first_counted } else { self.budget.idle_since(estimate.cost).unwrap_or(0) };
        let has_room = self.make_room(estimate.bytes_min, since);
        if !has_room && !is_paid {
            return Ok(None);
        }
        let mut built = None;
        if has_room {
            built = Column::read(tree, path, estimate.entry_count, self.room())?.map(Arc::new);
            self.budget.record_build();
        }
        let state = match &built {
            Some(column) => {
                self.byte_count.fetch_add(column.byte_count(), MemoryOrdering::Relaxed);
                ColumnState::Ready { column: Arc::clone(column), last_read: AtomicU64::new(self.budget.now()) }
            }
            None if estimate.bytes_min.max(self.room()) >= self.budget.bytes_max() => ColumnState::TooLarge,
            // Counted again: it is larger than the size that was tried.
            None => ColumnState::NotBuilt(Demand {
                rows: 0,
                first_counted: self.budget.now(),
                estimate: Some(Estimate { bytes_min: estimate.bytes_min.max(self.room() + 1), ..estimate }),
            }),
        };
        self.set(path, state);
        Ok(built)
    }

    /// What there is for a path; a column counts as read now.
    fn find(&self, path: PathNumber) -> Found {
        let paths = self.paths.read();
        let Some(paths) = &*paths else { return Found::Nothing };
        match paths.get(&path) {
            Some(ColumnState::Ready { column, last_read }) => {
                last_read.store(self.budget.now(), MemoryOrdering::Relaxed);
                Found::Column(Arc::clone(column))
            }
            Some(ColumnState::NotBuilt(demand)) => Found::Demand(*demand),
            Some(ColumnState::TooLarge) => Found::Nothing,
            None => Found::Demand(Demand { first_counted: self.budget.now(), ..Demand::default() }),
        }
    }

    fn set(&self, path: PathNumber, state: ColumnState) {
        if let Some(paths) = &mut *self.paths.write() {
            paths.insert(path, state);
        }
    }

    fn room(&self) -> u64 {
        self.budget.bytes_max().saturating_sub(self.byte_count.load(MemoryOrdering::Relaxed))
    }

    /// Makes room for `bytes` by dropping columns that were not read since `since`, those first that were not read for
    /// longest. Drops none and returns false if that is not enough. The caller holds `building`.
    fn make_room(&self, bytes: u64, since: u64) -> bool {
        let mut paths = self.paths.write();
        let Some(paths) = &mut *paths else { return false };
        let mut unread: Vec<(u64, PathNumber, u64)> = paths
            .iter()
            .filter_map(|(path, state)| match state {
                ColumnState::Ready { column, last_read } => {
                    Some((last_read.load(MemoryOrdering::Relaxed), *path, column.byte_count()))
                }
                _ => None,
            })
            .filter(|(last_read, ..)| *last_read < since)
            .collect();
        unread.sort_unstable();
        let mut room = self.room();
        let count = unread.iter().take_while(|(.., size)| {
            let is_needed = room < bytes;
            room += if is_needed { *size } else { 0 };
            is_needed
        });
        let count = count.count();
        if room < bytes {
            return false;
        }
        for (_, path, size) in &unread[..count] {
            paths.remove(path);
            self.byte_count.fetch_sub(*size, MemoryOrdering::Relaxed);
        }
        true
    }

    /// The paths that have a column.
    #[cfg(test)]
    pub(crate) fn ready_paths(&self) -> Vec<PathNumber> {
        let paths = self.paths.read();
        let ready = paths.iter().flatten().filter(|(_, state)| matches!(state, ColumnState::Ready { .. }));
        ready.map(|(path, _)| *path).collect()
    }

    /// Drops all columns for good.
    fn retire(&self) {
        let retired = self.paths.write().take();
        self.byte_count.store(0, MemoryOrdering::Relaxed);
        drop(retired);
    }
}

/// What [`Columns::find`] returns.
enum Found {
    Column(Arc<Column>),
    Demand(Demand),
    Nothing,
}

/// The bounds on the size and cost of columns.
#[derive(Debug)]
struct ColumnBudget {
    bytes_max: AtomicU64,
    /// An upper bound on every column's estimated cost.
    cost_max: u64,
    opened: Instant,
    /// When a column was last built, for any state, in nanoseconds since `opened`.
    last_built: AtomicU64,
}

impl ColumnBudget {
    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(MemoryOrdering::Relaxed)
    }

    /// Nanoseconds since the database was opened.
    fn now(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Whether a column of this cost may be built now: either reads without it have cost as much, or a fraction of that
    /// if little time was spent on building columns lately.
    fn allows(&self, spent_rows: u64, cost: u64) -> bool {
        spent_rows >= cost
            || spent_rows >= cost / IDLE_DISCOUNT
                && self.idle_since(cost).is_some_and(|idle| self.last_built.load(MemoryOrdering::Relaxed) <= idle)
    }

    /// `IDLE_SHARE` times as long ago as building takes, if the database was open then.
    fn idle_since(&self, cost: u64) -> Option<u64> {
        self.now().checked_sub(ROW_NANOS.saturating_mul(IDLE_SHARE).saturating_mul(cost))
    }

    fn record_build(&self) {
        self.last_built.store(self.now(), MemoryOrdering::Relaxed);
    }
}

/// The columns of the tree's newest state, and decoded histograms of paths.
pub(crate) struct ColumnCache {
    pub(crate) histograms: HistogramCache,
    budget: Arc<ColumnBudget>,
    newest: RwLock<Option<StateColumns>>,
}

/// The columns of one state of the tree.
#[derive(Debug)]
struct StateColumns {
    tree_state: u64,
    columns: Arc<Columns>,
}

impl ColumnCache {
    /// Creates a cache of at most `bytes_max`; estimated costs are capped at `cost_max` rows.
    pub(crate) fn new(bytes_max: u64, cost_max: u64) -> Self {
        let (histogram_bytes, column_bytes) = Self::shares(bytes_max);
        let bytes_max = AtomicU64::new(column_bytes);
        let budget = ColumnBudget { bytes_max, cost_max, opened: Instant::now(), last_built: AtomicU64::new(0) };
        let histograms = HistogramCache::new(histogram_bytes);
        ColumnCache { histograms, budget: Arc::new(budget), newest: RwLock::new(None) }
    }

    /// Divides a bound between histograms and columns.
    fn shares(bytes_max: u64) -> (u64, u64) {
        let histogram_bytes = bytes_max / HISTOGRAM_SHARE;
        (histogram_bytes, (bytes_max - histogram_bytes).min(u64::from(u32::MAX)))
    }

    /// Changes the bound. Drops all columns if they exceed it.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        let (histogram_bytes, column_bytes) = Self::shares(bytes_max);
        self.histograms.set_bytes_max(histogram_bytes);
        self.budget.bytes_max.store(column_bytes, MemoryOrdering::Relaxed);
        let is_exceeded =
            |newest: &StateColumns| newest.columns.byte_count.load(MemoryOrdering::Relaxed) > column_bytes;
        let excess = self.newest.write().take_if(|newest| is_exceeded(newest));
        if let Some(excess) = excess {
            excess.columns.retire();
        }
    }

    /// Memory used, in bytes.
    pub(crate) fn byte_count(&self) -> u64 {
        let columns =
            self.newest.read().as_ref().map_or(0, |newest| newest.columns.byte_count.load(MemoryOrdering::Relaxed));
        columns + self.histograms.byte_count()
    }

    /// The columns of `tree`, which is the newest state.
    pub(crate) fn for_tree(&self, tree: &TreeSnapshot) -> Arc<Columns> {
        if let Some(newest) = &*self.newest.read()
            && newest.tree_state == tree.state()
        {
            return Arc::clone(&newest.columns);
        }
        let mut newest = self.newest.write();
        if let Some(newest) = &*newest
            && newest.tree_state == tree.state()
        {
            return Arc::clone(&newest.columns);
        }
        let columns = Arc::new(Columns::new(Arc::clone(&self.budget)));
        let older = newest.replace(StateColumns { tree_state: tree.state(), columns: Arc::clone(&columns) });
        drop(newest);
        if let Some(older) = older {
            older.columns.retire();
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 1_000;

    /// Columns of the paths 1, 2, … with these sizes and times of the last read.
    fn columns(ready: &[(u64, u64)]) -> Columns {
        let budget = ColumnBudget {
            bytes_max: BYTES_MAX.into(),
            cost_max: u64::MAX,
            opened: Instant::now(),
            last_built: AtomicU64::new(0),
        };
        let columns = Columns::new(Arc::new(budget));
        for (path, &(bytes, last_read)) in (1..).zip(ready) {
            let column = Arc::new(Column { keys: vec![0; bytes as usize], ..Column::default() });
            columns.byte_count.fetch_add(bytes, MemoryOrdering::Relaxed);
            columns.set(PathNumber(path), ColumnState::Ready { column, last_read: AtomicU64::new(last_read) });
        }
        columns
    }

    fn left(columns: &Columns) -> Vec<u32> {
        let mut paths: Vec<u32> = columns.ready_paths().into_iter().map(|path| path.0).collect();
        paths.sort_unstable();
        paths
    }

    #[test]
    fn room_is_made_by_dropping_what_was_not_read_for_longest() {
        let ready = [(300, 30), (300, 10), (300, 20)];
        for (bytes, since, expected) in [
            (100, 0, Some(&[1, 2, 3][..])),
            (101, 10, None),
            (101, 11, Some(&[1, 3])),
            (400, 100, Some(&[1, 3])),
            (401, 100, Some(&[1])),
            (401, 20, None),
            (1_000, 100, Some(&[])),
            (1_001, 100, None),
        ] {
            let columns = columns(&ready);
            assert_eq!(columns.make_room(bytes, since), expected.is_some(), "{bytes} {since}");
            assert_eq!(left(&columns), expected.unwrap_or(&[1, 2, 3]), "{bytes} {since}");
            assert_eq!(columns.byte_count.load(MemoryOrdering::Relaxed), left(&columns).len() as u64 * 300);
        }
    }
}
