//! Feeds: batches of rows, and the waiting between them.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use stemmadb::Sequence;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::request::{Feed, Request};
use super::rows::{Position, Rows};
use crate::accounts::SessionCheck;
use crate::app::State;
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::{Answer, Body, blocking, streamed};

/// Changes that were left out are counted so far; beyond, only bounded from above.
const PENDING_COUNTED: u64 = 10_000;

/// The answer to a request of changes.
pub(crate) async fn feed(
    state: Arc<State>,
    served: Arc<Served>,
    request: Request,
    session_check: SessionCheck,
) -> Result<Answer> {
    let request = Arc::new(request);
    if request.feed == Feed::Normal {
        return normal(&state, served, request).await;
    }
    let content_type = if request.feed == Feed::EventSource { "text/event-stream" } else { "application/json" };
    let (sender, from) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut live = LiveFeed { state, served, request, sender: sender.clone() };
        if let Err(failure) = session_check.during(live.run()).await.flatten() {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    Ok(Answer::new(StatusCode::OK, Body::Pieces { from, length: None }).with(CONTENT_TYPE, content_type))
}

async fn normal(state: &State, served: Arc<Served>, request: Arc<Request>) -> Result<Answer> {
    streamed(StatusCode::OK, "application/json", state.config.limits.stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut rows = Rows::new(&served, &request, Position { since: request.since, count: 0 })?;
        while rows.write_batch(&mut out.buffer)? {
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(ending(&served, &request, rows.position())?.as_bytes());
        Ok(())
    })
    .await
}

/// What comes after the last row. Blocks.
fn ending(served: &Served, request: &Request, position: Position) -> Result<String> {
    let last = served.sequence_text(position.since);
    let pending = match position.count >= request.limit && !request.descending {
        true => pending(served, position.since)?,
        false => 0,
    };
    Ok(match request.feed {
        Feed::Normal | Feed::Longpoll => format!("\n],\n\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
        Feed::Continuous => format!("{{\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
        Feed::EventSource => String::new(),
    })
}

/// How many changes there are after `since`: counted, where they are not too many for that.
fn pending(served: &Served, since: Sequence) -> Result<u64> {
    let changes = served.database().changes(since)?;
    Ok(match changes.count_up_to(PENDING_COUNTED)? {
        PENDING_COUNTED => changes.last_sequence().get() - since.get(),
        count => count,
    })
}

/// A feed that waits.
struct LiveFeed {
    state: Arc<State>,
    served: Arc<Served>,
    request: Arc<Request>,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
}

/// Why a feed stopped waiting.
enum WakeReason {
    /// There is something new.
    News,
    /// It is time to show that the feed lives.
    Beat,
    /// It is over.
    End,
}

impl LiveFeed {
    async fn run(&mut self) -> Result<()> {
        let mut published = self.served.published();
        let mut stopping = self.state.stopping.clone();
        let mut position = Position { since: self.request.since, count: 0 };
        if self.request.feed == Feed::Longpoll {
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
            let is_enough =
                position.count >= self.request.limit || (self.request.feed == Feed::Longpoll && position.count > 0);
            if is_enough {
                break;
            }
            loop {
                match self.wait(&mut published, &mut stopping, idle_since).await? {
                    WakeReason::News => break,
                    WakeReason::Beat => self.beat().await?,
                    WakeReason::End => return self.end(position).await,
                }
            }
        }
        self.end(position).await
    }

    /// Sends everything there is for now.
    async fn catch_up(&mut self, position: Position) -> Result<Position> {
        let (served, request) = (self.served.clone(), self.request.clone());
        let mut rows = blocking(move || Rows::new(&served, &request, position)).await?;
        loop {
            let (batch, has_more);
            let (served, request) = (self.served.clone(), self.request.clone());
            (rows, batch, has_more) = blocking(move || {
                // Whoever reads slowly holds no state for long; only downwards there is no position to go on from.
                if !request.descending {
                    rows = Rows::new(&served, &request, rows.position())?;
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
        let next = match self.request.heartbeat {
            Some(heartbeat) => Instant::now() + heartbeat,
            None => idle_since + self.request.timeout,
        };
        tokio::select! {
            changed = published.changed() => Ok(if changed.is_ok() { WakeReason::News } else { WakeReason::End }),
            _ = stopping.wait_for(|stopping| *stopping) => Ok(WakeReason::End),
            () = sleep_until(next) => Ok(if self.request.heartbeat.is_some() { WakeReason::Beat } else { WakeReason::End }),
            () = self.sender.closed() => Err(gone()),
        }
    }

    async fn beat(&self) -> Result<()> {
        let beat = match self.request.feed {
            Feed::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        };
        self.send(beat.into()).await
    }

    async fn end(&self, position: Position) -> Result<()> {
        let (served, request) = (self.served.clone(), self.request.clone());
        let ending = blocking(move || ending(&served, &request, position)).await?;
        self.send(ending.into()).await
    }

    async fn send(&self, piece: Bytes) -> Result<()> {
        let patience = self.state.config.limits.stall_timeout;
        match timeout(patience, self.sender.send(Ok(piece))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(gone()),
        }
    }
}

fn gone() -> Failure {
    Failure::internal("the client is gone")
}
