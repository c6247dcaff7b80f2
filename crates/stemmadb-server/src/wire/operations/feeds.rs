//! The changes feed, subscriptions and live queries.

use std::time::{Duration, Instant};

use stemmadb::{Change, DeltaEvent, Document, Error, Object, PathChange, PathEvent, Query, Selector, Sequence, Value};
use stemmadb_wire::{FrameKind, write_frame};

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::{RowStream, STREAM_CHECK, change_row, document_value};
use crate::auth::{Restriction, narrowed};
use crate::directory::{ServedDatabase, check_message_bytes};
use crate::documents::readable_leaves;
use crate::error::Failure;

/// How often a stream without changes shows the client that the connection lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

fn since(call: &Call<'_>) -> Result<Sequence> {
    Ok(Sequence::new(call.optional_number("since")?.unwrap_or(0)))
}

/// The strings of an argument that may be absent.
pub(super) fn optional_texts(call: &Call<'_>, name: &str) -> Result<Option<Vec<String>>> {
    call.arguments.get(name).map(|_| call.texts(name)).transpose()
}

/// The selector of the request, of documents that the user may read.
pub(super) fn selector(call: &Call<'_>, restriction: Option<&Restriction>) -> Result<Option<Selector>> {
    let requested = call.arguments.get("selector").map(Selector::parse).transpose()?;
    Ok(match (requested, restriction.map(Restriction::selector)) {
        (Some(requested), Some(readable)) => Some(readable.and(requested)),
        (requested, readable) => requested.or(readable),
    })
}

pub(super) fn change_value(
    served: &ServedDatabase,
    change: &Change,
    restriction: Option<&Restriction>,
) -> Result<Value> {
    if change.leaves.len() == 1 {
        return change_row(change, &change.leaves);
    }
    let (snapshot, id) = (served.database().snapshot()?, change.id.as_str());
    change_row(change, &readable_leaves(&snapshot, id, &change.leaves, restriction)?)
}

/// Streams the changes after a sequence, up to the newest.
pub(super) fn changes(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::Changes, None)?;
    let mut changes = served.database().changes(since(call)?)?.documents(call.flag("documents"));
    if let Some(limit) = call.optional_number("limit")? {
        changes = changes.limit(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    if call.flag("descending") {
        changes = changes.descending(true);
    }
    if let Some(ids) = optional_texts(call, "ids")? {
        changes = changes.ids(ids);
    }
    if let Some(patterns) = optional_texts(call, "paths")? {
        changes = changes.paths(patterns)?;
    }
    if let Some(selector) = selector(call, restriction.as_ref())? {
        changes = changes.selector(&selector)?.departures(restriction.is_some() || call.flag("departures"));
    }
    let last = changes.last_sequence();
    let mut rows = RowStream::new(call);
    for change in changes.run() {
        rows.add_value(&change_value(&served, &change?, restriction.as_ref())?)?;
    }
    Ok(rows.finish(&[("last", last.get().into())]))
}

/// Checks that a stream may go on, and shows the client that the connection lives.
pub(super) struct Heartbeat {
    /// When something was sent.
    pub(super) sent: Instant,
    /// When the client's rights were checked.
    checked: Instant,
}

impl Heartbeat {
    pub(super) fn new() -> Self {
        Heartbeat { sent: Instant::now(), checked: Instant::now() }
    }

    /// Ends a stream, also one that always has news, if the database is closed or the client may not read it any more;
    /// otherwise, sends a sign of life if it is time.
    pub(super) fn check(
        &mut self,
        call: &Call<'_>,
        served: &ServedDatabase,
        rights: RightsOf,
        restriction: Option<&Restriction>,
    ) -> Result<()> {
        // A feed of a closed database does not wait any more.
        if served.is_closed() {
            return Err(Error::closed("the database was closed").into());
        }
        if self.checked.elapsed() < STREAM_CHECK {
            return Ok(());
        }
        self.checked = Instant::now();
        call.check_stream(rights, restriction)?;
        self.beat(call)
    }

    fn beat(&mut self, call: &Call<'_>) -> Result<()> {
        if self.sent.elapsed() < HEARTBEAT {
            return Ok(());
        }
        self.sent = Instant::now();
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Ping, 0, |_| ());
        call.connection.send(&bytes)
    }
}

/// Streams the changes after a sequence, and then each new one, until it is cancelled. After those that there were, a
/// row says so: a client that does not want to wait knows that it has them all.
pub(super) fn subscribe(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::Changes, None)?;
    let mut subscription = served.database().subscribe(since(call)?).documents(call.flag("documents"));
    if let Some(ids) = optional_texts(call, "ids")? {
        subscription = subscription.ids(ids);
    }
    if let Some(patterns) = optional_texts(call, "paths")? {
        subscription = subscription.paths(patterns)?;
    }
    if let Some(selector) = selector(call, restriction.as_ref())? {
        subscription = subscription.selector(&selector)?.departures(restriction.is_some());
    }
    call.release_reading();
    let mut rows = RowStream::new(call);
    let mut heartbeat = Heartbeat::new();
    let mut has_caught_up = false;
    loop {
        let next = subscription.next_within(if has_caught_up { STREAM_CHECK } else { Duration::ZERO })?;
        heartbeat.check(call, &served, RightsOf::Changes, restriction.as_ref())?;
        match next {
            Some(change) => rows.add_value(&change_value(&served, &change, restriction.as_ref())?)?,
            None if has_caught_up => continue,
            None => {
                has_caught_up = true;
                rows.add_value(&object([("caught_up", subscription.reached().get().into())]))?;
            }
        }
        // What is there already is sent together.
        while let Some(change) = subscription.next_within(Duration::ZERO)? {
            rows.add_value(&change_value(&served, &change, restriction.as_ref())?)?;
        }
        rows.send()?;
        heartbeat.sent = Instant::now();
    }
}

/// A permit to hold a live query or path subscription.
///
/// # Errors
/// `Unavailable` if there are too many.
pub(super) fn watch_permit(call: &Call<'_>) -> Result<tokio::sync::OwnedSemaphorePermit> {
    Ok(call.server.state.watches.clone().try_acquire_owned().map_err(|_| {
        let reason = "The server has as many live queries as limits.watch_count allows.";
        Failure::unavailable(reason, Duration::from_secs(10))
    })?)
}

/// Streams the documents whose values at matching paths change. The first row has the sequence from which on it does.
pub(super) fn subscribe_paths(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::Watch, None)?;
    let _permit = watch_permit(call)?;
    let begin = served.database().sequence();
    let mut subscription = served.database().subscribe_paths(call.texts("patterns")?)?;
    if let Some(restriction) = &restriction {
        subscription = subscription.selector(&restriction.selector())?;
    }
    if let Some(since) = call.optional_number("since")? {
        subscription = subscription.since(Sequence::new(since))?;
    }
    call.release_reading();
    let mut rows = RowStream::new(call);
    let mut heartbeat = Heartbeat::new();
    rows.add_value(&object([("begin", begin.get().into())]))?;
    rows.send()?;
    loop {
        let next = subscription.next_within(STREAM_CHECK)?;
        heartbeat.check(call, &served, RightsOf::Watch, restriction.as_ref())?;
        let Some(change) = next else { continue };
        rows.add_value(&path_change_value(change)?)?;
        while let Some(change) = subscription.next_within(Duration::ZERO)? {
            rows.add_value(&path_change_value(change)?)?;
        }
        rows.send()?;
        heartbeat.sent = Instant::now();
    }
}

fn path_change_value(change: PathChange) -> Result<Value> {
    let mut row = Object::new();
    row.insert("seq", change.sequence.get());
    row.insert("id", change.id.as_str());
    if let Some(document) = &change.document {
        row.insert("document", document_value(document, &document.attachments()?)?);
    }
    let event = |event: PathEvent| match event {
        PathEvent::Added(path) => Value::from_iter(["added".to_owned(), path]),
        PathEvent::Changed(path) => Value::from_iter(["changed".to_owned(), path]),
        PathEvent::Removed(path) => Value::from_iter(["removed".to_owned(), path]),
    };
    row.insert("paths", change.paths.into_iter().map(event).collect::<Vec<_>>());
    Ok(Value::Object(row))
}

/// Publishes a message to a topic; returns how many subscribers it has.
pub(super) fn publish(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Publish, None)?;
    let payload = call.arguments.get("payload").cloned().unwrap_or(Value::Null);
    check_message_bytes(payload.to_json().len())?;
    let count = served.database().publish(call.text("topic")?, &payload)?;
    Ok(call.reply(&Value::from(count as u64)))
}

/// Streams the messages of topics that match patterns. The first row says that the subscription has begun.
pub(super) fn subscribe_topic(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::SubscribeTopic, None)?;
    let _permit = watch_permit(call)?;
    let mut subscription = served.database().subscribe_topic(call.texts("patterns")?)?;
    call.release_reading();
    let mut rows = RowStream::new(call);
    let mut heartbeat = Heartbeat::new();
    rows.add_value(&object([("begin", true.into())]))?;
    rows.send()?;
    let mut dropped_count = 0;
    loop {
        let mut next = subscription.next_within(STREAM_CHECK);
        heartbeat.check(call, &served, RightsOf::SubscribeTopic, None)?;
        if next.is_none() {
            match subscription.is_closed() {
                true => return Err(Error::closed("the database was closed").into()),
                false => continue,
            }
        }
        while let Some(message) = next {
            rows.add_value(&object([("topic", message.topic.as_str().into()), ("payload", message.payload.clone())]))?;
            next = subscription.next_within(Duration::ZERO);
        }
        // Messages are dropped when others arrive, so there was at least one.
        let dropped = subscription.dropped_count();
        if dropped > std::mem::replace(&mut dropped_count, dropped) {
            rows.add_value(&object([("dropped", dropped.into())]))?;
        }
        rows.send()?;
        heartbeat.sent = Instant::now();
    }
}

/// The row of a document that enters the result of a live query, or changes in it.
pub(super) fn document_event(kind: &str, document: &Document) -> Result<Value> {
    Ok(object([(kind, document_value(document, &document.attachments()?)?)]))
}

/// The row of a document that leaves the result of a live query.
pub(super) fn removed_event(id: &str, deleted: bool) -> Value {
    object([("removed", id.into()), ("deleted", deleted.into())])
}

/// The query of a live query.
pub(super) fn watched_query(call: &Call<'_>) -> Result<Query> {
    let query = call.arguments.get("query").ok_or_else(|| Error::invalid("the argument `query` is missing"))?;
    Ok(Query::parse(query)?)
}

/// Streams the result of a query, and then its changes: events, and after those of a transaction a row with its
/// sequence.
pub(super) fn watch(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::Watch, None)?;
    let _permit = watch_permit(call)?;
    let mut watch = served.database().watch(narrowed(restriction.as_ref(), watched_query(call)?))?;
    call.release_reading();
    let mut rows = RowStream::new(call);
    let mut heartbeat = Heartbeat::new();
    loop {
        let next = watch.next_within(STREAM_CHECK)?;
        heartbeat.check(call, &served, RightsOf::Watch, restriction.as_ref())?;
        let Some(delta) = next else { continue };
        for event in delta.events() {
            rows.add_value(&match event? {
                DeltaEvent::Added(document) => document_event("added", &document)?,
                DeltaEvent::Changed(document) => document_event("changed", &document)?,
                DeltaEvent::Removed { id, deleted } => removed_event(id.as_str(), deleted),
            })?;
        }
        rows.add_value(&object([("seq", delta.sequence().get().into()), ("first", delta.is_first().into())]))?;
        rows.send()?;
        heartbeat.sent = Instant::now();
    }
}
