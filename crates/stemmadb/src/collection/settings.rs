//! What is declared for a collection: when its members end, and what they must look like.

use std::time::Duration;

use super::Collection;
use crate::index::Expiry;
use crate::revision::Revision;
use crate::schema::Schema;
use crate::value::Value;
use crate::{Error, Result};

impl<T> Collection<T> {
    /// Lets members end at the time that stands at `path`: see [`Expiry`].
    ///
    /// # Errors
    /// `Invalid` if the path is malformed.
    pub fn expire_by(&self, path: &str) -> Result<()> {
        self.db.expiration().add_rule(Expiry::at(path).of_collection(self.name()))
    }

    /// Requires members to meet a JSON Schema, from now on and those that are there: see [`Schemas::require`](crate::Schemas::require), which also takes one with
    /// its policies set.
    ///
    /// # Errors
    /// `Invalid` if it is no schema, or members break it.
    pub fn require_schema<S: serde::Serialize + ?Sized>(&self, schema: &S) -> Result<()> {
        self.db.schemas().require(self.name(), Schema::new(&Value::from_serialize(schema)?)?)
    }

    /// Lets the member `key` end after `time`, or, with none, never; returns its new revision, or none if there is no such member. It
    /// is written at the path of the first rule that is for it.
    ///
    /// # Errors
    /// `Invalid` if no rule is for the collection ([`Collection::expire_by`]), or there is no room at its path.
    pub fn expire(&self, key: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        if key.is_empty() {
            return Err(Error::invalid("a key can't be empty"));
        }
        self.db.expiration().expire(&self.id_of(key), time)
    }
}
