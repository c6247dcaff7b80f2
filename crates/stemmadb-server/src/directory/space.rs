//! Full disks: databases that are opened for reading only, and again once there is space, and the reserve.
//!
//! The reserve is a file in the server's directory. On a full disk, a request that frees space (a deletion, a
//! compaction) releases it. From then on, databases accept only deletions, so that nothing else takes its space, until
//! the disk has enough space to create it again.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::{Database, Options};

/// A database is opened again if the disk has this many free bytes.
const FREE_BYTES_MIN: u64 = 4 << 20;

/// A database is opened again at most this often, and the reserve created again.
const RETRY: Duration = Duration::from_secs(1);

/// The size of the reserve: enough for the logs and trees of some databases to grow by a step; less on a small disk.
const RESERVE_BYTES: u64 = 16 << 20;
const RESERVE_PART: u64 = 32;
const RESERVE_FILE: &str = "reserve";

/// When a database was opened, to limit how often it is opened again.
pub(super) struct OpenedAt(Instant);

impl OpenedAt {
    pub(super) fn now() -> Self {
        OpenedAt(Instant::now())
    }

    /// Whether a database that takes no writes may be opened again.
    pub(super) fn is_long_ago(&self) -> bool {
        self.0.elapsed() >= RETRY
    }
}

/// Whether the disk has space for ordinary writes.
pub(super) fn has_space(directory: &Path) -> bool {
    free_bytes(directory) >= FREE_BYTES_MIN
}

fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Space that is kept for requests that free more.
pub(super) struct Reserve {
    directory: PathBuf,
    bytes: u64,
    is_there: AtomicBool,
    /// Whether it was there and a request took it.
    is_released: AtomicBool,
    tried_at: Mutex<Option<Instant>>,
}

impl Reserve {
    /// Creates the reserve unless it is there. Without space for it, there is none until there is.
    pub(super) fn open(directory: &Path) -> Self {
        let disk_bytes =
            rustix::fs::statvfs(directory).map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let reserve = Reserve {
            directory: directory.to_owned(),
            bytes: RESERVE_BYTES.min(disk_bytes / RESERVE_PART),
            is_there: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            tried_at: Mutex::new(None),
        };
        let is_there = std::fs::metadata(reserve.path()).is_ok_and(|file| file.len() >= reserve.bytes);
        reserve.is_there.store(is_there, Ordering::Relaxed);
        reserve.restore();
        reserve
    }

    fn path(&self) -> PathBuf {
        self.directory.join(RESERVE_FILE)
    }

    /// Whether it was released and could not be created again yet.
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    /// Frees its space for the next write. Returns false if there was none.
    pub(super) fn release(&self) -> bool {
        if !self.is_there.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.is_released.store(true, Ordering::Release);
        *self.tried_at.lock() = Some(Instant::now());
        if let Err(error) = std::fs::remove_file(self.path())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::error!(target: "stemma::database", "releasing {}: {error}", self.path().display());
        }
        true
    }

    /// Whether it is missing and could be created: at most every [`RETRY`].
    pub(super) fn is_restorable(&self) -> bool {
        !self.is_there.load(Ordering::Acquire)
            && self.tried_at.lock().is_none_or(|tried_at| tried_at.elapsed() >= RETRY)
            && free_bytes(&self.directory) >= self.bytes + FREE_BYTES_MIN
    }

    /// Creates it again if there is space. Returns whether it was created.
    pub(super) fn restore(&self) -> bool {
        if !self.is_restorable() {
            return false;
        }
        *self.tried_at.lock() = Some(Instant::now());
        match allocate(&self.path(), self.bytes) {
            Ok(()) => {
                self.is_there.store(true, Ordering::Release);
                self.is_released.store(false, Ordering::Release);
                true
            }
            Err(error) => {
                tracing::warn!(target: "stemma::database", "creating {}: {error}", self.path().display());
                std::fs::remove_file(self.path()).ok();
                false
            }
        }
    }
}

/// Creates a file that takes `bytes` of the disk.
fn allocate(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    #[cfg(target_os = "linux")]
    if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).is_ok() {
        return Ok(());
    }
    // Not supported by every file system. The pattern defeats compression.
    let block: Vec<u8> = (0..64_u32 << 8).flat_map(|number| number.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    for _ in 0..bytes.div_ceil(block.len() as u64) {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Opens a database; for reading only if the disk is full.
///
/// # Errors
/// Those of the library, if it can't be opened.
pub(super) fn open(path: &Path, options: &Options) -> stemmadb::Result<Database> {
    let refused = match Database::open_with(path, options.clone()) {
        Err(error) if is_disk_full(&error) => error,
        opened => return opened,
    };
    // If that fails too, report the original error: it names the cause.
    let database = match Database::open_with(path, options.clone().create(false).read_only(true)) {
        Ok(database) => database,
        Err(error) => {
            tracing::warn!(target: "stemma::database", "{}, for reading only: {error}", path.display());
            return Err(refused);
        }
    };
    tracing::warn!(target: "stemma::database", "{} is open for reading only: {refused}", path.display());
    Ok(database)
}

fn is_disk_full(error: &stemmadb::Error) -> bool {
    use std::io::ErrorKind;
    error.io_cause().is_some_and(|cause| matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_created_released_and_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(directory.path());
        let length = || std::fs::metadata(reserve.path()).map(|file| file.len()).ok();
        assert!(!reserve.is_released() && length() == Some(reserve.bytes));
        assert!(!reserve.restore(), "it is there");
        assert!(reserve.release() && !reserve.release());
        assert!(reserve.is_released() && length().is_none());
        assert!(!reserve.restore(), "it was released just now");
        *reserve.tried_at.lock() = None;
        assert!(reserve.restore() && !reserve.is_released() && length() == Some(reserve.bytes));
        assert!(!Reserve::open(directory.path()).is_released(), "it is found again");
    }
}
