//! The feed of what happens to databases.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::app::{Call, State};
use crate::directory::Update;
use crate::error::{Failure, Result};
use crate::http::{Answer, Body, write_string};

/// How the feed goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

/// What was asked.
struct Asked {
    feed: Feed,
    since: u64,
    limit: usize,
    heartbeat: Option<Duration>,
    timeout: Duration,
}

/// `GET /_db_updates`
pub(crate) async fn updates(call: Call) -> Result<Answer> {
    let query = &call.query;
    let updates = call.state.directory.updates();
    let feed = match query.text("feed") {
        Some("longpoll") => Feed::Longpoll,
        Some("continuous") => Feed::Continuous,
        Some("eventsource") => Feed::EventSource,
        _ => Feed::Normal,
    };
    let since = match query.text("since") {
        Some("now") => *updates.newest().borrow(),
        Some(text) => updates.parse(text),
        None => 0,
    };
    let heartbeat = match query.text("heartbeat") {
        None | Some("false") => None,
        Some("true") => Some(60_000),
        Some(text) => Some(text.parse().map_err(|_| Failure::bad_request("heartbeat is a number of milliseconds"))?),
    };
    let asked = Asked {
        feed,
        since,
        limit: query.number("limit")?.unwrap_or(usize::MAX),
        heartbeat: heartbeat.map(|ms: u64| Duration::from_millis(ms.max(10))),
        timeout: Duration::from_millis(query.number("timeout")?.unwrap_or(60_000)),
    };
    let content_type = if feed == Feed::EventSource { "text/event-stream" } else { "application/json" };
    let (sender, from) = mpsc::channel(4);
    let session_check = call.session_check();
    tokio::spawn(async move {
        if let Err(failure) = session_check.during(tell(call.state, asked, sender.clone())).await {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    Ok(Answer::new(StatusCode::OK, Body::Pieces { from, length: None }).with(CONTENT_TYPE, content_type))
}

/// Sends what there is, and what comes, until it is enough, nothing more comes, or the client is gone.
async fn tell(state: Arc<State>, asked: Asked, sender: mpsc::Sender<std::io::Result<Bytes>>) {
    let patience = state.config.limits.stall_timeout;
    let send =
        |text: Vec<u8>| async { timeout(patience, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok()) };
    let updates = state.directory.updates();
    let (mut newest, mut stopping) = (updates.newest(), state.stopping.clone());
    let (mut since, mut count) = (asked.since, 0);
    let is_list = matches!(asked.feed, Feed::Normal | Feed::Longpoll);
    if is_list && !send(b"{\"results\":[\n".to_vec()).await {
        return;
    }
    loop {
        newest.borrow_and_update();
        let mut text = Vec::new();
        for (number, update) in updates.after(since, asked.limit - count) {
            write_row(&asked, count, &updates.text(number), &update, &mut text);
            (since, count) = (number, count + 1);
        }
        if !text.is_empty() && !send(text).await {
            return;
        }
        if asked.feed == Feed::Normal || count >= asked.limit || asked.feed == Feed::Longpoll && count > 0 {
            break;
        }
        let wait = asked.heartbeat.unwrap_or(asked.timeout);
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { break },
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => break,
            () = sender.closed() => return,
            () = tokio::time::sleep(wait) => match asked.heartbeat {
                Some(_) if send(b"\n".to_vec()).await => {}
                Some(_) => return,
                None => break,
            },
        }
    }
    let last = updates.text(since);
    let end = match asked.feed {
        Feed::EventSource => return,
        Feed::Continuous => format!("{{\"last_seq\":\"{last}\"}}\n"),
        Feed::Normal | Feed::Longpoll => format!("\n],\n\"last_seq\":\"{last}\"}}\n"),
    };
    send(end.into_bytes()).await;
}

fn write_row(asked: &Asked, at: usize, sequence: &str, update: &Update, out: &mut Vec<u8>) {
    match asked.feed {
        Feed::Normal | Feed::Longpoll if at > 0 => out.extend_from_slice(b",\n"),
        Feed::EventSource => out.extend_from_slice(b"data: "),
        _ => {}
    }
    out.extend_from_slice(b"{\"db_name\":");
    write_string(out, &update.name);
    out.extend_from_slice(format!(",\"type\":\"{}\",\"seq\":\"{sequence}\"}}", update.what).as_bytes());
    match asked.feed {
        Feed::Continuous => out.push(b'\n'),
        Feed::EventSource => out.extend_from_slice(format!("\nid: {sequence}\n\n").as_bytes()),
        Feed::Normal | Feed::Longpoll => {}
    }
}
