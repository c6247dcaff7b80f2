//! Queries of views.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::ETAG;
use stemmadb::views::{ProgramGroups, ProgramRow, ProgramRows, ProgramView};
use stemmadb::{Document, Sequence, Snapshot, Value};

use super::document::has_etag;
use super::list::ListRows;
use super::row_parameters::Precedence;
use super::view_query::ViewQuery;
use super::view_update;
use crate::app::Call;
use crate::auth::Restriction;
use crate::config::Limits;
use crate::design::{self, DesignView, OVERFLOW, view_failure};
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, is_readable, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, TimeLimit, blocking, streamed, write_string};
use crate::metrics::QueryTimer;

/// An opened view of a design document.
pub(super) struct OpenedView {
    pub(super) served: Arc<ServedDatabase>,
    pub(super) view: ProgramView,
    can_reduce: bool,
    is_partitioned: bool,
    pub(super) program: Arc<DesignView>,
}

impl OpenedView {
    /// Whether the view must be updated before this query.
    pub(super) fn is_behind(&self, query: &ViewQuery) -> Result<bool> {
        Ok(query.needs_update() && !self.view.is_current()?)
    }
}

impl ViewQuery {
    /// Checks that the query fits the view.
    ///
    /// # Errors
    /// 400 if it does not.
    pub(super) fn check(&self, opened: &OpenedView) -> Result<()> {
        self.check_partition(opened.is_partitioned)?;
        self.is_reduced(opened.can_reduce).map(|_| ())
    }
}

/// Opens a view. Blocks.
pub(super) fn open_view(
    served: Arc<ServedDatabase>,
    scripts: &Arc<crate::script::Scripts>,
    design: &str,
    view: &str,
) -> Result<OpenedView> {
    let snapshot = served.database().snapshot()?;
    let value = design::open(&snapshot, design)?.value()?;
    let program = Arc::new(DesignView::new(&served, scripts, &value, view)?);
    let can_reduce = stemmadb::views::ViewProgram::reducer(&*program) != stemmadb::views::ProgramReducer::None;
    let is_partitioned = stemmadb::views::ViewProgram::is_partitioned(&*program);
    let view = served.database().views().open_program(program.clone())?;
    Ok(OpenedView { served, view, program, can_reduce, is_partitioned })
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
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let restriction = call.restriction.clone();
    let (mut timer, limit) =
        (QueryTimer::start(&call.state.metrics, served.name(), "view"), TimeLimit::start(query_time));
    let read = {
        let restriction = restriction.clone();
        move |opened: &OpenedView, query: &ViewQuery| ViewResult::read(opened, query, restriction.as_ref())
    };
    let read_first = read.clone();
    let begun = blocking(move || {
        let opened = open_view(served, &scripts, &design, &view)?;
        query.check(&opened)?;
        let result = if opened.is_behind(&query)? { None } else { Some(read_first(&opened, &query)?) };
        Ok((opened, query, result))
    });
    let (opened, query, result) = match limit.check(begun.await)? {
        (opened, query, Some(result)) => (opened, query, result),
        (opened, query, None) => {
            limit.wait(view_update::update(&opened)).await?;
            let updated = blocking(move || {
                let result = read(&opened, &query)?;
                Ok((opened, query, result))
            });
            limit.check(updated.await)?
        }
    };
    let etag = etag(&opened, &result, &call, body.as_ref());
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let answer = streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let written = write_result(&opened, result, &query, &show, restriction.as_ref(), &mut out).await;
        timer.add_rows_read(limit.check(written)?);
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
    let (instance, signature, restriction) =
        (opened.served.instance_id(), opened.program.signature(), &call.restriction);
    let state = format!("{instance} {signature} {rows} {documents}\n{uri}\n{body}\n{restriction:?}");
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
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let restriction = call.restriction.clone();
    let (mut timer, limit) =
        (QueryTimer::start(&call.state.metrics, served.name(), "view"), TimeLimit::start(query_time));
    let begun = blocking(move || {
        let opened = open_view(served, &scripts, &design, &view)?;
        // Validate all queries before the response starts.
        queries.iter().try_for_each(|query| query.check(&opened))?;
        let is_behind = queries.iter().map(|query| opened.is_behind(query)).collect::<Result<Vec<_>>>()?;
        Ok((opened, queries, is_behind.contains(&true)))
    });
    let (opened, queries, is_behind) = limit.check(begun.await)?;
    if is_behind {
        limit.wait(view_update::update(&opened)).await?;
    }
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, query) in queries.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            let result = limit.check(ViewResult::read(&opened, query, restriction.as_ref()))?;
            let written = write_result(&opened, result, query, &show, restriction.as_ref(), &mut out).await;
            timer.add_rows_read(limit.check(written)?);
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
    fn read(opened: &OpenedView, query: &ViewQuery, restriction: Option<&Restriction>) -> Result<Self> {
        query.check_partition(opened.is_partitioned)?;
        if restriction.is_some() {
            let query = query.unlimited(opened.can_reduce)?;
            return Ok(ViewResult::Rows(query.program_query(&opened.view).rows().map_err(view_failure)?));
        }
        let past = query.as_of.map(|at| opened.served.read(Some(at))).transpose()?;
        let program_query = query.program_query(&opened.view);
        let program_query = match &past {
            Some(snapshot) => program_query.as_of(snapshot),
            None => program_query,
        };
        if !query.is_reduced(opened.can_reduce)? {
            return Ok(ViewResult::Rows(program_query.rows().map_err(view_failure)?));
        }
        match query.group {
            Some(level) => Ok(ViewResult::Groups(program_query.groups(level).map_err(view_failure)?)),
            None => {
                let reduction = program_query.reduce().map_err(view_failure)?;
                let sequence = match past {
                    Some(snapshot) => snapshot.sequence(),
                    None => opened.view.info()?.sequence,
                };
                Ok(ViewResult::Reduction(reduction, sequence))
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
    restriction: Option<&Restriction>,
    out: &mut ResponseWriter,
) -> Result<u64> {
    match (result, restriction) {
        (ViewResult::Rows(rows), Some(restriction)) => {
            write_readable_rows(opened, rows, query, show, restriction, out).await
        }
        (ViewResult::Rows(rows), None) => write_rows(opened, rows, query, show, out).await,
        (ViewResult::Groups(groups), _) => write_groups(opened, groups, query, out).await,
        (ViewResult::Reduction(reduction, sequence), _) => {
            out.buffer.push(b'{');
            write_sequence(opened, query, sequence, out);
            out.buffer.extend_from_slice(b"\"rows\":[");
            let count = u64::from(reduction.is_some());
            // The single row is subject to `skip` and `limit`.
            if let Some(value) = reduction.filter(|_| query.skip == 0 && query.limit != Some(0)) {
                out.buffer.push(b'\n');
                print_group(&Value::Null, &value, &mut out.buffer);
            }
            write_end(opened, count, out)?;
            Ok(1)
        }
    }
}

/// Ends a result. If the view is defined by paths and has no rows, a warning says which paths lead through arrays.
fn write_end(opened: &OpenedView, row_count: u64, out: &mut ResponseWriter) -> Result<()> {
    out.buffer.extend_from_slice(b"\n]");
    let hints = match row_count {
        0 => opened.program.hints(&opened.served.database().snapshot()?),
        _ => Vec::new(),
    };
    if !hints.is_empty() {
        out.buffer.extend_from_slice(b",\n\"warning\":");
        out.string(&hints.join("; "));
    }
    out.buffer.push(b'}');
    Ok(())
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
        print_row(opened, &rows, &row, RowDocument::of(query), show, &mut out.buffer)?;
        out.flush_if_full().await;
    }
    write_end(opened, count, out)?;
    Ok(count)
}

/// Writes the rows of documents that the user may read. A row is of its document's current revision: one that was
/// written after the view was updated is left out, and so is the number of rows of the view.
async fn write_readable_rows(
    opened: &OpenedView,
    mut rows: ProgramRows,
    query: &ViewQuery,
    show: &ShowOptions,
    restriction: &Restriction,
    out: &mut ResponseWriter,
) -> Result<u64> {
    out.buffer.push(b'{');
    write_sequence(opened, query, rows.sequence(), out);
    out.buffer.extend_from_slice(b"\"rows\":[");
    let (mut separator, mut skipped, mut count): (&[u8], u64, u64) = (b"\n", 0, 0);
    while count < query.limit.unwrap_or(u64::MAX)
        && let Some(row) = rows.next()
    {
        let row = row.map_err(view_failure)?;
        let document = rows.snapshot().get(&row.id)?.filter(|document| document.sequence() <= rows.sequence());
        if !document.map_or(Ok(false), |document| restriction.allows(&document))? {
            continue;
        }
        if skipped < query.skip {
            skipped += 1;
            continue;
        }
        count += 1;
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        let document = RowDocument::of(query).readable(rows.snapshot(), &row, restriction)?;
        print_row(opened, &rows, &row, document, show, &mut out.buffer)?;
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(count)
}

/// The member `doc` of a row.
#[derive(Clone, Copy)]
enum RowDocument {
    /// There is none.
    Omitted,
    /// The document, or null if it does not exist.
    Shown,
    /// Null, because the user may not read the document.
    Hidden,
}

impl RowDocument {
    fn of(query: &ViewQuery) -> Self {
        if query.include_docs { RowDocument::Shown } else { RowDocument::Omitted }
    }

    /// The same, hidden if the user may not read the document that the row links to.
    fn readable(self, snapshot: &Snapshot, row: &ProgramRow, restriction: &Restriction) -> Result<Self> {
        let RowDocument::Shown = self else { return Ok(self) };
        let id = linked_id(row);
        let branches = snapshot.revisions(id)?;
        let is_readable = is_readable(snapshot, id, &branches, Some(restriction))?
            && linked_document(snapshot, row)?.map_or(Ok(false), |document| restriction.allows(&document))?;
        Ok(if is_readable { RowDocument::Shown } else { RowDocument::Hidden })
    }
}

fn print_row(
    opened: &OpenedView,
    rows: &ProgramRows,
    row: &ProgramRow,
    document: RowDocument,
    show: &ShowOptions,
    out: &mut Vec<u8>,
) -> Result<()> {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, &row.id);
    out.extend_from_slice(b",\"key\":");
    row.key.write_json(out);
    out.extend_from_slice(b",\"value\":");
    row.value.write_json(out);
    match document {
        RowDocument::Omitted => {}
        RowDocument::Shown => {
            out.extend_from_slice(b",\"doc\":");
            print_document(opened, rows, row, show, out)?;
        }
        RowDocument::Hidden => out.extend_from_slice(b",\"doc\":null"),
    }
    out.push(b'}');
    Ok(())
}

/// The id of a row's document, or of the document that its value links to with `_id`.
fn linked_id(row: &ProgramRow) -> &str {
    row.value.get("_id").and_then(Value::as_str).unwrap_or(&row.id)
}

/// The document with [`linked_id`], at the revision that the value names with `_rev`.
fn linked_document(snapshot: &Snapshot, row: &ProgramRow) -> Result<Option<Document>> {
    let id = linked_id(row);
    match row.value.get("_rev").and_then(Value::as_str) {
        Some(revision) => match crate::documents::parse_revision(revision) {
            Ok(revision) => Ok(snapshot.get_revision(id, &revision)?),
            Err(_) => Ok(None),
        },
        None => Ok(snapshot.get(id)?),
    }
}

/// Prints the document of a row.
fn print_document(
    opened: &OpenedView,
    rows: &ProgramRows,
    row: &ProgramRow,
    show: &ShowOptions,
    out: &mut Vec<u8>,
) -> Result<()> {
    let snapshot = rows.snapshot();
    match linked_document(snapshot, row)? {
        Some(document) => DocumentPrinter { served: &opened.served, snapshot, show }.print(&document, out),
        None => {
            out.extend_from_slice(b"null");
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
        out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
        print_group(&key, &value, &mut out.buffer);
        out.flush_if_full().await;
    }
    write_end(opened, count, out)?;
    Ok(count)
}

fn print_group(key: &Value, value: &Value, out: &mut Vec<u8>) {
    // As in CouchDB, a reduction that is too large is an error of its row.
    if let Some(reason) = value.get(OVERFLOW).and_then(Value::as_str) {
        out.extend_from_slice(b"{\"key\":null,\"error\":");
        write_string(out, OVERFLOW);
        out.extend_from_slice(b",\"reason\":");
        write_string(out, reason);
        out.push(b'}');
        return;
    }
    out.extend_from_slice(b"{\"key\":");
    key.write_json(out);
    out.extend_from_slice(b",\"value\":");
    value.write_json(out);
    out.push(b'}');
}

/// Reads the rows of a view for a list. Blocks.
pub(super) fn list_rows(
    served: Arc<ServedDatabase>,
    scripts: &Arc<crate::script::Scripts>,
    design: &str,
    view: &str,
    (query, body): (&Query, Option<&Value>),
    show: &ShowOptions,
) -> Result<ListRows> {
    let query = ViewQuery::parse(query, body, Precedence::QueryString)?;
    let opened = open_view(served, scripts, design, view)?;
    let result = ViewResult::read(&opened, &query, None)?;
    let (position, documents) = result.sequences();
    let state = format!("{} {} {position} {documents}", opened.served.instance_id(), opened.program.signature());
    let mut list = ListRows { state, ..ListRows::default() };
    if query.update_seq {
        list.head.insert("update_seq", opened.served.sequence_text(position));
    }
    match result {
        ViewResult::Rows(mut rows) => {
            list.head.insert("total_rows", rows.total());
            list.head.insert("offset", rows.offset());
            while let Some(row) = rows.next() {
                let row = row.map_err(view_failure)?;
                print_row(&opened, &rows, &row, RowDocument::of(&query), show, &mut list.lines)?;
                list.end_row()?;
            }
        }
        ViewResult::Groups(groups) => {
            for group in groups {
                let (key, value) = group.map_err(view_failure)?;
                print_group(&key, &value, &mut list.lines);
                list.end_row()?;
            }
        }
        ViewResult::Reduction(reduction, _) => {
            if let Some(value) = reduction.filter(|_| query.skip == 0 && query.limit != Some(0)) {
                print_group(&Value::Null, &value, &mut list.lines);
                list.end_row()?;
            }
        }
    }
    Ok(list)
}
