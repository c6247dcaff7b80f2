//! Responses of `_changes`: a single list, or a live feed that waits for further changes.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use stemmadb::Sequence;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::request::{ChangesRequest, FeedMode};
use super::rows::{ChangeRows, FeedPosition};
use crate::accounts::SessionCheck;
use crate::app::ServerState;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{Body, HttpResponse, blocking, streamed};

/// The value of `pending` is exact up to this count; larger values are an upper bound derived from sequences.
const PENDING_COUNTED: u64 = 10_000;

/// Creates the response to a `_changes` request.
pub(crate) async fn feed(
    state: Arc<ServerState>,
    served: Arc<ServedDatabase>,
    request: ChangesRequest,
    session_check: SessionCheck,
) -> Result<HttpResponse> {
    let request = Arc::new(request);
    if request.feed == FeedMode::Normal {
        return normal(&state, served, request).await;
    }
    let content_type = if request.feed == FeedMode::EventSource { "text/event-stream" } else { "application/json" };
    let (sender, from) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut live = LiveFeed { state, served, request, sender: sender.clone() };
        if let Err(failure) = session_check.during(live.run()).await.flatten() {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    Ok(HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }).with(CONTENT_TYPE, content_type))
}

async fn normal(
    state: &ServerState,
    served: Arc<ServedDatabase>,
    request: Arc<ChangesRequest>,
) -> Result<HttpResponse> {
    streamed(StatusCode::OK, "application/json", state.config.limits.stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut rows = ChangeRows::new(&served, &request, FeedPosition { since: request.since, count: 0 })?;
        while rows.write_batch(&mut out.buffer)? {
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(ending(&served, &request, rows.position())?.as_bytes());
        Ok(())
    })
    .await
}

/// The text after the last row. Blocks.
fn ending(served: &ServedDatabase, request: &ChangesRequest, position: FeedPosition) -> Result<String> {
    let last = served.sequence_text(position.since);
    let pending = match position.count >= request.limit && !request.descending {
        true => pending(served, position.since)?,
        false => 0,
    };
    Ok(match request.feed {
        FeedMode::Normal | FeedMode::Longpoll => format!("\n],\n\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
        FeedMode::Continuous => format!("{{\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
        FeedMode::EventSource => String::new(),
    })
}

/// The number of changes after `since`: exact below [`PENDING_COUNTED`], otherwise an upper bound.
fn pending(served: &ServedDatabase, since: Sequence) -> Result<u64> {
    let changes = served.database().changes(since)?;
    Ok(match changes.count_up_to(PENDING_COUNTED)? {
        PENDING_COUNTED => changes.last_sequence().get() - since.get(),
        count => count,
    })
}

/// A feed that stays open and waits for changes.
struct LiveFeed {
    state: Arc<ServerState>,
    served: Arc<ServedDatabase>,
    request: Arc<ChangesRequest>,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
}

/// Why a waiting feed wakes up.
enum WakeReason {
    /// The database has new changes.
    Changes,
    /// A heartbeat has to be sent.
    Heartbeat,
    /// The feed ends: timeout, shutdown, or the database was closed.
    End,
}

impl LiveFeed {
    async fn run(&mut self) -> Result<()> {
        let mut published = self.served.published();
        let mut stopping = self.state.stopping.clone();
        let mut position = FeedPosition { since: self.request.since, count: 0 };
        if self.request.feed == FeedMode::Longpoll {
            self.send("{\"results\":[\n".into()).await?;
        }
        let mut idle_since = Instant::now();
        loop {
            published.borrow_and_update();
            let before = position.count;
            position = self.catch_up(position).await?;
            if position.count > before {
                idle_since = Instant::now();
            }
            let is_complete =
                position.count >= self.request.limit || (self.request.feed == FeedMode::Longpoll && position.count > 0);
            if is_complete {
                break;
            }
            loop {
                match self.wait(&mut published, &mut stopping, idle_since).await? {
                    WakeReason::Changes => break,
                    WakeReason::Heartbeat => self.send_heartbeat().await?,
                    WakeReason::End => return self.end(position).await,
                }
            }
        }
        self.end(position).await
    }

    /// Sends all changes up to the current sequence.
    async fn catch_up(&mut self, position: FeedPosition) -> Result<FeedPosition> {
        let (served, request) = (self.served.clone(), self.request.clone());
        let mut rows = blocking(move || ChangeRows::new(&served, &request, position)).await?;
        loop {
            let (batch, has_more);
            let (served, request) = (self.served.clone(), self.request.clone());
            (rows, batch, has_more) = blocking(move || {
                // A new snapshot per batch, so that a slow reader does not pin an old one. A descending feed has no
                // position to resume from and keeps its snapshot.
                if !request.descending {
                    rows = ChangeRows::new(&served, &request, rows.position())?;
                }
                let mut batch = Vec::new();
                let has_more = rows.write_batch(&mut batch)?;
                Ok((rows, batch, has_more))
            })
            .await?;
            if !batch.is_empty() {
                self.send(batch.into()).await?;
            }
            if !has_more {
                return Ok(rows.position());
            }
        }
    }

    async fn wait(
        &self,
        published: &mut watch::Receiver<Sequence>,
        stopping: &mut watch::Receiver<bool>,
        idle_since: Instant,
    ) -> Result<WakeReason> {
        let deadline = match self.request.heartbeat {
            Some(heartbeat) => Instant::now() + heartbeat,
            None => idle_since + self.request.timeout,
        };
        tokio::select! {
            changed = published.changed() => Ok(if changed.is_ok() { WakeReason::Changes } else { WakeReason::End }),
            _ = stopping.wait_for(|stopping| *stopping) => Ok(WakeReason::End),
            () = sleep_until(deadline) => match self.request.heartbeat {
                Some(_) => Ok(WakeReason::Heartbeat),
                None => Ok(WakeReason::End),
            },
            () = self.sender.closed() => Err(client_gone()),
        }
    }

    async fn send_heartbeat(&self) -> Result<()> {
        let heartbeat = match self.request.feed {
            FeedMode::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        };
        self.send(heartbeat.into()).await
    }

    async fn end(&self, position: FeedPosition) -> Result<()> {
        let (served, request) = (self.served.clone(), self.request.clone());
        let ending = blocking(move || ending(&served, &request, position)).await?;
        self.send(ending.into()).await
    }

    async fn send(&self, chunk: Bytes) -> Result<()> {
        let stall_timeout = self.state.config.limits.stall_timeout;
        match timeout(stall_timeout, self.sender.send(Ok(chunk))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(client_gone()),
        }
    }
}

fn client_gone() -> Failure {
    Failure::internal("the client disconnected")
}
