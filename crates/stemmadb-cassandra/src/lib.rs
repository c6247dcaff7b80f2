//! The log of a Stemma database on Apache Cassandra or ScyllaDB.
//!
//! The log, which is the only truth, is stored in a cluster; index, views and caches are in the directory of the
//! process that owns the database, and can be lost at any time. So queries are as fast as embedded, and durability and
//! replication are those of the cluster.
//!
//! ```no_run
//! use stemmadb::{Database, Options};
//! use stemmadb_cassandra::{Cluster, ClusterOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::connect(ClusterOptions::new(["127.0.0.1:9042"], "stemma"))?;
//! let options = Options::new().log_storage(cluster.log("library"));
//! let db = Database::open_with("library.stemma", options)?;
//! db.insert("lem-1961", &serde_json::json!({"title": "Solaris"}))?;
//! # Ok(())
//! # }
//! ```
//!
//! Several processes may open the same log, one after the other: opening takes the log over, and writes of the
//! process that had it before fail. The cluster enforces that with conditional writes (Paxos), so clocks don't matter.

mod cluster;
mod log;
mod membership;
mod requests;
mod rows;
mod schema;

pub use cluster::{Cluster, ClusterOptions};
pub use log::CassandraLog;
pub use membership::{Claim, Member, Ownership};

/// Compiles the samples of the guide.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/scaling-out.md")]
    struct ScalingOut;
}
