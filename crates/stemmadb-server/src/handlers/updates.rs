//! The route `_db_updates`: a feed of the creation, update and deletion of databases.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::app::{Call, ServerState};
use crate::changes::FeedMode;
use crate::directory::DatabaseUpdate;
use crate::error::{Failure, Result};
use crate::http::{Body, HttpResponse, write_string};

/// The parameters of a `_db_updates` request.
struct DatabaseUpdatesRequest {
    feed: FeedMode,
    since: u64,
    limit: usize,
    heartbeat: Option<Duration>,
    timeout: Duration,
}

/// `GET /_db_updates`
pub(crate) async fn updates(call: Call) -> Result<HttpResponse> {
    let query = &call.query;
    let updates = call.state.directory.updates();
    let feed = FeedMode::parse(query.text("feed"))?;
    let since = match query.text("since") {
        Some("now") => *updates.newest().borrow(),
        Some(text) => updates.parse(text),
        None => 0,
    };
    let heartbeat = match query.text("heartbeat") {
        None | Some("false") => None,
        Some("true") => Some(60_000),
        Some(text) => {
            Some(text.parse().map_err(|_| Failure::bad_request("heartbeat must be a number of milliseconds"))?)
        }
    };
    let request = DatabaseUpdatesRequest {
        feed,
        since,
        limit: query.number("limit")?.unwrap_or(usize::MAX),
        heartbeat: heartbeat.map(|ms: u64| Duration::from_millis(ms.max(10))),
        timeout: query.number("timeout")?.map_or(call.state.config.limits.feed_timeout, Duration::from_millis),
    };
    let content_type = if feed == FeedMode::EventSource { "text/event-stream" } else { "application/json" };
    let (sender, from) = mpsc::channel(4);
    let session_check = call.session_check();
    tokio::spawn(async move {
        if let Err(failure) = session_check.during(stream_updates(call.state, request, sender.clone())).await {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    Ok(HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }).with(CONTENT_TYPE, content_type))
}

/// Sends existing and future updates until the limit, the timeout or shutdown, or until the client disconnects.
async fn stream_updates(
    state: Arc<ServerState>,
    request: DatabaseUpdatesRequest,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
) {
    let stall_timeout = state.config.limits.stall_timeout;
    let send = |text: Vec<u8>| async {
        timeout(stall_timeout, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok())
    };
    let updates = state.directory.updates();
    let (mut newest, mut stopping) = (updates.newest(), state.stopping.clone());
    let (mut since, mut count) = (request.since, 0);
    let is_list = matches!(request.feed, FeedMode::Normal | FeedMode::Longpoll);
    if is_list && !send(b"{\"results\":[\n".to_vec()).await {
        return;
    }
    loop {
        newest.borrow_and_update();
        let mut text = Vec::new();
        for (number, update) in updates.after(since, request.limit - count) {
            write_row(&request, count, &updates.text(number), &update, &mut text);
            (since, count) = (number, count + 1);
        }
        if !text.is_empty() && !send(text).await {
            return;
        }
        if request.feed == FeedMode::Normal || count >= request.limit || request.feed == FeedMode::Longpoll && count > 0
        {
            break;
        }
        let wait = request.heartbeat.unwrap_or(request.timeout);
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { break },
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => break,
            () = sender.closed() => return,
            () = tokio::time::sleep(wait) => match request.heartbeat {
                Some(_) if send(b"\n".to_vec()).await => {}
                Some(_) => return,
                None => break,
            },
        }
    }
    let last = updates.text(since);
    let end = match request.feed {
        FeedMode::EventSource => return,
        FeedMode::Continuous => format!("{{\"last_seq\":\"{last}\"}}\n"),
        FeedMode::Normal | FeedMode::Longpoll => format!("\n],\n\"last_seq\":\"{last}\"}}\n"),
    };
    send(end.into_bytes()).await;
}

fn write_row(
    request: &DatabaseUpdatesRequest,
    index: usize,
    sequence: &str,
    update: &DatabaseUpdate,
    out: &mut Vec<u8>,
) {
    match request.feed {
        FeedMode::Normal | FeedMode::Longpoll if index > 0 => out.extend_from_slice(b",\n"),
        FeedMode::EventSource => out.extend_from_slice(b"data: "),
        _ => {}
    }
    out.extend_from_slice(b"{\"db_name\":");
    write_string(out, &update.name);
    out.extend_from_slice(format!(",\"type\":\"{}\",\"seq\":\"{sequence}\"}}", update.what).as_bytes());
    match request.feed {
        FeedMode::Continuous => out.push(b'\n'),
        FeedMode::EventSource => out.extend_from_slice(format!("\nid: {sequence}\n\n").as_bytes()),
        FeedMode::Normal | FeedMode::Longpoll => {}
    }
}
