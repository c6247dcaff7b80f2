//! Replication requests: the body of `_replicate`, or a document of `_replicator`.

use hyper::StatusCode;
use stemmadb::Value;
use stemmadb::replication::ReplicationScope;
use stemmadb_http::url::{DatabaseUrl, basic, host_of};

use super::conflicts::ConflictDefinition;
use crate::error::{Failure, Result};

/// A replication request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplicationRequest {
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
    pub(crate) continuous: bool,
    pub(crate) create_target: bool,
    pub(crate) selection: ReplicationScope,
    pub(crate) since: Option<Value>,
    pub(crate) batch_count: Option<usize>,
    /// The conflict rule that both databases get.
    pub(crate) conflicts: Option<ConflictDefinition>,
}

/// The source or target of a replication.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Endpoint {
    /// A database of this server.
    Local(String),
    /// A database on another server, reached over HTTP.
    Remote {
        /// Its URL, without credentials and without a trailing slash.
        url: String,
        /// The headers of each request, including credentials.
        headers: Vec<(String, String)>,
        /// Whether each request is signed with the key of this server.
        is_signed: bool,
    },
}

impl Endpoint {
    /// A display form without credentials.
    pub(crate) fn display_name(&self) -> &str {
        match self {
            Endpoint::Local(name) => name,
            Endpoint::Remote { url, .. } => url,
        }
    }

    /// The host of a remote endpoint, without the port.
    pub(super) fn host(&self) -> Option<&str> {
        let Endpoint::Remote { url, .. } = self else { return None };
        let authority = url.split("://").nth(1)?.split(['/', '?', '#']).next()?;
        Some(host_of(authority))
    }

    pub(super) fn parse(value: &Value, which: &str) -> Result<Self> {
        let wrong = |reason: &str| Failure::bad_request(format!("`{which}` {reason}"));
        let (text, object) = match value {
            Value::String(text) => (text.as_str(), None),
            Value::Object(object) => {
                let url = object.get("url").and_then(Value::as_str);
                (url.ok_or_else(|| wrong("needs a `url`"))?, Some(object))
            }
            _ => return Err(wrong("is a database's name, a URL, or an object with a `url`")),
        };
        if !text.contains("://") {
            return Ok(Endpoint::Local(text.to_owned()));
        }
        let DatabaseUrl { url, mut headers } = DatabaseUrl::parse(text).map_err(wrong)?;
        let mut is_signed = false;
        if let Some(object) = object {
            let given = object.get("headers").and_then(Value::as_object).into_iter().flatten();
            headers.extend(
                given.filter_map(|(name, value)| Some((name.to_ascii_lowercase(), value.as_str()?.to_owned()))),
            );
            is_signed = object.get("auth").and_then(|auth| auth.get("signature")?.as_bool()).unwrap_or(false);
            let auth = object.get("auth").and_then(|auth| auth.get("basic"));
            let text = |name: &str| auth.and_then(|auth| auth.get(name)).and_then(Value::as_str);
            if let (Some(name), Some(password)) = (text("username"), text("password")) {
                headers.push(basic(&format!("{name}:{password}")));
            }
        }
        if is_signed && headers.iter().any(|(name, _)| name == "authorization") {
            return Err(wrong("has a password or token and is to be signed: one of both is enough"));
        }
        Ok(Endpoint::Remote { url, headers, is_signed })
    }
}

impl ReplicationRequest {
    /// Parses a request.
    ///
    /// # Errors
    /// 400 if `body` is malformed.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let side = |which: &str| {
            let value = body.get(which).ok_or_else(|| Failure::bad_request(format!("`{which}` is missing")))?;
            Endpoint::parse(value, which)
        };
        let flag = |name: &str| body.get(name).and_then(Value::as_bool).unwrap_or(false);
        Ok(ReplicationRequest {
            source: side("source")?,
            target: side("target")?,
            continuous: flag("continuous"),
            create_target: flag("create_target"),
            selection: selection(body)?,
            since: body.get("since_seq").cloned(),
            batch_count: body
                .get("worker_batch_size")
                .and_then(Value::as_u64)
                .and_then(|count| usize::try_from(count).ok()),
            conflicts: None,
        })
    }

    /// The id of the replication: equal for equal replications.
    pub(crate) fn id(&self) -> String {
        let text = format!(
            "{}\n{}\n{:?}\n{}",
            self.source.display_name(),
            self.target.display_name(),
            self.selection,
            self.create_target
        );
        let hash = blake3::hash(text.as_bytes()).to_hex();
        format!("{}{}", &hash[..32], if self.continuous { "+continuous" } else { "" })
    }
}

fn selection(body: &Value) -> Result<ReplicationScope> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_json(), str::to_owned);
    let given = (body.get("doc_ids"), body.get("selector"), body.get("filter"));
    match given {
        (None, None, None) => Ok(ReplicationScope::All),
        (Some(ids), None, None) => {
            let ids = ids.as_array().ok_or_else(|| Failure::bad_request("`doc_ids` is a list"))?;
            Ok(ReplicationScope::Ids(ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()))
        }
        (None, Some(selector), None) => Ok(ReplicationScope::Selector(selector.clone())),
        (None, None, Some(name)) => {
            let name = name.as_str().ok_or_else(|| Failure::bad_request("`filter` is a name"))?;
            let parameters = body.get("query_params").and_then(Value::as_object).into_iter().flatten();
            let parameters = parameters.map(|(name, value)| (name.to_owned(), text(value))).collect();
            Ok(ReplicationScope::Filter(name.to_owned(), parameters))
        }
        _ => {
            let reason = "`doc_ids`, `filter`, `selector` are mutually exclusive options";
            Err(Failure::new(StatusCode::BAD_REQUEST, "bad_request", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<ReplicationRequest> {
        ReplicationRequest::parse(&Value::parse(json).unwrap())
    }

    #[test]
    fn credentials_are_parsed_and_never_displayed() {
        let request = parse(
            r#"{"source": "http://ada:s%40cret@host:5984/db%2Fx/", "target": {"url": "http://h/db",
            "auth": {"basic": {"username": "a", "password": "b"}}, "headers": {"X-One": "1"}}, "continuous": true}"#,
        );
        let request = request.unwrap();
        assert_eq!(
            (request.source.display_name(), request.target.display_name()),
            ("http://host:5984/db%2Fx", "http://h/db")
        );
        let Endpoint::Remote { headers, .. } = &request.source else { panic!("remote") };
        assert_eq!(headers, &[basic("ada:s@cret")]);
        let Endpoint::Remote { headers, .. } = &request.target else { panic!("remote") };
        assert_eq!(headers, &[("x-one".to_owned(), "1".to_owned()), basic("a:b")]);
        assert!(request.id().ends_with("+continuous"));
    }

    #[test]
    fn host_excludes_port_and_credentials() {
        for (url, host) in [
            ("http://h/db", Some("h")),
            ("https://a:b@db.example:6984/x", Some("db.example")),
            ("http://[::1]:5984/db", Some("[::1]")),
            ("http://[::1]/db", Some("[::1]")),
            ("here", None),
        ] {
            let request = parse(&format!(r#"{{"source": "{url}", "target": "b"}}"#)).unwrap();
            assert_eq!(request.source.host(), host, "{url}");
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        for (json, status) in [
            (r#"{"source": "a"}"#, 400),
            (r#"{"source": 1, "target": "b"}"#, 400),
            (r#"{"source": "http://x/y?token=z", "target": "b"}"#, 400),
            (r#"{"source": "ftp://x/y", "target": "b"}"#, 400),
            (r#"{"source": "a", "target": "b", "doc_ids": [], "selector": {}}"#, 400),
        ] {
            assert_eq!(parse(json).unwrap_err().status().as_u16(), status, "{json}");
        }
        let ids = parse(r#"{"source": "a", "target": "b", "doc_ids": ["x"]}"#).unwrap();
        assert_ne!(ids.id(), parse(r#"{"source": "a", "target": "b"}"#).unwrap().id());
    }
}
