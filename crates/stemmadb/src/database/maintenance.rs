//! Integrity checks, backups, branches, checkpoints, compaction and the revision limit: [`Database::maintenance`].

use std::path::Path;
use std::sync::Arc;

use super::Database;
use crate::Result;
use crate::backup::{
    self, At, BackupLag, BackupOptions, BackupReport, DirectoryTarget, FollowOptions, FollowStatus, Follower, Shipper,
    Target,
};
use crate::cipher::EncryptionKey;
use crate::engine::{ActiveTask, CheckReport};
use crate::options::Progress;
use crate::vfs::LogStorage;

/// Maintenance operations. Made by [`Database::maintenance`]; cheap.
///
/// Checkpoints and compaction run in the background, so no program has to call them.
#[derive(Debug, Clone, Copy)]
pub struct Maintenance<'a> {
    database: &'a Database,
}

impl<'a> Maintenance<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Maintenance { database }
    }

    /// Verifies the whole database and reports every inconsistency.
    ///
    /// Compares index terms with documents in both directions, the changes feed with the documents, every stored record
    /// with its checksum, and the live-byte counts with the records. Reads everything.
    ///
    /// # Errors
    /// `Unavailable` if files can't be read. Damage is not an error: it is listed in the report.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with_progress(|_| ())
    }

    /// Same as [`Maintenance::check`]; calls `progress` during the check.
    ///
    /// # Errors
    /// Those of [`Maintenance::check`].
    pub fn check_with_progress(&self, mut progress: impl FnMut(Progress)) -> Result<CheckReport> {
        let mut report = self.database.store().check(&mut progress)?;
        self.database.handle.views.check(&mut report)?;
        Ok(report)
    }

    /// Merges all writes that are in memory into the tree.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be written.
    pub fn checkpoint(&self) -> Result<()> {
        self.database.store().checkpoint()
    }

    /// Rewrites the log without superseded records; returns by how many bytes the files of the log shrank.
    ///
    /// Files that a snapshot still reads are deleted when it is gone; their bytes are not counted.
    ///
    /// # Errors
    /// `Unavailable` if log or tree can't be written; `Corrupt` if stored bytes are damaged.
    pub fn compact(&self) -> Result<u64> {
        self.compact_with_progress(|_| ())
    }

    /// Same as [`Maintenance::compact`]; calls `progress` during compaction, counting bytes of the log.
    ///
    /// # Errors
    /// Those of [`Maintenance::compact`].
    pub fn compact_with_progress(&self, mut progress: impl FnMut(Progress)) -> Result<u64> {
        self.database.store().compact(&mut progress)
    }

    /// Replaces the key of an encrypted database: it is opened with the new one from now on.
    ///
    /// Costs writing one small file; nothing else is encrypted again. So whoever has the old key and a copy of the
    /// database from before can read what is written later, if those files are available, too:
    /// [`Maintenance::reencrypt`] prevents that. Backups made before have the old key.
    ///
    /// ```
    /// # use stemmadb::encryption::EncryptionKey;
    /// # use stemmadb::{Database, Options};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("stemma-doc-rekey-{}", std::process::id()));
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # let path = directory.join("library.stemma");
    /// let old = EncryptionKey::from_passphrase("correct horse battery staple")?;
    /// let db = Database::open_with(&path, Options::new().encryption(old))?;
    /// let new = EncryptionKey::from_passphrase("tr0ub4dor and 3 more")?;
    /// db.maintenance().rekey(&new)?;
    /// db.close()?;
    /// let db = Database::open_with(&path, Options::new().encryption(new))?;
    /// # drop(db); std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the database is not encrypted; `Unavailable` if the new key can't be read, or the file not written.
    pub fn rekey(&self, key: &EncryptionKey) -> Result<()> {
        self.database.store().rekey(key)
    }

    /// Encrypts everything in an encrypted database again, with a new database key; calls `progress` during it,
    /// counting bytes of the log. The key that it is opened with stays as it is.
    ///
    /// The database can be read and written meanwhile. If it is interrupted, calling it again completes it. Costs
    /// reading and writing the database once.
    ///
    /// # Errors
    /// `Invalid` if the database is not encrypted; those of [`Maintenance::compact`].
    pub fn reencrypt(&self, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.database.store().replace_key(&mut progress)
    }

    /// Makes a backup in the directory `target`, which is created if it doesn't exist: consistent, while the database
    /// is read and written. Later backups there add only what is new. See [`backup`](mod@crate::backup) for restoring.
    ///
    /// Sealed segments of the log and large attachments are linked if the directory is on the same file system;
    /// otherwise they are copied. The tree is not part of a backup, since it can be rebuilt.
    ///
    /// # Errors
    /// `Locked` or `Conflict` if another process makes backups there; `Invalid` if there are backups of another
    /// database; `Unavailable` if files can't be read or written.
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(&DirectoryTarget::create(target)?, &BackupOptions::new(), |_| ())
    }

    /// Same as [`Maintenance::backup`], in any target, with options; calls `progress` during it, counting bytes.
    ///
    /// # Errors
    /// Those of [`Maintenance::backup`].
    pub fn backup_with(
        &self,
        target: &dyn Target,
        options: &BackupOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<BackupReport> {
        backup::back_up(self.database.store(), target, options, &mut progress)
    }

    /// Starts a continuous backup: what was written is shipped to `target` at intervals, until the returned handle is
    /// stopped or dropped.
    ///
    /// A target that fails is tried again, at growing intervals of up to five minutes; [`Follower::status`] and
    /// [`FollowOptions::on_status`] report it. While nothing is written, nothing is read from or written to the target.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be started. Errors of the target are reported in the status.
    pub fn follow(&self, target: Arc<dyn Target>, options: FollowOptions) -> Result<Follower> {
        let follower = Follower::start(self.database.store(), target, options)?;
        let mut followers = self.database.handle.followers.lock();
        followers.retain(|other| other.strong_count() > 0);
        followers.push(Arc::downgrade(follower.shared()));
        Ok(follower)
    }

    /// The continuous backups that [`Maintenance::follow`] has started, and how far each has come. Costs next to
    /// nothing.
    pub fn followers(&self) -> Vec<FollowStatus> {
        let followers = self.database.handle.followers.lock().clone();
        followers.iter().filter_map(|follower| Some(follower.upgrade()?.status())).collect()
    }

    /// How far the newest backup in `target` is behind this database. Reads one manifest, and compares nothing else.
    ///
    /// # Errors
    /// `NotFound` if there are no backups; `Invalid` if they are of another database; `Unavailable` if the target can't
    /// be read.
    pub fn backup_lag(&self, target: &dyn Target) -> Result<BackupLag> {
        backup::backup_lag(self.database.store(), target)
    }

    /// Makes a backup with what `shipper` knows of its target, and deletes those that it makes superfluous.
    ///
    /// # Errors
    /// Those of [`Maintenance::backup`].
    pub fn ship(&self, shipper: &mut Shipper<'_>) -> Result<BackupReport> {
        shipper.ship(self.database.store())
    }

    /// Creates a branch in `directory`: a database with the state `at`, which can be written independently of this one.
    ///
    /// The two share their files until either replaces them, if the directory is on the same file system: a branch of
    /// the newest state takes about as long as opening the database. An older state has its tree rebuilt, and must
    /// still be in the log: compaction removes it. The branch counts as another database, so that it can replicate
    /// back.
    ///
    /// ```
    /// # use stemmadb::{Database, backup::At};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("stemma-branch-{}", std::process::id()));
    /// # std::fs::remove_dir_all(&directory).ok();
    /// let db = Database::open(directory.join("library.stemma"))?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// db.maintenance().branch(directory.join("draft.stemma"), At::Latest)?;
    ///
    /// let draft = Database::open(directory.join("draft.stemma"))?;
    /// draft.insert("eden", &serde_json::json!({"year": 1959}))?;
    /// assert_eq!(db.get("eden")?.is_some(), false);
    /// draft.replicate_to(&db)?;
    /// assert_eq!(db.get("eden")?.is_some(), true);
    /// # drop((db, draft)); std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the directory exists; `NotFound` if the log does not have the state; `Unavailable` if files can't
    /// be written.
    pub fn branch(&self, directory: impl AsRef<Path>, at: At) -> Result<()> {
        backup::branch(self.database.store(), directory.as_ref(), at)
    }

    /// Creates a branch whose log is in a store ([`Options::log_storage`](crate::Options::log_storage)): opened with
    /// that option, `directory` is the database. All files are copied. A crash leaves a log that is not complete:
    /// delete it, and begin again with another one.
    ///
    /// # Errors
    /// `Invalid` if the store has the log already, or the directory a log of its own; otherwise those of
    /// [`Maintenance::branch`], and those of the store.
    pub fn branch_to_store(&self, directory: impl AsRef<Path>, at: At, storage: Arc<dyn LogStorage>) -> Result<()> {
        backup::branch_to_store(self.database.store(), directory.as_ref(), at, storage)
    }

    /// Returns how many revisions are remembered on each branch of a revision tree. Only their ids are kept, not their
    /// bodies.
    pub fn revs_limit(&self) -> usize {
        self.database.store().parts.revs_limit()
    }

    /// Sets how many revisions are remembered on each branch, until the database is closed.
    ///
    /// A document's branches are cut to the limit when it is next written.
    /// [`Options::revs_limit`](crate::Options::revs_limit) sets the limit at opening.
    pub fn set_revs_limit(&self, revs_limit: usize) {
        self.database.store().parts.set_revs_limit(revs_limit);
    }

    /// Whether the database takes writes: it was opened for writing, and no write to its log has failed. If one has,
    /// for example on a full disk, the database can be read, and takes writes again once it is closed and opened.
    ///
    /// Costs next to nothing.
    pub fn takes_writes(&self) -> bool {
        self.database.store().takes_writes()
    }

    /// Whether background work on the database is running now, such as a checkpoint: closing it would wait for that.
    ///
    /// Costs next to nothing.
    pub fn is_busy(&self) -> bool {
        self.database.store().has_running_work()
    }

    /// Returns the compactions, checks, builds of indexes and views, and backups that are running now, in the order of
    /// their start: those that a program requested, and those that run in the background.
    ///
    /// ```
    /// # use stemmadb::{Database, Index, handles::ActiveTaskKind};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// db.indexes().create_with_progress(Index::on("year").unique(), |progress| {
    ///     let tasks = db.maintenance().active_tasks();
    ///     assert_eq!((tasks[0].kind, tasks[0].name.as_str()), (ActiveTaskKind::Index, "year"));
    ///     assert_eq!(tasks[0].progress, progress);
    /// })?;
    /// assert!(db.maintenance().active_tasks().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn active_tasks(&self) -> Vec<ActiveTask> {
        self.database.store().active_tasks()
    }

    /// Sets whether only deletions are accepted; other writes then return `Unavailable`. Until the database is closed.
    ///
    /// A program that keeps some space of a disk in reserve can use it for deletions and for compaction, which free
    /// space, without other writes taking it.
    ///
    /// ```
    /// # use stemmadb::{Database, ErrorKind};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// let revision = db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// db.maintenance().set_deletions_only(true);
    /// let refused = db.insert("eden", &serde_json::json!({})).unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Unavailable);
    /// db.delete("solaris", &revision)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_deletions_only(&self, deletions_only: bool) {
        self.database.store().set_deletions_only(deletions_only);
    }

    /// Changes the memory of the open database, in bytes: the size of its read caches, which keep their proportions,
    /// and that of its memtables. A program with many databases divides its memory among those in use. Until the
    /// database is closed.
    ///
    /// [`Options::cache_bytes`](crate::Options::cache_bytes) and
    /// [`Options::memory_bytes`](crate::Options::memory_bytes) set them at opening. What exceeds a smaller bound is
    /// dropped or, if it was not merged yet, merged in the background. Caches disabled at opening stay disabled.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// let db = Database::in_memory();
    /// db.maintenance().set_memory(4 << 20, 1 << 20);
    /// ```
    pub fn set_memory(&self, cache_bytes: u64, memory_bytes: usize) {
        self.database.store().set_memory(cache_bytes, memory_bytes);
    }
}
