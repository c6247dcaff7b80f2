//! Read caches: documents, ids by number, and columns with histograms. The fourth cache, of the tree's blocks, belongs
//! to the tree. [`CacheShares`] divides `Options::cache_bytes` among the four.
//!
//! Nothing depends on a cached entry: what is missing is read from memtables, tree or log.

pub(crate) mod columns;
mod document_page;
pub(crate) mod documents;
mod histograms;
pub(crate) mod ids;
mod write_stamps;

pub(crate) use columns::Column;
use columns::ColumnCache;
pub(crate) use documents::CachedResult;
use documents::DocumentCache;
use ids::IdCache;

/// The tree gets at least this much: its block indexes and filters are not optional.
const TREE_BYTES_MIN: u64 = 16 << 20;

/// How `Options::cache_bytes` is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheShares {
    /// Documents by id and by number, and results of repeated lookups.
    pub(crate) document_bytes: u64,
    /// Ids by document number.
    pub(crate) id_bytes: u64,
    /// Columns and histograms.
    pub(crate) column_bytes: u64,
    /// Block indexes, filters and blocks of the tree.
    pub(crate) tree_bytes: u64,
}

impl CacheShares {
    /// Divides `bytes`: 4/16 documents, 2/16 ids, 6/16 columns, 4/16 tree. The tree's share has a minimum.
    pub(crate) fn of(bytes: u64) -> Self {
        let sixteenth = bytes / 16;
        CacheShares {
            document_bytes: 4 * sixteenth,
            id_bytes: 2 * sixteenth,
            column_bytes: 6 * sixteenth,
            tree_bytes: (4 * sixteenth).max(TREE_BYTES_MIN),
        }
    }
}

/// The caches of an open database, besides that of its tree.
pub(crate) struct ReadCaches {
    pub(crate) documents: DocumentCache,
    pub(crate) ids: IdCache,
    pub(crate) columns: ColumnCache,
}

impl ReadCaches {
    /// Creates caches that, with that of the tree, take at most `bytes_max`. No column is built whose estimated cost
    /// exceeds `column_cost_max` rows.
    pub(crate) fn new(bytes_max: u64, column_cost_max: u64) -> Self {
        let shares = CacheShares::of(bytes_max);
        ReadCaches {
            documents: DocumentCache::new(shares.document_bytes),
            ids: IdCache::new(shares.id_bytes),
            columns: ColumnCache::new(shares.column_bytes, column_cost_max),
        }
    }

    /// Changes the size of all caches besides that of the tree. A cache that was created without memory stays disabled.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        let shares = CacheShares::of(bytes_max);
        self.documents.set_bytes_max(shares.document_bytes);
        self.ids.set_bytes_max(shares.id_bytes);
        self.columns.set_bytes_max(shares.column_bytes);
    }

    /// Memory used, in bytes.
    pub(crate) fn byte_count(&self) -> u64 {
        self.documents.byte_count() + self.ids.byte_count() + self.columns.byte_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_budget() {
        for mebibytes in [64, 100, 256, 4_096] {
            let bytes = mebibytes << 20;
            let CacheShares { document_bytes, id_bytes, column_bytes, tree_bytes } = CacheShares::of(bytes);
            assert_eq!(document_bytes + id_bytes + column_bytes + tree_bytes, bytes);
        }
        assert_eq!(CacheShares::of(0).tree_bytes, TREE_BYTES_MIN);
        assert_eq!(ReadCaches::new(0, 0).byte_count(), 0);
    }
}
