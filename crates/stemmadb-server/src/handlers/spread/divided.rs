//! Requests about several documents, divided by the shards of the documents.

use std::collections::BTreeMap;

use hyper::StatusCode;
use stemmadb::{Object, Value};

use super::forward::begin_design_write;
use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::error::{Failure, Result};
use crate::http::HttpResponse;
use crate::virtual_databases::Shard;
use crate::writes::new_document_id;

/// The items of one shard, with their positions in the request.
type Part<T> = (Shard, Vec<(usize, T)>);

/// Divides items by their shards.
fn divide<T>(call: &Call, items: Vec<T>, id: impl Fn(&T) -> &str) -> Result<Vec<Part<T>>> {
    let entered = call.entered()?;
    let mut parts: BTreeMap<usize, Part<T>> = BTreeMap::new();
    for (position, item) in items.into_iter().enumerate() {
        let key = entered.part_of(id(&item));
        let part = parts.entry(key).or_insert_with(|| (entered.shard_of(id(&item)), Vec::new()));
        part.1.push((position, item));
    }
    Ok(parts.into_values().collect())
}

/// Takes the array that a request or an answer has under a name.
fn take_array(value: &mut Value, name: &str) -> Result<Vec<Value>> {
    match value.as_object_mut().and_then(|object| object.remove(name)) {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(Failure::bad_request(format!("Missing JSON list of '{name}'."))),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn set(value: &mut Value, name: &str, to: impl Into<Value>) {
    if let Value::Object(object) = value {
        object.insert(name, to);
    }
}

fn single(name: &str, value: Value) -> Value {
    Value::Object([(name, value)].into_iter().collect())
}

fn json(status: StatusCode, value: &Value) -> HttpResponse {
    let mut text = value.to_json().into_bytes();
    text.push(b'\n');
    HttpResponse::text(status, "application/json", text)
}

/// `POST /{db}`
pub(super) async fn post(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let mut document = call.document().await?;
    if document.as_object().is_none() {
        return Err(Failure::bad_request("Document must be a JSON object"));
    }
    if document.get("_id").is_none() {
        set(&mut document, "_id", new_document_id());
    }
    let id = text(&document, "_id").to_owned();
    let _write = begin_design_write(&call.parts.method, &call.entered()?.open, [id.as_str()]).await?;
    let shard = call.entered()?.shard_of(&id);
    let (status, answer) = ShardCall::same_route(&call, handler).ask(&shard, &call.query, Some(&document)).await?;
    Ok(json(status, &answer))
}

/// `POST /{db}/_bulk_docs`
pub(super) async fn bulk_docs(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let mut body = call.document().await?;
    let is_replicated = body.get("new_edits") == Some(&Value::Bool(false));
    let mut documents = take_array(&mut body, "docs")?;
    let mut rows: Vec<Option<Value>> = vec![None; documents.len()];
    for document in documents.iter_mut().filter(|document| document.get("_id").is_none()) {
        set(document, "_id", new_document_id());
    }
    let ids = documents.iter().map(|document| text(document, "_id"));
    let _write = begin_design_write(&call.parts.method, &call.entered()?.open, ids).await?;
    let parts = divide(&call, documents, |document| text(document, "_id"))?;
    let (mut asked, mut positions) = (Vec::new(), Vec::new());
    for (shard, part) in parts {
        let (of_part, documents): (Vec<usize>, Vec<Value>) = part.into_iter().unzip();
        let mut body = body.clone();
        set(&mut body, "docs", documents);
        asked.push((shard, Some(body)));
        positions.push(of_part);
    }
    let answers = ShardCall::same_route(&call, handler).ask_all(asked).await?;
    let status = answers.first().map_or(StatusCode::CREATED, |(status, _)| *status);
    // Of replicated revisions, only errors are returned.
    let mut errors = Vec::new();
    for (positions, (_, answer)) in positions.into_iter().zip(answers) {
        let Value::Array(answer) = answer else { return Err(Failure::internal("a shard answered without rows")) };
        match is_replicated {
            true => errors.extend(answer),
            false => positions.into_iter().zip(answer).for_each(|(position, row)| rows[position] = Some(row)),
        }
    }
    let rows = rows.into_iter().flatten().chain(errors).collect();
    Ok(json(status, &Value::Array(rows)))
}

/// `POST /{db}/_bulk_get`
pub(super) async fn bulk_get(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let entries = take_array(&mut call.json().await?, "docs")?;
    if entries.iter().any(|entry| entry.get("id").and_then(Value::as_str).is_none()) {
        return Err(Failure::bad_request("document id missed"));
    }
    let count = entries.len();
    call.parts.headers.remove(hyper::header::ACCEPT);
    let parts = divide(&call, entries, |entry| text(entry, "id"))?;
    let (mut asked, mut positions) = (Vec::new(), Vec::new());
    for (shard, part) in parts {
        let (of_part, entries): (Vec<usize>, Vec<Value>) = part.into_iter().unzip();
        asked.push((shard, Some(single("docs", entries.into()))));
        positions.push(of_part);
    }
    let answers = ShardCall::same_route(&call, handler).ask_all(asked).await?;
    let mut rows: Vec<Option<Value>> = vec![None; count];
    for (positions, (_, mut answer)) in positions.into_iter().zip(answers) {
        let answered = take_array(&mut answer, "results")?;
        positions.into_iter().zip(answered).for_each(|(position, row)| rows[position] = Some(row));
    }
    let rows = Value::Array(rows.into_iter().flatten().collect());
    Ok(json(StatusCode::OK, &single("results", rows)))
}

/// `POST /{db}/_revs_diff` and `POST /{db}/_missing_revs`, whose answer is under a name.
pub(super) async fn revisions(mut call: Call, handler: Handler, name: Option<&str>) -> Result<HttpResponse> {
    let Value::Object(asked) = call.json().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object of arrays of revisions"));
    };
    let parts = divide(&call, asked.into_iter().collect::<Vec<_>>(), |(id, _)| id)?;
    let asked = parts.into_iter().map(|(shard, part)| {
        let body: Object = part.into_iter().map(|(_, entry)| entry).collect();
        (shard, Some(Value::Object(body)))
    });
    let asked: Vec<_> = asked.collect();
    let answers = ShardCall::same_route(&call, handler).ask_all(asked).await?;
    let mut missing = Object::new();
    for (_, answer) in answers {
        let of_shard = match (answer, name) {
            (Value::Object(mut answer), Some(name)) => answer.remove(name),
            (answer, _) => Some(answer),
        };
        if let Some(Value::Object(of_shard)) = of_shard {
            of_shard.into_iter().for_each(|(id, entry)| drop(missing.insert(id, entry)));
        }
    }
    let missing = Value::Object(missing);
    let answer = match name {
        Some(name) => single(name, missing),
        None => missing,
    };
    Ok(json(StatusCode::OK, &answer))
}
