//! Connections to servers over TCP or TLS.

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

use crate::foundation::{Body, Failure, Result};

/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The connector of the client: TCP, with TLS for `https` URLs.
pub type Network = HttpsConnector<HttpConnector<Resolver>>;

/// Creates a client that trusts the system's certificates and those in the file `ca`. With `servers_only`, it does not
/// connect to addresses that no server can have, see [`is_server_address`].
///
/// # Errors
/// 400 if the file can't be read.
pub fn https_client(ca: Option<&Path>, servers_only: bool) -> Result<Client<Network, Body>> {
    let provider = Arc::new(default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.map_err(|error| Failure::internal(error.to_string()))?;
    let tls = tls.with_root_certificates(roots(ca)?).with_no_client_auth();
    let mut tcp = HttpConnector::new_with_resolver(Resolver { names: GaiResolver::new(), servers_only });
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
pub fn is_server_address(address: IpAddr) -> bool {
    let is_link_local = match address.to_canonical() {
        IpAddr::V4(four) => four.is_link_local() || four.is_broadcast(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_link_local || address.is_unspecified() || address.is_multicast())
}

/// Resolves a name to its addresses, and may drop those that no server can have.
#[derive(Clone)]
pub struct Resolver {
    names: GaiResolver,
    /// Whether addresses that no server can have are dropped.
    servers_only: bool,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.names.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let shown = name.to_string();
        let (found, servers_only) = (self.names.call(name), self.servers_only);
        Box::pin(async move {
            let addresses: Vec<SocketAddr> =
                found.await?.filter(|address| !servers_only || is_server_address(address.ip())).collect();
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

    #[tokio::test]
    async fn resolver_drops_disallowed_addresses() {
        let mut resolver = Resolver { names: GaiResolver::new(), servers_only: true };
        let mut found = |name: &str| resolver.call(name.parse().unwrap());
        assert!(found("localhost").await.unwrap().all(|address| address.ip().is_loopback()));
        // A numeric form that is not an IP address literal is resolved as a name.
        assert!(found("2852039166").await.is_err());
    }
}
