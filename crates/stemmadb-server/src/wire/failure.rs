//! The library's errors for failures of the server.

use std::sync::Arc;

use stemmadb::Error;

use crate::auth::Restriction;
use crate::error::{Failure, library_error};
use crate::virtual_databases::{EnteredVirtual, RemoteShard};

impl From<Failure> for WireError {
    fn from(failure: Failure) -> Self {
        WireError::of(library_error(&failure))
    }
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        WireError::of(error)
    }
}

/// An error of an operation: the library's, or a failure of the server converted to one.
#[derive(Debug)]
pub(super) struct WireError {
    pub(super) error: Error,
    /// The URL of the server of the cluster that has the database: the request was not executed then.
    pub(super) owner: Option<String>,
    /// The shard of a virtual database on another server that has the document: the request was not executed then.
    pub(super) shard: Option<Box<ShardElsewhere>>,
}

impl WireError {
    fn of(error: Error) -> Self {
        WireError { error, owner: None, shard: None }
    }

    /// The error for a request about a database that another server of the cluster has.
    pub(super) fn elsewhere(database: &str, owner: String) -> Self {
        let error = Error::unavailable(format!("`{database}` is served by {owner}")).with_hint("ask that server");
        WireError { owner: Some(owner), ..WireError::of(error) }
    }
}

/// The shard of a virtual database that has the document of a request, on another server.
pub(super) struct ShardElsewhere {
    pub(super) entered: EnteredVirtual,
    pub(super) remote: Arc<RemoteShard>,
    /// The documents that the user may read and write; `None`: all.
    pub(super) restriction: Option<Restriction>,
}

impl std::fmt::Debug for ShardElsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardElsewhere").field("database", &self.remote.database).finish_non_exhaustive()
    }
}

pub(super) type Result<T, E = WireError> = std::result::Result<T, E>;
