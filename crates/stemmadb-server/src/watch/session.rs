//! A watch as it goes on.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::{DeltaEvent, Sequence, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::message::{Message, MessageWriter};
use super::request::Request;
use super::transport::{ClientGone, Transport};
use super::window::Window;
use crate::accounts::SessionCheck;
use crate::app::State;
use crate::auth::{USERS_DATABASE, User};
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::blocking;

/// Messages are sent together up to about so much text.
const PIECE_BYTES: usize = 64 << 10;

/// A delta with more events is looked up piece by piece, as after a pause.
const EVENTS_MAX: u64 = 1_000;

/// A watch.
pub(super) struct WatchSession {
    state: Arc<State>,
    served: Arc<Served>,
    user: User,
    request: Arc<Request>,
    transport: Transport,
    writer: MessageWriter,
    /// The client has the answer of this sequence.
    told: Sequence,
    window: Window,
}

/// Why a watch is over.
enum WatchEnd {
    Gone,
    /// The server stops, or the database is closed: whoever comes back goes on.
    Closed,
    Failed(Failure),
}

impl From<ClientGone> for WatchEnd {
    fn from(_: ClientGone) -> Self {
        WatchEnd::Gone
    }
}

impl From<Failure> for WatchEnd {
    fn from(failure: Failure) -> Self {
        WatchEnd::Failed(failure)
    }
}

type Messages = Box<dyn Iterator<Item = Result<Message>> + Send>;

/// What the library's watch had to say.
enum WatchUpdate {
    Nothing,
    /// Whole steps, and the sequence that they lead to.
    Steps(Vec<Message>, Sequence),
    /// More than is told at once, or rows whose order has to be looked up.
    LookUp,
}

impl WatchSession {
    pub(super) fn new(
        state: Arc<State>,
        served: Arc<Served>,
        user: User,
        request: Request,
        transport: Transport,
    ) -> Self {
        let writer = MessageWriter { served: served.clone(), fields: request.fields.clone().map(Arc::new) };
        let request = Arc::new(request);
        WatchSession {
            state,
            served,
            user,
            request,
            transport,
            writer,
            told: Sequence::ZERO,
            window: Window::default(),
        }
    }

    /// Tells, until it is over.
    pub(super) async fn run(mut self, session_check: SessionCheck) {
        let ended = session_check.during(self.tell()).await.unwrap_or_else(|failure| Err(failure.into()));
        if let Err(WatchEnd::Failed(failure)) = ended {
            // Whoever can't be told any more is gone anyway.
            self.transport.send(vec![Message::failure(&failure)], self.stall_timeout()).await.ok();
        }
    }

    fn stall_timeout(&self) -> Duration {
        self.state.config.limits.stall_timeout
    }

    async fn tell(&mut self) -> Result<(), WatchEnd> {
        let news = Arc::new(Notify::new());
        let mut stopping = self.state.stopping.clone();
        let mut watch = self.open(news.clone()).await?;
        self.begin().await?;
        loop {
            let beat = Instant::now() + self.request.heartbeat;
            tokio::select! {
                () = news.notified() => watch = self.follow(watch).await?,
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return Err(WatchEnd::Closed),
                () = self.transport.closed() => return Err(WatchEnd::Gone),
                () = sleep_until(beat) => self.transport.beat(self.stall_timeout()).await?,
            }
        }
    }

    /// The library's watch, which tells of everything after the answer that [`WatchSession::begin`] gives.
    async fn open(&self, news: Arc<Notify>) -> Result<Watch> {
        let (served, request) = (self.served.clone(), self.request.clone());
        blocking(move || {
            let mut watch = served.database().watch(request.selector.clone())?;
            watch.notify(move || news.notify_one());
            // The answer is read apart, in pieces that a slow client may take one by one.
            watch.next_delta()?;
            Ok(watch)
        })
        .await
    }

    /// Tells the answer; or, to whoever has one, what came since.
    async fn begin(&mut self) -> Result<(), WatchEnd> {
        let newest = self.served.database().sequence();
        let since = self.request.since.filter(|since| *since > Sequence::ZERO && *since <= newest);
        match since {
            Some(since) if self.request.window.is_none() => {
                self.told = since;
                self.look_up().await
            }
            _ => {
                self.transport.send(vec![Message::reset()], self.stall_timeout()).await?;
                match self.request.window {
                    Some(_) => self.look_up().await,
                    None => self.tell_all().await,
                }
            }
        }
    }

    /// Tells the whole answer.
    async fn tell_all(&mut self) -> Result<(), WatchEnd> {
        let (writer, request) = (self.writer.clone(), self.request.clone());
        let (messages, reached) = blocking(move || {
            let snapshot = writer.served.database().snapshot()?;
            let reached = snapshot.sequence();
            let found = snapshot.find(request.selector.clone()).run()?;
            let messages = found.map(move |document| writer.row("enter", &snapshot, &document?, None));
            Ok((Box::new(messages) as Messages, reached))
        })
        .await?;
        self.send_all(messages, reached).await
    }

    /// Tells what is other than the client has it.
    async fn look_up(&mut self) -> Result<(), WatchEnd> {
        if self.request.window.is_some() {
            return self.look_up_window().await;
        }
        let (writer, request, told) = (self.writer.clone(), self.request.clone(), self.told);
        let (messages, reached) = blocking(move || changed_since(writer, &request, told)).await?;
        self.send_all(messages, reached).await
    }

    async fn look_up_window(&mut self) -> Result<(), WatchEnd> {
        let (writer, request) = (self.writer.clone(), self.request.clone());
        let mut window = std::mem::take(&mut self.window);
        let (messages, reached);
        (self.window, messages, reached) = blocking(move || {
            let snapshot = writer.served.database().snapshot()?;
            let messages = match &request.window {
                Some(query) => window.step(&writer, query, &snapshot)?,
                None => Vec::new(),
            };
            Ok((window, messages, snapshot.sequence()))
        })
        .await?;
        self.send_all(Box::new(messages.into_iter().map(Ok)), reached).await
    }

    /// Sends messages, piece by piece, and at last that they lead to `reached`.
    async fn send_all(&mut self, mut messages: Messages, reached: Sequence) -> Result<(), WatchEnd> {
        loop {
            let (piece, is_last);
            (messages, piece, is_last) = blocking(move || {
                let (piece, is_last) = next_piece(&mut messages)?;
                Ok((messages, piece, is_last))
            })
            .await?;
            if !piece.is_empty() {
                self.transport.send(piece, self.stall_timeout()).await?;
            }
            if is_last {
                break;
            }
        }
        self.told = reached;
        let state = self.writer.state(reached);
        Ok(self.transport.send(vec![state], self.stall_timeout()).await?)
    }

    /// Tells what the library's watch has to say, as long as it has.
    async fn follow(&mut self, mut watch: Watch) -> Result<Watch, WatchEnd> {
        loop {
            if !self.may_read() {
                return Err(SessionCheck::refusal().into());
            }
            let (writer, told, is_window) = (self.writer.clone(), self.told, self.request.window.is_some());
            let news;
            (watch, news) = blocking(move || {
                let news = next_steps(&mut watch, &writer, told, is_window)?;
                Ok((watch, news))
            })
            .await?;
            match news {
                // Closed, it has nothing more to say either.
                WatchUpdate::Nothing if self.served.is_closed() => return Err(WatchEnd::Closed),
                WatchUpdate::Nothing => return Ok(watch),
                WatchUpdate::LookUp => self.look_up().await?,
                WatchUpdate::Steps(messages, reached) => {
                    self.told = reached;
                    self.transport.send(messages, self.stall_timeout()).await?;
                }
            }
        }
    }

    /// Whether whoever watches may still read the database.
    fn may_read(&self) -> bool {
        let security = self.served.security();
        security.is_admin(&self.user) || self.served.name() != USERS_DATABASE && security.is_member(&self.user)
    }
}

fn next_piece(messages: &mut Messages) -> Result<(Vec<Message>, bool)> {
    let (mut piece, mut byte_count) = (Vec::new(), 0);
    for message in messages {
        let message = message?;
        byte_count += message.json.len();
        piece.push(message);
        if byte_count >= PIECE_BYTES {
            return Ok((piece, false));
        }
    }
    Ok((piece, true))
}

/// What the watch has to say now, up to a piece. Blocks.
fn next_steps(watch: &mut Watch, writer: &MessageWriter, told: Sequence, is_window: bool) -> Result<WatchUpdate> {
    let snapshot = writer.served.database().snapshot()?;
    let (mut steps, mut byte_count, mut reached) = (Vec::new(), 0, told);
    let mut is_news = false;
    while byte_count < PIECE_BYTES {
        let Some(delta) = watch.next_within(Duration::ZERO)? else { break };
        // What was looked up may be ahead of the watch.
        if delta.sequence() <= told {
            continue;
        }
        is_news = true;
        if is_window {
            continue;
        }
        if delta.len() > EVENTS_MAX {
            // Steps before it are looked up with it.
            return Ok(WatchUpdate::LookUp);
        }
        for event in delta.events() {
            steps.push(match event? {
                DeltaEvent::Added(document) => writer.row("enter", &snapshot, &document, None)?,
                DeltaEvent::Changed(document) => writer.row("change", &snapshot, &document, None)?,
                DeltaEvent::Removed { id, deleted } => Message::leave(id.as_str(), deleted),
            });
            byte_count += steps.last().map_or(0, |message| message.json.len());
        }
        reached = delta.sequence();
        steps.push(writer.state(reached));
    }
    Ok(match (is_news, is_window) {
        (false, _) => WatchUpdate::Nothing,
        (true, true) => WatchUpdate::LookUp,
        (true, false) => WatchUpdate::Steps(steps, reached),
    })
}

/// Of each document that was written after `since`: what it is to the answer now. Blocks, and so do the messages.
fn changed_since(writer: MessageWriter, request: &Request, since: Sequence) -> Result<(Messages, Sequence)> {
    let snapshot = writer.served.database().snapshot()?;
    let changes = writer.served.database().changes(since)?;
    let reached = changes.last_sequence();
    let mut matching = changes.clone().documents(true).selector(&request.selector)?.run().peekable();
    let changes = changes.run().filter(|change| !change.as_ref().is_ok_and(|change| change.id.is_design()));
    let messages = changes.map(move |change| {
        let change = change?;
        // Both go through the same changes, in order.
        let is_same = |other: &stemmadb::Result<stemmadb::Change>| match other {
            Ok(other) => other.sequence == change.sequence,
            Err(_) => true,
        };
        let document = matching.next_if(is_same).transpose()?.and_then(|matching| matching.document);
        match document.filter(|document| !document.is_deleted()) {
            // What has ended is no row, though it was not swept away yet.
            Some(document) if snapshot.get(change.id.as_str())?.is_some() => {
                writer.row("enter", &snapshot, &document, None)
            }
            _ => Ok(Message::leave(change.id.as_str(), change.deleted)),
        }
    });
    Ok((Box::new(messages), reached))
}
