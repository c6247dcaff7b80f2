//! The histogram of each path and the sum of its numbers, kept by checkpoints with the postings they count.

use crate::Result;
use crate::index::{Histogram, NumberSum, PathNumber};
use crate::layout::meta;
use crate::read::StoreParts;
use crate::read::statistics::{counted, each_row, summed};
use crate::tree::{TreeSnapshot, TreeTransaction};

/// So many ranges of one path are divided at one checkpoint.
const DIVIDED_MAX: usize = 64;

/// The statistics of a path that a merge is changing.
pub(super) struct Counting {
    path: PathNumber,
    histogram: Histogram,
    numbers: NumberSum,
    is_changed: bool,
}

impl Counting {
    /// Begins with what the tree has.
    pub(super) fn begin(tree: &dyn TreeSnapshot, path: PathNumber) -> Result<Self> {
        let histogram = match meta::statistics(tree, path)?.map(Histogram::decode) {
            Some(Ok(histogram)) => histogram,
            _ => counted(tree, path)?,
        };
        let numbers = match meta::numbers(tree, path)?.map(NumberSum::decode) {
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
            self.histogram.split(&from, values.iter().map(|(key, count)| (key.as_slice(), *count)));
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
        self.caches.histograms.note(counting.path, &counting.histogram);
        counting.is_overfull().then_some(counting)
    }

    /// Forgets the statistics of a path whose rows go.
    pub(super) fn forget_statistics(&self, tree: &mut dyn TreeTransaction, path: PathNumber) -> Result<()> {
        let nothing = Histogram::default();
        meta::put_statistics(tree, path, &nothing, &NumberSum::default())?;
        self.caches.histograms.note(path, &nothing);
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
        divided.iter().for_each(|counting| self.caches.histograms.note(counting.path, &counting.histogram));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
