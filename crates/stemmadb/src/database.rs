//! The public face: a database that is opened, written, read and followed.

mod expiry;
mod peers;
mod salvage;
mod schemas;
mod views;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::Result;
use crate::changes::{Changes, Hub, PathSubscription, Subscription, Suspended, Watch};
use crate::document::Document;
use crate::engine::directory::{self, OpenedDirectory};
use crate::engine::{CheckReport, Duplicates, Edit, IndexInfo, Info, Progress, Store, Swept, Transaction, Upkeeper};
use crate::index::Index;
use crate::keys::{Expiring, Keys};
use crate::log::{Blob, BlobReader, DatabaseLock, MemoryVfs, Vfs};
use crate::options::{Durability, Options};
use crate::query::{Find, Query};
use crate::read::{Branch, PathInfo, Snapshot};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::sync::Mutex;
use crate::transact::{self, Attempt, Checking};
use crate::tree::{MemoryTree, Tree};
use crate::value::Value;
use crate::view::Views;

/// A database of documents. Cheap to clone; every method may be called from any thread.
///
/// Every write returns when it is as durable as [`Options::durability`] says, by default flushed to the disk, and every
/// field is indexed from the first write.
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
}

/// Closes the database when its last clone is dropped.
struct Handle {
    store: Arc<Store>,
    upkeeper: Mutex<Option<Upkeeper>>,
    hub: Arc<Hub>,
    expiring: Arc<Expiring>,
    views: Arc<Views>,
    path: Option<PathBuf>,
    /// Held until everything else is closed.
    _lock: Option<Arc<DatabaseLock>>,
}

impl Database {
    /// Opens the database in the directory `path`; makes it if there is none.
    ///
    /// # Errors
    /// `Locked` if another process has it open; `Unavailable` if the disk is full or read-only; `Invalid` if the directory is something
    /// else; `Corrupt` if stored bytes are damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Opens the database in the directory `path`, in your own way.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_showing(path.as_ref(), options, &mut |_| ())
    }

    /// A database in memory: the same in every way, and gone when its last clone is dropped.
    pub fn in_memory() -> Self {
        Self::in_memory_with(Options::default()).expect("a database in memory has nothing to fail on")
    }

    /// A database in memory, in your own way.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be started.
    pub fn in_memory_with(options: Options) -> Result<Self> {
        Self::start(Arc::new(MemoryVfs::new()), Box::new(MemoryTree::new()), options, None, None, &mut |_| ())
    }

    /// Builds what is derived from the log anew, for the closed database at `path`, and opens it; `progress` hears of it. If the log
    /// can't be read to its end, everything is left as it was.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn rebuild(path: impl AsRef<Path>, options: Options, mut progress: impl FnMut(Progress)) -> Result<Self> {
        directory::rebuild(path.as_ref(), options, |opened| Self::start_opened(opened, &mut progress))
    }

    fn open_showing(path: &Path, options: Options, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        Self::start_opened(directory::open(path, options)?, progress)
    }

    fn start_opened(opened: OpenedDirectory, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let OpenedDirectory { vfs, tree, options, path, lock } = opened;
        Self::start(vfs, tree, options, Some(path), Some(lock), progress)
    }

    pub(crate) fn start(
        vfs: Arc<dyn Vfs>,
        tree: Box<dyn Tree>,
        options: Options,
        path: Option<PathBuf>,
        lock: Option<Arc<DatabaseLock>>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let store = Store::open(vfs, tree, options, progress)?;
        let hub = Hub::attach(&store.parts.publisher);
        let views = Views::new(&store);
        let upkeeper = Mutex::new(Some(Upkeeper::start(&store)?));
        let expiring = Arc::default();
        let handle = Handle { store, upkeeper, hub, expiring, views, path, _lock: lock };
        let database = Database { handle: Arc::new(handle) };
        database.handle.views.start()?;
        Ok(database)
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    #[cfg(test)]
    pub(crate) fn hub(&self) -> &Hub {
        &self.handle.hub
    }

    fn durability(&self) -> Durability {
        self.store().parts.options.durability
    }

    /// Where it lies; none in memory.
    pub fn path(&self) -> Option<&Path> {
        self.handle.path.as_deref()
    }

    /// Creates the document `id`; returns its revision.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Duplicate` if another document has a value that is declared unique; `Invalid` for a bad id or a body that is no
    /// object.
    pub fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the revision that was read; returns the new one.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Duplicate` if another document has a value that is
    /// declared unique; `Invalid` for a bad body.
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates the document or replaces whatever is current; returns the new revision.
    ///
    /// # Errors
    /// `Duplicate` if another document has a value that is declared unique; `Invalid` for a bad id or a body that is no object.
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Deletes the revision that was read; returns the revision of the deletion.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit.
    ///
    /// # Errors
    /// As the method of the edit's name.
    pub fn edit(&self, edit: Edit) -> Result<Revision> {
        self.store().edit(self.durability(), edit)
    }

    /// Applies one edit, as durable as you say.
    ///
    /// # Errors
    /// As the method of the edit's name.
    pub fn edit_with(&self, durability: Durability, edit: Edit) -> Result<Revision> {
        self.store().edit(durability, edit)
    }

    /// Applies each edit on its own merits: one may fail while the others stand. One write and one flush serve all.
    ///
    /// # Errors
    /// Of the whole: as [`Database::write`]. Of each: as the method of the edit's name.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.store().bulk(self.durability(), edits)
    }

    /// As [`Database::bulk`], as durable as you say.
    ///
    /// # Errors
    /// As [`Database::bulk`].
    pub fn bulk_with(&self, durability: Durability, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.store().bulk(durability, edits)
    }

    /// Runs `work` as a transaction: serialisable, all or nothing. If `work` fails, nothing of it happens.
    ///
    /// Other writers wait meanwhile, so keep `work` short, and don't write through the database itself inside it.
    ///
    /// # Errors
    /// Those of `work`; `Duplicate` if it leaves two documents with a value that is declared unique, which is asked when it is done;
    /// `Unavailable` or `Closed` if the log can't be written.
    pub fn write<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Result<T>) -> Result<T> {
        self.store().write(self.durability(), work)
    }

    /// As [`Database::write`], as durable as you say.
    ///
    /// # Errors
    /// As [`Database::write`].
    pub fn write_with<T>(
        &self,
        durability: Durability,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        self.store().write(durability, work)
    }

    /// Runs `work` as a transaction that holds nobody up: it reads one state without a lock, and commits if nothing it read has
    /// changed by then; else it runs again. Serialisable and all or nothing, as [`Database::write`] is.
    ///
    /// For work that takes long, or that seldom meets others. `work` may run several times, so let it do nothing that can't be done
    /// twice. Commits cost a look at each change since it began.
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
    /// Those of `work`; `Conflict` if others interfered a hundred times; `Unavailable` or `Closed` if the log can't be written.
    pub fn optimistic<T>(&self, work: impl FnMut(&mut Attempt<'_>) -> Result<T>) -> Result<T> {
        self.optimistic_with(self.durability(), work)
    }

    /// As [`Database::optimistic`], as durable as you say.
    ///
    /// # Errors
    /// As [`Database::optimistic`].
    pub fn optimistic_with<T>(
        &self,
        durability: Durability,
        work: impl FnMut(&mut Attempt<'_>) -> Result<T>,
    ) -> Result<T> {
        transact::optimistic(self.store(), durability, Checking::Reads, work)
    }

    /// The document `id`, or none if there is none or it is deleted.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        self.store().get(id)
    }

    /// Stores content for a file, in constant memory, however long it is; returns when it is flushed. It becomes a document's with
    /// [`Transaction::attach`], and is kept at least as long as it is held. The same content is stored once.
    ///
    /// # Errors
    /// Those of `content`; `Unavailable` if the disk is full or can't be written.
    pub fn store_content(&self, mut content: impl Read) -> Result<Arc<Blob>> {
        self.store().store_content(&mut content)
    }

    /// Gives a document a file, or other content to the one it has; returns the new revision. Constant memory, however long it is.
    ///
    /// ```
    /// # use std::io::Read;
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let first = db.insert("solaris", &serde_json::json!({"title": "Solaris"}))?;
    /// db.attach("solaris", &first, "cover.txt", "text/plain", &b"an ocean"[..])?;
    /// let mut cover = String::new();
    /// db.attachment("solaris", "cover.txt")?.expect("just attached").read_to_string(&mut cover)?;
    /// assert_eq!(cover, "an ocean");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::store_content`] and [`Transaction::attach`].
    pub fn attach(
        &self,
        id: &str,
        revision: &Revision,
        name: &str,
        content_type: &str,
        content: impl Read,
    ) -> Result<Revision> {
        let content = self.store_content(content)?;
        let (name, content_type) = (name.to_owned(), content_type.to_owned());
        self.edit(Edit::Attach { id: DocumentId::new(id)?, revision: *revision, name, content_type, content })
    }

    /// Takes a file away from a document; returns the new revision. Its content is removed when nothing names it any more.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document or file.
    pub fn detach(&self, id: &str, revision: &Revision, name: &str) -> Result<Revision> {
        self.edit(Edit::Detach { id: DocumentId::new(id)?, revision: *revision, name: name.to_owned() })
    }

    /// Opens the file `name` of the document `id`: read it, or seek to the range you want. None if there is none.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged or lost; `Unavailable` if it can't be read.
    pub fn attachment(&self, id: &str, name: &str) -> Result<Option<BlobReader>> {
        let snapshot = self.snapshot()?;
        match snapshot.get(id)? {
            Some(document) => snapshot.open_attachment(&document, name),
            None => Ok(None),
        }
    }

    /// Removes the content of files that no document has any more. Never needed: it happens by itself.
    ///
    /// # Errors
    /// `Unavailable` if the disk can't be written; `Corrupt` if stored bytes are damaged.
    pub fn sweep(&self) -> Result<Swept> {
        self.store().sweep_content()
    }

    /// The revision `revision` of the document `id`, a deletion too, while its body is kept: every leaf's is.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        self.snapshot()?.get_revision(id, revision)
    }

    /// The lines of descent of the document `id`, the winner's first.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn revisions(&self, id: &str) -> Result<Vec<Branch>> {
        self.snapshot()?.revisions(id)
    }

    /// The `_local` document `id` (`_local/…`) and its revision's number: one that is neither indexed, nor in the feed, nor
    /// replicated.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_local(&self, id: &str) -> Result<Option<(u64, Value)>> {
        self.snapshot()?.local_value(id)
    }

    /// Writes the `_local` document `id`; `expected` is the number it must have now, or none to overwrite. Returns its new number.
    ///
    /// # Errors
    /// `Conflict` if it is not at `expected`; `Invalid` for a bad id or body.
    pub fn put_local<B: Serialize + ?Sized>(&self, id: &str, expected: Option<u64>, body: &B) -> Result<u64> {
        let body = Value::from_serialize(body)?;
        self.write(|transaction| transaction.put_local(id, expected, Some(&body)))
    }

    /// Deletes the `_local` document `id`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Conflict` if it is not at `expected`.
    pub fn delete_local(&self, id: &str, expected: Option<u64>) -> Result<()> {
        self.write(|transaction| transaction.put_local(id, expected, None).map(|_| ()))
    }

    /// Keys with values, counters and times to live, beside the documents: see [`Keys`].
    ///
    /// # Errors
    /// `Invalid` if the name is empty, longer than 100 bytes, or has a slash in it.
    pub fn keys(&self, namespace: &str) -> Result<Keys> {
        Keys::new(self.store(), &self.handle.expiring, self.durability(), namespace)
    }

    /// What matches a selector (or a whole [`Query`]): narrow it, then ask for documents, ids, values or a count.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        Find::newest(self.store(), query.into())
    }

    /// A query that is asked again and again: checked here, planned once, and then passed to [`Database::find`] by reference.
    ///
    /// It saves what parsing, checking and planning take each time: about a microsecond for a condition, much more for long
    /// lists and patterns. Where it asks for one value and fewer than 16 documents have that, its documents are kept, within a part
    /// of [`Options::cache_bytes`](crate::Options::cache_bytes), until one of them or whom the value belongs to is changed. A plan is made again when documents bring paths that none had before. Another limit, page or snapshot
    /// keeps it; another sort is another query.
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
        query.into().kept()
    }

    /// A state of the database that never changes, for several reads that must agree.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.store().snapshot()
    }

    /// The changes after `since`, up to now. `Sequence::ZERO` for all.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub fn changes(&self, since: Sequence) -> Result<Changes> {
        Ok(Changes::new(self.snapshot()?, since))
    }

    /// The changes after `since`, and then each as it is published.
    pub fn subscribe(&self, since: Sequence) -> Subscription {
        Subscription::new(self.store(), since)
    }

    /// A live query: what matches now, and then what each published transaction changes in that.
    ///
    /// Costs a run of the query when the first delta is read; and, for each write, a few look-ups, however many watches there are, and what it takes to tell those whose
    /// answer changes.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong or has an order, limit or projection: a live query is a set.
    pub fn watch(&self, query: impl Into<Query>) -> Result<Watch> {
        Watch::new(self.store(), &self.handle.hub, query.into())
    }

    /// Goes on with a watch where it was suspended: its first delta is what changed in between, if anything did.
    ///
    /// # Errors
    /// `Invalid` if it was suspended in another database.
    pub fn resume(&self, suspended: Suspended) -> Result<Watch> {
        Watch::resume(self.store(), &self.handle.hub, suspended)
    }

    /// Each change, from now on, of a value whose path matches one of the patterns.
    ///
    /// A path's levels, divided by `/`, are the names from the document down: of fields, and positions of elements. `+` is any one level;
    /// `#`, which is last, the value there and everything within it: `orders/+/status`, `orders/#`, `#`. The path `_id` goes on with
    /// the parts of the id between slashes, and changes with every write of the document: `_id/orders/+`. A backslash makes `/`, `+`, `#` and
    /// `\` ordinary.
    ///
    /// # Errors
    /// `Invalid` if a pattern is wrong, or there is none.
    pub fn subscribe_paths<P: AsRef<str>>(&self, patterns: impl IntoIterator<Item = P>) -> Result<PathSubscription> {
        PathSubscription::new(self.store(), &self.handle.hub, patterns)
    }

    /// The newest published sequence.
    pub fn sequence(&self) -> Sequence {
        self.store().parts.publisher.published()
    }

    /// Counts and sizes.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<Info> {
        self.store().info()
    }

    /// Flushes everything written so far, whatever the durability it was written with.
    ///
    /// # Errors
    /// `Unavailable` or `Closed` if the log can't be flushed.
    pub fn flush(&self) -> Result<()> {
        self.store().flush()
    }

    /// Merges everything in memory into the tree. Never needed: it happens by itself.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be written.
    pub fn checkpoint(&self) -> Result<()> {
        self.store().checkpoint()
    }

    /// Gives back all space that is not needed; returns the bytes freed in the log. Never needed: it happens by itself, piece by piece.
    ///
    /// # Errors
    /// `Unavailable` if log or tree can't be written; `Corrupt` if stored bytes are damaged.
    pub fn compact(&self) -> Result<u64> {
        self.store().compact(&mut |_| ())
    }

    /// As [`Database::compact`]; `progress` hears of it, in bytes of the log.
    ///
    /// # Errors
    /// As [`Database::compact`].
    pub fn compact_showing(&self, mut progress: impl FnMut(Progress)) -> Result<u64> {
        self.store().compact(&mut progress)
    }

    /// Declares an index and builds it: others read and write meanwhile, and a crash only delays it. Complete on return. One that is declared
    /// in the same way already costs nothing, so a program may declare its indexes whenever it starts.
    ///
    /// ```
    /// # use stemmadb::{Database, ErrorKind, Index};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// db.create_index(Index::on("email").unique())?;
    /// db.insert("ada", &serde_json::json!({"email": "ada@example.org"}))?;
    /// let taken = db.insert("eve", &serde_json::json!({"email": "ada@example.org"})).unwrap_err();
    /// assert_eq!(taken.kind(), ErrorKind::Duplicate);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Costs a read of every document, and a row for each distinct value.
    ///
    /// # Errors
    /// `Invalid` if the description is wrong, or there is another index of this name; `Duplicate` if two documents share a value that is
    /// to be unique: the index is not declared then.
    pub fn create_index(&self, index: Index) -> Result<()> {
        self.create_index_showing(index, |_| ())
    }

    /// As [`Database::create_index`]; `progress` hears of it, in documents.
    ///
    /// # Errors
    /// As [`Database::create_index`].
    pub fn create_index_showing(&self, index: Index, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.store().create_index(&index, &mut progress)
    }

    /// Takes a declared index away. It is out of use on return; the space is given back in the background.
    ///
    /// # Errors
    /// `NotFound` if there is no index of this name.
    pub fn drop_index(&self, name: &str) -> Result<()> {
        self.store().drop_index(name)
    }

    /// The declared indexes, in the order they were declared, and whether they are complete.
    pub fn indexes(&self) -> Vec<IndexInfo> {
        self.store().indexes()
    }

    /// The documents that share their values in a unique index, by groups. Writes refuse to make such; revisions that were written elsewhere
    /// ([`Edit::Foreign`]) are taken as they are, so that replicas agree. Costs a walk over the index.
    ///
    /// # Errors
    /// `NotFound` if there is no unique index of this name; `Corrupt` if stored bytes are damaged.
    pub fn duplicates(&self, name: &str) -> Result<Vec<Duplicates>> {
        self.store().duplicates(name)
    }

    /// The paths that documents have, in order, and how many documents have something there. Paths that the index leaves out are
    /// not among them. Costs a read of the index's entries for what is within arrays, and little for the rest.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn paths(&self) -> Result<Vec<PathInfo>> {
        self.snapshot()?.path_infos()
    }

    /// Checks that everything agrees: every index term with its document in both directions, the feed with the documents, every
    /// stored record with its checksum, the live bytes with the records. Reads everything; `progress` hears of it.
    ///
    /// # Errors
    /// `Unavailable` if files can't be read. Damage is no error but the report.
    pub fn check(&self, mut progress: impl FnMut(Progress)) -> Result<CheckReport> {
        let mut report = self.store().check(&mut progress)?;
        self.handle.views.check(&mut report)?;
        Ok(report)
    }

    /// Closes the database: what was written is flushed and merged. Dropping the last clone does the same but can't tell of errors.
    /// Later calls fail with `Closed`.
    ///
    /// # Errors
    /// `Unavailable` if files can't be written: nothing acknowledged as flushed is lost all the same.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        let upkeeper = self.upkeeper.lock().take();
        match upkeeper {
            Some(upkeeper) => {
                // What a view has in memory is made again from the log, if it can't be written.
                let saved = self.views.close();
                upkeeper.stop(&self.store).and(saved)
            }
            None => Ok(()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to tell: what was acknowledged is in the log already.
        self.close().ok();
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.path()).field("sequence", &self.sequence()).finish()
    }
}
