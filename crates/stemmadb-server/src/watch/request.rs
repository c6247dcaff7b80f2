//! Parameters of a `_watch` request.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::{Object, Path, Query, Selector, Sequence, Value};

use crate::app::Call;
use crate::auth::Restriction;
use crate::changes::parse_paths;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::mango::{self, exclude_design_documents};
use crate::virtual_databases::EnteredVirtual;

/// The most rows of a sorted live query.
const WINDOW_MAX: u64 = 1_000;
pub(super) const HEARTBEAT: Duration = Duration::from_secs(30);
/// The shortest heartbeat interval; a shorter one would only waste resources.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// The parameters of a `_watch` request.
pub(crate) struct WatchRequest {
    /// Patterns of paths whose changes are streamed, instead of a query's result. Empty: a query.
    pub(super) paths: Vec<String>,
    /// The documents that an access rule lets the user read; they are part of the selector. With a rule, a query's
    /// changes since a sequence are not read: they would name documents that the user could never read.
    pub(super) readable: Option<Selector>,
    /// Selects the rows.
    pub(super) selector: Selector,
    /// The query of a sorted or limited result, whose rows have positions.
    pub(super) window: Option<Query>,
    pub(super) fields: Option<Vec<Path>>,
    /// The sequence of the result that the client already has.
    pub(super) since: Option<Sequence>,
    /// The same of a virtual database: a position of its changes feed.
    pub(super) token: Option<String>,
    pub(super) heartbeat: Duration,
}

impl WatchRequest {
    /// Parses the query string of a GET or the body of a POST.
    ///
    /// # Errors
    /// 400 with the reason.
    pub(crate) async fn parse(call: &mut Call, served: &Arc<ServedDatabase>) -> Result<Self> {
        let parameters = match call.parts.method == hyper::Method::POST {
            true => call.json().await?,
            false => query_parameters(call)?.into(),
        };
        let parameters =
            parameters.as_object().ok_or_else(|| Failure::bad_request("Request body must be a JSON object"))?;
        let paths = parse_paths(served, &call.query, Some(&Value::Object(parameters.clone())))?;
        let known: &[&str] = match paths.is_empty() {
            true => &["selector", "sort", "limit", "skip", "fields", "since", "heartbeat"],
            false if call.parts.method == hyper::Method::POST => &["paths", "fields", "since", "heartbeat"],
            false => &["path", "fields", "since", "heartbeat"],
        };
        if let Some(name) = parameters.names().find(|name| !known.contains(name)) {
            let what = if paths.is_empty() { "A live query" } else { "A live query of paths" };
            let known = known.join("`, `");
            return Err(Failure::bad_request(format!("{what} has no parameter `{name}`; it has `{known}`")));
        }
        let mut parameters = parameters.clone();
        if !paths.is_empty() {
            parameters.insert("selector", Object::new());
        }
        let find = mango::FindRequest::parse(&Value::Object(parameters.clone()))?;
        let find = match &call.restriction {
            Some(restriction) => find.restricted_to(restriction.selector()),
            None => find,
        };
        let is_window = ["sort", "limit", "skip"].iter().any(|name| parameters.contains(name));
        if is_window && find.limit > WINDOW_MAX {
            return Err(Failure::bad_request(format!("The limit of a live query is at most {WINDOW_MAX} rows")));
        }
        let window = is_window.then(|| find.query(true)).transpose()?;
        let fields = find.fields.as_ref().map(|fields| fields.iter().map(|field| Path::parse(field)));
        let since = call.header("last-event-id").map(Value::from).or_else(|| parameters.get("since").cloned());
        let (since, token) = match &call.virtual_database {
            None => (since, None),
            Some(entered) => (None, parse_token(entered, since)),
        };
        Ok(WatchRequest {
            readable: call.restriction.as_ref().map(Restriction::selector),
            paths,
            selector: window
                .as_ref()
                .map_or_else(|| exclude_design_documents(find.selector.clone()), |window| window.selector().clone()),
            window,
            fields: fields.map(Iterator::collect::<stemmadb::Result<_>>).transpose()?,
            since: since.map(|since| parse_sequence(served, &since)).transpose()?,
            token,
            heartbeat: parameters.get("heartbeat").map_or(Ok(HEARTBEAT), parse_heartbeat)?,
        })
    }
}

/// The query string as an object: `since` and `path` are plain text, all other parameters are JSON.
fn query_parameters(call: &Call) -> Result<Object> {
    let value = |(name, text): (&str, &str)| {
        let value = match name {
            "since" | "path" => Some(Value::from(text)),
            name => call.query.json(name)?,
        };
        Ok((name.to_owned(), value.unwrap_or_default()))
    };
    call.query.iter().map(value).collect()
}

/// The position of a virtual database that a client names; none for its beginning.
fn parse_token(entered: &EnteredVirtual, since: Option<Value>) -> Option<String> {
    match since?.as_str()? {
        "now" => Some(entered.open.database.changes().newest_token()),
        "" | "0" => None,
        token => Some(token.to_owned()),
    }
}

fn parse_sequence(served: &ServedDatabase, value: &Value) -> Result<Sequence> {
    match value.as_str() {
        Some("now") => Ok(served.database().sequence()),
        Some(text) => served.parse_sequence(text),
        None => served.parse_sequence(&value.to_json()),
    }
}

pub(super) fn parse_heartbeat(value: &Value) -> Result<Duration> {
    let invalid = || Failure::bad_request("`heartbeat` must be a positive number of milliseconds");
    let ms = value.as_u64().filter(|ms| *ms > 0).ok_or_else(invalid)?;
    Ok(Duration::from_millis(ms).max(HEARTBEAT_MIN))
}
