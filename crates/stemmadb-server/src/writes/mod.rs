//! Writes: checks documents of clients and of the replicator by validations, and commits them, each by itself or all in a transaction.

mod transact;
mod users;
mod write;

pub(crate) use transact::{Cause, Check, Outcome, Refusal, transact};
pub(crate) use write::{WriteOptions, Written, run_write, write, write_one};
