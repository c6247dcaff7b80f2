//! Proxy authentication, as in CouchDB: a trusted proxy names the user and its roles in headers, with a MAC of the name
//! that is keyed with a shared secret.
//!
//! The MAC does not cover the roles, so the proxy must remove these headers from the requests of its clients. Roles of
//! the system, such as `_admin`, are not accepted.

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use sha1::Sha1;
use sha2::Sha256;

use crate::auth::User;

/// The user that a proxy with this secret names. `None` if the headers are absent or the MAC is wrong.
pub(super) fn user(secret: &[u8], headers: &HeaderMap) -> Option<User> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let name = text("x-auth-couchdb-username").filter(|name| !name.is_empty())?;
    let token = bytes_of_hex(text("x-auth-couchdb-token")?)?;
    let mut sha256 = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    let mut sha1 = Hmac::<Sha1>::new_from_slice(secret).ok()?;
    sha256.update(name.as_bytes());
    sha1.update(name.as_bytes());
    if sha256.verify_slice(&token).is_err() && sha1.verify_slice(&token).is_err() {
        return None;
    }
    let roles = text("x-auth-couchdb-roles").unwrap_or_default().split(',').map(str::trim);
    let roles = roles.filter(|role| !role.is_empty() && !role.starts_with('_')).map(str::to_owned).collect();
    Some(User { name: Some(name.to_owned()), roles, how: Some("proxy") })
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    pairs.collect::<Option<Vec<u8>>>().filter(|bytes| bytes.len() * 2 == text.len())
}
