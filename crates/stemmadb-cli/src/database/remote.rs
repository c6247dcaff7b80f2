//! A database of a server, reached by the wire protocol: what commands do with a URL in place of a path.

use std::path::Path;
use std::time::Duration;

use stemmadb::{DocumentId, Edit, Object, Selector, Sequence, Value};
use stemmadb_client::{Client, RemoteDatabase as WireDatabase, RemoteFind, RemoteRows};

use super::query::query_of;
use super::update::update_of;
use super::{ChangeRow, ChangesRequest, DocumentWrite, FindRequest, ResultRow, WriteMode, document_not_found};
use super::{document_object, durability_of, object_or_empty};
use crate::arguments::DurabilityChoice;
use crate::failure::{Failure, Result};

/// Whether a path is the URL of a database on a server.
pub(crate) fn is_remote(path: &Path) -> bool {
    let path = path.to_string_lossy();
    ["stemma://", "stemma+tls://", "stemma+unix://"].iter().any(|scheme| path.starts_with(scheme))
}

/// A database of a server.
pub(crate) struct ServerDatabase(WireDatabase);

impl ServerDatabase {
    /// Connects to the server that a URL names.
    pub(crate) fn open(url: &Path) -> Result<Self> {
        let database = Client::connect(&url.to_string_lossy())?.default_database();
        let database = database.ok_or_else(|| {
            Failure::usage("the URL names no database")
                .with_hint("stemma://user:password@host:5985/database, or stemma+unix:///socket?database=name")
        })?;
        Ok(ServerDatabase(database))
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
        Ok(self.0.with_durability(durability_of(durability)).edit(edit)?.to_string())
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
        Ok(self.0.with_durability(durability_of(durability)).edit(edit)?.to_string())
    }

    /// Deletes `revision` of a document, or its current one; returns the revision of the deletion.
    pub(crate) fn delete(&self, id: &str, revision: Option<&str>, durability: DurabilityChoice) -> Result<String> {
        let revision = match revision {
            Some(revision) => revision.parse()?,
            None => *self.0.get(id)?.ok_or_else(|| document_not_found(id))?.revision(),
        };
        Ok(self.0.with_durability(durability_of(durability)).delete(id, &revision)?.to_string())
    }

    /// Reads one document.
    pub(crate) fn get(&self, id: &str, revision: Option<&str>) -> Result<Object> {
        let found = match revision {
            None => self.0.get(id)?,
            Some(revision) => self.0.get_revision(id, &revision.parse()?)?,
        };
        document_object(&found.ok_or_else(|| document_not_found(id))?)
    }

    fn build_find(&self, request: &FindRequest) -> Result<RemoteFind> {
        Ok(self.0.find(query_of(request)?))
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
        let find = self.0.find(Selector::parse(selector)?);
        Ok(match timeout {
            Some(time) => find.time_limit(time).count()?,
            None => find.count()?,
        })
    }

    /// Computes the figures of an aggregation.
    pub(crate) fn aggregate(&self, request: &Value) -> Result<Vec<(Value, Object)>> {
        Ok(self.0.aggregate(request)?)
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
            let mut subscription = self.0.subscribe(since).documents(feed.documents);
            if !feed.ids.is_empty() {
                subscription = subscription.ids(feed.ids.iter().cloned());
            }
            if let Some(selector) = &selector {
                subscription = subscription.selector(selector)?;
            }
            for change in subscription.take(feed.limit.map_or(usize::MAX, |limit| limit as usize)) {
                visit(ChangeRow::from_change(change?)?.object)?;
            }
            return Ok(());
        }
        let mut changes = self.0.changes(since).documents(feed.documents);
        if !feed.ids.is_empty() {
            changes = changes.ids(feed.ids.iter().cloned());
        }
        if let Some(selector) = &selector {
            changes = changes.selector(selector)?;
        }
        if let Some(limit) = feed.limit {
            changes = changes.limit(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        changes.run()?.try_for_each(|change| visit(ChangeRow::from_change(change?)?.object))
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
