//! Names of errors in JavaScript.

use stemmadb::ErrorKind;

/// The `code` of an error.
pub(crate) fn code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Conflict => "Conflict",
        ErrorKind::Duplicate => "Duplicate",
        ErrorKind::NotFound => "NotFound",
        ErrorKind::Invalid => "Invalid",
        ErrorKind::Forbidden => "Forbidden",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Stopped => "Stopped",
        ErrorKind::Locked => "Locked",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::KeyRequired => "KeyRequired",
        ErrorKind::WrongKey => "WrongKey",
        ErrorKind::Closed => "Closed",
        _ => "Internal",
    }
}
