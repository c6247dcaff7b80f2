//! What the servers of a cluster share: the trait that such stores implement.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::LogStorage;

/// A store that the servers of a cluster share. It has the logs of their databases, who owns which, and records, such
/// as the list of databases. This server is a *member* of the cluster.
///
/// `ServerBuilder::cluster` of the crate `stemmadb-server` gives it to a server. The crate `stemmadb-cassandra`
/// implements it for Apache Cassandra and ScyllaDB. Methods may block.
pub trait ClusterStore: Send + Sync {
    /// The URL at which other members reach this server.
    fn address(&self) -> &str;

    /// How long a member may be silent before others take its databases.
    fn lease(&self) -> Duration;

    /// The addresses of the members that are alive, this one included, in order.
    ///
    /// # Errors
    /// Errors of the store.
    fn members(&self) -> io::Result<Vec<String>>;

    /// The address of the member that owns a log and is alive.
    ///
    /// # Errors
    /// Errors of the store.
    fn owner(&self, log: &str) -> io::Result<Option<String>>;

    /// Makes this member the owner of a log, unless another one is that is alive. Claiming it again is no error.
    ///
    /// # Errors
    /// Errors of the store.
    fn claim(&self, log: &str) -> io::Result<LogClaim>;

    /// Gives a log up, after its database was closed: another member may claim it at once.
    ///
    /// # Errors
    /// Errors of the store.
    fn release(&self, log: &str) -> io::Result<()>;

    /// Deletes a log with everything in it. Does nothing if there is none.
    ///
    /// # Errors
    /// Errors of the store: then it may be deleted in part; repeat the call.
    fn delete_log(&self, log: &str) -> io::Result<()>;

    /// A log to follow it without owning it.
    fn log(&self, log: &str) -> Arc<dyn LogStorage>;

    /// All records, unless their version is still `known`.
    ///
    /// # Errors
    /// Errors of the store.
    fn records(&self, known: Option<Uuid>) -> io::Result<Option<ClusterRecords>>;

    /// Changes records, all or none, if their version is still `before`. Returns the new version; none if the records
    /// have another version, and nothing was changed, or it is not known whether something was.
    ///
    /// # Errors
    /// Errors of the store: then it is not known whether something was changed.
    fn change_records(&self, before: Option<Uuid>, changes: &[RecordChange]) -> io::Result<Option<Uuid>>;

    /// Ends the membership: what this server owns can be claimed at once. Its databases are closed.
    fn leave(&self);
}

/// Who owns a log.
pub enum LogClaim {
    /// This server does.
    Owned(Arc<dyn LogOwnership>),
    /// Another member does: its address.
    Elsewhere(String),
}

/// The right to open a log, and to answer reads of its database.
pub trait LogOwnership: Send + Sync {
    /// Whether the log still belongs to this server. A read is as of now if this is true after it. No I/O.
    fn is_current(&self) -> bool;

    /// The log.
    fn log(&self) -> Arc<dyn LogStorage>;
}

/// The records that the servers of a cluster share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterRecords {
    /// Changes with every change of a record; none if there never was one.
    pub version: Option<Uuid>,
    /// The values by their names.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// A change of a record: its name, and the value that it gets; none if it is removed.
pub type RecordChange = (String, Option<Vec<u8>>);
