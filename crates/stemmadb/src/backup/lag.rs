//! How far the backups in a target are behind their database.

use std::time::Duration;

use super::create::{ids, of_another_database};
use super::manifest;
use super::target::Target;
use super::verify::no_backups;
use crate::Result;
use crate::engine::Store;
use crate::revision::Sequence;

/// How far the newest backup in a target is behind its database.
///
/// Returned by [`Maintenance::backup_lag`](crate::handles::Maintenance::backup_lag).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupLag {
    /// The number of the newest backup.
    pub backup: u64,
    /// The newest sequence that it contains.
    pub sequence: Sequence,
    /// Sequences that it lacks.
    pub lag_sequences: u64,
    /// At most this old is the oldest change that it lacks; zero if it lacks none.
    pub lag: Duration,
}

/// Compares the newest backup in a target with the database.
pub(crate) fn backup_lag(store: &Store, target: &dyn Target) -> Result<BackupLag> {
    let newest = manifest::newest(target, &manifest::numbers(target)?)?.ok_or_else(|| no_backups(target))?;
    if newest.database != ids(store).0 {
        return Err(of_another_database(target));
    }
    let sequence = newest.sequence();
    let lag_sequences = store.parts.publisher.published().get().saturating_sub(sequence.get());
    let lag = match lag_sequences {
        0 => Duration::ZERO,
        _ => {
            let now = Duration::from_millis(u64::try_from(store.parts.options.clock.now_ms()).unwrap_or(0));
            now.saturating_sub(Duration::from_micros(newest.last_time_us))
        }
    };
    Ok(BackupLag { backup: newest.backup, sequence, lag_sequences, lag })
}
