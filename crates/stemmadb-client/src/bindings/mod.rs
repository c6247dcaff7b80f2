//! What bindings of other languages share: a state that can be read, transactions whose steps are calls, and names of
//! errors.
//!
//! ```
//! use stemmadb::{Database, DocumentId, Edit, Value};
//! use stemmadb_client::AnyDatabase;
//! use stemmadb_client::bindings::{OpenTransaction, TransactionHints, error_name};
//!
//! # fn main() -> stemmadb::Result<()> {
//! let database = AnyDatabase::from(Database::in_memory());
//! let hints = TransactionHints { ended: "use it before its end", changed: "run it again" };
//! let transaction = OpenTransaction::begin(database.clone(), hints)?;
//! transaction.edit(Edit::Insert { id: DocumentId::new("solaris")?, body: Value::parse(br#"{"year": 1961}"#)? })?;
//! assert!(transaction.get("solaris")?.is_some() && database.get("solaris")?.is_none());
//! transaction.end(true)?;
//! assert!(database.get("solaris")?.is_some());
//! assert_eq!(error_name(transaction.get("solaris").unwrap_err().kind()), "Invalid");
//! # Ok(())
//! # }
//! ```

mod reader;
mod transaction;

pub use reader::{Reader, ReadyFind};
use stemmadb::ErrorKind;
pub use transaction::{OpenTransaction, TransactionHints};

/// The name of a kind of errors: that of an exception, or a code. `Internal` for kinds that have none.
pub fn error_name(kind: ErrorKind) -> &'static str {
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
