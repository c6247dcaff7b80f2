//! Declarations for a collection: expiration rules and schemas.

use std::time::Duration;

use super::Collection;
use crate::index::Expiry;
use crate::revision::Revision;
use crate::schema::Schema;
use crate::value::Value;
use crate::{Error, Result};

impl<T> Collection<T> {
    /// Lets the collection's documents expire at the time stored at `path`; see [`Expiry`].
    ///
    /// # Errors
    /// `Invalid` if the path is malformed.
    pub fn expire_by(&self, path: &str) -> Result<()> {
        self.db.expiration().add_rule(Expiry::at(path).of_collection(self.name()))
    }

    /// Requires the collection's documents, existing and future ones, to satisfy a JSON Schema.
    ///
    /// See [`Schemas::require`](crate::handles::Schemas::require), which also accepts a schema with policies.
    ///
    /// # Errors
    /// `Invalid` if `schema` is not a valid schema, or existing documents violate it.
    pub fn require_schema<S: serde::Serialize + ?Sized>(&self, schema: &S) -> Result<()> {
        self.db.schemas().require(self.name(), Schema::new(&Value::from_serialize(schema)?)?)
    }

    /// Lets the document with this key expire after `time`, or never if `time` is `None`; returns its new revision, or
    /// `None` if there is no such document.
    ///
    /// The expiration time is written at the path of the first rule that applies to the collection.
    ///
    /// # Errors
    /// `Invalid` if no rule applies to the collection ([`Collection::expire_by`]), or no value can be stored at its
    /// path.
    pub fn expire(&self, key: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        if key.is_empty() {
            return Err(Error::invalid("a key can't be empty"));
        }
        self.db.expiration().expire(&self.id_of(key), time)
    }
}
