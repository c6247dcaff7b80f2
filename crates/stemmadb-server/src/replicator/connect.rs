//! How the replicator reaches other servers: over TCP, encrypted where the address says so, and not to addresses that are no server's.

use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// How long it may take to be connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// What connects to other servers.
pub(super) type Network = HttpsConnector<HttpConnector<Resolver>>;

/// How other servers are reached, and which may be.
pub(crate) struct OutboundClient {
    /// Connections are kept and used again.
    pub(super) client: Client<Network, Body>,
    /// None: any.
    hosts: Vec<String>,
}

impl OutboundClient {
    /// As the configuration has it.
    ///
    /// # Errors
    /// 400 if the certificates that it names can't be read.
    pub(crate) fn new(config: &Replicator) -> Result<Self> {
        let provider = Arc::new(default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.map_err(|error| Failure::internal(error.to_string()))?;
        let tls = tls.with_root_certificates(roots(config)?).with_no_client_auth();
        let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(https.wrap_connector(tcp));
        Ok(OutboundClient { client, hosts: config.hosts.clone() })
    }

    /// Refuses a host that is not to be reached.
    ///
    /// # Errors
    /// 403.
    pub(super) fn check(&self, host: &str) -> Result<()> {
        let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if number.is_ok_and(|number| !is_of_a_server(number)) {
            return Err(Failure::forbidden(format!("{host} is no server's address")));
        }
        if self.hosts.is_empty() || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        Err(Failure::forbidden(format!("the replicator may not reach {host}: `replicator.hosts` does not name it")))
    }
}

/// Whose certificates are trusted: those that the system trusts, and those that the configuration names.
fn roots(config: &Replicator) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // Where the system has none, only those that are named are trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = &config.ca {
        let unread = |error: &dyn std::fmt::Display| {
            Failure::bad_request(format!("the certificates in {} can't be read: {error}", file.display()))
        };
        let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unread(&error))?;
        let mut count = 0;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unread(&error))?;
            roots.add(certificate).map_err(|error| unread(&error))?;
            count += 1;
        }
        if count == 0 {
            return Err(unread(&"there is none"));
        }
    }
    Ok(roots)
}

/// Whether a server can have this address. Those of a link are where clouds tell a machine its secrets.
fn is_of_a_server(address: IpAddr) -> bool {
    let is_of_link = match address.to_canonical() {
        IpAddr::V4(four) => four.is_link_local() || four.is_broadcast(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_of_link || address.is_unspecified() || address.is_multicast())
}

/// Finds the addresses of a name, without those that are no server's.
#[derive(Clone)]
pub(super) struct Resolver(GaiResolver);

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
            let addresses: Vec<SocketAddr> = found.await?.filter(|address| is_of_a_server(address.ip())).collect();
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
    fn some_addresses_are_no_servers() {
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
            assert_eq!(is_of_a_server(address.parse().unwrap()), is_one, "{address}");
        }
    }

    #[test]
    fn hosts_are_those_that_are_named() {
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
    async fn a_name_leads_to_servers_only() {
        let mut resolver = Resolver(GaiResolver::new());
        let mut found = |name: &str| resolver.call(name.parse().unwrap());
        assert!(found("localhost").await.unwrap().all(|address| address.ip().is_loopback()));
        // Other ways to write a number are names.
        assert!(found("2852039166").await.is_err());
    }
}
