//! What happens in a collection, in your types: its changes, and live queries in it.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::entry::{Entry, entry};
use crate::Result;
use crate::changes::{Change, Event, Subscription, Watch};
use crate::revision::{DocumentId, Sequence};

/// The latest event of one member.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryChange<T> {
    /// When it was written: the position to continue after.
    pub sequence: Sequence,
    /// The member's key.
    pub key: String,
    /// What it is now; none if it is gone.
    pub entry: Option<Entry<T>>,
}

/// How one published transaction changed the answer of a live query in a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryDelta<T> {
    /// The sequence of the transaction.
    pub sequence: Sequence,
    /// Whether this is the whole answer, with which a watch begins.
    pub is_first: bool,
    /// What happened, in order.
    pub events: Vec<EntryEvent<T>>,
}

/// What happened to one member of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryEvent<T> {
    /// It belongs to the answer now.
    Added(Entry<T>),
    /// It still does, with other content.
    Changed(Entry<T>),
    /// It does so no longer: this key's.
    Removed(String),
}

fn key_of(prefix: &str, id: &DocumentId) -> String {
    id.as_str().strip_prefix(prefix).unwrap_or(id.as_str()).to_owned()
}

pub(super) fn change<T: DeserializeOwned>(prefix: &str, change: &Change) -> Result<EntryChange<T>> {
    let document = change.document.as_ref().filter(|_| !change.deleted);
    Ok(EntryChange {
        sequence: change.sequence,
        key: key_of(prefix, &change.id),
        entry: document.map(|document| entry(prefix, document)).transpose()?,
    })
}

/// The changes of a collection as they are published.
pub struct EntrySubscription<T> {
    subscription: Subscription,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> EntrySubscription<T> {
    pub(super) fn new(subscription: Subscription, prefix: String) -> Self {
        EntrySubscription { subscription: subscription.documents(true), prefix, content: PhantomData }
    }

    /// The next change, waiting for it at most this long; none if there was none.
    ///
    /// # Errors
    /// As [`Subscription::next_within`]; `Invalid` if a document does not fit the type.
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<EntryChange<T>>> {
        self.subscription.next_within(patience)?.map(|found| change(&self.prefix, &found)).transpose()
    }
}

/// A live query in a collection: see [`Watch`].
pub struct WatchEntries<T> {
    watch: Watch,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> WatchEntries<T> {
    pub(super) fn new(watch: Watch, prefix: String) -> Self {
        WatchEntries { watch, prefix, content: PhantomData }
    }

    /// The next delta, waiting for it as long as it takes; none once the database is closed.
    ///
    /// # Errors
    /// As [`Watch::next_delta`]; `Invalid` if a document does not fit the type.
    pub fn next_delta(&mut self) -> Result<Option<EntryDelta<T>>> {
        self.watch.next_delta()?.map(|delta| self.typed(delta)).transpose()
    }

    /// The next delta, waiting at most this long; none if there was none.
    ///
    /// # Errors
    /// As [`WatchEntries::next_delta`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<EntryDelta<T>>> {
        self.watch.next_within(patience)?.map(|delta| self.typed(delta)).transpose()
    }

    fn typed(&self, delta: crate::changes::Delta) -> Result<EntryDelta<T>> {
        let (sequence, is_first) = (delta.sequence(), delta.is_first());
        let events = delta.events().map(|event| self.event(event?)).collect::<Result<_>>()?;
        Ok(EntryDelta { sequence, is_first, events })
    }

    fn event(&self, event: Event) -> Result<EntryEvent<T>> {
        Ok(match event {
            Event::Added(document) => EntryEvent::Added(entry(&self.prefix, &document)?),
            Event::Changed(document) => EntryEvent::Changed(entry(&self.prefix, &document)?),
            Event::Removed { id, .. } => EntryEvent::Removed(key_of(&self.prefix, &id)),
        })
    }
}
