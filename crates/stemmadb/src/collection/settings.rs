//! What is declared for a collection: when its members end.

use std::time::Duration;

use super::Collection;
use crate::index::Expiry;
use crate::revision::Revision;
use crate::{Error, Result};

impl<T> Collection<T> {
    /// Lets members end at the time that stands at `path`: see [`Expiry`].
    ///
    /// # Errors
    /// `Invalid` if the path is malformed.
    pub fn expire_by(&self, path: &str) -> Result<()> {
        self.db.expire_by(Expiry::at(path).of_collection(self.name()))
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
        self.db.expire(&self.id_of(key), time)
    }
}
