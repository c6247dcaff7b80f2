//! Server state shared by all requests.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::Dashboard;
use crate::accounts::Authenticator;
use crate::config::Config;
use crate::connections::Connections;
use crate::directory::Directory;
use crate::error::Result;
use crate::federations::Federations;
use crate::functions::Functions;
use crate::http::{BLOCKING_THREADS_MAX, MemoryBudget};
use crate::metrics::Metrics;
use crate::outbound::OutboundClient;
use crate::replicator::{Jobs, Topologies};
use crate::script::Scripts;
use crate::servers::OtherServers;
use crate::settings::RuntimeSettings;
use crate::shipping::Shipping;
use crate::spans::Spans;
use crate::tiers::Tiers;
use crate::triggers::Triggers;
use crate::virtual_databases::VirtualDatabases;

/// How many request bodies may be streamed to disk at the same time; further uploads wait. Each occupies a thread: this
/// is a quarter of the blocking pool.
pub(crate) const UPLOADS_MAX: usize = BLOCKING_THREADS_MAX / 4;

/// Opens a connection of the wire protocol for a client at this address: the end of a pair of sockets, of which the
/// other one is served. Must be called within the runtime.
#[cfg(unix)]
pub(crate) type ServeWire = Box<dyn Fn(SocketAddr) -> std::io::Result<tokio::net::UnixStream> + Send + Sync>;
/// There are no local sockets to serve.
#[cfg(not(unix))]
pub(crate) type ServeWire = std::convert::Infallible;

/// Server state shared by all requests.
pub(crate) struct ServerState {
    /// The configuration at start, with the actual listening address.
    pub(crate) config: Config,
    /// The configuration in force, including changes made over HTTP.
    pub(crate) settings: Arc<RuntimeSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) spans: Arc<Spans>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) topologies: Arc<Topologies>,
    pub(crate) federations: Arc<Federations>,
    pub(crate) servers: Arc<OtherServers>,
    /// Sends requests to other servers.
    pub(crate) outbound: Arc<OutboundClient>,
    pub(crate) virtual_databases: Arc<VirtualDatabases>,
    pub(crate) tiers: Arc<Tiers>,
    pub(crate) shipping: Arc<Shipping>,
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) connections: Arc<Connections>,
    /// The program's functions.
    pub(crate) functions: Arc<Functions>,
    pub(crate) dashboard: Dashboard,
    pub(crate) started: Instant,
    /// The memory budget that all request and response bodies share.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Permits for bodies that are streamed to disk.
    pub(crate) uploads: Arc<Semaphore>,
    /// Permits for live queries.
    pub(crate) watches: Arc<Semaphore>,
    /// Serves connections of the wire protocol, once it has started and if it may be used over WebSockets. A function,
    /// because the protocol is in a layer above the handlers.
    pub(crate) wire: OnceLock<ServeWire>,
    /// Becomes true when the server starts to shut down.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Returns the OpenAPI document. A function pointer, because the route table that it describes is in a layer above
    /// the handlers.
    pub(crate) openapi: fn() -> Bytes,
}

impl ServerState {
    /// Applies the definitions that were recorded since the last call: all of them when the server starts, later those
    /// that other servers of the cluster have recorded. Blocks.
    ///
    /// # Errors
    /// 500 if they can't be read.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.jobs.conflict_rules().catch_up()?;
        self.topologies.catch_up()?;
        self.servers.catch_up()?;
        self.federations.catch_up()?;
        self.tiers.catch_up()
    }
}
