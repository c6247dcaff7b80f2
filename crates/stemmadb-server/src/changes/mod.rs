//! What happened since? The feed of changes as clients read it: at once, by waiting for the next, or for as long as they like.
//!
//! Rows are made in batches on the blocking pool; whoever waits holds no thread.

mod feed;
mod filter;
mod request;
mod rows;

pub(crate) use feed::feed;
pub(crate) use request::Request;
