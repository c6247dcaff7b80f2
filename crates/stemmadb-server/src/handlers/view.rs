//! Queries of views.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::ETAG;
use stemmadb::views::{ProgramGroups, ProgramRows, ProgramView};
use stemmadb::{Sequence, Value};

use super::document::has_etag;
use super::list::ListRows;
use super::row_parameters::Precedence;
use super::view_query::ViewQuery;
use super::view_rows::{
    OwnRows, RowDocument, ViewRows, print_group, print_row, write_begin, write_end, write_groups, write_readable_rows,
    write_reduction, write_rows,
};
use super::{view_update, virtual_view};
use crate::app::Call;
use crate::auth::Restriction;
use crate::config::Limits;
use crate::design::{self, DesignView, view_failure};
use crate::directory::ServedDatabase;
use crate::documents::{ShowOptions, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, ResponseWriter, TimeLimit, blocking, streamed};
use crate::metrics::QueryTimer;

/// An opened view of a design document.
pub(super) struct OpenedView {
    pub(super) served: Arc<ServedDatabase>,
    pub(super) view: ProgramView,
    pub(super) can_reduce: bool,
    is_partitioned: bool,
    pub(super) program: Arc<DesignView>,
}

impl OpenedView {
    /// Whether the view must be updated before this query.
    pub(super) fn is_behind(&self, query: &ViewQuery) -> Result<bool> {
        Ok(query.needs_update() && !self.view.is_current()?)
    }

    /// What a result depends on besides the request: the database, the functions, and the sequences of the rows and of
    /// the included documents.
    pub(super) fn state(&self, (rows, documents): (Sequence, Sequence)) -> String {
        format!("{} {} {rows} {documents}", self.served.instance_id(), self.program.signature())
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
    open_view_of(served, scripts, &value, view)
}

/// Opens a view of a design document, which may be in another shard than the rows. Blocks.
pub(super) fn open_view_of(
    served: Arc<ServedDatabase>,
    scripts: &Arc<crate::script::Scripts>,
    design: &Value,
    view: &str,
) -> Result<OpenedView> {
    let program = Arc::new(DesignView::new(&served, scripts, design, view)?);
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
    if call.virtual_database.is_some() {
        return virtual_view::get(call).await;
    }
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
    let etag = etag(&opened.state(result.sequences()), &call, body.as_ref());
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
pub(super) fn etag(state: &str, call: &Call, body: Option<&Value>) -> String {
    let uri = call.parts.uri.path_and_query().map_or("", |path| path.as_str());
    let body = body.map(Value::to_json).unwrap_or_default();
    let restriction = &call.restriction;
    let state = format!("{state}\n{uri}\n{body}\n{restriction:?}");
    format!("\"{}\"", &blake3::hash(state.as_bytes()).to_hex()[..32])
}

/// The queries of a request with several.
pub(super) async fn parse_queries(call: &mut Call) -> Result<Vec<ViewQuery>> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("POST body must include `queries` parameter."))?;
    queries.iter().map(|query| ViewQuery::parse(&call.query, Some(query), Precedence::Body)).collect()
}

/// `POST /{db}/_design/{ddoc}/_view/{view}/queries`
pub(crate) async fn queries(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        return virtual_view::queries(call).await;
    }
    let queries = parse_queries(&mut call).await?;
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
    let served = &opened.served;
    write_begin(query.update_seq.then(|| served.sequence_text(result.sequences().0)), out);
    let (count, has_rows) = match (result, restriction) {
        (ViewResult::Rows(rows), Some(restriction)) => {
            let mut rows = OwnRows { served: served.clone(), rows };
            (write_readable_rows(&mut rows, query, show, restriction, out).await?, true)
        }
        (ViewResult::Rows(rows), None) => {
            let count = write_rows(&mut OwnRows { served: served.clone(), rows }, query, show, out).await?;
            (count, count > 0)
        }
        (ViewResult::Groups(groups), _) => {
            let count = write_groups(groups, out).await?;
            (count, count > 0)
        }
        (ViewResult::Reduction(reduction, _), _) => (1, write_reduction(reduction, query, out)),
    };
    let hints = match has_rows {
        true => Vec::new(),
        false => opened.program.hints(&served.database().snapshot()?),
    };
    write_end(&hints, out);
    Ok(count)
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
    let state = opened.state((position, documents));
    let mut list = ListRows { state, ..ListRows::default() };
    if query.update_seq {
        list.head.insert("update_seq", opened.served.sequence_text(position));
    }
    match result {
        ViewResult::Rows(rows) => {
            list.head.insert("total_rows", rows.total());
            list.head.insert("offset", rows.offset());
            let mut rows = OwnRows { served: opened.served.clone(), rows };
            while let Some(row) = rows.next_row() {
                let row = row.map_err(view_failure)?;
                print_row(&rows, &row, RowDocument::of(&query), show, &mut list.lines)?;
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
            if let Some(value) = reduction.filter(|_| query.shows_reduction()) {
                print_group(&Value::Null, &value, &mut list.lines);
                list.end_row()?;
            }
        }
    }
    Ok(list)
}
