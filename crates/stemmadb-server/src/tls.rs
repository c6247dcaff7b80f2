//! TLS. The certificate is read again when its file changes, so that it can be renewed while the server runs.

mod certificates;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;
use crate::error::{Failure, Result};
use certificates::Challenges;
pub(crate) use certificates::{CHALLENGE_PROTOCOL, Certificates};

/// The name of HTTP/2 in the TLS handshake.
pub(crate) const HTTP_2: &[u8] = b"h2";

/// The minimum interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Creates the acceptor of TLS connections, version 1.2 and later, which also answers the challenges of an ACME server.
///
/// # Errors
/// 400 if the certificate or key can't be read, or if they don't match.
pub(crate) fn acceptor(tls: &Tls, challenges: Option<Arc<Challenges>>) -> Result<TlsAcceptor> {
    let is_challenged = challenges.is_some();
    let mut config = configure(tls, challenges)?;
    config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
    if is_challenged {
        config.alpn_protocols.push(CHALLENGE_PROTOCOL.to_vec());
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The TLS configuration without a protocol above it.
///
/// # Errors
/// As [`acceptor`].
pub(crate) fn server_config(tls: &Tls) -> Result<ServerConfig> {
    configure(tls, None)
}

fn configure(tls: &Tls, challenges: Option<Arc<Challenges>>) -> Result<ServerConfig> {
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Failure::internal(error.to_string()))?;
    Ok(config.with_no_client_auth().with_cert_resolver(Arc::new(ReloadingCertificate::new(tls, challenges)?)))
}

/// The current certificate, reloaded from its files.
#[derive(Debug)]
struct ReloadingCertificate {
    files: Tls,
    challenges: Option<Arc<Challenges>>,
    current: Mutex<LoadedCertificate>,
}

#[derive(Debug)]
struct LoadedCertificate {
    key: Arc<CertifiedKey>,
    /// The modification times of the files when they were read.
    modified: ModificationTimes,
    last_check: Instant,
}

type ModificationTimes = (Option<SystemTime>, Option<SystemTime>);

impl ReloadingCertificate {
    fn new(files: &Tls, challenges: Option<Arc<Challenges>>) -> Result<Self> {
        let modified = modified(files);
        let current = LoadedCertificate { key: read(files)?, modified, last_check: Instant::now() };
        Ok(ReloadingCertificate { files: files.clone(), challenges, current: Mutex::new(current) })
    }

    fn key(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock();
        if current.last_check.elapsed() >= CHECK_INTERVAL {
            current.last_check = Instant::now();
            let modified = modified(&self.files);
            if modified != current.modified {
                match read(&self.files) {
                    Ok(key) => (current.key, current.modified) = (key, modified),
                    // Perhaps only one of the files was replaced yet: keep the old certificate and try again.
                    Err(failure) => {
                        tracing::warn!(target: "stemma::tls", "the new certificate can't be used: {failure}")
                    }
                }
            }
        }
        current.key.clone()
    }
}

impl ResolvesServerCert for ReloadingCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let challenge = self.challenges.as_ref().and_then(|challenges| challenges.answer(&hello));
        challenge.unwrap_or_else(|| Some(self.key()))
    }
}

fn modified(files: &Tls) -> ModificationTimes {
    let of = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    (of(&files.certificate), of(&files.key))
}

fn read(files: &Tls) -> Result<Arc<CertifiedKey>> {
    let wrong = |path: &Path, why: &dyn std::fmt::Display| Failure::bad_request(format!("{}: {why}", path.display()));
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| wrong(&files.certificate, &error))?;
    if certificates.is_empty() {
        return Err(wrong(&files.certificate, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, &error))?;
    let key = any_supported_type(&key).map_err(|error| wrong(&files.key, &error))?;
    let certified = CertifiedKey::new(certificates, key);
    certified.keys_match().map_err(|error| wrong(&files.key, &error))?;
    Ok(Arc::new(certified))
}
