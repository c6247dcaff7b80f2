//! Views of virtual databases with shards on other servers: each shard sends its part of the result in order, by the
//! route `_shard_view`, and the parts are merged while they arrive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use stemmadb::views::{ProgramReducer, ViewProgram, combine_reductions};
use stemmadb::{Object, Value};
use stemmadb_federation::{Grouping, ShardMap};
use tokio::sync::mpsc;

use super::listing::no_past_sequence;
use super::shard_call::{ShardCall, on_behalf};
use crate::app::{Call, Handler};
use crate::design::DesignView;
use crate::documents::partition_prefix;
use crate::error::{Failure, Result};
use crate::handlers::row_parameters::{Precedence, RowParameters};
use crate::handlers::view_info::ViewsState;
use crate::handlers::view_query::ViewQuery;
use crate::handlers::view_rows::print_group;
use crate::http::{Body, BodyError, BodyTimeout, HttpResponse, Query, blocking, next_frame, server_runtime};
use crate::virtual_databases::{OUTDATED, Shard};

/// The rows whose documents are read together, and the groups that are reduced together.
const BATCH_LEN: usize = 200;
/// The size of a chunk of the answer, and the number that are ready before the client has taken the first.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_AHEAD: usize = 4;
/// The longest line of a shard's answer.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The lines of a shard's answer.
struct Lines {
    body: UnsyncBoxBody<Bytes, BodyError>,
    buffer: BytesMut,
    stall_timeout: Duration,
    is_complete: bool,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Ok(Some(Value::parse(&line[..end])?));
            }
            if self.is_complete || self.buffer.len() > LINE_BYTES_MAX {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Failure::internal("a shard's answer ends within a line")),
                };
            }
            match next_frame(&mut self.body, &mut BodyTimeout::for_peer(self.stall_timeout)).await? {
                Some(frame) => self.buffer.extend_from_slice(&frame),
                None => self.is_complete = true,
            }
        }
    }
}

/// A row or a group of a shard.
struct Part {
    /// The index of the range of the query, and the place within it.
    place: (u64, Vec<u8>),
    content: Value,
}

impl Part {
    fn parse(line: Value) -> Result<Self> {
        let order = line.get("order").and_then(Value::as_str).and_then(|order| BASE64_STANDARD.decode(order).ok());
        let range = line.get("range").and_then(Value::as_u64);
        let place = range.zip(order).ok_or_else(|| Failure::internal("a part of a view has no place"))?;
        Ok(Part { place, content: line })
    }
}

/// The parts of all shards in the order of one database.
struct MergedParts {
    shards: Vec<Lines>,
    heads: Vec<Option<Part>>,
    descending: bool,
    total: Option<u64>,
    offset: Option<u64>,
}

impl MergedParts {
    /// Reads the first line of each answer, and its first part.
    async fn begin(mut shards: Vec<Lines>, descending: bool) -> Result<Self> {
        let (mut total, mut offset) = (Some(0), Some(0));
        for lines in &mut shards {
            let head = lines.next().await?.ok_or_else(|| Failure::internal("a shard's answer is empty"))?;
            let add = |sum: Option<u64>, name: &str| Some(sum? + head.get(name)?.as_u64()?);
            (total, offset) = (add(total, "total"), add(offset, "offset"));
        }
        let heads = shards.iter().map(|_| None).collect();
        Ok(MergedParts { shards, heads, descending, total, offset })
    }

    async fn start(&mut self) -> Result<()> {
        for at in 0..self.shards.len() {
            self.advance(at).await?;
        }
        Ok(())
    }

    async fn advance(&mut self, at: usize) -> Result<()> {
        self.heads[at] = self.shards[at].next().await?.map(Part::parse).transpose()?;
        Ok(())
    }

    /// The place of the next part.
    fn first(&self) -> Option<(u64, Vec<u8>)> {
        let places = self.heads.iter().flatten().map(|part| &part.place);
        let compare = |one: &&(u64, Vec<u8>), other: &&(u64, Vec<u8>)| match self.descending {
            false => one.cmp(other),
            true => one.0.cmp(&other.0).then_with(|| other.1.cmp(&one.1)),
        };
        places.min_by(compare).cloned()
    }

    /// The next parts, which all have the same place: a row, or a group of several shards.
    async fn next(&mut self) -> Result<Vec<Value>> {
        let Some(place) = self.first() else { return Ok(Vec::new()) };
        let mut parts = Vec::new();
        for at in 0..self.heads.len() {
            if self.heads[at].as_ref().is_some_and(|part| part.place == place) {
                parts.extend(self.heads[at].take().map(|part| part.content));
                self.advance(at).await?;
            }
        }
        Ok(parts)
    }
}

/// The view that a request names.
struct SpreadView {
    design: Value,
    view: String,
    program: Arc<DesignView>,
    can_reduce: bool,
    /// Only rows of documents of this partition count, all of which are in one shard.
    partition: Option<String>,
}

impl SpreadView {
    async fn open(call: &Call, partition: Option<String>) -> Result<Self> {
        let entered = call.entered()?;
        let (name, view) = (call.parameter("ddoc")?, call.parameter("view")?.to_owned());
        let design = entered.design(name).await?;
        let program = Arc::new(DesignView::new(&entered.open.own, &call.state.scripts, &design, &view)?);
        let reducer = ViewProgram::reducer(&*program);
        Ok(SpreadView { design, view, program, can_reduce: reducer != ProgramReducer::None, partition })
    }
}

/// One query of a view.
struct SpreadQuery {
    query: ViewQuery,
    /// The parameters for the shards.
    parameters: Object,
    is_reduced: bool,
}

impl SpreadQuery {
    fn parse(call: &Call, view: &SpreadView, body: Option<&Value>, precedence: Precedence) -> Result<Self> {
        let query = ViewQuery::parse(&call.query, body, precedence)?;
        let query = if view.partition.is_some() { query.of_all_partitions() } else { query };
        let can_reduce = view.can_reduce;
        if query.update_seq && !query.needs_update() {
            let reason = "A virtual database has no `update_seq` of views that are not updated.";
            return Err(Failure::not_implemented(reason));
        }
        query.check_partition(false)?;
        let is_reduced = query.is_reduced(can_reduce)?;
        if call.restriction.is_some() {
            query.unlimited(can_reduce)?;
        }
        let parameters = RowParameters::new(&call.query, body, precedence)?;
        let mut all = Object::new();
        for names in [&["key"][..], &["keys"], &["startkey", "start_key"], &["endkey", "end_key"]] {
            if let Some(value) = parameters.json(names)? {
                all.insert(names[0], value);
            }
        }
        for names in
            [&["startkey_docid", "start_key_doc_id"][..], &["endkey_docid", "end_key_doc_id"], &["stale"], &["update"]]
        {
            if let Some(text) = parameters.text(names) {
                all.insert(names[0], text);
            }
        }
        for name in ["descending", "inclusive_end", "reduce", "group"] {
            if let Some(flag) = parameters.flag(name)? {
                all.insert(name, flag);
            }
        }
        if let Some(level) = parameters.number("group_level")? {
            all.insert("group_level", level);
        }
        if let Some(limit) = query.limit {
            all.insert("limit", limit.saturating_add(query.skip));
        }
        Ok(SpreadQuery { query, parameters: all, is_reduced })
    }

    fn is_descending(&self) -> bool {
        self.parameters.get("descending") == Some(&Value::Bool(true))
    }
}

/// Asks all shards for their parts of a result.
async fn ask(call: &Call, view: &SpreadView, query: &SpreadQuery, filters: bool) -> Result<Vec<Lines>> {
    let entered = call.entered()?;
    let layout = entered.layout();
    let mut body = Object::new();
    body.insert("design", view.design.clone());
    body.insert("view", view.view.as_str());
    body.insert("query", Value::Object(query.parameters.clone()));
    let of_partition = view.partition.as_ref().map(|name| layout.index_of(&partition_prefix(name)));
    let is_asked = |index: usize| entered.is_read(index) && of_partition.is_none_or(|only| only == index);
    let shards = layout.all().iter().enumerate().filter(|(index, _)| is_asked(*index));
    let asked = shards.map(|(index, shard)| {
        let mut body = body.clone();
        if let Some(partition) = &view.partition {
            body.insert("partition", partition.as_str());
        } else if filters && let Some(map) = layout.map() {
            body.insert("owned", owned(map, index));
        }
        if let Some(state) = entered.as_of(shard) {
            body.insert("as_of", state);
        }
        ask_shard(call, shard, Value::Object(body))
    });
    try_join_all(asked.collect::<Vec<_>>()).await
}

/// The documents of a shard.
fn owned(map: &ShardMap, shard: usize) -> Value {
    let buckets = map.buckets_of(shard).into_iter().map(|bucket| Value::from(u64::from(bucket)));
    let mut owned = Object::new();
    owned.insert("buckets", Value::Array(buckets.collect()));
    if let Grouping::ByPrefix(prefix) = map.grouping() {
        owned.insert("prefix", prefix.to_string());
    }
    Value::Object(owned)
}

async fn ask_shard(call: &Call, shard: &Shard, body: Value) -> Result<Lines> {
    let stall_timeout = call.state.config.limits.stall_timeout;
    let body = match shard {
        Shard::Here(_) => {
            let handler: Handler = |call| Box::pin(crate::handlers::shard_view::post(call));
            let response = ShardCall::get(call, handler, "").respond(shard, &Query::default(), Some(&body)).await?;
            response.into_response().into_body().map_err(BodyError::from).boxed_unsync()
        }
        Shard::There(remote) => {
            let mut headers = on_behalf(call, &call.entered()?.open, remote).await?;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let body = Body::Full(Some(body.to_json().into()));
            // Its view may have to be updated first.
            let wait = call.state.config.limits.query_time.unwrap_or(UPDATE_TIMEOUT);
            let answer = remote.server.send(Method::POST, &remote.path("/_shard_view"), headers, body, wait).await?;
            if answer.status() == OUTDATED {
                return Err(remote.outdated().await);
            }
            remote.server.checked(answer).await?.into_body().map_err(BodyError::from).boxed_unsync()
        }
    };
    Ok(Lines { body, buffer: BytesMut::new(), stall_timeout, is_complete: false })
}

/// How long the view of a shard may take to be updated.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// A result that is being written to the client.
struct ResultWriter {
    buffer: Vec<u8>,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
}

impl ResultWriter {
    async fn flush(&mut self) -> Result<()> {
        let chunk = std::mem::take(&mut self.buffer);
        self.sender.send(Ok(chunk.into())).await.map_err(|_| Failure::internal("the client has left"))
    }

    async fn flush_if_full(&mut self) -> Result<()> {
        if self.buffer.len() >= CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    fn text(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }
}

/// The parts of the result of a query, before they are written.
struct SpreadResult {
    query: SpreadQuery,
    sequence: Option<String>,
    parts: MergedParts,
}

async fn read(call: &Call, view: &SpreadView, query: SpreadQuery) -> Result<SpreadResult> {
    let entered = call.entered()?;
    let layout = entered.layout();
    let sequence = match query.query.update_seq {
        true if entered.past().is_some() => return Err(no_past_sequence()),
        true => {
            let open = entered.open.clone();
            Some(blocking(move || Ok(open.database.changes().newest_token())).await?)
        }
        false => None,
    };
    let filters = match entered.past() {
        Some(past) => past.has_copies(),
        None => layout.is_moving() || layout.has_moved() && !query.query.needs_update(),
    };
    let mut lines = ask(call, view, &query, filters).await?;
    // Copying begins without the fence. Which shard owns a document is the same as before.
    if !filters && entered.past().is_none() && layout.epoch() != Some(entered.open.database.epoch()) {
        lines = ask(call, view, &query, true).await?;
    }
    let parts = MergedParts::begin(lines, query.is_descending()).await?;
    Ok(SpreadResult { query, sequence, parts })
}

impl SpreadResult {
    async fn write(mut self, call: &Call, program: &Arc<DesignView>, out: &mut ResultWriter) -> Result<()> {
        out.text("{");
        if let Some(sequence) = &self.sequence {
            out.text(&format!("\"update_seq\":{},", Value::from(sequence.as_str()).to_json()));
        }
        match (self.query.is_reduced, self.query.query.group) {
            (false, _) => self.write_rows(call, out).await?,
            (true, Some(_)) => self.write_groups(program, out).await?,
            (true, None) => self.write_reduction(program, out).await?,
        }
        out.text("\n]}");
        Ok(())
    }

    async fn write_rows(&mut self, call: &Call, out: &mut ResultWriter) -> Result<()> {
        let query = &self.query.query;
        // How many rows others have is not told.
        if query.is_sorted && call.restriction.is_none() {
            let shown = |count: Option<u64>| count.map_or("null".to_owned(), |count| count.to_string());
            let offset = self.parts.total.zip(self.parts.offset).map(|(total, offset)| total.min(offset + query.skip));
            out.text(&format!("\"total_rows\":{},\"offset\":{},", shown(self.parts.total), shown(offset)));
        }
        out.text("\"rows\":[");
        let (mut skip, mut left, mut separator) = (query.skip, query.limit.unwrap_or(u64::MAX), "\n");
        let includes_documents = query.include_docs;
        self.parts.start().await?;
        loop {
            let mut batch = Vec::new();
            while left > 0 && batch.len() < BATCH_LEN {
                let rows = self.parts.next().await?;
                if rows.is_empty() {
                    break;
                }
                for row in rows.into_iter().filter_map(row_of) {
                    match (skip, left) {
                        (1.., _) => skip -= 1,
                        (0, 1..) => {
                            left -= 1;
                            batch.push(row);
                        }
                        _ => {}
                    }
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            let documents = match includes_documents {
                true => documents_of(call, &batch).await?,
                false => VecDeque::new(),
            };
            let mut documents = documents.into_iter();
            for mut row in batch {
                if includes_documents && let Value::Object(row) = &mut row {
                    row.insert("doc", documents.next().unwrap_or_default());
                }
                out.text(std::mem::replace(&mut separator, ",\n"));
                row.write_json(&mut out.buffer);
                out.flush_if_full().await?;
            }
        }
    }

    async fn write_groups(&mut self, program: &Arc<DesignView>, out: &mut ResultWriter) -> Result<()> {
        out.text("\"rows\":[");
        let (mut skip, mut left) = (self.query.query.skip, self.query.query.limit.unwrap_or(u64::MAX));
        let mut separator = "\n";
        self.parts.start().await?;
        loop {
            let mut batch = Vec::new();
            while left > 0 && batch.len() < BATCH_LEN {
                let group = self.parts.next().await?;
                if group.is_empty() {
                    break;
                }
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                left -= 1;
                batch.push(group);
            }
            if batch.is_empty() {
                return Ok(());
            }
            let program: Arc<dyn ViewProgram> = program.clone();
            let groups = blocking(move || {
                let combined = batch.into_iter().map(|group| {
                    let key = group.first().and_then(|part| part.get("key")).cloned().unwrap_or_default();
                    Ok((key, combined(&program, &group)?.unwrap_or_default()))
                });
                combined.collect::<Result<Vec<_>>>()
            });
            for (key, value) in groups.await? {
                out.text(std::mem::replace(&mut separator, ",\n"));
                print_group(&key, &value, &mut out.buffer);
                out.flush_if_full().await?;
            }
        }
    }

    async fn write_reduction(&mut self, program: &Arc<DesignView>, out: &mut ResultWriter) -> Result<()> {
        out.text("\"rows\":[");
        let mut parts = Vec::new();
        for lines in &mut self.parts.shards {
            parts.extend(lines.next().await?);
        }
        let program: Arc<dyn ViewProgram> = program.clone();
        let reduction = blocking(move || combined(&program, &parts)).await?;
        if let Some(value) = reduction.filter(|_| self.query.query.shows_reduction()) {
            out.text("\n");
            print_group(&Value::Null, &value, &mut out.buffer);
        }
        Ok(())
    }
}

/// The reduction of what several shards have reduced. Blocks.
fn combined(program: &Arc<dyn ViewProgram>, parts: &[Value]) -> Result<Option<Value>> {
    let partial = |part: &Value| {
        let partial = part.get("partial").and_then(Value::as_str).and_then(|text| BASE64_STANDARD.decode(text).ok());
        partial.ok_or_else(|| Failure::internal("a part of a view has no reduction"))
    };
    let partials = parts.iter().map(partial).collect::<Result<Vec<_>>>()?;
    combine_reductions(program, &partials).map_err(crate::design::view_failure)
}

fn row_of(part: Value) -> Option<Value> {
    match part {
        Value::Object(mut part) => part.remove("row"),
        _ => None,
    }
}

/// The documents of rows, or those that their values link to.
async fn documents_of(call: &Call, rows: &[Value]) -> Result<VecDeque<Value>> {
    let linked = |row: &Value| {
        let link = row.get("value").and_then(|value| value.get("_id")).and_then(Value::as_str);
        link.or_else(|| row.get("id").and_then(Value::as_str)).unwrap_or_default().to_owned()
    };
    let revision = |row: &Value| {
        let revision = row.get("value").and_then(|value| value.get("_rev")).and_then(Value::as_str);
        revision.map(str::to_owned)
    };
    let mut documents = super::listing::documents(call, rows.iter().map(linked).collect()).await?;
    for (row, document) in rows.iter().zip(&mut documents) {
        if let Some(revision) = revision(row)
            && document.get("_rev").and_then(Value::as_str) != Some(&revision)
        {
            let mut query = super::listing::shown(call);
            query.set("rev", &revision);
            *document = match super::read_document(call, &linked(row), &query).await {
                Err(failure) if failure.status().is_client_error() => Value::Null,
                read => read?,
            };
        }
    }
    Ok(documents)
}

/// Answers with the results of queries, each of which all shards have begun to answer.
fn respond(call: Call, view: SpreadView, results: Vec<SpreadResult>, is_single: bool) -> HttpResponse {
    let (sender, from) = mpsc::channel(CHUNKS_AHEAD);
    server_runtime().spawn(async move {
        let mut out = ResultWriter { buffer: Vec::with_capacity(CHUNK_BYTES), sender };
        let written = write_all(&call, &view, results, is_single, &mut out).await;
        if let Err(failure) = written {
            out.sender.send(Err(std::io::Error::other(failure.to_string()))).await.ok();
        }
    });
    HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }).with(CONTENT_TYPE, "application/json")
}

async fn write_all(
    call: &Call,
    view: &SpreadView,
    results: Vec<SpreadResult>,
    is_single: bool,
    out: &mut ResultWriter,
) -> Result<()> {
    out.text(if is_single { "" } else { "{\"results\":[" });
    for (at, result) in results.into_iter().enumerate() {
        out.text(match (is_single, at) {
            (true, _) => "",
            (false, 0) => "\n",
            (false, _) => ",\n",
        });
        result.write(call, &view.program, out).await?;
    }
    out.text(if is_single { "\n" } else { "\n]}\n" });
    out.flush().await
}

/// `_design/{ddoc}/_view/{view}`
pub(super) async fn get(call: Call) -> Result<HttpResponse> {
    one(call, None).await
}

/// `_partition/{partition}/_design/{ddoc}/_view/{view}`
pub(super) async fn of_partition(call: Call, partition: String) -> Result<HttpResponse> {
    one(call, Some(partition)).await
}

async fn one(mut call: Call, partition: Option<String>) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let view = SpreadView::open(&call, partition).await?;
    let query = SpreadQuery::parse(&call, &view, body.as_ref(), Precedence::QueryString)?;
    let result = read(&call, &view, query).await?;
    Ok(respond(call, view, vec![result], true))
}

/// `_design/{ddoc}/_view/{view}/queries`
pub(super) async fn queries(mut call: Call) -> Result<HttpResponse> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("POST body must include `queries` parameter."))?;
    let view = SpreadView::open(&call, None).await?;
    let mut results = Vec::with_capacity(queries.len());
    for query in queries {
        let query = SpreadQuery::parse(&call, &view, Some(query), Precedence::Body)?;
        results.push(read(&call, &view, query).await?);
    }
    Ok(respond(call, view, results, false))
}

/// `_design/{ddoc}/_info`
pub(super) async fn info(call: Call) -> Result<HttpResponse> {
    let name = call.parameter("ddoc")?.to_owned();
    let (design, layout) = (call.entered()?.design(&name).await?, call.entered()?.layout());
    let body: Object = [("info", Value::from(true)), ("design", design.clone())].into_iter().collect();
    let body = Value::Object(body);
    let asked: Vec<_> = layout.all().iter().cloned().map(|shard| (shard, Some(body.clone()))).collect();
    let handler: Handler = |call| Box::pin(crate::handlers::shard_view::post(call));
    let mut state = ViewsState::default();
    for (_, answer) in ShardCall::get(&call, handler, "/_shard_view").ask_all(asked).await? {
        let of_shard = answer.deserialize_into();
        state.merge(of_shard.map_err(|_| Failure::internal("a shard answered without the state of its views"))?);
    }
    state.response(&name, &design)
}
