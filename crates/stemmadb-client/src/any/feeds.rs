//! Feeds of an embedded or remote database.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::messages::{Message, TopicSubscription};
use stemmadb::{Change, Delta, PathChange, PathSubscription, Result, Selector, Sequence, Subscription, Watch};

use crate::stream::{RemotePathSubscription, RemoteSubscription, RemoteTopicSubscription, RemoteWatch};

/// A subscription to the feed of either database.
pub enum AnySubscription {
    /// Of an embedded one.
    Embedded(Box<Subscription>),
    /// Of a remote one.
    Remote(Box<RemoteSubscription>),
}

impl AnySubscription {
    /// Whether to return the documents, too. See [`Subscription::documents`].
    #[must_use]
    pub fn documents(self, documents: bool) -> Self {
        match self {
            AnySubscription::Embedded(feed) => AnySubscription::Embedded(Box::new(feed.documents(documents))),
            AnySubscription::Remote(feed) => AnySubscription::Remote(Box::new(feed.documents(documents))),
        }
    }

    /// Returns only changes of these documents. See [`Subscription::ids`].
    #[must_use]
    pub fn ids<I: Into<String>>(self, ids: impl IntoIterator<Item = I>) -> Self {
        match self {
            AnySubscription::Embedded(feed) => AnySubscription::Embedded(Box::new(feed.ids(ids))),
            AnySubscription::Remote(feed) => AnySubscription::Remote(Box::new(feed.ids(ids))),
        }
    }

    /// Returns only changes of documents that match. See [`Subscription::selector`].
    ///
    /// # Errors
    /// Those of [`Subscription::selector`].
    pub fn selector(self, selector: &Selector) -> Result<Self> {
        Ok(match self {
            AnySubscription::Embedded(feed) => AnySubscription::Embedded(Box::new(feed.selector(selector)?)),
            AnySubscription::Remote(feed) => AnySubscription::Remote(Box::new(feed.selector(selector)?)),
        })
    }

    /// Waits for the next change. See [`Subscription::next_change`].
    ///
    /// # Errors
    /// Those of [`Subscription::next_change`].
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        match self {
            AnySubscription::Embedded(feed) => feed.next_change(),
            AnySubscription::Remote(feed) => feed.next_change(),
        }
    }

    /// Waits for the next change. See [`Subscription::next_within`].
    ///
    /// # Errors
    /// Those of [`Subscription::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Change>> {
        match self {
            AnySubscription::Embedded(feed) => feed.next_within(timeout),
            AnySubscription::Remote(feed) => feed.next_within(timeout),
        }
    }

    /// The sequence up to which every matching change was returned. To continue after a restart, subscribe from here.
    pub fn reached(&self) -> Sequence {
        match self {
            AnySubscription::Embedded(feed) => feed.reached(),
            AnySubscription::Remote(feed) => feed.reached(),
        }
    }
}

/// A subscription to messages of either database.
pub enum AnyTopicSubscription {
    /// Of an embedded one.
    Embedded(TopicSubscription),
    /// Of a remote one.
    Remote(Box<RemoteTopicSubscription>),
}

impl AnyTopicSubscription {
    /// Waits for the next message; `None` once an embedded database is closed.
    ///
    /// # Errors
    /// Those of [`RemoteTopicSubscription::next_message`].
    pub fn next_message(&mut self) -> Result<Option<Arc<Message>>> {
        match self {
            AnyTopicSubscription::Embedded(messages) => Ok(messages.next_message()),
            AnyTopicSubscription::Remote(messages) => messages.next_message(),
        }
    }

    /// Waits for the next message at most this long.
    ///
    /// # Errors
    /// Those of [`RemoteTopicSubscription::next_message`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Arc<Message>>> {
        match self {
            AnyTopicSubscription::Embedded(messages) => Ok(messages.next_within(timeout)),
            AnyTopicSubscription::Remote(messages) => messages.next_within(timeout),
        }
    }

    /// How many messages were dropped because this reader was too slow.
    pub fn dropped_count(&self) -> u64 {
        match self {
            AnyTopicSubscription::Embedded(messages) => messages.dropped_count(),
            AnyTopicSubscription::Remote(messages) => messages.dropped_count(),
        }
    }
}

/// A live query on either database.
pub enum AnyWatch {
    /// On an embedded one.
    Embedded(Box<Watch>),
    /// On a remote one.
    Remote(Box<RemoteWatch>),
}

impl AnyWatch {
    /// Waits for the next delta. See [`Watch::next_delta`].
    ///
    /// # Errors
    /// Those of [`Watch::next_delta`].
    pub fn next_delta(&mut self) -> Result<Option<Delta>> {
        match self {
            AnyWatch::Embedded(watch) => watch.next_delta(),
            AnyWatch::Remote(watch) => watch.next_delta(),
        }
    }

    /// Waits for the next delta. See [`Watch::next_within`].
    ///
    /// # Errors
    /// Those of [`Watch::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delta>> {
        match self {
            AnyWatch::Embedded(watch) => watch.next_within(timeout),
            AnyWatch::Remote(watch) => watch.next_within(timeout),
        }
    }
}

/// A subscription to values at paths of either database.
pub enum AnyPathSubscription {
    /// Of an embedded one.
    Embedded(Box<PathSubscription>),
    /// Of a remote one.
    Remote(Box<RemotePathSubscription>),
}

impl AnyPathSubscription {
    /// Also returns the documents that were written after `since`. See [`PathSubscription::since`].
    ///
    /// # Errors
    /// Those of [`PathSubscription::since`].
    pub fn since(self, since: Sequence) -> Result<Self> {
        Ok(match self {
            AnyPathSubscription::Embedded(feed) => AnyPathSubscription::Embedded(Box::new(feed.since(since)?)),
            AnyPathSubscription::Remote(feed) => AnyPathSubscription::Remote(Box::new(feed.since(since)?)),
        })
    }

    /// Waits for the next change. See [`PathSubscription::next_within`].
    ///
    /// # Errors
    /// Those of [`PathSubscription::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<PathChange>> {
        match self {
            AnyPathSubscription::Embedded(feed) => feed.next_within(timeout),
            AnyPathSubscription::Remote(feed) => feed.next_within(timeout),
        }
    }
}
