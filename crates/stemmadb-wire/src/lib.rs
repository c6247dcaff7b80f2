//! Stemma's wire protocol: frames, handshake, operation codes, values and errors. Pure encoding and decoding, no I/O.
//!
//! `docs/wire-protocol.md` describes the bytes; a test of this crate checks its examples. The server is
//! `stemmadb-server`, the client is `stemmadb-client`.
//!
//! Invariants: decoding returns an error or a value and never panics. A frame longer than the limit is refused when its
//! header is read. Buffers grow with the bytes that arrive, not with the lengths that a peer claims.

mod answer;
mod error;
mod frame;
mod handshake;
mod operation;
mod polling;
mod reader;
mod request;
mod value;

pub use answer::{AnswerReader, Item, Reply};
pub use error::{add_owner, error_from_value, error_to_value, kind_from_name, kind_name, owner_of_error};
pub use frame::{FRAME_HEADER_BYTES, Frame, FrameBuffer, FrameKind, write_frame};
pub use handshake::{Credentials, Hello, MAGIC, QUIC_PROTOCOL, VERSION, Welcome};
pub use operation::{Operation, Repetition};
pub use polling::SharedPolling;
pub use request::{Request, WriteKey};
pub use value::Encoding;

/// The largest frame before the handshake is complete, in bytes.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

/// The default of the largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The largest chunk of a file in a `Data` frame, in bytes.
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// The number of items or chunks of a stream that may be in flight before the receiver grants more.
pub const CREDIT: u32 = 16;
