//! How samples are spread, in buckets that are equally wide on a logarithmic axis.

use serde::{Deserialize, Serialize};

/// Buckets in a decade: each is a quarter wider than the one before.
const PER_DECADE: i32 = 10;

/// Counts of samples. Bucket `i` holds those from 10^((first + i) / 10) up to the next bucket's beginning, in the row's unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    first: i32,
    counts: Vec<u64>,
}

impl Histogram {
    /// The histogram of values above 0.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.add(bucket(value), 1));
        histogram
    }

    /// Adds what another one counts.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (at, count) in other.counts.iter().enumerate() {
            self.add(other.first + at as i32, *count);
        }
    }

    /// The share of all samples in each bucket, with the bucket's lower end; with the upper end of the last.
    pub(crate) fn shares(&self) -> Vec<(f64, f64)> {
        let sum: u64 = self.counts.iter().sum();
        let share = |count: u64| count as f64 / sum.max(1) as f64;
        let ends = (self.first..).map(|bucket| 10f64.powf(f64::from(bucket) / f64::from(PER_DECADE)));
        ends.zip(self.counts.iter().map(|count| share(*count)).chain([0.0])).collect()
    }

    /// The share of all samples that are below each bucket's upper end.
    pub(crate) fn cumulated(&self) -> Vec<(f64, f64)> {
        let mut sum = 0.0;
        let shares = self.shares();
        let below = |(share, next): (&(f64, f64), &(f64, f64))| {
            sum += share.1;
            (next.0, sum)
        };
        shares.iter().zip(&shares[1..]).map(below).collect()
    }

    fn add(&mut self, bucket: i32, count: u64) {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            let before = (self.first - bucket) as usize;
            self.counts.splice(0..0, std::iter::repeat_n(0, before));
            self.first = bucket;
        }
        let at = (bucket - self.first) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += count;
    }
}

fn bucket(value: f64) -> i32 {
    // A sample of nothing is in the bucket of the least that can be.
    (value.max(1e-6).log10() * f64::from(PER_DECADE)).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_in_the_bucket_they_begin() {
        let histogram = Histogram::of([10.0, 12.0, 100.0, 0.5]);
        let filled: Vec<(f64, f64)> = histogram.shares().into_iter().filter(|(_, share)| *share > 0.0).collect();
        assert_eq!(filled.len(), 3);
        assert!((filled[0].0 - 10f64.powf(-0.4)).abs() < 1e-9 && filled[0].1 == 0.25);
        assert!((filled[1].0 - 10.0).abs() < 1e-9 && filled[1].1 == 0.5);
        assert!((filled[2].0 - 100.0).abs() < 1e-9);
    }

    #[test]
    fn shares_add_up_to_all() {
        let cumulated = Histogram::of([10.0, 12.0, 100.0, 0.5]).cumulated();
        assert!((cumulated[0].1 - 0.25).abs() < 1e-9);
        assert!((cumulated.last().unwrap().1 - 1.0).abs() < 1e-9);
        assert!(cumulated.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1));
        assert!(Histogram::default().cumulated().is_empty());
    }

    #[test]
    fn merging_is_counting_together() {
        let mut one = Histogram::of([5.0, 70.0]);
        one.merge(&Histogram::of([0.2, 70.0, 9_000.0]));
        assert_eq!(one, Histogram::of([0.2, 5.0, 70.0, 70.0, 9_000.0]));
    }
}
