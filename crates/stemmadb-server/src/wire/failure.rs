//! The library's errors for failures of the server.

use stemmadb::Error;

use crate::error::{Failure, library_error};

impl From<Failure> for WireError {
    fn from(failure: Failure) -> Self {
        WireError(library_error(&failure))
    }
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        WireError(error)
    }
}

/// An error of an operation: the library's, or a failure of the server converted to one.
#[derive(Debug)]
pub(super) struct WireError(pub(super) Error);

pub(super) type Result<T, E = WireError> = std::result::Result<T, E>;
