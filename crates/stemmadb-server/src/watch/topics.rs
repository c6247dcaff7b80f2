//! The session of a subscription to messages: sends each message of a matching topic.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::messages::TopicSubscription;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::message::WatchMessage;
use super::request::{HEARTBEAT, parse_heartbeat};
use super::session::{BATCH_BYTES, WatchEnd, may_read};
use super::transport::Transport;
use crate::accounts::SessionCheck;
use crate::app::{Call, ServerState};
use crate::auth::{Security, User};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};

/// The parameters of a `_subscribe` request.
pub(crate) struct SubscribeRequest {
    /// Patterns of topics.
    pub(super) topics: Vec<String>,
    heartbeat: Duration,
}

impl SubscribeRequest {
    /// Parses the query string.
    ///
    /// # Errors
    /// 400 with the reason.
    pub(crate) fn parse(call: &Call) -> Result<Self> {
        let topics: Vec<String> = call.query.texts("topic").map(str::to_owned).collect();
        if topics.is_empty() {
            return Err(Failure::bad_request("A subscription needs a `topic`, such as topic=orders/+/paid"));
        }
        if let Some(topic) = topics.iter().find(|topic| topic.ends_with('/')) {
            let reason =
                format!("The topic {topic:?} ends in a slash: write %23 for #, which is the fragment of a URL");
            return Err(Failure::bad_request(reason));
        }
        let heartbeat = call.query.json("heartbeat")?;
        let heartbeat = heartbeat.as_ref().map_or(Ok(HEARTBEAT), parse_heartbeat)?;
        Ok(SubscribeRequest { topics, heartbeat })
    }
}

/// The state of a subscription.
pub(super) struct TopicSession {
    state: Arc<ServerState>,
    served: Arc<ServedDatabase>,
    user: User,
    security: Arc<Security>,
    request: SubscribeRequest,
    transport: Transport,
}

impl TopicSession {
    pub(super) fn new(
        state: Arc<ServerState>,
        served: Arc<ServedDatabase>,
        user: User,
        request: SubscribeRequest,
        transport: Transport,
    ) -> Self {
        let security = served.security();
        TopicSession { state, served, user, security, request, transport }
    }

    /// Runs until the client disconnects or the database is closed; sends the error if it fails.
    pub(super) async fn run(self, subscription: TopicSubscription, session_check: SessionCheck) {
        let ended = session_check.during(self.stream(subscription)).await;
        if let Err(WatchEnd::Failed(failure)) = ended.unwrap_or_else(|failure| Err(failure.into())) {
            // If this can't be sent either, the client is gone.
            self.transport.send(vec![WatchMessage::failure(&failure)], self.stall_timeout()).await.ok();
        }
    }

    fn stall_timeout(&self) -> Duration {
        self.state.config.limits.stall_timeout
    }

    async fn stream(&self, mut subscription: TopicSubscription) -> Result<(), WatchEnd> {
        let changed = Arc::new(Notify::new());
        let mut stopping = self.state.stopping.clone();
        let wake = changed.clone();
        subscription.notify(move || wake.notify_one());
        let mut dropped_count = 0;
        self.transport.send(vec![WatchMessage::subscribed()], self.stall_timeout()).await?;
        loop {
            let heartbeat_at = Instant::now() + self.request.heartbeat;
            tokio::select! {
                () = changed.notified() => self.send_messages(&mut subscription, &mut dropped_count).await?,
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return Err(WatchEnd::Closed),
                () = self.transport.closed() => return Err(WatchEnd::ClientGone),
                () = sleep_until(heartbeat_at) => self.transport.send_heartbeat(self.stall_timeout()).await?,
            }
        }
    }

    /// Sends messages until there are no more.
    async fn send_messages(
        &self,
        subscription: &mut TopicSubscription,
        dropped_count: &mut u64,
    ) -> Result<(), WatchEnd> {
        loop {
            if !may_read(&self.served, &self.user, &self.security) {
                return Err(SessionCheck::refusal().into());
            }
            let (mut messages, mut byte_count) = (Vec::new(), 0);
            while byte_count < BATCH_BYTES {
                let Some(message) = subscription.next_within(Duration::ZERO) else { break };
                messages.push(WatchMessage::published(&message));
                byte_count += messages.last().map_or(0, |message| message.json.len());
            }
            let dropped = subscription.dropped_count();
            if dropped > std::mem::replace(dropped_count, dropped) {
                messages.insert(0, WatchMessage::dropped(dropped));
            }
            if messages.is_empty() {
                return if subscription.is_closed() { Err(WatchEnd::Closed) } else { Ok(()) };
            }
            self.transport.send(messages, self.stall_timeout()).await?;
        }
    }
}
