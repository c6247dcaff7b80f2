//! Routes of views: queries, `_info` and `_view_cleanup`.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::ETAG;
use serde_json::json;
use stemmadb::views::{ProgramGroups, ProgramQuery, ProgramRow, ProgramRows, ProgramView, RowBound, RowChoice};
use stemmadb::{Access, Sequence, Value};

use super::document::has_etag;
use super::row_parameters::{Precedence, RowParameters, incompatible_keys};
use crate::app::Call;
use crate::design::{self, DesignView, OVERFLOW, PROGRAM_PREFIX, declared_signatures, view_failure};
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, blocking, streamed};
use crate::metrics::QueryTimer;

/// The parameters of a view query.
#[derive(Debug, Clone, Default)]
struct ViewQuery {
    choice: RowChoice,
    descending: bool,
    limit: Option<u64>,
    skip: u64,
    /// `None`: reduce if the view has a reduce function.
    reduce: Option<bool>,
    /// `Some(None)` groups by whole keys, `Some(Some(n))` by the first `n` elements of array keys.
    group: Option<Option<usize>>,
    include_docs: bool,
    update_seq: bool,
    is_sorted: bool,
    access: Access,
}

impl ViewQuery {
    fn parse(query: &Query, body: Option<&Value>, precedence: Precedence) -> Result<Self> {
        let parameters = RowParameters::new(query, body, precedence)?;
        let descending = parameters.flag("descending")?.unwrap_or(false);
        let group = match (parameters.number("group_level")?, parameters.flag("group")?) {
            (Some(0), _) => None,
            (Some(level), _) => Some(Some(usize::try_from(level).unwrap_or(usize::MAX))),
            (None, Some(true)) => Some(None),
            (None, _) => None,
        };
        Ok(ViewQuery {
            choice: parse_choice(&parameters, descending)?,
            descending,
            limit: parameters.number("limit")?,
            skip: parameters.number("skip")?.unwrap_or(0),
            reduce: parameters.flag("reduce")?,
            group,
            include_docs: parameters.flag("include_docs")?.unwrap_or(false),
            update_seq: parameters.flag("update_seq")?.unwrap_or(false),
            is_sorted: parameters.flag("sorted")?.unwrap_or(true),
            access: parse_access(&parameters)?,
        })
    }

    /// Whether the query reduces rows.
    ///
    /// # Errors
    /// 400 if the parameters don't fit the view.
    fn is_reduced(&self, can_reduce: bool) -> Result<bool> {
        let invalid = |reason: &'static str| Err(Failure::query_parse(reason));
        let is_reduced = self.reduce.unwrap_or(can_reduce);
        match (is_reduced, can_reduce) {
            (true, false) => return invalid("Reduce is invalid for map-only views."),
            (false, _) if self.group.is_some() => return invalid("Invalid use of grouping on a map view."),
            (true, _) if self.include_docs => return invalid("`include_docs` is invalid for reduce"),
            _ => {}
        }
        let key_count = match &self.choice {
            RowChoice::Keys(keys) => keys.len(),
            RowChoice::Ranges(ranges) => ranges.len(),
            _ => 0,
        };
        if is_reduced && self.group.is_none() && key_count > 1 {
            return invalid("Multi-key fetches for reduce views must use `group=true`");
        }
        Ok(is_reduced)
    }

    fn program_query(&self, view: &ProgramView) -> ProgramQuery {
        let query = view.query().among(self.choice.clone()).descending(self.descending);
        let query = query.skip(self.skip).access(self.access);
        match self.limit {
            Some(limit) => query.limit(limit),
            None => query,
        }
    }
}

fn parse_choice(parameters: &RowParameters<'_>, descending: bool) -> Result<RowChoice> {
    let key = parameters.json(&["key"])?;
    let start = parameters.json(&["startkey", "start_key"])?;
    let end = parameters.json(&["endkey", "end_key"])?;
    let start_id = parameters.text(&["startkey_docid", "start_key_doc_id"]);
    let end_id = parameters.text(&["endkey_docid", "end_key_doc_id"]);
    let (lower_id, upper_id) = if descending { (&end_id, &start_id) } else { (&start_id, &end_id) };
    match parameters.json(&["keys"])? {
        None => {}
        Some(Value::Array(keys)) if !keys.is_empty() && (key.is_some() || start.is_some() || end.is_some()) => {
            return Err(incompatible_keys());
        }
        // Rows are returned in the order of the requested keys, reversed if descending.
        Some(Value::Array(mut keys)) => {
            if descending {
                keys.reverse();
            }
            if lower_id.is_none() && upper_id.is_none() {
                return Ok(RowChoice::Keys(keys));
            }
            // The ids bound the rows of every key.
            let bound =
                |key: &Value, id: &Option<String>| RowBound { key: key.clone(), id: id.clone(), is_inclusive: true };
            let ranges = keys.iter().map(|key| (bound(key, lower_id), bound(key, upper_id)));
            return Ok(RowChoice::Ranges(ranges.collect()));
        }
        Some(_) => return Err(Failure::bad_request("`keys` must be an array.")),
    }
    let is_inclusive = parameters.flag("inclusive_end")?.unwrap_or(true);
    let bound = |key: Option<Value>, id, is_inclusive| key.map(|key| RowBound { key, id, is_inclusive });
    let (start, end) = match key {
        Some(key) => (Some(key.clone()), Some(key)),
        None => (start, end),
    };
    let (start, end) = (bound(start, start_id, true), bound(end, end_id, is_inclusive));
    let choice = if descending { RowChoice::Range(end, start) } else { RowChoice::Range(start, end) };
    if choice.is_reversed() {
        return Err(Failure::query_parse(
            "No rows can match your key range, reverse your start_key and end_key or set descending=true",
        ));
    }
    Ok(choice)
}

fn parse_access(parameters: &RowParameters<'_>) -> Result<Access> {
    match (
        parameters.text(&["update"]).as_deref(),
        parameters.text(&["stale"]).as_deref(),
        parameters.flag("update").ok().flatten(),
    ) {
        (None, None, None) | (Some("true"), _, _) | (None, _, Some(true)) => Ok(Access::UpdateBefore),
        (Some("false"), _, _) | (None, Some("ok"), None) | (None, _, Some(false)) => Ok(Access::NoUpdate),
        (Some("lazy"), _, _) | (None, Some("update_after"), None) => Ok(Access::UpdateAfter),
        (Some(_), _, _) => Err(Failure::query_parse("Invalid value for `update`.")),
        (None, Some(_), _) => Err(Failure::query_parse("Invalid value for `stale`.")),
    }
}

/// An opened view of a design document.
struct OpenedView {
    served: Arc<ServedDatabase>,
    view: ProgramView,
    can_reduce: bool,
    signature: String,
}

/// Opens a view. Blocks.
fn open_view(
    served: Arc<ServedDatabase>,
    scripts: &Arc<crate::script::Scripts>,
    design: &str,
    view: &str,
) -> Result<OpenedView> {
    let snapshot = served.database().snapshot()?;
    let value = design::open(&snapshot, design)?.value()?;
    let program = DesignView::new(&served, scripts, &value, view)?;
    let signature = program.signature().to_owned();
    let can_reduce = stemmadb::views::ViewProgram::reducer(&program) != stemmadb::views::ProgramReducer::None;
    let view = served.database().views().open_program(Arc::new(program))?;
    Ok(OpenedView { served, view, can_reduce, signature })
}

/// The view named by the path, not opened yet.
struct ViewPath {
    served: Arc<ServedDatabase>,
    scripts: Arc<crate::script::Scripts>,
    design: String,
    view: String,
}

async fn view_path(call: &Call) -> Result<ViewPath> {
    Ok(ViewPath {
        served: call.open_database().await?,
        scripts: call.state.scripts.clone(),
        design: call.parameter("ddoc")?.to_owned(),
        view: call.parameter("view")?.to_owned(),
    })
}

/// `GET /{db}/_design/{ddoc}/_view/{view}`, `POST` the same
pub(crate) async fn get(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ViewQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    let show = parse_show_options(&call.query)?;
    let ViewPath { served, scripts, design, view } = view_path(&call).await?;
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), "view");
    let (opened, query, result) = blocking(move || {
        let opened = open_view(served, &scripts, &design, &view)?;
        let result = ViewResult::read(&opened, &query)?;
        Ok((opened, query, result))
    })
    .await?;
    let etag = etag(&opened, &result, &call, body.as_ref());
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let stall_timeout = call.state.config.limits.stall_timeout;
    let answer = streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        timer.add_rows_read(write_result(&opened, result, &query, &show, &mut out).await?);
        out.buffer.push(b'\n');
        Ok(())
    });
    Ok(answer.await?.with(ETAG, &etag))
}

/// The entity tag of a result: a hash of everything that it depends on, which is the request, the view's functions and
/// the state of the database.
fn etag(opened: &OpenedView, result: &ViewResult, call: &Call, body: Option<&Value>) -> String {
    let (rows, documents) = result.sequences();
    let uri = call.parts.uri.path_and_query().map_or("", |path| path.as_str());
    let body = body.map(Value::to_json).unwrap_or_default();
    let state = format!("{} {} {rows} {documents}\n{uri}\n{body}", opened.served.instance_id(), opened.signature);
    format!("\"{}\"", &blake3::hash(state.as_bytes()).to_hex()[..32])
}

/// `POST /{db}/_design/{ddoc}/_view/{view}/queries`
pub(crate) async fn queries(mut call: Call) -> Result<HttpResponse> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("POST body must include `queries` parameter."))?;
    let parse = |query| ViewQuery::parse(&call.query, Some(query), Precedence::Body);
    let queries = queries.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let show = parse_show_options(&call.query)?;
    let ViewPath { served, scripts, design, view } = view_path(&call).await?;
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), "view");
    let stall_timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let opened = open_view(served, &scripts, &design, &view)?;
        // Validate all queries before the response starts.
        queries.iter().try_for_each(|query| query.is_reduced(opened.can_reduce).map(|_| ()))?;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, query) in queries.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            let result = ViewResult::read(&opened, query)?;
            timer.add_rows_read(write_result(&opened, result, query, &show, &mut out).await?);
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

/// The result of a view query, before it is written.
enum ViewResult {
    Rows(ProgramRows),
    Groups(ProgramGroups),
    /// The reduction of all rows, and the sequence of the view.
    Reduction(Option<Value>, Sequence),
}

impl ViewResult {
    fn read(opened: &OpenedView, query: &ViewQuery) -> Result<Self> {
        let program_query = query.program_query(&opened.view);
        if !query.is_reduced(opened.can_reduce)? {
            return Ok(ViewResult::Rows(program_query.rows().map_err(view_failure)?));
        }
        match query.group {
            Some(level) => Ok(ViewResult::Groups(program_query.groups(level).map_err(view_failure)?)),
            None => {
                let reduction = program_query.reduce().map_err(view_failure)?;
                Ok(ViewResult::Reduction(reduction, opened.view.info()?.sequence))
            }
        }
    }

    /// The sequences of the rows and of the included documents.
    fn sequences(&self) -> (Sequence, Sequence) {
        match self {
            ViewResult::Rows(rows) => (rows.sequence(), rows.snapshot().sequence()),
            ViewResult::Groups(groups) => (groups.sequence(), groups.sequence()),
            ViewResult::Reduction(_, sequence) => (*sequence, *sequence),
        }
    }
}

/// Writes a result; returns the number of its rows.
async fn write_result(
    opened: &OpenedView,
    result: ViewResult,
    query: &ViewQuery,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<u64> {
    match result {
        ViewResult::Rows(rows) => write_rows(opened, rows, query, show, out).await,
        ViewResult::Groups(groups) => write_groups(opened, groups, query, out).await,
        ViewResult::Reduction(reduction, sequence) => {
            out.buffer.push(b'{');
            write_sequence(opened, query, sequence, out);
            out.buffer.extend_from_slice(b"\"rows\":[");
            // The single row is subject to `skip` and `limit`.
            if let Some(value) = reduction.filter(|_| query.skip == 0 && query.limit != Some(0)) {
                write_group(b"\n", &Value::Null, &value, out);
            }
            out.buffer.extend_from_slice(b"\n]}");
            Ok(1)
        }
    }
}

fn write_sequence(opened: &OpenedView, query: &ViewQuery, sequence: Sequence, out: &mut ResponseWriter) {
    if query.update_seq {
        out.buffer.extend_from_slice(b"\"update_seq\":");
        out.string(&opened.served.sequence_text(sequence));
        out.buffer.push(b',');
    }
}

async fn write_rows(
    opened: &OpenedView,
    mut rows: ProgramRows,
    query: &ViewQuery,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<u64> {
    out.buffer.push(b'{');
    write_sequence(opened, query, rows.sequence(), out);
    if query.is_sorted {
        let head = format!("\"total_rows\":{},\"offset\":{},", rows.total(), rows.offset());
        out.buffer.extend_from_slice(head.as_bytes());
    }
    out.buffer.extend_from_slice(b"\"rows\":[");
    let (mut separator, mut count): (&[u8], u64) = (b"\n", 0);
    while let Some(row) = rows.next() {
        let row = row.map_err(view_failure)?;
        count += 1;
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        out.buffer.extend_from_slice(b"{\"id\":");
        out.string(&row.id);
        out.buffer.extend_from_slice(b",\"key\":");
        row.key.write_json(&mut out.buffer);
        out.buffer.extend_from_slice(b",\"value\":");
        row.value.write_json(&mut out.buffer);
        if query.include_docs {
            out.buffer.extend_from_slice(b",\"doc\":");
            write_document(opened, &rows, &row, show, out)?;
        }
        out.buffer.push(b'}');
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(count)
}

/// Writes the document of a row, or the document that its value links to with `_id`.
fn write_document(
    opened: &OpenedView,
    rows: &ProgramRows,
    row: &ProgramRow,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<()> {
    let snapshot = rows.snapshot();
    let id = row.value.get("_id").and_then(Value::as_str).unwrap_or(&row.id);
    let document = match row.value.get("_rev").and_then(Value::as_str) {
        Some(revision) => match crate::documents::parse_revision(revision) {
            Ok(revision) => snapshot.get_revision(id, &revision)?,
            Err(_) => None,
        },
        None => snapshot.get(id)?,
    };
    match document {
        Some(document) => DocumentPrinter { served: &opened.served, snapshot, show }.print(&document, &mut out.buffer),
        None => {
            out.buffer.extend_from_slice(b"null");
            Ok(())
        }
    }
}

async fn write_groups(
    opened: &OpenedView,
    groups: ProgramGroups,
    query: &ViewQuery,
    out: &mut ResponseWriter,
) -> Result<u64> {
    out.buffer.push(b'{');
    write_sequence(opened, query, groups.sequence(), out);
    out.buffer.extend_from_slice(b"\"rows\":[");
    let mut count = 0;
    for (at, group) in groups.enumerate() {
        count += 1;
        let (key, value) = group.map_err(view_failure)?;
        write_group(if at == 0 { b"\n" } else { b",\n" }, &key, &value, out);
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(count)
}

fn write_group(separator: &[u8], key: &Value, value: &Value, out: &mut ResponseWriter) {
    out.buffer.extend_from_slice(separator);
    // As in CouchDB, a reduction that is too large is an error of its row.
    if let Some(reason) = value.get(OVERFLOW).and_then(Value::as_str) {
        out.buffer.extend_from_slice(b"{\"key\":null,\"error\":");
        out.string(OVERFLOW);
        out.buffer.extend_from_slice(b",\"reason\":");
        out.string(reason);
        out.buffer.push(b'}');
        return;
    }
    out.buffer.extend_from_slice(b"{\"key\":");
    key.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b",\"value\":");
    value.write_json(&mut out.buffer);
    out.buffer.push(b'}');
}

/// `GET /{db}/_design/{ddoc}/_info`
pub(crate) async fn info(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let scripts = call.state.scripts.clone();
    let name = call.parameter("ddoc")?.to_owned();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let design = design::open(&snapshot, &name)?.value()?;
        let names = design::view_names(&design);
        let (mut rows, mut sequence, mut signatures) = (0, snapshot.sequence(), String::new());
        for view in names {
            // Skip invalid views: querying them reports the error.
            let Ok(opened) = open_view(served.clone(), &scripts, &name, &view) else { continue };
            let info = opened.view.info()?;
            rows += info.row_count;
            sequence = sequence.min(info.sequence);
            signatures.push_str(&opened.signature);
        }
        let pending = snapshot.sequence().get() - sequence.get();
        let language = design.get("language").and_then(Value::as_str).unwrap_or("javascript");
        HttpResponse::ok(&json!({"name": name, "view_index": {
            "updates_pending": {"minimum": pending, "preferred": pending, "total": pending},
            "waiting_commit": false,
            "waiting_clients": 0,
            "updater_running": false,
            "update_seq": sequence.get(),
            "sizes": {"file": 0, "external": 0, "active": 0},
            "rows": rows,
            "signature": &blake3::hash(signatures.as_bytes()).to_hex()[..32],
            "purge_seq": 0,
            "language": language,
            "compact_running": false,
            "collator_versions": [],
        }}))
    })
    .await
}

/// `POST /{db}/_view_cleanup`
pub(crate) async fn cleanup(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    blocking(move || {
        let designs = design::all(&served.database().snapshot()?)?;
        let declared = declared_signatures(&designs)?;
        for name in served.database().views().names()? {
            let signature = name.strip_prefix(PROGRAM_PREFIX);
            if signature.is_some_and(|signature| !declared.iter().any(|declared| declared == signature)) {
                served.database().views().remove(&name)?;
            }
        }
        super::mango::sync_indexes(&served)?;
        Ok(HttpResponse::done(StatusCode::ACCEPTED))
    })
    .await
}
