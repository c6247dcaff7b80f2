//! Interval index of watchers by key range: finds the ranges that contain a key.
//!
//! Layout: ranges sorted by lower bound, read as an implicit balanced tree (the middle of every part is its root); each
//! entry stores the index of the largest upper bound in its part. Recently added ranges are kept unsorted at the end
//! until there are enough of them to sort everything again.
//!
//! Each entry stores the first bytes of its bounds inline; they usually decide a comparison without following a
//! pointer.
//!
//! Cost: a lookup takes time logarithmic in the number of ranges, plus the number of ranges found.

use std::cmp::Ordering;

use super::hub::WatcherNumber;

/// A range of keys, from `lower` (inclusive) to `upper` (exclusive), and the watcher registered for it.
#[derive(Debug)]
struct RangeEntry {
    lower: Bound,
    upper: Bound,
    /// `None` if it was removed but its entry was not yet dropped.
    watcher: Option<WatcherNumber>,
    /// Index of the largest upper bound within the part whose root this entry is, and that bound's head.
    largest: u32,
    largest_head: u64,
}

/// A lower or upper bound of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    head: u64,
    bytes: Box<[u8]>,
}

/// The first eight bytes as a big-endian number, padded with zeros.
fn head(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let count = bytes.len().min(8);
    first[..count].copy_from_slice(&bytes[..count]);
    u64::from_be_bytes(first)
}

impl Bound {
    fn new(bytes: &[u8]) -> Self {
        Bound { head: head(bytes), bytes: bytes.into() }
    }

    fn compare(&self, (other_head, other): (u64, &[u8])) -> Ordering {
        // Equal heads can belong to longer keys, or to keys that end in zeros.
        self.head.cmp(&other_head).then_with(|| (*self.bytes).cmp(other))
    }
}

/// A key with its head.
type Key<'a> = (u64, &'a [u8]);

/// Key ranges and their watchers.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    entries: Vec<RangeEntry>,
    /// Number of leading entries that are sorted and have `largest` set.
    sorted_count: usize,
    /// How many of them were removed.
    removed_count: usize,
}

/// Up to this many entries (plus a share of all entries) may be unsorted or removed before everything is sorted again,
/// so that large indexes are sorted rarely.
const DISORDER_COUNT: usize = 64;
const DISORDER_SHARE: usize = 16;

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.removed_count
    }

    pub(super) fn add(&mut self, watcher: WatcherNumber, lower: &[u8], upper: &[u8]) {
        let (lower, upper) = (Bound::new(lower), Bound::new(upper));
        self.entries.push(RangeEntry { lower, upper, watcher: Some(watcher), largest: 0, largest_head: 0 });
        self.sort_if_disordered();
    }

    /// Removes one range of the watcher.
    pub(super) fn remove(&mut self, watcher: WatcherNumber, lower: &[u8], upper: &[u8]) {
        let (lower, upper) = (Bound::new(lower), Bound::new(upper));
        let is_wanted =
            |entry: &RangeEntry| entry.watcher == Some(watcher) && entry.lower == lower && entry.upper == upper;
        let (sorted, newest) = self.entries.split_at_mut(self.sorted_count);
        if let Some(at) = newest.iter().position(is_wanted) {
            self.entries.swap_remove(self.sorted_count + at);
            return;
        }
        let key = (lower.head, &*lower.bytes);
        let start = sorted.partition_point(|entry| entry.lower.compare(key).is_lt());
        let alike = sorted[start..].iter_mut().take_while(|entry| entry.lower == lower);
        if let Some(entry) = alike.into_iter().find(|entry| is_wanted(entry)) {
            entry.watcher = None;
            self.removed_count += 1;
            self.sort_if_disordered();
        }
    }

    /// Appends the watchers whose range intersects the keys from `from` to `to`, both inclusive.
    pub(super) fn find(&self, from: &[u8], to: &[u8], found: &mut Vec<WatcherNumber>) {
        let (from, to) = ((head(from), from), (head(to), to));
        self.find_within(0, self.sorted_count, from, to, found);
        let newest = &self.entries[self.sorted_count..];
        let held = newest.iter().filter(|entry| entry.lower.compare(to).is_le() && entry.upper.compare(from).is_gt());
        found.extend(held.filter_map(|entry| entry.watcher));
    }

    fn find_within(&self, mut start: usize, end: usize, from: Key<'_>, to: Key<'_>, found: &mut Vec<WatcherNumber>) {
        while start < end {
            let middle = start.midpoint(end);
            let root = &self.entries[middle];
            let ends_before = root.largest_head < from.0
                || root.largest_head == from.0 && self.entries[root.largest as usize].upper.compare(from).is_le();
            if ends_before {
                return;
            }
            self.find_within(start, middle, from, to, found);
            if root.lower.compare(to).is_gt() {
                return;
            }
            if root.upper.compare(from).is_gt() {
                found.extend(root.watcher);
            }
            start = middle + 1;
        }
    }

    /// Drops removed entries and sorts the rest if too many are unsorted or removed.
    fn sort_if_disordered(&mut self) {
        let disorder = self.entries.len() - self.sorted_count + self.removed_count;
        if disorder <= DISORDER_COUNT + self.entries.len() / DISORDER_SHARE {
            return;
        }
        self.entries.retain(|entry| entry.watcher.is_some());
        self.removed_count = 0;
        self.entries.sort_unstable_by(|left, right| left.lower.compare((right.lower.head, &right.lower.bytes)));
        self.sorted_count = self.entries.len();
        self.find_largest(0, self.sorted_count);
    }

    /// Sets the largest upper bound of each part; returns the index of that of the whole.
    fn find_largest(&mut self, start: usize, end: usize) -> Option<u32> {
        if start == end {
            return None;
        }
        let middle = start.midpoint(end);
        let (left, right) = (self.find_largest(start, middle), self.find_largest(middle + 1, end));
        let parts = [left, right, Some(middle as u32)].into_iter().flatten();
        let upper = |at: u32| &self.entries[at as usize].upper;
        let largest = parts.max_by(|a, b| upper(*a).compare((upper(*b).head, &upper(*b).bytes)))?;
        let largest_head = upper(largest).head;
        let root = &mut self.entries[middle];
        (root.largest, root.largest_head) = (largest, largest_head);
        Some(largest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0_u8..4, 0..3)
    }

    proptest! {
        #[test]
        fn find_returns_every_range_that_contains_a_key(
            ranges in prop::collection::vec((bytes(), bytes()), 0..300),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            queried in prop::collection::vec((bytes(), bytes()), 1..20),
        ) {
            let mut tree = Ranges::default();
            let mut naive: Vec<_> = ranges.into_iter().enumerate().collect();
            for (number, (lower, upper)) in &naive {
                tree.add(WatcherNumber::new(*number as u32), lower, upper);
            }
            for index in removed {
                if !naive.is_empty() {
                    let (number, (lower, upper)) = naive.swap_remove(index.index(naive.len()));
                    tree.remove(WatcherNumber::new(number as u32), &lower, &upper);
                }
            }
            prop_assert_eq!(tree.len(), naive.len());
            for (one, other) in queried {
                let (from, to) = if one <= other { (one, other) } else { (other, one) };
                let mut found = Vec::new();
                tree.find(&from, &to, &mut found);
                found.sort();
                let mut expected: Vec<_> = naive
                    .iter()
                    .filter(|(_, (lower, upper))| *lower <= to && from < *upper)
                    .map(|(number, _)| WatcherNumber::new(*number as u32))
                    .collect();
                expected.sort();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
