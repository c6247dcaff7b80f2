//! Decoded histograms of large paths.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::index::{Histogram, PathNumber};
use crate::sync::RwLock;

/// Histograms with fewer values are decoded whenever they are asked for.
const KEPT_VALUES_MIN: u64 = 64;
/// So many are kept decoded, a few kilobytes each.
const KEPT_MAX: usize = 4_096;

/// Histograms of large paths, decoded.
#[derive(Default)]
pub(crate) struct HistogramCache(RwLock<HashMap<PathNumber, Arc<Histogram>>>);

impl HistogramCache {
    pub(crate) fn get(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        self.0.read().get(&path).cloned()
    }

    pub(crate) fn note(&self, path: PathNumber, histogram: &Histogram) {
        let mut kept = self.0.write();
        let is_kept = histogram.value_count() >= KEPT_VALUES_MIN;
        if is_kept && (kept.len() < KEPT_MAX || kept.contains_key(&path)) {
            kept.insert(path, Arc::new(histogram.clone()));
        } else {
            kept.remove(&path);
        }
    }

    /// What was found in the tree; not put over what a checkpoint has noted since.
    pub(crate) fn remember(&self, path: PathNumber, histogram: &Arc<Histogram>) {
        if histogram.value_count() < KEPT_VALUES_MIN {
            return;
        }
        let mut kept = self.0.write();
        if kept.len() < KEPT_MAX {
            kept.entry(path).or_insert_with(|| histogram.clone());
        }
    }
}
