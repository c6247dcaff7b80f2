//! Equi-depth histogram of the values at one path: value and entry counts in up to 64 ranges of keys.
//!
//! The histogram is maintained, not sampled: every change of a term updates it, so its counts are exact. Ranges have
//! about the same number of entries (pairs of a value and a document) each; a value with more entries than a range
//! should have gets a range of its own. Values that arrive in key order, as in a first build and for timestamps, fill
//! new ranges without a second pass. A range that has grown beyond twice its share is *overfull* until the caller reads
//! its values and splits it.
//!
//! Invariants: ranges ascend without gaps, there are at most [`BUCKETS_MAX`], and `entry_count` is the sum of theirs.

use crate::varint;
use crate::{Error, Result};

/// The maximum number of ranges.
const BUCKETS_MAX: usize = 64;
/// The target size of a range is this fraction of all entries. It is less than [`BUCKETS_MAX`], so that merging two
/// ranges does not reduce the resolution below the target.
const SHARES: u64 = 48;
/// The minimum target size of a range.
const SHARE_MIN: u64 = if cfg!(test) { 4 } else { 64 };

/// The distribution of the values at one path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    /// In key order, without gaps.
    buckets: Vec<Bucket>,
    /// An upper bound of all keys, inclusive.
    top: Vec<u8>,
    entry_count: u64,
    /// The range that was changed last, which most often is the next one to change, too.
    last_changed: usize,
}

impl Histogram {
    /// Memory used, in bytes.
    pub(crate) fn byte_count(&self) -> usize {
        let keys = self.buckets.iter().map(|bucket| bucket.from.len()).sum::<usize>() + self.top.len();
        size_of::<Self>() + size_of::<Bucket>() * self.buckets.len() + keys
    }
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.buckets == other.buckets && self.top == other.top
    }
}

/// A range of keys, from `from` up to the `from` of the next range, excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bucket {
    from: Vec<u8>,
    value_count: u64,
    entry_count: u64,
}

/// The estimated size of a range of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RangeEstimate {
    /// Distinct values.
    pub(crate) values: f64,
    /// Pairs of a value and a document that has it.
    pub(crate) entries: f64,
}

impl Histogram {
    /// Pairs of a value and a document that has it.
    pub(crate) fn entry_count(&self) -> u64 {
        self.entry_count
    }

    /// Distinct values.
    pub(crate) fn value_count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.value_count).sum()
    }

    /// Records that documents gained or lost the value `key`; `value_change` is 1 if the value is new and -1 if no
    /// document has it any longer, as far as is known. Costs a binary search among the ranges.
    pub(crate) fn add(&mut self, key: &[u8], entry_change: i64, value_change: i64) {
        if entry_change == 0 && value_change == 0 {
            return;
        }
        if !self.is_within(self.last_changed, key) {
            self.extend_to(key, entry_change.unsigned_abs());
            self.last_changed = self.bucket_of(key);
        }
        let at = self.last_changed;
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        self.entry_count -= bucket.entry_count;
        bucket.entry_count = bucket.entry_count.saturating_add_signed(entry_change);
        // Changes of value counts may be estimates.
        bucket.value_count = bucket.value_count.saturating_add_signed(value_change);
        bucket.value_count = bucket.value_count.clamp(bucket.entry_count.min(1), bucket.entry_count);
        self.entry_count = self.entry_count.saturating_add(bucket.entry_count);
        if self.entry_count == 0 {
            *self = Histogram::default();
        }
        debug_assert_eq!(
            self.buckets.iter().fold(0, |sum: u64, bucket| sum.saturating_add(bucket.entry_count)),
            self.entry_count,
            "the entry count of a histogram is the sum of those of its ranges"
        );
    }

    /// The bounds of the first overfull range; the upper one is `None` for the last range.
    pub(crate) fn overfull(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let share = self.share();
        let at = self.buckets.iter().position(|bucket| bucket.entry_count > 2 * share && bucket.value_count > 1)?;
        Some((self.buckets[at].from.clone(), self.buckets.get(at + 1).map(|next| next.from.clone())))
    }

    /// Splits the range that begins at `from`, given the values in it: each key with its number of documents, in key
    /// order.
    pub(crate) fn split<'k>(&mut self, from: &[u8], values: impl IntoIterator<Item = (&'k [u8], u64)>) {
        let Some(at) = self.buckets.iter().position(|bucket| bucket.from == from) else { return };
        let share = self.share();
        let mut parts = vec![Bucket { from: from.to_vec(), value_count: 0, entry_count: 0 }];
        let mut previous: Vec<u8> = Vec::new();
        for (key, entry_count) in values {
            let Some(part) = parts.last_mut() else { return };
            if part.entry_count > 0 && part.entry_count + entry_count > share {
                parts.push(Bucket { from: shortest_between(&previous, key), value_count: 1, entry_count });
            } else {
                part.value_count += 1;
                part.entry_count += entry_count;
            }
            previous.clear();
            previous.extend_from_slice(key);
        }
        self.buckets.splice(at..=at, parts);
        self.entry_count = self.buckets.iter().map(|bucket| bucket.entry_count).sum();
        self.merge_smallest();
    }

    /// Estimates the size of the range from `lower` up to `upper`, excluded.
    pub(crate) fn estimate(&self, lower: &[u8], upper: &[u8]) -> RangeEstimate {
        let mut estimate = RangeEstimate::default();
        if lower >= upper {
            return estimate;
        }
        for (at, bucket) in self.buckets.iter().enumerate() {
            let end = self.buckets.get(at + 1).map_or(self.top.as_slice(), |next| &next.from);
            let is_last = at + 1 == self.buckets.len();
            let is_past = if is_last { lower > end } else { lower >= end };
            if is_past || upper <= bucket.from.as_slice() {
                continue;
            }
            let first = if lower <= bucket.from.as_slice() { 0.0 } else { fraction_below(&bucket.from, end, lower) };
            let is_whole = if is_last { upper > end } else { upper >= end };
            let last = if is_whole { 1.0 } else { fraction_below(&bucket.from, end, upper) };
            let share = (last - first).max(0.0);
            estimate.values += share * bucket.value_count as f64;
            estimate.entries += share * bucket.entry_count as f64;
        }
        estimate
    }

    /// At most `count` sample keys between two keys, with about the same number of entries between each two of them.
    pub(crate) fn samples(&self, lower: &[u8], upper: &[u8], count: usize) -> Vec<&[u8]> {
        let within = self.buckets.iter().map(|bucket| bucket.from.as_slice());
        let within: Vec<&[u8]> = within.filter(|from| lower <= *from && *from < upper).collect();
        let step = within.len().div_ceil(count.max(1)).max(1);
        within.into_iter().step_by(step).collect()
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::write(self.buckets.len() as u64, out);
        for bucket in &self.buckets {
            varint::write(bucket.from.len() as u64, out);
            out.extend_from_slice(&bucket.from);
            varint::write(bucket.value_count, out);
            varint::write(bucket.entry_count, out);
        }
        out.extend_from_slice(&self.top);
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not the output of [`Histogram::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let count = varint::read(&mut rest)?;
        let mut histogram = Histogram::default();
        for _ in 0..count {
            let length = usize::try_from(varint::read(&mut rest)?).map_err(|_| damaged())?;
            let (from, after) = rest.split_at_checked(length).ok_or_else(damaged)?;
            rest = after;
            let (value_count, entry_count) = (varint::read(&mut rest)?, varint::read(&mut rest)?);
            let is_ordered = histogram.buckets.last().is_none_or(|last| last.from.as_slice() < from);
            histogram.entry_count = histogram.entry_count.checked_add(entry_count).ok_or_else(damaged)?;
            if !is_ordered || value_count > entry_count {
                return Err(damaged());
            }
            histogram.buckets.push(Bucket { from: from.to_vec(), value_count, entry_count });
        }
        histogram.top = rest.to_vec();
        let is_above = histogram.buckets.last().map_or(rest.is_empty(), |last| last.from.as_slice() <= rest);
        if is_above && histogram.buckets.len() <= BUCKETS_MAX { Ok(histogram) } else { Err(damaged()) }
    }

    /// The target number of entries of a range.
    fn share(&self) -> u64 {
        (self.entry_count / SHARES).max(SHARE_MIN)
    }

    /// Whether the range `at` is not the last and contains a key.
    fn is_within(&self, at: usize, key: &[u8]) -> bool {
        let end = self.buckets.get(at + 1);
        end.is_some_and(|end| key < end.from.as_slice()) && self.buckets[at].from.as_slice() <= key
    }

    /// The range that contains a key; the first if the key is below all.
    fn bucket_of(&self, key: &[u8]) -> usize {
        self.buckets.partition_point(|bucket| bucket.from.as_slice() <= key).saturating_sub(1)
    }

    /// Extends the ranges to include `key`: the first one downwards, the last one upwards, or by a new range if the
    /// last one has its share.
    fn extend_to(&mut self, key: &[u8], entry_count: u64) {
        match self.buckets.first_mut() {
            Some(first) if key < first.from.as_slice() => first.from = key.to_vec(),
            _ => {}
        }
        if !self.buckets.is_empty() && key <= self.top.as_slice() {
            return;
        }
        let share = self.share();
        let is_full =
            self.buckets.last().is_none_or(|last| last.entry_count > 0 && last.entry_count + entry_count > share);
        if is_full {
            let from = if self.buckets.is_empty() { key.to_vec() } else { shortest_between(&self.top, key) };
            debug_assert!(self.buckets.last().is_none_or(|last| last.from < from), "the ranges of a histogram ascend");
            self.buckets.push(Bucket { from, value_count: 0, entry_count: 0 });
        }
        self.top.clear();
        self.top.extend_from_slice(key);
        self.merge_smallest();
    }

    /// Merges the adjacent ranges with the fewest entries until there are few enough. The last range is exempt: it may
    /// be new.
    fn merge_smallest(&mut self) {
        while self.buckets.len() > BUCKETS_MAX {
            let pairs = self.buckets[..self.buckets.len() - 1].windows(2).enumerate();
            let least = pairs.min_by_key(|(_, pair)| pair[0].entry_count + pair[1].entry_count);
            let Some((at, _)) = least else { return };
            let removed = self.buckets.remove(at + 1);
            self.buckets[at].value_count += removed.value_count;
            self.buckets[at].entry_count += removed.entry_count;
        }
        debug_assert!(self.buckets.len() <= BUCKETS_MAX, "a histogram has at most BUCKETS_MAX ranges");
    }
}

/// The shortest byte string that is greater than `lower` and not greater than `upper`.
fn shortest_between(lower: &[u8], upper: &[u8]) -> Vec<u8> {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    upper[..upper.len().min(common + 1)].to_vec()
}

/// The fraction of the distance from `lower` to `upper` that is below `key`, by linear interpolation over the eight
/// bytes after the common prefix.
fn fraction_below(lower: &[u8], upper: &[u8], key: &[u8]) -> f64 {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    if !key.starts_with(&lower[..common]) {
        return if key < lower { 0.0 } else { 1.0 };
    }
    let number = |bytes: &[u8]| {
        let mut eight = [0; 8];
        bytes.iter().skip(common).zip(&mut eight).for_each(|(byte, target)| *target = *byte);
        u64::from_be_bytes(eight) as f64
    };
    let (lower, upper, key) = (number(lower), number(upper), number(key));
    if upper > lower { ((key - lower) / (upper - lower)).clamp(0.0, 1.0) } else { 0.5 }
}

fn damaged() -> Error {
    Error::corrupt("the statistics of a path are damaged")
}

#[cfg(test)]
mod tests;
