//! Tiers of a database: `/{db}/_tiers`, and the tier of the document that a request is about.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Change, Revision, Sequence, Value};
use tokio::runtime::Handle;

use super::federation::{aggregated_response, counted_selector, failure, found_response, unsupported_parameter};
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::{IncomingDocument, print_document};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking, streamed, write_string};
use crate::mango::{FindRequest, exclude_design_documents};
use crate::tiers::{OpenTiers, TierDefinition};

/// `GET /{db}/_tiers`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (tiers, name) = (call.state.tiers.clone(), call.parameter("db")?.to_owned());
    blocking(move || HttpResponse::ok(&tiers.status(&name)?)).await
}

/// `PUT /{db}/_tiers`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    call.open_database().await?;
    let definition = TierDefinition::parse(call.json().await?)?;
    let (tiers, name, runtime) = (call.state.tiers.clone(), call.parameter("db")?.to_owned(), Handle::current());
    blocking(move || tiers.define(&name, definition, &runtime)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `POST /{db}/_tiers`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let body = call.json().await?;
    let fields = body.as_object().filter(|body| body.len() == 1);
    let flag = |name| fields.and_then(|fields| fields.get(name)).and_then(Value::as_bool);
    let (run, paused) = (flag("run"), flag("paused"));
    let (tiers, name) = (call.state.tiers.clone(), call.parameter("db")?.to_owned());
    match (run, paused) {
        (Some(true), None) => {
            let report = blocking(move || tiers.run(&name)).await?;
            HttpResponse::ok(&json!({"ok": true, "result": report}))
        }
        (None, Some(paused)) => {
            blocking(move || tiers.set_paused(&name, paused)).await?;
            Ok(HttpResponse::done(StatusCode::OK))
        }
        _ => Err(Failure::bad_request("the body is `{\"run\": true}` or `{\"paused\": true}`")),
    }
}

/// `DELETE /{db}/_tiers`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (tiers, name) = (call.state.tiers.clone(), call.parameter("db")?.to_owned());
    blocking(move || tiers.remove(&name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

async fn tiers_of(call: &Call) -> Result<Arc<OpenTiers>> {
    call.state.tiers.existing(call.parameter("db")?).await
}

/// `POST /{db}/_tiers/_find`
pub(crate) async fn find(mut call: Call) -> Result<HttpResponse> {
    let tiers = tiers_of(&call).await?;
    let request = FindRequest::parse(&call.json().await?)?;
    if let Some(name) = unsupported_parameter(&request) {
        return Err(Failure::bad_request(format!("a query of all tiers has no `{name}`")));
    }
    found_response(&call, request, None, move |query| tiers.database.find(query), ()).await
}

/// `POST /{db}/_tiers/_count`
pub(crate) async fn count(mut call: Call) -> Result<HttpResponse> {
    let (tiers, selector) = (tiers_of(&call).await?, counted_selector(&call.json().await?)?);
    let query_time = call.state.config.limits.query_time;
    blocking(move || {
        let find = tiers.database.find(exclude_design_documents(selector));
        let find = query_time.into_iter().fold(find, |find, time| find.deadline(time));
        HttpResponse::ok(&json!({"count": find.count().map_err(failure)?}))
    })
    .await
}

/// `POST /{db}/_tiers/_aggregate`
pub(crate) async fn aggregate(mut call: Call) -> Result<HttpResponse> {
    let (tiers, body) = (tiers_of(&call).await?, call.json().await?);
    if body.get("pipeline").is_some() {
        return Err(Failure::not_implemented("Tiers run no pipelines: ask for `figures` and `group_by`."));
    }
    aggregated_response(&call, body, move |body| tiers.database.aggregation(body), ()).await
}

/// `GET /{db}/_tiers/_changes`
pub(crate) async fn changes(call: Call) -> Result<HttpResponse> {
    let (tiers, served) = (tiers_of(&call).await?, call.open_database().await?);
    let since = match call.query.text("since").map(|since| since.trim_matches('"')) {
        None | Some("" | "0") => Sequence::ZERO,
        Some(since) => served.parse_sequence(since)?,
    };
    let (limit, include_docs) = (call.query.number("limit")?, call.query.flag("include_docs", false)?);
    let stall_timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[\n");
        let changes = tiers.database.changes(since).documents(include_docs);
        let changes = limit.into_iter().fold(changes, |changes, limit| changes.limit(limit));
        let mut last = since;
        for change in changes.run().map_err(failure)? {
            let change = change.map_err(failure)?;
            if last != since {
                out.buffer.extend_from_slice(b",\n");
            }
            last = change.sequence;
            write_change(&change, &served.sequence_text(last), &mut out.buffer)?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"\n],\n\"last_seq\":");
        out.string(&served.sequence_text(last));
        out.buffer.extend_from_slice(b"}\n");
        Ok(())
    })
    .await
}

fn write_change(change: &Change, sequence: &str, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"seq\":");
    write_string(out, sequence);
    out.extend_from_slice(b",\"id\":");
    write_string(out, change.id.as_str());
    out.extend_from_slice(b",\"changes\":");
    out.extend_from_slice(json!([{"rev": change.revision.to_string()}]).to_string().as_bytes());
    if change.deleted {
        out.extend_from_slice(b",\"deleted\":true");
    }
    if let Some(document) = &change.document {
        out.extend_from_slice(b",\"doc\":");
        print_document(document, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Opens the database that has the document of a request: of a database with tiers, that of the document's tier.
pub(super) async fn open_for_reading(call: &Call, id: &str) -> Result<Arc<ServedDatabase>> {
    let served = call.open_database().await?;
    // The past is that of the database itself, and local and design documents do not move.
    if call.virtual_database.is_some() || id.starts_with('_') || call.as_of()?.is_some() {
        return Ok(served);
    }
    match call.state.tiers.get(served.name()).await? {
        None => Ok(served),
        Some(tiers) => {
            let id = id.to_owned();
            blocking(move || tiers.of(&id)).await
        }
    }
}

/// Brings the document of a request back from its tier before it is written. Returns the revision that stands for the
/// one that the client has read.
pub(super) async fn bring_back(call: &Call, id: &str, read: Option<Revision>) -> Result<Option<Revision>> {
    if call.virtual_database.is_some() || id.starts_with('_') {
        return Ok(read);
    }
    match call.state.tiers.get(call.parameter("db")?).await? {
        None => Ok(read),
        Some(tiers) => {
            let id = id.to_owned();
            blocking(move || tiers.bring_back(&id, read)).await
        }
    }
}

/// Brings documents back before they are written together. Blocks.
pub(super) fn bring_all_back(tiers: &OpenTiers, documents: &mut [IncomingDocument]) -> Result<()> {
    for document in documents {
        if let Some(id) = document.id.as_deref().filter(|id| !id.starts_with('_')) {
            document.revision = tiers.bring_back(id, document.revision)?;
        }
    }
    Ok(())
}
