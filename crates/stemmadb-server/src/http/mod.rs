//! HTTP messages: paths, queries, bodies, multipart, streamed responses, and the memory that bodies may take. The
//! lowest module beside `error`: it knows neither routes nor databases.

mod blocking;
mod cancellation;
mod concurrency;
mod multipart;
mod path;
mod peer;
mod query;
mod relay;
mod request_body;
mod request_line;
mod response;
mod rewritten;
mod stream;

pub use blocking::BLOCKING_THREADS_MAX;
pub(crate) use blocking::{
    blocking, can_block_in_place, initial_read, notified_read, reading, server_runtime, set_server_runtime,
    spawn_blocking,
};
pub(crate) use cancellation::{CancelOnDrop, TimeLimit, of_current_request as current_cancellation};
pub(crate) use concurrency::ConcurrencyTracker;
pub(crate) use multipart::{Parts, boundary};
pub(crate) use path::{Parameters, segments};
pub(crate) use peer::{PeerAddress, client_network};
pub(crate) use query::Query;
pub(crate) use relay::{EndingBody, relayed_answer, relayed_body};
pub(crate) use request_body::{BodyError, ClientBody, RequestBody};
pub(crate) use request_line::RequestLineStream;
pub(crate) use response::HttpResponse;
pub(crate) use rewritten::{RequestedPath, RewrittenRequest};
pub(crate) use stemmadb_http::foundation::{
    Body, BodyTimeout, JsonExtent, JsonPurpose, MemoryBudget, MemoryReservation, check_json_memory, chunk_channel,
    decompress, next_frame, read_all, read_json, read_json_within, string_length,
};
pub(crate) use stream::{ResponseWriter, streamed, streamed_bytes, with_read_timeout, write_string};
