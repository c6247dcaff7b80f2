//! Messages in memory: a message is passed to the subscribers that exist when it is published, at most once.
//!
//! Concurrency: publishing takes the lock of the list of subscribers and, one after the other, those of the matching
//! queues; it never waits for a reader. A queue is bounded: the oldest messages of a slow reader are dropped and
//! counted.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::pattern::Patterns;
use crate::sync::{Condvar, Mutex};
use crate::value::Value;
use crate::{Error, Result};

/// A message that was published to a topic. See [`Database::publish`](crate::Database::publish) for an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// The topic, such as `orders/17/paid`.
    pub topic: String,
    /// The content.
    pub payload: Value,
}

impl Message {
    /// A message, for crates that receive it from a database elsewhere.
    pub fn new(topic: impl Into<String>, payload: Value) -> Self {
        Message { topic: topic.into(), payload }
    }
}

/// Receives the messages of matching topics from its creation on. Dropping it ends the subscription.
///
/// Up to 1,024 messages wait to be read; then the oldest are dropped. See
/// [`Database::publish`](crate::Database::publish) for an example.
pub struct TopicSubscription(Arc<Subscriber>);

struct Subscriber {
    patterns: Patterns,
    queue: Mutex<Queue>,
    changed: Condvar,
    callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Arc<Message>>,
    dropped_count: u64,
    is_closed: bool,
}

/// The subscribers of a database.
#[derive(Default)]
pub(crate) struct TopicHub(Mutex<Vec<Weak<Subscriber>>>);

/// The most messages that wait for a reader.
const QUEUE_MAX: usize = 1024;
/// The longest topic in bytes.
const TOPIC_BYTES_MAX: usize = 1024;

impl TopicHub {
    /// Passes a message to all matching subscribers; returns their number.
    ///
    /// # Errors
    /// `Invalid` if the topic is empty, too long, or contains a wildcard.
    pub(crate) fn publish(&self, topic: &str, payload: Value) -> Result<usize> {
        if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX {
            return Err(Error::invalid(format!("a topic has 1 to {TOPIC_BYTES_MAX} bytes")));
        }
        if topic.split('/').any(|level| matches!(level, "+" | "#")) {
            return Err(Error::invalid(format!("the topic {topic:?} contains a wildcard"))
                .with_hint("wildcards belong into the pattern of a subscription"));
        }
        let message = Arc::new(Message::new(topic, payload));
        let mut count = 0;
        self.0.lock().retain(|subscriber| {
            let Some(subscriber) = subscriber.upgrade() else { return false };
            if subscriber.patterns.may_match_id(topic) {
                subscriber.push(message.clone());
                count += 1;
            }
            true
        });
        Ok(count)
    }

    /// Adds a subscriber.
    ///
    /// # Errors
    /// `Invalid` if a pattern is malformed, or if there is none.
    pub(crate) fn subscribe<P: AsRef<str>>(&self, patterns: impl IntoIterator<Item = P>) -> Result<TopicSubscription> {
        let patterns = Patterns::parse_topics(patterns)?;
        let (queue, changed, callback) = (Mutex::default(), Condvar::new(), OnceLock::new());
        let subscriber = Arc::new(Subscriber { patterns, queue, changed, callback });
        self.0.lock().push(Arc::downgrade(&subscriber));
        Ok(TopicSubscription(subscriber))
    }

    /// Ends all subscriptions.
    pub(crate) fn close(&self) {
        for subscriber in self.0.lock().drain(..).filter_map(|subscriber| subscriber.upgrade()) {
            subscriber.queue.lock().is_closed = true;
            subscriber.wake();
        }
    }
}

impl Subscriber {
    fn push(&self, message: Arc<Message>) {
        let mut queue = self.queue.lock();
        if queue.messages.len() >= QUEUE_MAX {
            queue.messages.pop_front();
            queue.dropped_count += 1;
        }
        queue.messages.push_back(message);
        drop(queue);
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_all();
        if let Some(callback) = self.callback.get() {
            callback();
        }
    }
}

impl TopicSubscription {
    /// Returns the next message, blocking until there is one; `None` once the database is closed.
    pub fn next_message(&mut self) -> Option<Arc<Message>> {
        self.next_until(None)
    }

    /// Returns the next message, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Arc<Message>> {
        self.next_until(Some(Instant::now() + timeout))
    }

    /// Calls `callback` now, and whenever there may be a message or the database is closed, for callers that can't
    /// block and read with [`TopicSubscription::next_within`] and a timeout of zero instead. It runs on the publisher's
    /// thread, so it must be quick and must not publish. Only the first callback is kept.
    pub fn notify(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.0.callback.set(Box::new(callback)).ok();
        self.0.wake();
    }

    /// Whether the database is closed and every message was read.
    pub fn is_closed(&self) -> bool {
        let queue = self.0.queue.lock();
        queue.is_closed && queue.messages.is_empty()
    }

    /// How many messages were dropped because this reader was too slow.
    pub fn dropped_count(&self) -> u64 {
        self.0.queue.lock().dropped_count
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Option<Arc<Message>> {
        let mut queue = self.0.queue.lock();
        loop {
            if let Some(message) = queue.messages.pop_front() {
                return Some(message);
            }
            if queue.is_closed {
                return None;
            }
            match deadline {
                None => self.0.changed.wait(&mut queue),
                Some(deadline) => {
                    if self.0.changed.wait_until(&mut queue, deadline).timed_out() {
                        return queue.messages.pop_front();
                    }
                }
            }
        }
    }
}

/// Blocks for each message; ends when the database is closed.
impl Iterator for TopicSubscription {
    type Item = Arc<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_message()
    }
}
