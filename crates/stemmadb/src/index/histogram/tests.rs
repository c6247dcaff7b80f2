//! Counts compared with an ordered map, and estimates for skewed distributions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Truth = BTreeMap<Vec<u8>, u64>;

fn key_of(number: u32) -> Vec<u8> {
    let mut key = Vec::new();
    crate::value::collate::key::encode_number(number.into(), &mut key);
    key
}

/// Adds values in the order of keys, as a merge does.
fn merge(histogram: &mut Histogram, truth: &mut Truth, changes: &BTreeMap<Vec<u8>, i64>) {
    for (key, change) in changes {
        let before = truth.get(key).copied().unwrap_or_default();
        let after = before.saturating_add_signed(*change);
        histogram.add(key, after as i64 - before as i64, i64::from(after > 0) - i64::from(before > 0));
        if after == 0 {
            truth.remove(key)
        } else {
            truth.insert(key.clone(), after)
        };
    }
    while let Some((from, to)) = histogram.overfull() {
        let values = truth.iter().filter(|(key, _)| **key >= from && to.as_ref().is_none_or(|to| *key < to));
        histogram.split(&from, values.map(|(key, count)| (key.as_slice(), *count)));
    }
}

fn truth_within(truth: &Truth, lower: &[u8], upper: &[u8]) -> (u64, u64) {
    let within = truth.iter().filter(|(key, _)| lower <= key.as_slice() && key.as_slice() < upper);
    within.fold((0, 0), |(values, entries), (_, count)| (values + 1, entries + count))
}

fn check(histogram: &Histogram, truth: &Truth) {
    assert!(histogram.buckets.len() <= BUCKETS_MAX);
    assert_eq!(histogram.entry_count(), truth.values().sum::<u64>());
    assert_eq!(histogram.value_count(), truth.len() as u64);
    assert_eq!(histogram.entry_count, histogram.buckets.iter().map(|bucket| bucket.entry_count).sum::<u64>());
    let mut bytes = Vec::new();
    histogram.encode(&mut bytes);
    assert_eq!(&Histogram::decode(&bytes).unwrap(), histogram);
    // The counts of each range are exact.
    for (at, bucket) in histogram.buckets.iter().enumerate() {
        let end = histogram.buckets.get(at + 1).map_or_else(|| vec![u8::MAX], |next| next.from.clone());
        assert_eq!((bucket.value_count, bucket.entry_count), truth_within(truth, &bucket.from, &end));
    }
    let share = histogram.share();
    assert!(histogram.buckets.iter().all(|bucket| bucket.entry_count <= 2 * share || bucket.value_count == 1));
}

/// The error of an estimate is at most the entries of the two ranges that its bounds cut.
fn check_estimates(histogram: &Histogram, truth: &Truth, bounds: &[(u32, u32)]) {
    for (a, b) in bounds {
        let (lower, upper) = (key_of(*a.min(b)), key_of(*a.max(b)));
        let (_, entries) = truth_within(truth, &lower, &upper);
        let estimated = histogram.estimate(&lower, &upper).entries;
        let cut: u64 = [&lower, &upper]
            .map(|bound| histogram.buckets.get(histogram.bucket_of(bound)).map_or(0, |bucket| bucket.entry_count))
            .iter()
            .sum();
        assert!(
            (estimated - entries as f64).abs() <= cut as f64 + 1e-6,
            "{estimated} for {entries}, {cut} in cut ranges"
        );
    }
}

proptest! {
    #[test]
    fn counts_are_exact_and_estimates_err_by_two_ranges_at_most(
        merges in prop::collection::vec(prop::collection::btree_map(0..2000u32, -20..200i64, 0..300), 1..6),
        bounds in prop::collection::vec((0..2000u32, 0..2000u32), 20),
    ) {
        let (mut histogram, mut truth) = (Histogram::default(), Truth::new());
        for changes in merges {
            let changes = changes.into_iter().map(|(number, change)| (key_of(number), change)).collect();
            merge(&mut histogram, &mut truth, &changes);
            check(&histogram, &truth);
            check_estimates(&histogram, &truth, &bounds);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(histogram) = Histogram::decode(&bytes) {
            histogram.estimate(b"a", b"b");
            histogram.overfull();
            let mut again = Vec::new();
            histogram.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

/// A distribution of values: how many documents have each.
fn distribution(kind: &str) -> Truth {
    let count = |number: u32| match kind {
        "constant" => {
            if number == 7 {
                100_000
            } else {
                0
            }
        }
        "uniform" => 10,
        "zipf" => 100_000 / u64::from(number + 1),
        "unique" => 1,
        "timestamp" => 1,
        other => panic!("unknown distribution {other}"),
    };
    (0..10_000).map(|number| (key_of(number), count(number))).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn estimates_of_skewed_values_err_by_a_few_percent() {
    for kind in ["constant", "uniform", "zipf", "unique", "timestamp"] {
        let (mut histogram, mut truth) = (Histogram::default(), Truth::new());
        // Values arrive in four merges: interleaved, or in order for timestamps.
        for turn in 0..4 {
            let values = distribution(kind).into_iter().enumerate();
            let is_in_turn = |at: usize| if kind == "timestamp" { at / 2_500 == turn } else { at % 4 == turn };
            let changes =
                values.filter(|(at, _)| is_in_turn(*at)).map(|(_, (key, count))| (key, count as i64)).collect();
            merge(&mut histogram, &mut truth, &changes);
        }
        check(&histogram, &truth);
        let all = histogram.entry_count() as f64;
        for (a, b) in [(0, 10), (0, 5_000), (100, 200), (2_000, 9_000), (7, 8), (9_990, 10_000), (5_000, 20_000)] {
            let (lower, upper) = (key_of(a), key_of(b));
            let (_, entries) = truth_within(&truth, &lower, &upper);
            let estimated = histogram.estimate(&lower, &upper).entries;
            let error = (estimated - entries as f64).abs() / all;
            let error_max = if kind == "constant" { 1.0 } else { 0.04 };
            assert!(error <= error_max, "{kind} {a}..{b}: {estimated} for {entries} of {all}");
        }
    }
}
