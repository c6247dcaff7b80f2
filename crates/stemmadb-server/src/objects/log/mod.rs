//! The log of a database in a bucket.
//!
//! All ownership rests on one condition, which all stores know: an object is created only if there is none of its name.
//! What a log has are chains of such objects: one of its names ([`names`]), and one for each file that is appended to
//! ([`segments`]). An owner always creates the next object of a chain. The next owner creates it first, and from then
//! on, the earlier one collides with it. Objects that are written once ([`contents`]) have names of their own.
//!
//! Objects lie below `log/`: `log/names/{number}`, `log/segments/{file}/{number}`, `log/segments/{file}/merged`, and
//! `log/contents/{file}/{writing}-{part}`.
//!
//! Outcomes are never guessed: a creation whose answer was lost is repeated, and what is stored is compared. Each
//! attempt has a random number in it.

mod contents;
mod names;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error as StoreError, ObjectMeta};
use parking_lot::Mutex;
use stemmadb::Result;
use stemmadb::log_storage::{Deposed, FileId, FileState, LogStorage, NameChange, StoredFile, StoredLog};
use tokio::sync::Semaphore;

use super::bucket::{Bucket, environment};
use contents::Contents;
use names::{Names, OwnedNames};
use segments::Segment;

/// How long a failed request waits before it is repeated, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How many requests of one operation are sent at the same time.
const CONCURRENT_REQUESTS: usize = 16;

/// The log of a database in a bucket of S3, or of a store that is compatible with it.
///
/// A database that is opened with it needs its directory only for derived files and copies of what was read. The
/// directory may be lost, and another process may take the log over: then the earlier one writes nothing any more.
///
/// # Cost
/// A group commit is one `PUT`, a change of names (a new or finished segment, an attachment above 64 KiB) one `PUT` and
/// one `LIST`. Finished segments are merged into one object each, in the background, and read by one `GET` for each
/// range. Opening lists all objects of segments, 1,000 with each request.
///
/// # Example
/// ```no_run
/// use stemmadb::{Database, Options};
/// use stemmadb_server::ObjectLog;
///
/// let log = ObjectLog::open("s3://archive/orders")?;
/// let db = Database::open_with("orders.stemma", Options::new().log_storage(log))?;
/// # Ok::<(), stemmadb::Error>(())
/// ```
pub struct ObjectLog {
    requests: Arc<Requests>,
}

/// The requests of one owner, or replica, of a log.
struct Requests {
    bucket: Bucket,
    /// The epoch of this owner; 0 before it has taken the log over.
    epoch: AtomicU64,
    /// The names as this owner has stored them, and the lock under which it changes them.
    owned: tokio::sync::Mutex<Option<OwnedNames>>,
    /// The newest names that were read, with their number.
    seen: Mutex<Option<(u64, Arc<Names>)>>,
    segments: Mutex<HashMap<FileId, Arc<Segment>>>,
    contents: Mutex<Contents>,
    /// One segment is merged at a time.
    merging: Semaphore,
    unfinished_merge_count: AtomicUsize,
    is_closed: AtomicBool,
}

/// What became of the creation of an object.
enum Creation {
    Created,
    /// There is another object of the name.
    Collided(Bytes),
}

impl ObjectLog {
    /// The log below `s3://bucket/prefix`, reached as [`ObjectTarget::open`](crate::ObjectTarget::open) says. Sends no
    /// request.
    ///
    /// # Errors
    /// `Invalid` if the URL or a variable of the environment is not valid.
    pub fn open(url: &str) -> Result<Arc<Self>> {
        Self::open_with(url, environment())
    }

    /// Same as [`ObjectLog::open`], with these variables instead of the environment.
    ///
    /// # Errors
    /// Those of [`ObjectLog::open`].
    pub fn open_with(url: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Arc<Self>> {
        Ok(Self::of_bucket(Bucket::open(url, variables)?))
    }

    fn of_bucket(bucket: Bucket) -> Arc<Self> {
        let (epoch, owned, seen, segments, contents) = Default::default();
        let (unfinished_merge_count, is_closed, merging) = (AtomicUsize::default(), false.into(), Semaphore::new(1));
        let requests =
            Requests { bucket, epoch, owned, seen, segments, contents, merging, unfinished_merge_count, is_closed };
        Arc::new(ObjectLog { requests: Arc::new(requests) })
    }

    /// Takes the log over and deletes it. One small object stays, which keeps earlier owners from writing to it; the
    /// next owner creates another log.
    ///
    /// # Errors
    /// Errors of the store. What is left of the log is deleted by the next call.
    pub fn delete_all(&self) -> io::Result<()> {
        let requests = self.requests.clone();
        self.requests.bucket.wait(async move { requests.delete_log().await })
    }

    #[cfg(test)]
    fn wait_for_merges(&self) {
        while self.requests.unfinished_merge_count.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl std::fmt::Debug for ObjectLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectLog").field(&self.requests.bucket.url).finish()
    }
}

impl Drop for ObjectLog {
    fn drop(&mut self) {
        // What is being merged is merged by the next owner.
        self.requests.is_closed.store(true, Ordering::Release);
    }
}

impl LogStorage for ObjectLog {
    fn take_over(&self) -> io::Result<StoredLog> {
        let requests = self.requests.clone();
        self.requests.bucket.wait(async move { requests.take_over().await })
    }

    fn look(&self) -> io::Result<StoredLog> {
        let requests = self.requests.clone();
        self.requests.bucket.wait(async move { requests.look().await })
    }

    fn length(&self, file: FileId) -> io::Result<Option<u64>> {
        let requests = self.requests.clone();
        self.requests.bucket.wait(async move { requests.measure(file).await })
    }

    fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (requests, bytes) = (self.requests.clone(), bytes.to_vec());
        self.requests.bucket.wait(async move { requests.append(file, offset, &bytes).await })
    }

    /// Bytes are durable once the name of the file is stored with their length: until then, no owner uses them.
    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (requests, bytes) = (self.requests.clone(), bytes.to_vec());
        self.requests.bucket.wait(async move { requests.write_content(file, offset, &bytes).await })
    }

    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (requests, length) = (self.requests.clone(), buffer.len() as u64);
        let bytes = self.requests.bucket.wait(async move { requests.read(file, offset, length).await })?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        let (requests, changes, unnamed) = (self.requests.clone(), changes.to_vec(), unnamed.to_vec());
        self.requests.bucket.wait(async move { requests.change_names(&changes, &unnamed).await })
    }

    fn delete(&self, file: &StoredFile) -> io::Result<()> {
        let (requests, file) = (self.requests.clone(), file.clone());
        self.requests.bucket.wait(async move { requests.delete(&file).await })
    }
}

impl Requests {
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    async fn take_over(self: Arc<Self>) -> io::Result<StoredLog> {
        self.bucket.probe().await.map_err(io::Error::other)?;
        let mut owned = self.owned.lock().await;
        // Before the names are: a file without a name that is found then has lost it for good.
        let found = self.all_segments().await?;
        let taken = self.advance_epoch().await?;
        let names = taken.names.clone();
        self.epoch.store(names.epoch, Ordering::Release);
        self.contents.lock().replace(&names);
        self.delete_names_before(taken.number).await;
        *owned = Some(taken);
        drop(owned);
        let log = names.stored()?;
        *self.segments.lock() = HashMap::new();
        for file in names.unnamed_files()? {
            self.delete(&file).await?;
        }
        for (file, index) in found {
            match log.files.iter().any(|named| named.id == file) {
                true => _ = self.segments.lock().insert(file, Arc::new(Segment::found(index))),
                // Late requests of an earlier owner have stored it.
                false if index.is_some() => self.delete_segment(file).await?,
                false => {}
            }
        }
        let fenced = stream::iter(log.files.clone()).map(|mut file| {
            let this = self.clone();
            async move {
                if file.state == FileState::Open {
                    file.bytes = this.fence(file.id).await?;
                }
                Ok::<_, io::Error>(file)
            }
        });
        let files = fenced.buffered(CONCURRENT_REQUESTS).try_collect::<Vec<_>>().await?;
        for file in files.iter().filter(|file| file.state == FileState::Sealed) {
            self.start_merge(file);
        }
        Ok(StoredLog { id: log.id, files })
    }

    async fn look(self: Arc<Self>) -> io::Result<StoredLog> {
        loop {
            let newest = self.newest().await?.filter(|(_, names)| !names.is_deleted());
            let (number, names) = newest.ok_or_else(|| no_log(&self.bucket))?;
            let mut log = names.stored()?;
            self.contents.lock().extend(&names);
            let mut is_certain = true;
            for file in log.files.iter_mut().filter(|file| file.state == FileState::Open) {
                let length = self.measure(file.id).await?;
                file.bytes = length.unwrap_or(0);
                is_certain &= length.is_some();
            }
            // A file without bytes is new, unless it was deleted meanwhile.
            if is_certain || self.newest().await?.is_some_and(|(newest, _)| newest == number) {
                return Ok(log);
            }
        }
    }

    async fn read(self: Arc<Self>, file: FileId, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let written = self.contents.lock().find(file);
        match written {
            Some(written) => self.read_content(file, &written, offset, length).await,
            None => self.read_segment(file, offset, length).await,
        }
    }

    async fn change_names(self: Arc<Self>, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        let mut owned = self.owned.lock().await;
        let before = owned.clone().ok_or_else(not_owned)?;
        let writings = self.finish_contents(changes).await?;
        let changed = self.store_changes(before, changes, unnamed, &writings).await?;
        self.contents.lock().replace(&changed.names);
        *owned = Some(changed);
        drop(owned);
        for change in changes {
            if let NameChange::Set(file) = change
                && file.state == FileState::Sealed
            {
                self.start_merge(file);
            }
        }
        Ok(())
    }

    async fn delete(&self, file: &StoredFile) -> io::Result<()> {
        let is_named = self.owned.lock().await.as_ref().is_some_and(|owned| owned.names.has(file.id));
        if is_named {
            return Err(io::Error::other("a file with a name is deleted"));
        }
        match file.state {
            FileState::Whole => self.delete_content(file.id).await?,
            FileState::Open | FileState::Sealed => self.delete_segment(file.id).await?,
        }
        // The next change of names stores that.
        if let Some(owned) = &mut *self.owned.lock().await {
            owned.forget(file.id);
        }
        Ok(())
    }

    async fn delete_log(self: Arc<Self>) -> io::Result<()> {
        self.clone().take_over().await?;
        self.is_closed.store(true, Ordering::Release);
        // A merge may be storing its object.
        let _turn = self.merging.acquire().await.map_err(io::Error::other)?;
        let mut owned = self.owned.lock().await;
        let taken = owned.clone().ok_or_else(not_owned)?;
        // Before the names say that the log was deleted: the next owner may create another one from then on.
        let mut listed = self.segment_objects().await?;
        listed.extend(self.list(contents::DIRECTORY, None).await?.into_iter().map(|(name, _)| name));
        if !self.advance(taken.number + 1, &mut Names::deleted(taken.names.epoch)).await? {
            return Err(Deposed.into());
        }
        *owned = None;
        self.delete_listed(listed.into_iter()).await?;
        self.delete_names_before(taken.number + names::KEPT_COUNT).await;
        Ok(())
    }

    /// Creates an object of which each attempt has other bytes, by a random number in them. If its outcome is unknown,
    /// it is repeated for as long as the store may stay silent.
    async fn create(&self, name: &str, bytes: Bytes) -> io::Result<Creation> {
        let deadline = Instant::now() + self.bucket.timeout;
        let mut pause = PAUSES.0;
        loop {
            let error = match self.bucket.create(name, bytes.clone()).await {
                Ok(()) => return Ok(Creation::Created),
                Err(error) => error,
            };
            match self.bucket.read_if_any(name).await {
                // The answer to this attempt, or to an earlier one, was lost.
                Ok(Some(stored)) if stored == bytes => return Ok(Creation::Created),
                Ok(Some(stored)) => return Ok(Creation::Collided(stored)),
                // An attempt that was given up may still arrive. The next one either succeeds, or finds it.
                Ok(None) | Err(_) if !is_permanent(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(pause).await;
                }
                Ok(None) | Err(_) => return Err(self.failed("create", name, error)),
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The names and sizes of the objects below a directory, in order; only those behind `after`.
    async fn list(&self, directory: &str, after: Option<&str>) -> io::Result<Vec<(String, u64)>> {
        let path = self.bucket.path(directory);
        let listed = match after {
            Some(after) => self.bucket.store.list_with_offset(Some(&path), &self.bucket.path(after)),
            None => self.bucket.store.list(Some(&path)),
        };
        let listed = listed.try_collect::<Vec<ObjectMeta>>().await;
        let listed = listed.map_err(|error| self.failed("list", directory, error))?;
        let named = listed.iter().filter_map(|object| Some((self.bucket.name(&object.location)?, object.size)));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        Ok(named)
    }

    async fn delete_listed(&self, names: impl Iterator<Item = String>) -> io::Result<()> {
        let names: Vec<_> = names.collect();
        let deletions = names.into_iter().map(|name| async move {
            self.bucket.delete(&name).await.map_err(|error| self.failed("delete", &name, error))
        });
        stream::iter(deletions).buffered(CONCURRENT_REQUESTS).try_collect().await
    }

    fn failed(&self, operation: &str, name: &str, error: StoreError) -> io::Error {
        let kind = match &error {
            StoreError::NotFound { .. } => io::ErrorKind::NotFound,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.bucket.failed(operation, name, error))
    }
}

/// Whether a repetition of a creation would fail, too.
fn is_permanent(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::PermissionDenied { .. }
            | StoreError::Unauthenticated { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::NotSupported { .. }
    )
}

fn not_owned() -> io::Error {
    io::Error::other("the log was not taken over")
}

fn no_log(bucket: &Bucket) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no log in {}", bucket.url))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} in the bucket can't be read"))
}
