//! CouchDB's JSON representation of documents, with their revisions and attachments: parsing and printing.

mod bulk;
mod files;
mod outgoing;
mod partition;
mod replication_state;
mod revs;
mod show;
mod timestamp;

pub(crate) use bulk::{BulkRequest, COUNT_MAX, check_count};
pub(crate) use files::{FileView, format_md5_digest};
pub(crate) use outgoing::{DocumentPrinter, ShowOptions, print_document};
pub(crate) use partition::{check_partition, check_partitioned_id, partition_end, partition_prefix};
pub(crate) use replication_state::{ReplicationCounts, ReplicationState};
pub(crate) use revs::{
    LeavesRequest, OpenRevs, OpenedRevision, VisibleBranches, is_readable, open_revs, parse_revisions, readable_leaves,
    visible_branches,
};
pub(crate) use show::parse_show_options;
pub(crate) use stemmadb_http::foundation::{
    IncomingContent, IncomingDocument, IncomingFile, REPLICATOR_DATABASE, check_id, parse_revision,
};
pub(crate) use timestamp::format_rfc1123;
pub use timestamp::{format_rfc3339, format_rfc3339_us};
