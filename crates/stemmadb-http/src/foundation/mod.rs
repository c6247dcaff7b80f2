//! What the client and the server share: errors, bodies, the memory that bodies may take, and documents in CouchDB's
//! JSON form. For Stemma's own crates; it changes without notice.

mod body;
mod chunk_reader;
mod error;
mod incoming;
mod json_memory;
mod memory_budget;
mod message_body;

pub use body::{BodyTimeout, decompress, next_frame, read_all, read_json, read_json_within};
pub use chunk_reader::{ChunkReader, chunk_channel};
pub use error::{ErrorBody, Failure, Result, status_of};
pub use incoming::{IncomingContent, IncomingDocument, IncomingFile, REPLICATOR_DATABASE, check_id, parse_revision};
pub use json_memory::{JsonExtent, JsonPurpose, check_json_memory, string_length};
pub use memory_budget::{MemoryBudget, MemoryReservation};
pub use message_body::{Body, gzip_encoder};
