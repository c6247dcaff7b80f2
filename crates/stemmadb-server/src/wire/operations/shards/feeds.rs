//! The changes feed of a virtual database, subscriptions to it, and live queries.
//!
//! A position is a token that names the sequence of each shard. A frame with changes ends with a row that has the token
//! after them: a client whose connection is lost has returned the changes of whole frames, and continues there. A
//! document that changes its shard may be reported again with the same revision.

use std::collections::HashSet;
use std::sync::Arc;

use stemmadb::{Change, Error, Selector, Value};
use stemmadb_federation::{VirtualChangeRows, VirtualChanges};
use tokio::time::timeout;

use super::super::super::call::{Call, object};
use super::super::super::failure::Result;
use super::super::super::rights::RightsOf;
use super::super::super::rows::{RowStream, STREAM_CHECK, change_row};
use super::super::feeds::{
    Heartbeat, change_value, document_event, optional_texts, removed_event, selector, watch_permit, watched_query,
};
use crate::auth::Restriction;
use crate::virtual_databases::{OpenVirtual, Shard, ShardSignals};
use crate::watch::{LiveResult, ResultChange};

/// What a request reads of the changes.
struct ShardsFeed {
    open: Arc<OpenVirtual>,
    documents: bool,
    ids: Option<HashSet<String>>,
    paths: Option<Vec<String>>,
    selector: Option<Selector>,
    departures: bool,
    restriction: Option<Restriction>,
}

impl ShardsFeed {
    /// Checks rights and opens the virtual database. A feed lasts long, and holds back no move.
    fn open(call: &Call<'_>) -> Result<Self> {
        let (entered, restriction) = call.enter_restricted(RightsOf::Changes)?;
        let paths = optional_texts(call, "paths")?;
        if let Some(paths) = &paths {
            // A malformed pattern fails the request.
            entered.open.own.database().changes(stemmadb::Sequence::ZERO)?.paths(paths)?;
        }
        Ok(ShardsFeed {
            open: entered.open.clone(),
            documents: call.flag("documents"),
            ids: optional_texts(call, "ids")?.map(HashSet::from_iter),
            paths,
            selector: selector(call, restriction.as_ref())?,
            departures: restriction.is_some() || call.flag("departures"),
            restriction,
        })
    }

    /// The changes after a position.
    fn after(&self, token: Option<&str>) -> Result<VirtualChanges> {
        let changes = self.open.database.changes().documents(self.documents);
        let changes = token.into_iter().fold(changes, VirtualChanges::after);
        let changes = match &self.selector {
            Some(selector) => changes.selector(selector, self.departures)?,
            None => changes,
        };
        Ok(self.paths.iter().fold(changes, VirtualChanges::paths))
    }

    /// The next change that is asked for.
    fn next(&self, rows: &mut VirtualChangeRows) -> Result<Option<Value>> {
        loop {
            let Some(change) = rows.next().transpose()? else { return Ok(None) };
            if self.ids.as_ref().is_none_or(|ids| ids.contains(change.id.as_str())) {
                return self.row(&change).map(Some);
            }
        }
    }

    fn row(&self, change: &Change) -> Result<Value> {
        match self.open.layout().shard_of(change.id.as_str()) {
            Shard::Here(served) => change_value(&served, change, self.restriction.as_ref()),
            // Whether the user may read other branches is not known here.
            Shard::There(_) if self.restriction.is_some() => change_row(change, &change.leaves[..1]),
            Shard::There(_) => change_row(change, &change.leaves),
        }
    }
}

/// The position after which changes are read; none for the beginning.
///
/// # Errors
/// `Invalid` for a sequence, which shards don't have in common.
fn position(call: &Call<'_>) -> Result<Option<String>> {
    match (call.optional_text("after"), call.optional_number("since")?.unwrap_or(0)) {
        (Some(token), _) => Ok(Some(token.to_owned())),
        (None, 0) => Ok(None),
        (None, _) => Err(Error::invalid("the shards of a virtual database have no common sequence")
            .with_hint("begin at sequence 0, or continue after the token of the feed")
            .into()),
    }
}

/// Streams the changes after a position, up to the newest.
pub(super) fn changes(call: &Call<'_>) -> Result<Vec<u8>> {
    let feed = ShardsFeed::open(call)?;
    let mut left = call.optional_number("limit")?.unwrap_or(u64::MAX);
    let mut changes = feed.after(position(call)?.as_deref())?.descending(call.flag("descending")).run()?;
    let mut rows = RowStream::new(call);
    while left > 0 {
        let Some(row) = feed.next(&mut changes)? else { break };
        call.running.refuse_if_cancelled()?;
        rows.add_value(&row)?;
        left -= 1;
    }
    Ok(rows.finish(&[("last", changes.sequence_sum().into()), ("token", changes.token().into())]))
}

/// The row with a position.
fn token_row(changes: &VirtualChangeRows) -> Value {
    object([("token", changes.token().into())])
}

/// Waits for a change of a shard, for a while; returns whether there is one.
///
/// # Errors
/// `Closed` if the shards were closed.
fn wait(call: &Call<'_>, signals: &mut ShardSignals) -> Result<bool> {
    match call.server.wait(async { timeout(STREAM_CHECK, signals.changed()).await }) {
        Ok(true) => Ok(true),
        Ok(false) => Err(Error::closed("the database was closed").into()),
        Err(_) => Ok(false),
    }
}

/// Streams the changes after a position, and then each new one, until it is cancelled. After those that there were, a
/// row says so.
pub(super) fn subscribe(call: &Call<'_>) -> Result<Vec<u8>> {
    let feed = ShardsFeed::open(call)?;
    let mut position = position(call)?;
    call.release_reading();
    let (mut rows, mut heartbeat) = (RowStream::new(call), Heartbeat::new());
    let mut has_caught_up = false;
    let mut check = |rows: &mut RowStream<'_>, is_sent: bool| {
        if is_sent {
            rows.send()?;
            heartbeat.sent = std::time::Instant::now();
        }
        heartbeat.check(call, &feed.open.own, RightsOf::Changes, feed.restriction.as_ref())
    };
    loop {
        // Before the changes are read, so that nothing is missed in between.
        let mut signals = feed.open.signals();
        let mut changes = feed.after(position.as_deref())?.run()?;
        while let Some(row) = feed.next(&mut changes)? {
            rows.append_value(&row)?;
            if rows.is_full() {
                rows.append_value(&token_row(&changes))?;
                check(&mut rows, true)?;
            }
        }
        if !has_caught_up {
            has_caught_up = true;
            let reached = changes.sequence_sum();
            rows.append_value(&object([("caught_up", reached.into()), ("token", changes.token().into())]))?;
        } else if rows.has_unsent() {
            rows.append_value(&token_row(&changes))?;
        }
        let is_sent = rows.has_unsent();
        check(&mut rows, is_sent)?;
        position = Some(changes.token());
        while !wait(call, &mut signals)? {
            check(&mut rows, false)?;
        }
    }
}

/// Streams the result of a selector, and then its changes: events, and after those that were read together a row with
/// the sum of the shards' sequences.
pub(super) fn watch(call: &Call<'_>) -> Result<Vec<u8>> {
    let (entered, restriction) = call.enter_restricted(RightsOf::Watch)?;
    let open = entered.open.clone();
    drop(entered);
    let _permit = watch_permit(call)?;
    let query = watched_query(call)?;
    if let Some(name) =
        query.to_value()?.as_object().into_iter().flat_map(|query| query.names()).find(|name| *name != "selector")
    {
        return Err(Error::invalid(format!("a live query has no `{name}`")).into());
    }
    let readable = restriction.as_ref().map(Restriction::selector);
    let selector = readable.into_iter().fold(query.selector().clone(), |selector, readable| readable.and(selector));
    call.release_reading();
    let (mut rows, mut heartbeat) = (RowStream::new(call), Heartbeat::new());
    let mut result = LiveResult::default();
    // Documents that move while the result is read are in the changes after it.
    let newest = open.database.changes().newest_token();
    for document in open.database.find(selector.clone()).run()? {
        let document = document?;
        if result.add(&document) {
            rows.add_value(&document_event("added", &document)?)?;
        }
    }
    let begin = open.database.changes().after(newest).limit(0).run()?;
    let mut position = begin.token();
    rows.add_value(&object([("seq", begin.sequence_sum().into()), ("first", true.into())]))?;
    rows.send()?;
    loop {
        let mut signals = open.signals();
        let mut changes = open.database.changes().after(position).documents(true).run()?;
        let mut is_changed = false;
        while let Some(change) = changes.next().transpose()? {
            let row = match result.apply(&change, &selector, false)? {
                Some(ResultChange::Entered(document)) => document_event("added", document)?,
                Some(ResultChange::Changed(document)) => document_event("changed", document)?,
                Some(ResultChange::Left) => removed_event(change.id.as_str(), change.deleted),
                None => continue,
            };
            is_changed = true;
            rows.add_value(&row)?;
        }
        if is_changed {
            rows.add_value(&object([("seq", changes.sequence_sum().into()), ("first", false.into())]))?;
            rows.send()?;
            heartbeat.sent = std::time::Instant::now();
        }
        position = changes.token();
        heartbeat.check(call, &open.own, RightsOf::Watch, restriction.as_ref())?;
        while !wait(call, &mut signals)? {
            heartbeat.check(call, &open.own, RightsOf::Watch, restriction.as_ref())?;
        }
    }
}
