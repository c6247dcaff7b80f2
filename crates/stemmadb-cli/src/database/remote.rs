//! A database of a server, reached by the wire protocol: what commands do with a URL in place of a path.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use stemmadb::past::{At, Retention};
use stemmadb::{Document, DocumentId, Edit, Object, Patch, Query, Revision, Selector, Sequence, Value};
use stemmadb_client::{Client, RemoteDatabase as WireDatabase, RemoteFind, RemoteKeys, RemoteRows};
use stemmadb_server::Method;

use super::attachments::{AttachmentReader, file_not_found, file_rows, read_range};
use super::history::{DifferenceRows, KeptHistory, difference_row, revision_rows};
use super::indexes::{NewIndex, index_row};
use super::keys::{KeyValue, key_not_found, key_rows, previous_value};
use super::query::query_of;
use super::update::update_of;
use super::{ChangeRow, ChangesRequest, DocumentWrite, FindRequest, LiveQuery, ResultRow, WriteMode};
use super::{document_not_found, document_object, durability_of, object_or_empty};
use crate::arguments::{ByteRange, DurabilityChoice};
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// Whether a path is the URL of a database on a server.
pub(crate) fn is_remote(path: &Path) -> bool {
    let path = path.to_string_lossy();
    ["stemma:", "stemma+", "http:", "https:"].iter().any(|scheme| path.starts_with(scheme))
}

/// Sends a request to a route below an HTTP URL, of a server or of one of its databases.
pub(crate) fn request(method: Method, url: &str, route: &str, body: Option<&Value>) -> Result<Value> {
    let runtime = tokio::runtime::Runtime::new().map_err(stemmadb::Error::no_thread)?;
    Ok(stemmadb_server::request(method, url, route, body, runtime.handle().clone())?)
}

/// A database of a server.
pub(crate) struct ServerDatabase {
    pub(super) database: WireDatabase,
    /// The state of the past that is read, instead of the newest.
    pub(super) past: Option<At>,
}

impl ServerDatabase {
    /// Connects to the server that a URL names.
    pub(crate) fn open(url: &Path) -> Result<Self> {
        let database = Client::connect(&url.to_string_lossy())?.default_database();
        let database = database.ok_or_else(|| {
            Failure::usage("the URL names no database").with_hint(
                "stemma://user:password@host:5985/database, http://user:password@host:5984/database, or \
                 stemma+unix:///socket?database=name",
            )
        })?;
        Ok(ServerDatabase { database, past: None })
    }

    /// The same database, read as of a point in the past.
    pub(crate) fn as_of(&self, at: At) -> Result<Self> {
        Ok(ServerDatabase { database: self.database.clone(), past: Some(at) })
    }

    fn durable(&self, durability: DurabilityChoice) -> WireDatabase {
        self.database.with_durability(durability_of(durability))
    }

    /// Parses `revision`, or returns the current revision of the document if it is `None`.
    fn revision_or_current(&self, id: &str, revision: Option<&str>) -> Result<Revision> {
        match revision {
            Some(revision) => Ok(revision.parse()?),
            None => Ok(*self.database.get(id)?.ok_or_else(|| document_not_found(id))?.revision()),
        }
    }

    fn read(&self, id: &str) -> Result<Option<Document>> {
        Ok(match self.past {
            Some(at) => self.database.as_of(at).get(id)?,
            None => self.database.get(id)?,
        })
    }

    fn find_on(&self, query: impl Into<Query>) -> RemoteFind {
        match self.past {
            Some(at) => self.database.as_of(at).find(query),
            None => self.database.find(query),
        }
    }

    /// Writes one document; returns its revision.
    pub(crate) fn put(&self, write: DocumentWrite, durability: DurabilityChoice) -> Result<String> {
        let (id, body) = (DocumentId::new(&write.id)?, Value::Object(write.body));
        let edit = match write.mode {
            WriteMode::Insert => Edit::Insert { id, body },
            WriteMode::Replace(revision) => Edit::Replace { id, revision: revision.parse()?, body },
            WriteMode::Upsert => Edit::Upsert { id, body },
            WriteMode::WithHistory(_) => return Err(Failure::usage("a URL takes no revisions with their ancestors")),
        };
        Ok(self.durable(durability).edit(edit)?.to_string())
    }

    /// Updates one document; returns its revision.
    pub(crate) fn update(
        &self,
        id: &str,
        revision: Option<&str>,
        patch: &Value,
        durability: DurabilityChoice,
    ) -> Result<String> {
        let edit = update_of(id, revision, patch)?;
        Ok(self.durable(durability).edit(edit)?.to_string())
    }

    /// Deletes `revision` of a document, or its current one; returns the revision of the deletion.
    pub(crate) fn delete(&self, id: &str, revision: Option<&str>, durability: DurabilityChoice) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.durable(durability).delete(id, &revision)?.to_string())
    }

    /// Reads one document.
    pub(crate) fn get(&self, id: &str, revision: Option<&str>) -> Result<Object> {
        let found = match revision {
            None => self.read(id)?,
            Some(revision) => self.database.get_revision(id, &revision.parse()?)?,
        };
        document_object(&found.ok_or_else(|| document_not_found(id))?)
    }

    fn build_find(&self, request: &FindRequest) -> Result<RemoteFind> {
        Ok(self.find_on(query_of(request)?))
    }

    /// Runs a query.
    pub(crate) fn find(&self, request: &FindRequest) -> Result<RemoteResults> {
        let find = self.build_find(request)?;
        Ok(match request {
            FindRequest { ids: true, .. } => RemoteResults::Ids(find.ids()?),
            FindRequest { fields, .. } if !fields.is_empty() => RemoteResults::Fields(find.fields(fields).values()?),
            _ => RemoteResults::Documents(find.run()?),
        })
    }

    /// Returns the query plan as text.
    pub(crate) fn explain(&self, request: &FindRequest) -> Result<String> {
        Ok(self.build_find(request)?.explain()?)
    }

    /// Counts the documents that match.
    pub(crate) fn count(&self, selector: &Value, timeout: Option<Duration>) -> Result<u64> {
        let find = self.find_on(Selector::parse(selector)?);
        Ok(match timeout {
            Some(time) => find.time_limit(time).count()?,
            None => find.count()?,
        })
    }

    /// Computes the figures of an aggregation.
    pub(crate) fn aggregate(&self, request: &Value) -> Result<Vec<(Value, Object)>> {
        Ok(match self.past {
            Some(at) => self.database.as_of(at).aggregate(request)?,
            None => self.database.aggregate(request)?,
        })
    }

    /// Reads the changes feed; with `follows`, waits for further changes for ever.
    pub(crate) fn changes(
        &self,
        feed: &ChangesRequest,
        follows: bool,
        mut visit: impl FnMut(Object) -> Result<()>,
    ) -> Result<()> {
        let since = Sequence::new(feed.since);
        let selector = feed.selector.as_ref().map(Selector::parse).transpose()?;
        if follows {
            let mut subscription = self.database.subscribe(since).documents(feed.documents);
            if !feed.ids.is_empty() {
                subscription = subscription.ids(feed.ids.iter().cloned());
            }
            if let Some(selector) = &selector {
                subscription = subscription.selector(selector)?;
            }
            if !feed.paths.is_empty() {
                subscription = subscription.paths(&feed.paths)?;
            }
            for change in subscription.take(feed.limit.map_or(usize::MAX, |limit| limit as usize)) {
                visit(ChangeRow::from_change(change?)?.object)?;
            }
            return Ok(());
        }
        let mut changes = self.database.changes(since).documents(feed.documents);
        if !feed.ids.is_empty() {
            changes = changes.ids(feed.ids.iter().cloned());
        }
        if let Some(selector) = &selector {
            changes = changes.selector(selector)?;
        }
        if !feed.paths.is_empty() {
            changes = changes.paths(&feed.paths)?;
        }
        if let Some(limit) = feed.limit {
            changes = changes.limit(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        changes.run()?.try_for_each(|change| visit(ChangeRow::from_change(change?)?.object))
    }

    /// Runs a live query, and calls `visit` with each event, and now and then without one, until it returns false.
    pub(crate) fn watch(&self, query: &LiveQuery, visit: &mut dyn FnMut(Option<Object>) -> Result<bool>) -> Result<()> {
        let mut watch = self.database.watch(Selector::parse(&query.selector)?)?;
        while visit(None)? {
            let Some(delta) = watch.next_within(SILENCE_INTERVAL)? else { continue };
            for event in delta.events() {
                if !visit(Some(query.event_object(delta.sequence(), event?)?))? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// How often a live query without events calls its visitor.
const SILENCE_INTERVAL: Duration = Duration::from_millis(200);

/// Updates of all documents that match.
impl ServerDatabase {
    /// Checks an update without writing it; returns the revision that it would change.
    pub(crate) fn check_update(&self, id: &str, revision: Option<&str>, patch: &Value) -> Result<String> {
        let patch = Patch::parse(patch)?;
        let document = match revision {
            Some(revision) => self.database.get_revision(id, &revision.parse()?)?,
            None => self.database.get(id)?,
        };
        let document = document.ok_or_else(|| document_not_found(id))?;
        patch.apply(&document.value()?)?;
        Ok(document.revision().to_string())
    }

    /// Updates all documents that match, in one transaction; returns how many changed.
    pub(crate) fn update_where(&self, selector: &Value, patch: &Value, durability: DurabilityChoice) -> Result<u64> {
        Ok(self.durable(durability).update_where(Selector::parse(selector)?, &Patch::parse(patch)?)?)
    }

    /// The number of documents that [`ServerDatabase::update_where`] would change. They are read.
    pub(crate) fn count_updates(&self, selector: &Value, patch: &Value) -> Result<u64> {
        let (selector, patch) = (Selector::parse(selector)?, Patch::parse(patch)?);
        let mut count = 0;
        for document in self.database.find(selector).run()? {
            let body = document?.value()?;
            count += u64::from(patch.apply(&body)? != body);
        }
        Ok(count)
    }

    /// Deletes all documents that match, in one transaction; returns how many.
    pub(crate) fn delete_where(&self, selector: &Value, durability: DurabilityChoice) -> Result<u64> {
        Ok(self.durable(durability).delete_where(Selector::parse(selector)?)?)
    }
}

/// Attachments.
impl ServerDatabase {
    /// Lists the attachments of a document, one row each.
    pub(crate) fn files(&self, id: &str) -> Result<Vec<Object>> {
        file_rows(self.read(id)?, id)
    }

    /// Attaches a file to a document; returns the document's new revision.
    pub(crate) fn attach(
        &self,
        id: &str,
        revision: Option<&str>,
        name: &str,
        content_type: &str,
        content: impl Read,
    ) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.database.files().attach(id, &revision, name, content_type, content)?.to_string())
    }

    /// Removes an attachment from a document; returns the document's new revision.
    pub(crate) fn detach(&self, id: &str, revision: Option<&str>, name: &str) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.database.files().detach(id, &revision, name)?.to_string())
    }

    /// Opens an attachment, or a byte range of it.
    pub(crate) fn fetch(&self, id: &str, name: &str, range: Option<ByteRange>) -> Result<AttachmentReader> {
        if self.past.is_some() {
            return Err(Failure::usage("--as-of works on local databases only").with_hint("leave it out"));
        }
        let file = self.database.files().open(id, name)?.ok_or_else(|| file_not_found(id, name))?;
        let length = file.length();
        read_range(Box::new(file), length, range)
    }
}

/// Views and declared indexes.
impl ServerDatabase {
    /// Lists the views: the name and definition of each.
    pub(crate) fn views(&self) -> Result<Vec<Object>> {
        let row = |(name, definition)| [("name", Value::from(name)), ("definition", definition)].into_iter().collect();
        let definitions: Vec<(String, Value)> = self.database.views().definitions()?;
        Ok(definitions.into_iter().map(row).collect())
    }

    /// Defines a view and maps the documents.
    pub(crate) fn define_view(&self, name: &str, definition: &Value) -> Result<Vec<String>> {
        self.database.views().define(name, definition)?.update()?;
        Ok(Vec::new())
    }

    /// A server gives no hints.
    pub(crate) fn view_hints(&self, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    pub(crate) fn drop_view(&self, name: &str) -> Result<()> {
        Ok(self.database.views().remove(name)?)
    }

    /// Declares and builds an index; returns its row.
    pub(crate) fn create_index(&self, new: &NewIndex<'_>, progress: &Progress) -> Result<Object> {
        let index = new.index()?;
        let name = index.name();
        let indexes = self.database.indexes();
        indexes.create_with_progress(index, |step| progress.set_position_and_length(step.done, step.total))?;
        let made = indexes.list()?.into_iter().find(|index| index.name == name);
        Ok(made.as_ref().map(index_row).unwrap_or_default())
    }

    /// Drops an index.
    pub(crate) fn drop_index(&self, name: &str) -> Result<()> {
        Ok(self.database.indexes().remove(name)?)
    }

    /// Lists the declared indexes, one row each.
    pub(crate) fn indexes(&self) -> Result<Vec<Object>> {
        Ok(self.database.indexes().list()?.iter().map(index_row).collect())
    }
}

/// The past.
impl ServerDatabase {
    /// The stored revisions of a document, the newest first.
    pub(crate) fn revisions(&self, id: &str, with_bodies: bool) -> Result<Vec<Object>> {
        revision_rows(self.database.history().revisions(id)?, with_bodies)
    }

    /// The differences between two points in the past.
    pub(crate) fn differences(&self, from: At, to: Option<At>, selector: Option<&Value>) -> Result<DifferenceRows> {
        let selector = selector.map(Selector::parse).transpose()?;
        let to = match to {
            Some(to) => to,
            None => At::Sequence(self.database.sequence()?),
        };
        let differences = self.database.history().differences(from, to, selector.as_ref())?;
        Ok(Box::new(differences.map(|difference| difference_row(&difference?))))
    }

    /// Writes the last revision of a deleted document again; returns the new revision.
    pub(crate) fn undelete(&self, id: &str, durability: DurabilityChoice) -> Result<String> {
        Ok(self.durable(durability).history().undelete(id)?.to_string())
    }

    /// Sets all documents that match to their state of the past; returns how many changed.
    pub(crate) fn revert(&self, selector: &Value, to: At, durability: DurabilityChoice) -> Result<u64> {
        Ok(self.durable(durability).history().revert(Selector::parse(selector)?, to)?)
    }

    /// Sets how much of the past is kept.
    pub(crate) fn keep_history(&self, retention: Retention) -> Result<()> {
        Ok(self.database.history().keep(retention)?)
    }

    /// Sets how much of the past is kept of documents whose ids have a prefix.
    pub(crate) fn keep_history_of_prefix(&self, prefix: &str, retention: Option<Retention>) -> Result<()> {
        Ok(self.database.history().keep_of_prefix(prefix, retention)?)
    }

    /// Keeps a point in the past readable under a name.
    pub(crate) fn pin_history(&self, name: &str, at: At) -> Result<()> {
        Ok(self.database.history().pin(name, at).map(|_| ())?)
    }

    /// Removes a pin.
    pub(crate) fn release_pin(&self, name: &str) -> Result<()> {
        Ok(self.database.history().release(name)?)
    }

    /// What is kept of the past.
    pub(crate) fn history_settings(&self) -> Result<Object> {
        let history = self.database.history();
        Ok(KeptHistory {
            retention: history.retention()?,
            prefixes: history.prefixes()?,
            pins: history.pins()?,
            oldest: history.oldest()?,
            newest: self.database.sequence()?,
            bytes: history.byte_count()?,
        }
        .row())
    }

    /// The newest sequence.
    pub(crate) fn newest(&self) -> Result<u64> {
        Ok(self.database.sequence()?.get())
    }

    /// How many documents [`ServerDatabase::revert`] would change.
    pub(crate) fn count_reverts(&self, selector: &Value, to: At) -> Result<u64> {
        Ok(self.database.history().count_reverts(Selector::parse(selector)?, to)?)
    }
}

/// The key-value store.
impl ServerDatabase {
    fn keys(&self, namespace: &str, durability: DurabilityChoice) -> Result<RemoteKeys> {
        Ok(self.durable(durability).keys(namespace)?)
    }

    /// The value of a key.
    pub(crate) fn key(&self, namespace: &str, key: &str) -> Result<Value> {
        self.database.keys(namespace)?.get(key)?.ok_or_else(|| key_not_found(namespace, key))
    }

    /// Sets a key if its condition holds; returns the previous value.
    pub(crate) fn set_key(
        &self,
        namespace: &str,
        key: &str,
        set: &KeyValue,
        durability: DurabilityChoice,
    ) -> Result<Option<Value>> {
        let written = self.keys(namespace, durability)?.set_if(key, &set.value, &set.condition, set.time)?;
        previous_value(written, namespace, key)
    }

    /// Removes a key.
    pub(crate) fn delete_key(&self, namespace: &str, key: &str, durability: DurabilityChoice) -> Result<()> {
        match self.keys(namespace, durability)?.remove(key)? {
            true => Ok(()),
            false => Err(key_not_found(namespace, key)),
        }
    }

    /// Adds a whole number to the value of a key; returns the sum.
    pub(crate) fn increment_key(
        &self,
        namespace: &str,
        key: &str,
        by: &Value,
        durability: DurabilityChoice,
    ) -> Result<Value> {
        let by = by.as_i64().ok_or_else(|| Failure::usage("only a whole number can be added on a server"))?;
        Ok(self.keys(namespace, durability)?.increment(key, by)?.into())
    }

    /// The keys that begin with `prefix`, with their values.
    pub(crate) fn list_keys(&self, namespace: &str, prefix: &str) -> Result<Vec<Object>> {
        Ok(key_rows(self.database.keys(namespace)?.all::<Value>()?, prefix))
    }
}

/// The rows of a query on a server.
pub(crate) enum RemoteResults {
    Documents(RemoteRows<stemmadb::Document>),
    Fields(RemoteRows<Value>),
    Ids(RemoteRows<DocumentId>),
}

impl RemoteResults {
    /// Returns the next row.
    pub(crate) fn next(&mut self) -> Result<Option<ResultRow>> {
        Ok(match self {
            RemoteResults::Documents(found) => found.next().transpose()?.map(ResultRow::Document),
            RemoteResults::Fields(found) => {
                found.next().transpose()?.map(|value| ResultRow::Object(object_or_empty(value)))
            }
            RemoteResults::Ids(found) => {
                found.next().transpose()?.map(|id| ResultRow::Object([("_id", id.as_str())].into_iter().collect()))
            }
        })
    }

    /// The token of the next page, if the limit was reached.
    pub(crate) fn token(&self) -> Result<Option<String>> {
        Ok(match self {
            RemoteResults::Documents(found) => found.token()?,
            RemoteResults::Fields(found) => found.token()?,
            RemoteResults::Ids(found) => found.token()?,
        })
    }
}
