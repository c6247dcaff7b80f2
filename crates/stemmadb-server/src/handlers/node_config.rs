//! `_node/{node}/_config`: settings in the sections that CouchDB has, for the keys that clients look at and set.
//!
//! What is changed here is kept, and in force at once. What a flag, a variable or a file says is changed there.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::node::check;
use crate::app::{Call, State};
use crate::auth::PREFLIGHT;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};

/// A key, as CouchDB has it.
struct Key {
    section: &'static str,
    key: &'static str,
    show: fn(&State, &Config) -> String,
    change: Change,
}

/// How a key is changed.
#[derive(Clone, Copy)]
enum Change {
    /// With this setting.
    Setting(&'static str),
    /// Not at all; but for a list, to say what is so anyway is no mistake.
    Never,
}

const fn key(section: &'static str, key: &'static str, change: Change, show: fn(&State, &Config) -> String) -> Key {
    Key { section, key, show, change }
}

use Change::{Never, Setting};

const KEYS: &[Key] = &[
    key("chttpd", "bind_address", Never, |state, _| state.config.address.ip().to_string()),
    key("chttpd", "port", Never, |state, _| state.config.address.port().to_string()),
    key("chttpd", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("chttpd", "enable_cors", Setting("cors.enabled"), |_, config| config.cors.enabled.to_string()),
    key("chttpd", "max_http_request_size", Never, |_, config| config.limits.body_bytes.to_string()),
    key("chttpd_auth", "timeout", Setting("session_timeout"), timeout),
    key("chttpd_auth", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("cors", "origins", Setting("cors.origins"), |_, config| config.cors.origins.join(",")),
    key("cors", "credentials", Setting("cors.credentials"), |_, config| config.cors.credentials.to_string()),
    key("cors", "methods", Never, |_, _| PREFLIGHT[0].1.to_owned()),
    key("cors", "headers", Never, |_, _| PREFLIGHT[1].1.to_owned()),
    key("couch_httpd_auth", "timeout", Setting("session_timeout"), timeout),
    key("couch_httpd_auth", "require_valid_user", Setting("require_valid_user"), |_, config| {
        config.require_valid_user.to_string()
    }),
    key("couchdb", "uuid", Never, |state, _| state.directory.server_id().to_owned()),
    key("couchdb", "max_attachment_size", Never, |_, config| config.limits.attachment_bytes.to_string()),
    key("httpd", "enable_cors", Setting("cors.enabled"), |_, config| config.cors.enabled.to_string()),
    key("log", "level", Never, |_, config| config.log.level.to_string()),
    key("vendor", "name", Never, |_, _| "Stemma".to_owned()),
    key("vendor", "version", Never, |_, _| env!("CARGO_PKG_VERSION").to_owned()),
];

fn timeout(_: &State, config: &Config) -> String {
    config.session_timeout.as_secs().to_string()
}

/// The section of administrators: its keys are their names.
const ADMINS: &str = "admins";
/// What is shown in place of what is kept of their passwords.
const HIDDEN: &str = "-hidden-";

fn section(state: &State, name: &str) -> Map<String, Value> {
    if name == ADMINS {
        return state.authenticator.administrators().names().into_iter().map(|name| (name, json!(HIDDEN))).collect();
    }
    let config = state.settings.config();
    let keys = KEYS.iter().filter(|key| key.section == name);
    keys.map(|key| (key.key.to_owned(), json!((key.show)(state, &config)))).collect()
}

/// `GET /_node/{node}/_config`
pub(crate) async fn all(call: Call) -> Result<Answer> {
    check(&call)?;
    let names = KEYS.iter().map(|key| key.section).chain([ADMINS]);
    let sections = names.map(|name| (name.to_owned(), Value::Object(section(&call.state, name))));
    Answer::ok(&Value::Object(sections.collect()))
}

/// `GET /_node/{node}/_config/{section}`
pub(crate) async fn of_section(call: Call) -> Result<Answer> {
    check(&call)?;
    Answer::ok(&section(&call.state, call.parameter("section")?))
}

/// `GET /_node/{node}/_config/{section}/{key}`
pub(crate) async fn get(call: Call) -> Result<Answer> {
    check(&call)?;
    let found = section(&call.state, call.parameter("section")?).remove(call.parameter("key")?);
    Answer::ok(&found.ok_or_else(unknown)?)
}

fn unknown() -> Failure {
    Failure::not_found("unknown_config_value")
}

/// `PUT /_node/{node}/_config/{section}/{key}`: answers what was there before.
pub(crate) async fn put(mut call: Call) -> Result<Answer> {
    check(&call)?;
    let sent = call.json().await?.deserialize_into::<Value>()?;
    let text = match sent {
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => sent.to_string(),
        _ => return Err(Failure::bad_request("a value is a JSON text")),
    };
    change(call, Some(text)).await
}

/// `DELETE /_node/{node}/_config/{section}/{key}`: answers what was there before.
pub(crate) async fn delete(call: Call) -> Result<Answer> {
    check(&call)?;
    change(call, None).await
}

async fn change(call: Call, text: Option<String>) -> Result<Answer> {
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
    Answer::json(StatusCode::OK, &shown)
}

fn change_setting(state: &State, section: &str, key: &str, text: Option<String>, before: Option<&str>) -> Result<()> {
    let known = KEYS.iter().find(|known| known.section == section && known.key == key);
    match known.map(|known| known.change) {
        Some(Setting("cors.origins")) => {
            let origins = text.map(|text| listed(&text).map(str::to_owned).collect());
            state.settings.change(&*state.directory, "cors.origins", origins)
        }
        Some(Setting(name)) => state.settings.change(&*state.directory, name, text.map(|text| vec![text])),
        Some(Never) if is_so_anyway(before.unwrap_or_default(), text.as_deref()) => Ok(()),
        _ => Err(Failure::forbidden(format!(
            "{section}/{key} can't be changed while the server runs; `stemma serve --help` lists what can be set at its start."
        ))),
    }
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|text| !text.is_empty())
}

/// Whether everything in the list `asked` is in the list that is in force.
fn is_so_anyway(in_force: &str, asked: Option<&str>) -> bool {
    asked.is_some_and(|asked| listed(asked).all(|word| listed(in_force).any(|known| known.eq_ignore_ascii_case(word))))
}
