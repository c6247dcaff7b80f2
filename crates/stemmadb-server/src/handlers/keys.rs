//! Routes of the key-value store: `/{db}/_keys/{namespace}` and `/{db}/_keys/{namespace}/{key}`.

use std::time::Duration;

use hyper::StatusCode;
use stemmadb::handles::KeyCondition;
use stemmadb::{Durability, Keys, Object, Value};

use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, reading};
use crate::writes::run_write;

/// What names a key in a request.
struct KeyName {
    namespace: String,
    key: String,
    /// The durability that the request asks for.
    durability: Option<Durability>,
}

impl KeyName {
    fn of(call: &Call) -> Result<KeyName> {
        let is_batch = call.query.text("batch") == Some("ok");
        Ok(KeyName {
            namespace: call.parameter("namespace")?.to_owned(),
            key: call.parameter("key")?.to_owned(),
            durability: is_batch.then_some(Durability::None),
        })
    }

    fn keys(&self, served: &ServedDatabase) -> Result<Keys> {
        let keys = served.database().keys(&self.namespace)?;
        Ok(match self.durability {
            Some(durability) => keys.durability(durability),
            None => keys,
        })
    }
}

/// `GET /{db}/_keys/{namespace}`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let namespace = call.parameter("namespace")?.to_owned();
    let prefix = call.query.text("prefix").unwrap_or_default().to_owned();
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    reading(move || {
        let mut text = b"{\"rows\":[".to_vec();
        let all = served.database().keys(&namespace)?.all::<Value>()?;
        for (at, (key, value)) in all.into_iter().filter(|(key, _)| key.starts_with(&prefix)).take(limit).enumerate() {
            text.extend_from_slice(if at == 0 { b"\n{\"key\":" } else { b",\n{\"key\":" });
            Value::from(key).write_json(&mut text);
            text.extend_from_slice(b",\"value\":");
            value.write_json(&mut text);
            text.push(b'}');
        }
        text.extend_from_slice(b"\n]}\n");
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// `GET /{db}/_keys/{namespace}/{key}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let name = KeyName::of(&call)?;
    reading(move || {
        let value = name.keys(&served)?.get::<Value>(&name.key)?.ok_or_else(Failure::missing)?;
        Ok(response(StatusCode::OK, [("value", value)]))
    })
    .await
}

/// `PUT /{db}/_keys/{namespace}/{key}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let name = KeyName::of(&call)?;
    let condition = condition(&call)?;
    let time = match call.query.number::<u64>("ttl")? {
        Some(0) => return Err(Failure::query_parse("`ttl` is a positive number of seconds.")),
        seconds => seconds.map(Duration::from_secs),
    };
    let returns_previous = call.query.flag("previous", false)?;
    let value = call.document().await?;
    let (written, condition) = run_write(&served, move |served| {
        let written = name.keys(served)?.set_if(&name.key, &value, &condition, time)?;
        Ok((written, condition))
    })
    .await?;
    if !written.was_set {
        let reason = match condition {
            KeyCondition::Absent => "The key exists already.",
            KeyCondition::Present => "The key does not exist.",
            _ => "The key has another value.",
        };
        return Err(Failure::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", reason));
    }
    let previous = returns_previous.then(|| ("previous", written.previous.unwrap_or(Value::Null)));
    Ok(response(StatusCode::CREATED, [("ok", Value::from(true))].into_iter().chain(previous)))
}

/// The condition of the parameters `if` and `expected`.
fn condition(call: &Call) -> Result<KeyCondition> {
    match (call.query.text("if"), call.query.json("expected")?) {
        (None, None) => Ok(KeyCondition::Always),
        (None, Some(expected)) => Ok(KeyCondition::Equals(expected)),
        (Some("absent"), None) => Ok(KeyCondition::Absent),
        (Some("present"), None) => Ok(KeyCondition::Present),
        (Some(_), Some(_)) => Err(Failure::query_parse("`if` and `expected` exclude each other.")),
        (Some(_), None) => Err(Failure::query_parse("`if` must be `absent` or `present`.")),
    }
}

/// `DELETE /{db}/_keys/{namespace}/{key}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let name = KeyName::of(&call)?;
    match run_write(&served, move |served| Ok(name.keys(served)?.remove(&name.key)?)).await? {
        true => HttpResponse::ok(&serde_json::json!({"ok": true})),
        false => Err(Failure::missing()),
    }
}

/// `POST /{db}/_keys/{namespace}/{key}`
pub(crate) async fn increment(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let name = KeyName::of(&call)?;
    let body = call.json().await?;
    let by = match body.as_object() {
        Some(object) if object.len() == 1 => object.get("increment").cloned(),
        _ => None,
    };
    let by = by.filter(|by| by.as_f64().is_some());
    let by = by.ok_or_else(|| Failure::bad_request("The body is `{\"increment\": number}`"))?;
    let sum = run_write(&served, move |served| {
        let keys = name.keys(served)?;
        Ok(match by.as_i64() {
            Some(by) => Value::from(keys.increment(&name.key, by)?),
            None => Value::from(keys.increment_float(&name.key, by.as_f64().unwrap_or_default())?),
        })
    })
    .await?;
    Ok(response(StatusCode::OK, [("value", sum)]))
}

fn response(status: StatusCode, fields: impl IntoIterator<Item = (&'static str, Value)>) -> HttpResponse {
    let mut text = Vec::new();
    Value::Object(fields.into_iter().collect::<Object>()).write_json(&mut text);
    text.push(b'\n');
    HttpResponse::text(status, "application/json", text)
}
