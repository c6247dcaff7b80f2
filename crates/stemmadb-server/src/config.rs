//! How a server is run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use stemmadb::Clock;
use stemmadb::Durability;

use crate::log::Log;
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
    /// What recent writes may take of memory, in bytes, for each open database, until they are merged into its tree. A MiB at least.
    pub memory_bytes: u64,
    /// Names that this server is known by, beside numbers and `localhost`. None: it is known by these only, if only this machine is
    /// listened to, else by any.
    pub hosts: Vec<String>,
    /// What is logged, and how: for whoever installs it ([`Log::install`]).
    pub log: Log,
    /// Settings that were given by name, and where: they are not changed over HTTP.
    pub given: BTreeMap<&'static str, String>,
    /// Pages of which sites may use the server from a browser, beside its own.
    pub cors: Cors,
    /// A directory with the files of a dashboard, to be shown at `/_utils`: those that Fauxton is built to. None: a page that says how.
    pub dashboard: Option<PathBuf>,
    /// Whom the replicator reaches, and whom it trusts.
    pub replicator: Replicator,
    /// Whose tokens are trusted.
    pub jwt_keys: Vec<JwtKey>,
    /// How long a session lasts without a request.
    pub session_timeout: Duration,
    /// What wrong passwords cost.
    pub lockout: Lockout,
    /// Whether everybody has to say who they are, but for logging in and for asking whether the server is up.
    pub require_valid_user: bool,
    /// With what the server proves who it is. None: it speaks without encryption.
    pub tls: Option<Tls>,
    /// What runs the functions of design documents. None: this program, started with a hidden verb.
    pub scripts: Option<Launch>,
    /// What they are bounded by.
    pub script_bounds: Bounded,
    /// Bounds on what clients may do.
    pub limits: Limits,
    /// What tells when sessions and JSON Web Tokens are over. For tests.
    #[doc(hidden)]
    pub clock: Clock,
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

/// Pages of which sites may use the server from a browser.
#[derive(Debug, Clone)]
pub struct Cors {
    /// Whether they may at all.
    pub enabled: bool,
    /// Their origins, as `https://example.org`; `*` for all, which counts only without credentials.
    pub origins: Vec<String>,
    /// Whether they may send cookies and passwords.
    pub credentials: bool,
}

impl Default for Cors {
    fn default() -> Self {
        Cors { enabled: true, origins: Vec::new(), credentials: false }
    }
}

/// Whom the replicator reaches, whom it trusts, and when it tries again what failed.
#[derive(Debug, Clone)]
pub struct Replicator {
    /// A file with certificates, as PEM, that are trusted beside those that the system trusts.
    pub ca: Option<PathBuf>,
    /// The only hosts it reaches, as names or numbers without a port. None: any. Addresses of a link, where clouds tell secrets, are never
    /// reached.
    pub hosts: Vec<String>,
    /// How long it waits after a failure; after each further one twice as long.
    pub retry_wait: Duration,
    /// The longest such wait.
    pub retry_wait_max: Duration,
}

impl Default for Replicator {
    fn default() -> Self {
        let (retry_wait, retry_wait_max) = (Duration::from_secs(1), Duration::from_secs(600));
        Replicator { ca: None, hosts: Vec::new(), retry_wait, retry_wait_max }
    }
}

/// A key by which tokens of somebody who is trusted are signed.
#[derive(Clone)]
pub struct JwtKey {
    /// What tokens call it by (`kid`); none for those that name no key.
    pub id: Option<String>,
    /// The one algorithm that it is used with.
    pub algorithm: JwtAlgorithm,
    /// A secret of at least 32 bytes, or a public key as PEM.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtKey").field("id", &self.id).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// How a token is signed.
#[expect(missing_docs, reason = "they are the names of RFC 7518")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwtAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
}

/// What wrong passwords cost: after some of one name from one address it has to wait there, twice as long after each.
#[derive(Debug, Clone)]
pub struct Lockout {
    /// So many are free.
    pub tries: usize,
    /// The longest wait.
    pub wait_max: Duration,
}

impl Default for Lockout {
    fn default() -> Self {
        Lockout { tries: 5, wait_max: Duration::from_secs(300) }
    }
}

/// With what the server proves who it is. The files are read again when they change.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate and those that it stands on, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
}

/// Bounds on what clients may do. hyper has none of its own.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest JSON body, in bytes.
    pub body_bytes: usize,
    /// What the bodies of all requests, and the answers that the replicator reads, take of memory together, in bytes, as they come and once they
    /// are parsed; but for files, which are stored as they come. More wait for [`Limits::stall_timeout`], and are then refused with 503.
    pub bodies_bytes: u64,
    /// The largest file, in bytes.
    pub attachment_bytes: u64,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long it may take to agree on encryption.
    pub handshake_timeout: Duration,
    /// How long a body may stand still, in either direction.
    pub stall_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connection_count: usize,
    /// Connections at once of one address; more are closed.
    pub connection_count_per_address: usize,
    /// How long requests may go on after the server was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 << 20,
            bodies_bytes: 256 << 20,
            attachment_bytes: 4 << 30,
            head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(75),
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            connection_count: 4096,
            connection_count_per_address: 1024,
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
            memory_bytes: 24 << 20,
            hosts: Vec::new(),
            log: Log::default(),
            given: BTreeMap::new(),
            cors: Cors::default(),
            dashboard: None,
            replicator: Replicator::default(),
            jwt_keys: Vec::new(),
            session_timeout: Duration::from_secs(600),
            lockout: Lockout::default(),
            require_valid_user: false,
            tls: None,
            scripts: None,
            script_bounds: Bounded::default(),
            limits: Limits::default(),
            clock: Clock::default(),
        }
    }
}
