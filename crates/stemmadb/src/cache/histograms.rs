//! A cache of decoded histograms of large paths.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::index::{Histogram, PathNumber};
use crate::sync::RwLock;

/// Histograms with fewer values are decoded on each use.
const CACHED_VALUES_MIN: u64 = 64;
/// The maximum number of cached histograms, a few kilobytes each.
const CACHED_MAX: usize = 4_096;

/// Decoded histograms of large paths.
#[derive(Default)]
pub(crate) struct HistogramCache(RwLock<HashMap<PathNumber, Arc<Histogram>>>);

impl HistogramCache {
    pub(crate) fn get(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        self.0.read().get(&path).cloned()
    }

    pub(crate) fn note(&self, path: PathNumber, histogram: &Histogram) {
        let mut histograms = self.0.write();
        let is_cached = histogram.value_count() >= CACHED_VALUES_MIN;
        if is_cached && (histograms.len() < CACHED_MAX || histograms.contains_key(&path)) {
            histograms.insert(path, Arc::new(histogram.clone()));
        } else {
            histograms.remove(&path);
        }
    }

    /// Caches a histogram read from the tree, unless a checkpoint has cached a newer one.
    pub(crate) fn remember(&self, path: PathNumber, histogram: &Arc<Histogram>) {
        if histogram.value_count() < CACHED_VALUES_MIN {
            return;
        }
        let mut histograms = self.0.write();
        if histograms.len() < CACHED_MAX {
            histograms.entry(path).or_insert_with(|| histogram.clone());
        }
    }
}
