//! The session of a live query: sends the initial result and then deltas until it ends.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::{Delta, DeltaEvent, Sequence, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::message::{MessageWriter, WatchMessage};
use super::request::WatchRequest;
use super::transport::{ClientGone, Transport};
use super::window::WatchWindow;
use crate::accounts::SessionCheck;
use crate::app::ServerState;
use crate::auth::{Security, USERS_DATABASE, User};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{initial_read, notified_read};

/// The size in bytes at which a batch of messages is sent.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// A delta with more events than this is not read as a whole: its changes are read in batches instead.
const EVENTS_MAX: u64 = 1_000;

/// The state of a live query.
pub(super) struct WatchSession {
    pub(super) state: Arc<ServerState>,
    pub(super) served: Arc<ServedDatabase>,
    user: User,
    security: Arc<Security>,
    pub(super) request: Arc<WatchRequest>,
    pub(super) transport: Transport,
    pub(super) writer: MessageWriter,
    /// The sequence of the result that the client has.
    sent_sequence: Sequence,
    window: WatchWindow,
}

/// Why a live query ends.
pub(super) enum WatchEnd {
    ClientGone,
    /// The server shuts down or the database is closed. The client can reconnect and resume.
    Closed,
    Failed(Failure),
}

impl From<ClientGone> for WatchEnd {
    fn from(_: ClientGone) -> Self {
        WatchEnd::ClientGone
    }
}

impl From<Failure> for WatchEnd {
    fn from(failure: Failure) -> Self {
        WatchEnd::Failed(failure)
    }
}

type MessageIter = Box<dyn Iterator<Item = Result<WatchMessage>> + Send>;

/// The result of polling the library's watch.
enum WatchUpdate {
    None,
    /// Complete deltas, the sequence of the last, and whether there may be more.
    Deltas(Vec<WatchMessage>, Sequence, bool),
    /// The changes have to be read from the database: a delta is too large, or the result is sorted.
    Resync,
}

impl WatchSession {
    pub(super) fn new(
        state: Arc<ServerState>,
        served: Arc<ServedDatabase>,
        user: User,
        request: WatchRequest,
        transport: Transport,
    ) -> Self {
        let writer = MessageWriter { served: served.clone(), fields: request.fields.clone().map(Arc::new) };
        let (request, security) = (Arc::new(request), served.security());
        WatchSession {
            state,
            served,
            user,
            security,
            request,
            transport,
            writer,
            sent_sequence: Sequence::ZERO,
            window: WatchWindow::default(),
        }
    }

    /// Runs the live query until it ends; sends the error if it fails.
    pub(super) async fn run(mut self, session_check: SessionCheck) {
        let ended = session_check.during(self.stream()).await.unwrap_or_else(|failure| Err(failure.into()));
        self.end(ended).await;
    }

    /// Sends the error if the session failed.
    pub(super) async fn end(&self, ended: Result<(), WatchEnd>) {
        if let Err(WatchEnd::Failed(failure)) = ended {
            // If this can't be sent either, the client is gone.
            self.transport.send(vec![WatchMessage::failure(&failure)], self.stall_timeout()).await.ok();
        }
    }

    pub(super) fn stall_timeout(&self) -> Duration {
        self.state.config.limits.stall_timeout
    }

    async fn stream(&mut self) -> Result<(), WatchEnd> {
        let changed = Arc::new(Notify::new());
        let mut stopping = self.state.stopping.clone();
        let mut watch = self.open(changed.clone()).await?;
        self.send_initial().await?;
        loop {
            let heartbeat_at = Instant::now() + self.request.heartbeat;
            tokio::select! {
                () = changed.notified() => watch = self.send_deltas(watch).await?,
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return Err(WatchEnd::Closed),
                () = self.transport.closed() => return Err(WatchEnd::ClientGone),
                () = sleep_until(heartbeat_at) => self.transport.send_heartbeat(self.stall_timeout()).await?,
            }
        }
    }

    /// Opens the library's watch. It is opened before the initial result is read, so that no change is missed.
    async fn open(&self, changed: Arc<Notify>) -> Result<Watch> {
        let (served, request) = (self.served.clone(), self.request.clone());
        initial_read(move || {
            let mut watch = served.database().watch(request.selector.clone())?;
            watch.notify(move || changed.notify_one());
            // Discard the initial result: the session reads it separately, in batches, at the client's speed.
            watch.next_delta()?;
            Ok(watch)
        })
        .await
    }

    /// Sends the initial result or, if the client has one already, the changes since.
    async fn send_initial(&mut self) -> Result<(), WatchEnd> {
        let newest = self.served.database().sequence();
        let since = self.request.since.filter(|since| *since > Sequence::ZERO && *since <= newest);
        match since {
            Some(since) if self.request.window.is_none() && self.request.readable.is_none() => {
                self.sent_sequence = since;
                self.resync().await
            }
            _ => {
                self.transport.send(vec![WatchMessage::reset()], self.stall_timeout()).await?;
                match self.request.window {
                    Some(_) => self.resync_window().await,
                    None => self.send_full_result().await,
                }
            }
        }
    }

    /// Sends the whole result in its own snapshot.
    async fn send_full_result(&mut self) -> Result<(), WatchEnd> {
        let (writer, request) = (self.writer.clone(), self.request.clone());
        let (messages, reached) = initial_read(move || {
            let snapshot = writer.served.database().snapshot()?;
            let reached = snapshot.sequence();
            let found = snapshot.find(request.selector.clone()).run()?;
            let messages = found.map(move |document| writer.row("enter", &snapshot, &document?, None));
            Ok((Box::new(messages) as MessageIter, reached))
        })
        .await?;
        self.send_all(messages, reached).await
    }

    /// Reads and sends what changed since the client's last result.
    async fn resync(&mut self) -> Result<(), WatchEnd> {
        if self.request.window.is_some() {
            return self.resync_window().await;
        }
        if self.request.readable.is_some() {
            self.transport.send(vec![WatchMessage::reset()], self.stall_timeout()).await?;
            return self.send_full_result().await;
        }
        let (writer, request, since) = (self.writer.clone(), self.request.clone(), self.sent_sequence);
        let (messages, reached) = initial_read(move || messages_since(writer, &request, since)).await?;
        self.send_all(messages, reached).await
    }

    async fn resync_window(&mut self) -> Result<(), WatchEnd> {
        let (writer, request) = (self.writer.clone(), self.request.clone());
        let mut window = std::mem::take(&mut self.window);
        let (messages, reached);
        (self.window, messages, reached) = initial_read(move || {
            let snapshot = writer.served.database().snapshot()?;
            let messages = match &request.window {
                Some(query) => window.update(&writer, query, &snapshot)?,
                None => Vec::new(),
            };
            Ok((window, messages, snapshot.sequence()))
        })
        .await?;
        self.send_all(Box::new(messages.into_iter().map(Ok)), reached).await
    }

    /// Sends messages in batches, and then the sequence `reached` that completes them.
    async fn send_all(&mut self, mut messages: MessageIter, reached: Sequence) -> Result<(), WatchEnd> {
        loop {
            let (batch, is_last);
            (messages, batch, is_last) = initial_read(move || {
                let (batch, is_last) = next_batch(&mut messages)?;
                Ok((messages, batch, is_last))
            })
            .await?;
            if !batch.is_empty() {
                self.transport.send(batch, self.stall_timeout()).await?;
            }
            if is_last {
                break;
            }
        }
        self.sent_sequence = reached;
        let state = self.writer.state(reached);
        Ok(self.transport.send(vec![state], self.stall_timeout()).await?)
    }

    /// Sends deltas until the library's watch has no more.
    async fn send_deltas(&mut self, mut watch: Watch) -> Result<Watch, WatchEnd> {
        loop {
            if !self.may_read() {
                return Err(SessionCheck::refusal().into());
            }
            let (writer, since, is_window) = (self.writer.clone(), self.sent_sequence, self.request.window.is_some());
            let mut update = WatchUpdate::None;
            if !is_window {
                // Waking another thread for what is in memory would take longer than to write it.
                let next = |watch: &mut Watch| Ok(watch.next_in_memory(BATCH_BYTES));
                update = next_deltas(&mut watch, &writer, since, is_window, next)?;
            }
            if matches!(update, WatchUpdate::None) {
                (watch, update) = notified_read(move || {
                    let next = |watch: &mut Watch| watch.next_within(Duration::ZERO);
                    let update = next_deltas(&mut watch, &writer, since, is_window, next)?;
                    Ok((watch, update))
                })
                .await?;
            }
            match update {
                // A watch of a closed database returns no delta either.
                WatchUpdate::None if self.served.is_closed() => return Err(WatchEnd::Closed),
                WatchUpdate::None => return Ok(watch),
                WatchUpdate::Resync => self.resync().await?,
                WatchUpdate::Deltas(messages, reached, has_more) => {
                    self.sent_sequence = reached;
                    self.transport.send(messages, self.stall_timeout()).await?;
                    if !has_more && !self.served.is_closed() {
                        return Ok(watch);
                    }
                }
            }
        }
    }

    /// Whether the user may still read the database.
    pub(super) fn may_read(&self) -> bool {
        may_read(&self.served, &self.user, &self.security)
    }
}

/// Whether a user who might read a database when its `_security` was `begun` still may. Roles are checked at intervals.
pub(super) fn may_read(served: &ServedDatabase, user: &User, begun: &Arc<Security>) -> bool {
    let security = served.security();
    let may_read = security.is_admin(user) || served.name() != USERS_DATABASE && security.is_member(user);
    may_read || Arc::ptr_eq(&security, begun)
}

fn next_batch(messages: &mut MessageIter) -> Result<(Vec<WatchMessage>, bool)> {
    let (mut batch, mut byte_count) = (Vec::new(), 0);
    for message in messages {
        let message = message?;
        byte_count += message.json.len();
        batch.push(message);
        if byte_count >= BATCH_BYTES {
            return Ok((batch, false));
        }
    }
    Ok((batch, true))
}

/// Reads the deltas that `next` returns, up to the size of a batch. Blocks if `next` does.
fn next_deltas(
    watch: &mut Watch,
    writer: &MessageWriter,
    since: Sequence,
    is_window: bool,
    next: impl Fn(&mut Watch) -> stemmadb::Result<Option<Delta>>,
) -> Result<WatchUpdate> {
    let snapshot = writer.served.database().snapshot()?;
    let (mut messages, mut byte_count, mut reached) = (Vec::new(), 0, since);
    let mut has_changes = false;
    while byte_count < BATCH_BYTES {
        let Some(delta) = next(watch)? else { break };
        // A resync may have sent newer changes than the watch has delivered.
        if delta.sequence() <= since {
            continue;
        }
        has_changes = true;
        if is_window {
            continue;
        }
        if delta.len() > EVENTS_MAX {
            // Discard earlier deltas of this batch: the resync reads their changes too.
            return Ok(WatchUpdate::Resync);
        }
        for event in delta.events() {
            messages.push(match event? {
                DeltaEvent::Added(document) => writer.row("enter", &snapshot, &document, None)?,
                DeltaEvent::Changed(document) => writer.row("change", &snapshot, &document, None)?,
                DeltaEvent::Removed { id, deleted } => WatchMessage::leave(id.as_str(), deleted),
            });
            byte_count += messages.last().map_or(0, |message| message.json.len());
        }
        reached = delta.sequence();
        messages.push(writer.state(reached));
    }
    Ok(match (has_changes, is_window) {
        (false, _) => WatchUpdate::None,
        (true, true) => WatchUpdate::Resync,
        (true, false) => WatchUpdate::Deltas(messages, reached, watch.has_unread()),
    })
}

/// Messages about each document that was written after `since`: its current row, or that it left the result. Blocks,
/// and so does the iterator.
fn messages_since(writer: MessageWriter, request: &WatchRequest, since: Sequence) -> Result<(MessageIter, Sequence)> {
    let snapshot = writer.served.database().snapshot()?;
    let changes = writer.served.database().changes(since)?;
    let reached = changes.last_sequence();
    let mut matching = changes.clone().documents(true).selector(&request.selector)?.run().peekable();
    let changes = changes.run().filter(|change| !change.as_ref().is_ok_and(|change| change.id.is_design()));
    let messages = changes.map(move |change| {
        let change = change?;
        // Both iterators read the same changes in the same order; `matching` returns a subset.
        let is_same = |other: &stemmadb::Result<stemmadb::Change>| match other {
            Ok(other) => other.sequence == change.sequence,
            Err(_) => true,
        };
        let document = matching.next_if(is_same).transpose()?.and_then(|matching| matching.document);
        match document.filter(|document| !document.is_deleted()) {
            // `snapshot.get` excludes expired documents that were not deleted yet.
            Some(document) if snapshot.get(change.id.as_str())?.is_some() => {
                writer.row("enter", &snapshot, &document, None)
            }
            _ => Ok(WatchMessage::leave(change.id.as_str(), change.deleted)),
        }
    });
    Ok((Box::new(messages), reached))
}
