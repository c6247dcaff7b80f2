//! Routes that list documents by id.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::{Document, Listed, Snapshot, Value};

use crate::app::Call;
use crate::directory::Served;
use crate::documents::{Printer, Show, show_of};
use crate::error::{Failure, Result};
use crate::http::{Answer, Pieces, Query, streamed};

/// Which rows of a listing are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) keys: Option<Vec<Value>>,
    start: Option<String>,
    end: Option<String>,
    exclusive_end: bool,
    pub(super) descending: bool,
    pub(super) skip: u64,
    pub(super) limit: Option<u64>,
    update_seq: bool,
    pub(super) documents: bool,
}

/// Offsets beyond this are not counted: it would take a look at every row before.
const OFFSET_MAX: u64 = 10_000;

impl Wanted {
    /// Reads the query, and what a body says instead.
    pub(super) fn parse(query: &Query, body: Option<&Value>) -> Result<Self> {
        let value = |names: &[&str]| -> Result<Option<Value>> {
            for name in names {
                if let Some(value) = body.and_then(|body| body.get(name)) {
                    return Ok(Some(value.clone()));
                }
                if let Some(value) = query.json(name)? {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        };
        let flag = |name: &str, default: bool| match body.and_then(|body| body.get(name)) {
            Some(value) => value.as_bool().ok_or_else(|| not_this(name)),
            None => query.flag(name, default),
        };
        let number = |name: &str| match body.and_then(|body| body.get(name)) {
            Some(value) => value.as_u64().map(Some).ok_or_else(|| not_this(name)),
            None => query.number::<u64>(name),
        };
        let keys = match value(&["keys"])? {
            Some(Value::Array(keys)) => Some(keys),
            Some(Value::Null) | None => None,
            Some(_) => return Err(Failure::bad_request("`keys` body member must be an array.")),
        };
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        let key = text(value(&["key"])?);
        let mut start = text(value(&["startkey", "start_key"])?);
        let mut end = text(value(&["endkey", "end_key"])?);
        if key.is_some() {
            (start, end) = (key.clone(), key);
        }
        Ok(Wanted {
            keys,
            start,
            end,
            exclusive_end: !flag("inclusive_end", true)?,
            descending: flag("descending", false)?,
            skip: number("skip")?.unwrap_or(0),
            limit: number("limit")?,
            update_seq: flag("update_seq", false)?,
            documents: flag("include_docs", false)?,
        })
    }

    /// The same among design documents: all lie between two ids, and what is asked for may only be narrower.
    fn of_design_documents(mut self) -> Self {
        let (first, last) = ("_design/".to_owned(), "_design0".to_owned());
        let (least, greatest) = match self.descending {
            false => (&mut self.start, &mut self.end),
            true => (&mut self.end, &mut self.start),
        };
        *least = Some(least.take().map_or(first.clone(), |given| given.max(first)));
        *greatest = Some(greatest.take().map_or(last.clone(), |given| given.min(last)));
        self
    }

    /// Whether an id is within the range that is asked for.
    pub(super) fn has(&self, id: &str) -> bool {
        RangeBounds::<str>::contains(&self.bounds(), id)
    }

    /// The least and the greatest id, whichever way they come.
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

fn not_this(name: &str) -> Failure {
    Failure::query_parse(format!("Invalid value for {name}"))
}

/// `GET /{db}/_all_docs`, `POST /{db}/_all_docs`
pub(crate) async fn all_docs(mut call: Call) -> Result<Answer> {
    let body = call.json_if_any().await?;
    let wanted = Wanted::parse(&call.query, body.as_ref())?;
    list(&call, wanted).await
}

/// `GET /{db}/_design_docs`, `POST /{db}/_design_docs`
pub(crate) async fn design_docs(mut call: Call) -> Result<Answer> {
    let body = call.json_if_any().await?;
    let wanted = Wanted::parse(&call.query, body.as_ref())?;
    list(&call, wanted.of_design_documents()).await
}

/// The listings that a body asks for.
pub(super) async fn queries_of(call: &mut Call) -> Result<Vec<Wanted>> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("`queries` member must be an array."))?;
    queries.iter().map(|query| Wanted::parse(&call.query, Some(query))).collect()
}

/// `POST /{db}/_all_docs/queries`
pub(crate) async fn queries(mut call: Call) -> Result<Answer> {
    let wanted = queries_of(&mut call).await?;
    list_all(&call, wanted).await
}

/// `POST /{db}/_design_docs/queries`
pub(crate) async fn design_queries(mut call: Call) -> Result<Answer> {
    let wanted = queries_of(&mut call).await?.into_iter().map(Wanted::of_design_documents).collect();
    list_all(&call, wanted).await
}

async fn list_all(call: &Call, wanted: Vec<Wanted>) -> Result<Answer> {
    let served = call.database().await?;
    let show = show_of(&call.query)?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, wanted) in wanted.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            write_listing(&served, &snapshot, wanted, &show, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

async fn list(call: &Call, wanted: Wanted) -> Result<Answer> {
    let served = call.database().await?;
    let show = show_of(&call.query)?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        write_listing(&served, &snapshot, &wanted, &show, &mut out).await?;
        out.buffer.push(b'\n');
        Ok(())
    })
    .await
}

async fn write_listing(
    served: &Arc<Served>,
    snapshot: &Snapshot,
    wanted: &Wanted,
    show: &Show,
    out: &mut Pieces,
) -> Result<()> {
    let total = served.database().info()?.document_count;
    out.buffer.extend_from_slice(format!("{{\"total_rows\":{total},\"offset\":").as_bytes());
    let offset = match &wanted.keys {
        Some(_) => None,
        None => offset(snapshot, wanted)?.map(|before| before + wanted.skip.min(total.saturating_sub(before))),
    };
    out.buffer.extend_from_slice(offset.map_or("null".to_owned(), |offset| offset.to_string()).as_bytes());
    if wanted.update_seq {
        out.buffer.extend_from_slice(b",\"update_seq\":");
        out.string(&served.sequence_text(snapshot.sequence()));
    }
    out.buffer.extend_from_slice(b",\"rows\":[");
    let printer = Printer { served, snapshot, show };
    let limit = usize::try_from(wanted.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let skip = usize::try_from(wanted.skip).unwrap_or(usize::MAX);
    let mut separator: &[u8] = b"\n";
    match &wanted.keys {
        Some(keys) => {
            let keys: Box<dyn Iterator<Item = &Value> + Send> =
                if wanted.descending { Box::new(keys.iter().rev()) } else { Box::new(keys.iter()) };
            for key in keys.skip(skip).take(limit) {
                out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
                write_key(&printer, key, wanted.documents, out)?;
                out.flush_if_full().await;
            }
        }
        None => {
            let (from, to) = wanted.bounds();
            let listing = snapshot.list().from(from).to(to).descending(wanted.descending).documents(wanted.documents);
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

/// How many rows come before the first, if they are not too many to count.
fn offset(snapshot: &Snapshot, wanted: &Wanted) -> Result<Option<u64>> {
    let (from, to) = wanted.bounds();
    let before = |id: &str| match wanted.descending {
        false => snapshot.list().to(Bound::Excluded(id)),
        true => snapshot.list().from(Bound::Excluded(id)),
    };
    let listing = match (wanted.descending, from, to) {
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

fn write_row(printer: &Printer<'_>, listed: &Listed, out: &mut Pieces) -> Result<()> {
    let Listed { id, revision, document, .. } = listed;
    write_head(id.as_str(), out);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{revision}\"}}").as_bytes());
    if let Some(document) = document {
        write_document(printer, document, out)?;
    }
    out.buffer.push(b'}');
    Ok(())
}

pub(super) fn write_head(id: &str, out: &mut Pieces) {
    out.buffer.extend_from_slice(b"{\"id\":");
    out.string(id);
    out.buffer.extend_from_slice(b",\"key\":");
    out.string(id);
}

fn write_document(printer: &Printer<'_>, document: &Document, out: &mut Pieces) -> Result<()> {
    out.buffer.extend_from_slice(b",\"doc\":");
    printer.print(document, &mut out.buffer)
}

/// The row of a key that was asked for: there is one for each, whatever is there.
fn write_key(printer: &Printer<'_>, key: &Value, documents: bool, out: &mut Pieces) -> Result<()> {
    let Some(id) = key.as_str() else { return write_nothing(key, out) };
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
        return write_nothing(key, out);
    };
    write_head(id, out);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{winner}\",\"deleted\":true}}").as_bytes());
    out.buffer.extend_from_slice(if documents { b",\"doc\":null}" } else { b"}" });
    Ok(())
}

fn write_nothing(key: &Value, out: &mut Pieces) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"key\":");
    key.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b",\"error\":\"not_found\"}");
    Ok(())
}
