//! A feed that stays open: sends existing changes, and waits for further ones.

use std::sync::Arc;

use stemmadb::Sequence;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::feed::{ending, is_cut_off};
use super::filter::ChangesFilter;
use super::format::FeedClient;
use super::group::RowBatch;
use super::hub::{FeedEvent, FeedHub, Subscription};
use super::request::{ChangesRequest, FeedMode};
use super::rows::{ChangeRows, FeedPosition};
use crate::app::ServerState;
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{blocking, initial_read};

/// A feed that stays open and waits for changes.
pub(super) struct LiveFeed {
    served: Arc<ServedDatabase>,
    request: Arc<ChangesRequest>,
    client: FeedClient,
    stopping: watch::Receiver<bool>,
    position: FeedPosition,
    /// The time of the last row.
    idle_since: Instant,
}

/// How a feed learns of new changes.
enum ChangeSource {
    /// By the rows of its group.
    Group(Subscription),
    /// By the newest sequence: it reads for itself.
    Published(watch::Receiver<Sequence>),
}

/// Why a waiting feed wakes up.
enum WakeReason {
    /// Its group has new rows.
    Rows(Arc<RowBatch>),
    /// It has to read for itself.
    Changes,
    /// A heartbeat has to be sent.
    Heartbeat,
    /// The feed ends: timeout, shutdown, or the database was closed.
    End,
}

impl LiveFeed {
    pub(super) fn new(
        state: &ServerState,
        served: Arc<ServedDatabase>,
        request: Arc<ChangesRequest>,
        client: FeedClient,
    ) -> Self {
        let stopping = state.stopping.clone();
        let position = FeedPosition { since: request.since, count: 0 };
        LiveFeed { served, request, client, stopping, position, idle_since: Instant::now() }
    }

    /// Runs the feed to its end.
    ///
    /// # Errors
    /// If the client is gone, or the changes can't be read.
    pub(super) async fn run(&mut self) -> Result<()> {
        if self.request.feed == FeedMode::Longpoll {
            self.client.send("{\"results\":[\n".into()).await?;
        }
        loop {
            // Before the feed reads for itself, so that nothing is missed in between.
            let mut source = match FeedHub::subscribe(&self.served, &self.request) {
                Some(subscription) => ChangeSource::Group(subscription),
                None => ChangeSource::Published(self.served.published()),
            };
            if let ChangeSource::Published(published) = &mut source {
                published.borrow_and_update();
            }
            self.catch_up().await?;
            if self.is_complete() || !self.follow(&mut source).await? {
                return self.end().await;
            }
        }
    }

    fn is_complete(&self) -> bool {
        let FeedPosition { count, .. } = self.position;
        count >= self.request.limit || self.request.feed == FeedMode::Longpoll && count > 0
    }

    /// Sends all changes up to the current sequence.
    async fn catch_up(&mut self) -> Result<()> {
        let mut rows: Option<ChangeRows> = None;
        loop {
            let (served, request, position) = (self.served.clone(), self.request.clone(), self.position);
            let read = move || {
                // A new snapshot per batch, so that a slow reader does not pin an old one. A descending feed has no
                // position to resume from and keeps its snapshot.
                let mut rows = match rows {
                    Some(rows) if request.descending => rows,
                    _ => ChangeRows::new(&served, &request, position)?,
                };
                let mut batch = Vec::new();
                let has_more = rows.write_batch(&mut batch)?;
                Ok((rows, batch, has_more))
            };
            let (next, batch, has_more) = match &self.request.filter {
                // A function may take seconds.
                ChangesFilter::Function(_) => blocking(read).await?,
                _ => initial_read(read).await?,
            };
            self.advance(next.position());
            rows = Some(next);
            if !batch.is_empty() {
                self.client.send(batch.into()).await?;
            }
            if !has_more {
                return Ok(());
            }
        }
    }

    fn advance(&mut self, position: FeedPosition) {
        if position.count > self.position.count {
            self.idle_since = Instant::now();
        }
        self.position = position;
    }

    /// Sends what the source has, until the feed has to read for itself (true) or ends (false).
    async fn follow(&mut self, source: &mut ChangeSource) -> Result<bool> {
        loop {
            match self.wait(source).await? {
                WakeReason::Rows(batch) => self.send_rows(&batch).await?,
                WakeReason::Changes => return Ok(true),
                WakeReason::Heartbeat => self.send_heartbeat().await?,
                WakeReason::End => {
                    if let ChangeSource::Group(subscription) = source
                        && let Some(reached) = subscription.reached()
                    {
                        self.position.since = self.position.since.max(reached);
                    }
                    return Ok(false);
                }
            }
            if self.is_complete() {
                return Ok(false);
            }
        }
    }

    async fn wait(&mut self, source: &mut ChangeSource) -> Result<WakeReason> {
        let deadline = match self.request.heartbeat {
            Some(heartbeat) => Instant::now() + heartbeat,
            None => self.idle_since + self.request.timeout,
        };
        let served = &self.served;
        let changed = async {
            match source {
                ChangeSource::Group(subscription) => match subscription.next().await {
                    FeedEvent::Rows(batch) => WakeReason::Rows(batch),
                    FeedEvent::Missed if served.is_closed() => WakeReason::End,
                    FeedEvent::Missed => WakeReason::Changes,
                },
                ChangeSource::Published(published) => match published.changed().await {
                    Ok(()) => WakeReason::Changes,
                    Err(_) => WakeReason::End,
                },
            }
        };
        tokio::select! {
            reason = changed => Ok(reason),
            _ = self.stopping.wait_for(|stopping| *stopping) => Ok(WakeReason::End),
            () = sleep_until(deadline) => match self.request.heartbeat {
                Some(_) => Ok(WakeReason::Heartbeat),
                None => Ok(WakeReason::End),
            },
            failure = self.client.left() => Err(failure),
        }
    }

    /// Sends the rows of a batch that were not sent yet.
    async fn send_rows(&mut self, batch: &RowBatch) -> Result<()> {
        let FeedPosition { since, count } = self.position;
        let rows = batch.rows_after(since, self.request.limit.saturating_sub(count), self.request.feed);
        let Some(rows) = rows else { return Ok(()) };
        self.advance(FeedPosition { since: rows.last, count: count + rows.count });
        self.client.send(rows.text).await
    }

    async fn send_heartbeat(&self) -> Result<()> {
        self.client.send(self.request.feed.heartbeat().into()).await
    }

    async fn end(&self) -> Result<()> {
        let (served, request, position) = (self.served.clone(), self.request.clone(), self.position);
        let ending = match is_cut_off(&request, position) {
            true => initial_read(move || ending(&served, &request, position)).await?,
            false => ending(&served, &request, position)?,
        };
        self.client.send(ending.into()).await
    }
}
