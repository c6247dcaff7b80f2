//! A database that is embedded or remote.

use std::time::Duration;

use serde::Serialize;
use stemmadb::{
    Change, Database, Delta, Document, DocumentId, Edit, Find, Patch, Query, QueryRows, Result, Revision, Sequence,
    Subscription, Value, Watch,
};

use crate::database::RemoteDatabase;
use crate::find::{RemoteFind, RemoteRows};
use crate::pool::Client;
use crate::stream::{RemoteSubscription, RemoteWatch};

/// A database, embedded or remote, for programs that should not care.
///
/// ```
/// use stemmadb::{Database, field};
/// use stemmadb_client::AnyDatabase;
///
/// fn count_novels(db: &AnyDatabase) -> stemmadb::Result<u64> {
///     db.find(field("kind").eq("novel")).count()
/// }
///
/// # fn main() -> stemmadb::Result<()> {
/// let db = AnyDatabase::from(Database::in_memory());
/// db.insert("solaris", &serde_json::json!({"kind": "novel"}))?;
/// assert_eq!(count_novels(&db)?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum AnyDatabase {
    /// In this process.
    Embedded(Database),
    /// Of a server.
    Remote(RemoteDatabase),
}

impl From<Database> for AnyDatabase {
    fn from(database: Database) -> Self {
        AnyDatabase::Embedded(database)
    }
}

impl From<RemoteDatabase> for AnyDatabase {
    fn from(database: RemoteDatabase) -> Self {
        AnyDatabase::Remote(database)
    }
}

macro_rules! either {
    ($self:ident, $database:ident => $call:expr) => {
        match $self {
            AnyDatabase::Embedded($database) => $call,
            AnyDatabase::Remote($database) => $call,
        }
    };
}

impl AnyDatabase {
    /// Opens a database: a URL with a scheme names one of a server, anything else is a path.
    ///
    /// # Errors
    /// Those of [`Database::open`] and [`Client::connect`]; `Invalid` if a URL names no database.
    pub fn open(location: &str) -> Result<Self> {
        if !location.starts_with("stemma:") && !location.starts_with("stemma+") {
            return Database::open(location).map(AnyDatabase::Embedded);
        }
        let database = Client::connect(location)?.default_database();
        database.map(AnyDatabase::Remote).ok_or_else(|| {
            stemmadb::Error::invalid("the URL names no database").with_hint("stemma://host:5985/database")
        })
    }

    /// Returns the document `id`. See [`Database::get`].
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        either!(self, database => database.get(id))
    }

    /// Returns several documents as of one moment.
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub fn get_many<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<Option<Document>>> {
        match self {
            AnyDatabase::Embedded(database) => {
                let snapshot = database.snapshot()?;
                ids.into_iter().map(|id| snapshot.get(id.as_ref())).collect()
            }
            AnyDatabase::Remote(database) => database.get_many(ids),
        }
    }

    /// Returns a revision. See [`Database::get_revision`].
    ///
    /// # Errors
    /// Those of [`Database::get_revision`].
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        either!(self, database => database.get_revision(id, revision))
    }

    /// Creates a document. See [`Database::insert`].
    ///
    /// # Errors
    /// Those of [`Database::insert`].
    pub fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        either!(self, database => database.insert(id, body))
    }

    /// Replaces a document. See [`Database::replace`].
    ///
    /// # Errors
    /// Those of [`Database::replace`].
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        either!(self, database => database.replace(id, revision, body))
    }

    /// Creates or replaces a document. See [`Database::upsert`].
    ///
    /// # Errors
    /// Those of [`Database::upsert`].
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        either!(self, database => database.upsert(id, body))
    }

    /// Changes parts of a document. See [`Database::update`].
    ///
    /// # Errors
    /// Those of [`Database::update`].
    pub fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        either!(self, database => database.update(id, patch))
    }

    /// Deletes a document. See [`Database::delete`].
    ///
    /// # Errors
    /// Those of [`Database::delete`].
    pub fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        either!(self, database => database.delete(id, revision))
    }

    /// Applies one edit. See [`Database::edit`].
    ///
    /// # Errors
    /// Those of [`Database::edit`].
    pub fn edit(&self, edit: Edit) -> Result<Revision> {
        either!(self, database => database.edit(edit))
    }

    /// Applies several edits independently. See [`Database::bulk`].
    ///
    /// # Errors
    /// Those of [`Database::bulk`].
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        either!(self, database => database.bulk(edits))
    }

    /// Finds documents. See [`Database::find`].
    pub fn find(&self, query: impl Into<Query>) -> AnyFind {
        match self {
            AnyDatabase::Embedded(database) => AnyFind::Embedded(database.find(query)),
            AnyDatabase::Remote(database) => AnyFind::Remote(database.find(query)),
        }
    }

    /// Reads the changes after `since`, with their documents if `documents` is set. See [`Database::changes`].
    ///
    /// # Errors
    /// Those of [`Database::changes`].
    pub fn changes(&self, since: Sequence, documents: bool) -> Result<Vec<Change>> {
        match self {
            AnyDatabase::Embedded(database) => database.changes(since)?.documents(documents).run().collect(),
            AnyDatabase::Remote(database) => database.changes(since).documents(documents).run()?.collect(),
        }
    }

    /// Subscribes to the changes feed. See [`Database::subscribe`].
    pub fn subscribe(&self, since: Sequence) -> AnySubscription {
        match self {
            AnyDatabase::Embedded(database) => AnySubscription::Embedded(Box::new(database.subscribe(since))),
            AnyDatabase::Remote(database) => AnySubscription::Remote(Box::new(database.subscribe(since))),
        }
    }

    /// Starts a live query. See [`Database::watch`].
    ///
    /// # Errors
    /// Those of [`Database::watch`].
    pub fn watch(&self, query: impl Into<Query>) -> Result<AnyWatch> {
        Ok(match self {
            AnyDatabase::Embedded(database) => AnyWatch::Embedded(Box::new(database.watch(query)?)),
            AnyDatabase::Remote(database) => AnyWatch::Remote(Box::new(database.watch(query)?)),
        })
    }

    /// Returns the newest sequence. See [`Database::sequence`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub fn sequence(&self) -> Result<Sequence> {
        match self {
            AnyDatabase::Embedded(database) => Ok(database.sequence()),
            AnyDatabase::Remote(database) => database.sequence(),
        }
    }

    /// Flushes earlier writes. See [`Database::flush`].
    ///
    /// # Errors
    /// Those of [`Database::flush`].
    pub fn flush(&self) -> Result<()> {
        either!(self, database => database.flush())
    }
}

/// A query on either database.
#[must_use = "a query does nothing until it is run"]
pub enum AnyFind {
    /// On an embedded one.
    Embedded(Find),
    /// On a remote one.
    Remote(RemoteFind),
}

macro_rules! any_find {
    ($($(#[$doc:meta])+ $name:ident($($argument:ident: $kind:ty),*);)+) => {
        impl AnyFind {
            $($(#[$doc])+
            pub fn $name(self, $($argument: $kind),*) -> Self {
                match self {
                    AnyFind::Embedded(find) => AnyFind::Embedded(find.$name($($argument),*)),
                    AnyFind::Remote(find) => AnyFind::Remote(find.$name($($argument),*)),
                }
            })+
        }
    };
}

any_find! {
    /// Sorts ascending. See [`Find::sort`].
    sort(path: impl AsRef<str>);
    /// Sorts descending. See [`Find::sort_descending`].
    sort_descending(path: impl AsRef<str>);
    /// Limits the rows. See [`Find::limit`].
    limit(count: u64);
    /// Skips rows. See [`Find::skip`].
    skip(count: u64);
    /// Chooses fields. See [`Find::fields`].
    fields(paths: impl IntoIterator<Item = impl AsRef<str>>);
    /// Continues after a token. See [`Find::after`].
    after(token: impl Into<String>);
    /// Limits the time. See [`Find::time_limit`].
    time_limit(time: Duration);
    /// Refuses more rows. See [`Find::rows_max`].
    rows_max(count: u64);
}

impl AnyFind {
    /// Returns the documents. See [`Find::run`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn run(self) -> Result<AnyRows<Document>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.run()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.run()?)),
        })
    }

    /// Returns the ids. See [`Find::ids`].
    ///
    /// # Errors
    /// Those of [`Find::ids`].
    pub fn ids(self) -> Result<AnyRows<DocumentId>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.ids()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.ids()?)),
        })
    }

    /// Returns the chosen fields. See [`Find::values`].
    ///
    /// # Errors
    /// Those of [`Find::values`].
    pub fn values(self) -> Result<AnyRows<Value>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.values()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.values()?)),
        })
    }

    /// Returns all documents. See [`Find::documents`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// Returns the first document. See [`Find::first`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn first(self) -> Result<Option<Document>> {
        match self {
            AnyFind::Embedded(find) => find.first(),
            AnyFind::Remote(find) => find.first(),
        }
    }

    /// Counts the documents. See [`Find::count`].
    ///
    /// # Errors
    /// Those of [`Find::count`].
    pub fn count(self) -> Result<u64> {
        match self {
            AnyFind::Embedded(find) => find.count(),
            AnyFind::Remote(find) => find.count(),
        }
    }

    /// Returns the distinct values of a path. See [`Find::distinct`].
    ///
    /// # Errors
    /// Those of [`Find::distinct`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        match self {
            AnyFind::Embedded(find) => find.distinct(path),
            AnyFind::Remote(find) => find.distinct(path),
        }
    }

    /// Adds the numbers at a path. See [`Find::sum`].
    ///
    /// # Errors
    /// Those of [`Find::sum`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<stemmadb::Number> {
        match self {
            AnyFind::Embedded(find) => find.sum(path),
            AnyFind::Remote(find) => find.sum(path),
        }
    }
}

/// The rows of a query on either database.
pub enum AnyRows<T> {
    /// Of an embedded one.
    Embedded(QueryRows<T>),
    /// Of a remote one.
    Remote(Box<RemoteRows<T>>),
}

impl<T> AnyRows<T> {
    /// The token that continues after the last row. See [`QueryRows::token`].
    ///
    /// # Errors
    /// Those of [`QueryRows::token`].
    pub fn token(&self) -> Result<Option<String>> {
        match self {
            AnyRows::Embedded(rows) => rows.token(),
            AnyRows::Remote(rows) => rows.token(),
        }
    }
}

impl<T> Iterator for AnyRows<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            AnyRows::Embedded(rows) => rows.next(),
            AnyRows::Remote(rows) => rows.next(),
        }
    }
}

/// A subscription to the feed of either database.
pub enum AnySubscription {
    /// Of an embedded one.
    Embedded(Box<Subscription>),
    /// Of a remote one.
    Remote(Box<RemoteSubscription>),
}

impl AnySubscription {
    /// Waits for the next change. See [`Subscription::next_within`].
    ///
    /// # Errors
    /// Those of [`Subscription::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Change>> {
        match self {
            AnySubscription::Embedded(feed) => feed.next_within(timeout),
            AnySubscription::Remote(feed) => feed.next_within(timeout),
        }
    }
}

/// A live query on either database.
pub enum AnyWatch {
    /// On an embedded one.
    Embedded(Box<Watch>),
    /// On a remote one.
    Remote(Box<RemoteWatch>),
}

impl AnyWatch {
    /// Waits for the next delta. See [`Watch::next_within`].
    ///
    /// # Errors
    /// Those of [`Watch::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delta>> {
        match self {
            AnyWatch::Embedded(watch) => watch.next_within(timeout),
            AnyWatch::Remote(watch) => watch.next_within(timeout),
        }
    }
}
