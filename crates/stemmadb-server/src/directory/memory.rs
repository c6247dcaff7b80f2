//! The server's memory for databases: one budget for caches and one for recent writes, divided among open databases.
//!
//! A quarter of each budget is divided evenly among all open databases, the rest among those that were used since the
//! last division. Shares are changed when a database is opened, and at intervals; small differences are ignored,
//! because a cache that shrinks loses what it holds.

use stemmadb::Options;

use super::served::ServedDatabase;
use crate::config::Config;

/// Databases that were not used since the last division share this part of the budgets with all others.
const COMMON_PART: u64 = 4;

/// The most memory of one database for recent writes: more would only make its recovery slower.
const WRITES_MAX: u64 = 64 << 20;

/// A share is changed if it differs from the current one by more than this part.
const TOLERANCE: u64 = 4;

/// The budgets of the server, or the share of a database, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MemoryShare {
    /// Memory for caches of indexes.
    pub(super) index_bytes: u64,
    /// Memory for caches of documents.
    pub(super) document_bytes: u64,
    /// Memory for recent writes.
    pub(super) write_bytes: u64,
}

impl MemoryShare {
    /// The budgets of the server.
    pub(super) fn configured(config: &Config) -> Self {
        let quarter = config.cache_bytes / 4;
        MemoryShare {
            index_bytes: config.index_cache_bytes.unwrap_or(3 * quarter),
            document_bytes: config.document_cache_bytes.unwrap_or(quarter),
            write_bytes: config.memory_bytes,
        }
    }

    fn cache_bytes(self) -> u64 {
        self.index_bytes + self.document_bytes
    }

    /// The options of a database with this share.
    pub(super) fn options(self, options: Options) -> Options {
        options
            .index_cache_bytes(self.index_bytes)
            .document_cache_bytes(self.document_bytes)
            .memory_bytes(self.memtable_bytes())
    }

    /// Memory for recent writes, as the library takes it.
    fn memtable_bytes(self) -> usize {
        usize::try_from(self.write_bytes).unwrap_or(usize::MAX)
    }

    /// Divides the budgets: returns the share of each database that is in use, and that of each other one.
    pub(super) fn divide(self, used_count: usize, unused_count: usize) -> (Self, Self) {
        let count = (used_count + unused_count).max(1) as u64;
        let part = |bytes: u64| (bytes / COMMON_PART / count, (bytes - bytes / COMMON_PART) / used_count.max(1) as u64);
        let [index, documents, writes] = [self.index_bytes, self.document_bytes, self.write_bytes].map(part);
        let unused = MemoryShare { index_bytes: index.0, document_bytes: documents.0, write_bytes: writes.0 };
        let used = MemoryShare {
            index_bytes: index.0 + index.1,
            document_bytes: documents.0 + documents.1,
            write_bytes: (writes.0 + writes.1).min(WRITES_MAX),
        };
        (used, unused)
    }

    /// Whether a database with the share `self` should keep it instead of getting `other`.
    fn is_close_to(self, other: Self) -> bool {
        let is_close = |now: u64, new: u64| now.abs_diff(new) <= now.max(new) / TOLERANCE;
        is_close(self.cache_bytes(), other.cache_bytes()) && is_close(self.write_bytes, other.write_bytes)
    }

    /// Gives the share to a database that has `current`; returns the one that it has then.
    pub(super) fn give(self, served: &ServedDatabase, current: Self) -> Self {
        if current.is_close_to(self) {
            return current;
        }
        served.database().maintenance().set_memory(self.cache_bytes(), self.memtable_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BUDGET: MemoryShare =
        MemoryShare { index_bytes: 192 * MIB, document_bytes: 64 * MIB, write_bytes: 128 * MIB };

    #[test]
    fn shares_never_exceed_the_budget() {
        for (used, unused) in [(0, 0), (1, 0), (0, 1), (1, 499), (100, 400), (500, 0), (7, 13)] {
            let (share, rest) = BUDGET.divide(used, unused);
            let sum = |of: fn(MemoryShare) -> u64| of(share) * used as u64 + of(rest) * unused as u64;
            assert!(sum(MemoryShare::cache_bytes) <= BUDGET.cache_bytes(), "{used} {unused}");
            assert!(sum(|share| share.document_bytes) <= BUDGET.document_bytes, "{used} {unused}");
            assert!(sum(|share| share.write_bytes) <= BUDGET.write_bytes, "{used} {unused}");
        }
    }

    #[test]
    fn databases_in_use_get_most_of_it() {
        let (alone, _) = BUDGET.divide(1, 0);
        assert_eq!(alone, MemoryShare { write_bytes: WRITES_MAX, ..BUDGET });
        let (busy, idle) = BUDGET.divide(1, 499);
        assert!(busy.cache_bytes() > 190 * MIB && idle.cache_bytes() < MIB);
        assert!(busy.is_close_to(BUDGET.divide(1, 400).0) && !busy.is_close_to(BUDGET.divide(2, 499).0));
    }
}
