//! Typed changes feeds and live queries of a collection.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::database::CollectionFeed;
use super::entry::{Entry, entry_from};
use crate::Result;
use crate::changes::{Change, Delta, DeltaEvent, Subscription, Watch};
use crate::revision::{DocumentId, Sequence};

/// The latest event of one document of a collection. See [`Subscription`] for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryChange<T> {
    /// Sequence of the write; pass it as `since` to continue after this change.
    pub sequence: Sequence,
    /// Key of the document.
    pub key: String,
    /// The document's current content; `None` if it was deleted.
    pub entry: Option<Entry<T>>,
}

/// The change of a live query's result by one or more published transactions. See [`Watch`] for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryDelta<T> {
    /// The sequence of the result after this delta is applied.
    pub sequence: Sequence,
    /// Whether this delta contains the whole initial result.
    pub is_first: bool,
    /// The events, each document once.
    pub events: Vec<EntryEvent<T>>,
}

/// What happened to one document of a live query's result. See [`Watch`] for an example.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryEvent<T> {
    /// It is now part of the result and was not before.
    Added(Entry<T>),
    /// It is still part of the result, with other content.
    Changed(Entry<T>),
    /// The document with this key is no longer part of the result.
    Removed(String),
}

fn key_of(prefix: &str, id: &DocumentId) -> String {
    id.as_str().strip_prefix(prefix).unwrap_or(id.as_str()).to_owned()
}

pub(super) fn entry_change<T: DeserializeOwned>(prefix: &str, change: &Change) -> Result<EntryChange<T>> {
    let document = change.document.as_ref().filter(|_| !change.deleted);
    Ok(EntryChange {
        sequence: change.sequence,
        key: key_of(prefix, &change.id),
        entry: document.map(|document| entry_from(prefix, document)).transpose()?,
    })
}

/// Streams a collection's changes as they are published; created by
/// [`Collection::subscribe`](super::Collection::subscribe). See [`Subscription`] for an example.
pub struct EntrySubscription<T, S = Subscription> {
    subscription: S,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned, S: CollectionFeed<Change>> EntrySubscription<T, S> {
    pub(super) fn new(subscription: S, prefix: String) -> Self {
        EntrySubscription { subscription, prefix, content: PhantomData }
    }

    /// Returns the next change, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    ///
    /// # Errors
    /// As [`Subscription::next_within`]; `Invalid` if a document does not fit the type.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<EntryChange<T>>> {
        self.subscription.next_row_within(timeout)?.map(|change| entry_change(&self.prefix, &change)).transpose()
    }
}

/// A live query over a collection. See [`Watch`] for an example.
pub struct WatchEntries<T, W = Watch> {
    watch: W,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned, W: CollectionFeed<Delta>> WatchEntries<T, W> {
    pub(super) fn new(watch: W, prefix: String) -> Self {
        WatchEntries { watch, prefix, content: PhantomData }
    }

    /// Returns the next delta, blocking until there is one; `None` once the database is closed and everything was read.
    ///
    /// # Errors
    /// As [`Watch::next_delta`]; `Invalid` if a document does not fit the type.
    pub fn next_delta(&mut self) -> Result<Option<EntryDelta<T>>> {
        self.watch.next_row()?.map(|delta| self.convert_delta(delta)).transpose()
    }

    /// Returns the next delta, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    ///
    /// # Errors
    /// As [`WatchEntries::next_delta`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<EntryDelta<T>>> {
        self.watch.next_row_within(timeout)?.map(|delta| self.convert_delta(delta)).transpose()
    }

    fn convert_delta(&self, delta: Delta) -> Result<EntryDelta<T>> {
        let (sequence, is_first) = (delta.sequence(), delta.is_first());
        let events = delta.events().map(|event| self.convert_event(event?)).collect::<Result<_>>()?;
        Ok(EntryDelta { sequence, is_first, events })
    }

    fn convert_event(&self, event: DeltaEvent) -> Result<EntryEvent<T>> {
        Ok(match event {
            DeltaEvent::Added(document) => EntryEvent::Added(entry_from(&self.prefix, &document)?),
            DeltaEvent::Changed(document) => EntryEvent::Changed(entry_from(&self.prefix, &document)?),
            DeltaEvent::Removed { id, .. } => EntryEvent::Removed(key_of(&self.prefix, &id)),
        })
    }
}
