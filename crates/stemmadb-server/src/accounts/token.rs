//! API tokens, for programs that have no password to type. An administrator creates a token, sees it once, and can
//! revoke it; only its hash is stored.
//!
//! A token consists of `stemma_`, an id, `_`, and a secret. It acts for a user, with the roles that the user has at the
//! time of a request, or for itself, with its own roles. It may expire, and may be restricted to databases or to
//! reading. Instead of a secret it may have a public key: then it is used by signed requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::Method;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stemmadb::Value;
use stemmadb_http::signature::decode_public_key;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::auth::User;
use crate::auth::password::{from_hex, to_hex};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::settings::SettingStore;

/// The prefix that distinguishes API tokens from JSON Web Tokens.
pub(super) const PREFIX: &str = "stemma_";
/// The kind of their records in the catalog.
const KIND: &str = "token";
const NAME_BYTES_MAX: usize = 64;
const TOKENS_MAX: usize = 10_000;

/// Routes that only read although their method is POST.
pub(super) const READING_POSTS: &[&str] = &[
    "/_dbs_info",
    "/_federation/{name}/_aggregate",
    "/_federation/{name}/_count",
    "/_federation/{name}/_find",
    "/{db}/_aggregate",
    "/{db}/_all_docs",
    "/{db}/_all_docs/queries",
    "/{db}/_bulk_get",
    "/{db}/_changes",
    "/{db}/_design/{ddoc}/_view/{view}",
    "/{db}/_design/{ddoc}/_view/{view}/queries",
    "/{db}/_design_docs",
    "/{db}/_design_docs/queries",
    // Replicators send it to a source too; it flushes, and changes nothing.
    "/{db}/_ensure_full_commit",
    "/{db}/_explain",
    "/{db}/_find",
    "/{db}/_partition/{partition}/_all_docs",
    "/{db}/_partition/{partition}/_find",
    "/{db}/_partition/{partition}/_explain",
    "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}",
    "/{db}/_design/{ddoc}/_show/{function}",
    "/{db}/_design/{ddoc}/_show/{function}/{doc*}",
    "/{db}/_design/{ddoc}/_list/{function}/{view}",
    "/{db}/_design/{ddoc}/_list/{function}/{other}/{view}",
    "/{db}/_local_docs",
    "/{db}/_local_docs/queries",
    "/{db}/_missing_revs",
    "/{db}/_prepare",
    "/{db}/_prepared/{handle}",
    "/{db}/_revs_diff",
    "/{db}/_watch",
];

/// A request for a new token.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenRequest {
    name: String,
    user: Option<String>,
    roles: Option<Vec<String>>,
    expires_in_seconds: Option<u64>,
    databases: Option<Vec<String>>,
    #[serde(default)]
    read_only: bool,
    public_key: Option<String>,
}

/// A token as stored and listed; a listing omits the hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Token {
    name: String,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    /// The key that signs requests, if it has no secret, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// The user that it acts for.
    pub(super) user: Option<String>,
    /// Its own roles, if it does not act for a user.
    roles: Vec<String>,
    /// In seconds since 1970.
    created: u64,
    expires: Option<u64>,
    #[serde(flatten)]
    pub(super) scope: TokenScope,
}

/// The restrictions of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenScope {
    /// The allowed databases. `None`: all.
    databases: Option<Vec<String>>,
    read_only: bool,
}

/// All tokens, by id.
pub(crate) struct Tokens(RwLock<BTreeMap<String, Arc<Token>>>);

/// Whether a route only reads.
pub(super) fn only_reads(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) || (*method == Method::POST && READING_POSTS.contains(&path))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn hash(secret: &str) -> String {
    to_hex(&Sha256::digest(secret.as_bytes()))
}

impl Tokens {
    /// Loads the tokens of the catalog. Blocks.
    pub(crate) fn load(directory: &Directory) -> Result<Self> {
        let tokens = directory.records(KIND)?.into_iter().map(|(_, value)| {
            let token: Token = value.deserialize_into()?;
            Ok((token.id.clone(), Arc::new(token)))
        });
        tokens.collect::<Result<_>>().map(|tokens| Tokens(RwLock::new(tokens)))
    }

    /// Reads what other servers of the cluster have changed. Blocks.
    pub(super) fn reload(&self, directory: &Directory) -> Result<()> {
        // A change of this server holds the lock from before it is stored.
        let mut tokens = self.0.write();
        *tokens = Self::load(directory)?.0.into_inner();
        Ok(())
    }

    /// Verifies a token. Returns `None` if it is invalid, expired or revoked.
    pub(super) fn verify(&self, text: &str) -> Option<Arc<Token>> {
        self.verify_at(text, now())
    }

    fn verify_at(&self, text: &str, now: u64) -> Option<Arc<Token>> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let token = self.0.read().get(id).cloned()?;
        let stored = from_hex(token.hash.as_deref()?)?;
        let is_match = bool::from(Sha256::digest(secret.as_bytes()).as_slice().ct_eq(&stored));
        (is_match && !token.is_expired(now)).then_some(token)
    }

    /// The token that has this public key. `None` if there is none, or it has expired.
    pub(super) fn with_public_key(&self, key: &str) -> Option<Arc<Token>> {
        let tokens = self.0.read();
        let token = tokens.values().find(|token| token.public_key.as_deref() == Some(key))?;
        (!token.is_expired(now())).then(|| token.clone())
    }

    /// Creates a token. Returns it as listed, and its text, if it has no public key. Blocks.
    ///
    /// # Errors
    /// 400 if the request is invalid, 409 if there is a token of this name or with this public key.
    pub(crate) fn create(&self, directory: &Directory, request: TokenRequest) -> Result<(Token, Option<String>)> {
        check(&request)?;
        let mut tokens = self.0.write();
        if tokens.values().any(|token| token.name == request.name) {
            let reason = "There is a token of this name: revoke it first.";
            return Err(Failure::new(hyper::StatusCode::CONFLICT, "conflict", reason));
        }
        let is_other = |key: &String| tokens.values().find(|token| token.public_key.as_ref() == Some(key));
        if let Some(other) = request.public_key.as_ref().and_then(is_other) {
            let reason = format!("The token `{}` has this public key.", other.name);
            return Err(Failure::new(hyper::StatusCode::CONFLICT, "conflict", reason));
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(Failure::bad_request(format!("There are {TOKENS_MAX} tokens: revoke some first.")));
        }
        let id = Uuid::new_v4().simple().to_string();
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let created = now();
        let token = Token {
            name: request.name,
            id: id.clone(),
            hash: request.public_key.is_none().then(|| hash(&secret)),
            public_key: request.public_key,
            user: request.user,
            roles: request.roles.unwrap_or_default(),
            created,
            expires: request.expires_in_seconds.map(|seconds| created.saturating_add(seconds)),
            scope: TokenScope { databases: request.databases, read_only: request.read_only },
        };
        directory.put_record(KIND, &token.name, &serde_json::to_value(&token).map_err(serialization_failed)?)?;
        tokens.insert(id.clone(), Arc::new(token.clone()));
        let text = token.hash.is_some().then(|| format!("{PREFIX}{id}_{secret}"));
        Ok((token.listed(), text))
    }

    /// Lists all tokens by name, without their hashes.
    pub(crate) fn list(&self) -> Vec<Token> {
        let mut listed: Vec<_> = self.0.read().values().map(|token| token.listed()).collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        listed
    }

    /// Revokes the token of this name. Blocks.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn revoke(&self, directory: &Directory, name: &str) -> Result<()> {
        let mut tokens = self.0.write();
        let id = tokens.values().find(|token| token.name == name).map(|token| token.id.clone());
        let id = id.ok_or_else(Failure::missing)?;
        directory.remove_record(KIND, name)?;
        tokens.remove(&id);
        Ok(())
    }
}

fn serialization_failed(error: serde_json::Error) -> Failure {
    Failure::internal(error.to_string())
}

/// Checks that a request is valid.
fn check(request: &TokenRequest) -> Result<()> {
    let refuse = |reason: String| Err(Failure::bad_request(reason));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !(1..=NAME_BYTES_MAX).contains(&request.name.len()) || !request.name.bytes().all(is_name) {
        return refuse(format!("`name` has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `.` or `_`"));
    }
    if request.public_key.as_deref().is_some_and(|key| decode_public_key(key).is_none()) {
        return refuse("`public_key` is an Ed25519 key, 32 bytes in base64".to_owned());
    }
    match (&request.user, &request.roles) {
        (Some(_), Some(_)) => refuse("a token has the roles of its user: give `user` or `roles`".to_owned()),
        (None, None) => refuse("give `user`, whom the token stands for, or `roles`, which it has".to_owned()),
        _ => Ok(()),
    }
}

impl TokenRequest {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no token: {error}")))
    }
}

impl Token {
    fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    fn listed(&self) -> Token {
        Token { hash: None, ..self.clone() }
    }

    /// The user of a token that acts for itself. Names of users have no colon, so they can't collide.
    pub(super) fn as_user(&self) -> User {
        User { name: Some(format!("token:{}", self.name)), roles: self.roles.clone(), how: Some("token") }
    }
}

impl TokenScope {
    /// Checks that the restrictions allow a route. `database` is the route's database, and `is_open` whether the route
    /// is open to anonymous requests.
    ///
    /// # Errors
    /// 403 if they do not.
    pub(crate) fn allow(&self, method: &Method, path: &str, database: Option<&str>, is_open: bool) -> Result<()> {
        if self.read_only && !only_reads(method, path) {
            return Err(Failure::forbidden("This token is for reading."));
        }
        let is_within = |databases: &Vec<String>| match database {
            Some(database) => databases.iter().any(|allowed| allowed == database),
            None => is_open,
        };
        match self.databases.as_ref().is_none_or(is_within) {
            true => Ok(()),
            false => Err(Failure::forbidden("This token is for other databases.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(expires: Option<u64>) -> (Tokens, String) {
        let secret = "5".repeat(64);
        let scope = TokenScope { databases: None, read_only: false };
        let hash = Some(hash(&secret));
        let (name, id) = ("t".to_owned(), "1".repeat(32));
        let (public_key, user, roles) = (None, None, Vec::new());
        let token = Token { name, id: id.clone(), hash, public_key, user, roles, created: 0, expires, scope };
        let text = format!("{PREFIX}{id}_{secret}");
        (Tokens(RwLock::new([(id, Arc::new(token))].into_iter().collect())), text)
    }

    #[test]
    fn token_is_valid_until_it_expires() {
        let (unlimited, text) = tokens(None);
        assert!(unlimited.verify_at(&text, u64::MAX).is_some());
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'9' { b'8' } else { b'9' };
            assert!(unlimited.verify_at(std::str::from_utf8(&other).unwrap(), 0).is_none(), "byte {at}");
        }
        for other in ["", "stemma_", "stemma__", &text[..text.len() - 1], &format!("{text}5"), &text.to_uppercase()] {
            assert!(unlimited.verify_at(other, 0).is_none(), "{other}");
        }
        let (limited, text) = tokens(Some(100));
        assert!(limited.verify_at(&text, 99).is_some() && limited.verify_at(&text, 100).is_none());
    }

    #[test]
    fn reading_posts_are_known_routes() {
        let known = crate::routes::route_descriptions();
        for path in READING_POSTS {
            assert!(known.iter().any(|route| route.method == "POST" && route.path == *path), "{path}");
        }
    }

    #[test]
    fn scope_restricts_methods_and_databases() {
        let scope = |databases: Option<&[&str]>, read_only| TokenScope {
            databases: databases.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
            read_only,
        };
        let allows =
            |scope: &TokenScope, method: Method, path, database| scope.allow(&method, path, database, false).is_ok();
        let bound = scope(Some(&["a"]), false);
        assert!(allows(&bound, Method::PUT, "/{db}/{doc}", Some("a")));
        assert!(!allows(&bound, Method::GET, "/{db}/{doc}", Some("b")));
        assert!(!allows(&bound, Method::GET, "/_all_dbs", None));
        assert!(bound.allow(&Method::GET, "/_up", None, true).is_ok());
        let reading = scope(None, true);
        assert!(allows(&reading, Method::POST, "/{db}/_find", Some("a")));
        assert!(!allows(&reading, Method::POST, "/{db}/_bulk_docs", Some("a")));
        assert!(!allows(&reading, Method::PUT, "/{db}/_find", Some("a")));
    }
}
