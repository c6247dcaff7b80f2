//! The operations that typed collections need of a database, which may be embedded or of a server.

use std::time::Duration;

use crate::changes::{Change, Delta, Subscription, Watch};
use crate::document::Document;
use crate::engine::Edit;
use crate::index::Index;
use crate::query::{Cancellation, Find, Query, QueryRows, Selector};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::schema::Schema;
use crate::value::Value;
use crate::{Database, Error, ErrorKind, Result};

/// The most attempts to change a document that others change, too.
const ATTEMPTS_MAX: usize = 100;

/// A database that typed collections can be in: [`Database`], or one of a server in the crate `stemmadb-client`.
///
/// Programs use [`Collection`](super::Collection); this trait is for crates that give access to databases elsewhere.
/// Methods that have the name of one of [`Database`] do the same.
pub trait CollectionDatabase: Clone {
    /// A query.
    type Find: CollectionFind;
    /// A subscription to the changes feed.
    type Subscription: CollectionFeed<Change>;
    /// A live query.
    type Watch: CollectionFeed<Delta>;

    /// See [`Database::get`].
    ///
    /// # Errors
    /// Those of [`Database::get`].
    fn get(&self, id: &str) -> Result<Option<Document>>;

    /// See [`Database::edit`].
    ///
    /// # Errors
    /// Those of [`Database::edit`].
    fn edit(&self, edit: Edit) -> Result<Revision>;

    /// See [`Database::find`].
    fn find(&self, query: Query) -> Self::Find;

    /// In one transaction, finds the ids of up to two documents that match, and applies the edit that `edit` makes of
    /// them. `edit` may be called several times.
    ///
    /// # Errors
    /// Those of `edit`, [`Find::run`] and [`Database::edit`].
    fn edit_found(&self, query: Query, edit: &mut dyn FnMut(&[DocumentId]) -> Result<Edit>) -> Result<()>;

    /// Replaces the body of a document by the one that `change` makes of it, in one step; returns the new revision, or
    /// `None` if there is no such document. `change` may be called several times.
    ///
    /// # Errors
    /// Those of `change` and [`Database::replace`]; `Conflict` if others change the document all the time.
    fn modify(&self, id: &DocumentId, change: &mut dyn FnMut(&Document) -> Result<Value>) -> Result<Option<Revision>> {
        repeatedly(id, || {
            let Some(document) = self.get(id.as_str())? else { return Ok(Some(None)) };
            let (revision, body) = (*document.revision(), change(&document)?);
            let written = unless_overtaken(self.edit(Edit::Replace { id: id.clone(), revision, body }))?;
            Ok(written.map(Some))
        })
    }

    /// Deletes a document, whatever its revision; returns whether there was one.
    ///
    /// # Errors
    /// Those of [`Database::delete`]; `Conflict` if others change the document all the time.
    fn remove(&self, id: &DocumentId) -> Result<bool> {
        repeatedly(id, || {
            let Some(document) = self.get(id.as_str())? else { return Ok(Some(false)) };
            let deletion = Edit::Delete { id: id.clone(), revision: *document.revision() };
            Ok(unless_overtaken(self.edit(deletion))?.map(|_| true))
        })
    }

    /// Returns the changes after `since`, up to now, of documents that match, with the documents.
    ///
    /// # Errors
    /// Those of [`Database::changes`].
    fn changes_of(
        &self,
        since: Sequence,
        selector: &Selector,
    ) -> Result<impl Iterator<Item = Result<Change>> + use<Self>>;

    /// Returns the changes after `since` of documents that match, with the documents, and then each new one.
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    fn subscribe_to(&self, since: Sequence, selector: &Selector) -> Result<Self::Subscription>;

    /// See [`Database::watch`].
    ///
    /// # Errors
    /// Those of [`Database::watch`].
    fn watch(&self, query: Query) -> Result<Self::Watch>;

    /// The schemas that are required, by collection.
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    fn required_schemas(&self) -> Result<Vec<(String, Schema)>>;

    /// Requires a schema of a collection. See [`Schemas::require`](crate::handles::Schemas::require).
    ///
    /// # Errors
    /// Those of [`Schemas::require`](crate::handles::Schemas::require).
    fn require_schema(&self, collection: &str, schema: Schema) -> Result<()>;

    /// Declares an index. See [`Indexes::create`](crate::handles::Indexes::create).
    ///
    /// # Errors
    /// Those of [`Indexes::create`](crate::handles::Indexes::create).
    fn create_index(&self, index: Index) -> Result<()>;

    /// The database itself if it is embedded: expiration rules and views in Rust can be declared only there.
    fn embedded(&self) -> Option<&Database> {
        None
    }
}

/// The revision that an edit wrote, or `None` if its document was replaced or deleted after it was read.
fn unless_overtaken(written: Result<Revision>) -> Result<Option<Revision>> {
    match written {
        Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(None),
        written => written.map(Some),
    }
}

/// Runs `attempt` until it returns a result; it returns `None` if others changed the document `id` in the meantime.
fn repeatedly<R>(id: &DocumentId, mut attempt: impl FnMut() -> Result<Option<R>>) -> Result<R> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
    }
    Err(Error::conflict(format!("`{id}` was changed by others {ATTEMPTS_MAX} times, so the change was given up")))
}

/// A query of a [`CollectionDatabase`]. Methods do what those of [`Find`] do.
pub trait CollectionFind: Sized {
    /// The documents that it finds.
    type Rows: CollectionRows;

    /// Applies the part of [`Query`]'s builder that typed queries have.
    #[must_use]
    fn refine(self, refinement: Refinement<'_>) -> Self;

    /// See [`Find::run`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    fn run(self) -> Result<Self::Rows>;

    /// See [`Find::ids`]; all of them.
    ///
    /// # Errors
    /// Those of [`Find::ids`].
    fn all_ids(self) -> Result<Vec<DocumentId>>;

    /// See [`Find::count`].
    ///
    /// # Errors
    /// Those of [`Find::count`].
    fn count(self) -> Result<u64>;

    /// See [`Find::exists`].
    ///
    /// # Errors
    /// Those of [`Find::exists`].
    fn exists(self) -> Result<bool>;
}

/// A step in building a query: the method of [`Find`] with this name.
#[derive(Debug)]
pub enum Refinement<'a> {
    /// [`Find::sort`].
    Sort(&'a str),
    /// [`Find::sort_descending`].
    SortDescending(&'a str),
    /// [`Find::limit`].
    Limit(u64),
    /// [`Find::skip`].
    Skip(u64),
    /// [`Find::after`].
    After(String),
    /// [`Find::time_limit`].
    TimeLimit(Duration),
    /// [`Find::cancelled_by`].
    CancelledBy(&'a Cancellation),
}

/// The documents that a query found.
pub trait CollectionRows: Iterator<Item = Result<Document>> {
    /// See [`QueryRows::token`].
    ///
    /// # Errors
    /// Those of [`QueryRows::token`].
    fn token(&self) -> Result<Option<String>>;
}

/// A feed that waits for rows.
pub trait CollectionFeed<R> {
    /// Returns the next row, blocking until there is one; `None` once the database is closed.
    ///
    /// # Errors
    /// Those of [`Subscription::next_change`] and [`Watch::next_delta`].
    fn next_row(&mut self) -> Result<Option<R>>;

    /// Returns the next row, waiting at most `timeout`.
    ///
    /// # Errors
    /// Those of [`CollectionFeed::next_row`].
    fn next_row_within(&mut self, timeout: Duration) -> Result<Option<R>>;
}

impl CollectionDatabase for Database {
    type Find = Find;
    type Subscription = Subscription;
    type Watch = Watch;

    fn get(&self, id: &str) -> Result<Option<Document>> {
        Database::get(self, id)
    }

    fn edit(&self, edit: Edit) -> Result<Revision> {
        Database::edit(self, edit)
    }

    fn find(&self, query: Query) -> Find {
        Database::find(self, query)
    }

    fn edit_found(&self, query: Query, edit: &mut dyn FnMut(&[DocumentId]) -> Result<Edit>) -> Result<()> {
        self.write(|tx| {
            let found: Vec<_> = tx.find(query)?.limit(2).ids()?.collect::<Result<_>>()?;
            tx.edit(edit(&found)?).map(drop)
        })
    }

    fn modify(&self, id: &DocumentId, change: &mut dyn FnMut(&Document) -> Result<Value>) -> Result<Option<Revision>> {
        self.write(|tx| {
            let Some(document) = tx.get(id.as_str())? else { return Ok(None) };
            let (revision, body) = (*document.revision(), change(&document)?);
            tx.edit(Edit::Replace { id: id.clone(), revision, body }).map(Some)
        })
    }

    fn remove(&self, id: &DocumentId) -> Result<bool> {
        self.write(|tx| {
            let Some(document) = tx.get(id.as_str())? else { return Ok(false) };
            tx.edit(Edit::Delete { id: id.clone(), revision: *document.revision() }).map(|_| true)
        })
    }

    fn changes_of(&self, since: Sequence, selector: &Selector) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        Ok(self.changes(since)?.documents(true).selector(selector)?.run())
    }

    fn subscribe_to(&self, since: Sequence, selector: &Selector) -> Result<Subscription> {
        Ok(self.subscribe(since).selector(selector)?.documents(true))
    }

    fn watch(&self, query: Query) -> Result<Watch> {
        Database::watch(self, query)
    }

    fn required_schemas(&self) -> Result<Vec<(String, Schema)>> {
        Ok(self.schemas().list())
    }

    fn require_schema(&self, collection: &str, schema: Schema) -> Result<()> {
        self.schemas().require(collection, schema)
    }

    fn create_index(&self, index: Index) -> Result<()> {
        self.indexes().create(index)
    }

    fn embedded(&self) -> Option<&Database> {
        Some(self)
    }
}

impl CollectionFind for Find {
    type Rows = QueryRows<Document>;

    fn refine(self, refinement: Refinement<'_>) -> Self {
        match refinement {
            Refinement::Sort(path) => self.sort(path),
            Refinement::SortDescending(path) => self.sort_descending(path),
            Refinement::Limit(count) => self.limit(count),
            Refinement::Skip(count) => self.skip(count),
            Refinement::After(token) => self.after(token),
            Refinement::TimeLimit(time) => self.time_limit(time),
            Refinement::CancelledBy(cancellation) => self.cancelled_by(cancellation),
        }
    }

    fn run(self) -> Result<Self::Rows> {
        Find::run(self)
    }

    fn all_ids(self) -> Result<Vec<DocumentId>> {
        self.ids()?.collect()
    }

    fn count(self) -> Result<u64> {
        Find::count(self)
    }

    fn exists(self) -> Result<bool> {
        Find::exists(self)
    }
}

impl CollectionRows for QueryRows<Document> {
    fn token(&self) -> Result<Option<String>> {
        QueryRows::token(self)
    }
}

impl CollectionFeed<Change> for Subscription {
    fn next_row(&mut self) -> Result<Option<Change>> {
        self.next_change()
    }

    fn next_row_within(&mut self, timeout: Duration) -> Result<Option<Change>> {
        self.next_within(timeout)
    }
}

impl CollectionFeed<Delta> for Watch {
    fn next_row(&mut self) -> Result<Option<Delta>> {
        self.next_delta()
    }

    fn next_row_within(&mut self, timeout: Duration) -> Result<Option<Delta>> {
        self.next_within(timeout)
    }
}
