//! Secondary indexes and schemas of a remote database.

use stemmadb::{DocumentId, ForeignPolicy, Index, IndexInfo, IndexState, Object, Progress, Result, Schema, Value};
use stemmadb_wire::Operation;

use crate::convert::{into_text, missing_field, object, pair, progress, text};
use crate::database::RemoteDatabase;

/// Operations on the declared indexes of a remote database, with the methods of [`stemmadb::handles::Indexes`].
#[derive(Debug, Clone)]
pub struct RemoteIndexes {
    pub(crate) database: RemoteDatabase,
}

impl RemoteIndexes {
    /// Declares an index and builds it; it is complete on return. Declaring an identical index again costs nothing.
    ///
    /// # Errors
    /// `Invalid` if the definition is wrong, or a different index has this name; `Duplicate` if the index is unique and
    /// two documents share a value; `Forbidden` if the user is no administrator of the database.
    pub fn create(&self, index: Index) -> Result<()> {
        self.create_with_progress(index, |_| ())
    }

    /// Same as [`RemoteIndexes::create`]; calls `report` during a long build, counting documents.
    ///
    /// # Errors
    /// Those of [`RemoteIndexes::create`].
    pub fn create_with_progress(&self, index: Index, mut report: impl FnMut(Progress)) -> Result<()> {
        let arguments = object([("index", index.to_value()?)]);
        let mut report = |row: &Value| {
            if let Some(progress) = progress(row) {
                report(progress);
            }
        };
        let RemoteDatabase { shared, name, .. } = &self.database;
        shared.call_long(Operation::IndexCreate, name, &arguments, &mut report).map(drop)
    }

    /// Removes a declared index.
    ///
    /// # Errors
    /// `NotFound` if there is no index of this name; `Forbidden` if the user is no administrator of the database.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.database.request(Operation::IndexRemove, &object([("name", name.into())])).map(drop)
    }

    /// Lists the declared indexes in the order of declaration, and whether each is complete.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn list(&self) -> Result<Vec<IndexInfo>> {
        let (rows, _) = self.database.call_rows(Operation::IndexList, &Value::Null)?;
        rows.iter().map(index_info).collect()
    }
}

fn index_info(row: &Value) -> Result<IndexInfo> {
    let detail = row.get("detail");
    let state = match text(row, "state")? {
        "ready" => IndexState::Ready,
        "building" => IndexState::Building(detail.and_then(progress).unwrap_or(Progress { done: 0, total: 0 })),
        "failed" => IndexState::Failed { why: detail.and_then(Value::as_str).unwrap_or_default().to_owned() },
        _ => return Err(missing_field("state")),
    };
    let unique = row.get("unique").and_then(Value::as_bool).unwrap_or(false);
    Ok(IndexInfo { name: text(row, "name")?.to_owned(), paths: Index::parse(row)?.paths().to_vec(), unique, state })
}

/// Operations on the JSON Schemas of a remote database's collections, with the methods of
/// [`stemmadb::handles::Schemas`].
#[derive(Debug, Clone)]
pub struct RemoteSchemas {
    pub(crate) database: RemoteDatabase,
}

impl RemoteSchemas {
    /// Requires the documents of a collection (those whose ids begin with `name:`) to match a schema. Replaces the
    /// previous schema.
    ///
    /// # Errors
    /// `Invalid` if existing members violate it, or for a bad name; `Forbidden` if the user is no administrator of the
    /// database.
    pub fn require(&self, collection: &str, schema: Schema) -> Result<()> {
        let mut arguments = Object::new();
        arguments.insert("collection", collection);
        arguments.insert("schema", schema.json().clone());
        arguments.insert("accepts_foreign", schema.foreign_policy() == ForeignPolicy::Accept);
        arguments.insert("for_new_writes", schema.is_for_new_writes());
        self.database.request(Operation::SchemaRequire, &Value::Object(arguments)).map(drop)
    }

    /// Removes the schema of a collection.
    ///
    /// # Errors
    /// `NotFound` if it has none; `Forbidden` if the user is no administrator of the database.
    pub fn remove(&self, collection: &str) -> Result<()> {
        self.database.request(Operation::SchemaRemove, &object([("collection", collection.into())])).map(drop)
    }

    /// Lists the collections that have a schema, sorted by name.
    ///
    /// # Errors
    /// `Invalid` if this version can't read one of them.
    pub fn list(&self) -> Result<Vec<(String, Schema)>> {
        let (rows, _) = self.database.call_rows(Operation::SchemaList, &Value::Null)?;
        let read = |row: &Value| {
            let flag = |name| row.get(name).and_then(Value::as_bool).unwrap_or(false);
            let mut schema = Schema::new(row.get("schema").ok_or_else(|| missing_field("schema"))?)?;
            if flag("accepts_foreign") {
                schema = schema.foreign(ForeignPolicy::Accept);
            }
            if flag("for_new_writes") {
                schema = schema.for_new_writes();
            }
            Ok((text(row, "collection")?.to_owned(), schema))
        };
        rows.iter().map(read).collect()
    }

    /// Returns the first `limit` members of a collection that violate its schema, each with the violation.
    ///
    /// # Errors
    /// `NotFound` if the collection has no schema.
    pub fn violations(&self, collection: &str, limit: usize) -> Result<Vec<(DocumentId, String)>> {
        let arguments = object([("collection", collection.into()), ("limit", (limit as u64).into())]);
        let (rows, _) = self.database.call_rows(Operation::SchemaViolations, &arguments)?;
        let read = |row| {
            let (id, violation) = pair(row)?;
            Ok((DocumentId::new(into_text(id)?)?, into_text(violation)?))
        };
        rows.into_iter().map(read).collect()
    }
}
