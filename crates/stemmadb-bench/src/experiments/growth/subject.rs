//! The measured engines of this experiment: Stemma with default options, and SQLite with an index on each field. A
//! commit is flushed in both.

use std::path::Path;
use std::time::{Duration, Instant};

use super::request::EngineName;
use crate::Result;
use crate::engine::{AccessPath, Caching, Engine, Layout, QueryRunner, Sqlite, Stemma};
use crate::harness::{processor_ns, thread_processor_ns};
use crate::workload::{Condition, Events, QuerySpec};

/// Interval at which a database is asked whether its upkeep is quiet.
const POLL: Duration = Duration::from_millis(50);
/// How long nothing may change until upkeep counts as quiet. Upkeep begins 300 ms after the last write.
const QUIET: Duration = Duration::from_secs(1);
/// When waiting for upkeep ends at the latest.
const QUIET_MAX: Duration = Duration::from_secs(900);
/// Processor time of other threads in one interval above which upkeep runs. Tests run beside each other.
const POLL_NS_MAX: u64 = if cfg!(test) { 1_000_000_000 } else { 1_000_000 };

/// An open database.
pub(super) enum Subject {
    Stemma(Stemma),
    Sqlite(Sqlite),
}

/// SQLite with an index on every field, as in Stemma.
pub(super) fn layout() -> Layout {
    Layout { name: super::SQLITE, indexed: Events::fields().into(), without_rowid: false, synced: true }
}

impl Subject {
    /// Opens the database at `path`, creating it if needed.
    pub(super) fn open(engine: EngineName, path: &Path, caching: Caching) -> Result<Self> {
        Ok(match engine {
            EngineName::Stemma => Subject::Stemma(Stemma::open(path, true, caching)?),
            EngineName::Sqlite if path.exists() => Subject::Sqlite(Sqlite::open(path, &layout())?),
            EngineName::Sqlite => Subject::Sqlite(Sqlite::create(path, &layout())?),
        })
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        match self {
            Subject::Stemma(stemma) => stemma,
            Subject::Sqlite(sqlite) => sqlite,
        }
    }

    /// Prepares queries; SQLite has to use `access`.
    pub(super) fn query_runner(&self, specs: &[QuerySpec], access: AccessPath) -> Result<QueryRunner<'_>> {
        match self {
            Subject::Stemma(stemma) => stemma.query_runner(specs),
            Subject::Sqlite(sqlite) => sqlite.query_runner(specs, access),
        }
    }

    pub(super) fn insert(&self, documents: &[(&str, &str)]) -> Result<()> {
        match self {
            Subject::Stemma(stemma) => stemma.insert(documents),
            Subject::Sqlite(sqlite) => sqlite.insert(documents),
        }
    }

    pub(super) fn document_count(&self) -> Result<u64> {
        match self {
            Subject::Stemma(stemma) => stemma.document_count(),
            Subject::Sqlite(sqlite) => sqlite.document_count(),
        }
    }

    pub(super) fn group_counts(&self, condition: &Condition, field: &str) -> Result<Vec<(String, u64)>> {
        match self {
            Subject::Stemma(stemma) => stemma.group_counts(condition, field),
            Subject::Sqlite(sqlite) => sqlite.group_counts(condition, field),
        }
    }

    pub(super) fn sum(&self, condition: &Condition, field: &str) -> Result<i64> {
        match self {
            Subject::Stemma(stemma) => stemma.sum(condition, field),
            Subject::Sqlite(sqlite) => sqlite.sum(condition, field),
        }
    }

    /// Waits until all upkeep is done; returns how long that took. SQLite's upkeep is a checkpoint of its log.
    pub(super) fn settle(&self) -> Result<Duration> {
        match self {
            Subject::Stemma(stemma) => settle(|| sizes(stemma)),
            Subject::Sqlite(sqlite) => {
                let start = Instant::now();
                sqlite.checkpoint()?;
                Ok(start.elapsed())
            }
        }
    }

    pub(super) fn close(self) -> Result<()> {
        match self {
            Subject::Stemma(stemma) => stemma.close(),
            Subject::Sqlite(sqlite) => sqlite.close(),
        }
    }
}

/// The size of the tree's files beside that of its newest state.
pub(super) fn tree_share(stemma: &Stemma) -> Result<f64> {
    let info = stemma.database().info()?;
    Ok(info.tree_bytes as f64 / info.tree_live_bytes.max(1) as f64)
}

fn sizes(stemma: &Stemma) -> Result<[u64; 4]> {
    let info = stemma.database().info()?;
    Ok([info.memory_bytes, info.log_bytes, info.tree_bytes, info.tree_live_bytes])
}

/// Waits until `state` did not change for a while and no other thread of this process ran; returns when that began.
pub(super) fn settle<S: PartialEq>(mut state: impl FnMut() -> Result<S>) -> Result<Duration> {
    let others_ns = || processor_ns().saturating_sub(thread_processor_ns());
    let start = Instant::now();
    let (mut changed, mut last, mut last_ns) = (start, state()?, others_ns());
    while changed.elapsed() < QUIET {
        std::thread::sleep(POLL);
        let (next, next_ns) = (state()?, others_ns());
        if next != last || next_ns.saturating_sub(last_ns) > POLL_NS_MAX {
            changed = Instant::now();
        }
        (last, last_ns) = (next, next_ns);
        if start.elapsed() > QUIET_MAX {
            eprintln!("warning: upkeep is not quiet after {} s", QUIET_MAX.as_secs());
            break;
        }
    }
    Ok(changed - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settling_waits_until_the_state_stops_changing() {
        let mut left = 5;
        let time = settle(|| {
            left = (left - 1).max(0);
            Ok(left)
        });
        assert!(time.unwrap() >= 3 * POLL);
        assert_eq!(left, 0);
    }
}
