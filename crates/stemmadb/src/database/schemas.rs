//! What the documents of a collection must look like.

use crate::revision::DocumentId;
use crate::schema::Schema;
use crate::{Database, Result};

impl Database {
    /// Requires the documents of a collection, those whose ids begin with `name:`, to meet a schema; in place of the one it had. From
    /// then on each write is checked, however it is made; deletions are not.
    ///
    /// Costs a read of every member, and writers wait for those written meanwhile.
    ///
    /// # Errors
    /// `Invalid` if members break it, with their number and the first few ids (unless it is [`Schema::for_new_writes`]), or the name can't be
    /// one.
    pub fn require_schema(&self, collection: &str, schema: Schema) -> Result<()> {
        self.store().require_schema(collection, schema)
    }

    /// Takes the schema of a collection away.
    ///
    /// # Errors
    /// `NotFound` if it has none.
    pub fn drop_schema(&self, collection: &str) -> Result<()> {
        self.store().drop_schema(collection)
    }

    /// The collections that have a schema, in the order of their names.
    pub fn schemas(&self) -> Vec<(String, Schema)> {
        self.store().schemas()
    }

    /// The first `limit` members of a collection that break its schema, and what is wrong with each: they were there before, or were
    /// written elsewhere. Costs a read of every member.
    ///
    /// # Errors
    /// `NotFound` if it has no schema; `Corrupt` if stored bytes are damaged.
    pub fn schema_violations(&self, collection: &str, limit: usize) -> Result<Vec<(DocumentId, String)>> {
        self.store().schema_violations(collection, limit)
    }
}
