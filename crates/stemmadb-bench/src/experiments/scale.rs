//! The amount of work of a run: four scales, and what `--documents` and `--iterations` change in them.

use crate::workload::shop::{SIZES, Size};

/// The anti-patterns' documents have exact shares of each value.
const PATTERN_STEP: u64 = 10_000;

/// Numbers of documents at which something is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts {
    Listed(&'static [u64]),
    /// As given by `--documents`.
    Single(u64),
}

impl Counts {
    /// Returns the numbers, ascending.
    pub(crate) fn to_vec(self) -> Vec<u64> {
        match self {
            Counts::Listed(counts) => counts.to_vec(),
            Counts::Single(count) => vec![count],
        }
    }

    /// Returns the smallest number.
    pub(crate) fn first(self) -> u64 {
        self.to_vec()[0]
    }
}

/// The amount of work of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) name: &'static str,
    pub(crate) document_count: u64,
    /// Repetitions of everything except bulk inserts.
    pub(crate) repetition_count: usize,
    pub(crate) bulk_repetition_count: usize,
    /// Documents per turn of single inserts, unflushed and flushed.
    pub(crate) unsynced_count: usize,
    pub(crate) synced_count: usize,
    /// Documents that each of 100 writers inserts per turn.
    pub(crate) each_writer_count: usize,
    /// Documents per turn that the writers of `batches` insert together.
    pub(crate) grouped_count: usize,
    /// Intended duration of a contender's turn, in milliseconds.
    pub(crate) turn_ms: u64,
    /// Database sizes of Barrel's queries and of the anti-patterns.
    pub(crate) query_counts: Counts,
    pub(crate) pattern_counts: Counts,
    /// Row counts of the summed views.
    pub(crate) view_counts: Counts,
    /// As `turn_ms`, for these queries.
    pub(crate) query_turn_ms: u64,
    /// Documents of the only shop; without it, there are the three sizes of the original.
    pub(crate) shop_count: Option<u64>,
    /// Shoppers per run of the shop.
    pub(crate) shopper_count: usize,
    /// Number of shop sizes that are also measured over the network.
    pub(crate) network_size_count: usize,
    /// Numbers of cars for lookups.
    pub(crate) car_counts: Counts,
    /// Numbers of records to encode, and runs of each scenario.
    pub(crate) record_counts: Counts,
    pub(crate) run_count: usize,
    /// Documents in the server's database.
    pub(crate) served_count: u64,
    /// Final number of documents of the growing database.
    pub(crate) growth_count: u64,
    /// Updates of a database with few documents.
    pub(crate) update_count: u64,
    /// Duration of the mixed load on the growing database.
    pub(crate) mixed_seconds: u64,
    /// Number of databases open at the same time.
    pub(crate) open_count: usize,
    /// How long databases are watched while nobody uses them.
    pub(crate) idle_seconds: u64,
}

/// Every experiment, in minutes.
pub(crate) const SMALL: Scale = Scale {
    name: "small",
    document_count: 100_000,
    repetition_count: 5,
    bulk_repetition_count: 3,
    unsynced_count: 20_000,
    synced_count: 2_000,
    each_writer_count: 50,
    grouped_count: 2_000,
    turn_ms: 100,
    query_counts: Counts::Listed(&[5_000, 100_000]),
    pattern_counts: Counts::Listed(&[20_000]),
    view_counts: Counts::Listed(&[1_000, 10_000, 100_000]),
    query_turn_ms: 20,
    shop_count: None,
    shopper_count: 100,
    network_size_count: 1,
    car_counts: Counts::Listed(&[1_000, 10_000]),
    record_counts: Counts::Listed(&[1_000, 10_000]),
    run_count: 10,
    served_count: 20_000,
    growth_count: 100_000,
    update_count: 200_000,
    mixed_seconds: 60,
    open_count: 500,
    idle_seconds: 5,
};

/// The scale that the targets refer to.
pub(crate) const FULL: Scale = Scale {
    name: "full",
    document_count: 1_000_000,
    repetition_count: 5,
    bulk_repetition_count: 3,
    unsynced_count: 100_000,
    synced_count: 5_000,
    each_writer_count: 200,
    grouped_count: 5_000,
    turn_ms: 500,
    query_counts: Counts::Listed(&[5_000, 100_000, 1_000_000]),
    pattern_counts: Counts::Listed(&[100_000, 1_000_000]),
    view_counts: Counts::Listed(&[1_000, 10_000, 100_000, 1_000_000]),
    query_turn_ms: 50,
    shop_count: None,
    shopper_count: 1_000,
    network_size_count: 3,
    car_counts: Counts::Listed(&[1_000, 10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 250_000]),
    record_counts: Counts::Listed(&[
        10, 100, 1_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000,
    ]),
    run_count: 10,
    served_count: 20_000,
    growth_count: 5_000_000,
    update_count: 2_000_000,
    mixed_seconds: 60,
    open_count: 10_000,
    idle_seconds: 60,
};

/// The largest scale: more documents in the growing database.
pub(crate) const HUGE: Scale = Scale { name: "huge", growth_count: 10_000_000, ..FULL };

/// Minimal run for tests; its figures are meaningless.
pub(crate) const TINY: Scale = Scale {
    name: "tiny",
    document_count: 3_000,
    repetition_count: 2,
    bulk_repetition_count: 1,
    unsynced_count: 100,
    synced_count: 20,
    each_writer_count: 2,
    grouped_count: 20,
    turn_ms: 1,
    query_counts: Counts::Listed(&[2_000]),
    pattern_counts: Counts::Listed(&[10_000]),
    view_counts: Counts::Listed(&[1_000]),
    query_turn_ms: 1,
    shop_count: None,
    shopper_count: 10,
    network_size_count: 1,
    car_counts: Counts::Listed(&[200, 400]),
    record_counts: Counts::Listed(&[100]),
    run_count: 2,
    served_count: 20_000,
    growth_count: 3_000,
    update_count: 3_000,
    mixed_seconds: 1,
    open_count: 10,
    idle_seconds: 1,
};

impl Scale {
    /// Returns the same scale with `count` documents in each database, or as few more as an experiment needs.
    pub(crate) fn with_documents(self, count: u64) -> Self {
        let single = Counts::Single(count);
        let written = usize::try_from(count).unwrap_or(usize::MAX);
        Scale {
            document_count: count,
            unsynced_count: written,
            // Flushes take milliseconds each.
            synced_count: written.min(self.synced_count),
            each_writer_count: (written / 100).clamp(1, self.each_writer_count),
            grouped_count: written,
            query_counts: single,
            pattern_counts: Counts::Single(count.next_multiple_of(PATTERN_STEP)),
            view_counts: single,
            shop_count: Some(count.max(Size::DOCUMENTS_MIN)),
            network_size_count: 1,
            car_counts: single,
            record_counts: single,
            served_count: count,
            growth_count: count,
            ..self
        }
    }

    /// Returns the same scale with `count` repetitions of each measurement; of the shop, with `count` shoppers.
    pub(crate) fn with_iterations(self, count: usize) -> Self {
        Scale { repetition_count: count, bulk_repetition_count: count, shopper_count: count, run_count: count, ..self }
    }

    /// Returns the shops to measure, smallest first.
    pub(crate) fn shop_sizes(self) -> Vec<Size> {
        self.shop_count.map_or_else(|| SIZES.to_vec(), |count| vec![Size::of_documents(count)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_repeat_the_ten_runs_of_the_original() {
        assert_eq!([SMALL, FULL, HUGE].map(|scale| scale.run_count), [10; 3]);
        assert_eq!(FULL.with_iterations(3).run_count, 3);
    }

    #[test]
    fn documents_replace_the_sizes_of_every_experiment() {
        let scale = FULL.with_documents(12_345);
        for counts in [scale.query_counts, scale.view_counts, scale.car_counts, scale.record_counts] {
            assert_eq!(counts.to_vec(), [12_345]);
        }
        assert_eq!(scale.pattern_counts.to_vec(), [20_000]);
        assert_eq!((scale.document_count, scale.growth_count, scale.served_count), (12_345, 12_345, 12_345));
        assert_eq!((scale.synced_count, scale.each_writer_count, scale.grouped_count), (5_000, 123, 12_345));
        let sizes = scale.shop_sizes();
        assert_eq!(sizes.len(), 1);
        assert!((12_000..12_700).contains(&sizes[0].document_count()), "{}", sizes[0].document_count());
        assert_eq!(FULL.shop_sizes().len(), 3);
    }
}
