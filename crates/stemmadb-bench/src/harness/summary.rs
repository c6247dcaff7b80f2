//! Summary statistics of samples: median, 99th percentile, spread.
//!
//! A sample is a cost (nanoseconds per operation, bytes per document), and lower is better. Rates are converted only
//! for display, where "p99" is the slow end, as for times.

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;

/// Samples of one contender, by repetition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    repetitions: Vec<Vec<f64>>,
}

/// The unit in which a row is displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Unit {
    /// Nanoseconds per operation.
    #[default]
    Nanoseconds,
    /// Microseconds per operation.
    Microseconds,
    /// Milliseconds in total.
    Milliseconds,
    /// Operations per second, from samples in nanoseconds per operation.
    PerSecond(&'static str),
    /// The sample itself; lower is better.
    Amount(&'static str),
    /// The sample itself; higher is better.
    Share(&'static str),
}

/// Statistics of one contender's samples, in the row's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The median of all samples.
    pub(crate) p50: f64,
    /// The value that 99 % of the samples do not exceed (for rates: do not fall below).
    pub(crate) p99: f64,
    /// Range of the repetitions' medians, as a share of `p50`.
    pub(crate) spread: f64,
    /// Rows per second at the median, for answers with rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows_per_s: Option<f64>,
    /// The quartiles, better one first, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quartiles: Option<[f64; 2]>,
    /// The mean of all samples, and the least of them, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) minimum: Option<f64>,
}

impl Samples {
    /// Starts a new repetition.
    pub(crate) fn begin_repetition(&mut self) {
        self.repetitions.push(Vec::new());
    }

    /// Adds a cost to the current repetition.
    pub(crate) fn push(&mut self, cost: f64) {
        if self.repetitions.is_empty() {
            self.begin_repetition();
        }
        self.repetitions.last_mut().expect("begun above").push(cost);
    }

    /// Adds a repetition with a single cost.
    pub(crate) fn push_repetition(&mut self, cost: f64) {
        self.repetitions.push(vec![cost]);
    }

    /// Creates samples with one repetition per cost.
    pub(crate) fn from_costs(costs: impl IntoIterator<Item = f64>) -> Self {
        Samples { repetitions: costs.into_iter().map(|cost| vec![cost]).collect() }
    }

    /// Returns the number of samples.
    pub(crate) fn count(&self) -> usize {
        self.repetitions.iter().map(Vec::len).sum()
    }

    /// Returns the histogram of all samples in `unit`.
    pub(crate) fn histogram(&self, unit: Unit) -> Histogram {
        Histogram::from_values(self.repetitions.iter().flatten().map(|sample| unit.convert(*sample)))
    }

    /// Returns the summary in `unit`. Requires at least one sample.
    pub(crate) fn summary(&self, unit: Unit) -> Summary {
        let mut all: Vec<f64> = self.repetitions.iter().flatten().copied().collect();
        assert!(!all.is_empty(), "a contender without samples has no summary");
        let p50 = percentile(&mut all, 50.0);
        let slow = if unit.more_is_better() { 1.0 } else { 99.0 };
        let p99 = percentile(&mut all, slow);
        // Slow contenders may have empty repetitions.
        let medians =
            self.repetitions.iter().filter(|one| !one.is_empty()).map(|one| percentile(&mut one.clone(), 50.0));
        let (low, high) = medians.fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(one), high.max(one)));
        let spread = if p50 > 0.0 { (high - low) / p50 } else { 0.0 };
        Summary {
            p50: unit.show(p50),
            p99: unit.show(p99),
            spread: round(spread, 2),
            rows_per_s: None,
            quartiles: None,
            mean: None,
            minimum: None,
        }
    }
}

impl Summary {
    /// Adds mean, minimum and quartiles of the summarized samples.
    pub(super) fn with_distribution(self, samples: &Samples, unit: Unit) -> Self {
        let mut all: Vec<f64> = samples.repetitions.iter().flatten().copied().collect();
        let quartiles = [25.0, 75.0].map(|percent| unit.show(percentile(&mut all, percent)));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        // `percentile` has sorted them.
        Summary { quartiles: Some(quartiles), mean: Some(unit.show(mean)), minimum: Some(unit.show(all[0])), ..self }
    }

    /// Adds the rate of rows, for answers with `rows` rows.
    pub(super) fn with_rows(self, rows: Option<u64>, unit: Unit) -> Self {
        let seconds = match unit {
            Unit::Nanoseconds => Some(self.p50 / 1e9),
            Unit::Microseconds => Some(self.p50 / 1e6),
            Unit::Milliseconds => Some(self.p50 / 1e3),
            Unit::PerSecond(_) | Unit::Amount(_) | Unit::Share(_) => None,
        };
        let rows_per_s = rows.zip(seconds).map(|(rows, seconds)| significant(rows as f64 / seconds, 4));
        Summary { rows_per_s, ..self }
    }
}

impl Unit {
    /// Returns the unit's name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::Milliseconds => "ms",
            Unit::PerSecond(name) | Unit::Amount(name) | Unit::Share(name) => name,
        }
    }

    /// Returns how many times better `ours` is than `theirs`, both in display units.
    pub(crate) fn ratio(self, ours: f64, theirs: f64) -> f64 {
        let shown_more_is_better = matches!(self, Unit::PerSecond(_) | Unit::Share(_));
        let ratio = if shown_more_is_better { ours / theirs } else { theirs / ours };
        significant(ratio, 3)
    }

    /// Whether a higher *sample* is better. Samples of rates are times.
    fn more_is_better(self) -> bool {
        matches!(self, Unit::Share(_))
    }

    fn show(self, sample: f64) -> f64 {
        significant(self.convert(sample), 4)
    }

    /// Converts a sample to this unit.
    fn convert(self, sample: f64) -> f64 {
        match self {
            Unit::Nanoseconds | Unit::Amount(_) | Unit::Share(_) => sample,
            Unit::Microseconds => sample / 1e3,
            Unit::Milliseconds => sample / 1e6,
            Unit::PerSecond(_) => 1e9 / sample,
        }
    }
}

/// Returns the nearest-rank percentile (the mean of both middle samples for the median); sorts `samples`.
fn percentile(samples: &mut [f64], percent: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    if percent == 50.0 && samples.len().is_multiple_of(2) {
        let upper = samples.len() / 2;
        return (samples[upper - 1] + samples[upper]) / 2.0;
    }
    let rank = (percent / 100.0 * samples.len() as f64).ceil() as usize;
    samples[rank.clamp(1, samples.len()) - 1]
}

fn round(number: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (number * scale).round() / scale
}

/// Rounds to significant digits.
fn significant(number: f64, digits: i32) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let decimals = digits - 1 - number.abs().log10().floor() as i32;
    if decimals >= 0 { round(number, decimals) } else { number.round() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_nearest_rank() {
        let samples = Samples { repetitions: vec![(1..=100).map(f64::from).collect()] };
        let summary = samples.summary(Unit::Nanoseconds);
        assert_eq!((summary.p50, summary.p99, summary.spread), (50.5, 99.0, 0.0));
    }

    #[test]
    fn spread_is_between_repetitions_not_within_them() {
        let samples = Samples { repetitions: vec![vec![90.0, 100.0, 200.0], vec![120.0]] };
        assert_eq!(samples.summary(Unit::Nanoseconds).spread, round(20.0 / 110.0, 2));
    }

    #[test]
    fn distributions_have_mean_minimum_and_quartiles() {
        let samples = Samples::from_costs([8e3, 1e3, 2e3, 3e3]);
        let summary = samples.summary(Unit::Microseconds).with_distribution(&samples, Unit::Microseconds);
        assert_eq!((summary.mean, summary.minimum, summary.quartiles), (Some(3.5), Some(1.0), Some([1.0, 3.0])));
    }

    #[test]
    fn rates_are_derived_from_times() {
        let samples = Samples::from_costs([1e6, 1e6, 2e6]);
        let summary = samples.summary(Unit::PerSecond("documents/s"));
        assert_eq!((summary.p50, summary.p99), (1_000.0, 500.0));
    }

    #[test]
    fn ratios_above_one_favor_stemma_in_every_unit() {
        assert_eq!(Unit::PerSecond("documents/s").ratio(1_000.0, 100.0), 10.0);
        assert_eq!(Unit::Microseconds.ratio(1.0, 10.0), 10.0);
        assert_eq!(Unit::Amount("bytes").ratio(400.0, 100.0), 0.25);
        assert_eq!(Unit::Share("documents/flush").ratio(60.0, 30.0), 2.0);
    }

    #[test]
    fn numbers_keep_significant_digits() {
        assert_eq!(significant(1_234.567, 4), 1_235.0);
        assert_eq!(significant(0.012_345_6, 3), 0.0123);
        assert_eq!(significant(123_456.7, 4), 123_457.0);
    }
}
