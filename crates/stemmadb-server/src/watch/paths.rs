//! The session of a live query of paths: sends each change of a value at a matching path.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::{PathSubscription, Sequence};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::message::WatchMessage;
use super::session::{BATCH_BYTES, WatchEnd, WatchSession};
use crate::accounts::SessionCheck;
use crate::error::Result;
use crate::http::{initial_read, notified_read};

/// The state of a live query of paths.
pub(super) struct PathSession {
    session: WatchSession,
    /// The sequence of the last change that was sent, if its transaction may have more.
    open_sequence: Option<Sequence>,
}

impl PathSession {
    pub(super) fn new(session: WatchSession) -> Self {
        PathSession { session, open_sequence: None }
    }

    /// Runs until the client disconnects or the database is closed; sends the error if it fails.
    pub(super) async fn run(mut self, session_check: SessionCheck) {
        let ended = session_check.during(self.stream()).await.unwrap_or_else(|failure| Err(failure.into()));
        self.session.end(ended).await;
    }

    async fn stream(&mut self) -> Result<(), WatchEnd> {
        let session = &self.session;
        let changed = Arc::new(Notify::new());
        let mut stopping = session.state.stopping.clone();
        let newest = session.served.database().sequence();
        let (mut messages, mut since) = (Vec::new(), newest);
        match session.request.since {
            Some(known) if known > Sequence::ZERO && known <= newest => since = known,
            // The position is of another database: the client does not know what changed.
            Some(_) => messages.push(WatchMessage::reset()),
            None => {}
        }
        messages.push(session.writer.state(since));
        let mut subscription = self.open(since, changed.clone()).await?;
        self.session.transport.send(messages, self.session.stall_timeout()).await?;
        loop {
            let session = &self.session;
            let heartbeat_at = Instant::now() + session.request.heartbeat;
            tokio::select! {
                () = changed.notified() => subscription = self.send_changes(subscription).await?,
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return Err(WatchEnd::Closed),
                () = session.transport.closed() => return Err(WatchEnd::ClientGone),
                () = sleep_until(heartbeat_at) => session.transport.send_heartbeat(session.stall_timeout()).await?,
            }
        }
    }

    async fn open(&self, since: Sequence, changed: Arc<Notify>) -> Result<PathSubscription> {
        let (served, request) = (self.session.served.clone(), self.session.request.clone());
        initial_read(move || {
            let mut subscription = served.database().subscribe_paths(&request.paths)?;
            if let Some(readable) = &request.readable {
                subscription = subscription.selector(readable)?;
            }
            let subscription = subscription.since(since)?;
            subscription.notify(move || changed.notify_one());
            Ok(subscription)
        })
        .await
    }

    /// Sends changes until there are no more.
    async fn send_changes(&mut self, mut subscription: PathSubscription) -> Result<PathSubscription, WatchEnd> {
        loop {
            if !self.session.may_read() {
                return Err(SessionCheck::refusal().into());
            }
            let (writer, mut open_sequence) = (self.session.writer.clone(), self.open_sequence);
            let (messages, is_last);
            (subscription, messages, open_sequence, is_last) = notified_read(move || {
                let snapshot = writer.served.database().snapshot()?;
                let (mut messages, mut byte_count, mut is_last) = (Vec::new(), 0, false);
                while byte_count < BATCH_BYTES && !is_last {
                    let next = subscription.next_within(Duration::ZERO)?;
                    is_last = next.is_none();
                    let sequence = next.as_ref().map(|change| change.sequence);
                    // The transaction of the previous change has no more.
                    if let Some(complete) = open_sequence.filter(|open| sequence != Some(*open)) {
                        messages.push(writer.state(complete));
                    }
                    open_sequence = sequence;
                    if let Some(change) = next {
                        messages.push(writer.path_change(&snapshot, &change)?);
                        byte_count += messages.last().map_or(0, |message| message.json.len());
                    }
                }
                Ok((subscription, messages, open_sequence, is_last))
            })
            .await?;
            self.open_sequence = open_sequence;
            if !messages.is_empty() {
                self.session.transport.send(messages, self.session.stall_timeout()).await?;
            }
            match is_last {
                true if self.session.served.is_closed() => return Err(WatchEnd::Closed),
                true => return Ok(subscription),
                false => {}
            }
        }
    }
}
