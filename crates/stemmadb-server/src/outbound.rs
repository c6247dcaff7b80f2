//! The HTTP client of the replicator, of webhooks and of object stores: connections over TCP or TLS, restricted to
//! addresses that a server can have.

use std::net::IpAddr;
use std::path::Path;

use hyper_util::client::legacy::Client;
pub(crate) use stemmadb_http::network::Network;
use stemmadb_http::network::is_server_address;

use crate::config::Replicator;
use crate::error::{Failure, Result};
use crate::http::Body;

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

    /// Checks that the server may connect to `host`.
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
        Err(Failure::forbidden(format!("the server may not reach {host}: `replicator.hosts` does not name it")))
    }
}

/// Creates a client that trusts the system's certificates and those in the file `ca`, and connects only to addresses
/// that a server can have.
///
/// # Errors
/// 400 if the file can't be read.
pub(crate) fn https_client(ca: Option<&Path>) -> Result<Client<Network, Body>> {
    stemmadb_http::network::https_client(ca, true)
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
}
