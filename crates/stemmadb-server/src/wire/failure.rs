//! The library's errors for failures of the server.

use stemmadb::Error;

use crate::error::{Failure, library_error};

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
}

impl WireError {
    fn of(error: Error) -> Self {
        WireError { error, owner: None }
    }

    /// The error for a request about a database that another server of the cluster has.
    pub(super) fn elsewhere(database: &str, owner: String) -> Self {
        let error = Error::unavailable(format!("`{database}` is served by {owner}")).with_hint("ask that server");
        WireError { error, owner: Some(owner) }
    }
}

pub(super) type Result<T, E = WireError> = std::result::Result<T, E>;
