//! An open database with the server's state for it.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use md5::{Digest as _, Md5};
use parking_lot::{Mutex, RwLock};
use stemmadb::log_storage::LogOwnership;
use stemmadb::past::At;
use stemmadb::{Attachment, Blob, Database, Digest, Document, Notifier, Options, Sequence, Snapshot};
use tokio::sync::watch;

use super::catalog::{CatalogEntry, DatabaseKind};
use super::extensions::Extensions;
use super::memory::MemoryShare;
use super::space::{self, OpenedAt};
use super::updates::DatabaseUpdates;
use super::whole::{WholeDatabase, WholeSlot};
use crate::auth::Security;
use crate::error::{Failure, Result};
use crate::http::{ConcurrencyTracker, blocking, can_block_in_place, spawn_blocking};
use crate::objects::ObjectLog;

/// An open database with the server's state for it.
pub(crate) struct ServedDatabase {
    name: String,
    created: u64,
    /// Distinguishes it from other databases that had or have its name.
    instance_id: String,
    is_partitioned: bool,
    log_url: Option<String>,
    is_shard: bool,
    database: Database,
    /// The right to serve it, if the server is in a cluster.
    ownership: Option<Arc<dyn LogOwnership>>,
    security: RwLock<Arc<Security>>,
    whole: WholeSlot,
    /// The computed MD5 of files that were stored without one, by other means than HTTP.
    md5s: Mutex<HashMap<Digest, [u8; 16]>>,
    extensions: Extensions,
    /// The newest published sequence, for tasks that wait for changes.
    published: watch::Receiver<Sequence>,
    is_compacting: AtomicBool,
    writers: ConcurrencyTracker,
    /// Whether the last write that ran alone took less than [`QUICK_WRITE`].
    was_write_quick: AtomicBool,
    opened_at: OpenedAt,
    memory: Mutex<MemoryShare>,
    /// The subscription to new sequences; `None` once the database is closed.
    notifier: Mutex<Option<Notifier>>,
}

/// The maximum number of cached MD5s; when it is reached, the cache is cleared.
const MD5S_MAX: usize = 10_000;

/// The time that a thread serving connections may wait for the disk; about the duration of a query.
const QUICK_WRITE: Duration = Duration::from_micros(300);

/// The largest payload of a message in bytes. Up to 1,024 messages wait for each subscriber.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Checks the size of a message's payload as JSON.
///
/// # Errors
/// 413 if it is too large.
pub(crate) fn check_message_bytes(length: usize) -> Result<()> {
    match length <= MESSAGE_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::too_large(format!(
            "A message has at most {MESSAGE_BYTES_MAX} bytes: store a document and publish its id"
        ))),
    }
}

impl ServedDatabase {
    /// Opens the database of an entry, with a share of the server's memory.
    ///
    /// # Errors
    /// Those of the library.
    pub(super) fn open(
        entry: &CatalogEntry,
        path: &Path,
        options: Options,
        share: MemoryShare,
        updates: &Arc<DatabaseUpdates>,
        ownership: Option<Arc<dyn LogOwnership>>,
    ) -> stemmadb::Result<Self> {
        let options = share.options(options);
        let options = match (&ownership, &entry.log_url) {
            (Some(ownership), _) => options.log_storage(ownership.log()),
            (None, Some(url)) => options.log_storage(ObjectLog::open(url)?),
            (None, None) => options,
        };
        let options = match entry.revs_limit {
            Some(revs_limit) => options.revs_limit(revs_limit),
            None => options,
        };
        let database = match entry.is_in_memory {
            true => Database::in_memory_with(options)?,
            false => space::open(path, &options)?,
        };
        let memory = Mutex::new(share);
        Ok(ServedDatabase { memory, ownership, ..Self::from_database(entry, database, updates) })
    }

    /// Wraps the open database of an entry.
    pub(super) fn from_database(entry: &CatalogEntry, database: Database, updates: &Arc<DatabaseUpdates>) -> Self {
        let security = RwLock::new(Arc::new(entry.security.clone()));
        let (sender, published) = watch::channel(database.sequence());
        let (updates, updated_name) = (updates.clone(), entry.shown_name().to_owned());
        let notifier = Notifier::new(&database, move |sequence| {
            if sender.send_replace(sequence) < sequence {
                updates.record(&updated_name, "updated");
            }
        });
        let md5s = Mutex::default();
        let (name, created) = (entry.requested_name().to_owned(), entry.created);
        ServedDatabase {
            name,
            created,
            instance_id: entry.instance_id.clone(),
            is_partitioned: entry.is_partitioned,
            log_url: entry.log_url.clone(),
            is_shard: matches!(entry.kind, DatabaseKind::Shard(_)),
            database,
            ownership: None,
            security,
            whole: WholeSlot::default(),
            md5s,
            extensions: Extensions::default(),
            published,
            is_compacting: false.into(),
            writers: ConcurrencyTracker::default(),
            was_write_quick: false.into(),
            opened_at: OpenedAt::now(),
            memory: Mutex::default(),
            notifier: Mutex::new(Some(notifier)),
        }
    }

    /// The name by which clients know it: for a shard, that of its virtual database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a shard of a virtual database.
    pub(crate) fn is_shard(&self) -> bool {
        self.is_shard
    }

    /// Whether it is kept in memory only.
    pub(super) fn is_in_memory(&self) -> bool {
        self.database.path().is_none()
    }

    /// A snapshot of now, or as of a point in the past.
    ///
    /// # Errors
    /// 404 if the database can't be read as of then.
    pub(crate) fn read(&self, as_of: Option<At>) -> Result<Snapshot> {
        Ok(match as_of {
            Some(at) => self.database.as_of(at)?,
            None => self.database.snapshot()?,
        })
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Whether it still belongs to this server: an answer that was read before is as of now.
    pub(crate) fn is_owned(&self) -> bool {
        self.ownership.as_ref().is_none_or(|ownership| ownership.is_current())
    }

    /// A short id that distinguishes it from other databases that had or have its name.
    pub(crate) fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Whether the id of each document names its partition.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// The URL of the bucket that has its log, if one has.
    pub(crate) fn log_url(&self) -> Option<&str> {
        self.log_url.as_deref()
    }

    /// Returns the value of type `T` that is attached to this database, created by default on first use.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.extensions.get()
    }

    /// A receiver of new sequences, which ends when the database is closed.
    pub(crate) fn published(&self) -> watch::Receiver<Sequence> {
        self.published.clone()
    }

    /// A sequence for clients: its number and the instance id, by which sequences of other databases are recognized.
    pub(crate) fn sequence_text(&self, sequence: Sequence) -> String {
        format!("{sequence}-{}", self.instance_id)
    }

    /// Parses a client's sequence. A sequence of another database, such as a deleted one of the same name, counts as
    /// zero; so does one beyond the current sequence, since the database was then restored from an older copy, and its
    /// history may differ.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse_sequence(&self, text: &str) -> Result<Sequence> {
        let (number, instance_id) =
            text.split_once('-').map_or((text, None), |(number, instance_id)| (number, Some(instance_id)));
        let number = number
            .parse()
            .map_err(|_| Failure::bad_request(format!("Malformed sequence supplied in 'since' parameter: {text:?}")))?;
        let sequence = Sequence::new(number);
        match instance_id {
            Some(instance_id) if instance_id != self.instance_id || sequence > self.database.sequence() => {
                Ok(Sequence::ZERO)
            }
            _ => Ok(sequence),
        }
    }

    /// Stores the content of a file and returns it with its MD5. Blocks until it is flushed.
    pub(crate) fn store(&self, content: impl Read) -> Result<(Arc<Blob>, [u8; 16])> {
        let mut md5_reader = Md5Reader { inner: content, hasher: Md5::new() };
        let blob = self.database.files().store(&mut md5_reader)?;
        Ok((blob, md5_reader.hasher.finalize().into()))
    }

    /// Returns the MD5 of a file's content. If the file was not stored over HTTP, the whole content is read, once.
    pub(crate) fn md5_of(&self, snapshot: &Snapshot, document: &Document, file: &Attachment) -> Result<[u8; 16]> {
        if let Some(md5) = file.md5.or_else(|| self.md5s.lock().get(&file.digest).copied()) {
            return Ok(md5);
        }
        let content = snapshot.open_attachment(document, &file.name)?;
        let content = content.ok_or_else(|| Failure::internal("a file is not where its document says"))?;
        let mut md5_reader = Md5Reader { inner: content, hasher: Md5::new() };
        std::io::copy(&mut md5_reader, &mut std::io::sink())
            .map_err(|error| Failure::internal(format!("a file can't be read: {error}")))?;
        let md5 = md5_reader.hasher.finalize().into();
        let mut md5s = self.md5s.lock();
        if md5s.len() >= MD5S_MAX {
            md5s.clear();
        }
        md5s.insert(file.digest, md5);
        Ok(md5)
    }

    /// Runs a short write. Concurrent writes go to the blocking pool, where the next flush completes all of them. A
    /// write that runs alone is executed on this thread, because waking another thread and being woken by it takes
    /// about as long as a flush. If the last flush was slow, or the write `may_call_functions`, which may take seconds,
    /// the runtime moves this thread's other tasks elsewhere.
    pub(crate) async fn writing<T: Send + 'static>(
        self: &Arc<Self>,
        may_call_functions: bool,
        work: impl FnOnce(&ServedDatabase) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let writer = self.writers.enter();
        if !writer.is_alone || !can_block_in_place() {
            let served = self.clone();
            let work = move || {
                let _counted = writer;
                work(&served)
            };
            return blocking(work).await;
        }
        let start = Instant::now();
        let is_quick = self.was_write_quick.load(Ordering::Relaxed) && !may_call_functions;
        let result = match is_quick {
            true => work(self),
            false => tokio::task::block_in_place(|| work(self)),
        };
        self.was_write_quick.store(start.elapsed() < QUICK_WRITE, Ordering::Relaxed);
        result
    }

    /// Whether the database takes writes; if not, the disk was full or failed, and it must be opened again.
    pub(crate) fn takes_writes(&self) -> bool {
        self.database.maintenance().takes_writes()
    }

    /// Whether it was opened long enough ago to be opened again.
    pub(super) fn may_be_reopened(&self) -> bool {
        self.opened_at.is_long_ago()
    }

    /// Gives the database a share of the server's memory.
    pub(super) fn set_memory(&self, share: MemoryShare) {
        let mut memory = self.memory.lock();
        *memory = share.give(self, *memory);
    }

    /// Compacts the database in the background, unless a compaction is running.
    pub(crate) fn compact(self: &Arc<Self>) {
        if self.is_compacting.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        spawn_blocking(move || {
            if let Err(error) = this.database.maintenance().compact() {
                tracing::error!(target: "stemma::database", "compacting {}: {error}", this.name);
            }
            this.is_compacting.store(false, Ordering::Release);
        });
    }

    pub(crate) fn is_compacting(&self) -> bool {
        self.is_compacting.load(Ordering::Acquire)
    }

    /// CouchDB's `instance_start_time`, which replicators compare: the time of the database's creation, in seconds
    /// since 1970.
    pub(crate) fn instance_start_time(&self) -> String {
        self.created.to_string()
    }

    /// The `_security` that requests obey: for a shard, that of its virtual database.
    pub(crate) fn security(&self) -> Arc<Security> {
        match self.whole() {
            Some(whole) => whole.security.clone(),
            None => self.own_security(),
        }
    }

    /// The database's own `_security`, which says who may use it by its own name.
    pub(crate) fn own_security(&self) -> Arc<Security> {
        self.security.read().clone()
    }

    /// What it takes from its virtual database, if it is a shard of one, here or on another server.
    pub(crate) fn whole(&self) -> Option<Arc<WholeDatabase>> {
        self.whole.get(&self.database)
    }

    /// Gives a shard what it takes from its virtual database.
    pub(crate) fn set_whole(&self, whole: Arc<WholeDatabase>) {
        self.whole.set(whole);
    }

    /// Whether requests to this shard, from the server of its virtual database, may name this version of it.
    pub(crate) fn has_whole(&self, version: &str) -> bool {
        self.whole.has(&self.database, version)
    }

    /// Reads what a shard takes from its virtual database, after that was written.
    ///
    /// # Errors
    /// 500 if it is malformed.
    pub(crate) fn read_whole(&self) -> Result<()> {
        self.whole.read_again(&self.database)
    }

    /// The name that functions of design documents see: that of the virtual database.
    pub(crate) fn whole_name(&self) -> String {
        self.whole().map_or_else(|| self.name.clone(), |whole| whole.name.clone())
    }

    pub(super) fn set_security(&self, security: Security) {
        *self.security.write() = Arc::new(security);
    }

    /// Whether the database was closed, because the server stops or the database was deleted.
    pub(crate) fn is_closed(&self) -> bool {
        self.notifier.lock().is_none()
    }

    /// Closes the database. Operations in progress fail with `Closed`.
    pub(super) fn close(&self) {
        // This ends the receivers of new sequences.
        drop(self.notifier.lock().take());
        if let Err(error) = self.database.clone().close() {
            tracing::error!(target: "stemma::database", "closing {}: {error}", self.name);
        }
    }
}

/// A reader that hashes the bytes read through it.
struct Md5Reader<R> {
    inner: R,
    hasher: Md5,
}

impl<R: Read> Read for Md5Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
