//! What is watched.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::{Object, Path, Query, Selector, Sequence, Value};

use crate::app::Call;
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::mango::{self, plain};

/// The most rows of a window.
const WINDOW_MAX: u64 = 1_000;
const HEARTBEAT: Duration = Duration::from_secs(30);
/// A beat more often than this would be work for nobody.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// What is watched.
pub(crate) struct Request {
    /// What rows must match.
    pub(super) selector: Selector,
    /// A part of the rows, in order, if that is what is watched.
    pub(super) window: Option<Query>,
    pub(super) fields: Option<Vec<Path>>,
    /// The client has the answer of this sequence.
    pub(super) since: Option<Sequence>,
    pub(super) heartbeat: Duration,
}

impl Request {
    /// What the query asks for, or the body.
    ///
    /// # Errors
    /// 400, saying what is wrong.
    pub(crate) async fn parse(call: &mut Call, served: &Arc<Served>) -> Result<Self> {
        let given = match call.parts.method == hyper::Method::POST {
            true => call.json().await?,
            false => of_query(call)?.into(),
        };
        let given = given.as_object().ok_or_else(|| Failure::bad_request("Request body must be a JSON object"))?;
        let known = ["selector", "sort", "limit", "skip", "fields", "since", "heartbeat"];
        if let Some(name) = given.names().find(|name| !known.contains(name)) {
            return Err(Failure::bad_request(format!("A watch does not know `{name}`")));
        }
        let find = mango::Request::parse(&Value::Object(given.clone()))?;
        let is_window = ["sort", "limit", "skip"].iter().any(|name| given.contains(name));
        if is_window && find.limit > WINDOW_MAX {
            return Err(Failure::bad_request(format!("A watch has a limit of at most {WINDOW_MAX} rows, or none")));
        }
        let window = is_window.then(|| find.query(true)).transpose()?;
        let fields = find.fields.as_ref().map(|fields| fields.iter().map(|field| Path::parse(field)));
        let since = call.header("last-event-id").map(Value::from).or_else(|| given.get("since").cloned());
        Ok(Request {
            selector: window.as_ref().map_or_else(|| plain(find.selector.clone()), |window| window.selector().clone()),
            window,
            fields: fields.map(Iterator::collect::<stemmadb::Result<_>>).transpose()?,
            since: since.map(|since| sequence(served, &since)).transpose()?,
            heartbeat: given.get("heartbeat").map_or(Ok(HEARTBEAT), heartbeat)?,
        })
    }
}

/// The parameters after the question mark, each as JSON but for the sequence, which is text.
fn of_query(call: &Call) -> Result<Object> {
    let value = |(name, text): (&str, &str)| {
        let value = match name {
            "since" => Some(Value::from(text)),
            name => call.query.json(name)?,
        };
        Ok((name.to_owned(), value.unwrap_or_default()))
    };
    call.query.iter().map(value).collect()
}

fn sequence(served: &Served, value: &Value) -> Result<Sequence> {
    match value.as_str() {
        Some("now") => Ok(served.database().sequence()),
        Some(text) => served.parse_sequence(text),
        None => served.parse_sequence(&value.to_json()),
    }
}

fn heartbeat(value: &Value) -> Result<Duration> {
    let wrong = || Failure::bad_request("The heartbeat is a positive number of milliseconds.");
    let ms = value.as_u64().filter(|ms| *ms > 0).ok_or_else(wrong)?;
    Ok(Duration::from_millis(ms).max(HEARTBEAT_MIN))
}
