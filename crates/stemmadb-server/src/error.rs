//! Errors as clients receive them: an HTTP status, CouchDB's error code, and a reason.

use hyper::StatusCode;
use stemmadb::{Error, ErrorKind};
#[doc(inline)]
pub(crate) use stemmadb_http::foundation::status_of;
pub use stemmadb_http::foundation::{Failure, Result};

/// The library's error for a failure of the server, for programs that know the library's kinds.
pub(crate) fn library_error(failure: &Failure) -> Error {
    let kind = match failure.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Forbidden,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT if failure.error() == "duplicate" => ErrorKind::Duplicate,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        // A database that exists.
        StatusCode::PRECONDITION_FAILED if failure.error() == "file_exists" => ErrorKind::Conflict,
        StatusCode::REQUEST_TIMEOUT => ErrorKind::Stopped,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS | StatusCode::MISDIRECTED_REQUEST => {
            ErrorKind::Unavailable
        }
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
