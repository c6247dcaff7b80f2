//! Where does a request come from? The host it names, the page it is of, and what pages of other sites may do.

use std::net::IpAddr;

use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use crate::config::Config;
use crate::error::{Failure, Result};

/// Refuses a request that names a host which is not this server: a page whose name was pointed here by who owns it (DNS rebinding) sends
/// its own name.
///
/// # Errors
/// 403; 400 if it names two.
pub(crate) fn check_host(config: &Config, parts: &Parts) -> Result<()> {
    if parts.headers.get_all("host").iter().nth(1).is_some() {
        return Err(Failure::bad_request("The request names its host twice."));
    }
    let named = text(&parts.headers, "host").or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    // Who sends none is no browser.
    let Some(named) = named else { return Ok(()) };
    let host = host_of(named);
    let is_number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_here = is_number || host.eq_ignore_ascii_case("localhost");
    let is_known = config.hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
    // Who listens to the world has a name, which may be any where none is told.
    let is_open = config.hosts.is_empty() && !config.address.ip().is_loopback();
    match is_here || is_known || is_open {
        true => Ok(()),
        false => Err(Failure::forbidden("The Host header names no host that this server is known by.")),
    }
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Refuses what a page of another site sends in the name of somebody whose browser has a cookie or a password: only what changes nothing,
/// and what sites that were named send. Those that are meant by `*` were named for who `has_cookie` by nobody.
///
/// # Errors
/// 403.
pub(crate) fn check_origin(config: &Config, parts: &Parts, has_cookie: bool) -> Result<()> {
    if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    check_page(config, parts, has_cookie)
}

/// Refuses what a page of another site sends, but for sites that were named; those that are meant by `*` only if nobody `is_somebody`.
///
/// # Errors
/// 403.
pub(crate) fn check_page(config: &Config, parts: &Parts, is_somebody: bool) -> Result<()> {
    let refused = || Err(Failure::forbidden("A page of another site may not do this with a session."));
    if let Some(origin) = text(&parts.headers, "origin") {
        let is_own = origin.split_once("://").map(|(_, host)| host) == text(&parts.headers, "host");
        let is_allowed = allowed_origin(config, origin).is_some_and(|allowed| allowed == origin || !is_somebody);
        return if is_own || is_allowed { Ok(()) } else { refused() };
    }
    match text(&parts.headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => refused(),
    }
}

/// Whether a script of a page makes a request. It handles a refusal itself: a challenge would have the browser ask the user for a password,
/// and the script wait for it.
pub(crate) fn is_of_script(headers: &HeaderMap) -> bool {
    match text(headers, "sec-fetch-mode") {
        Some(mode) => mode != "navigate",
        None => headers.contains_key("origin"),
    }
}

/// What is answered of a site that may use the server: its own name, or `*` where all may and none with credentials.
pub(crate) fn allowed_origin(config: &Config, origin: &str) -> Option<String> {
    let cors = &config.cors;
    if !cors.enabled {
        return None;
    }
    if cors.origins.iter().any(|known| known == origin) {
        return Some(origin.to_owned());
    }
    let is_for_all = !cors.credentials && cors.origins.iter().any(|known| known == "*");
    is_for_all.then(|| "*".to_owned())
}

/// Headers for a page of another site, if it may have them.
pub(crate) fn cors_headers(config: &Config, origin: Option<&str>) -> Vec<(&'static str, String)> {
    let Some(allowed) = origin.and_then(|origin| allowed_origin(config, origin)) else { return Vec::new() };
    let mut headers = vec![("access-control-allow-origin", allowed), ("vary", "Origin".to_owned())];
    if config.cors.credentials {
        headers.push(("access-control-allow-credentials", "true".to_owned()));
    }
    headers.push((
        "access-control-expose-headers",
        "content-type, cache-control, accept-ranges, etag, server, x-couch-request-id, x-couch-update-newrev, x-couchdb-body-time"
            .to_owned(),
    ));
    headers
}

/// Headers that answer a browser's question before the request itself.
pub(crate) const PREFLIGHT: [(&str, &str); 3] = [
    ("access-control-allow-methods", "GET, HEAD, PUT, POST, DELETE, COPY, OPTIONS"),
    (
        "access-control-allow-headers",
        "accept, authorization, content-type, origin, referer, destination, if-match, if-none-match, last-event-id, x-csrf-token, x-requested-with",
    ),
    ("access-control-max-age", "600"),
];
