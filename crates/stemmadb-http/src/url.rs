//! URLs of databases, with their credentials.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The URL of a database, and the headers of requests to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    /// The URL without credentials and without a trailing slash.
    pub url: String,
    /// The headers of each request, including credentials.
    pub headers: Vec<(String, String)>,
}

impl DatabaseUrl {
    /// Parses `http://user:password@host:port/name`.
    ///
    /// # Errors
    /// What is wrong, to follow the name of the argument.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        if !matches!(scheme, "http" | "https") {
            return Err("is reached by http:// or https:// only");
        }
        if rest.contains(['?', '#']) {
            return Err("is the URL of a database, which ends with its name");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, host) = authority.rsplit_once('@').map_or((None, authority), |(c, h)| (Some(c), h));
        let credentials = credentials.map(|credentials| percent_decode_str(credentials).decode_utf8_lossy());
        let url = format!("{scheme}://{host}/{}", path.trim_end_matches('/'));
        Ok(DatabaseUrl { url, headers: credentials.iter().map(|credentials| basic(credentials)).collect() })
    }
}

/// The characters that are percent-encoded in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as a segment of a path, or as a name or a value of a query.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The id of a document as a path: `_design/` and `_local/` keep their slash.
pub fn encode_id(id: &str) -> String {
    match id.split_once('/') {
        Some((kind @ ("_design" | "_local"), name)) => format!("{kind}/{}", encode_segment(name)),
        _ => encode_segment(id),
    }
}

/// The host of an authority, `host:port`, without the port.
pub fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// The header of Basic authentication for `name:password`.
pub fn basic(credentials: &str) -> (String, String) {
    ("authorization".to_owned(), format!("Basic {}", BASE64_STANDARD.encode(credentials)))
}
