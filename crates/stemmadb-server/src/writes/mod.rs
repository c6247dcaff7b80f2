//! The write path of clients and the replicator: runs validation functions, then commits documents independently or in
//! one transaction.

mod departures;
mod editing;
mod edits;
mod patch;
mod transact;
mod users;
mod write;

pub(crate) use departures::apply_resolution;
pub(crate) use editing::{Editing, edit_optimistically};
pub(crate) use edits::{EditError, EditOutcome, apply_edits};
pub(crate) use patch::{Change, change_where, patch};
pub(crate) use transact::{Refusal, RefusalCause, TransactOutcome, TransactionCheck, transact};
pub(crate) use write::{
    WriteOptions, WriteResult, check_local_writer, new_document_id, run_write, write, write_divided, write_one,
};
