//! Histograms with buckets of equal width on a logarithmic axis.

use serde::{Deserialize, Serialize};

/// Buckets per decade; each is about 26 % wider than the previous one.
const PER_DECADE: i32 = 10;

/// Sample counts. Bucket `i` starts at 10^((first + i) / 10), in the row's unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    first: i32,
    counts: Vec<u64>,
}

impl Histogram {
    /// Builds the histogram of positive values.
    pub(crate) fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.add(bucket(value), 1));
        histogram
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (at, count) in other.counts.iter().enumerate() {
            self.add(other.first + at as i32, *count);
        }
    }

    /// Returns each bucket's lower bound with its share of the samples, ending with the last upper bound and 0.
    pub(crate) fn shares(&self) -> Vec<(f64, f64)> {
        let sum: u64 = self.counts.iter().sum();
        let share = |count: u64| count as f64 / sum.max(1) as f64;
        let ends = (self.first..).map(|bucket| 10f64.powf(f64::from(bucket) / f64::from(PER_DECADE)));
        ends.zip(self.counts.iter().map(|count| share(*count)).chain([0.0])).collect()
    }

    /// Returns each bucket's upper bound with the share of samples below it.
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
    // Zero falls into the lowest bucket.
    (value.max(1e-6).log10() * f64::from(PER_DECADE)).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fall_into_their_buckets() {
        let histogram = Histogram::from_values([10.0, 12.0, 100.0, 0.5]);
        let filled: Vec<(f64, f64)> = histogram.shares().into_iter().filter(|(_, share)| *share > 0.0).collect();
        assert_eq!(filled.len(), 3);
        assert!((filled[0].0 - 10f64.powf(-0.4)).abs() < 1e-9 && filled[0].1 == 0.25);
        assert!((filled[1].0 - 10.0).abs() < 1e-9 && filled[1].1 == 0.5);
        assert!((filled[2].0 - 100.0).abs() < 1e-9);
    }

    #[test]
    fn cumulative_shares_end_at_one() {
        let cumulated = Histogram::from_values([10.0, 12.0, 100.0, 0.5]).cumulated();
        assert!((cumulated[0].1 - 0.25).abs() < 1e-9);
        assert!((cumulated.last().unwrap().1 - 1.0).abs() < 1e-9);
        assert!(cumulated.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1));
        assert!(Histogram::default().cumulated().is_empty());
    }

    #[test]
    fn merge_adds_counts() {
        let mut one = Histogram::from_values([5.0, 70.0]);
        one.merge(&Histogram::from_values([0.2, 70.0, 9_000.0]));
        assert_eq!(one, Histogram::from_values([0.2, 5.0, 70.0, 70.0, 9_000.0]));
    }
}
