//! Options of a client: credentials, timeouts, encodings, trust.

use std::path::PathBuf;
use std::time::Duration;

use stemmadb_wire::{Credentials, Encoding};

/// The certificates that a client trusts.
#[derive(Debug, Clone, Default)]
pub enum TlsTrust {
    /// Those that the operating system trusts.
    #[default]
    System,
    /// Those of a PEM file, and no others.
    File(PathBuf),
}

/// Options of a [`Client`](crate::Client).
///
/// ```
/// use std::time::Duration;
/// use stemmadb_client::ClientOptions;
///
/// let options = ClientOptions::new().timeout(Duration::from_secs(5)).connections_max(4);
/// ```
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) encoding: Encoding,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_time: Duration,
    pub(crate) poll_time: Duration,
    pub(crate) connections_max: usize,
    pub(crate) idempotent_writes: bool,
    pub(crate) trust: TlsTrust,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            credentials: None,
            encoding: Encoding::default(),
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            reconnect_time: Duration::MAX,
            poll_time: Duration::from_micros(200),
            connections_max: 16,
            idempotent_writes: true,
            trust: TlsTrust::System,
        }
    }
}

impl ClientOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who the client is, instead of the user and password of the URL.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// The encoding of documents on the wire. By default records, which neither side decodes.
    #[must_use]
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// How long a call may take in all, with repetitions. For a stream: how long it may be silent although the server
    /// should have sent something. By default 30 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long opening a connection may take. By default 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a call whose connection is lost, or refused, tries again: the server may be restarting. By default as
    /// long as the call may take.
    #[must_use]
    pub fn reconnect_time(mut self, time: Duration) -> Self {
        self.reconnect_time = time;
        self
    }

    /// How long a thread polls for an answer before it sleeps. Polling saves the time that waking a thread takes, and
    /// occupies a processor meanwhile, so no thread polls while more connections are busy than half of the processors.
    /// A write takes as long as the disk, so its answer is slept for first, until shortly before its usual time.
    /// By default 200 microseconds; zero for never.
    #[must_use]
    pub fn poll_time(mut self, time: Duration) -> Self {
        self.poll_time = time;
        self
    }

    /// The most connections for calls; further calls wait. Streams have connections of their own. By default 16.
    #[must_use]
    pub fn connections_max(mut self, count: usize) -> Self {
        self.connections_max = count.max(1);
        self
    }

    /// Whether writes have keys, by which the server applies a repeated one only once. By default they have. Without,
    /// a write whose connection is lost fails with `Unavailable`, and may have been applied.
    #[must_use]
    pub fn idempotent_writes(mut self, enabled: bool) -> Self {
        self.idempotent_writes = enabled;
        self
    }

    /// The certificates to trust.
    #[must_use]
    pub fn trust(mut self, trust: TlsTrust) -> Self {
        self.trust = trust;
        self
    }
}
