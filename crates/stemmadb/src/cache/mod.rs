//! Read caches: documents, ids by number, and columns with histograms. The fourth cache, of the tree's blocks, belongs
//! to the tree. [`CacheShares`] divides the budgets of index and documents among the four.
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

/// The memory of the caches of an index and of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheBudgets {
    pub(crate) index_bytes: u64,
    pub(crate) document_bytes: u64,
}

impl CacheBudgets {
    /// Divides `bytes`: a quarter for documents, the rest for the index. A budget of its own replaces either.
    pub(crate) fn of(bytes: u64, index_bytes: Option<u64>, document_bytes: Option<u64>) -> Self {
        let sixteenth = bytes / 16;
        CacheBudgets {
            index_bytes: index_bytes.unwrap_or(12 * sixteenth),
            document_bytes: document_bytes.unwrap_or(4 * sixteenth),
        }
    }

    /// Budgets of `bytes` in total, in the same proportion.
    pub(crate) fn scaled_to(self, bytes: u64) -> Self {
        let total = u128::from(self.index_bytes) + u128::from(self.document_bytes);
        if total == 0 {
            return Self::of(bytes, None, None);
        }
        let index_bytes = (u128::from(bytes) * u128::from(self.index_bytes) / total) as u64;
        CacheBudgets { index_bytes, document_bytes: bytes - index_bytes }
    }
}

/// How the budgets are divided.
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
    /// Divides the budget of the index: 2/12 ids, 6/12 columns, 4/12 tree. The tree's share has a minimum.
    pub(crate) fn of(budgets: CacheBudgets) -> Self {
        let twelfth = budgets.index_bytes / 12;
        CacheShares {
            document_bytes: budgets.document_bytes,
            id_bytes: 2 * twelfth,
            column_bytes: 6 * twelfth,
            tree_bytes: (4 * twelfth).max(TREE_BYTES_MIN),
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
    /// Creates caches that, with that of the tree, keep within the budgets. No column is built whose estimated cost
    /// exceeds `column_cost_max` rows.
    pub(crate) fn new(budgets: CacheBudgets, column_cost_max: u64) -> Self {
        let shares = CacheShares::of(budgets);
        ReadCaches {
            documents: DocumentCache::new(shares.document_bytes),
            ids: IdCache::new(shares.id_bytes),
            columns: ColumnCache::new(shares.column_bytes, column_cost_max),
        }
    }

    /// Changes the size of all caches besides that of the tree. A cache that was created without memory stays disabled.
    pub(crate) fn set_bytes_max(&self, shares: CacheShares) {
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
            let CacheShares { document_bytes, id_bytes, column_bytes, tree_bytes } =
                CacheShares::of(CacheBudgets::of(bytes, None, None));
            assert_eq!(document_bytes + id_bytes + column_bytes + tree_bytes, bytes);
        }
        let nothing = CacheBudgets::of(0, None, None);
        assert_eq!(CacheShares::of(nothing).tree_bytes, TREE_BYTES_MIN);
        assert_eq!(ReadCaches::new(nothing, 0).byte_count(), 0);
    }

    #[test]
    fn scaled_budgets_keep_their_proportion() {
        let budgets = CacheBudgets { index_bytes: 30, document_bytes: 10 };
        assert_eq!(budgets.scaled_to(400), CacheBudgets { index_bytes: 300, document_bytes: 100 });
        let index_only = CacheBudgets::of(0, Some(7), Some(0)).scaled_to(u64::MAX);
        assert_eq!(index_only, CacheBudgets { index_bytes: u64::MAX, document_bytes: 0 });
        assert_eq!(CacheBudgets::of(0, None, None).scaled_to(64), CacheBudgets::of(64, None, None));
    }

    #[test]
    fn budgets_of_index_and_documents_are_separate() {
        let (total, own) = (256 << 20, 120 << 20);
        let both = CacheBudgets::of(total, None, None);
        assert_eq!((both.index_bytes, both.document_bytes), (192 << 20, 64 << 20));
        let index_only = CacheShares::of(CacheBudgets::of(total, Some(own), Some(0)));
        assert_eq!(index_only.document_bytes, 0);
        assert_eq!(index_only.id_bytes + index_only.column_bytes + index_only.tree_bytes, own);
        let documents_only = CacheShares::of(CacheBudgets::of(total, Some(0), Some(own)));
        assert_eq!(
            documents_only,
            CacheShares { document_bytes: own, id_bytes: 0, column_bytes: 0, tree_bytes: TREE_BYTES_MIN }
        );
    }
}
