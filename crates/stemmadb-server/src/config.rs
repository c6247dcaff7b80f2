//! How a server is run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use stemmadb::Durability;

use crate::script::{Bounded, Launch};

/// How a server is run. Every default is meant to be right.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory with the databases; made if there is none.
    pub directory: PathBuf,
    /// Where to listen. Port 0 takes any free one.
    pub address: SocketAddr,
    /// Who may do everything. None: a password is made up at each start, and only this machine is listened to.
    pub administrator: Option<Administrator>,
    /// What writes wait for.
    pub durability: Durability,
    /// What is kept of reads in memory, in bytes, for each open database.
    pub cache_bytes: u64,
    /// What runs the functions of design documents. None: this program, started with a hidden verb.
    pub scripts: Option<Launch>,
    /// What they are bounded by.
    pub script_bounds: Bounded,
    /// Bounds on what clients may do.
    pub limits: Limits,
}

/// Who may do everything.
#[derive(Clone)]
pub struct Administrator {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Administrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Administrator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Bounds on what clients may do. hyper has none of its own.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest JSON body, in bytes.
    pub body_bytes: usize,
    /// The largest file, in bytes.
    pub attachment_bytes: u64,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long a body may stand still, in either direction.
    pub stall_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connection_count: usize,
    /// How long requests may go on after the server was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 << 20,
            attachment_bytes: 4 << 30,
            head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            connection_count: 4096,
            grace: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// A server of the databases in `directory`, on this machine's port 5984.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Config {
            directory: directory.into(),
            address: SocketAddr::from(([127, 0, 0, 1], 5984)),
            administrator: None,
            durability: Durability::Sync,
            cache_bytes: 64 << 20,
            scripts: None,
            script_bounds: Bounded::default(),
            limits: Limits::default(),
        }
    }
}
