//! Operations that are passed on to the server of a shard, in the name of the user: it validates writes by what the
//! shard obeys, and records the client's write key with them.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use stemmadb::past::At;
use stemmadb::{Error, ErrorKind, Object, Value};
use stemmadb_wire::{Item, Operation, Repetition};

use super::super::super::call::{Call, ON_BEHALF, object};
use super::super::super::failure::{Result, ShardElsewhere, WireError};
use super::super::super::lanes::Lanes;
use super::super::super::opened::OpenedDatabase;
use super::super::documents::reply;
use crate::auth::Restriction;
use crate::virtual_databases::{DelegatedRequest, OpenVirtual, RemoteShard, Shard};

/// Whether an operation is passed on: it is about documents of one bucket, and its result is one value.
fn is_passed_on(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Get
            | Operation::GetRevision
            | Operation::DocumentAt
            | Operation::Edit
            | Operation::Transact
            | Operation::Batch
    )
}

/// Passes an operation on if its shard is on another server.
pub(in super::super) fn pass_on_if_elsewhere(call: &Call<'_>, executed: Result<Vec<u8>>) -> Result<Vec<u8>> {
    match executed {
        Err(WireError { shard: Some(shard), .. }) if is_passed_on(call.request.operation) => pass_on(call, *shard),
        executed => executed,
    }
}

fn pass_on(call: &Call<'_>, shard: ShardElsewhere) -> Result<Vec<u8>> {
    let ShardElsewhere { entered, remote, restriction } = shard;
    let mut arguments = call.arguments.as_object().cloned().unwrap_or_default();
    if let Some(state) = entered.state_of(&Shard::There(remote.clone()))? {
        arguments.insert("as_of", state_value(state));
    }
    let operation = match call.request.operation {
        // As the state of the shard then.
        Operation::DocumentAt => Operation::Get,
        operation => operation,
    };
    let ask = |opened: &OpenedDatabase| {
        let open = &opened.entered().ok_or_else(|| Error::internal("the database is not virtual"))?.open;
        ask(call, open, &remote, restriction.as_ref(), operation, arguments)
    };
    let opened = OpenedDatabase::own_of(entered);
    let key = call.request.key.filter(|_| operation.repetition() == Repetition::Keyed);
    let Some(key) = key else {
        return match ask(&opened)? {
            Item::Document(document) => reply(call, Some(document)),
            Item::Value(value) => Ok(call.reply(&value)),
        };
    };
    let lanes = opened.own().extension::<Lanes>();
    let _lane = lanes.lock(&key);
    if let Some(result) = lanes.earlier_result(call, &opened, &key)? {
        return Ok(call.reply(&result));
    }
    let result = ask(&opened)?.into_value()?;
    lanes.note(&opened, &key);
    Ok(call.reply(&result))
}

/// Applies the edits at these positions of a bulk in their shard; returns their results.
pub(super) fn apply_there(
    call: &Call<'_>,
    open: &Arc<OpenVirtual>,
    remote: &RemoteShard,
    restriction: Option<&Restriction>,
    positions: Vec<usize>,
) -> Result<Vec<(usize, Value)>> {
    let edits = call.list("edits")?;
    let mut arguments = Object::new();
    arguments.insert("edits", positions.iter().map(|at| edits[*at].clone()).collect::<Vec<_>>());
    arguments.insert("positions", positions.iter().map(|at| Value::from(*at as u64)).collect::<Vec<_>>());
    if let Some(durability) = call.arguments.get("durability") {
        arguments.insert("durability", durability.clone());
    }
    match ask(call, open, remote, restriction, Operation::Bulk, arguments)?.into_value()? {
        Value::Array(results) => Ok(positions.into_iter().zip(results).collect()),
        _ => Err(Error::internal("a shard returned no results").into()),
    }
}

/// Asks the server of a shard, in the name of the user.
fn ask(
    call: &Call<'_>,
    open: &Arc<OpenVirtual>,
    remote: &RemoteShard,
    restriction: Option<&Restriction>,
    operation: Operation,
    mut arguments: Object,
) -> Result<Item> {
    let writes_design = operation.repetition() == Repetition::Keyed && names_design(&arguments);
    let _write = writes_design.then(|| call.server.wait(Box::pin(open.begin_design_write()))).transpose()?;
    let version = call.server.wait(Box::pin(remote.share(&open.shared_whole())))?;
    arguments.insert(ON_BEHALF, DelegatedRequest::encode(call.user(), restriction, &version)?);
    let database = remote.server.database(&remote.database);
    let asked = database.pass_on(operation, call.request.key, &Value::Object(arguments));
    if asked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
        // Its database may have been replaced.
        call.server.wait(remote.forget_given());
    }
    Ok(asked?)
}

/// Whether arguments name a design document: alone, or among edits or steps.
fn names_design(arguments: &Object) -> bool {
    let is_design = |id: Option<&Value>| id.and_then(Value::as_str).is_some_and(|id| id.starts_with("_design/"));
    let listed = ["edits", "steps"].into_iter().filter_map(|name| arguments.get(name)?.as_array());
    is_design(arguments.get("id")) || listed.flatten().any(|listed| is_design(listed.get("id")))
}

/// A state of the past as an argument.
fn state_value(state: At) -> Value {
    match state {
        At::Sequence(sequence) => sequence.get().into(),
        At::Time(time) => {
            let us = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
            object([("time_us", u64::try_from(us).unwrap_or(u64::MAX).into())])
        }
        // A shard's state is one of these.
        _ => Value::Null,
    }
}
