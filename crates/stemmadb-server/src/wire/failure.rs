//! The library's errors for failures of the server.

use hyper::StatusCode;
use stemmadb::{Error, ErrorKind};

use crate::error::Failure;

/// Converts a failure of the server's own code. Errors of the library keep their kind, message and hint.
pub(super) fn to_error(failure: &Failure) -> Error {
    let kind = match failure.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Forbidden,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT if failure.error() == "duplicate" => ErrorKind::Duplicate,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        // A database that exists.
        StatusCode::PRECONDITION_FAILED if failure.error() == "file_exists" => ErrorKind::Conflict,
        StatusCode::REQUEST_TIMEOUT => ErrorKind::Stopped,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => ErrorKind::Unavailable,
        status if status.is_client_error() => ErrorKind::Invalid,
        StatusCode::NOT_IMPLEMENTED => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    };
    let error = Error::new(kind, failure.reason().to_owned());
    match failure.status() {
        StatusCode::UNAUTHORIZED => {
            error.with_hint("give a user and a password, or a token: stemma://user:password@host")
        }
        StatusCode::FORBIDDEN => error.with_hint("an administrator can grant the right in the database's _security"),
        _ => error,
    }
}

impl From<Failure> for WireError {
    fn from(failure: Failure) -> Self {
        WireError(to_error(&failure))
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
