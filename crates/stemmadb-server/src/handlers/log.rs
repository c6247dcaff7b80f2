//! The route `_log`: the last lines of the server's log, and new ones as they are written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::app::{Call, ServerState};
use crate::changes::FeedMode;
use crate::documents::format_rfc3339_us;
use crate::error::{Failure, Result};
use crate::http::{Body, HttpResponse, write_string};
use crate::log::{Level, LogLine, recent_lines};

/// The maximum number of existing lines, unless the request has another one.
const LIMIT: usize = 1_000;
/// The number of new lines that are sent at once.
const BATCH_LINES: usize = 1_000;
/// The time to wait for more new lines after the first, so that many lines are sent at once.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The shortest heartbeat interval; a shorter one would only waste resources.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// The parameters of a `_log` request.
struct LogRequest {
    feed: FeedMode,
    level: Level,
    /// The number of the last line that the client has.
    since: u64,
    limit: usize,
    heartbeat: Duration,
}

/// `GET /_log`
pub(crate) async fn lines(call: Call) -> Result<HttpResponse> {
    let request = LogRequest::parse(&call)?;
    if request.feed == FeedMode::Normal {
        let lines = recent_lines().last(request.since, request.level, request.limit);
        return Ok(HttpResponse::text(StatusCode::OK, "application/x-ndjson", text_of(&lines, request.feed)));
    }
    let content_type = if request.feed == FeedMode::EventSource { "text/event-stream" } else { "application/x-ndjson" };
    let (sender, from) = mpsc::channel(4);
    let session_check = call.session_check();
    tokio::spawn(async move {
        if let Err(failure) = session_check.during(stream_lines(call.state, request, sender.clone())).await {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    Ok(HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }).with(CONTENT_TYPE, content_type))
}

impl LogRequest {
    /// Parses the query string.
    ///
    /// # Errors
    /// 400 with the reason.
    fn parse(call: &Call) -> Result<Self> {
        let query = &call.query;
        let feed = match FeedMode::parse(query.text("feed")) {
            Ok(feed) if feed != FeedMode::Longpoll => feed,
            _ => return Err(Failure::bad_request("`feed` must be normal, continuous, or eventsource")),
        };
        let level = query.text("level").unwrap_or("debug").parse().ok().filter(|level| *level != Level::Off);
        let since = match call.header("last-event-id").or_else(|| query.text("since")) {
            None => 0,
            Some("now") => recent_lines().newest_number(),
            Some(text) => text.parse().map_err(|_| Failure::bad_request("`since` must be the `seq` of a line"))?,
        };
        let heartbeat = query.number("heartbeat")?.map_or(HEARTBEAT, Duration::from_millis);
        Ok(LogRequest {
            feed,
            level: level.ok_or_else(|| Failure::bad_request("`level` must be error, warn, info, or debug"))?,
            since,
            limit: query.number("limit")?.unwrap_or(LIMIT),
            heartbeat: heartbeat.max(HEARTBEAT_MIN),
        })
    }
}

/// Sends existing and new lines until shutdown, or until the client disconnects.
async fn stream_lines(state: Arc<ServerState>, request: LogRequest, sender: mpsc::Sender<std::io::Result<Bytes>>) {
    let stall_timeout = state.config.limits.stall_timeout;
    let send = |text: Vec<u8>| async {
        timeout(stall_timeout, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok())
    };
    let LogRequest { feed, level, since, limit, heartbeat } = request;
    // Before the first read, so that no line is missed.
    let (mut newest, mut stopping) = (recent_lines().newest(), state.stopping.clone());
    let mut known = recent_lines().newest_number().max(since);
    let existing = recent_lines().last(since, level, limit).into_iter().filter(|line| line.number <= known);
    let mut lines: Vec<_> = existing.collect();
    let mut idle_since = Instant::now();
    loop {
        if !lines.is_empty() {
            if !send(text_of(&lines, feed)).await {
                return;
            }
            idle_since = Instant::now();
        }
        if lines.len() < BATCH_LINES {
            tokio::select! {
                _ = newest.changed() => tokio::time::sleep(BATCH_INTERVAL).await,
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return,
                () = sender.closed() => return,
                // Lines that the client did not ask for don't postpone it.
                () = sleep_until(idle_since + heartbeat) => {
                    if !send(heartbeat_of(feed)).await {
                        return;
                    }
                    idle_since = Instant::now();
                }
            }
            newest.borrow_and_update();
        }
        (lines, known) = recent_lines().next(known, level, BATCH_LINES);
    }
}

fn heartbeat_of(feed: FeedMode) -> Vec<u8> {
    match feed {
        FeedMode::EventSource => b"event: heartbeat\ndata: \n\n".to_vec(),
        _ => b"\n".to_vec(),
    }
}

fn text_of(lines: &[Arc<LogLine>], feed: FeedMode) -> Vec<u8> {
    let mut text = Vec::new();
    for line in lines {
        if feed == FeedMode::EventSource {
            text.extend_from_slice(format!("id: {}\ndata: ", line.number).as_bytes());
        }
        write_line(line, &mut text);
        text.extend_from_slice(if feed == FeedMode::EventSource { b"\n\n" } else { b"\n" });
    }
    text
}

/// Appends a line as a JSON object.
fn write_line(line: &LogLine, out: &mut Vec<u8>) {
    let (number, time, level) = (line.number, format_rfc3339_us(line.time_us), line.level());
    out.extend_from_slice(
        format!("{{\"seq\":{number},\"time\":\"{time}\",\"level\":\"{level}\",\"target\":").as_bytes(),
    );
    write_string(out, line.target());
    out.push(b',');
    line.write_members(out);
    out.push(b'}');
}
