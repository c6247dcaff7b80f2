//! The configuration of a server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use stemmadb::Clock;
use stemmadb::Durability;

use crate::log::Log;
use crate::script::{ScriptLimits, WorkerCommand};

/// The configuration of a server. The defaults are suitable for most servers.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory with the databases; created if it does not exist.
    pub directory: PathBuf,
    /// The address to listen on. Port 0 selects any free port.
    pub address: SocketAddr,
    /// The server administrator. `None`: if there is no stored one, a password is generated at the first start, and
    /// only loopback addresses are allowed.
    pub administrator: Option<Administrator>,
    /// The durability of writes.
    pub durability: Durability,
    /// The read caches of all open databases together, in bytes.
    pub cache_bytes: u64,
    /// The read caches of all open databases for their indexes, in bytes; `None`: three quarters of `cache_bytes`.
    pub index_cache_bytes: Option<u64>,
    /// The read caches of all open databases for documents, in bytes; `None`: a quarter of `cache_bytes`.
    pub document_cache_bytes: Option<u64>,
    /// The memory for recent writes of all open databases together, in bytes, until they are merged into their trees. A
    /// database takes at most 64 MiB, and is given at least 1 MiB.
    pub memory_bytes: u64,
    /// The accepted names in `Host` headers, besides IP addresses and `localhost`. Empty: any name, unless the server
    /// listens on loopback only.
    pub hosts: Vec<String>,
    /// The log level and format. The program that embeds the server installs the log with [`Log::install`].
    pub log: Log,
    /// The URL of a collector of OpenTelemetry, such as `http://localhost:4318`, that each request is reported to as a
    /// span, by OTLP over HTTP. Headers with keys come from the variable `OTEL_EXPORTER_OTLP_HEADERS`. Needs the cargo
    /// feature `otlp`. `None`: to no one.
    pub otlp_endpoint: Option<String>,
    /// The sources of explicit settings by name. These settings can't be changed over HTTP.
    pub setting_sources: BTreeMap<&'static str, String>,
    /// The sites whose pages may use the server from a browser (CORS).
    pub cors: Cors,
    /// A directory with the files of a dashboard, such as a build of Fauxton, served at `/_utils`. `None`: a page that
    /// explains how to install one.
    pub dashboard: Option<PathBuf>,
    /// The directory, or `s3://bucket/prefix`, in which `POST /{db}/_backup` makes backups. `None`: it makes none.
    pub backups: Option<PathBuf>,
    /// The replicator: allowed hosts, trusted certificates, retries.
    pub replicator: Replicator,
    /// The keys of trusted JSON Web Tokens.
    pub jwt_keys: Vec<JwtKey>,
    /// The secret that a proxy shares with this server, to authenticate requests by `X-Auth-CouchDB-…` headers. `None`:
    /// these headers are ignored.
    pub proxy_secret: Option<ProxySecret>,
    /// How long a session lasts without a request.
    pub session_timeout: Duration,
    /// The lockout after wrong passwords.
    pub lockout: Lockout,
    /// Whether all requests must be authenticated, except `/_session` and `/_up`.
    pub require_valid_user: bool,
    /// The TLS certificate and key. `None`: connections are not encrypted.
    pub tls: Option<Tls>,
    /// Certificates from an ACME server, instead of `tls`.
    pub acme: Acme,
    /// A file with the key that all databases are encrypted with.
    pub key_file: Option<PathBuf>,
    /// The command that starts script workers. `None`: this program with a hidden subcommand.
    pub scripts: Option<WorkerCommand>,
    /// The limits of script workers.
    pub script_limits: ScriptLimits,
    /// Webhooks and trigger functions: retries and limits.
    pub triggers: Triggers,
    /// How long a thread polls a connection for the next request before it sleeps, in microseconds, while few
    /// connections are active; 50 by default, 0: never.
    pub poll_us: usize,
    /// The limits for clients.
    pub limits: Limits,
    /// The listeners of the wire protocol.
    pub wire: Wire,
    /// The cluster to be a member of, for the command: a program gives
    /// [`ServerBuilder::cluster`](crate::ServerBuilder::cluster) a store.
    pub cluster: ClusterMember,
    /// The clock for the expiry of sessions and JSON Web Tokens, replaceable for tests.
    #[doc(hidden)]
    pub clock: Clock,
}

/// A server administrator.
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

/// The sites whose pages may use the server from a browser (CORS).
#[derive(Debug, Clone)]
pub struct Cors {
    /// Whether CORS is enabled.
    pub enabled: bool,
    /// The allowed origins, such as `https://example.org`, or `*` for all, which applies only without credentials.
    pub origins: Vec<String>,
    /// Whether their pages may send cookies and passwords.
    pub credentials: bool,
}

impl Default for Cors {
    fn default() -> Self {
        Cors { enabled: true, origins: Vec::new(), credentials: false }
    }
}

/// The configuration of the replicator.
#[derive(Debug, Clone)]
pub struct Replicator {
    /// A PEM file with certificates that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
    /// The hosts that it, and webhooks, may connect to, as names or IP addresses without a port. Empty: any. Link-local
    /// addresses, where clouds serve secrets, are never allowed.
    pub hosts: Vec<String>,
    /// The wait after a failure; doubled after each further failure without progress.
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

/// The configuration of webhooks and trigger functions.
#[derive(Debug, Clone)]
pub struct Triggers {
    /// The maximum number of triggers over all databases. Each has a thread.
    pub count: usize,
    /// The maximum number of calls at a time, over all triggers; more wait.
    pub concurrency: usize,
    /// The time limit of a webhook's request.
    pub timeout: Duration,
    /// The wait after a failed call; doubled after each further failure, and shortened randomly by up to a half.
    pub retry_wait: Duration,
    /// The longest such wait.
    pub retry_wait_max: Duration,
}

impl Default for Triggers {
    fn default() -> Self {
        Triggers {
            count: 1_000,
            concurrency: 16,
            timeout: Duration::from_secs(30),
            retry_wait: Duration::from_secs(1),
            retry_wait_max: Duration::from_secs(600),
        }
    }
}

/// A key that signs trusted JSON Web Tokens.
#[derive(Clone)]
pub struct JwtKey {
    /// The id in tokens (`kid`); `None` for tokens without one.
    pub id: Option<String>,
    /// The only algorithm that the key is used with.
    pub algorithm: JwtAlgorithm,
    /// A secret of at least 32 bytes, or a public key as PEM.
    pub key: Vec<u8>,
}

/// The secret of proxy authentication.
#[derive(Clone)]
pub struct ProxySecret(pub Vec<u8>);

impl std::fmt::Debug for ProxySecret {
    /// Does not show the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProxySecret")
    }
}

impl std::fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtKey").field("id", &self.id).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// A signature algorithm.
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

/// The lockout after wrong passwords: a name has to wait at an address after some wrong passwords, twice as long after
/// each further one.
#[derive(Debug, Clone)]
pub struct Lockout {
    /// The number of wrong passwords without a wait.
    pub tries: usize,
    /// The longest wait.
    pub wait_max: Duration,
}

impl Default for Lockout {
    fn default() -> Self {
        Lockout { tries: 5, wait_max: Duration::from_secs(300) }
    }
}

/// The TLS certificate and key. The files are read again when they change.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate with its chain, as PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, as PEM.
    pub key: PathBuf,
}

/// Certificates that the server obtains from an ACME server and renews. Port 443 of each domain must lead to the
/// address on which the server listens. They are kept in `.acme` below the directory of the databases.
#[derive(Debug, Clone, Default)]
pub struct Acme {
    /// The domains, or IP addresses, for which a certificate is obtained; none: no certificate is.
    pub domains: Vec<String>,
    /// The mail addresses of the account.
    pub contact: Vec<String>,
    /// The URL of the ACME server's directory. `None`: Let's Encrypt, whose terms of service are agreed to.
    pub directory: Option<String>,
    /// The root certificate of the ACME server itself, as PEM, if it is private.
    pub ca: Option<PathBuf>,
}

/// The limits for clients. hyper has no defaults for most of them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest JSON body, in bytes.
    pub body_bytes: usize,
    /// The memory for the bodies of all requests and the responses that the replicator reads, in bytes, as received and
    /// as parsed, except for files, which are stored while they are received. Further requests wait for
    /// [`Limits::stall_timeout`] and then fail with 503.
    pub bodies_bytes: u64,
    /// The local copies of logs that are in a cluster or bucket, of all open databases together, in bytes: see
    /// [`LogCopies`](stemmadb::log_storage::LogCopies). `None`: a copy of each log is kept.
    pub log_copies_bytes: Option<u64>,
    /// The largest attachment, in bytes.
    pub attachment_bytes: u64,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
    /// The timeout for the head of a request, and for an idle connection.
    pub head_timeout: Duration,
    /// The timeout of the TLS handshake.
    pub handshake_timeout: Duration,
    /// The timeout for a body without progress, in either direction.
    pub stall_timeout: Duration,
    /// The time after which a feed of changes ends if nothing changes, unless the request names one or a heartbeat.
    pub feed_timeout: Duration,
    /// The maximum number of connections; more wait to be accepted.
    pub connection_count: usize,
    /// The maximum number of connections of one address; more are closed.
    pub connection_count_per_address: usize,
    /// The maximum number of live queries, over all databases; further ones are refused with 503.
    pub watch_count: usize,
    /// The most databases that are kept open while nobody uses them. Those not used for longest are closed.
    pub open_databases: usize,
    /// The time limit of `_find`, prepared queries and `_aggregate`, until the last row is sent. `None`: no limit.
    pub query_time: Option<Duration>,
    /// The time that running requests have to finish when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 << 20,
            bodies_bytes: 256 << 20,
            log_copies_bytes: None,
            attachment_bytes: 4 << 30,
            head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(75),
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            feed_timeout: Duration::from_secs(60),
            connection_count: 4096,
            connection_count_per_address: 1024,
            watch_count: 10_000,
            open_databases: 500,
            query_time: None,
            grace: Duration::from_secs(5),
        }
    }
}

/// How a server is a member of a cluster whose logs are in Cassandra or ScyllaDB.
#[derive(Clone)]
pub struct ClusterMember {
    /// Some nodes of the Cassandra or ScyllaDB cluster, each `host:port`. Empty: the server is in no cluster.
    pub nodes: Vec<String>,
    /// How nodes are reached that know themselves by other addresses, for example behind NAT: each
    /// `known:port=reached:port`.
    pub translate: Vec<String>,
    /// The keyspace, which is created if it does not exist.
    pub keyspace: String,
    /// How many nodes have each row of a keyspace that is created.
    pub replication: usize,
    /// The URL at which the other servers reach this one. `None`: the address that it listens on.
    pub address: Option<String>,
    /// How long a server may be silent before others take its databases.
    pub lease: Duration,
    /// The user at the nodes; none: they don't ask for one.
    pub user: Option<String>,
    /// The user's password.
    pub password: String,
}

impl Default for ClusterMember {
    fn default() -> Self {
        ClusterMember {
            nodes: Vec::new(),
            translate: Vec::new(),
            keyspace: "stemma".to_owned(),
            replication: 3,
            address: None,
            lease: Duration::from_secs(10),
            user: None,
            password: String::new(),
        }
    }
}

impl std::fmt::Debug for ClusterMember {
    /// Does not show the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterMember")
            .field("nodes", &self.nodes)
            .field("translate", &self.translate)
            .field("keyspace", &self.keyspace)
            .field("replication", &self.replication)
            .field("address", &self.address)
            .field("lease", &self.lease)
            .field("user", &self.user)
            .field("has_password", &!self.password.is_empty())
            .finish()
    }
}

/// The listeners of the wire protocol, for clients with the library's own interface.
#[derive(Debug, Clone)]
pub struct Wire {
    /// The address to listen on; port 0 selects any free port. `None`: no TCP.
    pub address: Option<SocketAddr>,
    /// Whether connections to `address` are not encrypted although [`Config::tls`] is set.
    pub is_plain: bool,
    /// The path of a Unix socket to listen on. An existing socket is replaced. `None`: no Unix socket.
    pub unix: Option<PathBuf>,
    /// The UDP address to listen on for QUIC; port 0 selects any free port. Needs [`Config::tls`] and the cargo feature
    /// `quic`. `None`: no QUIC.
    pub quic: Option<SocketAddr>,
    /// Whether clients may connect over a WebSocket, at the HTTP server's route `/_wire`.
    pub websocket: bool,
    /// The maximum number of connections; more are refused.
    pub connection_count: usize,
    /// The maximum number of threads: one for each connection that is in use, stream and long request. A connection
    /// without requests for a second has none.
    pub thread_count: usize,
    /// The time after which a connection without requests is closed. Clients reconnect when they need to.
    pub idle_timeout: Duration,
    /// How long a snapshot is kept for a transaction of a client.
    pub snapshot_time: Duration,
    /// The maximum number of such snapshots; more transactions are refused.
    pub snapshot_count: usize,
}

impl Default for Wire {
    fn default() -> Self {
        Wire {
            address: None,
            is_plain: false,
            unix: None,
            quic: None,
            websocket: true,
            connection_count: 10_000,
            thread_count: 2000,
            idle_timeout: Duration::from_secs(600),
            snapshot_time: Duration::from_secs(60),
            snapshot_count: 1000,
        }
    }
}

impl Config {
    /// Whether connections are encrypted, with a certificate that is configured or obtained.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some() || !self.acme.domains.is_empty()
    }

    /// The defaults for a server of the databases in `directory`, on port 5984 of the loopback address.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Config {
            directory: directory.into(),
            address: SocketAddr::from(([127, 0, 0, 1], 5984)),
            administrator: None,
            durability: Durability::Sync,
            cache_bytes: 256 << 20,
            index_cache_bytes: None,
            document_cache_bytes: None,
            memory_bytes: 64 << 20,
            hosts: Vec::new(),
            log: Log::default(),
            otlp_endpoint: None,
            setting_sources: BTreeMap::new(),
            cors: Cors::default(),
            dashboard: None,
            backups: None,
            replicator: Replicator::default(),
            jwt_keys: Vec::new(),
            proxy_secret: None,
            session_timeout: Duration::from_secs(600),
            lockout: Lockout::default(),
            require_valid_user: false,
            tls: None,
            acme: Acme::default(),
            key_file: None,
            scripts: None,
            script_limits: ScriptLimits::default(),
            triggers: Triggers::default(),
            poll_us: 50,
            limits: Limits::default(),
            wire: Wire::default(),
            cluster: ClusterMember::default(),
            clock: Clock::default(),
        }
    }
}
