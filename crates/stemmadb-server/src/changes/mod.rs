//! The changes feed over HTTP: as a list, by long polling, or as a continuous stream.
//!
//! Rows are produced in batches on the blocking pool; a waiting feed occupies no thread.

mod feed;
mod filter;
mod request;
mod rows;

pub(crate) use feed::feed;
pub(crate) use request::{ChangesRequest, FeedMode};
