//! Routes of Mango queries: `_find`, `_explain`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Database, Object, Query, Snapshot, Value};

use crate::app::Call;
use crate::config::Limits;
use crate::design;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, check_partition};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, ResponseWriter, blocking, streamed};
use crate::mango::{FindRequest, ListedIndex, chosen_index, index_candidates, indexes, unused_index_warning};
use crate::metrics::QueryTimer;

/// If more documents than this were examined per returned row, the response contains a warning.
const EXAMINED_PER_ROW_MAX: u64 = 10;

const WARNING: &str = "The number of documents examined is high in proportion to the number of results returned. \
                       Consider adding a more specific index to improve this.";

/// `POST /{db}/_find`
pub(crate) async fn find(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        let request = find_request(&mut call).await?;
        let database = call.take_reading()?;
        return super::virtual_database::find(&call, database, request).await;
    }
    let served = call.open_database().await?;
    let request = find_request(&mut call).await?;
    find_response(&call, served, "find", |_| Ok(request)).await
}

/// Parses the body. The route may name the partition to search.
async fn find_request(call: &mut Call) -> Result<FindRequest> {
    let mut request = FindRequest::parse(&call.json().await?)?;
    request.as_of = call.as_of()?;
    if let Some(partition) = call.query.text("partition") {
        if request.partition.as_deref().is_some_and(|requested| requested != partition) {
            return Err(Failure::bad_request("Conflicting value for `partition` in the request body"));
        }
        request.partition = Some(partition.to_owned());
    }
    Ok(request)
}

/// Checks the partition that a request names.
fn check_request_partition(has_partitions: bool, request: &FindRequest) -> Result<()> {
    match &request.partition {
        Some(_) if !has_partitions => Err(Failure::bad_request("database is not partitioned")),
        Some(partition) => check_partition(partition),
        None => Ok(()),
    }
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
    let restriction = call.restriction.clone();
    let has_partitions = served.is_partitioned() || call.is_of_whole;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let request = request(served.database())?;
        let request = match restriction {
            Some(restriction) => request.restricted_to(restriction.selector()),
            None => request,
        };
        check_request_partition(has_partitions, &request)?;
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
    let snapshot = match (request.as_of, request.bookmark()) {
        // A page of a user whom an access rule restricts is never one of the past.
        (None, Some(_)) if request.is_restricted => served.read(None)?,
        (None, Some(token)) => served.database().history().page_snapshot(token)?,
        (as_of, _) => served.read(as_of)?,
    };
    let mut warnings = match request.use_index.is_some() && !request.is_restricted {
        true => Vec::from_iter(unused_index_warning(&indexes(served, &snapshot)?, request)?),
        false => Vec::new(),
    };
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
    let hints = if row_count == 0 && !request.is_restricted {
        snapshot.find(request.query(false)?).hints()?
    } else {
        Vec::new()
    };
    match hints.is_empty() {
        false => warnings.push(hints.join("; ")),
        true if request.is_restricted => {}
        true if documents_read.saturating_sub(row_count) > EXAMINED_PER_ROW_MAX * row_count.max(1) => {
            warnings.push(WARNING.to_owned());
        }
        true => {}
    }
    if !warnings.is_empty() {
        out.buffer.extend_from_slice(b",\n\"warning\":");
        out.string(&warnings.join("\n"));
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
    let find = snapshot.find(library_query(served, snapshot, request)?);
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
fn library_query(served: &ServedDatabase, snapshot: &Snapshot, request: &FindRequest) -> Result<Query> {
    let has_design_documents = design::has_any(snapshot)?;
    if request.named_index().is_some()
        && let Some(index) = chosen_index(&indexes(served, snapshot)?, request)?
        && let Some(partial) = index.partial()
    {
        return request.query_in_partial_index(partial, has_design_documents);
    }
    request.query(has_design_documents)
}

/// `POST /{db}/_explain`
pub(crate) async fn explain(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let request = find_request(&mut call).await?;
    check_request_partition(served.is_partitioned() || call.is_of_whole, &request)?;
    let (analyze, time_limit) = (call.query.flag("analyze", false)?, call.state.config.limits.query_time);
    blocking(move || {
        let snapshot = served.read(request.as_of)?;
        let find = snapshot.find(library_query(&served, &snapshot, &request)?);
        let find = match time_limit {
            Some(time) => find.time_limit(time),
            None => find,
        };
        let explanation = if analyze { find.explain_analyze()? } else { find.explain()? };
        let mut object = Object::new();
        object.insert("dbname", served.name());
        let known = indexes(&served, &snapshot)?;
        unused_index_warning(&known, &request)?;
        let chosen = chosen_index(&known, &request)?;
        object.insert("index", chosen.map_or_else(ListedIndex::special, ListedIndex::to_value));
        object.insert("partitioned", request.partition.is_some());
        object.insert("selector", request.normalized_selector.clone());
        let fields = match &request.fields {
            Some(fields) => Value::Array(fields.iter().map(Value::from).collect()),
            None => Value::from("all_fields"),
        };
        let partition = request.partition.as_deref();
        let mut options = Object::new();
        options.insert("bookmark", request.bookmark().unwrap_or("nil"));
        options.insert("execution_stats", request.execution_stats);
        options.insert("fields", fields.clone());
        options.insert("partition", partition.unwrap_or_default());
        // Options for clusters and for stale indexes, of which there are none.
        options.insert("r", Value::Array(vec![49.into()]));
        options.insert("stable", false);
        options.insert("stale", false);
        options.insert("update", true);
        options.insert("limit", request.limit);
        options.insert("skip", request.skip);
        options.insert("sort", request.sort.clone().unwrap_or_else(|| Object::new().into()));
        options.insert("conflicts", request.conflicts);
        options.insert("use_index", request.use_index.clone().unwrap_or_else(|| Value::Array(Vec::new())));
        object.insert("opts", options);
        let arguments = [("partition", partition.map_or(Value::Null, Value::from))];
        object.insert("mrargs", arguments.into_iter().collect::<Object>());
        object.insert("limit", request.limit);
        object.insert("skip", request.skip);
        object.insert("fields", fields);
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
