//! One open database, and what the server keeps beside it.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use md5::{Digest as _, Md5};
use parking_lot::{Mutex, RwLock};
use stemmadb::{Attachment, Blob, Database, Digest, Document, Notifier, Options, Sequence, Snapshot};
use tokio::sync::watch;

use super::catalogue::Entry;
use super::extensions::Extensions;
use super::updates::Updates;
use crate::auth::Security;
use crate::error::{Failure, Result};
use crate::http::{ConcurrencyTracker, blocking, can_block_in_place};

/// One open database, and what the server keeps beside it.
pub(crate) struct Served {
    name: String,
    created: u64,
    /// What tells it from others that had or have its name.
    mark: String,
    database: Database,
    security: RwLock<Arc<Security>>,
    /// Of files that nobody said the MD5 of, since they were not brought over HTTP.
    md5s: Mutex<HashMap<Digest, [u8; 16]>>,
    extensions: Extensions,
    /// The newest published sequence, for those who wait for the next.
    published: watch::Receiver<Sequence>,
    is_compacting: AtomicBool,
    writers: ConcurrencyTracker,
    /// Whether the last write of one who wrote alone took less than [`QUICK_WRITE`].
    was_write_quick: AtomicBool,
    /// What tells of new sequences; none once it is closed.
    notifier: Mutex<Option<Notifier>>,
}

/// MD5s that are kept; beyond, all are forgotten.
const MD5S_MAX: usize = 100_000;

/// For so long a thread that serves connections may wait for the disk: about what a query takes.
const QUICK_WRITE: Duration = Duration::from_micros(300);

impl Served {
    pub(super) fn open(entry: &Entry, directory: &Path, options: Options, updates: &Arc<Updates>) -> Result<Self> {
        let options = match entry.revs_limit {
            Some(revs_limit) => options.revs_limit(revs_limit),
            None => options,
        };
        Ok(Self::of(entry, Database::open_with(directory.join(&entry.directory), options)?, updates))
    }

    /// The open database of an entry.
    pub(super) fn of(entry: &Entry, database: Database, updates: &Arc<Updates>) -> Self {
        let security = RwLock::new(Arc::new(entry.security.clone()));
        let (sender, published) = watch::channel(database.sequence());
        let (updates, told) = (updates.clone(), entry.name.clone());
        let notifier = database.on_publish(move |sequence| {
            if sender.send_replace(sequence) < sequence {
                updates.note(&told, "updated");
            }
        });
        let md5s = Mutex::default();
        let (name, created) = (entry.name.clone(), entry.created);
        let mark: String = entry.directory.chars().take(8).filter(char::is_ascii_alphanumeric).collect();
        Served {
            name,
            created,
            mark,
            database,
            security,
            md5s,
            extensions: Extensions::default(),
            published,
            is_compacting: false.into(),
            writers: ConcurrencyTracker::default(),
            was_write_quick: false.into(),
            notifier: Mutex::new(Some(notifier)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// What tells it from others that had or have its name.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// The value of type `T` that is kept beside this database, created when it is first asked for.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.extensions.get()
    }

    /// Tells of each new sequence; its end is that of the database.
    pub(crate) fn published(&self) -> watch::Receiver<Sequence> {
        self.published.clone()
    }

    /// A sequence as clients are told it: its number, and a mark of this database, so that one from elsewhere is noticed.
    pub(crate) fn sequence_text(&self, sequence: Sequence) -> String {
        format!("{sequence}-{}", self.mark)
    }

    /// The sequence that a client names. One of a database that was there before under this name is the beginning; so is one that this
    /// one told and has not reached, since it was put back from an older copy then: what follows may be something else.
    ///
    /// # Errors
    /// 400 if it is none.
    pub(crate) fn parse_sequence(&self, text: &str) -> Result<Sequence> {
        let (number, mark) = text.split_once('-').map_or((text, None), |(number, mark)| (number, Some(mark)));
        let number = number
            .parse()
            .map_err(|_| Failure::bad_request(format!("Malformed sequence supplied in 'since' parameter: {text:?}")))?;
        let sequence = Sequence::new(number);
        match mark {
            Some(mark) if mark != self.mark || sequence > self.database.sequence() => Ok(Sequence::ZERO),
            _ => Ok(sequence),
        }
    }

    /// Stores content for a file; returns it with its MD5. Blocks until it is flushed.
    pub(crate) fn store(&self, content: impl Read) -> Result<(Arc<Blob>, [u8; 16])> {
        let mut hashing = Hashing { inner: content, hasher: Md5::new() };
        let blob = self.database.files().store(&mut hashing)?;
        Ok((blob, hashing.hasher.finalize().into()))
    }

    /// The MD5 of a file's content. Costs a read of all of it, once, if it was not brought over HTTP.
    pub(crate) fn md5_of(&self, snapshot: &Snapshot, document: &Document, file: &Attachment) -> Result<[u8; 16]> {
        if let Some(md5) = file.md5.or_else(|| self.md5s.lock().get(&file.digest).copied()) {
            return Ok(md5);
        }
        let content = snapshot.open_attachment(document, &file.name)?;
        let content = content.ok_or_else(|| Failure::internal("a file is not where its document says"))?;
        let mut hashing = Hashing { inner: content, hasher: Md5::new() };
        std::io::copy(&mut hashing, &mut std::io::sink())
            .map_err(|error| Failure::internal(format!("a file can't be read: {error}")))?;
        let md5 = hashing.hasher.finalize().into();
        let mut md5s = self.md5s.lock();
        if md5s.len() >= MD5S_MAX {
            md5s.clear();
        }
        md5s.insert(file.digest, md5);
        Ok(md5)
    }

    /// Runs a short write. Who comes while others write waits on the blocking pool, where the next flush serves all. Who writes alone does it
    /// on this thread: to wake another, and to be woken by it, takes about as long as a flush. While flushes are slow the thread's other work
    /// goes on elsewhere meanwhile; and where the write `may_call_functions`, which may take seconds.
    pub(crate) async fn writing<T: Send + 'static>(
        self: &Arc<Self>,
        may_call_functions: bool,
        work: impl FnOnce(&Served) -> Result<T> + Send + 'static,
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

    /// Gives back space in the background, if that is not going on already.
    pub(crate) fn compact(self: &Arc<Self>) {
        if self.is_compacting.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = this.database.maintenance().compact() {
                tracing::error!(target: "stemma::database", "compacting {}: {error}", this.name);
            }
            this.is_compacting.store(false, Ordering::Release);
        });
    }

    pub(crate) fn is_compacting(&self) -> bool {
        self.is_compacting.load(Ordering::Acquire)
    }

    /// CouchDB's `instance_start_time`, which replicators compare: when the database was made, in seconds.
    pub(crate) fn instance_start_time(&self) -> String {
        self.created.to_string()
    }

    pub(crate) fn security(&self) -> Arc<Security> {
        self.security.read().clone()
    }

    pub(super) fn set_security(&self, security: Security) {
        *self.security.write() = Arc::new(security);
    }

    /// Whether it was closed, with its server or for good.
    pub(crate) fn is_closed(&self) -> bool {
        self.notifier.lock().is_none()
    }

    /// Closes the database; who still reads it is told so.
    pub(super) fn close(&self) {
        // Who waits for the next sequence learns by it that there is none.
        drop(self.notifier.lock().take());
        if let Err(error) = self.database.clone().close() {
            tracing::error!(target: "stemma::database", "closing {}: {error}", self.name);
        }
    }
}

/// Hashes what is read through it.
struct Hashing<R> {
    inner: R,
    hasher: Md5,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
