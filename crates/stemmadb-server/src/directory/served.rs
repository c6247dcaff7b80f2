//! One open database, and what the server keeps beside it.

use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use stemmadb::{Database, Options};

use super::catalogue::Entry;
use crate::auth::Security;
use crate::error::Result;

/// One open database, and what the server keeps beside it.
pub(crate) struct Served {
    name: String,
    created: u64,
    database: Database,
    security: RwLock<Arc<Security>>,
}

impl Served {
    pub(super) fn open(entry: &Entry, directory: &Path, options: Options) -> Result<Self> {
        let database = Database::open_with(directory.join(&entry.directory), options)?;
        let security = RwLock::new(Arc::new(entry.security.clone()));
        Ok(Served { name: entry.name.clone(), created: entry.created, database, security })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// CouchDB's `instance_start_time`, which replicators compare: when the database was made, in seconds.
    pub(crate) fn instance_start_time(&self) -> String {
        self.created.to_string()
    }

    pub(crate) fn security(&self) -> Arc<Security> {
        self.security.read().clone()
    }

    pub(super) fn set_security(&self, security: Security) {
        *self.security.write() = Arc::new(security);
    }

    /// Closes the database; who still reads it is told so.
    pub(super) fn close(&self) {
        if let Err(error) = self.database.clone().close() {
            eprintln!("closing {}: {error}", self.name);
        }
    }
}
