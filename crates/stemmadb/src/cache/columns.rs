//! Paths that queries keep coming back to, in memory: their values in order, the documents of each, and where each document stands.
//!
//! A *column* is a copy of one path's scalars as one state of the tree has them. It is made once walks over the path have cost about
//! what making it costs, and is gone when the tree changes. Answers never depend on it: what has no column is read from the tree.
//!
//! Invariants:
//! - A column holds exactly the scalars' postings of its path in its state of the tree; memtables are laid over it as over the tree.
//! - All columns of a state together stay below their bound.
//!
//! Concurrency: any number of readers; one column is made at a time, and whoever finds one in the making reads the tree.

use std::cmp::Ordering;
use std::ops::{Bound, Range};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use memchr::memmem;

use crate::Result;
use crate::index::{Container, DocumentNumber, Histogram, PathNumber, PostingKey};
use crate::layout::posting_bounds;
use crate::sync::{Mutex, RwLock};
use crate::tree::{Direction, Table, TreeSnapshot};
use crate::value::collate::key;

/// Paths on which less was spent have no column, whatever making it costs.
const SPENT_MIN: u64 = 256;
/// What finding the first row of a walk costs, in rows.
const ROWS_A_WALK: u64 = 64;
/// So many documents take as long to copy as one value.
const DOCUMENTS_A_VALUE: u64 = 8;
/// What making a column is taken to cost where nothing is known of its path.
const UNKNOWN_PRICE: u64 = 1 << 16;
/// About what copying a row takes.
const ROW_NANOS: u64 = 60;
/// A column may be made when so small a part of its price was spent, if the last was made so many times as long ago as this one takes.
const IDLE_DISCOUNT: u64 = 32;
const IDLE_SHARE: u64 = 20;
/// The rank of documents that have no scalar at the path.
const NO_RANK: u32 = u32::MAX;

/// The scalars at one path, in the order of their keys. A value's *rank* is how many are below it.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// All keys, one after the other, and where each ends.
    keys: Vec<u8>,
    key_ends: Vec<u32>,
    /// The documents of each value, by number, value after value, and where those of each end.
    documents: Vec<u32>,
    ends: Vec<u32>,
    /// Ranks of strings that the index cut.
    cut: Vec<u32>,
    longest_key_bytes: usize,
    /// The rank of each document's value, by number.
    ranks: OnceLock<Vec<u32>>,
}

impl Column {
    /// Copies a path's rows; none if they take more than `bytes_max`.
    fn read(tree: &dyn TreeSnapshot, path: PathNumber, bytes_max: u64) -> Result<Option<Self>> {
        let (lower, upper) = posting_bounds(path, Bound::Unbounded, Bound::Unbounded);
        let mut rows =
            tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut column = Column::default();
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
        Ok(Some(column))
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

    /// About what it takes, ranks included.
    fn byte_count(&self) -> u64 {
        (self.keys.len() + size_of::<u32>() * (2 * self.key_ends.len() + 2 * self.documents.len())) as u64
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// How many times a document has a value.
    pub(crate) fn document_count(&self) -> u64 {
        self.documents.len() as u64
    }

    /// Whether every key says all of its value, in at most so many bytes.
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

    /// The documents that have one of some values, value after value.
    #[inline]
    pub(crate) fn documents_within(&self, ranks: &Range<usize>) -> &[u32] {
        &self.documents[start(&self.ends, ranks.start)..start(&self.ends, ranks.end)]
    }

    /// The rank of the value with a key, or how many values are below it if there is none.
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

    /// The values between two keys.
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

    /// The rank of a document's value, where a document has one at most; none if it has no scalar.
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

    /// The values among `ranks` whose text may hold `literal`, which has no zero byte: all that do, and few others.
    pub(crate) fn holding(&self, literal: &[u8], ranks: &Range<usize>) -> Vec<u32> {
        let (mut at, end) = (start(&self.key_ends, ranks.start), start(&self.key_ends, ranks.end));
        let finder = memmem::Finder::new(literal);
        // What was cut may have been the literal.
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

/// Where what belongs to a value starts, given where that of each ends.
#[inline]
fn start(ends: &[u32], rank: usize) -> usize {
    if rank == 0 { 0 } else { ends[rank - 1] as usize }
}

/// The columns of one state of the tree.
#[derive(Debug)]
pub(crate) struct Columns {
    budget: Arc<Budget>,
    paths: RwLock<HashMap<PathNumber, Standing>>,
    /// Held by whoever makes a column: what all take together.
    byte_count: Mutex<u64>,
}

/// How a path stands.
#[derive(Debug)]
enum Standing {
    /// So many rows were read of it, and making a column costs as much as so many; none if that was not reckoned yet.
    Spent {
        rows: u64,
        price: Option<u64>,
    },
    Ready(Arc<Column>),
    /// There is no room.
    Refused,
}

impl Columns {
    fn new(budget: Arc<Budget>) -> Self {
        Columns { budget, paths: RwLock::default(), byte_count: Mutex::new(0) }
    }

    /// Notes that so many rows of a path were read, at once.
    pub(crate) fn spend(&self, path: PathNumber, row_count: u64) {
        if self.budget.bytes_max == 0 {
            return;
        }
        let row_count = row_count.saturating_add(ROWS_A_WALK);
        let mut paths = self.paths.write();
        let standing = paths.entry(path).or_insert(Standing::Spent { rows: 0, price: None });
        if let Standing::Spent { rows, .. } = standing {
            *rows = rows.saturating_add(row_count);
        }
    }

    /// The column of a path, if there is one or it is worth making now. `histogram` tells what is known of the path.
    pub(crate) fn get(
        &self,
        tree: &dyn TreeSnapshot,
        path: PathNumber,
        histogram: impl FnOnce() -> Option<Arc<Histogram>>,
    ) -> Result<Option<Arc<Column>>> {
        let price_max = self.budget.price_max;
        let (rows, price) = match self.paths.read().get(&path) {
            Some(Standing::Ready(column)) => return Ok(Some(Arc::clone(column))),
            Some(Standing::Spent { rows, price }) if *rows >= SPENT_MIN.min(price_max) => (*rows, *price),
            None if price_max == 0 => (0, None),
            _ => return Ok(None),
        };
        let price = price.unwrap_or_else(|| {
            let price = histogram()
                .map_or(UNKNOWN_PRICE, |known| known.value_count() + known.entry_count() / DOCUMENTS_A_VALUE);
            let price = price.min(price_max);
            self.paths.write().insert(path, Standing::Spent { rows, price: Some(price) });
            price
        });
        if !self.budget.allows(rows, price) {
            return Ok(None);
        }
        let Some(mut byte_count) = self.byte_count.try_lock() else { return Ok(None) };
        match self.paths.read().get(&path) {
            Some(Standing::Ready(column)) => return Ok(Some(Arc::clone(column))),
            Some(Standing::Refused) => return Ok(None),
            _ => {}
        }
        let room = self.budget.bytes_max.saturating_sub(*byte_count);
        let made = Column::read(tree, path, room)?.map(Arc::new);
        self.budget.note_made();
        let standing = match &made {
            Some(column) => {
                *byte_count += column.byte_count();
                Standing::Ready(Arc::clone(column))
            }
            None => Standing::Refused,
        };
        self.paths.write().insert(path, standing);
        Ok(made)
    }
}

/// What columns may take and cost.
#[derive(Debug)]
struct Budget {
    bytes_max: u64,
    /// No column is taken to cost more.
    price_max: u64,
    /// When one was made last, of whichever state; at first, when the database was opened.
    last_made: Mutex<Instant>,
}

impl Budget {
    /// Whether a column may be made now, at a price: once as much was spent without it, or a part of that if little time goes into
    /// columns as it is.
    fn allows(&self, spent_rows: u64, price: u64) -> bool {
        spent_rows >= price
            || spent_rows >= price / IDLE_DISCOUNT
                && self.last_made.lock().elapsed()
                    >= Duration::from_nanos(ROW_NANOS.saturating_mul(IDLE_SHARE).saturating_mul(price))
    }

    fn note_made(&self) {
        *self.last_made.lock() = Instant::now();
    }
}

/// The columns of the tree's newest state.
#[derive(Debug)]
pub(crate) struct NewestColumns {
    budget: Arc<Budget>,
    newest: RwLock<Option<OfState>>,
}

/// The columns of a state. Weak, so that they don't keep it.
#[derive(Debug)]
struct OfState {
    tree: Weak<dyn TreeSnapshot>,
    columns: Arc<Columns>,
}

impl NewestColumns {
    /// Columns of at most `bytes_max`, none of which is taken to cost more than `price_max` rows.
    pub(crate) fn new(bytes_max: u64, price_max: u64) -> Self {
        let bytes_max = bytes_max.min(u64::from(u32::MAX));
        let budget = Budget { bytes_max, price_max, last_made: Mutex::new(Instant::now()) };
        NewestColumns { budget: Arc::new(budget), newest: RwLock::new(None) }
    }

    /// Those of `tree`, which is the newest state.
    pub(crate) fn of(&self, tree: &Arc<dyn TreeSnapshot>) -> Arc<Columns> {
        if let Some(known) = &*self.newest.read()
            && std::ptr::addr_eq(known.tree.as_ptr(), Arc::as_ptr(tree))
        {
            return Arc::clone(&known.columns);
        }
        let columns = Arc::new(Columns::new(Arc::clone(&self.budget)));
        *self.newest.write() = Some(OfState { tree: Arc::downgrade(tree), columns: Arc::clone(&columns) });
        columns
    }
}
