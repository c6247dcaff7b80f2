//! Server state shared by all requests.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::Dashboard;
use crate::accounts::Authenticator;
use crate::config::Config;
use crate::connections::Connections;
use crate::directory::Directory;
use crate::http::{BLOCKING_THREADS_MAX, MemoryBudget};
use crate::metrics::Metrics;
use crate::replicator::Jobs;
use crate::script::Scripts;
use crate::settings::RuntimeSettings;
use crate::shipping::Shipping;
use crate::triggers::Triggers;

/// How many request bodies may be streamed to disk at the same time; further uploads wait. Each occupies a thread: this
/// is a quarter of the blocking pool.
pub(crate) const UPLOADS_MAX: usize = BLOCKING_THREADS_MAX / 4;

/// Server state shared by all requests.
pub(crate) struct ServerState {
    /// The configuration at start, with the actual listening address.
    pub(crate) config: Config,
    /// The configuration in force, including changes made over HTTP.
    pub(crate) settings: Arc<RuntimeSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) shipping: Arc<Shipping>,
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) dashboard: Dashboard,
    pub(crate) started: Instant,
    /// The memory budget that all request and response bodies share.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Permits for bodies that are streamed to disk.
    pub(crate) uploads: Arc<Semaphore>,
    /// Permits for live queries.
    pub(crate) watches: Arc<Semaphore>,
    /// Becomes true when the server starts to shut down.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Returns the OpenAPI document. A function pointer, because the route table that it describes is in a layer above
    /// the handlers.
    pub(crate) openapi: fn() -> Bytes,
}
