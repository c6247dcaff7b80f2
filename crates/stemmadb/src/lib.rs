//! Stemma: an embeddable document database that appends, reduces and streams.

mod changes;
mod database;
mod error;
mod index;
mod log;
mod memtable;
mod query;
mod revision;
mod store;
mod tree;
mod value;

pub use error::{Error, ErrorKind, Result};
pub use index::Policy as IndexPolicy;
pub use revision::{DocumentId, Revision, Sequence};
pub use value::{DEPTH_MAX, Fields, Kind, Limits, Number, Object, ParseError, Path, Value};
