//! The HTTP client of the replicator and of object stores: connections over TCP or TLS, restricted to addresses that a
//! server can have.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tower_service::Service;

use crate::config::Replicator;
use crate::error::{Failure, Result};
use crate::http::Body;

/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The connector of the client: TCP, with TLS for `https` URLs.
pub(crate) type Network = HttpsConnector<HttpConnector<Resolver>>;

/// The HTTP client for other servers, with the list of hosts that it may connect to.
pub(crate) struct OutboundClient {
    /// Pools idle connections.
    pub(crate) client: Client<Network, Body>,
    /// The allowed hosts. Empty: all hosts are allowed.
    hosts: Vec<String>,
}

impl OutboundClient {
    /// Creates a client from the configuration.
    ///
    /// # Errors
    /// 400 if the certificates that the configuration names can't be read.
    pub(crate) fn new(config: &Replicator) -> Result<Self> {
        Ok(OutboundClient { client: https_client(config.ca.as_deref())?, hosts: config.hosts.clone() })
    }

    /// Checks that the replicator may connect to `host`.
    ///
    /// # Errors
    /// 403 if it may not.
    pub(crate) fn check(&self, host: &str) -> Result<()> {
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if ip.is_ok_and(|ip| !is_server_address(ip)) {
            return Err(Failure::forbidden(format!("{host} is no server's address")));
        }
        if self.hosts.is_empty() || self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        Err(Failure::forbidden(format!("the replicator may not reach {host}: `replicator.hosts` does not name it")))
    }
}

/// Creates a client that trusts the system's certificates and those in the file `ca`.
///
/// # Errors
/// 400 if the file can't be read.
pub(crate) fn https_client(ca: Option<&Path>) -> Result<Client<Network, Body>> {
    let provider = Arc::new(default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.map_err(|error| Failure::internal(error.to_string()))?;
    let tls = tls.with_root_certificates(roots(ca)?).with_no_client_auth();
    let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(https.wrap_connector(tcp)))
}

/// Returns the trusted root certificates: those of the system and those in the file `ca`.
fn roots(ca: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // If the system has no certificates, only the named ones are trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = ca {
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::bad_request(format!("the certificates in {} can't be read: {error}", file.display()))
        };
        let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))?;
        let mut count = 0;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
            count += 1;
        }
        if count == 0 {
            return Err(unreadable(&"the file has no certificate"));
        }
    }
    Ok(roots)
}

/// Whether a server can have this address. Link-local addresses are excluded because clouds serve a machine's secrets
/// there.
fn is_server_address(address: IpAddr) -> bool {
    let is_link_local = match address.to_canonical() {
        IpAddr::V4(four) => four.is_link_local() || four.is_broadcast(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_link_local || address.is_unspecified() || address.is_multicast())
}

/// Resolves a name to its addresses and drops those that no server can have.
#[derive(Clone)]
pub(crate) struct Resolver(GaiResolver);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let shown = name.to_string();
        let found = self.0.call(name);
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = found.await?.filter(|address| is_server_address(address.ip())).collect();
            match addresses.is_empty() {
                true => {
                    Err(io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{shown} has no server's address")))
                }
                false => Ok(addresses.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_multicast_addresses_are_rejected() {
        for (address, is_one) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("192.0.2.7", true),
            ("::1", true),
            ("2001:db8::1", true),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_server_address(address.parse().unwrap()), is_one, "{address}");
        }
    }

    #[test]
    fn only_allowed_hosts_are_accepted() {
        let any = OutboundClient::new(&Replicator::default()).unwrap();
        assert!(any.check("example.org").is_ok() && any.check("[::1]").is_ok());
        assert_eq!(any.check("169.254.169.254").unwrap_err().status().as_u16(), 403);
        assert_eq!(any.check("[fe80::1]").unwrap_err().status().as_u16(), 403);
        let some =
            OutboundClient::new(&Replicator { hosts: vec!["db.example".to_owned()], ..Replicator::default() }).unwrap();
        assert!(some.check("DB.example").is_ok());
        assert!(some.check("example").unwrap_err().reason().contains("replicator.hosts"));
    }

    #[tokio::test]
    async fn resolver_drops_disallowed_addresses() {
        let mut resolver = Resolver(GaiResolver::new());
        let mut found = |name: &str| resolver.call(name.parse().unwrap());
        assert!(found("localhost").await.unwrap().all(|address| address.ip().is_loopback()));
        // A numeric form that is not an IP address literal is resolved as a name.
        assert!(found("2852039166").await.is_err());
    }
}
