//! The database for asynchronous programs: the same operations as futures and streams of `tokio`.
//!
//! The library blocks. Each operation runs on tokio's pool of blocking threads. Streams are bounded: a slow reader
//! slows down the query that feeds it, and dropping a stream cancels that query. A stream that waits for changes
//! occupies no thread.

mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::changes::{Change, Delta, Message, PathChange};
use crate::document::Document;
use crate::engine::{Edit, Info, Transaction};
use crate::options::Options;
use crate::query::{Cancellation, Query};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::transact::Attempt;
use crate::value::{Patch, Value};
use crate::{Database, Error, Result};
pub use stream::AsyncRows;

/// A [`Database`] whose operations are futures, for programs that use `tokio`. Cheap to clone.
///
/// The methods are those of [`Database`]; [`AsyncDatabase::run`] runs everything else. Each call must be made within a
/// tokio runtime, whose blocking threads do the work. Dropping the future of a write does not undo or stop it; dropping
/// that of a query, or a stream, cancels the query.
///
/// ```
/// use stemmadb::asynchronous::AsyncDatabase;
/// use stemmadb::{Database, Query, Sequence, field};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stemmadb::Result<()> {
/// let db = AsyncDatabase::from(Database::in_memory());
/// let mut changes = db.subscribe(Sequence::ZERO).await?;
/// db.insert("solaris", &serde_json::json!({"title": "Solaris", "year": 1961})).await?;
///
/// let recent = Query::new(field("year").ge(1960)).sort("year").limit(10);
/// let mut rows = db.find(recent).await?;
/// while let Some(book) = rows.next().await {
///     assert_eq!(book?.get("title")?, Some("Solaris".into()));
/// }
/// assert_eq!(changes.next().await.expect("the database is open")?.id.as_str(), "solaris");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncDatabase {
    database: Database,
}

impl From<Database> for AsyncDatabase {
    fn from(database: Database) -> Self {
        AsyncDatabase { database }
    }
}

/// Runs `work` on a blocking thread. For crates that give access to databases elsewhere.
///
/// # Errors
/// Those of `work`; `Unavailable` if the runtime shuts down.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::unavailable("the runtime is shutting down")),
    }
}

/// Runs `work` that only reads on a blocking thread, where it is [cancelled](Cancellation::during) if the future is
/// dropped. For crates that give access to databases elsewhere.
///
/// # Errors
/// Those of [`blocking`].
pub async fn blocking_read<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let cancellation = Cancellation::new();
    let _cancels = CancelOnDrop(cancellation.clone());
    blocking(move || cancellation.during(work)).await
}

/// Cancels a query when it is dropped before the query has ended.
struct CancelOnDrop(Cancellation);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl AsyncDatabase {
    /// See [`Database::open`].
    ///
    /// # Errors
    /// Those of [`Database::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default()).await
    }

    /// See [`Database::open_with`].
    ///
    /// # Errors
    /// Those of [`Database::open`].
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path: PathBuf = path.as_ref().to_owned();
        blocking(move || Database::open_with(path, options)).await.map(Self::from)
    }

    /// The database itself, whose methods block.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Runs `work` with the database on a blocking thread: for operations that have no method here.
    ///
    /// # Errors
    /// Those of `work`; `Unavailable` if the runtime shuts down.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.database.clone();
        blocking(move || work(&database)).await
    }

    /// See [`Database::insert`].
    ///
    /// # Errors
    /// Those of [`Database::insert`].
    pub async fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? }).await
    }

    /// See [`Database::replace`].
    ///
    /// # Errors
    /// Those of [`Database::replace`].
    pub async fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        let (id, body) = (DocumentId::new(id)?, Value::from_serialize(body)?);
        self.edit(Edit::Replace { id, revision: *revision, body }).await
    }

    /// See [`Database::upsert`].
    ///
    /// # Errors
    /// Those of [`Database::upsert`].
    pub async fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? }).await
    }

    /// See [`Database::update`].
    ///
    /// # Errors
    /// Those of [`Database::update`].
    pub async fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() }).await
    }

    /// See [`Database::delete`].
    ///
    /// # Errors
    /// Those of [`Database::delete`].
    pub async fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision }).await
    }

    /// See [`Database::edit`].
    ///
    /// # Errors
    /// Those of [`Database::edit`].
    pub async fn edit(&self, edit: Edit) -> Result<Revision> {
        self.run(|db| db.edit(edit)).await
    }

    /// See [`Database::bulk`].
    ///
    /// # Errors
    /// Those of [`Database::bulk`].
    pub async fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.run(|db| db.bulk(edits)).await
    }

    /// See [`Database::update_where`].
    ///
    /// # Errors
    /// Those of [`Database::update_where`].
    pub async fn update_where(&self, query: impl Into<Query>, patch: &Patch) -> Result<u64> {
        let (query, patch) = (query.into(), patch.clone());
        self.run(move |db| db.update_where(query, &patch)).await
    }

    /// See [`Database::delete_where`].
    ///
    /// # Errors
    /// Those of [`Database::delete_where`].
    pub async fn delete_where(&self, query: impl Into<Query>) -> Result<u64> {
        let query = query.into();
        self.run(move |db| db.delete_where(query)).await
    }

    /// Runs `work` as a transaction on a blocking thread: see [`Database::write`].
    ///
    /// # Errors
    /// Those of [`Database::write`].
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(|db| db.write(work)).await
    }

    /// Runs `work` as an optimistic transaction on a blocking thread: see [`Database::optimistic`].
    ///
    /// # Errors
    /// Those of [`Database::optimistic`].
    pub async fn optimistic<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Attempt<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(|db| db.optimistic(work)).await
    }

    /// See [`Database::get`].
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub async fn get(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.run(move |db| db.get(&id)).await
    }

    /// Returns the documents that match, as a stream.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed. A row can fail like that of [`Find::run`](crate::Find::run).
    pub async fn find(&self, query: impl Into<Query>) -> Result<AsyncRows<Document>> {
        let (query, database) = (query.into(), self.database.clone());
        AsyncRows::open(move |cancellation| database.find(query).cancelled_by(cancellation).run()).await
    }

    /// Returns all documents that match. For large results, [`AsyncDatabase::find`] needs less memory.
    ///
    /// # Errors
    /// Those of [`Find::documents`](crate::Find::documents).
    pub async fn documents(&self, query: impl Into<Query>) -> Result<Vec<Document>> {
        self.cancellable(query.into(), |find| find.documents()).await
    }

    /// Counts the documents that match: see [`Find::count`](crate::Find::count).
    ///
    /// # Errors
    /// Those of [`Find::count`](crate::Find::count).
    pub async fn count(&self, query: impl Into<Query>) -> Result<u64> {
        self.cancellable(query.into(), |find| find.count()).await
    }

    /// Runs a query that is cancelled if the future is dropped.
    async fn cancellable<T: Send + 'static>(
        &self,
        query: Query,
        run: impl FnOnce(crate::query::Find) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.database.clone();
        blocking_read(move || run(database.find(query))).await
    }

    /// Returns the changes after `since` up to the newest, as a stream. `Sequence::ZERO` means all.
    ///
    /// # Errors
    /// Those of [`Database::changes`].
    pub async fn changes(&self, since: Sequence) -> Result<AsyncRows<Change>> {
        let database = self.database.clone();
        AsyncRows::open(move |_| Ok(database.changes(since)?.run())).await
    }

    /// Returns the changes after `since`, and then each new one as it is published. The stream ends when the database
    /// is closed.
    ///
    /// # Errors
    /// None at present.
    pub async fn subscribe(&self, since: Sequence) -> Result<AsyncRows<Change>> {
        Ok(AsyncRows::follow(self.database.subscribe(since)))
    }

    /// Subscribes to values at paths, as a stream that ends when the database is closed. See
    /// [`Database::subscribe_paths`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_paths`].
    pub async fn subscribe_paths<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<AsyncRows<PathChange>> {
        Ok(AsyncRows::follow(self.database.subscribe_paths(patterns)?))
    }

    /// Publishes a message to a topic; does not wait. See [`Database::publish`].
    ///
    /// # Errors
    /// Those of [`Database::publish`].
    pub async fn publish<P: Serialize + ?Sized>(&self, topic: &str, payload: &P) -> Result<usize> {
        self.database.publish(topic, payload)
    }

    /// Subscribes to messages, as a stream that ends when the database is closed. See [`Database::subscribe_topic`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_topic`].
    pub async fn subscribe_topic<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<AsyncRows<Arc<Message>>> {
        Ok(AsyncRows::follow(self.database.subscribe_topic(patterns)?))
    }

    /// Starts a live query: returns its result, and then what each transaction changes in it. The stream ends when the
    /// database is closed.
    ///
    /// # Errors
    /// Those of [`Database::watch`].
    pub async fn watch(&self, query: impl Into<Query>) -> Result<AsyncRows<Delta>> {
        let query = query.into();
        Ok(AsyncRows::follow(self.run(move |db| db.watch(query)).await?))
    }

    /// See [`Database::info`].
    ///
    /// # Errors
    /// Those of [`Database::info`].
    pub async fn info(&self) -> Result<Info> {
        self.run(Database::info).await
    }

    /// See [`Database::flush`].
    ///
    /// # Errors
    /// Those of [`Database::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.run(Database::flush).await
    }

    /// Closes the database for all its clones: see [`Database::close`].
    ///
    /// # Errors
    /// Those of [`Database::close`].
    pub async fn close(self) -> Result<()> {
        blocking(move || self.database.close()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_dropped_future_cancels_its_query() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let db = AsyncDatabase::from(Database::in_memory());
            let (entered, is_entered) = mpsc::channel();
            let (released, is_released) = mpsc::channel::<()>();
            let (reported, outcome) = mpsc::channel();
            let task = tokio::spawn(async move {
                let everything = crate::query::Selector::everything();
                db.cancellable(everything.into(), move |find| {
                    entered.send(()).unwrap();
                    is_released.recv().ok();
                    reported.send(find.count().map_err(|error| error.kind())).unwrap();
                    Ok(())
                })
                .await
            });
            is_entered.recv_timeout(Duration::from_secs(60)).unwrap();
            // The aborted task drops the future.
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            released.send(()).unwrap();
            let outcome = outcome.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(outcome, Err(crate::ErrorKind::Stopped));
        });
    }
}
