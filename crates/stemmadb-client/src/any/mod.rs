//! A database that is embedded or remote.

mod feeds;
mod find;
mod handles;
mod views;

use serde::Serialize;
use stemmadb::past::At;
use stemmadb::{Change, Database, Document, Edit, ErrorKind, Patch, Query, Result, Revision, Sequence};

use crate::database::RemoteDatabase;
use crate::pool::Client;
pub use feeds::{AnyPathSubscription, AnySubscription, AnyTopicSubscription, AnyWatch};
pub use find::{AnyFind, AnyGroupBy, AnyRows};
pub use handles::{AnyFile, AnyFiles, AnyHistory, AnyIndexes, AnySchemas};
pub use views::{AnyView, AnyViewQuery, AnyViews};

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
        if !location.contains("://") {
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

    /// Updates all documents that match, or none. See [`Database::update_where`].
    ///
    /// # Errors
    /// Those of [`Database::update_where`].
    pub fn update_where(&self, query: impl Into<Query>, patch: &Patch) -> Result<u64> {
        either!(self, database => database.update_where(query, patch))
    }

    /// Deletes all documents that match, or none. See [`Database::delete_where`].
    ///
    /// # Errors
    /// Those of [`Database::delete_where`].
    pub fn delete_where(&self, query: impl Into<Query>) -> Result<u64> {
        either!(self, database => database.delete_where(query))
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

    /// Finds documents as of a point in the past. See [`Database::as_of`].
    ///
    /// # Errors
    /// Those of [`Database::as_of`]; for a remote database, its reads return them.
    pub fn find_as_of(&self, at: impl Into<At>, query: impl Into<Query>) -> Result<AnyFind> {
        Ok(match self {
            AnyDatabase::Embedded(database) => AnyFind::Embedded(database.as_of(at)?.find(query)),
            AnyDatabase::Remote(database) => AnyFind::Remote(database.as_of(at).find(query)),
        })
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

    /// Reads the changes after `since` of documents that have a path that matches a pattern. See
    /// [`stemmadb::Changes::paths`].
    ///
    /// # Errors
    /// Those of [`Database::changes`]; `Invalid` for a malformed pattern.
    pub fn changes_of_paths<P: AsRef<str>>(
        &self,
        since: Sequence,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Change>> {
        match self {
            AnyDatabase::Embedded(database) => database.changes(since)?.paths(patterns)?.run().collect(),
            AnyDatabase::Remote(database) => database.changes(since).paths(patterns)?.run()?.collect(),
        }
    }

    /// Subscribes to the changes feed. See [`Database::subscribe`].
    pub fn subscribe(&self, since: Sequence) -> AnySubscription {
        match self {
            AnyDatabase::Embedded(database) => AnySubscription::Embedded(Box::new(database.subscribe(since))),
            AnyDatabase::Remote(database) => AnySubscription::Remote(Box::new(database.subscribe(since))),
        }
    }

    /// Whether an embedded database is closed. A remote one reports it by an error of each call: false.
    pub fn is_closed(&self) -> bool {
        match self {
            AnyDatabase::Embedded(database) => {
                database.snapshot().is_err_and(|error| error.kind() == ErrorKind::Closed)
            }
            AnyDatabase::Remote(_) => false,
        }
    }

    /// Subscribes to values at paths. See [`Database::subscribe_paths`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_paths`].
    pub fn subscribe_paths<P: AsRef<str>>(&self, patterns: impl IntoIterator<Item = P>) -> Result<AnyPathSubscription> {
        Ok(match self {
            AnyDatabase::Embedded(database) => {
                AnyPathSubscription::Embedded(Box::new(database.subscribe_paths(patterns)?))
            }
            AnyDatabase::Remote(database) => AnyPathSubscription::Remote(Box::new(database.subscribe_paths(patterns)?)),
        })
    }

    /// Publishes a message to a topic. See [`Database::publish`].
    ///
    /// # Errors
    /// Those of [`Database::publish`]; `Invalid` for a payload of more than 64 KiB on a server.
    pub fn publish<P: Serialize + ?Sized>(&self, topic: &str, payload: &P) -> Result<usize> {
        match self {
            AnyDatabase::Embedded(database) => database.publish(topic, payload),
            AnyDatabase::Remote(database) => database.publish(topic, payload),
        }
    }

    /// Subscribes to messages. See [`Database::subscribe_topic`].
    ///
    /// # Errors
    /// Those of [`Database::subscribe_topic`].
    pub fn subscribe_topic<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<AnyTopicSubscription> {
        Ok(match self {
            AnyDatabase::Embedded(database) => AnyTopicSubscription::Embedded(database.subscribe_topic(patterns)?),
            AnyDatabase::Remote(database) => {
                AnyTopicSubscription::Remote(Box::new(database.subscribe_topic(patterns)?))
            }
        })
    }

    /// Operations on files of documents. See [`Database::files`].
    pub fn files(&self) -> AnyFiles<'_> {
        match self {
            AnyDatabase::Embedded(database) => AnyFiles::Embedded(database.files()),
            AnyDatabase::Remote(database) => AnyFiles::Remote(database.files()),
        }
    }

    /// Operations on views. See [`Database::views`].
    pub fn views(&self) -> AnyViews<'_> {
        match self {
            AnyDatabase::Embedded(database) => AnyViews::Embedded(database.views()),
            AnyDatabase::Remote(database) => AnyViews::Remote(database.views()),
        }
    }

    /// Operations on declared indexes. See [`Database::indexes`].
    pub fn indexes(&self) -> AnyIndexes<'_> {
        match self {
            AnyDatabase::Embedded(database) => AnyIndexes::Embedded(database.indexes()),
            AnyDatabase::Remote(database) => AnyIndexes::Remote(database.indexes()),
        }
    }

    /// Operations on the schemas of collections. See [`Database::schemas`].
    pub fn schemas(&self) -> AnySchemas<'_> {
        match self {
            AnyDatabase::Embedded(database) => AnySchemas::Embedded(database.schemas()),
            AnyDatabase::Remote(database) => AnySchemas::Remote(database.schemas()),
        }
    }

    /// Operations on the past. See [`Database::history`].
    pub fn history(&self) -> AnyHistory<'_> {
        match self {
            AnyDatabase::Embedded(database) => AnyHistory::Embedded(database.history()),
            AnyDatabase::Remote(database) => AnyHistory::Remote(database.history()),
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
