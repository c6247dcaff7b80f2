//! The virtual database itself: its deletion, its figures, and how much of the past its shards keep.

use hyper::Method;
use stemmadb::past::Retention;
use stemmadb::{Error, Object, Selector, Value};

use super::super::super::call::{Call, object};
use super::super::super::failure::Result;
use super::super::super::rights::RightsOf;
use super::super::past::set_retention;
use crate::auth::Restriction;
use crate::virtual_databases::{EnteredVirtual, Shard};

pub(super) fn delete(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::DeleteDatabase, None)?;
    let databases = &call.server.state.virtual_databases;
    call.server.wait(Box::pin(databases.delete(call.request.database)))?;
    Ok(call.reply(&Value::Null))
}

/// The number of documents, and the position of the changes feed. `sequence` is the sum of the shards' sequences.
pub(super) fn info(call: &Call<'_>) -> Result<Vec<u8>> {
    let (entered, restriction) = call.enter_restricted(RightsOf::Info)?;
    let (own, layout) = (entered.open.own.clone(), entered.layout());
    let mut deleted = 0;
    // Documents that have moved are deletions in their former shards.
    if restriction.is_none() && !layout.has_moved() && !entered.is_spread() {
        for served in layout.shards() {
            deleted += served.database().info()?.deleted_count;
        }
    }
    let database = entered.into_reading();
    let readable = restriction.as_ref().map_or_else(Selector::everything, Restriction::selector);
    let documents = database.find(readable.into()).count()?;
    let changes = database.open.database.changes();
    let newest = changes.newest_token();
    let newest = changes.after(newest).limit(0).run()?;
    Ok(call.reply(&object([
        ("documents", documents.into()),
        ("deleted", deleted.into()),
        ("sequence", newest.sequence_sum().into()),
        ("token", newest.token().into()),
        ("instance", own.instance_id().into()),
    ])))
}

/// All shards, which have to be on this server.
fn shards_here(call: &Call<'_>, entered: &EnteredVirtual) -> Result<()> {
    if entered.is_spread() { Err(call.unsupported_there()) } else { Ok(()) }
}

pub(super) fn flush(call: &Call<'_>) -> Result<Vec<u8>> {
    let (entered, _) = call.enter_restricted(RightsOf::Flush)?;
    entered.open.own.database().flush()?;
    for shard in entered.layout().all() {
        match shard {
            Shard::Here(served) => served.database().flush()?,
            Shard::There(remote) => {
                let body = Some("{}".into());
                let asked = remote.ask(Method::POST, "/_ensure_full_commit", body, None);
                call.server.wait(Box::pin(asked))?;
            }
        }
    }
    Ok(call.reply(&Value::Null))
}

/// Sets how much of the past each shard keeps.
pub(super) fn keep(call: &Call<'_>) -> Result<Vec<u8>> {
    let entered = call.enter_all(RightsOf::PutRetention)?;
    shards_here(call, &entered)?;
    for served in entered.layout().shards() {
        set_retention(call, served)?;
    }
    Ok(call.reply(&Value::Null))
}

/// How much of the past each shard keeps, and the size of all history files. `oldest` is null: shards have no common
/// sequence.
pub(super) fn retention(call: &Call<'_>) -> Result<Vec<u8>> {
    let entered = call.enter_all(RightsOf::Info)?;
    shards_here(call, &entered)?;
    let layout = entered.layout();
    let first = layout.shards().first().ok_or_else(|| Error::internal("a virtual database has no shard"))?;
    let prefixes = first.database().history().prefixes().into_iter();
    let prefixes: Object = prefixes.map(|(prefix, kept): (String, Retention)| (prefix, kept.to_value())).collect();
    let bytes: u64 = layout.shards().iter().map(|served| served.database().history().byte_count()).sum();
    Ok(call.reply(&object([
        ("retention", first.database().history().retention().to_value()),
        ("prefixes", Value::Object(prefixes)),
        ("pins", Value::Object(Object::new())),
        ("oldest", Value::Null),
        ("bytes", bytes.into()),
    ])))
}
