//! The server's memory for databases: one budget for caches and one for recent writes, divided among open databases.
//!
//! A quarter of each budget is divided evenly among all open databases, the rest among those that were used since the
//! last division. Shares are changed when a database is opened, and at intervals; small differences are ignored,
//! because a cache that shrinks loses what it holds.

use super::served::ServedDatabase;

/// Databases that were not used since the last division share this part of the budgets with all others.
const COMMON_PART: u64 = 4;

/// The most memory of one database for recent writes: more would only make its recovery slower.
const WRITES_MAX: u64 = 64 << 20;

/// A share is changed if it differs from the current one by more than this part.
const TOLERANCE: u64 = 4;

/// The budgets of the server, or the share of a database, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MemoryShare {
    pub(super) cache_bytes: u64,
    /// Memory for recent writes.
    pub(super) write_bytes: u64,
}

impl MemoryShare {
    /// Divides the budgets: returns the share of each database that is in use, and that of each other one.
    pub(super) fn divide(self, used_count: usize, unused_count: usize) -> (Self, Self) {
        let count = (used_count + unused_count).max(1) as u64;
        let part = |bytes: u64| (bytes / COMMON_PART / count, (bytes - bytes / COMMON_PART) / used_count.max(1) as u64);
        let ((unused_cache, more_cache), (unused_writes, more_writes)) =
            (part(self.cache_bytes), part(self.write_bytes));
        let unused = MemoryShare { cache_bytes: unused_cache, write_bytes: unused_writes };
        let write_bytes = (unused_writes + more_writes).min(WRITES_MAX);
        (MemoryShare { cache_bytes: unused_cache + more_cache, write_bytes }, unused)
    }

    /// Whether a database with the share `self` should keep it instead of getting `other`.
    fn is_close_to(self, other: Self) -> bool {
        let is_close = |now: u64, new: u64| now.abs_diff(new) <= now.max(new) / TOLERANCE;
        is_close(self.cache_bytes, other.cache_bytes) && is_close(self.write_bytes, other.write_bytes)
    }

    /// Gives the share to a database that has `current`; returns the one that it has then.
    pub(super) fn give(self, served: &ServedDatabase, current: Self) -> Self {
        if current.is_close_to(self) {
            return current;
        }
        let write_bytes = usize::try_from(self.write_bytes).unwrap_or(usize::MAX);
        served.database().maintenance().set_memory(self.cache_bytes, write_bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BUDGET: MemoryShare = MemoryShare { cache_bytes: 256 * MIB, write_bytes: 128 * MIB };

    #[test]
    fn shares_never_exceed_the_budget() {
        for (used, unused) in [(0, 0), (1, 0), (0, 1), (1, 499), (100, 400), (500, 0), (7, 13)] {
            let (share, rest) = BUDGET.divide(used, unused);
            let sum = |of: fn(MemoryShare) -> u64| of(share) * used as u64 + of(rest) * unused as u64;
            assert!(sum(|share| share.cache_bytes) <= BUDGET.cache_bytes, "{used} {unused}");
            assert!(sum(|share| share.write_bytes) <= BUDGET.write_bytes, "{used} {unused}");
        }
    }

    #[test]
    fn databases_in_use_get_most_of_it() {
        let (alone, _) = BUDGET.divide(1, 0);
        assert_eq!(alone, MemoryShare { cache_bytes: 256 * MIB, write_bytes: WRITES_MAX });
        let (busy, idle) = BUDGET.divide(1, 499);
        assert!(busy.cache_bytes > 190 * MIB && idle.cache_bytes < MIB);
        assert!(busy.is_close_to(BUDGET.divide(1, 400).0) && !busy.is_close_to(BUDGET.divide(2, 499).0));
    }
}
