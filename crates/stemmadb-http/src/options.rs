//! Options of a connection to a server, and the construction of peers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stemmadb::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use crate::foundation::MemoryBudget;
use crate::network::https_client;
use crate::peer::{HttpPeer, PeerLimits};
use crate::runtime::BlockingRuntime;
use crate::signature::SigningKey;
use crate::url::{DatabaseUrl, basic};

/// The most memory that responses take together, in bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// The largest response with documents, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 << 20;
/// The timeout of a response that makes no progress.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a database that is reached over HTTP. See [`HttpPeer`] for an example.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    headers: Vec<(String, String)>,
    certificates: Option<PathBuf>,
    signing_key: Option<Arc<SigningKey>>,
    timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        HttpOptions { headers: Vec::new(), certificates: None, signing_key: None, timeout: TIMEOUT }
    }

    /// Authenticates as a user of the server. Default: the credentials in the URL, if it has some.
    #[must_use]
    pub fn user(self, name: &str, password: &str) -> Self {
        let (header, value) = basic(&format!("{name}:{password}"));
        self.header(&header, &value)
    }

    /// Authenticates by a bearer token: an API token of Stemma, or a JSON Web Token.
    #[must_use]
    pub fn bearer_token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// Sends a header with each request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name = name.to_ascii_lowercase();
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Also trusts the certificates in a PEM file. Default: only those that the system trusts.
    #[must_use]
    pub fn certificates(mut self, file: impl AsRef<Path>) -> Self {
        self.certificates = Some(file.as_ref().to_owned());
        self
    }

    /// Signs each request with this key, which the server knows by a token with its public key.
    #[must_use]
    pub fn signed_by(mut self, key: SigningKey) -> Self {
        self.signing_key = Some(Arc::new(key));
        self
    }

    /// Sets how long a response may make no progress. Default: 60 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl HttpPeer {
    /// Returns the database at a URL, `https://user:password@host:port/name`. Connects when it is first used.
    ///
    /// # Errors
    /// `Invalid` if it is not the URL of a database; `Unavailable` if the system has no thread.
    pub fn new(url: &str) -> Result<Self> {
        Self::with(url, HttpOptions::new())
    }

    /// Returns the database at a URL. Connects when it is first used.
    ///
    /// # Errors
    /// As [`HttpPeer::new`]; `Invalid` if the certificates can't be read.
    pub fn with(url: &str, options: HttpOptions) -> Result<Self> {
        let wrong = |reason: &str| {
            // The URL may contain a password.
            Error::invalid(format!("the database {reason}")).with_hint("for example https://user:secret@host/name")
        };
        let DatabaseUrl { url, mut headers } = DatabaseUrl::parse(url).map_err(wrong)?;
        headers.retain(|(name, _)| options.headers.iter().all(|(given, _)| given != name));
        headers.extend(options.headers);
        let client = https_client(options.certificates.as_deref(), false)
            .map_err(|failure| Error::invalid(failure.reason().to_owned()))?;
        let limits = PeerLimits {
            document_bytes_max: DOCUMENT_BYTES_MAX,
            memory: MemoryBudget::new(MEMORY_BYTES, options.timeout),
            stall_timeout: options.timeout,
        };
        // Its sender is dropped, so it never becomes true.
        let cancelled = watch::channel(false).1;
        let peer =
            HttpPeer::with_client(client, url, headers, BlockingRuntime::Threaded(runtime()?), limits, cancelled);
        Ok(peer.signed_by(options.signing_key))
    }
}

/// The runtime of all peers, with one thread.
fn runtime() -> Result<Handle> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("stemma-http").enable_all().build();
    let runtime = runtime.map_err(Error::no_thread)?;
    Ok(RUNTIME.get_or_init(|| runtime).handle().clone())
}
