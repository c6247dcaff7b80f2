//! URLs of servers and databases.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use stemmadb::{Error, Result};
use stemmadb_wire::Credentials;

/// The port if a URL names none.
pub(crate) const PORT: u16 = 5985;
/// The port of the HTTP server, for `stemma+ws:` and `stemma+wss:`.
const HTTP_PORT: u16 = 5984;
/// The route of WebSockets.
const WEBSOCKET_ROUTE: &str = "/_wire";

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, is_encrypted: bool },
    Unix(PathBuf),
    WebSocket { host: String, port: u16, is_encrypted: bool, path: String },
    Quic { host: String, port: u16 },
}

impl Address {
    /// Whether connections are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        match self {
            Address::Tcp { is_encrypted, .. } | Address::WebSocket { is_encrypted, .. } => *is_encrypted,
            Address::Quic { .. } => true,
            Address::Unix(_) => false,
        }
    }
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerUrl {
    pub(crate) address: Address,
    pub(crate) credentials: Credentials,
    /// The database that the path names.
    pub(crate) database: Option<String>,
}

fn wrong(url: &str, why: &str) -> Error {
    // The password must not get into logs.
    let shown = match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://…{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    };
    Error::invalid(format!("`{shown}` {why}")).with_hint(
        "stemma://user:password@host:5985/database; stemma+tls://…, stemma+quic://…; http://host:5984/database, \
         https://…, stemma+ws://… or stemma+wss://… for the HTTP server; or \
         stemma+unix:///path/to/socket?database=name",
    )
}

fn decode(url: &str, text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| wrong(url, "is not UTF-8"))?;
    Ok(decoded.into_owned())
}

impl ServerUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(url, "is not a URL"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut is_encrypted = match scheme {
            "stemma" | "stemma+unix" | "stemma+ws" | "http" => false,
            "stemma+tls" | "stemma+wss" | "stemma+quic" | "https" => true,
            _ => return Err(wrong(url, "has a scheme that the client doesn't know")),
        };
        let is_websocket = matches!(scheme, "stemma+ws" | "stemma+wss" | "http" | "https");
        let (mut database, mut credentials) = (None, Credentials::Anonymous);
        let mut route = WEBSOCKET_ROUTE.to_owned();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (name, value) {
                ("database", name) => database = Some(decode(url, name)?),
                ("tls", "1" | "true" | "") => is_encrypted = true,
                ("tls", "0" | "false") => is_encrypted = false,
                ("token", token) => credentials = Credentials::Token(decode(url, token)?),
                ("route", path) if is_websocket && is_route(path) => route = path.to_owned(),
                _ => return Err(wrong(url, &format!("has the unknown parameter `{name}`"))),
            }
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, ""),
        };
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        if let Some(user) = user {
            let (user, password) = user.split_once(':').unwrap_or((user, ""));
            credentials = Credentials::Password { user: decode(url, user)?, password: decode(url, password)? };
        }
        if scheme == "stemma+unix" {
            if !host.is_empty() || path.is_empty() {
                return Err(wrong(url, "needs an absolute path"));
            }
            let address = Address::Unix(PathBuf::from(format!("/{}", decode(url, path)?)));
            return Ok(ServerUrl { address, credentials, database });
        }
        if !path.is_empty() {
            database = Some(decode(url, path)?);
        }
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ if is_websocket => HTTP_PORT,
            _ => PORT,
        };
        let (host, port) = host_and_port(host, default_port).ok_or_else(|| wrong(url, "has no host, or a bad port"))?;
        let address = match scheme {
            "stemma+quic" if cfg!(all(unix, feature = "quic")) => Address::Quic { host, port },
            "stemma+quic" => return Err(wrong(url, "needs a client that was built with the cargo feature `quic`")),
            _ if is_websocket => Address::WebSocket { host, port, is_encrypted, path: route },
            _ => Address::Tcp { host, port, is_encrypted },
        };
        Ok(ServerUrl { address, credentials, database })
    }
}

/// Whether the text can be the path of a request.
fn is_route(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn host_and_port(text: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').map_or((rest.is_empty()).then_some(default_port), |port| port.parse().ok())?)
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, default_port),
        },
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let parse = |url: &str| ServerUrl::parse(url).unwrap();
        let tcp = |host: &str, port, is_encrypted| Address::Tcp { host: host.to_owned(), port, is_encrypted };
        let url = parse("stemma://ada:p%40ss@db.example:77/shop");
        assert_eq!(url.address, tcp("db.example", 77, false));
        assert_eq!(url.credentials, Credentials::Password { user: "ada".into(), password: "p@ss".into() });
        assert_eq!(url.database.as_deref(), Some("shop"));
        assert_eq!(parse("stemma+tls://[::1]").address, tcp("::1", PORT, true));
        assert_eq!(parse("stemma://h?tls=1&token=t").address, tcp("h", PORT, true));
        let unix = parse("stemma+unix:///run/stemma.sock?database=a%2Fb");
        assert_eq!((unix.address, unix.database.as_deref()), (Address::Unix("/run/stemma.sock".into()), Some("a/b")));
        let websocket = |port, is_encrypted, path: &str| Address::WebSocket {
            host: "h".into(),
            port,
            is_encrypted,
            path: path.into(),
        };
        let url = parse("stemma+ws://ada:x@h/shop");
        assert_eq!((url.address, url.database.as_deref()), (websocket(5984, false, "/_wire"), Some("shop")));
        assert_eq!(parse("stemma+wss://h:443/shop?route=/db/_wire").address, websocket(443, true, "/db/_wire"));
        assert_eq!(parse("http://h/shop").address, websocket(80, false, "/_wire"));
        assert_eq!(parse("http://ada:x@h:5984/shop").address, websocket(5984, false, "/_wire"));
        assert_eq!(parse("https://h/shop?route=/db/_wire").address, websocket(443, true, "/db/_wire"));
        for bad in [
            "shop",
            "stemma://h?route=/x",
            "stemma+ws://h?route=x",
            "stemma+ws://h?route=/a b",
            "http://",
            "ftp://h",
            "stemma://",
            "stemma://h:x",
            "stemma+unix://h/x",
            "stemma://h?x=1",
        ] {
            assert!(ServerUrl::parse(bad).is_err(), "{bad}");
        }
        let error = ServerUrl::parse("ftp://ada:geheim@h").unwrap_err();
        assert!(!error.message().contains("geheim"), "{error}");
    }
}
