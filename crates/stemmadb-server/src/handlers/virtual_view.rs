//! Queries of the views of a virtual database: each shard has the rows of its documents, and the results are merged.
//!
//! The fence keeps documents in their shards while the states of all shards are taken, and no longer: views are updated
//! without it, so that an update delays no move.

use std::sync::Arc;

use futures_util::stream::{StreamExt, TryStreamExt, iter};
use hyper::StatusCode;
use hyper::header::ETAG;
use stemmadb::views::{MergedGroups, MergedQuery, MergedRows, ProgramRow};
use stemmadb::{Snapshot, Value};

use super::document::has_etag;
use super::row_parameters::Precedence;
use super::view::{OpenedView, etag, open_view_of, parse_queries};
use super::view_query::ViewQuery;
use super::view_rows::{ViewRows, write_begin, write_end, write_groups, write_reduction, write_rows};
use super::view_update;
use crate::app::Call;
use crate::config::Limits;
use crate::design::{self, view_failure};
use crate::directory::ServedDatabase;
use crate::documents::{ShowOptions, parse_show_options};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, ResponseWriter, TimeLimit, blocking, streamed};
use crate::metrics::QueryTimer;
use crate::script::Scripts;
use crate::virtual_databases::{EnteredVirtual, Layout, OpenVirtual};

/// How often views are updated without the fence before a query updates them while it holds the fence. By then, only
/// what was written during the last update is missing.
const FREE_UPDATES: usize = 2;

/// The most shards whose views a request updates at the same time.
const UPDATES_MAX: usize = 8;

/// A view of a virtual database, opened in every shard.
struct VirtualView {
    open: Arc<OpenVirtual>,
    layout: Arc<Layout>,
    /// In the order of the shards.
    parts: Vec<OpenedView>,
}

/// The state of all shards that a query reads.
struct VirtualResult {
    /// The position of the changes feed up to which changes are included, if it was asked for.
    sequence: Option<String>,
    /// What the result depends on besides the request.
    state: String,
    rows: ResultRows,
}

enum ResultRows {
    Rows(MergedRows),
    Groups(MergedGroups),
    Reduction(Option<Value>),
}

impl VirtualView {
    /// Opens a view in every shard. Blocks.
    fn open(entered: &EnteredVirtual, scripts: &Arc<Scripts>, design: &str, view: &str) -> Result<Self> {
        let (open, layout) = (entered.open.clone(), entered.layout());
        let snapshot = layout.of(&format!("_design/{design}")).database().snapshot()?;
        let design = design::open(&snapshot, design)?.value()?;
        let parts = layout.shards().iter().map(|shard| open_view_of(shard.clone(), scripts, &design, view));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok(VirtualView { open, layout, parts })
    }

    /// Checks that a query fits the view.
    ///
    /// # Errors
    /// 400 if it does not; 501 for the sequence of rows that are not updated.
    fn check(&self, query: &ViewQuery) -> Result<()> {
        if query.update_seq && !query.needs_update() {
            let reason = "A virtual database has no `update_seq` of views that are not updated.";
            return Err(Failure::not_implemented(reason));
        }
        self.parts.iter().try_for_each(|part| query.check(part))
    }

    /// Whether a shard's view must be updated before these queries.
    fn is_behind(&self, queries: &[ViewQuery]) -> Result<bool> {
        let is_behind = |part| queries.iter().map(|query| OpenedView::is_behind(part, query)).find_map(found);
        self.parts.iter().find_map(is_behind).unwrap_or(Ok(false))
    }

    async fn update(&self) -> Result<()> {
        let updates = iter(&self.parts).map(view_update::update).buffer_unordered(UPDATES_MAX);
        updates.try_for_each(|()| std::future::ready(Ok(()))).await
    }

    /// Whether a shard's view may have rows of documents that another shard owns: while documents are copied; and after
    /// that until the view is updated.
    fn may_have_copies(&self, query: &ViewQuery) -> Result<bool> {
        if self.layout.is_moving() {
            return Ok(true);
        }
        if query.needs_update() || !self.layout.has_moved() {
            return Ok(false);
        }
        let is_stale = |part: &OpenedView| Ok(!part.view.is_current()?);
        self.parts.iter().map(is_stale).find_map(found).unwrap_or(Ok(false))
    }

    /// Reads the states of all shards. The caller holds the fence. Blocks.
    fn read(&self, query: &ViewQuery) -> Result<VirtualResult> {
        let filters = self.may_have_copies(query)?;
        let result = self.read_counting(query, filters)?;
        // Copying begins without the fence. Which shard owns a document is the same as before.
        if !filters && self.layout.epoch() != Some(self.open.database.epoch()) {
            return self.read_counting(query, true);
        }
        Ok(result)
    }

    /// As [`VirtualView::read`]; with a filter, only rows of documents count that their shard owns.
    fn read_counting(&self, query: &ViewQuery, filters: bool) -> Result<VirtualResult> {
        // First, so that the changes after it are at least those that are missing.
        let sequence = query.update_seq.then(|| self.open.database.changes().newest_token());
        let merged = MergedQuery::over(self.parts.iter().map(|part| query.program_query(&part.view)).collect());
        let merged = match filters {
            true => {
                let layout = self.layout.clone();
                merged.counting(move |shard, id| layout.index_of(id) == shard)
            }
            false => merged,
        };
        let can_reduce = self.parts.first().is_some_and(|part| part.can_reduce);
        let rows = match (query.is_reduced(can_reduce)?, query.group) {
            (false, _) => merged.rows().map(ResultRows::Rows),
            (true, Some(level)) => merged.groups(level).map(ResultRows::Groups),
            (true, None) => merged.reduce().map(ResultRows::Reduction),
        };
        let rows = rows.map_err(view_failure)?;
        Ok(VirtualResult { sequence, state: self.state(&rows)?, rows })
    }

    fn state(&self, rows: &ResultRows) -> Result<String> {
        let mut state = format!("{:?}", self.layout.epoch());
        for (at, part) in self.parts.iter().enumerate() {
            let sequences = match rows {
                ResultRows::Rows(rows) => (rows.sequence(at), rows.snapshot(at).sequence()),
                ResultRows::Groups(groups) => (groups.sequence(at), groups.sequence(at)),
                ResultRows::Reduction(_) => {
                    let sequence = part.view.info()?.sequence;
                    (sequence, sequence)
                }
            };
            state.push(' ');
            state.push_str(&part.state(sequences));
        }
        Ok(state)
    }

    /// Hints about paths of a view that has no rows.
    fn hints(&self) -> Result<Vec<String>> {
        let mut hints: Vec<String> = Vec::new();
        for part in &self.parts {
            let found = part.program.hints(&part.served.database().snapshot()?);
            hints.extend(found.into_iter().filter(|hint| !hints.contains(hint)).collect::<Vec<_>>());
        }
        Ok(hints)
    }

    /// Writes a result; returns the number of its rows.
    async fn write(
        &self,
        result: VirtualResult,
        query: &ViewQuery,
        show: &ShowOptions,
        out: &mut ResponseWriter,
    ) -> Result<u64> {
        write_begin(result.sequence, out);
        let (count, has_rows) = match result.rows {
            ResultRows::Rows(rows) => {
                let count = write_rows(&mut ShardRows { layout: &self.layout, rows }, query, show, out).await?;
                (count, count > 0)
            }
            ResultRows::Groups(groups) => {
                let count = write_groups(groups, out).await?;
                (count, count > 0)
            }
            ResultRows::Reduction(reduction) => (1, write_reduction(reduction, query, out)),
        };
        let hints = if has_rows { Vec::new() } else { self.hints()? };
        write_end(&hints, out);
        Ok(count)
    }
}

/// A condition that is met or could not be tested; `None` if it is not met.
fn found(condition: Result<bool>) -> Option<Result<bool>> {
    condition.map(|is_met| is_met.then_some(true)).transpose()
}

/// The rows of all shards.
struct ShardRows<'a> {
    layout: &'a Layout,
    rows: MergedRows,
}

impl ViewRows for ShardRows<'_> {
    fn next_row(&mut self) -> Option<stemmadb::Result<ProgramRow>> {
        self.rows.next().map(|row| row.map(|(_, row)| row))
    }

    fn counts(&self) -> Option<(u64, u64)> {
        self.rows.total().zip(self.rows.offset())
    }

    fn database_of(&self, id: &str) -> (&Arc<ServedDatabase>, &Snapshot) {
        let shard = self.layout.index_of(id);
        (&self.layout.shards()[shard], self.rows.snapshot(shard))
    }
}

/// Updates the view that the path names, if a query asks for that, and reads the states of all shards for each query.
async fn read(
    call: &mut Call,
    queries: &Arc<Vec<ViewQuery>>,
    limit: &TimeLimit,
) -> Result<(VirtualView, Vec<VirtualResult>)> {
    let mut entered = call.virtual_database.take().ok_or_else(Failure::no_database)?;
    for attempt in 0.. {
        let (queries, scripts) = (queries.clone(), call.state.scripts.clone());
        let (design, view) = (call.parameter("ddoc")?.to_owned(), call.parameter("view")?.to_owned());
        let begun = blocking(move || {
            let opened = VirtualView::open(&entered, &scripts, &design, &view)?;
            queries.iter().try_for_each(|query| opened.check(query))?;
            if attempt < FREE_UPDATES && opened.is_behind(&queries)? {
                return Ok((opened, None));
            }
            let results = queries.iter().map(|query| opened.read(query)).collect::<Result<Vec<_>>>()?;
            // Documents may change their shards from now on.
            drop(entered);
            Ok((opened, Some(results)))
        });
        match limit.check(begun.await)? {
            (opened, Some(results)) => return Ok((opened, results)),
            (opened, None) => limit.wait(opened.update()).await?,
        }
        entered = call.state.virtual_databases.enter(call.parameter("db")?).await?;
    }
    Err(Failure::internal("a view was not updated"))
}

/// `GET /{db}/_design/{ddoc}/_view/{view}`, `POST` the same
pub(super) async fn get(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let queries = Arc::new(vec![ViewQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?]);
    let show = parse_show_options(&call.query)?;
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let mut timer = QueryTimer::start(&call.state.metrics, call.parameter("db")?, "view");
    let limit = TimeLimit::start(query_time);
    let (view, results) = read(&mut call, &queries, &limit).await?;
    let state: Vec<&str> = results.iter().map(|result| result.state.as_str()).collect();
    let etag = etag(&state.join("\n"), &call, body.as_ref());
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let answer = streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        for (result, query) in results.into_iter().zip(queries.iter()) {
            let written = view.write(result, query, &show, &mut out).await;
            timer.add_rows_read(limit.check(written)?);
        }
        out.buffer.push(b'\n');
        Ok(())
    });
    Ok(answer.await?.with(ETAG, &etag))
}

/// `POST /{db}/_design/{ddoc}/_view/{view}/queries`
pub(super) async fn queries(mut call: Call) -> Result<HttpResponse> {
    let queries = Arc::new(parse_queries(&mut call).await?);
    let show = parse_show_options(&call.query)?;
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let mut timer = QueryTimer::start(&call.state.metrics, call.parameter("db")?, "view");
    let limit = TimeLimit::start(query_time);
    let (view, results) = read(&mut call, &queries, &limit).await?;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, (result, query)) in results.into_iter().zip(queries.iter()).enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            let written = view.write(result, query, &show, &mut out).await;
            timer.add_rows_read(limit.check(written)?);
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}
