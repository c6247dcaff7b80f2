//! The write path of clients and the replicator: runs validation functions, then commits documents independently or in
//! one transaction.

mod transact;
mod users;
mod write;

pub(crate) use transact::{Refusal, RefusalCause, TransactOutcome, TransactionCheck, transact};
pub(crate) use write::{WriteOptions, WriteResult, run_write, write, write_one};
