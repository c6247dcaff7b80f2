//! The route `_shard_view`: a shard's part of a view of a virtual database, for the server that merges the parts.
//!
//! The answer is a line of JSON for the whole, and one for each row, group or reduction. Rows and groups have their
//! place, by which those of several shards are merged; reductions are partial ones. With `info`, it is the state of all
//! views of a design document.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use serde::Serialize;
use stemmadb::Value;
use stemmadb::views::{MergedQuery, ProgramRow, RowPlace};
use stemmadb_federation::Grouping;

use super::row_parameters::Precedence;
use super::view::{OpenedView, open_view_of};
use super::view_info::ViewsState;
use super::view_query::ViewQuery;
use super::view_update;
use crate::app::Call;
use crate::auth::Restriction;
use crate::design::view_failure;
use crate::directory::ServedDatabase;
use crate::documents::partition_prefix;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, TimeLimit, blocking, streamed};

/// The documents that count.
enum Counted {
    /// Those of these buckets: others are copies that are being moved.
    Buckets(Grouping, BTreeSet<u16>),
    /// Those whose ids have this prefix.
    Prefix(String),
}

/// What is asked for.
struct ShardViewRequest {
    design: Value,
    view: String,
    query: ViewQuery,
    counted: Option<Counted>,
}

impl ShardViewRequest {
    fn parse(body: &Value) -> Result<Self> {
        let invalid = || {
            Failure::bad_request("the body has `design`, `view`, `query`, and perhaps `owned`, `partition` and `as_of`")
        };
        let counted = match (body.get("owned"), body.get("partition")) {
            (_, Some(partition)) => Some(Counted::Prefix(partition_prefix(partition.as_str().ok_or_else(invalid)?))),
            (None | Some(Value::Null), None) => None,
            (Some(owned), None) => Some(Counted::parse_owned(owned).ok_or_else(invalid)?),
        };
        let mut parameters = Query::default();
        if let Some(state) = body.get("as_of") {
            parameters.set("as_of", state.as_str().ok_or_else(invalid)?);
        }
        Ok(ShardViewRequest {
            design: body.get("design").cloned().ok_or_else(invalid)?,
            view: body.get("view").and_then(Value::as_str).ok_or_else(invalid)?.to_owned(),
            query: ViewQuery::parse(&parameters, body.get("query"), Precedence::Body)?,
            counted,
        })
    }
}

impl Counted {
    fn parse_owned(value: &Value) -> Option<Self> {
        let grouping = match value.get("prefix").and_then(Value::as_str) {
            Some(prefix) => Grouping::ByPrefix(prefix.chars().next()?),
            None => Grouping::ById,
        };
        let buckets = value.get("buckets")?.as_array()?.iter();
        let buckets = buckets.map(|bucket| u16::try_from(bucket.as_u64()?).ok()).collect::<Option<_>>()?;
        Some(Counted::Buckets(grouping, buckets))
    }
}

/// The first line of an answer.
#[derive(Serialize)]
struct Head {
    /// The rows of the view, and those before the first row; null if they would have to be counted.
    total: Option<u64>,
    offset: Option<u64>,
}

fn merged(opened: &OpenedView, query: &ViewQuery, counted: Option<Counted>) -> Result<MergedQuery> {
    let program_query = query.program_query(&opened.view);
    let program_query = match query.as_of {
        Some(at) => program_query.as_of(&opened.served.read(Some(at))?),
        None => program_query,
    };
    let merged = MergedQuery::over(vec![program_query]);
    Ok(match counted {
        Some(Counted::Buckets(grouping, buckets)) => {
            merged.counting(move |_, id| buckets.contains(&grouping.bucket(id)))
        }
        Some(Counted::Prefix(prefix)) => merged.counting(move |_, id| id.starts_with(&prefix)),
        None => merged,
    })
}

/// `POST /{db}/_shard_view`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let body = call.json().await?;
    if body.get("info") == Some(&Value::Bool(true)) {
        return info(call, served, body).await;
    }
    let ShardViewRequest { design, view, query, counted } = ShardViewRequest::parse(&body)?;
    let (scripts, limit) = (call.state.scripts.clone(), TimeLimit::start(call.state.config.limits.query_time));
    let opened = blocking(move || open_view_of(served, &scripts, &design, &view)).await?;
    query.check(&opened)?;
    let readable = call.restriction.clone();
    if readable.is_some() {
        query.unlimited(opened.can_reduce)?;
    }
    if opened.is_behind(&query)? {
        limit.wait(view_update::update(&opened)).await?;
    }
    let stall_timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/x-ndjson", stall_timeout, move |mut out| async move {
        if let Some(readable) = readable {
            return write_readable_rows(&opened, &query, counted, &readable, &mut out).await;
        }
        let merged = merged(&opened, &query, counted)?;
        match (query.is_reduced(opened.can_reduce)?, query.group) {
            (false, _) => write_rows(merged, &mut out).await,
            (true, Some(level)) => write_groups(merged, level, &mut out).await,
            (true, None) => {
                write_head(Head { total: None, offset: None }, &mut out)?;
                let partial = merged.reduce_partially().map_err(view_failure)?;
                let partial = BASE64_STANDARD.encode(partial);
                out.buffer.extend_from_slice(format!("{{\"partial\":\"{partial}\"}}\n").as_bytes());
                Ok(())
            }
        }
    })
    .await
}

/// The state of the views of a design document.
async fn info(call: Call, served: Arc<ServedDatabase>, body: Value) -> Result<HttpResponse> {
    let scripts = call.state.scripts.clone();
    let design = body.get("design").cloned();
    let design = design.ok_or_else(|| Failure::bad_request("the body has a `design` beside `info`"))?;
    blocking(move || {
        let mut state = ViewsState::default();
        state.add(&served, &scripts, &design)?;
        HttpResponse::ok(&state)
    })
    .await
}

fn write_head(head: Head, out: &mut ResponseWriter) -> Result<()> {
    serde_json::to_writer(&mut out.buffer, &head).map_err(|error| Failure::internal(error.to_string()))?;
    out.buffer.push(b'\n');
    Ok(())
}

fn write_place(place: &RowPlace, out: &mut ResponseWriter) {
    let order = BASE64_STANDARD.encode(&place.order);
    out.buffer.extend_from_slice(format!("{{\"range\":{},\"order\":\"{order}\"", place.range).as_bytes());
}

async fn write_rows(merged: MergedQuery, out: &mut ResponseWriter) -> Result<()> {
    let mut rows = merged.rows().map_err(view_failure)?;
    write_head(Head { total: rows.total(), offset: rows.offset() }, out)?;
    while let Some(row) = rows.next() {
        let (_, row) = row.map_err(view_failure)?;
        write_row(rows.place(), &row, out).await;
    }
    Ok(())
}

async fn write_row(place: &RowPlace, row: &ProgramRow, out: &mut ResponseWriter) {
    write_place(place, out);
    out.buffer.extend_from_slice(b",\"row\":{\"id\":");
    out.string(&row.id);
    out.buffer.extend_from_slice(b",\"key\":");
    row.key.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b",\"value\":");
    row.value.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b"}}\n");
    out.flush_if_full().await;
}

/// Writes the rows of documents that the user may read, up to the limit, without their number. A row is of its
/// document's current revision: one that was written after the view was updated is left out.
async fn write_readable_rows(
    opened: &OpenedView,
    query: &ViewQuery,
    counted: Option<Counted>,
    readable: &Restriction,
    out: &mut ResponseWriter,
) -> Result<()> {
    write_head(Head { total: None, offset: None }, out)?;
    // Before the rows are read, which are at least as new.
    let updated = opened.view.info()?.sequence;
    let mut rows = merged(opened, &query.unlimited(opened.can_reduce)?, counted)?.rows().map_err(view_failure)?;
    let snapshot = opened.served.database().snapshot()?;
    let mut left = query.limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some(row) = rows.next()
    {
        let (_, row) = row.map_err(view_failure)?;
        let document = snapshot.get(&row.id)?.filter(|document| document.sequence() <= updated);
        if document.map_or(Ok(false), |document| readable.allows(&document))? {
            left -= 1;
            write_row(rows.place(), &row, out).await;
        }
    }
    Ok(())
}

async fn write_groups(merged: MergedQuery, level: Option<usize>, out: &mut ResponseWriter) -> Result<()> {
    write_head(Head { total: None, offset: None }, out)?;
    let mut groups = merged.groups(level).map_err(view_failure)?;
    while let Some(group) = groups.next() {
        let (key, _) = group.map_err(view_failure)?;
        write_place(groups.place(), out);
        out.buffer.extend_from_slice(b",\"key\":");
        key.write_json(&mut out.buffer);
        let partial = BASE64_STANDARD.encode(groups.partial());
        out.buffer.extend_from_slice(format!(",\"partial\":\"{partial}\"}}\n").as_bytes());
        out.flush_if_full().await;
    }
    Ok(())
}
