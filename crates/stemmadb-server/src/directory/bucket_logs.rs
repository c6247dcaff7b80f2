//! Databases whose log is in a bucket of an object store.

use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::MutexGuard;

use super::{DatabaseSlot, Directory, ServedDatabase, is_listed};
use crate::error::{Failure, Result};
use crate::objects::ObjectLog;

/// Keeps a database from being opened.
type OpenedLock<'s> = MutexGuard<'s, Option<Arc<ServedDatabase>>>;

impl Directory {
    /// Checks the URL of a new database's log, and removes a slash at its end.
    ///
    /// # Errors
    /// 400 if it is malformed, or the server is in a cluster.
    pub(super) fn check_log_url(&self, url: &mut String) -> Result<()> {
        if self.cluster.is_some() {
            return Err(Failure::bad_request(
                "The servers of a cluster share one store for all logs: leave `log` out.",
            ));
        }
        ObjectLog::open(url)?;
        url.truncate(url.trim_end_matches('/').len());
        Ok(())
    }

    /// Closes a database and deletes its log in a bucket. Until the returned lock is given up, nobody opens it, which
    /// would create another log.
    ///
    /// # Errors
    /// 503 if the bucket can't be reached; 404 if the database was removed meanwhile.
    pub(super) fn delete_log<'s>(&self, slot: &'s DatabaseSlot, url: &str) -> Result<OpenedLock<'s>> {
        let mut opened = slot.opened.lock();
        if !is_listed(&self.slots.read(), slot) {
            return Err(Failure::no_database());
        }
        if let Some(served) = opened.take() {
            served.close();
        }
        let deleted = ObjectLog::open(url)?.delete_all();
        deleted.map_err(|error| {
            let reason = format!("The log can't be deleted, and so the database was not: {error}");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        })?;
        Ok(opened)
    }
}
