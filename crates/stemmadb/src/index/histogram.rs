//! How are the values of one path spread? So many values and documents in each of a few dozen ranges of keys.
//!
//! It is kept, not sampled: whoever changes a term tells it, so its counts are those of the index. Ranges are made so that each has
//! about as many entries (pairs of a value and a document) as any other; a value that has more than a range should has one of its own.
//! Values that come in the order of keys, as all do at first and those of clocks always, need no second look. A range that
//! has grown beyond twice its share is *overfull*, until it is divided by somebody who reads its values.

use crate::value::varint;
use crate::{Error, Result};

/// The most ranges.
const BUCKETS_MAX: usize = 64;
/// A range is to have one in so many of all entries: fewer than there may be ranges, so that joining two is no loss.
const SHARES: u64 = 48;
/// Smaller ranges than this are not worth having.
const SHARE_MIN: u64 = if cfg!(test) { 4 } else { 64 };

/// The values of one path, in ranges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    /// In the order of keys, without a gap.
    buckets: Vec<Bucket>,
    /// Not below any key.
    top: Vec<u8>,
    entry_count: u64,
    /// Which range was changed last: mostly it is the next one too.
    near: usize,
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.buckets == other.buckets && self.top == other.top
    }
}

/// The values whose keys are not below `from`, and below the `from` of the next.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bucket {
    from: Vec<u8>,
    value_count: u64,
    entry_count: u64,
}

/// How much there is of something.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Amount {
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

    /// Notes that documents gained or lost the value `key`, and whether it is new (1) or gone (-1) with that. Costs a search
    /// among the ranges.
    pub(crate) fn add(&mut self, key: &[u8], entry_change: i64, value_change: i64) {
        if entry_change == 0 && value_change == 0 {
            return;
        }
        if !self.is_within(self.near, key) {
            self.make_room(key, entry_change.unsigned_abs());
            self.near = self.bucket_of(key);
        }
        let at = self.near;
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        self.entry_count -= bucket.entry_count;
        bucket.entry_count = bucket.entry_count.saturating_add_signed(entry_change);
        bucket.value_count = bucket.value_count.saturating_add_signed(value_change);
        self.entry_count = self.entry_count.saturating_add(bucket.entry_count);
        if self.entry_count == 0 {
            *self = Histogram::default();
        }
    }

    /// Where the first range that is overfull begins, and where it ends: at the next one, if there is one.
    pub(crate) fn overfull(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let share = self.share();
        let at = self.buckets.iter().position(|bucket| bucket.entry_count > 2 * share && bucket.value_count > 1)?;
        Some((self.buckets[at].from.clone(), self.buckets.get(at + 1).map(|next| next.from.clone())))
    }

    /// Divides the range that begins at `from` by the values in it: each key with its number of documents, in order.
    pub(crate) fn divide<'k>(&mut self, from: &[u8], values: impl IntoIterator<Item = (&'k [u8], u64)>) {
        let Some(at) = self.buckets.iter().position(|bucket| bucket.from == from) else { return };
        let share = self.share();
        let mut pieces = vec![Bucket { from: from.to_vec(), value_count: 0, entry_count: 0 }];
        let mut previous: Vec<u8> = Vec::new();
        for (key, entry_count) in values {
            let Some(piece) = pieces.last_mut() else { return };
            if piece.entry_count > 0 && piece.entry_count + entry_count > share {
                pieces.push(Bucket { from: between(&previous, key), value_count: 1, entry_count });
            } else {
                piece.value_count += 1;
                piece.entry_count += entry_count;
            }
            previous.clear();
            previous.extend_from_slice(key);
        }
        self.buckets.splice(at..=at, pieces);
        self.entry_count = self.buckets.iter().map(|bucket| bucket.entry_count).sum();
        self.join_least();
    }

    /// About how much lies from `lower` up to `upper`, itself excluded.
    pub(crate) fn within(&self, lower: &[u8], upper: &[u8]) -> Amount {
        let mut amount = Amount::default();
        if lower >= upper {
            return amount;
        }
        for (at, bucket) in self.buckets.iter().enumerate() {
            let end = self.buckets.get(at + 1).map_or(self.top.as_slice(), |next| &next.from);
            let is_last = at + 1 == self.buckets.len();
            let is_past = if is_last { lower > end } else { lower >= end };
            if is_past || upper <= bucket.from.as_slice() {
                continue;
            }
            let first = if lower <= bucket.from.as_slice() { 0.0 } else { place(&bucket.from, end, lower) };
            let is_whole = if is_last { upper > end } else { upper >= end };
            let last = if is_whole { 1.0 } else { place(&bucket.from, end, upper) };
            let share = (last - first).max(0.0);
            amount.values += share * bucket.value_count as f64;
            amount.entries += share * bucket.entry_count as f64;
        }
        amount
    }

    /// Keys at which to look for typical values between two keys: at most `count`, about equally many entries apart.
    pub(crate) fn samples(&self, lower: &[u8], upper: &[u8], count: usize) -> Vec<&[u8]> {
        let within = self.buckets.iter().map(|bucket| bucket.from.as_slice());
        let within: Vec<&[u8]> = within.filter(|from| lower <= *from && *from < upper).collect();
        let step = within.len().div_ceil(count.max(1)).max(1);
        within.into_iter().step_by(step).collect()
    }

    /// Appends its bytes.
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

    /// What those bytes stand for.
    ///
    /// # Errors
    /// `Corrupt` if they are not what [`Histogram::encode`] gives.
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

    /// How many entries a range is to have.
    fn share(&self) -> u64 {
        (self.entry_count / SHARES).max(SHARE_MIN)
    }

    /// Whether a range that is not the last holds a key.
    fn is_within(&self, at: usize, key: &[u8]) -> bool {
        let end = self.buckets.get(at + 1);
        end.is_some_and(|end| key < end.from.as_slice()) && self.buckets[at].from.as_slice() <= key
    }

    /// Which range holds a key; the first, if it is below all.
    fn bucket_of(&self, key: &[u8]) -> usize {
        self.buckets.partition_point(|bucket| bucket.from.as_slice() <= key).saturating_sub(1)
    }

    /// Sees that `key` lies within the ranges: before the first one, beyond the last, or in a new one if that has its share.
    fn make_room(&mut self, key: &[u8], entry_count: u64) {
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
            let from = if self.buckets.is_empty() { key.to_vec() } else { between(&self.top, key) };
            self.buckets.push(Bucket { from, value_count: 0, entry_count: 0 });
        }
        self.top.clear();
        self.top.extend_from_slice(key);
        self.join_least();
    }

    /// Joins neighbours that have least together, until there are few enough ranges. The last is left alone: it may be new.
    fn join_least(&mut self) {
        while self.buckets.len() > BUCKETS_MAX {
            let pairs = self.buckets[..self.buckets.len() - 1].windows(2).enumerate();
            let least = pairs.min_by_key(|(_, pair)| pair[0].entry_count + pair[1].entry_count);
            let Some((at, _)) = least else { return };
            let joined = self.buckets.remove(at + 1);
            self.buckets[at].value_count += joined.value_count;
            self.buckets[at].entry_count += joined.entry_count;
        }
    }
}

/// The shortest bytes above `lower` and not above `upper`.
fn between(lower: &[u8], upper: &[u8]) -> Vec<u8> {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    upper[..upper.len().min(common + 1)].to_vec()
}

/// Which part of the way from `lower` to `upper` lies before `key`, were keys numbers: what they all begin with left out, the
/// next eight bytes.
fn place(lower: &[u8], upper: &[u8], key: &[u8]) -> f64 {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    if !key.starts_with(&lower[..common]) {
        return if key < lower { 0.0 } else { 1.0 };
    }
    let number = |bytes: &[u8]| {
        let mut eight = [0; 8];
        bytes.iter().skip(common).zip(&mut eight).for_each(|(byte, place)| *place = *byte);
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
