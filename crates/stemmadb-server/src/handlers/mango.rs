//! Routes of Mango.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Database, Document, ErrorKind, Index, Object, Snapshot, Value};

use crate::app::Call;
use crate::design;
use crate::directory::Served;
use crate::documents::{Incoming, Printer, Show};
use crate::error::{Failure, Result};
use crate::http::{Answer, Pieces, blocking, streamed};
use crate::mango::{Definition, LIBRARY_PREFIX, Listed, Request, design_document, listed};
use crate::writes::{WriteOptions, write_one};

/// More documents read for each row that is found than this, and a client is told.
const EXAMINED_PER_ROW_MAX: u64 = 10;

const WARNING: &str = "The number of documents examined is high in proportion to the number of results returned. Consider adding a more specific index to improve this.";

/// `POST /{db}/_find`
pub(crate) async fn find(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let request = Request::parse(&call.json().await?)?;
    found(&call, served, |_| Ok(request)).await
}

/// What a query finds, which is made first.
pub(super) async fn found(
    call: &Call,
    served: Arc<Served>,
    request: impl FnOnce(&Database) -> Result<Request> + Send + 'static,
) -> Result<Answer> {
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let request = request(served.database())?;
        write_found(&served, &request, &mut out).await
    })
    .await
}

async fn write_found(served: &Arc<Served>, request: &Request, out: &mut Pieces) -> Result<()> {
    let begun = Instant::now();
    let snapshot = served.database().snapshot()?;
    out.buffer.extend_from_slice(b"{\"docs\":[");
    let (row_count, token, documents_read) = match request.is_at_end() {
        true => (0, None, 0),
        false => write_rows(served, &snapshot, request, out).await?,
    };
    out.buffer.extend_from_slice(b"\n],\n\"bookmark\":");
    out.string(&Request::bookmark_of(row_count, token));
    if request.execution_stats {
        let stats = json!({
            "total_keys_examined": 0,
            "total_docs_examined": documents_read,
            "total_quorum_docs_examined": 0,
            "results_returned": row_count,
            "execution_time_ms": begun.elapsed().as_micros() as f64 / 1000.0,
        });
        out.buffer.extend_from_slice(b",\n\"execution_stats\":");
        out.buffer.extend_from_slice(stats.to_string().as_bytes());
    }
    if documents_read > EXAMINED_PER_ROW_MAX * row_count.max(1) {
        out.buffer.extend_from_slice(b",\n\"warning\":");
        out.string(WARNING);
    }
    out.buffer.extend_from_slice(b"}\n");
    Ok(())
}

/// Writes the rows; how many there are, the token that goes on after the last, and how many documents were read to decide.
async fn write_rows(
    served: &Arc<Served>,
    snapshot: &Snapshot,
    request: &Request,
    out: &mut Pieces,
) -> Result<(u64, Option<String>, u64)> {
    let find = snapshot.find(request.query(design::has_any(snapshot)?)?);
    let mut count = 0;
    if request.fields.is_some() {
        let mut found = find.values()?;
        for value in found.by_ref() {
            out.buffer.extend_from_slice(if count == 0 { b"\n" } else { b",\n" });
            value?.write_json(&mut out.buffer);
            count += 1;
            out.flush_if_full().await;
        }
        return Ok((count, found.token()?, found.documents_read().saturating_sub(count)));
    }
    let show = Show { conflicts: request.conflicts, ..Show::default() };
    let printer = Printer { served, snapshot, show: &show };
    let mut found = find.run()?;
    for document in found.by_ref() {
        out.buffer.extend_from_slice(if count == 0 { b"\n" } else { b",\n" });
        printer.print(&document?, &mut out.buffer)?;
        count += 1;
        out.flush_if_full().await;
    }
    Ok((count, found.token()?, found.documents_read().saturating_sub(count)))
}

/// The indexes there are, by design document.
fn indexes(snapshot: &Snapshot) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    for document in design::all(snapshot)? {
        found.extend(listed(&document)?);
    }
    Ok(found)
}

/// Declares the indexes of the library that serve those of design documents, and takes away those that serve none any more. One that comes by
/// replication is declared at the next occasion; queries are answered without it, too.
pub(super) fn keep_indexes(served: &Served) -> Result<()> {
    let database = served.database();
    let mut wanted: BTreeMap<String, Index> = BTreeMap::new();
    for index in indexes(&database.snapshot()?)?.iter().filter_map(Listed::of_library) {
        wanted.insert(index.name(), index);
    }
    for known in database.indexes().list().into_iter().filter(|known| known.name.starts_with(LIBRARY_PREFIX)) {
        if wanted.remove(&known.name).is_none() {
            database.indexes().remove(&known.name)?;
        }
    }
    for (name, index) in wanted {
        match database.indexes().create(index) {
            Ok(()) => {}
            // The library orders nothing by paths such as `_id`, or by very many.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                tracing::debug!("the index `{name}` is not declared: {error}")
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// `POST /{db}/_explain`
pub(crate) async fn explain(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let request = Request::parse(&call.json().await?)?;
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let explanation = snapshot.find(request.query(design::has_any(&snapshot)?)?).explain()?;
        let mut told = Object::new();
        told.insert("dbname", served.name());
        told.insert("index", index_for(&snapshot, &request)?);
        told.insert("partitioned", false);
        told.insert("selector", request.spelled.clone());
        let mut options = Object::new();
        options.insert("limit", request.limit);
        options.insert("skip", request.skip);
        options.insert("sort", request.sort.clone().unwrap_or_else(|| Object::new().into()));
        options.insert("conflicts", request.conflicts);
        options.insert("use_index", request.use_index.clone().unwrap_or_else(|| Value::Array(Vec::new())));
        told.insert("opts", options);
        told.insert("limit", request.limit);
        told.insert("skip", request.skip);
        let fields = |fields: &Vec<String>| Value::Array(fields.iter().map(Value::from).collect());
        told.insert("fields", request.fields.as_ref().map_or_else(|| Value::from("all_fields"), fields));
        told.insert("covering", false);
        // What really answers it: see the guide on queries.
        told.insert("plan", explanation.to_value());
        let mut text = Value::Object(told).to_json().into_bytes();
        text.push(b'\n');
        Ok(Answer::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// The declared index that has most to do with the query: what CouchDB would take.
fn index_for(snapshot: &Snapshot, request: &Request) -> Result<Value> {
    let asked =
        request.selector.to_value()?.to_json() + &request.sort.as_ref().map_or_else(String::new, Value::to_json);
    let known = indexes(snapshot)?;
    let leading =
        |index: &Listed| index.field_names().take_while(|name| asked.contains(&format!("\"{name}\""))).count();
    let fits = |index: &&Listed| leading(index) == index.field_names().count();
    Ok(known.iter().filter(fits).max_by_key(|index| leading(index)).map_or_else(Listed::special, Listed::to_value))
}

/// `GET /{db}/_index`
pub(crate) async fn list(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    blocking(move || {
        let known = indexes(&served.database().snapshot()?)?;
        let total = known.len() + 1;
        let all = std::iter::once(Listed::special()).chain(known.iter().map(Listed::to_value));
        let mut told = Object::new();
        told.insert("total_rows", total);
        told.insert("indexes", Value::Array(all.skip(skip).take(limit).collect()));
        let text = Value::Object(told).to_json().into_bytes();
        Ok(Answer::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// `POST /{db}/_index`
pub(crate) async fn create(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let definition = Definition::parse(&call.json().await?)?;
    let options = super::document::write_options(&call)?;
    blocking(move || {
        let (id, name) = (definition.id(), definition.name.clone());
        let current = served.database().get(&id)?;
        let body = current.as_ref().map(Document::value).transpose()?;
        let result = match design_document(body, &definition)? {
            None => "exists",
            Some(body) => {
                let revision = current.map(|document| *document.revision());
                let document = Incoming { id: Some(id.clone()), revision, body, ..Incoming::default() };
                write_one(&served, document, &options)?;
                "created"
            }
        };
        keep_indexes(&served)?;
        Answer::ok(&json!({"result": result, "id": id, "name": name}))
    })
    .await
}

/// `DELETE /{db}/_index/{ddoc}/json/{name}`, with or without `_design/`
pub(crate) async fn delete(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = format!("_design/{}", call.parameter("ddoc")?.trim_start_matches("_design/"));
    let name = call.parameter("name")?.to_owned();
    let options = super::document::write_options(&call)?;
    blocking(move || {
        remove(&served, &id, Some(&name), &options)?;
        keep_indexes(&served)?;
        Ok(Answer::done(StatusCode::OK))
    })
    .await
}

/// Takes an index out of its design document, or all of them; a design document without any is deleted.
fn remove(served: &Served, id: &str, name: Option<&str>, options: &WriteOptions) -> Result<()> {
    let document = served.database().get(id)?.ok_or_else(Failure::missing)?;
    let mut known = listed(&document)?;
    let before = known.len();
    known.retain(|index| name.is_some_and(|name| index.name != name));
    if known.len() == before {
        return Err(Failure::missing());
    }
    let mut body = document.value()?;
    if let (Some(object), Some(name)) = (body.as_object_mut(), name)
        && let Some(views) = object.get_mut("views").and_then(Value::as_object_mut)
    {
        views.remove(name);
    }
    let deleted = known.is_empty();
    let body = if deleted { Object::new().into() } else { body };
    let revision = Some(*document.revision());
    let document = Incoming { id: Some(id.to_owned()), revision, deleted, body, ..Incoming::default() };
    write_one(served, document, options)?;
    Ok(())
}

/// `POST /{db}/_index/_bulk_delete`
pub(crate) async fn bulk_delete(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let body = call.json().await?;
    let ids = body.get("docids").and_then(Value::as_array);
    let ids = ids.ok_or_else(|| Failure::bad_request("`docids` should be an array"))?;
    let ids: Vec<String> = ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    let options = super::document::write_options(&call)?;
    blocking(move || {
        let (mut success, mut fail) = (Vec::new(), Vec::new());
        for id in ids {
            let id = format!("_design/{}", id.trim_start_matches("_design/"));
            match remove(&served, &id, None, &options) {
                Ok(()) => success.push(json!({"id": id, "ok": true})),
                Err(failure) => fail.push(json!({"id": id, "error": failure.error()})),
            }
        }
        keep_indexes(&served)?;
        Answer::ok(&json!({"success": success, "fail": fail}))
    })
    .await
}
