//! What was asked of the feed.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use stemmadb::{Sequence, Value};

use super::filter::Filter;
use crate::app::Call;
use crate::directory::Served;
use crate::documents::{Show, show_of};
use crate::error::{Failure, Result};
use crate::http::Query;

/// How long the feed goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    /// What there is.
    Normal,
    /// What there is, or, if there is nothing, the next that comes.
    Longpoll,
    /// What there is and what comes, a line each.
    Continuous,
    /// The same as server-sent events.
    EventSource,
}

impl Feed {
    fn parse(text: &str) -> Result<Self> {
        match text {
            "normal" => Ok(Feed::Normal),
            "longpoll" => Ok(Feed::Longpoll),
            "continuous" => Ok(Feed::Continuous),
            "eventsource" => Ok(Feed::EventSource),
            // As CouchDB: what is not known is the plain feed.
            _ => Ok(Feed::Normal),
        }
    }
}

/// What was asked of the feed.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) feed: Feed,
    pub(crate) since: Sequence,
    pub(crate) limit: u64,
    /// Every leaf of a document, not its winner alone.
    pub(crate) all_leaves: bool,
    pub(crate) descending: bool,
    pub(crate) documents: bool,
    pub(crate) show: Show,
    /// Only each so many-th row tells its sequence.
    pub(crate) seq_interval: u64,
    /// How often an idle feed shows that it lives.
    pub(crate) heartbeat: Option<Duration>,
    /// How long a feed without a heartbeat may be idle.
    pub(crate) timeout: Duration,
    pub(crate) filter: Filter,
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// A beat more often than this would be work for nobody.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

impl Request {
    pub(crate) async fn parse(call: &mut Call, served: &Arc<Served>) -> Result<Self> {
        let body = match call.parts.method == Method::POST {
            true => call.json_if_any().await?,
            false => None,
        };
        let query = &call.query;
        let timeout = query.number::<u64>("timeout")?.map_or(TIMEOUT, Duration::from_millis);
        let filter = Filter::parse(call, served, body.as_ref()).await?;
        Ok(Request {
            feed: Feed::parse(query.text("feed").unwrap_or("normal"))?,
            since: since(call, served, body.as_ref())?,
            limit: query.number("limit")?.unwrap_or(u64::MAX),
            all_leaves: query.text("style") == Some("all_docs"),
            descending: query.flag("descending", false)?,
            documents: query.flag("include_docs", false)?,
            show: show_of(query)?,
            seq_interval: query.number("seq_interval")?.unwrap_or(1).max(1),
            heartbeat: heartbeat(query)?,
            timeout,
            filter,
        })
    }
}

/// Where the feed begins: the header is what a browser's event source sends when it comes again.
fn since(call: &Call, served: &Served, body: Option<&Value>) -> Result<Sequence> {
    let header = call.header("last-event-id");
    let from_body = body.and_then(|body| body.get("since"));
    let from_body = from_body.map(|since| since.as_str().map_or_else(|| since.to_json(), str::to_owned));
    let text = header.or_else(|| call.query.text("since")).map(str::to_owned).or(from_body).unwrap_or_default();
    // Some clients send it as JSON.
    match text.trim_matches('"') {
        "" | "0" => Ok(Sequence::ZERO),
        "now" => Ok(served.database().sequence()),
        text => served.parse_sequence(text),
    }
}

fn heartbeat(query: &Query) -> Result<Option<Duration>> {
    match query.text("heartbeat") {
        None | Some("false") => Ok(None),
        Some("true") => Ok(Some(TIMEOUT)),
        Some(text) => match text.parse::<u64>() {
            Ok(ms @ 1..) => Ok(Some(Duration::from_millis(ms).max(HEARTBEAT_MIN))),
            _ => Err(Failure::bad_request("The heartbeat value should be a positive integer (in milliseconds).")),
        },
    }
}
