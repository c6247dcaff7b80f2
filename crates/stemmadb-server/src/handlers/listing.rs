//! Routes that list documents by id: `_all_docs` and `_design_docs`.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::{Document, Listed, Selector, Snapshot, Value, field};

use super::list::ListRows;
use super::restricted_listing::write_restricted_listing;
use super::row_parameters::{Precedence, RowParameters, incompatible_keys};
use super::virtual_listing::write_virtual_listing;
use crate::app::Call;
use crate::design;
use crate::directory::ServedDatabase;
use crate::documents::{
    DocumentPrinter, ShowOptions, check_partition, parse_show_options, partition_end, partition_prefix,
};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, streamed, write_string};

/// The parameters of a listing.
#[derive(Debug, Clone, Default)]
pub(super) struct ListingQuery {
    pub(super) keys: Option<Vec<Value>>,
    pub(super) start: Option<String>,
    pub(super) end: Option<String>,
    pub(super) exclusive_end: bool,
    pub(super) descending: bool,
    pub(super) skip: u64,
    pub(super) limit: Option<u64>,
    pub(super) update_seq: bool,
    pub(super) include_docs: bool,
    /// The partition that the request names.
    partition: Option<String>,
    pub(super) scope: Scope,
}

/// The documents that are listed and counted.
#[derive(Debug, Clone, Default)]
pub(super) enum Scope {
    #[default]
    All,
    Designs,
    /// Those of a partition of a partitioned database.
    Partition(String),
}

impl Scope {
    /// The least id, and a bound above the greatest.
    pub(super) fn ids(&self) -> Option<(String, String)> {
        match self {
            Scope::All => None,
            Scope::Designs => Some(("_design/".to_owned(), "_design0".to_owned())),
            Scope::Partition(name) => Some((partition_prefix(name), partition_end(name))),
        }
    }

    /// Whether a requested key can be found.
    pub(super) fn contains(&self, id: &str) -> bool {
        match self {
            Scope::Partition(name) => id.starts_with(&partition_prefix(name)),
            Scope::All | Scope::Designs => true,
        }
    }
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
            partition: parameters.text(&["partition"]),
            scope: Scope::All,
        })
    }

    /// A listing that includes documents.
    pub(super) fn with_documents() -> Self {
        ListingQuery { include_docs: true, ..ListingQuery::default() }
    }

    /// Restricts the range to these documents, whose ids are contiguous.
    fn within(mut self, scope: Scope) -> Self {
        if let Some((first, last)) = scope.ids() {
            let (least, greatest) = match self.descending {
                false => (&mut self.start, &mut self.end),
                true => (&mut self.end, &mut self.start),
            };
            *least = Some(least.take().map_or(first.clone(), |id| id.max(first)));
            *greatest = Some(greatest.take().map_or(last.clone(), |id| id.min(last)));
        }
        self.scope = scope;
        self
    }

    pub(super) fn design_documents_only(self) -> Self {
        self.within(Scope::Designs)
    }

    /// Restricts the range to the partition that the request names, if it names one.
    ///
    /// # Errors
    /// 400 if the database has no partitions, or the name is invalid.
    fn within_partition(mut self, has_partitions: bool) -> Result<Self> {
        let Some(partition) = self.partition.take() else { return Ok(self) };
        if !has_partitions {
            return Err(Failure::query_parse("`partition` parameter is not supported on this db"));
        }
        check_partition(&partition)?;
        Ok(self.within(Scope::Partition(partition)))
    }

    /// Whether an id is within the requested range.
    pub(super) fn contains(&self, id: &str) -> bool {
        RangeBounds::<str>::contains(&self.bounds(), id)
    }

    /// The lower and upper bound of ids, regardless of the direction.
    pub(super) fn bounds(&self) -> (Bound<&str>, Bound<&str>) {
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
    list(&mut call, query).await
}

/// `GET /{db}/_design_docs`, `POST /{db}/_design_docs`
pub(crate) async fn design_docs(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ListingQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    list(&mut call, query.design_documents_only()).await
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
    list_all(&mut call, queries).await
}

/// `POST /{db}/_design_docs/queries`
pub(crate) async fn design_queries(mut call: Call) -> Result<HttpResponse> {
    let queries = parse_queries(&mut call).await?.into_iter().map(ListingQuery::design_documents_only).collect();
    list_all(&mut call, queries).await
}

/// Writes listings of a virtual database: one, or several in an object.
async fn list_virtual(call: &mut Call, queries: Vec<ListingQuery>, is_single: bool) -> Result<HttpResponse> {
    if queries.iter().any(|query| query.partition.is_some()) {
        return Err(Failure::query_parse("`partition` parameter is not supported on this db"));
    }
    let show = parse_show_options(&call.query)?;
    let entered = call.virtual_database.take().ok_or_else(Failure::no_database)?;
    let open = entered.open.clone();
    let databases = entered.into_databases();
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshots = databases.snapshots()?;
        if !is_single {
            out.buffer.extend_from_slice(b"{\"results\":[");
        }
        for (at, query) in queries.iter().enumerate() {
            if !is_single {
                out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            }
            write_virtual_listing(&open, &snapshots, query, &show, &mut out).await?;
        }
        out.buffer.extend_from_slice(if is_single { b"\n" } else { b"\n]}\n" });
        Ok(())
    })
    .await
}

async fn list_all(call: &mut Call, queries: Vec<ListingQuery>) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        return list_virtual(call, queries, false).await;
    }
    let served = call.open_database().await?;
    let show = parse_show_options(&call.query)?;
    let queries =
        queries.into_iter().map(|query| query.within_partition(served.is_partitioned())).collect::<Result<Vec<_>>>()?;
    let restriction = call.restriction.clone();
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, query) in queries.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            match &restriction {
                Some(restriction) => {
                    write_restricted_listing(&served, &snapshot, query, restriction, &show, &mut out).await?
                }
                None => write_listing(&served, &snapshot, query, &show, &mut out).await?,
            }
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

async fn list(call: &mut Call, query: ListingQuery) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        return list_virtual(call, vec![query], true).await;
    }
    let served = call.open_database().await?;
    let show = parse_show_options(&call.query)?;
    let query = query.within_partition(served.is_partitioned() || call.is_of_whole)?;
    let (as_of, restriction) = (call.as_of()?, call.restriction.clone());
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.read(as_of)?;
        match &restriction {
            Some(restriction) => {
                write_restricted_listing(&served, &snapshot, &query, restriction, &show, &mut out).await?
            }
            None => write_listing(&served, &snapshot, &query, &show, &mut out).await?,
        }
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
    let total = match &query.scope {
        Scope::All if snapshot.sequence() == served.database().sequence() => served.database().info()?.document_count,
        Scope::All => snapshot.find(Selector::everything()).count()?,
        Scope::Designs => design::count(snapshot)?,
        Scope::Partition(name) => partition_count(snapshot, name)?,
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
                print_key_row(&printer, query, key, &mut out.buffer)?;
                out.flush_if_full().await;
            }
        }
        None => {
            let (from, to) = query.bounds();
            let listing = snapshot.list().from(from).to(to).descending(query.descending).documents(query.include_docs);
            for listed in listing.run().skip(skip).take(limit) {
                out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
                print_row(&printer, &listed?, &mut out.buffer)?;
                out.flush_if_full().await;
            }
        }
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}

/// The number of documents of a partition. Ids before a `:` are terms of the index.
pub(super) fn partition_count(snapshot: &Snapshot, partition: &str) -> Result<u64> {
    Ok(snapshot.find(field("_id").begins_with(partition_prefix(partition))).count()?)
}

/// The number of documents before the first row; `None` if it exceeds [`OFFSET_MAX`].
fn offset(snapshot: &Snapshot, query: &ListingQuery) -> Result<Option<u64>> {
    let (from, to) = query.bounds();
    let scope = query.scope.ids();
    let before = |id: &str| match (query.descending, &scope) {
        (false, Some((first, last))) => {
            snapshot.list().from(Bound::Included(first.as_str())).to(Bound::Excluded(id.min(last)))
        }
        (true, Some((first, last))) if id < first.as_str() => {
            snapshot.list().from(Bound::Included(first.as_str())).to(Bound::Excluded(last.as_str()))
        }
        (true, Some((_, last))) => snapshot.list().from(Bound::Excluded(id)).to(Bound::Excluded(last.as_str())),
        (false, None) => snapshot.list().to(Bound::Excluded(id)),
        (true, None) => snapshot.list().from(Bound::Excluded(id)),
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

pub(super) fn print_row(printer: &DocumentPrinter<'_>, listed: &Listed, out: &mut Vec<u8>) -> Result<()> {
    let Listed { id, revision, document, .. } = listed;
    print_head(id.as_str(), out);
    out.extend_from_slice(format!(",\"value\":{{\"rev\":\"{revision}\"}}").as_bytes());
    if let Some(document) = document {
        print_document(printer, document, out)?;
    }
    out.push(b'}');
    Ok(())
}

pub(super) fn print_head(id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, id);
    out.extend_from_slice(b",\"key\":");
    write_string(out, id);
}

fn print_document(printer: &DocumentPrinter<'_>, document: &Document, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b",\"doc\":");
    printer.print(document, out)
}

/// Prints the row of a requested key. Missing and deleted documents have rows too.
pub(super) fn print_key_row(
    printer: &DocumentPrinter<'_>,
    query: &ListingQuery,
    key: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let documents = query.include_docs;
    let Some(id) = key.as_str().filter(|id| query.scope.contains(id)) else { return print_not_found(key, out) };
    if let Some(document) = printer.snapshot.get(id)? {
        print_head(id, out);
        out.extend_from_slice(format!(",\"value\":{{\"rev\":\"{}\"}}", document.revision()).as_bytes());
        if documents {
            print_document(printer, &document, out)?;
        }
        out.push(b'}');
        return Ok(());
    }
    let branches = printer.snapshot.revisions(id)?;
    let Some(winner) = branches.first().and_then(|branch| branch.revisions.first()) else {
        return print_not_found(key, out);
    };
    print_head(id, out);
    out.extend_from_slice(format!(",\"value\":{{\"rev\":\"{winner}\",\"deleted\":true}}").as_bytes());
    out.extend_from_slice(if documents { b",\"doc\":null}" } else { b"}" });
    Ok(())
}

pub(super) fn print_not_found(key: &Value, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"key\":");
    key.write_json(out);
    out.extend_from_slice(b",\"error\":\"not_found\"}");
    Ok(())
}

/// Reads the documents of the database for a list. Blocks.
pub(super) fn list_rows(
    served: &Arc<ServedDatabase>,
    query: &Query,
    body: Option<&Value>,
    show: &ShowOptions,
) -> Result<ListRows> {
    let query = ListingQuery::parse(query, body, Precedence::QueryString)?.within_partition(served.is_partitioned())?;
    let snapshot = &served.database().snapshot()?;
    let state = format!("{} {}", served.instance_id(), snapshot.sequence());
    let mut list = ListRows { state, ..ListRows::default() };
    let total = served.database().info()?.document_count;
    list.head.insert("total_rows", total);
    list.head.insert("offset", offset(snapshot, &query)?.map_or(Value::Null, Value::from));
    if query.update_seq {
        list.head.insert("update_seq", served.sequence_text(snapshot.sequence()));
    }
    let printer = DocumentPrinter { served, snapshot, show };
    let (skip, limit) = (query.skip as usize, query.limit.map_or(usize::MAX, |limit| limit as usize));
    if let Some(mut keys) = query.keys.clone() {
        if query.descending {
            keys.reverse();
        }
        for key in keys.iter().skip(skip).take(limit) {
            print_key_row(&printer, &query, key, &mut list.lines)?;
            list.end_row()?;
        }
        return Ok(list);
    }
    let (from, to) = query.bounds();
    let listing = snapshot.list().from(from).to(to).descending(query.descending).documents(query.include_docs);
    for listed in listing.run().skip(skip).take(limit) {
        print_row(&printer, &listed?, &mut list.lines)?;
        list.end_row()?;
    }
    Ok(list)
}
