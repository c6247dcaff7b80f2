//! Read caches: documents, cached results of repeated lookups, the id directory, columns and decoded histograms.
//!
//! Every bound is a share of `Options::cache_bytes`. Nothing depends on a cached entry: what is missing is read from
//! memtables, tree or log.

pub(crate) mod columns;
pub(crate) mod documents;
mod documents_by_number;
pub(crate) mod histograms;
pub(crate) mod id_directory;
mod results;

pub(crate) use columns::Column;
use columns::NewestColumns;
use documents::DocumentCache;
use histograms::HistogramCache;
use id_directory::IdDirectory;
pub(crate) use results::CachedResult;

/// The caches of an open database.
pub(crate) struct ReadCaches {
    pub(crate) documents: DocumentCache,
    pub(crate) id_directory: IdDirectory,
    pub(crate) columns: NewestColumns,
    pub(crate) histograms: HistogramCache,
}

impl ReadCaches {
    /// Creates caches of at most `bytes_max`. No column is built whose estimated cost exceeds `column_cost_max` rows.
    pub(crate) fn new(bytes_max: u64, column_cost_max: u64) -> Self {
        ReadCaches {
            documents: DocumentCache::new(bytes_max / 8 * 3),
            id_directory: IdDirectory::new(bytes_max / 8),
            columns: NewestColumns::new(bytes_max / 8 * 3, column_cost_max),
            histograms: HistogramCache::default(),
        }
    }
}
