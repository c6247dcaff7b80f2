//! Definitions of triggers.

use hyper::Uri;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use stemmadb::{Selector, Sequence, Value};

use super::TriggerContext;
use super::webhook::Secret;
use crate::directory::{ServedDatabase, check_plain_name};
use crate::error::{Failure, Result};

/// A trigger of a database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerDefinition {
    /// Where a webhook sends changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    /// What a webhook's requests are signed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
    /// `design document/name`: a function of the design document's `triggers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) function: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) selector: Option<Json>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<String>,
    /// The sequence after which a new trigger begins; the newest by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<u64>,
    /// The attempts for a change before it becomes a dead letter; without end by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) attempts: Option<u32>,
    /// The database of dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dead_letters: Option<String>,
    /// The instance id of its database, which another database of the same name does not have.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) instance: String,
}

const NAME_BYTES_MAX: usize = 64;

impl TriggerDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        let definition: Self =
            body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no trigger: {error}")))?;
        Ok(TriggerDefinition { instance: String::new(), ..definition })
    }

    /// Checks that it can be run.
    ///
    /// # Errors
    /// 400 with the reason; 403 if the host of its URL is not allowed.
    pub(super) fn check(&self, name: &str, context: &TriggerContext, served: &ServedDatabase) -> Result<()> {
        let refuse = |reason: String| Err(Failure::bad_request(reason));
        check_plain_name("a trigger", name, NAME_BYTES_MAX)?;
        match (&self.url, &self.function) {
            (Some(url), None) => {
                let uri = parse_url(url)?;
                context.outbound.check(uri.host().unwrap_or_default())?;
                Secret::parse(self.secret.as_deref().unwrap_or_default())?;
            }
            (None, Some(function)) => {
                if self.secret.is_some() {
                    return refuse("only a webhook has a `secret`".to_owned());
                }
                split_function(function)?;
            }
            _ => return refuse("give `url`, for a webhook, or `function`, as \"design document/name\"".to_owned()),
        }
        match (&self.dead_letters, self.attempts) {
            (Some(_), None) => {
                return refuse("`dead_letters` needs `attempts`, after which a change is one".to_owned());
            }
            (None, Some(_)) => {
                return refuse("`attempts` needs `dead_letters`, the database for changes that fail".to_owned());
            }
            (Some(_), Some(0)) => return refuse("`attempts` must be at least 1".to_owned()),
            (Some(database), _) if database == served.name() => {
                return refuse("`dead_letters` must be another database: its letters would be changes".to_owned());
            }
            (Some(database), _) if !context.directory.exists(database)? => {
                return refuse(format!("there is no database {database:?} for dead letters: create it first"));
            }
            _ => {}
        }
        self.selector()?;
        if !self.paths.is_empty() {
            drop(served.database().changes(Sequence::ZERO)?.paths(&self.paths)?);
        }
        Ok(())
    }

    /// The selector, if there is one.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(super) fn selector(&self) -> Result<Option<Selector>> {
        let parse = |selector: &Json| Ok(Selector::parse(&Value::from_serialize(selector)?)?);
        self.selector.as_ref().map(parse).transpose()
    }

    /// The definition without its secret.
    pub(super) fn shown(&self) -> Json {
        let shown = TriggerDefinition { secret: None, instance: String::new(), ..self.clone() };
        serde_json::to_value(shown).unwrap_or_default()
    }
}

/// Parses the URL of a webhook.
///
/// # Errors
/// 400 if it is not an absolute `http` or `https` URL without credentials.
pub(super) fn parse_url(url: &str) -> Result<Uri> {
    let malformed = |error: hyper::http::uri::InvalidUri| {
        Failure::bad_request(format!("`url` must be an http or https URL: {error}"))
    };
    let uri: Uri = url.parse().map_err(malformed)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if !is_http || uri.host().is_none_or(str::is_empty) || authority.contains('@') {
        let reason = "`url` must be an http or https URL without a user: requests are signed with `secret`";
        return Err(Failure::bad_request(reason));
    }
    Ok(uri)
}

/// The names of a design document and of its function.
///
/// # Errors
/// 400 if there are not two.
pub(super) fn split_function(function: &str) -> Result<(&str, &str)> {
    let parts = function.split_once('/').filter(|(design, name)| !design.is_empty() && !name.is_empty());
    parts.ok_or_else(|| Failure::bad_request("`function` must be \"design document/name\""))
}
