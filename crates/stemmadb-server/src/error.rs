//! Errors as clients receive them: an HTTP status, CouchDB's error code, and a reason.

#[doc(inline)]
pub use stemmadb_http::foundation::{Failure, Result};
