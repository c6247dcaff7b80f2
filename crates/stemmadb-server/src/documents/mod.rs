//! Documents as the protocol has them: read from JSON, written to JSON, with their revisions and files.

mod bulk;
mod files;
mod incoming;
mod outgoing;
mod revs;
mod transact;
mod write;

pub(crate) use bulk::{Bulk, COUNT_MAX, check_count};
pub(crate) use files::{FileView, md5_text};
pub(crate) use incoming::{Content, Incoming, IncomingFile, check_id};
pub(crate) use outgoing::{Printer, Show};
pub(crate) use revs::{Leaves, OpenRevs, Opened, open_revs, parse_revision, revision_list};
pub(crate) use transact::{Cause, Check, Outcome, Refusal, transact};
pub(crate) use write::{Manner, Written, write, write_one};
