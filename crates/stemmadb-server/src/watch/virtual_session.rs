//! The session of a live query of a virtual database: the result of all shards, and then what their changes do to it.

use std::sync::Arc;

use stemmadb::{Document, ErrorKind};
use stemmadb_federation::{FederatedRows, VirtualChangeRows};
use tokio::time::{Instant, sleep_until};

use super::live_result::{LiveResult, ResultChange};
use super::message::{MessageWriter, WatchMessage};
use super::request::WatchRequest;
use super::session::{BATCH_BYTES, WatchEnd, may_read};
use super::transport::Transport;
use crate::accounts::SessionCheck;
use crate::app::ServerState;
use crate::auth::{Security, User};
use crate::error::{Failure, Result};
use crate::http::initial_read;
use crate::virtual_databases::{OpenVirtual, Shard, ShardSignals};

/// The state of a live query of a virtual database.
pub(super) struct VirtualSession {
    state: Arc<ServerState>,
    open: Arc<OpenVirtual>,
    user: User,
    security: Arc<Security>,
    request: Arc<WatchRequest>,
    transport: Transport,
    /// What the client has; without documents from before a resumed session.
    result: LiveResult,
    /// The position of the changes feed up to which the client has everything; empty at first.
    token: String,
    /// Whether the client has a complete result.
    has_begun: bool,
}

impl VirtualSession {
    pub(super) fn new(
        state: Arc<ServerState>,
        open: Arc<OpenVirtual>,
        user: User,
        request: WatchRequest,
        transport: Transport,
    ) -> Self {
        let (request, security) = (Arc::new(request), open.own.security());
        let token = request.token.clone().unwrap_or_default();
        let (result, has_begun) = (LiveResult::default(), false);
        VirtualSession { state, open, user, security, request, transport, result, token, has_begun }
    }

    /// Runs the live query until it ends; sends the error if it fails.
    pub(super) async fn run(mut self, session_check: SessionCheck) {
        let ended = session_check.during(self.stream()).await.unwrap_or_else(|failure| Err(failure.into()));
        if let Err(WatchEnd::Failed(failure)) = ended {
            // If this can't be sent either, the client is gone.
            self.send(vec![WatchMessage::failure(&failure)]).await.ok();
        }
    }

    async fn send(&self, messages: Vec<WatchMessage>) -> Result<(), WatchEnd> {
        Ok(self.transport.send(messages, self.state.config.limits.stall_timeout).await?)
    }

    async fn stream(&mut self) -> Result<(), WatchEnd> {
        if !self.is_token_valid().await? {
            self.send_full_result().await?;
        }
        loop {
            // Before the changes are read, so that nothing is missed in between.
            let mut signals = self.open.signals();
            self.send_changes().await?;
            while !self.wait(&mut signals).await? {
                self.transport.send_heartbeat(self.state.config.limits.stall_timeout).await?;
            }
        }
    }

    /// Whether the client has a result at a position of this database.
    async fn is_token_valid(&self) -> Result<bool> {
        if self.token.is_empty() {
            return Ok(false);
        }
        let (open, token) = (self.open.clone(), self.token.clone());
        initial_read(move || match open.database.changes().after(token).limit(0).run() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(false),
            Err(error) => Err(error.into()),
        })
        .await
    }

    /// Waits for changes; returns false when it is time for a heartbeat.
    async fn wait(&self, signals: &mut ShardSignals) -> Result<bool, WatchEnd> {
        let heartbeat_at = Instant::now() + self.request.heartbeat;
        let mut stopping = self.state.stopping.clone();
        tokio::select! {
            is_open = signals.changed() => if is_open { Ok(true) } else { Err(WatchEnd::Closed) },
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => Err(WatchEnd::Closed),
            () = self.transport.closed() => Err(WatchEnd::ClientGone),
            () = sleep_until(heartbeat_at) => Ok(false),
        }
    }

    /// Sends the whole result. Documents that move meanwhile are in the changes after it.
    async fn send_full_result(&mut self) -> Result<(), WatchEnd> {
        self.send(vec![WatchMessage::reset()]).await?;
        let (open, request) = (self.open.clone(), self.request.clone());
        let (mut rows, token) = initial_read(move || {
            let token = open.database.changes().newest_token();
            Ok((open.database.find(request.selector.clone()).run()?, token))
        })
        .await?;
        loop {
            let (reader, mut result) = (self.reader(), std::mem::take(&mut self.result));
            let messages;
            (rows, messages, self.result) = initial_read(move || {
                let messages = reader.rows(&mut rows, &mut result)?;
                Ok((rows, messages, result))
            })
            .await?;
            if messages.is_empty() {
                break;
            }
            self.send(messages).await?;
        }
        (self.token, self.has_begun) = (token, true);
        self.send(vec![WatchMessage::state(self.token.clone())]).await
    }

    /// Sends what has changed since the position.
    async fn send_changes(&mut self) -> Result<(), WatchEnd> {
        loop {
            if !may_read(&self.open.own, &self.user, &self.security) {
                return Err(SessionCheck::refusal().into());
            }
            let (reader, token, epoch) = (self.reader(), self.token.clone(), self.open.database.epoch());
            let mut result = std::mem::take(&mut self.result);
            let is_last;
            let mut messages;
            (messages, self.result, self.token, is_last) = initial_read(move || {
                let mut messages = Vec::new();
                let mut token = token;
                let read = reader.open.database.changes().after(token.as_str()).documents(true).run();
                let read = match read {
                    Ok(mut rows) => {
                        let read = reader.changes(&mut rows, &mut result, &mut messages)?;
                        token = rows.token();
                        read
                    }
                    Err(error) => Err(error.into()),
                };
                match read {
                    // A shard on another server was deleted, because its documents have moved: others report them.
                    Err(_) if reader.open.database.epoch() != epoch => Ok((messages, result, token, false)),
                    read => Ok((messages, result, token, read?)),
                }
            })
            .await?;
            if !messages.is_empty() || is_last && !self.has_begun {
                messages.push(WatchMessage::state(self.token.clone()));
                self.send(messages).await?;
            }
            self.has_begun |= is_last;
            if is_last {
                return Ok(());
            }
        }
    }

    fn reader(&self) -> Reader {
        Reader { open: self.open.clone(), request: self.request.clone() }
    }
}

/// Makes messages of documents and changes. All its functions block.
struct Reader {
    open: Arc<OpenVirtual>,
    request: Arc<WatchRequest>,
}

impl Reader {
    /// The next documents of the result, up to the size of a batch.
    fn rows(&self, rows: &mut FederatedRows, result: &mut LiveResult) -> Result<Vec<WatchMessage>> {
        let (mut messages, mut byte_count) = (Vec::new(), 0);
        while byte_count < BATCH_BYTES {
            let Some(document) = rows.next().transpose()? else { break };
            if result.add(&document) {
                let message = self.row("enter", &document)?;
                byte_count += message.json.len();
                messages.push(message);
            }
        }
        Ok(messages)
    }

    /// Adds what the next changes do to the result, up to the size of a batch; returns whether there are no more. The
    /// inner error is one of reading the changes.
    fn changes(
        &self,
        rows: &mut VirtualChangeRows,
        result: &mut LiveResult,
        messages: &mut Vec<WatchMessage>,
    ) -> Result<Result<bool>> {
        let mut byte_count = 0;
        while byte_count < BATCH_BYTES {
            let change = match rows.next().transpose() {
                Ok(Some(change)) => change,
                Ok(None) => return Ok(Ok(true)),
                Err(error) => return Ok(Err(error.into())),
            };
            // A resumed session does not know what the client has.
            let is_partial = self.request.token.is_some();
            let message = match result.apply(&change, &self.request.selector, is_partial)? {
                Some(ResultChange::Entered(document)) => self.row("enter", document)?,
                Some(ResultChange::Changed(document)) => self.row("change", document)?,
                Some(ResultChange::Left) => WatchMessage::leave(change.id.as_str(), change.deleted),
                None => continue,
            };
            byte_count += message.json.len();
            messages.push(message);
        }
        Ok(Ok(false))
    }

    fn row(&self, kind: &'static str, document: &Document) -> Result<WatchMessage> {
        let fields = self.request.fields.clone().map(Arc::new);
        match self.open.layout().shard_of(document.id().as_str()) {
            Shard::Here(served) => {
                let snapshot = served.database().snapshot()?;
                MessageWriter { served, fields }.row(kind, &snapshot, document, None)
            }
            Shard::There(remote) => match &self.request.fields {
                Some(fields) => WatchMessage::projected(kind, document, fields),
                None => Ok(WatchMessage::printed(kind, document, &remote.print(document, "")?)),
            },
        }
    }
}

/// Checks that a live query of a virtual database can be answered.
///
/// # Errors
/// 501 for positions of rows, and for paths.
pub(super) fn check(request: &WatchRequest) -> Result<()> {
    match (request.window.is_some(), request.paths.is_empty()) {
        (false, true) => Ok(()),
        (true, _) => Err(Failure::not_implemented(
            "A live query of a virtual database has no `sort`, `limit` and `skip`: its rows have no positions.",
        )),
        (_, false) => {
            Err(Failure::not_implemented("A live query of a virtual database has no `paths`: watch a `selector`."))
        }
    }
}
