//! Several databases, embedded or on servers, read as one.
//!
//! A [`Federation`] has members: open [`Database`](stemmadb::Database) handles, paths, and URLs of databases on
//! servers. Queries, counts, aggregations, groups, changes and live queries run over all of them, and the results are
//! those of one database that holds all documents:
//!
//! - Sorted rows are merged by their keys; documents are read only for the rows that are returned.
//! - Counts, sums, averages, extremes, distinct values and groups are merged exactly.
//! - A document that several members hold is one document, with the greatest revision. Members without common
//!   documents are declared by [`Federation::disjoint`], which is much cheaper.
//! - A member that fails is an error that names it, unless [`MissingMembers`] are allowed.
//!
//! ```
//! use serde_json::json;
//! use stemmadb::{Database, field};
//! use stemmadb_federation::Federation;
//!
//! # fn main() -> stemmadb::Result<()> {
//! let (north, south) = (Database::in_memory(), Database::in_memory());
//! north.insert("solaris", &json!({"title": "Solaris", "year": 1961}))?;
//! south.insert("dune", &json!({"title": "Dune", "year": 1965}))?;
//! let books = Federation::over([("north", north), ("south", south)])?;
//! let newest = books.find(field("year").gt(1900)).sort_descending("year").limit(1).documents()?;
//! assert_eq!(newest[0].id().as_str(), "dune");
//! assert_eq!(books.find(field("year").gt(1900)).count()?, 2);
//! # Ok(())
//! # }
//! ```
//!
//! A [`VirtualDatabase`] is one database whose documents are stored in several, by a hash of their ids. Of a
//! [`TieredDatabase`], documents move to other databases when they are old, unused or large.
//!
//! Everything blocks the calling thread. Embedded members are read by it, one after the other; requests to servers are
//! sent before, and their answers read afterwards. Writing is done in the members.

mod changes;
mod federation;
mod figures;
mod find;
mod member;
mod missing;
mod overlap;
mod rows;
mod stream;
mod tiers;
mod token;
mod unsorted;
mod view;
mod virtual_database;
mod watch;

pub use changes::{FederatedChange, FederatedChangeRows, FederatedChanges};
pub use federation::Federation;
pub use find::{FederatedAggregation, FederatedFind, FederatedGroupBy};
pub use member::{Member, without_credentials};
pub use missing::{MissingMember, MissingMembers};
pub use rows::FederatedRows;
pub use tiers::{MigrationReport, Tier, TierPolicy, TierStatus, TieredChanges, TieredDatabase};
pub use virtual_database::{
    Grouping, MoveControl, MoveEstimate, MoveStep, PlacementStore, ShardMap, ShardMove, VirtualChangeRows,
    VirtualChanges, VirtualDatabase, VirtualPast, VirtualTransact,
};
pub use watch::{FederatedDelta, FederatedWatch};

/// The samples of the guide.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/many-databases.md")]
    struct ManyDatabases;
}
