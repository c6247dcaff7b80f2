//! URLs of databases, with their credentials.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;

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

/// The header of Basic authentication for `name:password`.
pub fn basic(credentials: &str) -> (String, String) {
    ("authorization".to_owned(), format!("Basic {}", BASE64_STANDARD.encode(credentials)))
}
