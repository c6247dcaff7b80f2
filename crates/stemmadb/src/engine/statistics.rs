//! Per-path statistics: a histogram of values and the sum of numbers, maintained by checkpoints together with the
//! postings they count.

use crate::Result;
use crate::index::{Histogram, NumberSum, PathNumber};
use crate::layout::meta;
use crate::read::StoreParts;
use crate::read::statistics::{count_histogram, each_row, sum_numbers};
use crate::tree::{TreeSnapshot, TreeTransaction};

/// The maximum number of ranges of one path that one checkpoint splits.
const DIVIDED_MAX: usize = 64;

/// The statistics of a path during a merge.
pub(super) struct PathStatistics {
    path: PathNumber,
    histogram: Histogram,
    numbers: NumberSum,
    is_changed: bool,
}

impl PathStatistics {
    /// Loads the statistics from the tree, and splits ranges that have grown too large. Computes the statistics from
    /// the postings if they are missing or damaged.
    pub(super) fn begin(tree: &TreeSnapshot, path: PathNumber) -> Result<Self> {
        let histogram = match meta::statistics(tree, path)?.map(|stored| Histogram::decode(&stored)) {
            Some(Ok(histogram)) => histogram,
            _ => count_histogram(tree, path)?,
        };
        let numbers = match meta::numbers(tree, path)?.map(|stored| NumberSum::decode(&stored)) {
            Some(Ok(numbers)) => numbers,
            _ => sum_numbers(tree, path)?,
        };
        let mut statistics = PathStatistics { path, histogram, numbers, is_changed: false };
        statistics.is_changed = statistics.divide(tree)?;
        Ok(statistics)
    }

    pub(super) fn path(&self) -> PathNumber {
        self.path
    }

    /// Records that documents gained or lost a value, and whether the value is new (1) or gone (-1).
    pub(super) fn add(&mut self, key: &[u8], entry_change: i64, value_change: i64) -> Result<()> {
        self.is_changed |= entry_change != 0 || value_change != 0;
        self.histogram.add(key, entry_change, value_change);
        self.numbers.add(key, entry_change)
    }

    /// Stores the statistics if they changed; returns whether they did.
    pub(super) fn put(&self, tree: &mut TreeTransaction<'_>) -> Result<bool> {
        if self.is_changed {
            self.put_always(tree)?;
        }
        Ok(self.is_changed)
    }

    fn put_always(&self, tree: &mut TreeTransaction<'_>) -> Result<()> {
        meta::put_statistics(tree, self.path, &self.histogram, &self.numbers)
    }

    /// Splits ranges that have grown too large, given the tree that holds everything counted; returns whether there
    /// were any.
    fn divide(&mut self, tree: &TreeSnapshot) -> Result<bool> {
        let mut is_divided = false;
        for _ in 0..DIVIDED_MAX {
            let Some((from, to)) = self.histogram.overfull() else { break };
            let mut values: Vec<(Vec<u8>, u64)> = Vec::new();
            each_row(tree, self.path, &from, to.as_deref(), |key, count| match values.last_mut() {
                Some((last, sum)) if last == key => *sum += count,
                _ => values.push((key.to_vec(), count)),
            })?;
            self.histogram.split(&from, values.iter().map(|(key, count)| (key.as_slice(), *count)));
            is_divided = true;
        }
        Ok(is_divided)
    }

    pub(super) fn is_overfull(&self) -> bool {
        self.histogram.overfull().is_some()
    }
}

impl StoreParts {
    /// Publishes the statistics to readers.
    pub(super) fn publish_statistics(&self, counting: &PathStatistics) {
        self.caches.columns.histograms.replace(counting.path, &counting.histogram);
    }

    /// Removes the statistics of a path whose rows are being removed.
    pub(super) fn forget_statistics(&self, tree: &mut TreeTransaction<'_>, path: PathNumber) -> Result<()> {
        let nothing = Histogram::default();
        meta::put_statistics(tree, path, &nothing, &NumberSum::default())?;
        self.caches.columns.histograms.replace(path, &nothing);
        Ok(())
    }

    /// Counts a path's rows again, as they are without the changes of this transaction.
    pub(super) fn recount_statistics(&self, tree: &mut TreeTransaction<'_>, path: PathNumber) -> Result<()> {
        let before = self.tree.read();
        let (histogram, numbers) = (count_histogram(&before, path)?, sum_numbers(&before, path)?);
        meta::put_statistics(tree, path, &histogram, &numbers)?;
        self.caches.columns.histograms.replace(path, &histogram);
        Ok(())
    }

    /// Splits the ranges that have grown too large. Call it after the postings are committed.
    pub(super) fn divide_statistics(&self, overfull: Vec<PathStatistics>) -> Result<()> {
        let mut divided = Vec::new();
        let tree = self.tree.read();
        for mut counting in overfull {
            if counting.divide(&tree)? {
                divided.push(counting);
            }
        }
        drop(tree);
        if divided.is_empty() {
            return Ok(());
        }
        let mut tree = self.tree.write()?;
        for counting in &divided {
            counting.put_always(&mut tree)?;
        }
        tree.commit()?;
        divided.iter().for_each(|counting| self.caches.columns.histograms.replace(counting.path, &counting.histogram));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
