//! Routes of Mango queries and indexes: `_find`, `_explain`, `_index`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Database, Document, ErrorKind, Index, Object, Query, Snapshot, Value};

use crate::app::Call;
use crate::config::Limits;
use crate::design;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, IncomingDocument, ShowOptions};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, ResponseWriter, blocking, streamed};
use crate::mango::{FindRequest, IndexDefinition, LIBRARY_PREFIX, ListedIndex, add_to_design_document, indexes_of};
use crate::metrics::QueryTimer;
use crate::writes::{WriteOptions, write_one};

/// If more documents than this were examined per returned row, the response contains a warning.
const EXAMINED_PER_ROW_MAX: u64 = 10;

const WARNING: &str = "The number of documents examined is high in proportion to the number of results returned. \
                       Consider adding a more specific index to improve this.";

/// `POST /{db}/_find`
pub(crate) async fn find(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let request = FindRequest::parse(&call.json().await?)?;
    find_response(&call, served, "find", |_| Ok(request)).await
}

/// Runs a query and streams its result. `request` creates the query; it may block for planning.
pub(super) async fn find_response(
    call: &Call,
    served: Arc<ServedDatabase>,
    kind: &'static str,
    request: impl FnOnce(&Database) -> Result<FindRequest> + Send + 'static,
) -> Result<HttpResponse> {
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), kind);
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let request = request(served.database())?;
        write_result(&served, &request, query_time, &mut timer, &mut out).await
    })
    .await
}

async fn write_result(
    served: &Arc<ServedDatabase>,
    request: &FindRequest,
    time_limit: Option<Duration>,
    timer: &mut QueryTimer,
    out: &mut ResponseWriter,
) -> Result<()> {
    let started = Instant::now();
    let snapshot = served.database().snapshot()?;
    out.buffer.extend_from_slice(b"{\"docs\":[");
    let (row_count, token, documents_read) = match request.is_at_end() {
        true => (0, None, 0),
        false => write_rows(served, &snapshot, request, time_limit, out).await?,
    };
    timer.add_rows_read(documents_read);
    out.buffer.extend_from_slice(b"\n],\n\"bookmark\":");
    out.string(&FindRequest::bookmark_of(row_count, token));
    if request.execution_stats {
        let stats = json!({
            "total_keys_examined": documents_read.max(row_count),
            "total_docs_examined": documents_read,
            "total_quorum_docs_examined": 0,
            "results_returned": row_count,
            "execution_time_ms": started.elapsed().as_micros() as f64 / 1000.0,
        });
        out.buffer.extend_from_slice(b",\n\"execution_stats\":");
        out.buffer.extend_from_slice(stats.to_string().as_bytes());
    }
    let hints = if row_count == 0 { snapshot.find(request.query(false)?).hints()? } else { Vec::new() };
    let warning = match hints.is_empty() {
        false => hints.join("; "),
        true if documents_read.saturating_sub(row_count) > EXAMINED_PER_ROW_MAX * row_count.max(1) => {
            WARNING.to_owned()
        }
        true => String::new(),
    };
    if !warning.is_empty() {
        out.buffer.extend_from_slice(b",\n\"warning\":");
        out.string(&warning);
    }
    out.buffer.extend_from_slice(b"}\n");
    Ok(())
}

/// Writes the rows. Returns their number, the continuation token, and the number of documents that were read.
async fn write_rows(
    served: &Arc<ServedDatabase>,
    snapshot: &Snapshot,
    request: &FindRequest,
    time_limit: Option<Duration>,
    out: &mut ResponseWriter,
) -> Result<(u64, Option<String>, u64)> {
    let find = snapshot.find(library_query(snapshot, request)?);
    let find = match time_limit {
        Some(time) => find.time_limit(time),
        None => find,
    };
    let mut count = 0;
    if request.fields.is_some() {
        let mut found = find.values()?;
        for value in found.by_ref() {
            out.buffer.extend_from_slice(if count == 0 { b"\n" } else { b",\n" });
            value?.write_json(&mut out.buffer);
            count += 1;
            out.flush_if_full().await;
        }
        return Ok((count, found.token()?, found.documents_read()));
    }
    let show = ShowOptions { conflicts: request.conflicts, ..ShowOptions::default() };
    let printer = DocumentPrinter { served, snapshot, show: &show };
    let mut found = find.run()?;
    for document in found.by_ref() {
        out.buffer.extend_from_slice(if count == 0 { b"\n" } else { b",\n" });
        printer.print(&document?, &mut out.buffer)?;
        count += 1;
        out.flush_if_full().await;
    }
    Ok((count, found.token()?, found.documents_read()))
}

/// The library's query. If the request names a partial index that it can use, only documents in that index match.
fn library_query(snapshot: &Snapshot, request: &FindRequest) -> Result<Query> {
    let has_design_documents = design::has_any(snapshot)?;
    if request.named_index().is_some()
        && let Some(index) = chosen_index(&indexes(snapshot)?, request)?
        && let Some(partial) = index.partial()
    {
        return request.query_in_partial_index(partial, has_design_documents);
    }
    request.query(has_design_documents)
}

/// All Mango indexes of the database, ordered by design document.
fn indexes(snapshot: &Snapshot) -> Result<Vec<ListedIndex>> {
    let mut found = Vec::new();
    for document in design::all(snapshot)? {
        found.extend(indexes_of(&document)?);
    }
    Ok(found)
}

/// Creates the library indexes for all Mango indexes, and drops those that no Mango index needs any more. An index that
/// arrives by replication is created at the next call; until then, queries run without it.
pub(super) fn sync_indexes(served: &ServedDatabase) -> Result<()> {
    let database = served.database();
    let mut missing: BTreeMap<String, Index> = BTreeMap::new();
    for index in indexes(&database.snapshot()?)?.iter().filter_map(ListedIndex::library_index) {
        missing.insert(index.name(), index);
    }
    for existing in database.indexes().list().into_iter().filter(|index| index.name.starts_with(LIBRARY_PREFIX)) {
        if missing.remove(&existing.name).is_none() {
            database.indexes().remove(&existing.name)?;
        }
    }
    for (name, index) in missing {
        match database.indexes().create(index) {
            Ok(()) => {}
            // The library has no indexes on paths such as `_id`, or on very many paths.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                tracing::debug!("index `{name}` was not created: {error}")
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// `POST /{db}/_explain`
pub(crate) async fn explain(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let request = FindRequest::parse(&call.json().await?)?;
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let explanation = snapshot.find(library_query(&snapshot, &request)?).explain()?;
        let mut object = Object::new();
        object.insert("dbname", served.name());
        let known = indexes(&snapshot)?;
        let chosen = chosen_index(&known, &request)?;
        object.insert("index", chosen.map_or_else(ListedIndex::special, ListedIndex::to_value));
        object.insert("partitioned", false);
        object.insert("selector", request.normalized_selector.clone());
        let mut options = Object::new();
        options.insert("limit", request.limit);
        options.insert("skip", request.skip);
        options.insert("sort", request.sort.clone().unwrap_or_else(|| Object::new().into()));
        options.insert("conflicts", request.conflicts);
        options.insert("use_index", request.use_index.clone().unwrap_or_else(|| Value::Array(Vec::new())));
        object.insert("opts", options);
        object.insert("limit", request.limit);
        object.insert("skip", request.skip);
        let fields = |fields: &Vec<String>| Value::Array(fields.iter().map(Value::from).collect());
        object.insert("fields", request.fields.as_ref().map_or_else(|| Value::from("all_fields"), fields));
        object.insert("covering", false);
        object.insert("index_candidates", index_candidates(&known, chosen, &request)?);
        // The actual plan of the library; the other fields have CouchDB's format.
        object.insert("plan", explanation.to_value());
        let mut text = Value::Object(object).to_json().into_bytes();
        text.push(b'\n');
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// The text of a query's selector and sort order, in which the names of its fields are looked up.
fn query_text(request: &FindRequest) -> Result<String> {
    let sort = request.sort.as_ref().map_or_else(String::new, Value::to_json);
    Ok(request.selector.to_value()?.to_json() + &sort)
}

fn is_usable(index: &ListedIndex, query: &str) -> bool {
    index.field_names().all(|name| query.contains(&format!("\"{name}\"")))
}

/// The indexes besides the chosen one, each with why it was not chosen, as in CouchDB.
fn index_candidates(known: &[ListedIndex], chosen: Option<&ListedIndex>, request: &FindRequest) -> Result<Value> {
    let query = query_text(request)?;
    let candidate = |index: Value, is_usable: bool, reason: &str, ranking: usize| {
        let reason: Object = [("name", Value::from(reason))].into_iter().collect();
        let mut analysis = Object::new();
        analysis.insert("usable", is_usable);
        analysis.insert("reasons", Value::Array(vec![reason.into()]));
        analysis.insert("ranking", ranking);
        analysis.insert("covering", Value::Null);
        let mut candidate = Object::new();
        candidate.insert("index", index);
        candidate.insert("analysis", analysis);
        Value::Object(candidate)
    };
    let mut candidates = Vec::new();
    if chosen.is_some() {
        candidates.push(candidate(ListedIndex::special(), true, "unfavored_type", 1));
    }
    for index in known.iter().filter(|index| chosen.is_none_or(|chosen| !std::ptr::eq(*index, chosen))) {
        let (is_usable, reason) = match (is_usable(index, &query), index.partial()) {
            (false, _) => (false, "field_mismatch"),
            (true, Some(_)) => (false, "is_partial"),
            (true, None) => (true, "less_overlap"),
        };
        let ranking = if is_usable { candidates.len() + 1 } else { 0 };
        candidates.push(candidate(index.to_value(), is_usable, reason, ranking));
    }
    Ok(Value::Array(candidates))
}

/// The index that CouchDB would choose: the one that the request names, or else the one with the most fields, all of
/// which must occur in the query. A partial index must be named. `None`: the index on `_id`.
fn chosen_index<'a>(known: &'a [ListedIndex], request: &FindRequest) -> Result<Option<&'a ListedIndex>> {
    let query = query_text(request)?;
    let is_usable = |index: &&ListedIndex| is_usable(index, &query);
    if let Some((ddoc, name)) = request.named_index()
        && let Some(index) = known.iter().filter(is_usable).find(|index| index.is_named(ddoc, name))
    {
        return Ok(Some(index));
    }
    let complete = known.iter().filter(is_usable).filter(|index| index.partial().is_none());
    Ok(complete.max_by_key(|index| index.field_names().count()))
}

/// `GET /{db}/_index`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    blocking(move || {
        let known = indexes(&served.database().snapshot()?)?;
        let total = known.len() + 1;
        let all = std::iter::once(ListedIndex::special()).chain(known.iter().map(ListedIndex::to_value));
        let mut object = Object::new();
        object.insert("total_rows", total);
        object.insert("indexes", Value::Array(all.skip(skip).take(limit).collect()));
        let text = Value::Object(object).to_json().into_bytes();
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// `POST /{db}/_index`
pub(crate) async fn create(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let definition = IndexDefinition::parse(&call.json().await?)?;
    let options = super::document::write_options(&call)?;
    blocking(move || {
        let (id, name) = (definition.design_id(), definition.name.clone());
        let current = served.database().get(&id)?;
        let body = current.as_ref().map(Document::value).transpose()?;
        let result = match add_to_design_document(body, &definition)? {
            None => "exists",
            Some(body) => {
                let revision = current.map(|document| *document.revision());
                let document = IncomingDocument { id: Some(id.clone()), revision, body, ..IncomingDocument::default() };
                write_one(&served, document, &options)?;
                "created"
            }
        };
        sync_indexes(&served)?;
        HttpResponse::ok(&json!({"result": result, "id": id, "name": name}))
    })
    .await
}

/// `DELETE /{db}/_index/{ddoc}/json/{name}`, with or without `_design/`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = format!("_design/{}", call.parameter("ddoc")?.trim_start_matches("_design/"));
    let name = call.parameter("name")?.to_owned();
    let options = super::document::write_options(&call)?;
    blocking(move || {
        remove(&served, &id, Some(&name), &options)?;
        sync_indexes(&served)?;
        Ok(HttpResponse::done(StatusCode::OK))
    })
    .await
}

/// Removes one index, or all indexes, from a design document; deletes the document if none is left.
fn remove(served: &ServedDatabase, id: &str, name: Option<&str>, options: &WriteOptions) -> Result<()> {
    let document = served.database().get(id)?.ok_or_else(Failure::missing)?;
    let mut known = indexes_of(&document)?;
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
    let document = IncomingDocument { id: Some(id.to_owned()), revision, deleted, body, ..IncomingDocument::default() };
    write_one(served, document, options)?;
    Ok(())
}

/// `POST /{db}/_index/_bulk_delete`
pub(crate) async fn bulk_delete(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
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
        sync_indexes(&served)?;
        HttpResponse::ok(&json!({"success": success, "fail": fail}))
    })
    .await
}
