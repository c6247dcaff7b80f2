//! Decoded histograms of large paths. Part of the column cache: both are read by path.

use std::sync::Arc;

use quick_cache::{Weighter, sync::Cache};

use crate::index::{Histogram, PathNumber};

/// Histograms with fewer values are decoded on each use.
const CACHED_VALUES_MIN: u64 = 64;
/// The size of an entry besides its histogram: key, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// A bounded cache of histograms.
pub(crate) struct HistogramCache(Cache<PathNumber, Arc<Histogram>, HistogramWeighter>);

#[derive(Clone)]
struct HistogramWeighter;

impl Weighter<PathNumber, Arc<Histogram>> for HistogramWeighter {
    fn weight(&self, _: &PathNumber, histogram: &Arc<Histogram>) -> u64 {
        ENTRY_OVERHEAD_BYTES + histogram.byte_count() as u64
    }
}

impl HistogramCache {
    /// Creates a cache of at most `bytes_max`.
    pub(super) fn new(bytes_max: u64) -> Self {
        HistogramCache(Cache::with_weighter(32, bytes_max.max(1), HistogramWeighter))
    }

    /// Changes the bound.
    pub(super) fn set_bytes_max(&self, bytes_max: u64) {
        self.0.set_capacity(bytes_max.max(1));
    }

    /// Memory used, in bytes.
    pub(super) fn byte_count(&self) -> u64 {
        self.0.weight()
    }

    pub(crate) fn get(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        self.0.get(&path)
    }

    /// Replaces the histogram of a path by one that a checkpoint has computed.
    pub(crate) fn replace(&self, path: PathNumber, histogram: &Histogram) {
        if histogram.value_count() >= CACHED_VALUES_MIN {
            self.0.insert(path, Arc::new(histogram.clone()));
        } else {
            self.0.remove(&path);
        }
    }

    /// Caches a histogram read from the tree, unless a checkpoint has cached a newer one.
    pub(crate) fn insert_if_absent(&self, path: PathNumber, histogram: &Arc<Histogram>) {
        if histogram.value_count() >= CACHED_VALUES_MIN {
            _ = self.0.get_or_insert_with(&path, || Ok::<_, std::convert::Infallible>(histogram.clone()));
        }
    }
}
