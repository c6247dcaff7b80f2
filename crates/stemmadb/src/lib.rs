//! Stemma: an embeddable document database that appends, reduces and streams.

mod cache;
mod changes;
mod collection;
mod database;
mod document;
mod engine;
mod error;
#[cfg(test)]
mod format;
#[cfg(doctest)]
mod guide;
mod index;
mod keys;
mod layout;
mod log;
mod memtable;
mod mirror;
mod options;
mod publish;
mod query;
mod read;
mod replicate;
mod revision;
mod schema;
mod sync;
#[doc(hidden)]
pub mod testing;
mod transact;
mod tree;
mod value;
mod view;

pub use changes::{
    Change, Changes, Delta, DeltaEvent, FeedPlan, PathChange, PathEvent, PathSubscription, Subscription,
    SuspendedWatch, Watch,
};
pub use collection::{
    BoundCollection, Collection, Entry, EntryChange, EntryDelta, EntryEvent, EntrySubscription, FindEntries,
    FoundEntries, Session, WatchEntries,
};
pub use database::{Database, Expiration, Files, Indexes, LocalDocuments, Maintenance, Schemas, Views};
pub use document::{Attachment, Document, File, FileContent};
pub use engine::{
    CheckReport, Damage, Duplicates, Edit, IndexInfo, IndexState, Info, Progress, SalvageReport, Salvaged,
    SalvagedRevision, Swept, Transaction,
};
pub use error::{Error, ErrorKind, Result};
pub use index::{Expiry, Index, IndexPath, Policy as IndexPolicy};
pub use keys::Keys;
pub use log::{Blob, BlobReader, Digest, Skipped};
pub use mirror::{Mirror, MirrorOptions, MirrorStats};
pub use options::{Durability, Options};
pub use publish::Notifier;
pub use query::{
    Cancellation, Explanation, Field, Find, Found, GroupBy, Query, Selector, Sort, Summary, all_of, any_of, element,
    field, not,
};
pub use read::{Branch, Listed, Listing, PathInfo, Snapshot};
pub use replicate::{
    ChangesPage, ContentOpener, DocumentLeaves, MissingRevisions, Peer, Replication, ReplicationScope,
    ReplicationStats, RunningReplication, Transfer, TransferFile, WriteOutcome,
};
pub use revision::{DocumentId, Missing, Revision, Sequence};
pub use schema::{Foreign, Schema};
pub use transact::Attempt;
pub use value::{DEPTH_MAX, Fields, IntoFields, Kind, Limits, Number, Object, ParseError, Path, Value};
pub use view::{
    Access, DeclaredView, EmittedRows, Emitter, Groups, OpenView, ProgramGroups, ProgramQuery, ProgramReducer,
    ProgramRow, ProgramRows, ProgramView, Reduction, Refresh, RowBound, RowChoice, Stats, View, ViewInfo, ViewProgram,
    ViewQuery, ViewRow, ViewRows, ViewSession,
};
