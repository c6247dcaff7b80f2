//! The changes feed over HTTP: as a list, by long polling, or as a continuous stream.
//!
//! ```text
//! commit ─ published sequence ─ FeedHub: one read for all feeds ─ FeedGroup: rows in one format ─ LiveFeed ─ client
//! ```
//!
//! A waiting feed occupies no thread. Feeds with the same options are a group: their new rows are read and written once
//! ([`hub`]). A feed that starts, or is too slow for its group, reads for itself ([`rows`]).

mod feed;
mod filter;
mod format;
mod group;
mod hub;
mod live;
mod request;
mod rows;

pub(crate) use feed::feed;
pub(crate) use filter::ChangesFilter;
pub(crate) use format::{
    BATCH_BYTES, ChangeDocument, ChangeRow, FeedClient, PENDING_COUNTED, live_response, shows_sequence,
};
pub(crate) use request::{ChangesRequest, FeedMode, parse_heartbeat, parse_paths};
