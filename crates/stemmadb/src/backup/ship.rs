//! The writer of a target's backups, which remembers what it has put there.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::clean::{Keep, clean};
use super::create::{BackupReport, KnownTarget, fenced, ship};
use super::manifest::{Manifest, name_of};
use super::target::Target;
use crate::Result;
use crate::engine::Store;
use crate::log::{LogPosition, SegmentSet};

/// A shipper that writes again after this time lists the target first: another writer may have taken over.
const LIST_INTERVAL: Duration = Duration::from_mins(5);

/// Makes backups of one database in a target, one after the other, and remembers what is there: further ones read and
/// list nothing, except after a failure, after five minutes, and when files are deleted.
///
/// Each backup deletes those that it makes superfluous. For backups at intervals, [`Follower`](super::Follower) does
/// all that is needed; a shipper is for a program that opens the database only now and then.
///
/// ```
/// use stemmadb::Database;
/// use stemmadb::backup::{DirectoryTarget, Shipper};
///
/// # fn main() -> stemmadb::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("stemma-ship-{}", std::process::id()));
/// # std::fs::remove_dir_all(&directory).ok();
/// let target = DirectoryTarget::create(directory.join("backups"))?;
/// let mut shipper = Shipper::new(&target);
/// for id in ["emma", "solaris"] {
///     let db = Database::open(directory.join("library.stemma"))?;
///     db.insert(id, &serde_json::json!({}))?;
///     db.maintenance().ship(&mut shipper)?;
///     db.close()?;
/// }
/// # std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
pub struct Shipper<'a> {
    target: &'a dyn Target,
    keep: Keep,
    /// Marks its backups.
    writer: String,
    known: Option<KnownTarget>,
    /// The open database of the last attempt, and whether one succeeded.
    store: Weak<Store>,
    has_shipped_store: bool,
    /// Keeps the segments since the last shipment.
    kept: Option<SegmentSet>,
    listed_at: Instant,
    has_shipped: bool,
}

/// What was shipped.
pub(super) struct Shipment {
    /// Where it ends in the log.
    pub(super) end: LogPosition,
    pub(super) report: BackupReport,
}

impl<'a> Shipper<'a> {
    /// A writer of backups in `target`.
    pub fn new(target: &'a dyn Target) -> Self {
        let writer = Uuid::new_v4().simple().to_string();
        Shipper {
            target,
            keep: Keep::All,
            writer,
            known: None,
            store: Weak::new(),
            has_shipped_store: false,
            kept: None,
            listed_at: Instant::now(),
            has_shipped: false,
        }
    }

    /// Keeps the newest `count` backups, at least one. By default those are kept that are needed to restore any
    /// sequence.
    #[must_use]
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = Keep::Newest(count);
        self
    }

    /// Ships everything written so far.
    pub(crate) fn ship(&mut self, store: &Arc<Store>) -> Result<BackupReport> {
        Ok(self.ship_from(store)?.report)
    }

    pub(super) fn ship_from(&mut self, store: &Arc<Store>) -> Result<Shipment> {
        let _lock = self.target.lock()?;
        self.note_store(store);
        let known = self.known_target(store)?;
        let export = store.export(self.kept.as_ref())?;
        if self.kept.is_none() {
            // Even if this shipment fails, the next one needs what is removed meanwhile.
            self.kept = Some(export.segments_kept.clone());
        }
        let shipped = ship(store, self.target, &export, &known, &self.writer, false, &mut |_| ())?;
        self.kept = Some(export.segments_kept.clone());
        let end = export.end;
        drop(export);
        (self.has_shipped, self.has_shipped_store) = (true, true);
        let cleaned = self.delete_superfluous(&known, &shipped.manifest);
        let known = known.after(shipped.manifest.clone());
        let report = shipped.report(cleaned)?;
        self.known = Some(known);
        Ok(Shipment { end, report })
    }

    /// If the database was opened again, another process may have written to it, or another one may be in its place.
    fn note_store(&mut self, store: &Arc<Store>) {
        if !std::ptr::eq(self.store.as_ptr(), Arc::as_ptr(store)) {
            self.store = Arc::downgrade(store);
            self.has_shipped_store = false;
            self.kept = None;
            self.known = self.known.take().filter(|known| known.is_of(store));
        }
    }

    /// What is known of the target: read again after a failure, and after a while.
    fn known_target(&mut self, store: &Store) -> Result<KnownTarget> {
        let known = match self.known.take().filter(|_| self.listed_at.elapsed() < LIST_INTERVAL) {
            Some(known) => known,
            None => {
                self.listed_at = Instant::now();
                let read = KnownTarget::read(store, self.target)?;
                if self.has_shipped && !read.is_written_by(&self.writer) && read.writer.is_some() {
                    return Err(fenced(self.target, read.number));
                }
                read
            }
        };
        let is_ours = self.has_shipped_store && known.is_written_by(&self.writer);
        Ok(KnownTarget { is_ours, ..known })
    }

    /// Deletes the backup before, if the new one makes it superfluous; and, if there may be some, files that no backup
    /// lists any more. Returns how many backups were deleted.
    fn delete_superfluous(&mut self, known: &KnownTarget, newest: &Manifest) -> Result<u64> {
        match &known.newest {
            Some(previous)
                if known.is_written_by(&self.writer)
                    && previous.is_superseded_by(newest)
                    && newest.has_all_files_of(previous) =>
            {
                self.target.delete(&name_of(previous.backup)).map(|()| 1)
            }
            _ => {
                self.listed_at = Instant::now();
                clean(self.target, newest, &self.keep, true, &known.files)
            }
        }
    }

    /// Gives up the segments that are kept for a target that fails, if they take more than this many bytes.
    pub(super) fn give_up_segments_beyond(&mut self, byte_count: u64) {
        if self.kept.as_ref().is_some_and(|kept| kept.held_bytes() > byte_count) {
            self.kept = None;
        }
    }
}

impl std::fmt::Debug for Shipper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shipper").field("target", &self.target.describe()).field("keep", &self.keep).finish()
    }
}
