//! The state that all requests share.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::Dashboard;
use crate::accounts::Authenticator;
use crate::config::Config;
use crate::connections::Connections;
use crate::directory::Directory;
use crate::http::MemoryBudget;
use crate::metrics::Metrics;
use crate::replicator::Jobs;
use crate::script::Scripts;
use crate::settings::RuntimeSettings;

/// How many bodies are stored as they arrive at the same time; more wait. A quarter of the blocking pool's threads.
pub(crate) const UPLOADS_MAX: usize = 128;

/// The state that all requests share.
pub(crate) struct State {
    /// The configuration that the server was started with, and the address that it listens on.
    pub(crate) config: Config,
    /// The configuration in force, with what was changed over HTTP since.
    pub(crate) settings: Arc<RuntimeSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) dashboard: Dashboard,
    pub(crate) started: Instant,
    /// The memory that bodies may take together.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Permits for bodies that are stored as they arrive.
    pub(crate) uploads: Arc<Semaphore>,
    /// Permits for watches.
    pub(crate) watches: Arc<Semaphore>,
    /// Becomes true when the server is told to stop.
    pub(crate) stopping: watch::Receiver<bool>,
    /// The OpenAPI document; it describes the table of routes, which is above the handlers.
    pub(crate) openapi: fn() -> Bytes,
}
