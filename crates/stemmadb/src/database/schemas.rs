//! JSON Schemas required of a collection's documents: [`Database::schemas`].

use crate::revision::DocumentId;
use crate::schema::Schema;
use crate::{Database, Result};

/// Operations on the JSON Schemas of collections. Made by [`Database::schemas`]; cheap.
#[derive(Debug, Clone, Copy)]
pub struct Schemas<'a> {
    database: &'a Database,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Schemas { database }
    }

    /// Requires the documents of a collection (those whose ids begin with `name:`) to match a schema. Replaces the
    /// previous schema.
    ///
    /// From then on every write except a deletion is validated, whichever interface it comes through. Costs one read of
    /// every member; writers wait while the members written during that read are validated.
    ///
    /// # Errors
    /// `Invalid` if existing members violate the schema, with their number and the first few ids (unless the schema is
    /// [`Schema::for_new_writes`]), or if the name can't be a collection's name.
    pub fn require(&self, collection: &str, schema: Schema) -> Result<()> {
        self.database.store().require_schema(collection, schema)
    }

    /// Removes the schema of a collection.
    ///
    /// # Errors
    /// `NotFound` if the collection has no schema.
    pub fn remove(&self, collection: &str) -> Result<()> {
        self.database.store().drop_schema(collection)
    }

    /// Lists the collections that have a schema, sorted by name.
    pub fn list(&self) -> Vec<(String, Schema)> {
        self.database.store().schemas()
    }

    /// Returns the first `limit` members of a collection that violate its schema, each with the violation.
    ///
    /// Such members were written before the schema was required, or arrived by replication. Costs a read of every
    /// member.
    ///
    /// # Errors
    /// `NotFound` if the collection has no schema; `Corrupt` if stored bytes are damaged.
    pub fn violations(&self, collection: &str, limit: usize) -> Result<Vec<(DocumentId, String)>> {
        self.database.store().schema_violations(collection, limit)
    }
}
