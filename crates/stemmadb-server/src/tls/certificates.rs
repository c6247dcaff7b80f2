//! Certificates from an ACME server (RFC 8555) such as Let's Encrypt: obtained after the first start, and renewed while
//! the server runs.
//!
//! The ACME server connects to port 443 of each name and expects a certificate that it has named (TLS-ALPN-01, RFC
//! 8737), so that port must lead to the address on which the server listens.

use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, LetsEncrypt, NewAccount, NewOrder,
    OrderStatus, RetryPolicy,
};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::config::{Config, Tls};
use crate::error::{Failure, Result};

/// The name of challenges in the TLS handshake.
pub(crate) const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";

/// The directory with what is obtained, below that of the databases.
const DIRECTORY: &str = ".acme";
/// How often the remaining time of the certificate is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The waits after failed attempts, doubled each time. Public servers allow few failures an hour.
const RETRY_WAIT: Duration = Duration::from_secs(30);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(60 * 60);
/// How long the ACME server may take to check the names, and to issue.
const ORDER_TIME: Duration = Duration::from_secs(120);

/// The certificates for the challenges that are under way, by the name that the ACME server asks for.
#[derive(Debug, Default)]
pub(crate) struct Challenges(Mutex<HashMap<String, Arc<CertifiedKey>>>);

impl Challenges {
    /// The certificate for a connection of the ACME server; `None` if it is another connection.
    pub(crate) fn answer(&self, hello: &ClientHello<'_>) -> Option<Option<Arc<CertifiedKey>>> {
        let is_challenge = hello.alpn()?.eq([CHALLENGE_PROTOCOL]);
        is_challenge.then(|| self.0.lock().get(hello.server_name()?).cloned())
    }
}

/// Obtains and renews the certificate of the server.
pub(crate) struct Certificates {
    names: Vec<String>,
    contact: Vec<String>,
    directory_url: String,
    ca: Option<PathBuf>,
    files: Tls,
    account: PathBuf,
    challenges: Arc<Challenges>,
}

/// What is kept of an account.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    /// The ACME server's directory, to which the account belongs.
    directory: String,
    credentials: AccountCredentials,
}

impl Certificates {
    /// Prepares the files of the certificate, and sets [`Config::tls`] to them; `None` if the configuration names no
    /// domain. Until there is a certificate, the server has one that nobody trusts.
    ///
    /// # Errors
    /// 400 if the configuration also names a certificate; 500 if the files can't be written.
    pub(crate) fn prepare(config: &mut Config) -> Result<Option<Self>> {
        if config.acme.domains.is_empty() {
            return Ok(None);
        }
        if config.tls.is_some() {
            return Err(Failure::bad_request("acme.domains obtains a certificate: remove tls.certificate and tls.key"));
        }
        let directory = config.directory.join(DIRECTORY);
        let made = std::fs::DirBuilder::new().recursive(true).create(&directory);
        made.map_err(|error| Failure::internal(format!("{} can't be created: {error}", directory.display())))?;
        let files = Tls { certificate: directory.join("certificate.pem"), key: directory.join("key.pem") };
        config.tls = Some(files.clone());
        let certificates = Certificates {
            names: config.acme.domains.clone(),
            contact: config.acme.contact.iter().map(|address| format!("mailto:{address}")).collect(),
            directory_url: config.acme.directory.clone().unwrap_or_else(|| LetsEncrypt::Production.url().to_owned()),
            ca: config.acme.ca.clone(),
            files,
            account: directory.join("account.json"),
            challenges: Arc::default(),
        };
        if certificates.current().is_none() {
            let made = rcgen::generate_simple_self_signed(certificates.names.clone());
            let made = made.map_err(|error| Failure::bad_request(format!("acme.domains: {error}")))?;
            let stored = certificates.store(&made.cert.pem(), &made.signing_key.serialize_pem());
            stored.map_err(|error| Failure::internal(format!("the certificate can't be stored: {error}")))?;
        }
        Ok(Some(certificates))
    }

    pub(crate) fn challenges(&self) -> Arc<Challenges> {
        self.challenges.clone()
    }

    /// Obtains a certificate whenever one is due, until the server stops.
    pub(crate) async fn tend(self, mut stopped: watch::Receiver<bool>) {
        let mut retry_wait = RETRY_WAIT;
        loop {
            let mut wait = CHECK_INTERVAL;
            if self.is_due() {
                match self.obtain().await {
                    Ok(()) => {
                        tracing::info!(target: "stemma::acme", names = self.names.join(","), "certificate obtained");
                        retry_wait = RETRY_WAIT;
                    }
                    Err(reason) => {
                        let retry_s = retry_wait.as_secs();
                        tracing::warn!(target: "stemma::acme", retry_s, "no certificate could be obtained: {reason}");
                        wait = retry_wait;
                        retry_wait = (retry_wait * 2).min(RETRY_WAIT_MAX);
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// The stored certificate, if it can be read.
    fn current(&self) -> Option<CertificateDer<'static>> {
        CertificateDer::from_pem_file(&self.files.certificate).ok().filter(|_| self.files.key.exists())
    }

    /// Whether there is no certificate for these names by somebody else, or a third of its time or less is left.
    fn is_due(&self) -> bool {
        let Some(certificate) = self.current() else { return true };
        let Ok((_, certificate)) = X509Certificate::from_der(&certificate) else { return true };
        let is_own = certificate.issuer() == certificate.subject();
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let alternatives = alternatives.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let is_named = |name: &String| alternatives.iter().any(|alternative| is_name(alternative, name));
        let validity = certificate.validity();
        let (start, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        is_own || !self.names.iter().all(is_named) || end.saturating_sub(now) <= end.saturating_sub(start) / 3
    }

    /// Orders a certificate, answers the challenges and stores it.
    async fn obtain(&self) -> std::result::Result<(), String> {
        let account = self.account().await?;
        let identifier = |name: &String| match name.parse::<IpAddr>() {
            Ok(address) => Identifier::Ip(address),
            Err(_) => Identifier::Dns(name.clone()),
        };
        let identifiers: Vec<_> = self.names.iter().map(identifier).collect();
        let mut order = account.new_order(&NewOrder::new(&identifiers)).await.map_err(text)?;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(text)?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(format!("a name has the state {status:?}")),
            }
            let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
            let mut challenge = challenge.ok_or("the server does not offer the challenge tls-alpn-01")?;
            let name = challenge.identifier().to_string();
            let answer = challenge_certificate(&name, challenge.key_authorization().digest().as_ref())?;
            self.challenges.0.lock().insert(challenge_name(&name), Arc::new(answer));
            challenge.set_ready().await.map_err(text)?;
        }
        let retries = RetryPolicy::new().timeout(ORDER_TIME);
        let status = order.poll_ready(&retries).await.map_err(text)?;
        self.challenges.0.lock().clear();
        if status != OrderStatus::Ready {
            let reason = order.state().error.as_ref().map_or_else(String::new, |problem| format!(": {problem}"));
            return Err(format!(
                "the names could not be verified{reason}; port 443 of each must lead to this server ({status:?})"
            ));
        }
        let key = order.finalize().await.map_err(text)?;
        let chain = order.poll_certificate(&retries).await.map_err(text)?;
        self.store(&chain, &key).map_err(text)
    }

    /// The stored account at this ACME server, or a new one.
    async fn account(&self) -> std::result::Result<Account, String> {
        let stored = std::fs::read(&self.account).ok();
        let stored: Option<StoredAccount> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored.directory == self.directory_url) {
            return self.builder()?.from_credentials(stored.credentials).await.map_err(text);
        }
        let contact: Vec<&str> = self.contact.iter().map(String::as_str).collect();
        let request = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let created = self.builder()?.create(&request, self.directory_url.clone(), None).await;
        let (account, credentials) = created.map_err(text)?;
        let stored = StoredAccount { directory: self.directory_url.clone(), credentials };
        write_private(&self.account, &serde_json::to_vec(&stored).map_err(text)?).map_err(text)?;
        Ok(account)
    }

    fn builder(&self) -> std::result::Result<instant_acme::AccountBuilder, String> {
        match &self.ca {
            Some(ca) => Account::builder_with_root(ca),
            None => Account::builder(),
        }
        .map_err(text)
    }

    /// Writes the files, from which connections take their certificate.
    fn store(&self, chain: &str, key: &str) -> std::io::Result<()> {
        write_private(&self.files.key, key.as_bytes())?;
        write_private(&self.files.certificate, chain.as_bytes())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Replaces a file that only this user may read.
fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::remove_file(&new).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// Whether a name of a certificate is this domain or address.
fn is_name(alternative: &GeneralName<'_>, name: &str) -> bool {
    match (alternative, name.parse::<IpAddr>()) {
        (GeneralName::DNSName(domain), Err(_)) => domain.eq_ignore_ascii_case(name),
        (GeneralName::IPAddress(octets), Ok(IpAddr::V4(address))) => **octets == address.octets(),
        (GeneralName::IPAddress(octets), Ok(IpAddr::V6(address))) => **octets == address.octets(),
        _ => false,
    }
}

/// The name that the ACME server asks for in the handshake: for addresses, that of the reverse lookup (RFC 8738).
fn challenge_name(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(address)) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|octet| [octet & 15, octet >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
        Err(_) => name.to_owned(),
    }
}

/// The certificate that answers a challenge: for the name, with the digest of the key authorization.
fn challenge_certificate(name: &str, digest: &[u8]) -> std::result::Result<CertifiedKey, String> {
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).map_err(text)?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(text)?;
    let certificate = parameters.self_signed(&key).map_err(text)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Ok(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&key).map_err(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        assert_eq!(challenge_name("127.0.0.1"), "1.0.0.127.in-addr.arpa");
        let reversed = format!("1.{}8.b.d.0.1.0.0.2.ip6.arpa", "0.".repeat(23));
        assert_eq!(challenge_name("2001:db8::1"), reversed);
        assert_eq!(challenge_name("db.example"), "db.example");
    }
}
