//! Routes that list documents by id: `_all_docs` and `_design_docs`.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::{Document, Listed, Snapshot, Value};

use super::row_parameters::{Precedence, RowParameters, incompatible_keys};
use crate::app::Call;
use crate::design;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, streamed};

/// The parameters of a listing.
#[derive(Debug, Clone, Default)]
pub(super) struct ListingQuery {
    pub(super) keys: Option<Vec<Value>>,
    start: Option<String>,
    end: Option<String>,
    exclusive_end: bool,
    pub(super) descending: bool,
    pub(super) skip: u64,
    pub(super) limit: Option<u64>,
    update_seq: bool,
    pub(super) include_docs: bool,
    /// Whether only design documents are listed and counted.
    is_of_designs: bool,
}

/// The largest offset that is computed, because computing it reads every preceding row. Larger offsets are null.
const OFFSET_MAX: u64 = 10_000;

impl ListingQuery {
    /// Parses the parameters.
    ///
    /// # Errors
    /// 400 if the body or a parameter is invalid.
    pub(super) fn parse(query: &Query, body: Option<&Value>, precedence: Precedence) -> Result<Self> {
        let parameters = RowParameters::new(query, body, precedence)?;
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        let (key, mut start, mut end) = (
            parameters.json(&["key"])?,
            parameters.json(&["startkey", "start_key"])?,
            parameters.json(&["endkey", "end_key"])?,
        );
        let keys = match parameters.json(&["keys"])? {
            Some(Value::Array(keys)) if !keys.is_empty() && (key.is_some() || start.is_some() || end.is_some()) => {
                return Err(incompatible_keys());
            }
            Some(Value::Array(keys)) => Some(keys),
            Some(Value::Null) | None => None,
            Some(_) => return Err(Failure::bad_request("`keys` body member must be an array.")),
        };
        if text(key.clone()).is_some() {
            (start, end) = (key.clone(), key);
        }
        Ok(ListingQuery {
            keys,
            start: text(start),
            end: text(end),
            exclusive_end: !parameters.flag("inclusive_end")?.unwrap_or(true),
            descending: parameters.flag("descending")?.unwrap_or(false),
            skip: parameters.number("skip")?.unwrap_or(0),
            limit: parameters.number("limit")?,
            update_seq: parameters.flag("update_seq")?.unwrap_or(false),
            include_docs: parameters.flag("include_docs")?.unwrap_or(false),
            is_of_designs: false,
        })
    }

    /// Restricts the range to design documents, whose ids are contiguous.
    fn design_documents_only(mut self) -> Self {
        self.is_of_designs = true;
        let (first, last) = ("_design/".to_owned(), "_design0".to_owned());
        let (least, greatest) = match self.descending {
            false => (&mut self.start, &mut self.end),
            true => (&mut self.end, &mut self.start),
        };
        *least = Some(least.take().map_or(first.clone(), |id| id.max(first)));
        *greatest = Some(greatest.take().map_or(last.clone(), |id| id.min(last)));
        self
    }

    /// Whether an id is within the requested range.
    pub(super) fn contains(&self, id: &str) -> bool {
        RangeBounds::<str>::contains(&self.bounds(), id)
    }

    /// The lower and upper bound of ids, regardless of the direction.
    fn bounds(&self) -> (Bound<&str>, Bound<&str>) {
        let start = self.start.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let end = match (&self.end, self.exclusive_end) {
            (None, _) => Bound::Unbounded,
            (Some(end), true) => Bound::Excluded(end.as_str()),
            (Some(end), false) => Bound::Included(end.as_str()),
        };
        if self.descending { (end, start) } else { (start, end) }
    }
}

/// `GET /{db}/_all_docs`, `POST /{db}/_all_docs`
pub(crate) async fn all_docs(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ListingQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    list(&call, query).await
}

/// `GET /{db}/_design_docs`, `POST /{db}/_design_docs`
pub(crate) async fn design_docs(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ListingQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    list(&call, query.design_documents_only()).await
}

/// Parses the listings in the body of a `queries` request.
pub(super) async fn parse_queries(call: &mut Call) -> Result<Vec<ListingQuery>> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("`queries` member must be an array."))?;
    queries.iter().map(|query| ListingQuery::parse(&call.query, Some(query), Precedence::Body)).collect()
}

/// `POST /{db}/_all_docs/queries`
pub(crate) async fn queries(mut call: Call) -> Result<HttpResponse> {
    let queries = parse_queries(&mut call).await?;
    list_all(&call, queries).await
}

/// `POST /{db}/_design_docs/queries`
pub(crate) async fn design_queries(mut call: Call) -> Result<HttpResponse> {
    let queries = parse_queries(&mut call).await?.into_iter().map(ListingQuery::design_documents_only).collect();
    list_all(&call, queries).await
}

async fn list_all(call: &Call, queries: Vec<ListingQuery>) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let show = parse_show_options(&call.query)?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, query) in queries.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            write_listing(&served, &snapshot, query, &show, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

async fn list(call: &Call, query: ListingQuery) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let show = parse_show_options(&call.query)?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        write_listing(&served, &snapshot, &query, &show, &mut out).await?;
        out.buffer.push(b'\n');
        Ok(())
    })
    .await
}

async fn write_listing(
    served: &Arc<ServedDatabase>,
    snapshot: &Snapshot,
    query: &ListingQuery,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<()> {
    let total = match query.is_of_designs {
        true => design::count(snapshot)?,
        false => served.database().info()?.document_count,
    };
    out.buffer.extend_from_slice(format!("{{\"total_rows\":{total},\"offset\":").as_bytes());
    let offset = match &query.keys {
        Some(_) => None,
        None => offset(snapshot, query)?.map(|before| before + query.skip.min(total.saturating_sub(before))),
    };
    out.buffer.extend_from_slice(offset.map_or("null".to_owned(), |offset| offset.to_string()).as_bytes());
    if query.update_seq {
        out.buffer.extend_from_slice(b",\"update_seq\":");
        out.string(&served.sequence_text(snapshot.sequence()));
    }
    out.buffer.extend_from_slice(b",\"rows\":[");
    let printer = DocumentPrinter { served, snapshot, show };
    let limit = usize::try_from(query.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
    let mut separator: &[u8] = b"\n";
    match &query.keys {
        Some(keys) => {
            let keys: Box<dyn Iterator<Item = &Value> + Send> =
                if query.descending { Box::new(keys.iter().rev()) } else { Box::new(keys.iter()) };
            for key in keys.skip(skip).take(limit) {
                out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
                write_key_row(&printer, key, query.include_docs, out)?;
                out.flush_if_full().await;
            }
        }
        None => {
            let (from, to) = query.bounds();
            let listing = snapshot.list().from(from).to(to).descending(query.descending).documents(query.include_docs);
            for listed in listing.run().skip(skip).take(limit) {
                out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
                write_row(&printer, &listed?, out)?;
                out.flush_if_full().await;
            }
        }
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}

/// The number of documents before the first row; `None` if it exceeds [`OFFSET_MAX`].
fn offset(snapshot: &Snapshot, query: &ListingQuery) -> Result<Option<u64>> {
    let (from, to) = query.bounds();
    let before = |id: &str| match query.descending {
        false if query.is_of_designs => snapshot.list().from(Bound::Included("_design/")).to(Bound::Excluded(id)),
        true if query.is_of_designs => snapshot.list().from(Bound::Excluded(id)).to(Bound::Excluded("_design0")),
        false => snapshot.list().to(Bound::Excluded(id)),
        true => snapshot.list().from(Bound::Excluded(id)),
    };
    let listing = match (query.descending, from, to) {
        (false, Bound::Included(id), _) | (true, _, Bound::Included(id)) => before(id),
        _ => return Ok(Some(0)),
    };
    let mut count = 0;
    for row in listing.run() {
        row?;
        count += 1;
        if count > OFFSET_MAX {
            return Ok(None);
        }
    }
    Ok(Some(count))
}

fn write_row(printer: &DocumentPrinter<'_>, listed: &Listed, out: &mut ResponseWriter) -> Result<()> {
    let Listed { id, revision, document, .. } = listed;
    write_head(id.as_str(), out);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{revision}\"}}").as_bytes());
    if let Some(document) = document {
        write_document(printer, document, out)?;
    }
    out.buffer.push(b'}');
    Ok(())
}

pub(super) fn write_head(id: &str, out: &mut ResponseWriter) {
    out.buffer.extend_from_slice(b"{\"id\":");
    out.string(id);
    out.buffer.extend_from_slice(b",\"key\":");
    out.string(id);
}

fn write_document(printer: &DocumentPrinter<'_>, document: &Document, out: &mut ResponseWriter) -> Result<()> {
    out.buffer.extend_from_slice(b",\"doc\":");
    printer.print(document, &mut out.buffer)
}

/// Writes the row of a requested key. Missing and deleted documents have rows too.
fn write_key_row(printer: &DocumentPrinter<'_>, key: &Value, documents: bool, out: &mut ResponseWriter) -> Result<()> {
    let Some(id) = key.as_str() else { return write_not_found(key, out) };
    if let Some(document) = printer.snapshot.get(id)? {
        write_head(id, out);
        out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{}\"}}", document.revision()).as_bytes());
        if documents {
            write_document(printer, &document, out)?;
        }
        out.buffer.push(b'}');
        return Ok(());
    }
    let branches = printer.snapshot.revisions(id)?;
    let Some(winner) = branches.first().and_then(|branch| branch.revisions.first()) else {
        return write_not_found(key, out);
    };
    write_head(id, out);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{winner}\",\"deleted\":true}}").as_bytes());
    out.buffer.extend_from_slice(if documents { b",\"doc\":null}" } else { b"}" });
    Ok(())
}

fn write_not_found(key: &Value, out: &mut ResponseWriter) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"key\":");
    key.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b",\"error\":\"not_found\"}");
    Ok(())
}
