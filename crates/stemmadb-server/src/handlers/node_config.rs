//! The routes `_node/{node}/_config`: the settings that CouchDB clients commonly read and write, in CouchDB's sections.
//!
//! Changes are persistent and take effect immediately. Settings given by a flag, an environment variable or the
//! configuration file can't be changed here.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::node::check_node;
use crate::app::{Call, ServerState};
use crate::auth::PREFLIGHT;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};

/// A setting with its CouchDB section and key.
struct ConfigKey {
    section: &'static str,
    key: &'static str,
    show: fn(&ServerState, &Config) -> String,
    mutability: Mutability,
}

/// Whether and how a setting can be changed.
#[derive(Clone, Copy)]
enum Mutability {
    /// By changing this server setting.
    Setting(&'static str),
    /// It can't be changed. Writing values that are already in force succeeds.
    ReadOnly,
}

const fn key(
    section: &'static str,
    key: &'static str,
    mutability: Mutability,
    show: fn(&ServerState, &Config) -> String,
) -> ConfigKey {
    ConfigKey { section, key, show, mutability }
}

use Mutability::{ReadOnly, Setting};

const KEYS: &[ConfigKey] = &[
    key("chttpd", "bind_address", ReadOnly, |state, _| state.config.address.ip().to_string()),
    key("chttpd", "port", ReadOnly, |state, _| state.config.address.port().to_string()),
    key("chttpd", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("chttpd", "enable_cors", Setting("cors.enabled"), |_, config| config.cors.enabled.to_string()),
    key("chttpd", "max_http_request_size", Setting("limits.body_bytes"), |_, config| {
        config.limits.body_bytes.to_string()
    }),
    key("chttpd_auth", "timeout", Setting("session_timeout"), timeout),
    key("chttpd_auth", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("cors", "origins", Setting("cors.origins"), |_, config| config.cors.origins.join(",")),
    key("cors", "credentials", Setting("cors.credentials"), |_, config| config.cors.credentials.to_string()),
    key("cors", "methods", ReadOnly, |_, _| PREFLIGHT[0].1.to_owned()),
    key("cors", "headers", ReadOnly, |_, _| PREFLIGHT[1].1.to_owned()),
    key("couch_httpd_auth", "timeout", Setting("session_timeout"), timeout),
    key("couch_httpd_auth", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("couchdb", "uuid", ReadOnly, |state, _| state.directory.server_id().to_owned()),
    key("couchdb", "max_attachment_size", Setting("limits.attachment_bytes"), |_, config| {
        config.limits.attachment_bytes.to_string()
    }),
    key("httpd", "enable_cors", Setting("cors.enabled"), |_, config| config.cors.enabled.to_string()),
    key("log", "level", ReadOnly, |_, config| config.log.level.to_string()),
    key("vendor", "name", ReadOnly, |_, _| "Stemma".to_owned()),
    key("vendor", "version", ReadOnly, |_, _| env!("CARGO_PKG_VERSION").to_owned()),
];

fn timeout(_: &ServerState, config: &Config) -> String {
    config.session_timeout.as_secs().to_string()
}

/// The section whose keys are the names of administrators.
const ADMINS: &str = "admins";
/// Returned in place of password hashes.
const HIDDEN: &str = "-hidden-";

fn section(state: &ServerState, name: &str) -> Map<String, Value> {
    if name == ADMINS {
        return state.authenticator.administrators().names().into_iter().map(|name| (name, json!(HIDDEN))).collect();
    }
    let config = state.settings.config();
    let keys = KEYS.iter().filter(|key| key.section == name);
    keys.map(|key| (key.key.to_owned(), json!((key.show)(state, &config)))).collect()
}

/// Checks that the request names this server, and reads the administrators that others of the cluster have changed.
async fn check(call: &Call) -> Result<()> {
    check_node(call)?;
    let state = call.state.clone();
    blocking(move || state.authenticator.newest(&state.directory).map(drop)).await
}

/// `GET /_node/{node}/_config`
pub(crate) async fn all(call: Call) -> Result<HttpResponse> {
    check(&call).await?;
    let names = KEYS.iter().map(|key| key.section).chain([ADMINS]);
    let sections = names.map(|name| (name.to_owned(), Value::Object(section(&call.state, name))));
    HttpResponse::ok(&Value::Object(sections.collect()))
}

/// `GET /_node/{node}/_config/{section}`
pub(crate) async fn get_section(call: Call) -> Result<HttpResponse> {
    check(&call).await?;
    HttpResponse::ok(&section(&call.state, call.parameter("section")?))
}

/// `GET /_node/{node}/_config/{section}/{key}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    check(&call).await?;
    let found = section(&call.state, call.parameter("section")?).remove(call.parameter("key")?);
    HttpResponse::ok(&found.ok_or_else(unknown)?)
}

fn unknown() -> Failure {
    Failure::not_found("unknown_config_value")
}

/// `PUT /_node/{node}/_config/{section}/{key}`: returns the previous value.
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    check(&call).await?;
    let sent = call.json().await?.deserialize_into::<Value>()?;
    let text = match sent {
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => sent.to_string(),
        _ => return Err(Failure::bad_request("a value must be a JSON string, boolean or number")),
    };
    change(call, Some(text)).await
}

/// `DELETE /_node/{node}/_config/{section}/{key}`: returns the previous value.
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    check(&call).await?;
    change(call, None).await
}

async fn change(call: Call, text: Option<String>) -> Result<HttpResponse> {
    let (name, key) = (call.parameter("section")?.to_owned(), call.parameter("key")?.to_owned());
    let state = call.state.clone();
    let before = section(&state, &name).remove(&key);
    if text.is_none() && before.is_none() {
        return Err(unknown());
    }
    let shown = before.clone().unwrap_or_else(|| json!(""));
    blocking(move || match (name.as_str(), text) {
        (ADMINS, Some(password)) => state.authenticator.administrators().set(&state.directory, &key, &password),
        (ADMINS, None) => state.authenticator.administrators().remove(&state.directory, &key),
        (_, text) => change_setting(&state, &name, &key, text, before.as_ref().and_then(Value::as_str)),
    })
    .await?;
    HttpResponse::json(StatusCode::OK, &shown)
}

fn change_setting(
    state: &ServerState,
    section: &str,
    key: &str,
    text: Option<String>,
    before: Option<&str>,
) -> Result<()> {
    let known = KEYS.iter().find(|known| known.section == section && known.key == key);
    match known.map(|known| known.mutability) {
        Some(Setting("cors.origins")) => {
            let origins = text.map(|text| split_list(&text).map(str::to_owned).collect());
            state.settings.change(&*state.directory, "cors.origins", origins)
        }
        Some(Setting(name)) => state.settings.change(&*state.directory, name, text.map(|text| vec![text])),
        Some(ReadOnly) if is_in_force(before.unwrap_or_default(), text.as_deref()) => Ok(()),
        _ => Err(Failure::forbidden(format!(
            "{section}/{key} can't be changed while the server runs; `stemma serve --help` lists the start settings."
        ))),
    }
}

fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|text| !text.is_empty())
}

/// Whether the comma-separated list `current` contains all values of the list `requested`.
fn is_in_force(current: &str, requested: Option<&str>) -> bool {
    let contains = |value: &str| split_list(current).any(|known| known.eq_ignore_ascii_case(value));
    requested.is_some_and(|requested| split_list(requested).all(contains))
}
