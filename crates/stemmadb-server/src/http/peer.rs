//! The network address that a request comes from.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hyper::http::request::Parts;

/// The address that a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

impl PeerAddress {
    /// Returns the address that the connection stored in the request's extensions.
    pub(crate) fn of(parts: &Parts) -> IpAddr {
        // Every connection stores its address; requests without one would share a single lockout.
        parts.extensions.get::<PeerAddress>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip())
    }
}

/// The network that a client's limits count for: an IPv4 address, or the first 64 bits of an IPv6 address, since a
/// client usually controls all addresses that share them.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[4..].fill(0);
            std::net::Ipv6Addr::from(segments).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_addresses_share_a_network_by_their_first_64_bits() {
        let of = |text: &str| client_network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
