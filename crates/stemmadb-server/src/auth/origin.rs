//! Checks of a request's host and origin, against DNS rebinding and cross-site requests, and the CORS headers.

use std::net::{IpAddr, SocketAddr};

use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use crate::config::Config;
use crate::error::{Failure, Result};

/// Checks that other machines can't use a server without a password, if it listens on this address.
///
/// # Errors
/// 400 if they can.
pub(crate) fn refuse_if_open(config: &Config, address: SocketAddr) -> Result<()> {
    if config.administrator.is_none() && !address.ip().is_loopback() {
        return Err(Failure::bad_request(format!(
            "{address} can be reached from other machines: name an administrator first"
        )));
    }
    Ok(())
}

/// Checks that the `Host` header names this server. With DNS rebinding, a page's domain is pointed to this server by
/// its owner, and the browser sends that domain.
///
/// # Errors
/// 403 if it does not; 400 if there are two `Host` headers.
pub(crate) fn check_host(config: &Config, parts: &Parts) -> Result<()> {
    if parts.headers.get_all("host").iter().nth(1).is_some() {
        return Err(Failure::bad_request("The request names its host twice."));
    }
    let named =
        header_text(&parts.headers, "host").or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    // Browsers always send a host.
    let Some(named) = named else { return Ok(()) };
    let host = host_of(named);
    let is_ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_local = is_ip || host.eq_ignore_ascii_case("localhost");
    let is_configured = config.hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
    // A server that listens on other interfaces has some name; without configured hosts, any is accepted.
    let is_open = config.hosts.is_empty() && !config.address.ip().is_loopback();
    match is_local || is_configured || is_open {
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

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Checks a request that a browser may have sent with a cookie or a password on behalf of a page of another site. Only
/// requests that change nothing, and those of sites in `cors.origins`, are allowed; `*` does not count for a request
/// with a session cookie.
///
/// # Errors
/// 403 if it is not allowed.
pub(crate) fn check_origin(config: &Config, parts: &Parts, has_cookie: bool) -> Result<()> {
    if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    check_page(config, parts, has_cookie)
}

/// Checks a request of any method like [`check_origin`]: pages of other sites must be in `cors.origins`, where `*`
/// counts only for anonymous requests.
///
/// # Errors
/// 403 if it is not allowed.
pub(crate) fn check_page(config: &Config, parts: &Parts, is_authenticated: bool) -> Result<()> {
    let refused = || Err(Failure::forbidden("A page of another site may not do this with a session."));
    if let Some(origin) = header_text(&parts.headers, "origin") {
        let is_own = origin.split_once("://").map(|(_, host)| host) == header_text(&parts.headers, "host");
        let is_allowed = allowed_origin(config, origin).is_some_and(|allowed| allowed == origin || !is_authenticated);
        return if is_own || is_allowed { Ok(()) } else { refused() };
    }
    match header_text(&parts.headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => refused(),
    }
}

/// Whether a page's script made the request. It handles a 401 itself: with a challenge the browser would ask the user
/// for a password, and the script would wait for it.
pub(crate) fn is_script_request(headers: &HeaderMap) -> bool {
    match header_text(headers, "sec-fetch-mode") {
        Some(mode) => mode != "navigate",
        None => headers.contains_key("origin"),
    }
}

/// The value of `Access-Control-Allow-Origin` for an allowed site: its own origin, or `*` if all are allowed, without
/// credentials.
pub(crate) fn allowed_origin(config: &Config, origin: &str) -> Option<String> {
    let cors = &config.cors;
    if !cors.enabled {
        return None;
    }
    if cors.origins.iter().any(|known| known == origin) {
        return Some(origin.to_owned());
    }
    let allows_all = !cors.credentials && cors.origins.iter().any(|known| known == "*");
    allows_all.then(|| "*".to_owned())
}

/// The CORS headers for an allowed site.
pub(crate) fn cors_headers(config: &Config, origin: Option<&str>) -> Vec<(&'static str, String)> {
    let Some(allowed) = origin.and_then(|origin| allowed_origin(config, origin)) else { return Vec::new() };
    let mut headers = vec![("access-control-allow-origin", allowed), ("vary", "Origin".to_owned())];
    if config.cors.credentials {
        headers.push(("access-control-allow-credentials", "true".to_owned()));
    }
    headers.push((
        "access-control-expose-headers",
        "content-type, cache-control, accept-ranges, etag, server, x-couch-request-id, \
             x-couch-update-newrev, x-couchdb-body-time"
            .to_owned(),
    ));
    headers
}

/// The headers of a preflight response.
pub(crate) const PREFLIGHT: [(&str, &str); 3] = [
    ("access-control-allow-methods", "GET, HEAD, PUT, POST, DELETE, PATCH, COPY, OPTIONS"),
    (
        "access-control-allow-headers",
        "accept, authorization, content-type, origin, referer, destination, \
         if-match, if-none-match, last-event-id, x-csrf-token, x-requested-with",
    ),
    ("access-control-max-age", "600"),
];
