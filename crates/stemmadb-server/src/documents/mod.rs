//! Documents as the protocol has them: read from JSON, written to JSON, with their revisions and files.

mod bulk;
mod files;
mod incoming;
mod outgoing;
mod replication_state;
mod revs;
mod show;
mod timestamp;

pub(crate) use bulk::{Bulk, COUNT_MAX, check_count};
pub(crate) use files::{FileView, md5_text};
pub(crate) use incoming::{Content, Incoming, IncomingFile, check_id};
pub(crate) use outgoing::{Printer, Show};
pub(crate) use replication_state::{Counts, REPLICATOR_DATABASE, ReplicationState};
pub(crate) use revs::{Leaves, OpenRevs, Opened, open_revs, parse_revision, revision_list};
pub(crate) use show::show_of;
pub(crate) use timestamp::format_rfc3339;
