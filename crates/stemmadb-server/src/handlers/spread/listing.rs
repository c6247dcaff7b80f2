//! Listings of the documents of all shards, merged in the order of their ids. Of each shard, a page of rows is read at
//! a time.

use std::collections::VecDeque;

use hyper::StatusCode;
use stemmadb::{Object, Selector, Value};
use stemmadb_federation::VirtualPast;

use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::auth::Restriction;
use crate::error::{Failure, Result};
use crate::handlers::listing::ListingQuery;
use crate::handlers::row_parameters::Precedence;
use crate::http::{HttpResponse, Query, blocking};
use crate::virtual_databases::{EnteredVirtual, Shard};

/// The rows that are read of a shard at a time, and with their documents.
const PAGE_LEN: u64 = 2_000;
const PAGE_LEN_WITH_DOCUMENTS: u64 = 200;

/// The parameters that each shard gets as they are.
const PASSED_ON: [&str; 4] = ["conflicts", "attachments", "att_encoding_info", "as_of"];

/// The parameters that say how documents are printed.
pub(super) fn shown(call: &Call) -> Query {
    let mut parameters = Query::default();
    for name in PASSED_ON {
        if let Some(text) = call.query.text(name) {
            parameters.set(name, text);
        }
    }
    parameters
}

/// The parameters that say what a row has.
fn row_parameters(call: &Call, query: &ListingQuery) -> Query {
    let mut parameters = shown(call);
    parameters.set("include_docs", if query.include_docs { "true" } else { "false" });
    parameters
}

/// The rows of one shard from some id on.
struct ShardRows {
    index: usize,
    shard: Shard,
    rows: VecDeque<Value>,
    /// The id of the last row that was read.
    last: Option<String>,
    is_complete: bool,
}

struct MergedListing<'a> {
    asking: ShardCall<'a>,
    entered: &'a EnteredVirtual,
    query: &'a ListingQuery,
    shards: Vec<ShardRows>,
}

impl<'a> MergedListing<'a> {
    fn new(asking: ShardCall<'a>, entered: &'a EnteredVirtual, query: &'a ListingQuery) -> Self {
        let layout = entered.layout();
        let shards = layout.all().iter().cloned().enumerate().filter(|(index, _)| entered.is_read(*index));
        let shards = shards
            .map(|(index, shard)| ShardRows { index, shard, rows: VecDeque::new(), last: None, is_complete: false })
            .collect();
        MergedListing { asking, entered, query, shards }
    }

    /// Reads the next page of a shard, without copies of documents that another shard has.
    async fn read_page(&mut self, at: usize) -> Result<()> {
        let ShardRows { index, shard, last, .. } = &self.shards[at];
        let page_len = if self.query.include_docs { PAGE_LEN_WITH_DOCUMENTS } else { PAGE_LEN };
        // Of the next rows, those that are skipped or above the limit are not needed, except for copies.
        let wanted = self.query.limit.and_then(|limit| limit.checked_add(self.query.skip));
        let page_len = wanted.map_or(page_len, |wanted| page_len.min(wanted.saturating_add(1)).max(2));
        let mut query = row_parameters(self.asking.call(), self.query);
        query.set("limit", &page_len.to_string());
        query.set("descending", if self.query.descending { "true" } else { "false" });
        query.set("inclusive_end", if self.query.exclusive_end { "false" } else { "true" });
        let start = last.as_ref().or(self.query.start.as_ref());
        for (name, id) in [("startkey", start), ("endkey", self.query.end.as_ref())] {
            if let Some(id) = id {
                query.set(name, &Value::from(id.as_str()).to_json());
            }
        }
        let (_, answer) = self.asking.ask(shard, &query, None).await?;
        let rows = take_rows(answer)?;
        let (index, is_complete) = (*index, (rows.len() as u64) < page_len);
        let layout = self.entered.layout();
        let before = last.clone();
        let part = &mut self.shards[at];
        part.is_complete = is_complete;
        for row in rows {
            let id = id_of(&row).to_owned();
            // A further page begins with the last row of the one before it.
            let is_new = before.as_ref() != Some(&id);
            if is_new && layout.index_of(&id) == index {
                part.rows.push_back(row);
            }
            part.last = Some(id);
        }
        Ok(())
    }

    /// The next row.
    async fn next(&mut self) -> Result<Option<Value>> {
        for at in 0..self.shards.len() {
            while self.shards[at].rows.is_empty() && !self.shards[at].is_complete {
                self.read_page(at).await?;
            }
        }
        let heads = self.shards.iter().enumerate().filter_map(|(at, part)| Some((at, id_of(part.rows.front()?))));
        let by_id = |one: &(usize, &str), other: &(usize, &str)| one.1.cmp(other.1);
        let first = if self.query.descending { heads.max_by(by_id) } else { heads.min_by(by_id) };
        let first = first.map(|(at, _)| at);
        Ok(first.and_then(|at| self.shards[at].rows.pop_front()))
    }
}

fn id_of(row: &Value) -> &str {
    row.get("id").and_then(Value::as_str).unwrap_or_default()
}

fn take_rows(answer: Value) -> Result<Vec<Value>> {
    let rows = match answer {
        Value::Object(mut answer) => answer.remove("rows"),
        _ => None,
    };
    match rows {
        Some(Value::Array(rows)) => Ok(rows),
        _ => Err(Failure::internal("a shard answered without rows")),
    }
}

/// The rows of the requested keys, in their order.
async fn keyed_rows(
    asking: &ShardCall<'_>,
    entered: &EnteredVirtual,
    query: &ListingQuery,
    keys: &[Value],
) -> Result<Vec<Value>> {
    let mut keys: Vec<&Value> = keys.iter().collect();
    if query.descending {
        keys.reverse();
    }
    let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(query.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let keys: Vec<&Value> = keys.into_iter().skip(skip).take(limit).collect();
    let layout = entered.layout();
    let mut positions: Vec<Vec<usize>> = vec![Vec::new(); layout.all().len()];
    for (position, key) in keys.iter().enumerate() {
        positions[layout.index_of(key.as_str().unwrap_or_default())].push(position);
    }
    let parameters = row_parameters(asking.call(), query);
    let mut rows = vec![Value::Null; keys.len()];
    for (shard, positions) in layout.all().iter().zip(positions).filter(|(_, positions)| !positions.is_empty()) {
        let asked: Vec<Value> = positions.iter().map(|position| keys[*position].clone()).collect();
        let body = Value::Object([("keys", Value::Array(asked))].into_iter().collect::<Object>());
        let (_, answer) = asking.ask(shard, &parameters, Some(&body)).await?;
        positions.into_iter().zip(take_rows(answer)?).for_each(|(position, row)| rows[position] = row);
    }
    Ok(rows)
}

/// The documents with these ids, as the request's parameters show them; null for those that do not exist.
pub(super) async fn documents(call: &Call, ids: Vec<String>) -> Result<VecDeque<Value>> {
    let handler: Handler = |call| Box::pin(crate::handlers::listing::all_docs(call));
    let keys: Vec<Value> = ids.into_iter().map(Value::from).collect();
    let query = ListingQuery::with_documents();
    let rows = keyed_rows(&ShardCall::get(call, handler, "/_all_docs"), call.entered()?, &query, &keys).await?;
    let document = |row: Value| match row {
        Value::Object(mut row) => row.remove("doc").unwrap_or_default(),
        _ => Value::Null,
    };
    Ok(rows.into_iter().map(document).collect())
}

/// The number of documents at the time that the request names.
async fn past_total(asking: &ShardCall<'_>, entered: &EnteredVirtual) -> Result<u64> {
    let mut query = shown(asking.call());
    query.set("limit", "0");
    let mut total = 0;
    let layout = entered.layout();
    for (_, shard) in layout.all().iter().enumerate().filter(|(index, _)| entered.is_read(*index)) {
        let (_, answer) = asking.ask(shard, &query, None).await?;
        total += answer.get("total_rows").and_then(Value::as_u64).unwrap_or_default();
    }
    Ok(total)
}

/// The error for the position of a state of the past.
pub(super) fn no_past_sequence() -> Failure {
    Failure::not_implemented("A virtual database has no `update_seq` of the past.")
}

/// One listing, in the format of one database. The offset is null if it would have to be counted.
async fn listing(call: &Call, query: &ListingQuery, designs: bool) -> Result<Vec<u8>> {
    let entered = call.entered()?;
    let handler: Handler = |call| Box::pin(crate::handlers::listing::all_docs(call));
    let asking = || ShardCall::get(call, handler, "/_all_docs");
    if query.update_seq && entered.past().is_some() {
        return Err(no_past_sequence());
    }
    let has_copies = entered.past().is_some_and(VirtualPast::has_copies);
    let total = match designs || has_copies {
        false if call.query.text("as_of").is_some() => past_total(&asking(), entered).await?,
        false => {
            let open = entered.open.clone();
            let readable = call.restriction.as_ref().map_or_else(Selector::everything, Restriction::selector);
            blocking(move || Ok(open.database.find(readable).count()?)).await?
        }
        true => {
            let all = ListingQuery::default();
            let all = if designs { all.design_documents_only() } else { all };
            let (mut rows, mut count) = (MergedListing::new(asking(), entered, &all), 0);
            while rows.next().await?.is_some() {
                count += 1;
            }
            count
        }
    };
    let is_from_first = query.keys.is_none() && query.start.is_none();
    let offset = if is_from_first { query.skip.min(total).to_string() } else { "null".to_owned() };
    let mut out = format!("{{\"total_rows\":{total},\"offset\":{offset}");
    if query.update_seq {
        let open = entered.open.clone();
        let position = blocking(move || Ok(open.database.changes().newest_token())).await?;
        out.push_str(&format!(",\"update_seq\":{}", Value::from(position).to_json()));
    }
    out.push_str(",\"rows\":[");
    let mut separator = "\n";
    let mut print = |row: &Value| {
        let row = row.to_json();
        out.push_str(std::mem::replace(&mut separator, ",\n"));
        out.push_str(&row);
        row.len()
    };
    match &query.keys {
        Some(keys) => {
            for row in keyed_rows(&asking(), entered, query, keys).await? {
                print(&row);
            }
        }
        None => {
            let (mut rows, mut skip, mut left) =
                (MergedListing::new(asking(), entered, query), query.skip, query.limit.unwrap_or(u64::MAX));
            while left > 0
                && let Some(row) = rows.next().await?
            {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                left -= 1;
                call.reservation.grow(print(&row)).await?;
            }
        }
    }
    out.push_str("\n]}");
    Ok(out.into_bytes())
}

/// `_all_docs`, or with `designs` `_design_docs`
pub(super) async fn all_docs(mut call: Call, designs: bool) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ListingQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    let query = if designs { query.design_documents_only() } else { query };
    let mut text = listing(&call, &query, designs).await?;
    text.push(b'\n');
    Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
}

/// `_all_docs/queries`, or with `designs` `_design_docs/queries`
pub(super) async fn queries(mut call: Call, designs: bool) -> Result<HttpResponse> {
    let queries = crate::handlers::listing::parse_queries(&mut call).await?;
    let mut text = b"{\"results\":[\n".to_vec();
    for (at, query) in queries.into_iter().enumerate() {
        let query = if designs { query.design_documents_only() } else { query };
        text.extend_from_slice(if at == 0 { b"" } else { b",\n" });
        text.extend_from_slice(&listing(&call, &query, designs).await?);
    }
    text.extend_from_slice(b"\n]}\n");
    Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
}
