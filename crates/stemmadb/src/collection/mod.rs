//! Whose documents are these? Collections: the documents whose ids begin with a name, as one of your types.
//!
//! A collection is a way to look at a database, not a thing in it: `books` is every document whose id is `books:` and a key. So the same
//! documents are there for queries over everything, for replication and for other languages, and a collection needs no declaration.
//! It holds no state but its name and how members come by their keys.

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

pub use entry::Entry;
use entry::{Keys, body_of, entry};
pub use find::{FindEntries, FoundEntries};
pub use follow::{EntryChange, EntryDelta, EntryEvent, EntrySubscription, WatchEntries};
pub use session::Session;

/// The documents of one kind, as one of your types: those whose ids begin with the collection's name and a colon. Cheap to clone.
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
pub struct Collection<T> {
    db: Database,
    /// The name and the separator: what the ids of members begin with.
    prefix: String,
    keys: Keys,
    content: PhantomData<fn() -> T>,
}

impl<T> Clone for Collection<T> {
    fn clone(&self) -> Self {
        Collection { db: self.db.clone(), prefix: self.prefix.clone(), keys: self.keys.clone(), content: PhantomData }
    }
}

/// A collection within a transaction: the same methods, reading and writing there.
#[derive(Debug)]
pub struct Within<'a, T, S> {
    collection: &'a Collection<T>,
    session: &'a mut S,
}

impl Database {
    /// The documents whose ids begin with `name:`, as one of your types. Nothing is declared or stored by this.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, begins with `_` or has a colon in it.
    pub fn collection<T>(&self, name: &str) -> Result<Collection<T>> {
        check_collection_name(name)?;
        let prefix = format!("{name}{COLLECTION_END}");
        Ok(Collection { db: self.clone(), prefix, keys: Keys::Generated, content: PhantomData })
    }
}

impl<T> Collection<T> {
    /// Takes the keys of members that are pushed from the text or whole number at `path`, instead of making new ones.
    ///
    /// # Errors
    /// `Invalid` if the path is malformed.
    pub fn keyed_by(mut self, path: &str) -> Result<Self> {
        self.keys = Keys::Natural(Path::parse(path)?);
        Ok(self)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.prefix.strip_suffix(COLLECTION_END).unwrap_or(&self.prefix)
    }

    /// The id of the document that is the member `key`.
    pub fn id_of(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// What all members match, and nothing else.
    pub fn members(&self) -> Selector {
        field("_id").begins_with(&self.prefix)
    }

    /// The collection within a transaction or an attempt at one.
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
    pub fn within<'a, S: Session>(&'a self, session: &'a mut S) -> Within<'a, T, S> {
        Within { collection: self, session }
    }
}

impl<T: Serialize + DeserializeOwned> Collection<T> {
    fn directly<R>(&self, work: impl FnOnce(&mut Within<'_, T, Database>) -> Result<R>) -> Result<R> {
        work(&mut self.within(&mut self.db.clone()))
    }

    /// The member `key`, or none.
    ///
    /// # Errors
    /// `Invalid` if the document does not fit the type; `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, key: &str) -> Result<Option<Entry<T>>> {
        self.directly(|here| here.get(key))
    }

    /// Adds a member under a new key, or that at its natural path ([`Collection::keyed_by`]); returns the key.
    ///
    /// # Errors
    /// `Conflict` if there is a member of this key; `Invalid` if the natural path has no key, or the content is no object.
    pub fn push(&self, content: &T) -> Result<String> {
        self.directly(|here| here.push(content))
    }

    /// Adds the member `key`.
    ///
    /// # Errors
    /// `Conflict` if there is one; `Invalid` if the content is no object.
    pub fn insert(&self, key: &str, content: &T) -> Result<Revision> {
        self.directly(|here| here.insert(key, content))
    }

    /// Adds the member `key` or replaces whatever is there.
    ///
    /// # Errors
    /// `Invalid` if the content is no object.
    pub fn upsert(&self, key: &str, content: &T) -> Result<Revision> {
        self.directly(|here| here.upsert(key, content))
    }

    /// Replaces the member whose value at `path` is that of `content`, or pushes a new one; returns the key. One transaction.
    ///
    /// # Errors
    /// `Invalid` if `content` has nothing at the path; `Conflict` if several members have this value: declare a unique
    /// index on the path.
    pub fn upsert_by(&self, path: &str, content: &T) -> Result<String> {
        self.db.write(|tx| self.within(tx).upsert_by(path, content))
    }

    /// Replaces what was read by what the entry holds now; the entry takes the new revision.
    ///
    /// # Errors
    /// `Conflict` if somebody else wrote it since; `NotFound` if it is gone.
    pub fn update(&self, entry: &mut Entry<T>) -> Result<()> {
        self.directly(|here| here.update(entry))
    }

    /// Changes the member `key` as `change` does, in a transaction; returns what it is then, or none if there is no such member.
    ///
    /// # Errors
    /// Those of `change`; as [`Collection::update`].
    pub fn modify(&self, key: &str, change: impl FnOnce(&mut T) -> Result<()>) -> Result<Option<Entry<T>>> {
        self.db.write(|tx| self.within(tx).modify(key, change))
    }

    /// Deletes what was read.
    ///
    /// # Errors
    /// `Conflict` if somebody else wrote it since; `NotFound` if it is gone.
    pub fn delete(&self, entry: &Entry<T>) -> Result<()> {
        self.directly(|here| here.delete(entry))
    }

    /// Deletes the member `key`, whatever it is; whether there was one.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.db.write(|tx| self.within(tx).remove(key))
    }

    /// The members that match a selector or query.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong.
    pub fn find(&self, query: impl Into<Query>) -> FindEntries<T> {
        FindEntries::new(self.db.find(query.into().within(self.members())), self.prefix.clone())
    }

    /// All members.
    pub fn all(&self) -> FindEntries<T> {
        self.find(Selector::everything())
    }

    /// The changes of members after `since`, up to now.
    ///
    /// # Errors
    /// Of each, `Invalid` if a document does not fit the type.
    pub fn changes(&self, since: Sequence) -> Result<impl Iterator<Item = Result<EntryChange<T>>> + use<T>> {
        let prefix = self.prefix.clone();
        let changes = self.db.changes(since)?.documents(true).selector(&self.members())?;
        Ok(changes.run().map(move |change| follow::change(&prefix, &change?)))
    }

    /// The changes of members after `since`, and then each as it is published.
    ///
    /// # Errors
    /// None so far.
    pub fn subscribe(&self, since: Sequence) -> Result<EntrySubscription<T>> {
        let subscription = self.db.subscribe(since).selector(&self.members())?;
        Ok(EntrySubscription::new(subscription, self.prefix.clone()))
    }

    /// A live query among the members: see [`Database::watch`].
    ///
    /// # Errors
    /// `Invalid` if the query is wrong or has an order, limit or projection.
    pub fn watch(&self, query: impl Into<Query>) -> Result<WatchEntries<T>> {
        let watch = self.db.watch(query.into().within(self.members()))?;
        Ok(WatchEntries::new(watch, self.prefix.clone()))
    }
}

impl<T: Serialize + DeserializeOwned, S: Session> Within<'_, T, S> {
    fn id(&self, key: &str) -> Result<DocumentId> {
        if key.is_empty() {
            return Err(Error::invalid("a key can't be empty"));
        }
        DocumentId::new(self.collection.id_of(key))
    }

    /// As [`Collection::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self, key: &str) -> Result<Option<Entry<T>>> {
        let document = self.session.get(&self.collection.id_of(key))?;
        document.map(|document| entry(&self.collection.prefix, &document)).transpose()
    }

    /// As [`Collection::push`].
    ///
    /// # Errors
    /// As there.
    pub fn push(&mut self, content: &T) -> Result<String> {
        let body = body_of(content)?;
        let key = self.collection.keys.key_of(&body)?;
        self.session.edit(Edit::Insert { id: self.id(&key)?, body })?;
        Ok(key)
    }

    /// As [`Collection::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&mut self, key: &str, content: &T) -> Result<Revision> {
        self.session.edit(Edit::Insert { id: self.id(key)?, body: body_of(content)? })
    }

    /// As [`Collection::upsert`].
    ///
    /// # Errors
    /// As there.
    pub fn upsert(&mut self, key: &str, content: &T) -> Result<Revision> {
        self.session.edit(Edit::Upsert { id: self.id(key)?, body: body_of(content)? })
    }

    /// As [`Collection::upsert_by`].
    ///
    /// # Errors
    /// As there.
    pub fn upsert_by(&mut self, path: &str, content: &T) -> Result<String> {
        let body = body_of(content)?;
        let wanted = Path::parse(path)?;
        let value = wanted.get(&body).cloned().ok_or_else(|| {
            Error::invalid(format!("there is nothing at `{path}`")).with_hint("it is what the member is looked for by")
        })?;
        match self.holders(path, value)?.as_slice() {
            [] => {
                let key = self.collection.keys.key_of(&body)?;
                self.session.edit(Edit::Insert { id: self.id(&key)?, body })?;
                Ok(key)
            }
            [holder] => {
                self.session.edit(Edit::Upsert { id: holder.clone(), body })?;
                Ok(holder.as_str()[self.collection.prefix.len()..].to_owned())
            }
            [first, second, ..] => {
                Err(Error::conflict(format!("`{first}` and `{second}` have the same value at `{path}`"))
                    .with_hint("correct one of them, and declare a unique index on the path"))
            }
        }
    }

    /// The ids of up to two members that have `value` at `path`.
    fn holders(&mut self, path: &str, value: Value) -> Result<Vec<DocumentId>> {
        let wanted = Query::new(field(path).eq(value)).within(self.collection.members());
        self.session.find(wanted)?.limit(2).ids()?.collect()
    }

    /// As [`Collection::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update(&mut self, entry: &mut Entry<T>) -> Result<()> {
        let (id, body) = (self.id(&entry.key)?, body_of(&entry.content)?);
        entry.revision = self.session.edit(Edit::Replace { id, revision: entry.revision, body })?;
        Ok(())
    }

    /// As [`Collection::modify`]; within a transaction, as all of it.
    ///
    /// # Errors
    /// As there.
    pub fn modify(&mut self, key: &str, change: impl FnOnce(&mut T) -> Result<()>) -> Result<Option<Entry<T>>> {
        let Some(mut entry) = self.get(key)? else { return Ok(None) };
        change(&mut entry.content)?;
        self.update(&mut entry)?;
        Ok(Some(entry))
    }

    /// As [`Collection::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&mut self, entry: &Entry<T>) -> Result<()> {
        let id = self.id(&entry.key)?;
        self.session.edit(Edit::Delete { id, revision: entry.revision }).map(|_| ())
    }

    /// As [`Collection::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, key: &str) -> Result<bool> {
        let id = self.id(key)?;
        let Some(document) = self.session.get(id.as_str())? else { return Ok(false) };
        self.session.edit(Edit::Delete { id, revision: *document.revision() })?;
        Ok(true)
    }

    /// As [`Collection::find`].
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<FindEntries<T>> {
        let find = self.session.find(query.into().within(self.collection.members()))?;
        Ok(FindEntries::new(find, self.collection.prefix.clone()))
    }
}
