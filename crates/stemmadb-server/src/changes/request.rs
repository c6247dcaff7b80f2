//! Parameters of a `_changes` request.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use stemmadb::past::At;
use stemmadb::{Changes, Sequence, Value};

use super::filter::ChangesFilter;
use crate::app::Call;
use crate::auth::Restriction;
use crate::directory::ServedDatabase;
use crate::documents::{ShowOptions, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::Query;

/// The mode of a feed: CouchDB's parameter `feed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedMode {
    /// Return existing rows and end.
    Normal,
    /// Return existing rows; if there are none, wait for the next.
    Longpoll,
    /// Stream existing and future rows, one per line.
    Continuous,
    /// Stream existing and future rows as server-sent events.
    EventSource,
}

impl FeedMode {
    /// Parses the parameter `feed`.
    ///
    /// # Errors
    /// 400 for an unknown mode.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("normal") => Ok(FeedMode::Normal),
            Some("longpoll") => Ok(FeedMode::Longpoll),
            Some("continuous" | "live") => Ok(FeedMode::Continuous),
            Some("eventsource") => Ok(FeedMode::EventSource),
            _ => Err(Failure::bad_request("Supported `feed` types: normal, continuous, live, longpoll, eventsource")),
        }
    }
}

/// The parameters of a `_changes` request.
#[derive(Debug, Clone)]
pub(crate) struct ChangesRequest {
    pub(crate) feed: FeedMode,
    pub(crate) since: Sequence,
    pub(crate) limit: u64,
    /// Report all leaf revisions of a document, not only the winner.
    pub(crate) all_leaves: bool,
    pub(crate) descending: bool,
    pub(crate) include_docs: bool,
    pub(crate) show: ShowOptions,
    /// Only every n-th row includes its sequence.
    pub(crate) seq_interval: u64,
    /// The interval of heartbeats on an idle feed.
    pub(crate) heartbeat: Option<Duration>,
    /// The idle time after which a feed without heartbeat ends.
    pub(crate) timeout: Duration,
    pub(crate) filter: ChangesFilter,
    /// Patterns of paths; the feed has only documents with a value at one of them. Empty: all documents.
    pub(crate) paths: Vec<String>,
    /// The point in the past at which the feed ends; only for a single list.
    pub(crate) as_of: Option<At>,
    /// The documents that the user may read; `None`: all.
    pub(crate) restriction: Option<Restriction>,
}

/// The interval of heartbeats if a request only asks for some.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The shortest heartbeat interval; a shorter one would only waste resources.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

impl ChangesRequest {
    pub(crate) async fn parse(call: &mut Call, served: &Arc<ServedDatabase>) -> Result<Self> {
        let body = match call.parts.method == Method::POST {
            true => call.json_if_any().await?,
            false => None,
        };
        let query = &call.query;
        let timeout = query.number("timeout")?.map_or(call.state.config.limits.feed_timeout, Duration::from_millis);
        let filter = ChangesFilter::parse(call, served, body.as_ref()).await?;
        let paths = parse_paths(served, query, body.as_ref())?;
        let (feed, as_of) = (FeedMode::parse(query.text("feed"))?, call.as_of()?);
        if as_of.is_some() && feed != FeedMode::Normal {
            return Err(Failure::bad_request("`as_of` can't stand beside a `feed` that waits for changes"));
        }
        Ok(ChangesRequest {
            feed,
            since: parse_since(call, served, body.as_ref())?,
            limit: query.number("limit")?.unwrap_or(u64::MAX),
            all_leaves: query.text("style") == Some("all_docs"),
            descending: query.flag("descending", false)?,
            include_docs: query.flag("include_docs", false)?,
            show: parse_show_options(query)?,
            seq_interval: query.number("seq_interval")?.unwrap_or(1).max(1),
            heartbeat: parse_heartbeat(query)?,
            timeout,
            filter,
            paths,
            as_of,
            restriction: call.restriction.clone(),
        })
    }

    /// Whether the library evaluates a selector or patterns of paths for this feed.
    pub(super) fn has_selector(&self) -> bool {
        !self.paths.is_empty() || self.restriction.is_some() || matches!(self.filter, ChangesFilter::Selector(_))
    }

    /// Applies the filters that the library evaluates.
    pub(super) fn restrict(&self, changes: Changes) -> Result<Changes> {
        let changes = self.filter.restrict(changes)?;
        let changes = match (&self.restriction, &self.filter) {
            (None, _) => changes,
            (Some(restriction), ChangesFilter::Selector(selector)) => {
                changes.selector(&restriction.selector().and((**selector).clone()))?
            }
            (Some(restriction), _) => changes.selector(&restriction.selector())?,
        };
        // Documents that the client could read before are reported as deleted.
        let changes = changes.departures(self.restriction.is_some());
        Ok(if self.paths.is_empty() { changes } else { changes.paths(&self.paths)? })
    }
}

/// The patterns of paths in the parameters `path` and the field `paths` of the body.
///
/// # Errors
/// 400 if a pattern is malformed.
pub(crate) fn parse_paths(served: &ServedDatabase, query: &Query, body: Option<&Value>) -> Result<Vec<String>> {
    let mut paths: Vec<String> = query.texts("path").map(str::to_owned).collect();
    if let Some(path) = paths.iter().find(|path| path.ends_with('/')) {
        let reason = format!("The pattern {path:?} ends in a slash: write %23 for #, which is the fragment of a URL");
        return Err(Failure::bad_request(reason));
    }
    if let Some(listed) = body.and_then(|body| body.get("paths")) {
        let texts = listed.as_array().map(|listed| listed.iter().map(|path| path.as_str().map(str::to_owned)));
        let texts: Option<Vec<String>> = texts.and_then(Iterator::collect);
        let texts = texts.filter(|texts| !texts.is_empty());
        paths.extend(texts.ok_or_else(|| Failure::bad_request("`paths` must be an array of at least one pattern"))?);
    }
    if !paths.is_empty() {
        drop(served.database().changes(Sequence::ZERO)?.paths(&paths)?);
    }
    Ok(paths)
}

/// The sequence at which the feed starts. Browsers send the header `Last-Event-ID` when an `EventSource` reconnects.
fn parse_since(call: &Call, served: &ServedDatabase, body: Option<&Value>) -> Result<Sequence> {
    let header = call.header("last-event-id");
    let from_body = body.and_then(|body| body.get("since"));
    let from_body = from_body.map(|since| since.as_str().map_or_else(|| since.to_json(), str::to_owned));
    let text = header.or_else(|| call.query.text("since")).map(str::to_owned).or(from_body).unwrap_or_default();
    // Some clients send the sequence as a JSON string, in quotes.
    match text.trim_matches('"') {
        "" | "0" => Ok(Sequence::ZERO),
        "now" => Ok(served.database().sequence()),
        text => served.parse_sequence(text),
    }
}

/// The interval of heartbeats.
///
/// # Errors
/// 400 if it is no positive number.
pub(crate) fn parse_heartbeat(query: &Query) -> Result<Option<Duration>> {
    match query.text("heartbeat") {
        None | Some("false") => Ok(None),
        Some("true") => Ok(Some(HEARTBEAT)),
        Some(text) => match text.parse::<u64>() {
            Ok(ms @ 1..) => Ok(Some(Duration::from_millis(ms).max(HEARTBEAT_MIN))),
            _ => Err(Failure::bad_request("The heartbeat value should be a positive integer (in milliseconds).")),
        },
    }
}
