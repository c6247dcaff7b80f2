//! Stemma: an embeddable document database with automatic indexes, live queries, views and replication.
//!
//! A [`Database`] stores JSON documents in a directory, without a server process. Every field is indexed from the first
//! write, so queries use indexes without declaring any.
//!
//! ```
//! use serde_json::json;
//! use stemmadb::{Database, all_of, field};
//!
//! # fn main() -> stemmadb::Result<()> {
//! let db = Database::in_memory();
//! db.upsert("solaris", &json!({"title": "Solaris", "year": 1961, "tags": ["novel", "space"]}))?;
//! db.upsert("emma", &json!({"title": "Emma", "year": 1815, "tags": ["novel"]}))?;
//! let query = all_of([field("tags").contains("space"), field("year").ge(1960)]);
//! for book in db.find(query).sort_descending("year").run()? {
//!     println!("{}", book?.to_json()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - Reading and writing: [`Database`], [`Document`], [`Transaction`], [`Collection`] for typed documents.
//! - Queries: [`field`], [`Query`], [`Find`], [`GroupBy`]; [`Index`] declares unique constraints, orders of several
//!   paths, and collations of languages.
//! - Changes: [`Changes`] and [`Subscription`] for the feed, [`Watch`] for live queries.
//! - Views: [`View`] and its [`Reduction`]s.
//! - Replication: [`Replication`] between databases and other [`Peer`](replication::Peer)s; [`Mirror`] to plain files.
//! - Backups and branches: [`backup`], [`Maintenance::branch`](handles::Maintenance::branch).
//! - Maintenance: [`Schema`], [`Expiry`] (TTL), [`CheckReport`], [`salvage`].
//!
//! Every fallible call returns an [`Error`], whose [`kind`](Error::kind) determines what the caller should do.

#[cfg(feature = "tokio")]
pub mod asynchronous;
pub mod backup;
mod cache;
mod changes;
mod cipher;
mod collection;
mod compression;
mod database;
mod document;
mod engine;
mod error;
#[cfg(test)]
mod format;
#[cfg(doctest)]
mod guide;
mod history;
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
pub mod replica;
mod replicate;
mod retention;
mod revision;
mod schema;
mod sync;
#[cfg(any(test, feature = "testing", fuzzing))]
#[doc(hidden)]
pub mod testing;
mod transact;
mod tree;
mod trigger;
mod value;
mod varint;
mod vfs;
mod view;

pub use changes::{
    Change, Changes, Delta, DeltaEvent, FeedPlan, PathChange, PathEvent, PathSubscription, Subscription,
    SuspendedWatch, Watch,
};
pub use collection::{Collection, Entry, Session};
pub use compression::Compression;
pub use database::Database;
pub use document::{Attachment, Document, File, FileContent};
pub use engine::{CheckReport, Damage, Duplicates, Edit, IndexInfo, IndexState, Info, OldestSnapshot, Transaction};
pub use error::{Error, ErrorKind, Result};
pub use index::{Expiry, Index, IndexPath, Policy as IndexPolicy};
pub use keys::Keys;
pub use log::{Blob, BlobReader, Digest};
pub use mirror::{Mirror, MirrorOptions, MirrorStats};
#[doc(hidden)]
pub use options::Clock;
pub use options::{Durability, Options, Progress};
pub use publish::Notifier;
pub use query::{
    Aggregation, CancelCallback, Cancellation, Explanation, Field, Find, GroupBy, Query, QueryRows, Selector, Sort,
    Summary, all_of, any_of, element, field, not,
};
pub use read::{Branch, Listed, Listing, PathInfo, Snapshot};
pub use replicate::{Replication, ReplicationStats};
pub use revision::{DocumentId, Missing, Revision, Sequence};
pub use schema::{ForeignPolicy, Schema};
pub use transact::Attempt;
pub use value::{DEPTH_MAX, Fields, IntoFields, Kind, Limits, Number, Object, ParseError, Patch, Path, Value};
pub use view::{Access, DeclaredView, Emitter, OpenView, Reduction, Refresh, View, ViewQuery};

/// Messages in memory ([`Database::publish`]) and triggers ([`Database::trigger`]).
pub mod messages {
    pub use crate::changes::{Message, TopicSubscription};
    pub use crate::trigger::{Trigger, TriggerError, TriggerOptions};
}

/// Replicating continuously, and with databases that are reached in other ways: the [`Peer`](replication::Peer) trait.
pub mod replication {
    pub use crate::document::REPLICATION_FIELDS;
    pub use crate::replicate::{
        BackgroundReplication, ChangesPage, Conflict, ConflictFunction, ConflictRule, ContentOpener, DocumentLeaves,
        MissingRevisions, Peer, Replication, ReplicationEvent, ReplicationScope, ReplicationState, ReplicationStats,
        ReplicationStatus, ResolvedConflicts, Retry, RunningReplication, RunningTopology, Topology, TopologyEdge,
        Transfer, TransferFile, WriteOutcome,
    };
}

/// What a client of a database in another process needs to return the types of this crate.
pub mod remote {
    pub use crate::document::{DocumentFactory, RecordReader, RecordWriter};
}

/// Rows and options of views, and views whose functions are given at run time.
pub mod views {
    pub use crate::view::{
        EmittedRows, Groups, MergedGroups, MergedQuery, MergedRows, ProgramGroups, ProgramQuery, ProgramReducer,
        ProgramRow, ProgramRows, ProgramView, RowBound, RowChoice, RowPlace, Stats, ViewInfo, ViewProgram, ViewRow,
        ViewRows, ViewSession, combine_reductions,
    };
}

/// Aggregation pipelines, and groups by several paths.
pub mod aggregation {
    pub use crate::query::{GroupPaths, Pipeline, PipelineRows};
}

/// Merging the results of several databases: rows by their keys, and figures by their states.
pub mod merging {
    pub use crate::query::{KeyRows, KeyedRow, PartialAggregation, RowKey};
}

/// Results of typed collections, and the databases that can have them: see [`Collection`].
pub mod typed {
    pub use crate::collection::{
        BoundCollection, CollectionDatabase, CollectionFeed, CollectionFind, CollectionRows, Declarations,
        DeclaredCollection, EntryChange, EntryDelta, EntryEvent, EntrySubscription, FindEntries, FoundEntries,
        Refinement, WatchEntries,
    };
}

/// Groups of operations on a [`Database`]: indexes, views, files, schemas, expiration and others; conditional writes of
/// [`Keys`].
pub mod handles {
    pub use crate::database::{Expiration, Files, History, Indexes, LocalDocuments, Maintenance, Schemas, Views};
    pub use crate::engine::{ActiveTask, ActiveTaskKind, SweepReport};
    pub use crate::keys::{KeyCondition, KeyWrite};
}

/// Reading the past, and how much of it is kept: see [`History`](handles::History).
pub mod past {
    pub use crate::engine::writing_as;
    pub use crate::history::{At, Difference, Differences, PastRevision};
    pub use crate::retention::Retention;
}

/// Files that databases of this process have open, and limits of them.
pub mod open_files {
    pub use crate::vfs::{OpenFileLimit, is_exhausted, open_file_count};
}

/// Encryption at rest: keys, and encrypting and decrypting databases that exist.
///
/// A database is created encrypted if its [`Options`] have a key. See the
/// [guide](https://github.com/) for what is encrypted and what is not.
pub mod encryption {
    pub use crate::cipher::EncryptionKey;
    pub use crate::database::{decrypt, encrypt};
}

/// Stores for the logs of databases, and of clusters of servers, for those who implement one.
pub mod log_storage {
    pub use crate::vfs::{
        ClusterRecords, ClusterStore, Deposed, FileId, FileState, LogClaim, LogCopies, LogOwnership, LogStorage,
        NameChange, RecordChange, StoredFile, StoredLog,
    };
}

/// Reading what is left of a damaged database.
pub mod salvage {
    pub use crate::database::{salvage_database, salvage_encrypted_database};
    pub use crate::engine::{SalvageReport, Salvaged, SalvagedRevision};
    pub use crate::log::Skipped;
}
