//! Per-path statistics: a histogram of values and the sum of numbers, stored in the tree's table `meta`.
//!
//! Invariants:
//! - Both change in the transaction that changes the postings they count, so they are exact for that state of the tree.
//! - The histogram is used for estimates only. If either is missing or damaged, estimates are worse, sums are computed
//!   from the postings, and the next merge of the path rebuilds it.
//!
//! Concurrency: written by checkpoints. Readers cache the decoded histograms of large paths, and may see a slightly
//! outdated one.

use std::ops::Bound;
use std::sync::Arc;

use crate::Result;
use crate::index::{self, Container, Histogram, NumberSum, PathNumber, PostingKey, Window};
use crate::layout::meta;
use crate::read::postings::apply_overlay;
use crate::read::snapshot::Snapshot;
use crate::tree::{Direction, Scan, Table, TreeSnapshot};
use crate::value::{Kind, collate::key};

impl Snapshot {
    /// The histogram of `path` as of about the last checkpoint; none if it is not stored. Costs a hash lookup, or a
    /// lookup in the tree.
    pub(crate) fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        if let Some(cached) = self.parts.caches.columns.histograms.get(path) {
            return Some(cached);
        }
        let histogram = Histogram::decode(&meta::statistics(&self.tree, path).ok()??).ok()?;
        let histogram = Arc::new(histogram);
        self.parts.caches.columns.histograms.insert_if_absent(path, &histogram);
        Some(histogram)
    }

    /// The count and sum of the numbers at `path`, if a document can have only one there. None if the path enters an
    /// array, or if reading each number costs less, because memtables change many. Costs a lookup for each number that
    /// memtables change.
    pub(crate) fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        /// How many numbers can be read in the time of one lookup of a changed number.
        const CHANGE_COST: u64 = 16;
        if self.parts.paths.enters_array(path) {
            return Ok(None);
        }
        let Some(Ok(mut numbers)) = meta::numbers(&self.tree, path)?.map(|stored| NumberSum::decode(&stored)) else {
            return Ok(None);
        };
        let (lower, upper) = key::type_range(Kind::Number);
        let changed = self.changed_terms(path, Bound::Included(&lower), Bound::Excluded(&upper));
        if changed.len() as u64 * CHANGE_COST > numbers.count() {
            return Ok(None);
        }
        for (key, overlay) in &changed {
            let mut documents = self.tree_postings(path, key, Window::ALL)?;
            let before = documents.len() as i64;
            apply_overlay(&mut documents, overlay);
            numbers.add(key, documents.len() as i64 - before)?;
        }
        Ok(Some(numbers))
    }

    /// The number of distinct scalars at `path`: exact if memtables change few; otherwise values that are new in a
    /// memtable are counted as new.
    pub(crate) fn distinct_count(&self, path: PathNumber) -> Result<u64> {
        const LOOKED_UP_MAX: usize = 1_000;
        let stored = match meta::statistics(&self.tree, path)?.map(|stored| Histogram::decode(&stored)) {
            Some(Ok(histogram)) => histogram,
            _ => count_histogram(&self.tree, path)?,
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

/// Whether the tree has documents with a term.
pub(crate) fn has_term(tree: &TreeSnapshot, path: PathNumber, key: &[u8]) -> Result<bool> {
    let (lower, upper) = (index::first_posting(path, key), index::after_postings(path, key));
    Ok(scan(tree, &lower, &upper)?.next()?.is_some())
}

/// Computes the histogram of a path from all its rows.
pub(crate) fn count_histogram(tree: &TreeSnapshot, path: PathNumber) -> Result<Histogram> {
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

/// Computes the count and sum of the numbers of a path from their rows.
pub(crate) fn sum_numbers(tree: &TreeSnapshot, path: PathNumber) -> Result<NumberSum> {
    let (mut numbers, mut added) = (NumberSum::default(), Ok(()));
    let (lower, upper) = key::type_range(Kind::Number);
    each_row(tree, path, &lower, Some(&upper), |key, count| {
        if added.is_ok() {
            added = numbers.add(key, count as i64);
        }
    })?;
    added.map(|()| numbers)
}

/// Calls `visit` with the key of each row's value and the number of its documents. A value has one row for each chunk.
pub(crate) fn each_row(
    tree: &TreeSnapshot,
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

fn scan(tree: &TreeSnapshot, lower: &[u8], upper: &[u8]) -> Result<Scan> {
    tree.scan(Table::Postings, Bound::Included(lower), Bound::Excluded(upper), Direction::Ascending)
}
