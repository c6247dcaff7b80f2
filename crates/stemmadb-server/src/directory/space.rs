//! Databases on a full disk: opened for reading only, and opened again once there is space.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stemmadb::{Database, Options};

use crate::error::Result;

/// A database is opened again if the disk has this many free bytes.
const FREE_BYTES_MIN: u64 = 4 << 20;

/// A database is opened again at most this often.
const RETRY: Duration = Duration::from_secs(1);

/// Whether an open database takes writes.
pub(super) struct WriteState {
    is_stopped: AtomicBool,
    opened_at: Instant,
}

impl WriteState {
    /// The state of a database that was just opened.
    pub(super) fn new(takes_writes: bool) -> Self {
        WriteState { is_stopped: AtomicBool::new(!takes_writes), opened_at: Instant::now() }
    }

    /// Whether it takes writes, as far as is known.
    pub(super) fn takes_writes(&self) -> bool {
        !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Records that a write failed, if that ended all writes.
    pub(super) fn note_failed_write(&self, database: &Database) {
        if database.flush().is_err() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the database takes no writes, but may if it is opened again.
    pub(super) fn is_recoverable(&self, directory: &Path) -> bool {
        self.is_stopped.load(Ordering::Relaxed) && self.opened_at.elapsed() >= RETRY && has_space(directory)
    }
}

fn has_space(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= FREE_BYTES_MIN)
}

/// Opens a database; for reading only if the disk is full. Returns whether it takes writes, too.
///
/// # Errors
/// 503 if it can't be opened.
pub(super) fn open(path: &Path, options: &Options) -> Result<(Database, WriteState)> {
    let refused = match Database::open_with(path, options.clone()) {
        Err(error) if is_disk_full(&error) => error,
        opened => return Ok((opened?, WriteState::new(true))),
    };
    // If that fails too, report the original error: it names the cause.
    let Ok(database) = Database::open_with(path, options.clone().create(false).read_only(true)) else {
        return Err(refused.into());
    };
    tracing::warn!(target: "stemma::database", "{} is open for reading only: {refused}", path.display());
    Ok((database, WriteState::new(false)))
}

fn is_disk_full(error: &stemmadb::Error) -> bool {
    use std::io::{Error, ErrorKind};
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    source.is_some_and(|source| matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}
