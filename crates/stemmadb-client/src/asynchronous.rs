//! The client for asynchronous programs: the same operations as futures and streams of `tokio`, on a database that is
//! remote or embedded.
//!
//! The client blocks. Each operation runs on tokio's pool of blocking threads, and the server stops if the
//! future of a read is dropped. Streams are bounded: a slow reader slows down the query that feeds it. A stream that
//! waits for changes of a server occupies a thread of the pool; one of an embedded database occupies none.

use std::sync::Arc;

use serde::Serialize;
use stemmadb::asynchronous::AsyncDatabase as AsyncEmbedded;
pub use stemmadb::asynchronous::AsyncRows;
use stemmadb::asynchronous::{blocking, blocking_read};
use stemmadb::messages::Message;
use stemmadb::{
    Change, Database, Delta, Document, DocumentId, Edit, Patch, PathChange, Query, Result, Revision, Sequence, Value,
};

use crate::any::{AnyDatabase, AnyFind};
use crate::database::RemoteDatabase;
use crate::options::ClientOptions;
use crate::pool::Client;

/// A [`Client`] whose operations are futures. Cheap to clone; each call must be made within a tokio runtime.
///
/// ```no_run
/// use stemmadb::field;
/// use stemmadb_client::asynchronous::AsyncClient;
///
/// # async fn example() -> stemmadb::Result<()> {
/// let client = AsyncClient::connect("stemma://ada:secret@localhost:5985").await?;
/// let db = client.database("library");
/// let mut books = db.find(field("year").ge(1960)).await?;
/// while let Some(book) = books.next().await {
///     println!("{}", book?.to_json()?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncClient {
    client: Client,
}

impl From<Client> for AsyncClient {
    fn from(client: Client) -> Self {
        AsyncClient { client }
    }
}

impl AsyncClient {
    /// See [`Client::connect`].
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ClientOptions::default()).await
    }

    /// See [`Client::connect_with`].
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub async fn connect_with(url: &str, options: ClientOptions) -> Result<Self> {
        let url = url.to_owned();
        blocking(move || Client::connect_with(&url, options)).await.map(Self::from)
    }

    /// The client itself, whose methods block.
    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Client) -> Result<T> + Send + 'static) -> Result<T> {
        let client = self.client.clone();
        blocking(move || work(&client)).await
    }

    /// See [`Client::database`].
    pub fn database(&self, name: &str) -> AsyncDatabase {
        self.client.database(name).into()
    }

    /// See [`Client::default_database`].
    pub fn default_database(&self) -> Option<AsyncDatabase> {
        self.client.default_database().map(AsyncDatabase::from)
    }

    /// See [`Client::databases`].
    ///
    /// # Errors
    /// Those of [`Client::databases`].
    pub async fn databases(&self) -> Result<Vec<String>> {
        self.run(Client::databases).await
    }

    /// See [`Client::create_database`].
    ///
    /// # Errors
    /// Those of [`Client::create_database`].
    pub async fn create_database(&self, name: &str) -> Result<AsyncDatabase> {
        let name = name.to_owned();
        self.run(move |client| client.create_database(&name)).await.map(AsyncDatabase::from)
    }

    /// See [`Client::delete_database`].
    ///
    /// # Errors
    /// Those of [`Client::delete_database`].
    pub async fn delete_database(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.run(move |client| client.delete_database(&name)).await
    }

    /// See [`Client::ping`].
    ///
    /// # Errors
    /// Those of [`Client::ping`].
    pub async fn ping(&self) -> Result<()> {
        self.run(Client::ping).await
    }
}

/// A database, embedded or remote, whose operations are futures: the methods of
/// [`stemmadb::asynchronous::AsyncDatabase`]. Cheap to clone; each call must be made within a tokio runtime.
///
/// Dropping the future of a write does not undo or stop it; dropping that of a read, or a stream, stops it, also on
/// the server. [`AsyncDatabase::run`] runs everything that has no method here.
///
/// ```
/// use stemmadb::{Database, field};
/// use stemmadb_client::asynchronous::AsyncDatabase;
///
/// async fn count_novels(db: &AsyncDatabase) -> stemmadb::Result<u64> {
///     db.count(field("kind").eq("novel")).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stemmadb::Result<()> {
/// let db = AsyncDatabase::from(Database::in_memory());
/// db.insert("solaris", &serde_json::json!({"kind": "novel"})).await?;
/// assert_eq!(count_novels(&db).await?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncDatabase {
    database: AnyDatabase,
}

impl From<AnyDatabase> for AsyncDatabase {
    fn from(database: AnyDatabase) -> Self {
        AsyncDatabase { database }
    }
}

impl From<Database> for AsyncDatabase {
    fn from(database: Database) -> Self {
        AsyncDatabase { database: database.into() }
    }
}

impl From<RemoteDatabase> for AsyncDatabase {
    fn from(database: RemoteDatabase) -> Self {
        AsyncDatabase { database: database.into() }
    }
}

impl AsyncDatabase {
    /// Opens a database: a URL names one of a server, anything else is a path. See [`AnyDatabase::open`].
    ///
    /// # Errors
    /// Those of [`AnyDatabase::open`].
    pub async fn open(location: &str) -> Result<Self> {
        let location = location.to_owned();
        blocking(move || AnyDatabase::open(&location)).await.map(Self::from)
    }

    /// The database itself, whose methods block.
    pub fn database(&self) -> &AnyDatabase {
        &self.database
    }

    /// Runs `work` with the database on a blocking thread: for operations that have no method here.
    ///
    /// # Errors
    /// Those of `work`; `Unavailable` if the runtime shuts down.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AnyDatabase) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.database.clone();
        blocking(move || work(&database)).await
    }

    /// As [`AsyncDatabase::run`], for work that only reads: it fails with `Stopped` if the future is dropped.
    ///
    /// # Errors
    /// Those of [`AsyncDatabase::run`].
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AnyDatabase) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.database.clone();
        blocking_read(move || work(&database)).await
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

    /// See [`Database::get`].
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub async fn get(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.read(move |db| db.get(&id)).await
    }

    /// Returns several documents as of one moment. See [`AnyDatabase::get_many`].
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub async fn get_many<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<Option<Document>>> {
        let ids: Vec<String> = ids.into_iter().map(|id| id.as_ref().to_owned()).collect();
        self.read(move |db| db.get_many(ids)).await
    }

    /// Returns the documents that match, as a stream.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed. A row can fail like that of [`stemmadb::Find::run`].
    pub async fn find(&self, query: impl Into<Query>) -> Result<AsyncRows<Document>> {
        let (query, database) = (query.into(), self.database.clone());
        AsyncRows::open(move |cancellation| database.find(query).cancelled_by(cancellation).run()).await
    }

    /// Returns all documents that match. For large results, [`AsyncDatabase::find`] needs less memory.
    ///
    /// # Errors
    /// Those of [`stemmadb::Find::documents`].
    pub async fn documents(&self, query: impl Into<Query>) -> Result<Vec<Document>> {
        let query = query.into();
        self.read(move |db| db.find(query).documents()).await
    }

    /// Counts the documents that match: see [`stemmadb::Find::count`].
    ///
    /// # Errors
    /// Those of [`stemmadb::Find::count`].
    pub async fn count(&self, query: impl Into<Query>) -> Result<u64> {
        let query = query.into();
        self.read(move |db| db.find(query).count()).await
    }

    /// Runs `finish` with a query on a blocking thread, for figures, groups, fields and pages; it is stopped if the
    /// future is dropped.
    ///
    /// # Errors
    /// Those of `finish`.
    pub async fn query<T: Send + 'static>(
        &self,
        query: impl Into<Query>,
        finish: impl FnOnce(AnyFind) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let query = query.into();
        self.read(move |db| finish(db.find(query))).await
    }

    /// Returns the changes after `since` up to the newest, as a stream. `Sequence::ZERO` means all.
    ///
    /// # Errors
    /// Those of [`Database::changes`].
    pub async fn changes(&self, since: Sequence) -> Result<AsyncRows<Change>> {
        match &self.database {
            AnyDatabase::Embedded(database) => AsyncEmbedded::from(database.clone()).changes(since).await,
            AnyDatabase::Remote(database) => {
                let database = database.clone();
                AsyncRows::open(move |_| database.changes(since).run()).await
            }
        }
    }

    /// Returns the changes after `since`, and then each new one as it is published. The stream of an embedded database
    /// ends when that is closed.
    ///
    /// # Errors
    /// None at present.
    pub async fn subscribe(&self, since: Sequence) -> Result<AsyncRows<Change>> {
        match &self.database {
            AnyDatabase::Embedded(database) => AsyncEmbedded::from(database.clone()).subscribe(since).await,
            AnyDatabase::Remote(database) => {
                let database = database.clone();
                AsyncRows::open(move |_| Ok(database.subscribe(since))).await
            }
        }
    }

    /// Subscribes to values at paths, as a stream. See [`Database::subscribe_paths`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_paths`].
    pub async fn subscribe_paths<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<AsyncRows<PathChange>> {
        let patterns: Vec<String> = patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        match &self.database {
            AnyDatabase::Embedded(database) => AsyncEmbedded::from(database.clone()).subscribe_paths(patterns).await,
            AnyDatabase::Remote(database) => {
                let database = database.clone();
                AsyncRows::open(move |_| {
                    let mut changes = database.subscribe_paths(patterns)?;
                    Ok(std::iter::from_fn(move || changes.next_change().transpose()))
                })
                .await
            }
        }
    }

    /// Publishes a message to a topic. See [`Database::publish`].
    ///
    /// # Errors
    /// Those of [`AnyDatabase::publish`].
    pub async fn publish<P: Serialize + ?Sized>(&self, topic: &str, payload: &P) -> Result<usize> {
        let (topic, payload) = (topic.to_owned(), Value::from_serialize(payload)?);
        self.run(move |db| db.publish(&topic, &payload)).await
    }

    /// Subscribes to messages, as a stream. See [`Database::subscribe_topic`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_topic`].
    pub async fn subscribe_topic<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<AsyncRows<Arc<Message>>> {
        let patterns: Vec<String> = patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        match &self.database {
            AnyDatabase::Embedded(database) => AsyncEmbedded::from(database.clone()).subscribe_topic(patterns).await,
            AnyDatabase::Remote(database) => {
                let database = database.clone();
                AsyncRows::open(move |_| database.subscribe_topic(patterns)).await
            }
        }
    }

    /// Starts a live query: returns its result, and then what each transaction changes in it. The stream of an embedded
    /// database ends when that is closed.
    ///
    /// # Errors
    /// Those of [`Database::watch`].
    pub async fn watch(&self, query: impl Into<Query>) -> Result<AsyncRows<Delta>> {
        let query = query.into();
        match &self.database {
            AnyDatabase::Embedded(database) => AsyncEmbedded::from(database.clone()).watch(query).await,
            AnyDatabase::Remote(database) => {
                let database = database.clone();
                AsyncRows::open(move |_| {
                    let mut watch = database.watch(query)?;
                    Ok(std::iter::from_fn(move || watch.next_delta().transpose()))
                })
                .await
            }
        }
    }

    /// Returns the newest sequence. See [`Database::sequence`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub async fn sequence(&self) -> Result<Sequence> {
        self.read(AnyDatabase::sequence).await
    }

    /// See [`Database::flush`].
    ///
    /// # Errors
    /// Those of [`Database::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.run(AnyDatabase::flush).await
    }
}
