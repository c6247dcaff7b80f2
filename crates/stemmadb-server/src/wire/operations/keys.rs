//! Key-value pairs, counters and keys with a time to live.

use std::time::Duration;

use stemmadb::handles::KeyCondition;
use stemmadb::{Error, Keys, Value};

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::lanes::{self, Lanes};
use super::super::opened::OpenedDatabase;
use super::super::rights::RightsOf;
use super::super::rows::RowStream;

fn namespace(call: &Call<'_>, served: &OpenedDatabase) -> Result<Keys> {
    Ok(served.database().keys(call.text("namespace")?)?.durability(call.durability()))
}

/// Reads a key: an array with its value, empty if there is no such key.
pub(super) fn get(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::GetKey, None)?;
    let value = namespace(call, &served)?.get::<Value>(call.text("key")?)?;
    Ok(call.reply(&Value::Array(value.into_iter().collect())))
}

/// Lists keys and values, as rows of two elements.
pub(super) fn list(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::ListKeys, None)?;
    let mut rows = RowStream::new(call);
    for (key, value) in namespace(call, &served)?.all::<Value>()? {
        rows.add_value(&Value::Array(vec![key.into(), value]))?;
    }
    Ok(rows.finish(&[]))
}

/// Runs a write of a key, at most once if the request has a write key.
fn once(call: &Call<'_>, served: &OpenedDatabase, write: impl FnOnce(Keys) -> Result<Value>) -> Result<Vec<u8>> {
    let keys = namespace(call, served)?;
    let user = call.user();
    let Some(key) = call.request.key else { return Ok(call.reply(&user.writing(|| write(keys))?)) };
    let lanes = served.own().extension::<Lanes>();
    let result = {
        let _lane = lanes.lock(&key);
        if let Some(result) = lanes.earlier_result(call, served, &key)? {
            return Ok(call.reply(&result));
        }
        let keys = keys.recording(move |result| (lanes::record_id(&key), lanes::record(&key, result)));
        user.writing(|| write(keys))?
    };
    lanes.note(served, &key);
    Ok(call.reply(&result))
}

/// Sets a key if a condition holds: whether it did, and the previous value.
pub(super) fn set(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::PutKey, None)?;
    let key = call.text("key")?;
    let value = call.arguments.get("value").ok_or_else(|| Error::invalid("the argument `value` is missing"))?;
    let condition = match (call.optional_text("if"), call.arguments.get("expected")) {
        (None, None) => KeyCondition::Always,
        (None, Some(expected)) => KeyCondition::Equals(expected.clone()),
        (Some("absent"), None) => KeyCondition::Absent,
        (Some("present"), None) => KeyCondition::Present,
        _ => return Err(Error::invalid("`if` is `absent` or `present`, without `expected`").into()),
    };
    let time = call.optional_number("ttl_ms")?.map(Duration::from_millis);
    once(call, &served, |keys| {
        let written = keys.set_if(key, value, &condition, time)?;
        Ok(object([("was_set", written.was_set.into()), ("previous", written.previous.unwrap_or_default())]))
    })
}

/// Removes a key: whether there was one.
pub(super) fn remove(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::DeleteKey, None)?;
    let key = call.text("key")?;
    once(call, &served, |keys| Ok(keys.remove(key)?.into()))
}

/// Adds to a number: the sum.
pub(super) fn increment(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::IncrementKey, None)?;
    let key = call.text("key")?;
    let by = call.arguments.get("by").and_then(Value::as_i64);
    let by = by.ok_or_else(|| Error::invalid("the argument `by` is no whole number"))?;
    once(call, &served, |keys| Ok(keys.increment(key, by)?.into()))
}
