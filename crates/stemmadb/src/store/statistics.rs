//! How are the values of each path spread, and what do its numbers come to? A histogram a path, and the sum of its numbers, in the tree's
//! table `meta`.
//!
//! Invariants:
//! - Both change in the transaction that changes the postings they count, so they are exact for the tree they lie in.
//! - The histogram is for estimates. Where either is missing or damaged, estimates are worse and sums are made from the postings, and
//!   the next merge of the path makes it anew.
//!
//! Concurrency: written by whoever checkpoints; readers keep those of large paths decoded, and may see one of the moment before.

use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::Result;
use crate::index::{self, Container, Histogram, Numbers, PathNumber, PostingKey, Window};
use crate::store::postings::lay_over;
use crate::store::snapshot::Snapshot;
use crate::store::{StoreParts, meta};
use crate::sync::RwLock;
use crate::tree::{Direction, Rows, Table, TreeSnapshot, TreeTransaction};
use crate::value::{Kind, collate::key};

/// Histograms with fewer values are decoded whenever they are asked for.
const KEPT_VALUES_MIN: u64 = 64;
/// So many are kept decoded, a few kilobytes each.
const KEPT_MAX: usize = 4_096;
/// So many ranges of one path are divided at one checkpoint.
const DIVIDED_MAX: usize = 64;

/// The statistics of a path that a merge is changing.
pub(super) struct Counting {
    path: PathNumber,
    histogram: Histogram,
    numbers: Numbers,
    is_changed: bool,
}

/// Histograms of large paths, decoded.
#[derive(Default)]
pub(super) struct Kept(RwLock<HashMap<PathNumber, Arc<Histogram>>>);

impl Counting {
    /// Begins with what the tree has.
    pub(super) fn begin(tree: &dyn TreeSnapshot, path: PathNumber) -> Result<Self> {
        let histogram = match meta::statistics(tree, path)?.map(Histogram::decode) {
            Some(Ok(histogram)) => histogram,
            _ => counted(tree, path)?,
        };
        let numbers = match meta::numbers(tree, path)?.map(Numbers::decode) {
            Some(Ok(numbers)) => numbers,
            _ => summed(tree, path)?,
        };
        Ok(Counting { path, histogram, numbers, is_changed: false })
    }

    /// Notes that documents gained or lost a value, and whether it is new (1) or gone (-1).
    pub(super) fn add(&mut self, key: &[u8], entry_change: i64, value_change: i64) -> Result<()> {
        self.is_changed |= entry_change != 0 || value_change != 0;
        self.histogram.add(key, entry_change, value_change);
        self.numbers.add(key, entry_change)
    }

    /// Stores them, if they were changed.
    pub(super) fn put(&mut self, tree: &mut dyn TreeTransaction) -> Result<()> {
        if std::mem::take(&mut self.is_changed) { self.put_always(tree) } else { Ok(()) }
    }

    fn put_always(&self, tree: &mut dyn TreeTransaction) -> Result<()> {
        meta::put_statistics(tree, self.path, &self.histogram, &self.numbers)
    }

    /// Divides ranges that have grown too large; `tree` has all that was counted. Whether any had.
    fn divide(&mut self, tree: &dyn TreeSnapshot) -> Result<bool> {
        let mut is_divided = false;
        for _ in 0..DIVIDED_MAX {
            let Some((from, to)) = self.histogram.overfull() else { break };
            let mut values: Vec<(Vec<u8>, u64)> = Vec::new();
            each_row(tree, self.path, &from, to.as_deref(), |key, count| match values.last_mut() {
                Some((last, sum)) if last == key => *sum += count,
                _ => values.push((key.to_vec(), count)),
            })?;
            self.histogram.divide(&from, values.iter().map(|(key, count)| (key.as_slice(), *count)));
            is_divided = true;
        }
        Ok(is_divided)
    }

    fn is_overfull(&self) -> bool {
        self.histogram.overfull().is_some()
    }
}

impl StoreParts {
    /// Makes what was counted known to readers. Returns it if ranges of it are to be divided.
    pub(super) fn publish_statistics(&self, counting: Counting) -> Option<Counting> {
        self.statistics.note(counting.path, &counting.histogram);
        counting.is_overfull().then_some(counting)
    }

    /// Forgets the statistics of a path whose rows go.
    pub(super) fn forget_statistics(&self, tree: &mut dyn TreeTransaction, path: PathNumber) -> Result<()> {
        let nothing = Histogram::default();
        meta::put_statistics(tree, path, &nothing, &Numbers::default())?;
        self.statistics.note(path, &nothing);
        Ok(())
    }

    /// Divides the ranges that have grown too large. Call it when the postings are committed.
    pub(super) fn divide_statistics(&self, overfull: Vec<Counting>) -> Result<()> {
        let mut divided = Vec::new();
        let tree = self.tree.read()?;
        for mut counting in overfull {
            if counting.divide(&*tree)? {
                divided.push(counting);
            }
        }
        drop(tree);
        if divided.is_empty() {
            return Ok(());
        }
        let mut tree = self.tree.write()?;
        for counting in &divided {
            counting.put_always(&mut *tree)?;
        }
        tree.commit()?;
        divided.iter().for_each(|counting| self.statistics.note(counting.path, &counting.histogram));
        Ok(())
    }
}

impl Kept {
    fn note(&self, path: PathNumber, histogram: &Histogram) {
        let mut kept = self.0.write();
        let is_kept = histogram.value_count() >= KEPT_VALUES_MIN;
        if is_kept && (kept.len() < KEPT_MAX || kept.contains_key(&path)) {
            kept.insert(path, Arc::new(histogram.clone()));
        } else {
            kept.remove(&path);
        }
    }

    /// What was found in the tree; not put over what a checkpoint has noted since.
    fn remember(&self, path: PathNumber, histogram: &Arc<Histogram>) {
        if histogram.value_count() < KEPT_VALUES_MIN {
            return;
        }
        let mut kept = self.0.write();
        if kept.len() < KEPT_MAX {
            kept.entry(path).or_insert_with(|| histogram.clone());
        }
    }
}

impl Snapshot {
    /// How the values of `path` were spread at about the last checkpoint; none if that is not known. Costs a hash look-up, or
    /// one in the tree.
    pub(crate) fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        if let Some(kept) = self.parts.statistics.0.read().get(&path) {
            return Some(kept.clone());
        }
        let histogram = Histogram::decode(meta::statistics(&*self.tree, path).ok()??).ok()?;
        let histogram = Arc::new(histogram);
        self.parts.statistics.remember(path, &histogram);
        Some(histogram)
    }

    /// What the numbers at `path` come to, if no document can have two of them there: of a path that enters no array. None if it does, or
    /// if meeting each number costs less, as where memtables change many. Costs a look-up for each that they change.
    pub(crate) fn numbers(&self, path: PathNumber) -> Result<Option<Numbers>> {
        /// So many numbers are met while one that was changed is looked up.
        const CHANGE_COST: u64 = 16;
        if self.parts.paths.enters_array(path) {
            return Ok(None);
        }
        let Some(Ok(mut numbers)) = meta::numbers(&*self.tree, path)?.map(Numbers::decode) else { return Ok(None) };
        let (lower, upper) = key::type_range(Kind::Number);
        let changed = self.changed_terms(path, Bound::Included(&lower), Bound::Excluded(&upper));
        if changed.len() as u64 * CHANGE_COST > numbers.count() {
            return Ok(None);
        }
        for (key, overlay) in &changed {
            let mut documents = self.tree_postings(path, key, Window::ALL)?;
            let before = documents.len() as i64;
            lay_over(&mut documents, overlay);
            numbers.add(key, documents.len() as i64 - before)?;
        }
        Ok(Some(numbers))
    }

    /// How many distinct scalars there are at `path`: exact where the memtables change few, else those that are new in them are
    /// taken to be new in all.
    pub(super) fn distinct_count(&self, path: PathNumber) -> Result<u64> {
        const LOOKED_UP_MAX: usize = 1_000;
        let stored = match meta::statistics(&*self.tree, path)?.map(Histogram::decode) {
            Some(Ok(histogram)) => histogram,
            _ => counted(&*self.tree, path)?,
        };
        let changed = self.changed_terms(path, Bound::Unbounded, Bound::Unbounded);
        let mut count = stored.value_count();
        if changed.len() > LOOKED_UP_MAX && count > 0 {
            return Ok(count + changed.len() as u64);
        }
        for (key, overlay) in &changed {
            let before = self.tree_postings(path, key, Window::ALL)?;
            let is_there = if before.is_empty() {
                overlay.changes().iter().any(|(_, gained)| *gained)
            } else {
                !self.postings(path, key)?.is_empty()
            };
            match (before.is_empty(), is_there) {
                (true, true) => count += 1,
                (false, false) => count = count.saturating_sub(1),
                _ => {}
            }
        }
        Ok(count)
    }
}

/// Whether the documents of a term that lie in other chunks than these are there.
pub(super) fn has_others(
    tree: &dyn TreeSnapshot,
    path: PathNumber,
    key: &[u8],
    is_touched: impl Fn(u64) -> bool,
) -> Result<bool> {
    let (lower, upper) = (index::first_posting(path, key), index::after_postings(path, key));
    let mut rows = scan(tree, &lower, &upper)?;
    while let Some((row_key, _)) = rows.next()? {
        if !is_touched(PostingKey::decode(row_key)?.chunk) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The histogram of a path, from all its rows.
pub(super) fn counted(tree: &dyn TreeSnapshot, path: PathNumber) -> Result<Histogram> {
    let mut histogram = Histogram::default();
    let (mut last, mut sum) = (Vec::new(), 0);
    let first = key::type_range(Kind::Null).0;
    each_row(tree, path, &first, None, |key, count| {
        if last != key {
            histogram.add(&last, sum, i64::from(sum > 0));
            last.clear();
            last.extend_from_slice(key);
            sum = 0;
        }
        sum += count as i64;
    })?;
    histogram.add(&last, sum, i64::from(sum > 0));
    Ok(histogram)
}

/// What the numbers of a path come to, from their rows.
pub(super) fn summed(tree: &dyn TreeSnapshot, path: PathNumber) -> Result<Numbers> {
    let (mut numbers, mut added) = (Numbers::default(), Ok(()));
    let (lower, upper) = key::type_range(Kind::Number);
    each_row(tree, path, &lower, Some(&upper), |key, count| {
        if added.is_ok() {
            added = numbers.add(key, count as i64);
        }
    })?;
    added.map(|()| numbers)
}

/// Calls `visit` with the key of each row's value and the number of its documents. A value has a row for each chunk.
fn each_row(
    tree: &dyn TreeSnapshot,
    path: PathNumber,
    from: &[u8],
    to: Option<&[u8]>,
    mut visit: impl FnMut(&[u8], u64),
) -> Result<()> {
    let lower = index::first_posting(path, from);
    let upper = to.map_or_else(|| index::after_postings(path, &[]), |to| index::first_posting(path, to));
    let mut rows = scan(tree, &lower, &upper)?;
    while let Some((row_key, container)) = rows.next()? {
        let count = Container::stored_len(container)?;
        visit(PostingKey::decode(row_key)?.value, u64::from(count));
    }
    Ok(())
}

fn scan<'a>(tree: &'a dyn TreeSnapshot, lower: &[u8], upper: &[u8]) -> Result<Rows<'a>> {
    tree.scan(Table::Postings, Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)
}

#[cfg(test)]
mod tests;
