//! The public API: every public operation on a database starts here.

mod encryption;
mod expiration;
mod files;
mod history;
mod indexes;
mod local_documents;
mod maintenance;
mod salvage;
mod schemas;
mod views;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use serde::Serialize;

use crate::Result;
use crate::backup::FollowerState;
use crate::changes::{
    Changes, Hub, PathSubscription, Subscription, SuspendedWatch, TopicHub, TopicSubscription, Watch,
};
use crate::document::Document;
use crate::engine::directory::{self, OpenedDirectory};
use crate::engine::{Edit, Info, Operation, Store, Transaction, Upkeeper};
use crate::history::At;
use crate::keys::{ExpiringKeys, Keys};
use crate::options::{Durability, Options, Progress};
use crate::publish::Notifier;
use crate::query::{Find, Query};
use crate::read::{Branch, Snapshot};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::sync::Mutex;
use crate::transact::{self, Attempt, ReadValidation};
use crate::tree::Tree;
use crate::value::{Patch, Value};
use crate::vfs::{DatabaseLock, Vfs};
use crate::view::{OpenView, View, ViewRegistry};

pub use encryption::{decrypt, encrypt};
pub use expiration::Expiration;
pub use files::Files;
pub use history::History;
pub use indexes::Indexes;
pub use local_documents::LocalDocuments;
pub use maintenance::Maintenance;
pub use salvage::{salvage_database, salvage_encrypted_database};
pub use schemas::Schemas;
pub use views::Views;

/// An open document database. Cheap to clone; every method may be called from any thread.
///
/// Every write returns once it is as durable as [`Options::durability`] requires: by default, flushed to disk. Every
/// field is indexed from the first write. Operations on views, indexes, files, schemas, expiration, `_local` documents
/// and maintenance are grouped under [`Database::views`], [`Database::indexes`], [`Database::files`],
/// [`Database::schemas`], [`Database::expiration`], [`Database::local_documents`], [`Database::history`] and
/// [`Database::maintenance`].
///
/// ```
/// use stemmadb::{Database, field};
///
/// # fn main() -> stemmadb::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("stemma-doc-{}", std::process::id()));
/// # let path = directory.join("library.stemma");
/// let db = Database::open(&path)?;
/// db.insert("lem-1961", &serde_json::json!({"title": "Solaris", "year": 1961}))?;
/// let found = db.find(field("year").ge(1960)).sort("year").limit(10).documents()?;
/// assert_eq!(found[0].get("title")?, Some("Solaris".into()));
/// # drop(db); std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Database {
    handle: Arc<Handle>,
    /// The durability of writes made through this clone.
    durability: Durability,
}

/// What all clones share. Dropping it closes the database.
struct Handle {
    store: Arc<Store>,
    upkeeper: Mutex<Option<Upkeeper>>,
    hub: Arc<Hub>,
    topics: TopicHub,
    /// The names of the running triggers.
    triggers: Arc<Mutex<BTreeSet<String>>>,
    expiring: Arc<ExpiringKeys>,
    views: Arc<ViewRegistry>,
    path: Option<PathBuf>,
    followers: Mutex<Vec<Weak<FollowerState>>>,
    /// Released when everything else is closed.
    lock: Mutex<Option<Arc<DatabaseLock>>>,
}

impl Database {
    /// Opens the database in the directory `path`, creating it if it doesn't exist.
    ///
    /// # Errors
    /// `Locked` if another process has it open; `Unavailable` if the disk is full or read-only; `Invalid` if the
    /// directory is not a database; `Corrupt` if stored bytes are damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Opens the database in the directory `path` with the given options.
    ///
    /// # Errors
    /// Those of [`Database::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let observer = options.rebuild_observer.clone();
        let opened = directory::open(path.as_ref(), options)?;
        Self::start_opened(opened, &mut |progress| observer.report(progress))
    }

    /// Creates a database in memory. It works like one on disk, and is gone when its last clone is dropped.
    pub fn in_memory() -> Self {
        Self::in_memory_with(Options::default()).expect("opening a database in memory does no I/O")
    }

    /// Creates a database in memory with the given options.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be started.
    pub fn in_memory_with(options: Options) -> Result<Self> {
        let (vfs, tree) = directory::in_memory(&options)?;
        Self::start(vfs, tree, options, None, None, &mut |_| ())
    }

    /// Opens the closed database at `path` after rebuilding everything that is derived from its log; reports to
    /// `progress`.
    ///
    /// If the log can't be read to its end, the database is left unchanged.
    ///
    /// # Errors
    /// Those of [`Database::open`].
    pub fn rebuild(path: impl AsRef<Path>, options: Options, mut progress: impl FnMut(Progress)) -> Result<Self> {
        directory::rebuild(path.as_ref(), options, |opened| Self::start_opened(opened, &mut progress))
    }

    pub(crate) fn start_opened(opened: OpenedDirectory, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let OpenedDirectory { vfs, tree, options, path, lock } = opened;
        Self::start(vfs, tree, options, Some(path), Some(lock), progress)
    }

    pub(crate) fn start(
        vfs: Arc<dyn Vfs>,
        tree: Tree,
        options: Options,
        path: Option<PathBuf>,
        lock: Option<Arc<DatabaseLock>>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let durability = options.durability;
        let store = Store::open(vfs, tree, options, progress)?;
        let hub = Hub::attach(&store.parts.publisher);
        let views = ViewRegistry::new(&store);
        let upkeeper = Mutex::new(Some(Upkeeper::start(&store)?));
        let expiring = Arc::default();
        let lock = Mutex::new(lock);
        let followers = Mutex::default();
        let (topics, triggers) = (TopicHub::default(), Arc::default());
        let handle = Handle { store, upkeeper, hub, topics, triggers, expiring, views, path, followers, lock };
        let database = Database { handle: Arc::new(handle), durability };
        database.handle.views.start()?;
        Ok(database)
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    /// The names of the running triggers.
    pub(crate) fn trigger_names(&self) -> &Arc<Mutex<BTreeSet<String>>> {
        &self.handle.triggers
    }

    #[cfg(test)]
    pub(crate) fn hub(&self) -> &Hub {
        &self.handle.hub
    }

    /// Returns the database's directory, or `None` if it is in memory.
    pub fn path(&self) -> Option<&Path> {
        self.handle.path.as_deref()
    }

    /// Returns a handle to the same database whose writes have the given durability instead of [`Options::durability`].
    /// Cheap.
    ///
    /// ```
    /// # use stemmadb::{Database, Durability};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let unsynced = db.with_durability(Durability::None);
    /// unsynced.insert("draft", &serde_json::json!({"text": "to be continued"}))?;
    /// db.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Database { handle: self.handle.clone(), durability }
    }

    /// Creates the document `id`; returns its revision.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Duplicate` if it has a value that a unique index already holds; `Invalid` for a bad id
    /// or a body that is not an object.
    pub fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the document `id` if its current revision is `revision`; returns the new revision.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Duplicate` if it has a value
    /// that a unique index already holds; `Invalid` for a bad body.
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates or replaces the document `id`, whatever its current revision; returns the new revision.
    ///
    /// # Errors
    /// `Duplicate` if it has a value that a unique index already holds; `Invalid` for a bad id or a body that is not an
    /// object.
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of the document `id`, whatever its current revision, and keeps the rest; returns the new revision,
    /// or the current one if the patch changes nothing.
    ///
    /// The change is atomic: no other write happens between reading the document and writing it. To change only a given
    /// revision, apply [`Edit::Update`].
    ///
    /// # Errors
    /// `NotFound` if there is no such document; `Invalid` if the patch is malformed or doesn't fit the document;
    /// `Duplicate` if it gets a value that a unique index already holds.
    pub fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Applies a patch to all documents that match a query, in one transaction; returns how many of them changed.
    ///
    /// All documents change or none. Costs memory in proportion to the changed documents, and other writers wait:
    /// change millions of documents in several calls, with a query that has a limit and leaves out what is done.
    ///
    /// ```
    /// # use stemmadb::{Database, Patch, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// # db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let count = db.update_where(field("year").lt(1970), &Patch::new().set("is_old", true))?;
    /// assert_eq!(count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the query or the patch is malformed, or the patch doesn't fit a document; those of
    /// [`Database::write`].
    pub fn update_where(&self, query: impl Into<Query>, patch: &Patch) -> Result<u64> {
        transact::update_where(self.store(), self.durability, query.into(), patch)
    }

    /// Deletes all documents that match a query, in one transaction; returns how many were deleted. Costs as
    /// [`Database::update_where`] does.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; those of [`Database::write`].
    pub fn delete_where(&self, query: impl Into<Query>) -> Result<u64> {
        transact::delete_where(self.store(), self.durability, query.into())
    }

    /// Deletes the document `id` if its current revision is `revision`; returns the deletion's revision.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit; returns the new revision.
    ///
    /// # Errors
    /// Those of the method with the edit's name.
    pub fn edit(&self, edit: Edit) -> Result<Revision> {
        self.store().edit(self.durability, edit)
    }

    /// Applies several edits independently: one may fail while the others succeed. All share one log write and one
    /// flush.
    ///
    /// # Errors
    /// For the whole call: those of [`Database::write`]. For each edit: those of the method with the edit's name.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.store().bulk(self.durability, edits)
    }

    /// Runs `work` as a serializable, atomic transaction. If `work` returns an error, the transaction is rolled back.
    ///
    /// Other writers wait while `work` runs, so keep it short. Inside it, write through the transaction: a write to the
    /// database itself is refused with `Invalid`, and so is maintenance. [`Database::optimistic`] blocks nobody.
    ///
    /// # Errors
    /// Those of `work`; `Duplicate` if the committed state would violate a unique index; `Unavailable` or `Closed` if
    /// the log can't be written.
    pub fn write<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Result<T>) -> Result<T> {
        self.store().write(self.durability, work)
    }

    /// Runs `work` as an optimistic transaction: it reads a snapshot without a lock, and commits if nothing it read has
    /// changed since. Otherwise `work` runs again. Serializable and atomic, as [`Database::write`] is.
    ///
    /// Suited to work that takes long or that rarely conflicts. `work` may run several times, so it must have no other
    /// side effects. A commit costs one check for each change since the snapshot.
    ///
    /// ```
    /// # use stemmadb::{Database, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let number = db.optimistic(|tx| {
    ///     let number = tx.find(field("kind").eq("invoice"))?.count()? + 1;
    ///     tx.insert(&format!("invoice:{number}"), &serde_json::json!({"kind": "invoice", "number": number}))?;
    ///     Ok(number)
    /// })?;
    /// assert_eq!(number, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `work`; `Conflict` after a hundred conflicting attempts; `Unavailable` or `Closed` if the log can't be
    /// written.
    pub fn optimistic<T>(&self, work: impl FnMut(&mut Attempt<'_>) -> Result<T>) -> Result<T> {
        transact::optimistic(self.store(), self.durability, ReadValidation::Enabled, work)
    }

    /// Returns the document `id`, or `None` if it doesn't exist or is deleted.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        self.store().get(id)
    }

    /// Returns a given revision of the document `id`, deletions included, if its body is still stored. Leaf revisions
    /// always are.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        self.snapshot()?.get_revision(id, revision)
    }

    /// Returns the branches of the revision tree of the document `id`, the winning branch first.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn revisions(&self, id: &str) -> Result<Vec<Branch>> {
        self.snapshot()?.revisions(id)
    }

    /// Opens a namespace of key-value pairs, counters and keys with a time to live, kept beside the documents: see
    /// [`Keys`].
    ///
    /// # Errors
    /// `Invalid` if the name is empty, longer than 100 bytes, or contains a slash.
    pub fn keys(&self, namespace: &str) -> Result<Keys> {
        Keys::new(self.store(), &self.handle.expiring, self.durability, namespace)
    }

    /// Finds the documents that match a selector or a whole [`Query`].
    ///
    /// Returns a builder: add sort, limit or fields, then ask it for documents, ids, values or a count. Nothing runs
    /// before that.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        Find::newest(self.store(), query.into())
    }

    /// Prepares a query that will run many times: checked here, planned once, then passed to [`Database::find`] by
    /// reference.
    ///
    /// This saves parsing, checking and planning on each run: about a microsecond for a simple condition, much more for
    /// long lists and patterns. The result of a prepared equality query that matches fewer than 16 documents is also
    /// cached, within a share of [`Options::cache_bytes`](crate::Options::cache_bytes), until a write changes that
    /// result. The plan is remade when new documents introduce new paths. Limit, page and snapshot may vary between
    /// runs; a different sort order is a different query.
    ///
    /// ```
    /// # use stemmadb::{Database, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let recent = db.prepare(field("year").ge(2020))?;
    /// db.insert("new", &serde_json::json!({"year": 2024}))?;
    /// assert_eq!(db.find(&recent).limit(10).ids()?.count(), 1);
    /// assert_eq!(db.find(&recent).count()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid`, naming what is wrong with the query.
    pub fn prepare(&self, query: impl Into<Query>) -> Result<Query> {
        query.into().with_plan_cache()
    }

    /// Takes a snapshot: an immutable state of the database, for several reads that must agree.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.store().snapshot()
    }

    /// A snapshot of the database as it was at a point in the past: a [`Sequence`], a time, or how
    /// long ago. Everything that a snapshot answers, it answers as of then, by today's indexes.
    ///
    /// How far it reaches back: [`History`]. Costs two reads of the log for each document that was changed since the
    /// last checkpoint before then, once; further questions cost what they do now.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stemmadb::{Database, field, past::At};
    ///
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let then = db.sequence();
    /// db.insert("eden", &serde_json::json!({"year": 1958}))?;
    /// assert_eq!(db.as_of(then)?.find(field("year").ge(1900)).count()?, 1);
    /// assert_eq!(db.as_of(At::Ago(Duration::ZERO))?.find(field("year").ge(1900)).count()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a sequence in the future; `NotFound` before [`History::oldest`], with the sequence from which on
    /// the database can be read.
    pub fn as_of(&self, at: impl Into<At>) -> Result<Snapshot> {
        let store = self.store();
        store.as_of(at.into().sequence(store)?)
    }

    /// Returns the operations on the past.
    pub fn history(&self) -> History<'_> {
        History::new(self)
    }

    /// Iterates over the changes after `since`, up to the newest. `Sequence::ZERO` means all.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub fn changes(&self, since: Sequence) -> Result<Changes> {
        Ok(self.snapshot()?.changes(since))
    }

    /// Subscribes to the changes feed: returns the changes after `since`, and then each new one as it is published.
    pub fn subscribe(&self, since: Sequence) -> Subscription {
        Subscription::new(self.store(), since)
    }

    /// Starts a live query: returns the current result, and then what each published transaction changes in it.
    ///
    /// The first read of it runs the query. Each write then costs a few lookups, however many live queries there are,
    /// plus the delivery of the deltas to those whose result changes.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong, or has a sort order, limit or projection: the result of a live query is a set.
    pub fn watch(&self, query: impl Into<Query>) -> Result<Watch> {
        Watch::new(self.store(), &self.handle.hub, query.into())
    }

    /// Subscribes to future changes of the values whose paths match one of the patterns.
    ///
    /// A pattern has levels separated by `/`: field names from the document down, and positions of array elements. `+`
    /// matches any one level; `#`, only at the end, matches the value there and everything within it:
    /// `orders/+/status`, `orders/#`, `#`. The path `_id` continues with the parts of the id between slashes, and
    /// changes with every write of the document: `_id/orders/+`. A backslash escapes `/`, `+`, `#` and `\`.
    ///
    /// # Errors
    /// `Invalid` if a pattern is wrong, or if there is none.
    pub fn subscribe_paths<P: AsRef<str>>(&self, patterns: impl IntoIterator<Item = P>) -> Result<PathSubscription> {
        PathSubscription::new(self.store(), &self.handle.hub, patterns)
    }

    /// Passes a message to the current subscribers of a topic, in memory and at most once; returns their number.
    /// Nothing is stored. The cost grows with the number of subscriptions of the database.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// let mut paid = db.subscribe_topic(["orders/+/paid"])?;
    /// assert_eq!(db.publish("orders/17/paid", &serde_json::json!({"total": 30}))?, 1);
    /// let message = paid.next_message().expect("the database is open");
    /// assert_eq!((message.topic.as_str(), message.payload.get("total")), ("orders/17/paid", Some(&30.into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the topic is empty, longer than 1,024 bytes, or has a wildcard, or if the payload is not JSON.
    pub fn publish<P: Serialize + ?Sized>(&self, topic: &str, payload: &P) -> Result<usize> {
        self.handle.topics.publish(topic, Value::from_serialize(payload)?)
    }

    /// Subscribes to the messages of topics that match one of the patterns, from now on. A topic has levels separated
    /// by `/`; `+` matches any one level, and `#`, only at the end, the rest: `orders/+/paid`, `orders/#`.
    ///
    /// # Errors
    /// `Invalid` if a pattern is malformed, or if there is none.
    pub fn subscribe_topic<P: AsRef<str>>(&self, patterns: impl IntoIterator<Item = P>) -> Result<TopicSubscription> {
        self.handle.topics.subscribe(patterns)
    }

    /// Returns the newest published sequence.
    pub fn sequence(&self) -> Sequence {
        self.store().parts.publisher.published()
    }

    /// Returns counts and sizes.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<Info> {
        self.store().info()
    }

    /// Flushes every earlier write to disk, whatever its durability.
    ///
    /// # Errors
    /// `Unavailable` or `Closed` if the log can't be flushed.
    pub fn flush(&self) -> Result<()> {
        self.store().flush()
    }

    /// Opens a view written in Rust: a stored, incrementally updated summary of the documents, queried by ranges of
    /// keys.
    ///
    /// Opening costs nothing. The first query builds the view's rows; later ones first apply the writes made since.
    /// [`Database::views`] opens views declared as JSON or given as functions.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if the rows of an older version can't be removed.
    pub fn view<V: View>(&self, view: V) -> Result<OpenView<V>> {
        self.handle.views.open(view)
    }

    /// Returns the operations on views declared as JSON or given as functions.
    pub fn views(&self) -> Views<'_> {
        Views::new(self)
    }

    /// Returns the operations on secondary indexes: create, remove, list.
    pub fn indexes(&self) -> Indexes<'_> {
        Indexes::new(self)
    }

    /// Returns the operations on files attached to documents: attach, open, detach.
    pub fn files(&self) -> Files<'_> {
        Files::new(self)
    }

    /// Returns the operations on the JSON Schemas that documents must match.
    pub fn schemas(&self) -> Schemas<'_> {
        Schemas::new(self)
    }

    /// Returns the operations on document expiration (TTL).
    pub fn expiration(&self) -> Expiration<'_> {
        Expiration::new(self)
    }

    /// Returns the operations on `_local` documents, which are not replicated.
    pub fn local_documents(&self) -> LocalDocuments<'_> {
        LocalDocuments::new(self)
    }

    /// Returns the maintenance operations: check, checkpoint, compact.
    pub fn maintenance(&self) -> Maintenance<'_> {
        Maintenance::new(self)
    }

    /// Closes the database for all its clones: ends background work, flushes and merges all writes, and releases the
    /// lock. Whatever is left of it, such as clones, snapshots and iterators, returns `Closed` from then on. Closing it
    /// again does nothing. Dropping the last clone closes the database too, but can't report errors.
    ///
    /// # Errors
    /// `Unavailable` if files can't be written. Writes that were acknowledged as flushed are safe even then. `Invalid`
    /// within a transaction of this database.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        self.store.refuse_reentry(Operation::Close)?;
        // Held until the end: whoever closes the database at the same time waits until it is closed.
        let mut upkeeper = self.upkeeper.lock();
        let Some(upkeeper) = upkeeper.take() else { return Ok(()) };
        self.topics.close();
        // If a view's rows in memory can't be written, they are rebuilt from the log at the next open.
        let saved = self.views.close();
        let stopped = upkeeper.stop(&self.store);
        self.lock.lock().take();
        stopped.and(saved)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // An error can't be reported here. Everything acknowledged is in the log already.
        self.close().ok();
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.path()).field("sequence", &self.sequence()).finish()
    }
}

impl SuspendedWatch {
    /// Resumes the live query. Its first delta is what changed since the suspension, if anything did.
    ///
    /// # Errors
    /// `Invalid` if it was suspended in another database.
    pub fn resume(self, database: &Database) -> Result<Watch> {
        Watch::resume(database.store(), &database.handle.hub, self)
    }
}

impl Notifier {
    /// Calls `callback` with the newest sequence once now and then after each publication, until the `Notifier` is
    /// dropped.
    ///
    /// The callback runs on the writers' threads, so it must neither block nor use the database. One call may stand for
    /// several publications.
    pub fn new(database: &Database, callback: impl Fn(Sequence) + Send + Sync + 'static) -> Notifier {
        database.store().parts.publisher.notify(Box::new(callback))
    }
}
