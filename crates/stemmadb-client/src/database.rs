//! A database of a server, with the interface of the embedded one.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemmadb::past::At;
use stemmadb::{
    Aggregation, Change, Document, DocumentId, Durability, Edit, Object, Patch, Query, Result, Revision, Sequence,
    Value,
};
use stemmadb_wire::{Item, Operation, WriteKey};

use crate::batch::Batch;
use crate::convert::{
    at_value, change, edit_result, edit_value, group_of, insert_patch, missing_field, number, object,
    optional_document, revision_of,
};
use crate::declarations::{RemoteIndexes, RemoteSchemas};
use crate::files::RemoteFiles;
use crate::find::RemoteFind;
use crate::history::RemoteHistory;
use crate::keys::RemoteKeys;
use crate::pool::Shared;
use crate::stream::{RemotePathSubscription, RemoteSubscription, RemoteTopicSubscription, RemoteWatch, feed_filters};
use crate::transaction::{RemoteAttempt, optimistic};
use crate::views::RemoteViews;

/// A database of a server. Cheap to clone; every method may be called from any thread.
///
/// Methods have the names, arguments, results and error kinds of [`stemmadb::Database`]. In addition any can fail with
/// `Unavailable` if the server can't be reached within [`ClientOptions::timeout`](crate::ClientOptions::timeout), and
/// with `Forbidden` if the user may not do it.
#[derive(Clone)]
pub struct RemoteDatabase {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    durability: Option<Durability>,
}

impl RemoteDatabase {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Self {
        RemoteDatabase { shared, name: name.into(), durability: None }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn request(&self, operation: Operation, arguments: &Value) -> Result<Value> {
        self.shared.call(operation, &self.name, arguments)
    }

    /// Runs an operation whose result is a document or null.
    pub(crate) fn request_document(&self, operation: Operation, arguments: &Value) -> Result<Option<Document>> {
        optional_document(&self.shared.factory, self.shared.call_item(operation, &self.name, arguments)?)
    }

    /// Runs an operation of another client, with its write key if it has one; returns the result. For servers that pass
    /// requests on.
    ///
    /// # Errors
    /// Those of the operation.
    #[doc(hidden)]
    pub fn pass_on(&self, operation: Operation, key: Option<WriteKey>, arguments: &Value) -> Result<Item> {
        self.shared.pass_on(operation, key, &self.name, arguments)
    }

    fn call_items(&self, operation: Operation, arguments: &Value) -> Result<(Vec<Item>, Value)> {
        let (mut rows, reply) = self.shared.call_rows(operation, &self.name, arguments)?;
        let (last, result) = reply.into_rows()?;
        rows.extend(last);
        Ok((rows, result))
    }

    /// Runs an operation; returns all rows, and the other fields of the result.
    pub(crate) fn call_rows(&self, operation: Operation, arguments: &Value) -> Result<(Vec<Value>, Value)> {
        let (rows, result) = self.call_items(operation, arguments)?;
        Ok((rows.into_iter().map(Item::into_value).collect::<Result<_>>()?, result))
    }

    /// Returns a handle whose writes have this durability. The server only knows `None` besides its own.
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        RemoteDatabase { durability: Some(durability), ..self.clone() }
    }

    /// Calls a function of the program that runs the server (`Server::builder(…).function(…)` of the crate
    /// `stemmadb-server`), with the rights of this client's user. One round trip; the call may have been executed if
    /// the connection is lost before the answer, and is not repeated.
    ///
    /// ```no_run
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = stemmadb_client::Client::connect("stemma://localhost")?.database("library");
    /// let count: u64 = db.call("books_before", &1960)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the function; `NotFound` if there is none of this name; `Invalid` if the input or the output does not
    /// fit; `Forbidden` if the user is no member of the database; `Unavailable` if too many calls run.
    pub fn call<I: Serialize + ?Sized, O: DeserializeOwned>(&self, name: &str, input: &I) -> Result<O> {
        let arguments = object([("name", name.into()), ("input", Value::from_serialize(input)?)]);
        let output = self.request(Operation::CallFunction, &arguments)?;
        output.deserialize_into().map_err(|error| error.within(format!("the output of the function `{name}`")))
    }

    /// Returns the document `id`, or `None` if it doesn't exist or is deleted.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        self.request_document(Operation::Get, &object([("id", id.into())]))
    }

    /// Returns several documents as of one moment, in one round trip.
    ///
    /// # Errors
    /// Those of [`RemoteDatabase::get`].
    pub fn get_many<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<Option<Document>>> {
        let ids: Vec<Value> = ids.into_iter().map(|id| Value::from(id.as_ref())).collect();
        let (rows, _) = self.call_items(Operation::GetMany, &object([("ids", ids.into())]))?;
        rows.into_iter().map(|row| optional_document(&self.shared.factory, row)).collect()
    }

    /// Returns several documents, each asked for by a request of its own; all requests are sent before the first answer
    /// is read.
    ///
    /// # Errors
    /// Those of [`RemoteDatabase::get`].
    pub fn get_pipelined<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<Option<Document>>> {
        let arguments: Vec<Value> = ids.into_iter().map(|id| object([("id", id.as_ref().into())])).collect();
        let found = self.shared.pipeline(Operation::Get, &self.name, &arguments)?;
        found.into_iter().map(|found| optional_document(&self.shared.factory, found)).collect()
    }

    /// Returns a given revision of the document `id`, if its body is still stored.
    ///
    /// # Errors
    /// Those of [`RemoteDatabase::get`].
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        let arguments = object([("id", id.into()), ("rev", revision.to_string().into())]);
        self.request_document(Operation::GetRevision, &arguments)
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
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates or replaces the document `id`, whatever its current revision; returns the new revision.
    ///
    /// # Errors
    /// `Duplicate` if it has a value that a unique index already holds; `Invalid` for a bad id or body.
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of the document `id`, whatever its current revision; returns the new revision.
    ///
    /// # Errors
    /// `NotFound` if there is no such document; `Invalid` if the patch doesn't fit it.
    pub fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Applies a patch to all documents that match a query, in one transaction; returns how many of them changed.
    ///
    /// # Errors
    /// `Invalid` if the query or the patch is malformed, the patch doesn't fit a document, or more than 50,000
    /// documents would change.
    pub fn update_where(&self, query: impl Into<Query>, patch: &Patch) -> Result<u64> {
        let mut arguments: Object = [("query", query.into().to_value()?)].into_iter().collect();
        insert_patch(&mut arguments, patch)?;
        self.count_of_write(Operation::UpdateWhere, arguments)
    }

    /// Deletes all documents that match a query, in one transaction; returns how many were deleted.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed, or more than 50,000 documents would be deleted.
    pub fn delete_where(&self, query: impl Into<Query>) -> Result<u64> {
        let arguments = [("query", query.into().to_value()?), ("delete", true.into())];
        self.count_of_write(Operation::UpdateWhere, arguments.into_iter().collect())
    }

    pub(crate) fn count_of_write(&self, operation: Operation, arguments: Object) -> Result<u64> {
        let count = self.request(operation, &self.durable(Value::Object(arguments)))?;
        count.as_u64().ok_or_else(|| missing_field("count"))
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
        revision_of(&self.request(Operation::Edit, &self.durable(edit_value(edit)?))?)
    }

    /// Adds the durability to the arguments of a write.
    pub(crate) fn durable(&self, mut arguments: Value) -> Value {
        if let (Some(Durability::None), Some(object)) = (self.durability, arguments.as_object_mut()) {
            object.insert("durability", "none");
        }
        arguments
    }

    /// Applies several edits independently, in one round trip with one flush: one may fail while the others succeed.
    ///
    /// # Errors
    /// For the whole call, if it could not be done at all. For each edit: those of the method with the edit's name.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        let edits = edits.into_iter().map(edit_value).collect::<Result<Vec<_>>>()?;
        let count = edits.len();
        let results = self.request(Operation::Bulk, &self.durable(object([("edits", edits.into())])))?;
        let results: Vec<_> = results.as_array().unwrap_or_default().iter().map(edit_result).collect();
        if results.len() == count { Ok(results) } else { Err(missing_field("results")) }
    }

    /// Starts a transaction that is sent in one round trip: checks of what was read before, and edits. It commits if
    /// all checks hold and all edits succeed, else nothing is written.
    pub fn transact(&self) -> Transact {
        Transact { database: self.clone(), checks: Vec::new(), edits: Vec::new() }
    }

    /// Runs `work` as an optimistic transaction: it reads a snapshot that the server keeps, and commits if nothing it
    /// read has changed since. Otherwise `work` runs again.
    ///
    /// It has at most the server's `wire.snapshot_time`. Its edits are sent with the commit.
    ///
    /// # Errors
    /// Those of `work`; `Conflict` after a hundred conflicting attempts; `Stopped` if it takes too long.
    pub fn optimistic<T>(&self, work: impl FnMut(&mut RemoteAttempt) -> Result<T>) -> Result<T> {
        optimistic(self, work)
    }

    /// Opens a namespace of key-value pairs, counters and keys with a time to live.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, longer than 100 bytes, or contains a slash.
    pub fn keys(&self, namespace: &str) -> Result<RemoteKeys> {
        RemoteKeys::new(self.clone(), namespace)
    }

    /// The database as it was at a point in the past, for reading.
    ///
    /// # Errors
    /// Its reads fail with `Invalid` for a sequence in the future, and `NotFound` before the kept past.
    pub fn as_of(&self, at: impl Into<At>) -> RemotePast {
        RemotePast { database: self.clone(), at: at.into() }
    }

    /// Starts a batch of reads, checks and edits in one transaction and one round trip, where later steps use the
    /// results of earlier ones.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// Operations on files of documents.
    pub fn files(&self) -> RemoteFiles {
        RemoteFiles { database: self.clone() }
    }

    /// Operations on views.
    pub fn views(&self) -> RemoteViews {
        RemoteViews { database: self.clone() }
    }

    /// Operations on declared indexes.
    pub fn indexes(&self) -> RemoteIndexes {
        RemoteIndexes { database: self.clone() }
    }

    /// Operations on the schemas of collections.
    pub fn schemas(&self) -> RemoteSchemas {
        RemoteSchemas { database: self.clone() }
    }

    /// Operations on the past.
    pub fn history(&self) -> RemoteHistory {
        RemoteHistory { database: self.clone() }
    }

    /// Finds the documents that match a selector or a whole [`Query`].
    pub fn find(&self, query: impl Into<Query>) -> RemoteFind {
        RemoteFind::new(self.clone(), query.into())
    }

    /// Computes the figures of an aggregation, given as [`Aggregation::parse`] reads it: the key and the figures of
    /// each group.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        self.aggregate_at(aggregation, None)
    }

    fn aggregate_at(&self, aggregation: &Value, at: Option<At>) -> Result<Vec<(Value, Object)>> {
        Aggregation::parse(aggregation)?;
        let mut arguments: Object = [("aggregation", aggregation.clone())].into_iter().collect();
        if let Some(at) = at {
            arguments.insert("as_of", at_value(at));
        }
        let (rows, _) = self.call_rows(Operation::Aggregate, &Value::Object(arguments))?;
        rows.into_iter().map(group_of).collect()
    }

    /// Reads the changes after `since`, up to the newest. `Sequence::ZERO` means all.
    pub fn changes(&self, since: Sequence) -> RemoteChanges {
        let mut arguments = Object::new();
        arguments.insert("since", since.get());
        RemoteChanges { database: self.clone(), arguments }
    }

    /// Subscribes to the changes feed: returns the changes after `since`, and then each new one.
    ///
    /// A lost connection is opened again, and the feed continues after the last change that was returned.
    pub fn subscribe(&self, since: Sequence) -> RemoteSubscription {
        RemoteSubscription::new(self.clone(), since)
    }

    /// Subscribes to the values at paths that match patterns: returns the documents in which they change from now on.
    /// See [`stemmadb::Database::subscribe_paths`].
    ///
    /// # Errors
    /// `Invalid` for a malformed pattern.
    pub fn subscribe_paths<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<RemotePathSubscription> {
        RemotePathSubscription::new(self.clone(), patterns)
    }

    /// Publishes a message to a topic; returns how many subscribers it has. Messages are passed on at most once, to
    /// those who subscribe now: see [`stemmadb::Database::publish`].
    ///
    /// # Errors
    /// `Invalid` if the topic is empty, longer than 1,024 bytes, or has a wildcard, or if the payload is larger than
    /// 64 KiB.
    pub fn publish<P: Serialize + ?Sized>(&self, topic: &str, payload: &P) -> Result<usize> {
        let arguments = object([("topic", topic.into()), ("payload", Value::from_serialize(payload)?)]);
        let count = self.request(Operation::Publish, &arguments)?.as_u64().ok_or_else(|| missing_field("count"))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Subscribes to the messages of topics that match one of the patterns, from now on. See
    /// [`stemmadb::Database::subscribe_topic`].
    ///
    /// # Errors
    /// `Invalid` if a pattern is malformed, or if there is none; `Forbidden` for a user whom an access rule restricts.
    pub fn subscribe_topic<P: AsRef<str>>(
        &self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<RemoteTopicSubscription> {
        RemoteTopicSubscription::new(self.clone(), patterns)
    }

    /// Starts a live query: returns the current result, and then what each transaction changes in it.
    ///
    /// After a lost connection the next delta is a first one again: it holds the whole result.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong, or has a sort order, limit or projection.
    pub fn watch(&self, query: impl Into<Query>) -> Result<RemoteWatch> {
        RemoteWatch::new(self.clone(), &query.into())
    }

    /// Returns the newest sequence. Of a virtual database, that is the sum of its shards' sequences, which is no
    /// position of the changes feed: see [`RemoteDatabase::token`].
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn sequence(&self) -> Result<Sequence> {
        Ok(Sequence::new(number(&self.request(Operation::Info, &Value::Null)?, "sequence")?))
    }

    /// Of a virtual database, the newest position of the changes feed; `None` of another one, which has a
    /// [`sequence`](RemoteDatabase::sequence).
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn token(&self) -> Result<Option<String>> {
        Ok(self.request(Operation::Info, &Value::Null)?.get("token").and_then(Value::as_str).map(str::to_owned))
    }

    /// Returns the number of documents.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn document_count(&self) -> Result<u64> {
        number(&self.request(Operation::Info, &Value::Null)?, "documents")
    }

    /// Flushes every earlier write to disk, whatever its durability.
    ///
    /// # Errors
    /// `Unavailable` if the log can't be flushed.
    pub fn flush(&self) -> Result<()> {
        self.request(Operation::Flush, &Value::Null).map(drop)
    }
}

impl std::fmt::Debug for RemoteDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteDatabase").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A remote database as it was at a point in the past. See [`RemoteDatabase::as_of`].
#[derive(Clone, Debug)]
pub struct RemotePast {
    pub(crate) database: RemoteDatabase,
    pub(crate) at: At,
}

impl RemotePast {
    /// Returns the document `id` as it was.
    ///
    /// # Errors
    /// Those of [`RemoteDatabase::as_of`].
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let arguments = object([("id", id.into()), ("as_of", at_value(self.at))]);
        self.database.request_document(Operation::Get, &arguments)
    }

    /// Finds the documents that matched.
    pub fn find(&self, query: impl Into<Query>) -> RemoteFind {
        self.database.find(query).at_point(self.at)
    }

    /// Computes the figures of an aggregation. See [`RemoteDatabase::aggregate`].
    ///
    /// # Errors
    /// Those of [`RemoteDatabase::aggregate`] and [`RemoteDatabase::as_of`].
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        self.database.aggregate_at(aggregation, Some(self.at))
    }
}

feed_filters!(RemoteChanges);

/// A read of the changes feed of a remote database.
#[must_use = "a read of the feed does nothing until it is run"]
pub struct RemoteChanges {
    database: RemoteDatabase,
    arguments: Object,
}

impl RemoteChanges {
    /// Returns at most so many changes.
    pub fn limit(mut self, limit: usize) -> Self {
        self.arguments.insert("limit", limit as u64);
        self
    }

    /// Returns the newest changes first.
    pub fn descending(mut self, descending: bool) -> Self {
        self.arguments.insert("descending", descending);
        self
    }

    /// Reads the changes.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn run(self) -> Result<impl Iterator<Item = Result<Change>>> {
        Ok(self.run_to_last()?.0)
    }

    /// Reads the changes; also returns the newest sequence of the database when they were read. Pass it as `since` of
    /// the next read if there was no limit.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn run_to_last(self) -> Result<(impl Iterator<Item = Result<Change>>, Sequence)> {
        let (changes, ending) = self.run_to_end()?;
        Ok((changes, Sequence::new(ending.get("last").and_then(Value::as_u64).unwrap_or_default())))
    }

    /// Reads the changes of a virtual database; also returns the position after the last one, for
    /// [`RemoteChanges::after`]. `None` of another database.
    ///
    /// # Errors
    /// `NotFound` if there is no such database; `Invalid` for a malformed token.
    pub fn run_to_token(self) -> Result<(impl Iterator<Item = Result<Change>>, Option<String>)> {
        let (changes, ending) = self.run_to_end()?;
        Ok((changes, ending.get("token").and_then(Value::as_str).map(str::to_owned)))
    }

    /// The changes, and the other fields of the result.
    fn run_to_end(self) -> Result<(impl Iterator<Item = Result<Change>>, Value)> {
        let RemoteChanges { database, arguments } = self;
        let (rows, ending) = database.call_rows(Operation::Changes, &Value::Object(arguments))?;
        Ok((rows.into_iter().map(move |row| change(&database.shared.factory, &row)), ending))
    }
}

/// A transaction in one round trip. See [`RemoteDatabase::transact`].
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transact {
    database: RemoteDatabase,
    checks: Vec<Value>,
    edits: Vec<Value>,
}

impl Transact {
    /// Requires that the document `id` is at `revision`; `None`: that it does not exist.
    pub fn check(mut self, id: &str, revision: Option<&Revision>) -> Self {
        self.checks.push(match revision {
            Some(revision) => object([("id", id.into()), ("rev", revision.to_string().into())]),
            None => object([("id", id.into()), ("absent", true.into())]),
        });
        self
    }

    /// Requires that so many documents match a query.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn check_count(mut self, query: impl Into<Query>, count: u64) -> Result<Self> {
        self.checks.push(object([("query", query.into().to_value()?), ("count", count.into())]));
        Ok(self)
    }

    /// Adds an edit.
    ///
    /// # Errors
    /// `Invalid` if it can't be sent.
    pub fn edit(mut self, edit: Edit) -> Result<Self> {
        self.edits.push(edit_value(edit)?);
        Ok(self)
    }

    /// Commits; returns the new revisions, in the order of the edits.
    ///
    /// # Errors
    /// `Conflict` if a check does not hold; those of the edits. Nothing is written then.
    pub fn commit(self) -> Result<Vec<Revision>> {
        let arguments = object([("checks", self.checks.into()), ("edits", self.edits.into())]);
        let revisions = self.database.request(Operation::Transact, &self.database.durable(arguments))?;
        revisions.as_array().unwrap_or_default().iter().map(revision_of).collect()
    }
}
