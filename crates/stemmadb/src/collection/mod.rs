//! Typed collections: the documents whose ids begin with a name, converted to and from a Rust type.
//!
//! A collection is a way to access a database and is not stored: `books` is every document whose id is `books:`
//! followed by a key. Queries over everything, replication and other languages see the same documents, and a collection
//! needs no declaration. Its only state is its name and where keys come from. A [`DeclaredCollection`] declares
//! indexes, views, expiration and a schema with the type.

mod database;
mod declared;
mod entry;
mod find;
mod follow;
mod session;
mod settings;

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::Edit;
use crate::query::{Query, Selector, field};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::schema::{COLLECTION_END, check_collection_name};
use crate::value::{Path, Value};
use crate::{Database, Error, Result};

pub use database::{CollectionDatabase, CollectionFeed, CollectionFind, CollectionRows, Refinement};
pub use declared::{Declarations, DeclaredCollection};
pub use entry::Entry;
use entry::{KeySource, entry_from, serialize_body};
pub use find::{FindEntries, FoundEntries};
pub use follow::{EntryChange, EntryDelta, EntryEvent, EntrySubscription, WatchEntries};
use session::OnDatabase;
pub use session::Session;
#[cfg(feature = "derive")]
pub use stemmadb_derive::Collection;

/// A typed collection: the documents whose ids begin with the collection's name and a colon. Cheap to clone.
///
/// `D` is the database that it is in: an embedded [`Database`], or one of a server (crate `stemmadb-client`).
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use stemmadb::{Database, field};
///
/// #[derive(Serialize, Deserialize)]
/// struct Book {
///     title: String,
///     year: i32,
/// }
///
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// let books = db.collection::<Book>("books")?;
/// books.insert("lem-1961", &Book { title: "Solaris".into(), year: 1961 })?;
/// let mut solaris = books.get("lem-1961")?.expect("it was inserted");
/// solaris.content.title = "Solaris (roman)".into();
/// books.update(&mut solaris)?;
/// let old = books.find(field("year").lt(1970)).sort("year").entries()?;
/// assert_eq!(old[0].content.title, "Solaris (roman)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Collection<T, D = Database> {
    db: D,
    /// The name and the separator, with which the ids of the collection's documents begin.
    prefix: String,
    keys: KeySource,
    content: PhantomData<fn() -> T>,
}

impl<T, D: Clone> Clone for Collection<T, D> {
    fn clone(&self) -> Self {
        Collection { db: self.db.clone(), prefix: self.prefix.clone(), keys: self.keys.clone(), content: PhantomData }
    }
}

/// A collection bound to a [`Session`]: the methods of [`Collection`], reading and writing in one transaction. Created
/// by [`Collection::within`], which has an example.
#[derive(Debug)]
pub struct BoundCollection<'a, T, S, D = Database> {
    collection: &'a Collection<T, D>,
    session: &'a mut S,
}

impl Database {
    /// Returns the collection of documents whose ids begin with `name:`. Nothing is declared or stored.
    ///
    /// See [`Collection`] for an example.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, begins with `_` or contains a colon.
    pub fn collection<T>(&self, name: &str) -> Result<Collection<T>> {
        Collection::new(self.clone(), name)
    }
}

impl<T, D> Collection<T, D> {
    /// The collection of documents of a database whose ids begin with `name:`.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, begins with `_` or contains a colon.
    pub fn new(db: D, name: &str) -> Result<Self> {
        check_collection_name(name)?;
        let prefix = format!("{name}{COLLECTION_END}");
        Ok(Collection { db, prefix, keys: KeySource::Generated, content: PhantomData })
    }

    /// Takes the key of a pushed document from the string or integer at `path`, instead of generating a UUID.
    ///
    /// # Errors
    /// `Invalid` if the path is malformed.
    pub fn keyed_by(mut self, path: &str) -> Result<Self> {
        self.keys = KeySource::Natural(Path::parse(path)?);
        Ok(self)
    }

    /// The collection's name.
    pub fn name(&self) -> &str {
        self.prefix.strip_suffix(COLLECTION_END).unwrap_or(&self.prefix)
    }

    /// Returns the id of the document with this key.
    pub fn id_of(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A selector that matches exactly the collection's documents.
    pub fn members(&self) -> Selector {
        field("_id").begins_with(&self.prefix)
    }

    fn id(&self, key: &str) -> Result<DocumentId> {
        if key.is_empty() {
            return Err(Error::invalid("a key can't be empty"));
        }
        DocumentId::new(self.id_of(key))
    }

    /// Binds the collection to a transaction or to an attempt at one.
    ///
    /// ```
    /// # use stemmadb::{Database, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let stock = db.collection::<serde_json::Value>("stock")?;
    /// db.write(|tx| {
    ///     let mut stock = stock.within(tx);
    ///     stock.upsert("apples", &serde_json::json!({"count": 3}))?;
    ///     stock.remove("pears")
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn within<'a, S: Session>(&'a self, session: &'a mut S) -> BoundCollection<'a, T, S, D> {
        BoundCollection { collection: self, session }
    }
}

impl<T: Serialize + DeserializeOwned, D: CollectionDatabase> Collection<T, D> {
    fn on_database<R>(
        &self,
        operation: impl FnOnce(&mut BoundCollection<'_, T, OnDatabase<'_, D>, D>) -> Result<R>,
    ) -> Result<R> {
        operation(&mut self.within(&mut OnDatabase(&self.db)))
    }

    /// Returns the document with this key, or `None`.
    ///
    /// # Errors
    /// `Invalid` if the document does not fit the type; `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, key: &str) -> Result<Option<Entry<T>>> {
        self.on_database(|session| session.get(key))
    }

    /// Adds a document under a generated key, or under the key at its natural path ([`Collection::keyed_by`]); returns
    /// the key.
    ///
    /// # Errors
    /// `Conflict` if there is a document with this key; `Invalid` if there is no key at the natural path, or the
    /// content is not an object.
    pub fn push(&self, content: &T) -> Result<String> {
        self.on_database(|session| session.push(content))
    }

    /// Adds a document under this key.
    ///
    /// # Errors
    /// `Conflict` if there is one already; `Invalid` if the content is not an object.
    pub fn insert(&self, key: &str, content: &T) -> Result<Revision> {
        self.on_database(|session| session.insert(key, content))
    }

    /// Adds or replaces the document with this key.
    ///
    /// # Errors
    /// `Invalid` if the content is not an object.
    pub fn upsert(&self, key: &str, content: &T) -> Result<Revision> {
        self.on_database(|session| session.upsert(key, content))
    }

    /// Replaces the document that has the same value at `path` as `content`, or pushes a new one; returns its key. Runs
    /// in one transaction.
    ///
    /// # Errors
    /// `Invalid` if `content` has no value at the path; `Conflict` if several documents have this value (a unique index
    /// on the path prevents that).
    pub fn upsert_by(&self, path: &str, content: &T) -> Result<String> {
        let (query, body) = self.holders(path, content)?;
        let mut key = String::new();
        self.db.edit_found(query, &mut |holders| {
            let edit = self.upsert_of(holders, path, &body)?;
            key = edit.id().as_str()[self.prefix.len()..].to_owned();
            Ok(edit)
        })?;
        Ok(key)
    }

    /// Writes the entry's content over the revision that was read, and stores the new revision in the entry.
    ///
    /// # Errors
    /// `Conflict` if the document was written since; `NotFound` if it was deleted.
    pub fn update(&self, entry: &mut Entry<T>) -> Result<()> {
        self.on_database(|session| session.update(entry))
    }

    /// Applies `change` to the document with this key in one step; returns the new content, or `None` if there is no
    /// such document. On a server, `change` is called again if another client writes the document first.
    ///
    /// # Errors
    /// The errors of `change`, and those of [`Collection::update`].
    pub fn modify(&self, key: &str, mut change: impl FnMut(&mut T) -> Result<()>) -> Result<Option<Entry<T>>> {
        let mut changed = None;
        let revision = self.db.modify(&self.id(key)?, &mut |document| {
            let mut entry = entry_from(&self.prefix, document)?;
            change(&mut entry.content)?;
            let body = serialize_body(&entry.content)?;
            changed = Some(entry);
            Ok(body)
        })?;
        Ok(revision.zip(changed).map(|(revision, entry)| Entry { revision, ..entry }))
    }

    /// Deletes the revision that was read.
    ///
    /// # Errors
    /// `Conflict` if the document was written since; `NotFound` if it was deleted.
    pub fn delete(&self, entry: &Entry<T>) -> Result<()> {
        self.on_database(|session| session.delete(entry))
    }

    /// Deletes the document with this key, whatever its revision; returns whether there was one.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.db.remove(&self.id(key)?)
    }

    /// Starts a query over the documents that match a selector or query. Nothing is read until it is run.
    ///
    /// # Errors
    /// Running it returns `Invalid` if the query is malformed.
    pub fn find(&self, query: impl Into<Query>) -> FindEntries<T, D::Find> {
        FindEntries::new(self.db.find(query.into().within(self.members())), self.prefix.clone())
    }

    /// Starts a query over all documents of the collection.
    pub fn all(&self) -> FindEntries<T, D::Find> {
        self.find(Selector::everything())
    }

    /// Returns the changes of the collection after `since`, up to now.
    ///
    /// # Errors
    /// Each change can fail with `Invalid` if its document does not fit the type.
    pub fn changes(&self, since: Sequence) -> Result<impl Iterator<Item = Result<EntryChange<T>>> + use<T, D>> {
        let prefix = self.prefix.clone();
        let changes = self.db.changes_of(since, &self.members())?;
        Ok(changes.map(move |change| follow::entry_change(&prefix, &change?)))
    }

    /// Returns the changes of the collection after `since`, and then each change as it is published.
    ///
    /// # Errors
    /// None at present.
    pub fn subscribe(&self, since: Sequence) -> Result<EntrySubscription<T, D::Subscription>> {
        Ok(EntrySubscription::new(self.db.subscribe_to(since, &self.members())?, self.prefix.clone()))
    }

    /// Starts a live query over the collection; see [`Database::watch`].
    ///
    /// # Errors
    /// `Invalid` if the query is malformed or has an order, limit or projection.
    pub fn watch(&self, query: impl Into<Query>) -> Result<WatchEntries<T, D::Watch>> {
        let watch = self.db.watch(query.into().within(self.members()))?;
        Ok(WatchEntries::new(watch, self.prefix.clone()))
    }
}

impl<T: Serialize, D> Collection<T, D> {
    /// A query for the members that have the same value at `path` as `content`, and the body of `content`.
    fn holders(&self, path: &str, content: &T) -> Result<(Query, Value)> {
        let body = serialize_body(content)?;
        let value = Path::parse(path)?.get(&body).cloned().ok_or_else(|| {
            Error::invalid(format!("there is nothing at `{path}`")).with_hint("it is what the member is looked for by")
        })?;
        Ok((Query::new(field(path).eq(value)).within(self.members()), body))
    }

    /// The edit that replaces the only holder of a value at `path`, or inserts a document if there is none.
    fn upsert_of(&self, holders: &[DocumentId], path: &str, body: &Value) -> Result<Edit> {
        match holders {
            [] => Ok(Edit::Insert { id: self.id(&self.keys.key_for(body)?)?, body: body.clone() }),
            [holder] => Ok(Edit::Upsert { id: holder.clone(), body: body.clone() }),
            [first, second, ..] => {
                Err(Error::conflict(format!("`{first}` and `{second}` have the same value at `{path}`"))
                    .with_hint("correct one of them, and declare a unique index on the path"))
            }
        }
    }
}

impl<T: Serialize + DeserializeOwned, S: Session, D> BoundCollection<'_, T, S, D> {
    fn id(&self, key: &str) -> Result<DocumentId> {
        self.collection.id(key)
    }

    /// See [`Collection::get`].
    ///
    /// # Errors
    /// Those of [`Collection::get`].
    pub fn get(&mut self, key: &str) -> Result<Option<Entry<T>>> {
        let document = self.session.get(&self.collection.id_of(key))?;
        document.map(|document| entry_from(&self.collection.prefix, &document)).transpose()
    }

    /// See [`Collection::push`].
    ///
    /// # Errors
    /// Those of [`Collection::push`].
    pub fn push(&mut self, content: &T) -> Result<String> {
        let body = serialize_body(content)?;
        let key = self.collection.keys.key_for(&body)?;
        self.session.edit(Edit::Insert { id: self.id(&key)?, body })?;
        Ok(key)
    }

    /// See [`Collection::insert`].
    ///
    /// # Errors
    /// Those of [`Collection::insert`].
    pub fn insert(&mut self, key: &str, content: &T) -> Result<Revision> {
        self.session.edit(Edit::Insert { id: self.id(key)?, body: serialize_body(content)? })
    }

    /// See [`Collection::upsert`].
    ///
    /// # Errors
    /// Those of [`Collection::upsert`].
    pub fn upsert(&mut self, key: &str, content: &T) -> Result<Revision> {
        self.session.edit(Edit::Upsert { id: self.id(key)?, body: serialize_body(content)? })
    }

    /// See [`Collection::upsert_by`].
    ///
    /// # Errors
    /// Those of [`Collection::upsert_by`].
    pub fn upsert_by(&mut self, path: &str, content: &T) -> Result<String> {
        let (query, body) = self.collection.holders(path, content)?;
        let holders = self.session.find(query)?.refine(Refinement::Limit(2)).all_ids()?;
        let edit = self.collection.upsert_of(&holders, path, &body)?;
        let key = edit.id().as_str()[self.collection.prefix.len()..].to_owned();
        self.session.edit(edit)?;
        Ok(key)
    }

    /// See [`Collection::update`].
    ///
    /// # Errors
    /// Those of [`Collection::update`].
    pub fn update(&mut self, entry: &mut Entry<T>) -> Result<()> {
        let (id, body) = (self.id(&entry.key)?, serialize_body(&entry.content)?);
        entry.revision = self.session.edit(Edit::Replace { id, revision: entry.revision, body })?;
        Ok(())
    }

    /// See [`Collection::modify`]; within a transaction, the change is part of it.
    ///
    /// # Errors
    /// Those of [`Collection::modify`].
    pub fn modify(&mut self, key: &str, change: impl FnOnce(&mut T) -> Result<()>) -> Result<Option<Entry<T>>> {
        let Some(mut entry) = self.get(key)? else { return Ok(None) };
        change(&mut entry.content)?;
        self.update(&mut entry)?;
        Ok(Some(entry))
    }

    /// See [`Collection::delete`].
    ///
    /// # Errors
    /// Those of [`Collection::delete`].
    pub fn delete(&mut self, entry: &Entry<T>) -> Result<()> {
        let id = self.id(&entry.key)?;
        self.session.edit(Edit::Delete { id, revision: entry.revision }).map(|_| ())
    }

    /// See [`Collection::remove`].
    ///
    /// # Errors
    /// Those of [`Collection::remove`].
    pub fn remove(&mut self, key: &str) -> Result<bool> {
        let id = self.id(key)?;
        let Some(document) = self.session.get(id.as_str())? else { return Ok(false) };
        self.session.edit(Edit::Delete { id, revision: *document.revision() })?;
        Ok(true)
    }

    /// See [`Collection::find`].
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<FindEntries<T, S::Find>> {
        let find = self.session.find(query.into().within(self.collection.members()))?;
        Ok(FindEntries::new(find, self.collection.prefix.clone()))
    }
}
