//! Interactive transactions: reads of a snapshot that the server keeps, and a commit that checks what was read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stemmadb::{Document, DocumentId, Edit, Error, ErrorKind, Object, Patch, Query, Result, Revision, Value};
use stemmadb_wire::Operation;

use crate::convert::{edit_value, number, object, revision_of};
use crate::database::RemoteDatabase;
use crate::find::RemoteFind;

/// The most attempts of a transaction.
const ATTEMPTS_MAX: u32 = 100;

/// One attempt of a transaction on a remote database: it reads one snapshot, and commits if nothing that it read has
/// changed. See [`RemoteDatabase::optimistic`].
///
/// Its edits are sent with the commit, so reads don't show them.
pub struct RemoteAttempt {
    database: RemoteDatabase,
    snapshot: u64,
    /// The revisions of the documents that were read; `None`: there was none.
    read: BTreeMap<String, Option<String>>,
    checks: Vec<Value>,
    edits: Vec<Value>,
}

impl RemoteAttempt {
    /// The document `id` in the snapshot.
    ///
    /// # Errors
    /// `Stopped` if the transaction lasted longer than the server's `wire.snapshot_time`.
    pub fn get(&mut self, id: &str) -> Result<Option<Document>> {
        let arguments = object([("id", id.into()), ("snapshot", self.snapshot.into())]);
        let found = self.database.request_document(Operation::Get, &arguments)?;
        self.read.insert(id.to_owned(), found.as_ref().map(|found| found.revision().to_string()));
        Ok(found)
    }

    /// The documents that match a query in the snapshot. The transaction depends on all of them, and on no others
    /// matching.
    ///
    /// # Errors
    /// Those of [`RemoteAttempt::get`]; `Invalid` if the query is malformed.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<Vec<Document>> {
        let query = query.into();
        let selector = query.to_value()?.get("selector").cloned().unwrap_or_default();
        let selector: Object = [("selector", selector)].into_iter().collect();
        let all = RemoteFind::new(self.database.clone(), Query::new(query.selector().clone()))
            .in_snapshot(self.snapshot)
            .documents()?;
        let rows: Object = all.iter().map(|row| (row.id().as_str(), Value::from(row.revision().to_string()))).collect();
        self.checks.push(object([("query", Value::Object(selector)), ("rows", Value::Object(rows))]));
        RemoteFind::new(self.database.clone(), query).in_snapshot(self.snapshot).documents()
    }

    /// The number of documents that match a query in the snapshot. The transaction depends on the number.
    ///
    /// # Errors
    /// Those of [`RemoteAttempt::find`].
    pub fn count(&mut self, query: impl Into<Query>) -> Result<u64> {
        let query = query.into();
        let value = query.to_value()?;
        let count = RemoteFind::new(self.database.clone(), query).in_snapshot(self.snapshot).count()?;
        self.checks.push(object([("query", value), ("count", count.into())]));
        Ok(count)
    }

    /// Creates a document with the commit.
    ///
    /// # Errors
    /// `Invalid` for a bad id or body.
    pub fn insert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<()> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Creates or replaces a document with the commit.
    ///
    /// # Errors
    /// `Invalid` for a bad id or body.
    pub fn upsert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<()> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of a document with the commit.
    ///
    /// # Errors
    /// `Invalid` for a bad patch.
    pub fn update(&mut self, id: &str, patch: &Patch) -> Result<()> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Adds an edit to the commit.
    ///
    /// # Errors
    /// `Invalid` if it can't be sent.
    pub fn edit(&mut self, edit: Edit) -> Result<()> {
        self.edits.push(edit_value(edit)?);
        Ok(())
    }

    fn commit(mut self) -> Result<Vec<Revision>> {
        if self.edits.is_empty() {
            return Ok(Vec::new());
        }
        for (id, revision) in &self.read {
            self.checks.push(match revision {
                Some(revision) => object([("id", id.as_str().into()), ("rev", revision.as_str().into())]),
                None => object([("id", id.as_str().into()), ("absent", true.into())]),
            });
        }
        let (checks, edits) = (std::mem::take(&mut self.checks), std::mem::take(&mut self.edits));
        let arguments = object([("checks", checks.into()), ("edits", edits.into())]);
        let revisions = self.database.request(Operation::Transact, &arguments)?;
        revisions.as_array().unwrap_or_default().iter().map(revision_of).collect()
    }
}

impl Drop for RemoteAttempt {
    fn drop(&mut self) {
        let arguments = object([("snapshot", self.snapshot.into())]);
        // The server closes it at its deadline otherwise.
        self.database.request(Operation::CloseSnapshot, &arguments).ok();
    }
}

/// Runs `work` as a transaction, again while others change what it reads.
pub(crate) fn optimistic<T>(
    database: &RemoteDatabase,
    mut work: impl FnMut(&mut RemoteAttempt) -> Result<T>,
) -> Result<T> {
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 1 {
            std::thread::sleep(Duration::from_micros(u64::from(attempt) * 100));
        }
        let opened = database.request(Operation::OpenSnapshot, &Value::Null)?;
        let mut attempt = RemoteAttempt {
            database: database.clone(),
            snapshot: number(&opened, "snapshot")?,
            read: BTreeMap::new(),
            checks: Vec::new(),
            edits: Vec::new(),
        };
        let result = work(&mut attempt)?;
        match attempt.commit() {
            Ok(_) => return Ok(result),
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::conflict(format!("this transaction conflicted with others {ATTEMPTS_MAX} times, so it was given up"))
        .with_hint("let it read less: fewer documents, or a narrower selector"))
}
