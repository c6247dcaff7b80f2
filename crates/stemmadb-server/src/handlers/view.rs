//! Routes about the views of design documents.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::ETAG;
use serde_json::json;
use stemmadb::views::{ProgramGroups, ProgramQuery, ProgramRow, ProgramRows, ProgramView, RowBound, RowChoice};
use stemmadb::{Access, Sequence, Value};

use super::document::has_etag;
use crate::app::Call;
use crate::design::{self, DesignView, PROGRAM_PREFIX, declared_signatures, view_failure};
use crate::directory::Served;
use crate::documents::{Printer, Show, show_of};
use crate::error::{Failure, Result};
use crate::http::{Answer, Pieces, Query, blocking, streamed};

/// What is asked of a view.
#[derive(Debug, Clone, Default)]
struct Wanted {
    choice: RowChoice,
    descending: bool,
    limit: Option<u64>,
    skip: u64,
    /// None: as the view has it.
    reduce: Option<bool>,
    /// Some(None): by whole keys.
    group: Option<Option<usize>>,
    documents: bool,
    update_seq: bool,
    is_sorted: bool,
    access: Access,
}

/// Parameters from a query, and from a body that says them instead.
struct Parameters<'a> {
    query: &'a Query,
    body: Option<&'a Value>,
}

impl Parameters<'_> {
    /// The JSON of the first of these names that is there.
    fn json(&self, names: &[&str]) -> Result<Option<Value>> {
        for name in names {
            if let Some(value) = self.body.and_then(|body| body.get(name)) {
                return Ok(Some(value.clone()));
            }
            if let Some(value) = self.query.json(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The text of the first of these names, which in a query is as it is.
    fn text(&self, names: &[&str]) -> Option<String> {
        let in_body = |name: &&str| self.body.and_then(|body| body.get(name)).and_then(Value::as_str);
        let of = |name: &&str| in_body(name).or_else(|| self.query.text(name)).map(str::to_owned);
        names.iter().find_map(of)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.body.and_then(|body| body.get(name)) {
            Some(value) => match value.as_bool() {
                Some(flag) => Ok(Some(flag)),
                None => Err(Failure::query_parse(format!("Invalid boolean parameter: {value}"))),
            },
            None if self.query.text(name).is_none() => Ok(None),
            None => self.query.flag(name, false).map(Some),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>> {
        let invalid = |shown: &str| Failure::query_parse(format!("Invalid value for {name}: {shown}"));
        match self.body.and_then(|body| body.get(name)) {
            Some(value) => value.as_u64().map(Some).ok_or_else(|| invalid(&value.to_json())),
            None => self.query.number(name),
        }
    }
}

impl Wanted {
    fn parse(query: &Query, body: Option<&Value>) -> Result<Self> {
        let given = Parameters { query, body };
        let descending = given.flag("descending")?.unwrap_or(false);
        let group = match (given.number("group_level")?, given.flag("group")?) {
            (Some(0), _) => None,
            (Some(level), _) => Some(Some(usize::try_from(level).unwrap_or(usize::MAX))),
            (None, Some(true)) => Some(None),
            (None, _) => None,
        };
        Ok(Wanted {
            choice: choice(&given, descending)?,
            descending,
            limit: given.number("limit")?,
            skip: given.number("skip")?.unwrap_or(0),
            reduce: given.flag("reduce")?,
            group,
            documents: given.flag("include_docs")?.unwrap_or(false),
            update_seq: given.flag("update_seq")?.unwrap_or(false),
            is_sorted: given.flag("sorted")?.unwrap_or(true),
            access: access(&given)?,
        })
    }

    /// Whether it is answered by reductions; refuses what does not fit the view.
    fn is_reduced(&self, can_reduce: bool) -> Result<bool> {
        let refused = |reason: &'static str| Err(Failure::query_parse(reason));
        let is_reduced = self.reduce.unwrap_or(can_reduce);
        match (is_reduced, can_reduce) {
            (true, false) => return refused("Reduce is invalid for map-only views."),
            (false, _) if self.group.is_some() => return refused("Invalid use of grouping on a map view."),
            (true, _) if self.documents => return refused("`include_docs` is invalid for reduce"),
            _ => {}
        }
        if is_reduced && self.group.is_none() && matches!(&self.choice, RowChoice::Keys(keys) if keys.len() > 1) {
            return refused("Multi-key fetches for reduce views must use `group=true`");
        }
        Ok(is_reduced)
    }

    fn query(&self, view: &ProgramView) -> ProgramQuery {
        let query = view.query().among(self.choice.clone()).descending(self.descending);
        let query = query.skip(self.skip).access(self.access);
        match self.limit {
            Some(limit) => query.limit(limit),
            None => query,
        }
    }
}

fn choice(given: &Parameters<'_>, descending: bool) -> Result<RowChoice> {
    let key = given.json(&["key"])?;
    let start = given.json(&["startkey", "start_key"])?;
    let end = given.json(&["endkey", "end_key"])?;
    match given.json(&["keys"])? {
        None => {}
        Some(Value::Array(_)) if key.is_some() || start.is_some() || end.is_some() => {
            return Err(Failure::query_parse("`keys` is incompatible with `key`, `start_key` and `end_key`"));
        }
        // The answer goes through the keys as they are told, from the other end if it is descending.
        Some(Value::Array(mut keys)) => {
            if descending {
                keys.reverse();
            }
            return Ok(RowChoice::Keys(keys));
        }
        Some(_) => return Err(Failure::bad_request("`keys` must be an array.")),
    }
    let is_inclusive = given.flag("inclusive_end")?.unwrap_or(true);
    let start_id = given.text(&["startkey_docid", "start_key_doc_id"]);
    let end_id = given.text(&["endkey_docid", "end_key_doc_id"]);
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

fn access(given: &Parameters<'_>) -> Result<Access> {
    match (given.text(&["update"]).as_deref(), given.text(&["stale"]).as_deref(), given.flag("update").ok().flatten()) {
        (None, None, None) | (Some("true"), _, _) | (None, _, Some(true)) => Ok(Access::UpdateBefore),
        (Some("false"), _, _) | (None, Some("ok"), None) | (None, _, Some(false)) => Ok(Access::NoUpdate),
        (Some("lazy"), _, _) | (None, Some("update_after"), None) => Ok(Access::UpdateAfter),
        (Some(_), _, _) => Err(Failure::query_parse("Invalid value for `update`.")),
        (None, Some(_), _) => Err(Failure::query_parse("Invalid value for `stale`.")),
    }
}

/// A view that is asked over HTTP.
struct Asked {
    served: Arc<Served>,
    view: ProgramView,
    can_reduce: bool,
    signature: String,
}

/// The view that the path names. Blocks.
fn open(served: Arc<Served>, scripts: &Arc<crate::script::Scripts>, design: &str, view: &str) -> Result<Asked> {
    let snapshot = served.database().snapshot()?;
    let value = design::open(&snapshot, design)?.value()?;
    let program = DesignView::new(&served, scripts, &value, view)?;
    let signature = program.signature().to_owned();
    let can_reduce = stemmadb::views::ViewProgram::reducer(&program) != stemmadb::views::ProgramReducer::None;
    let view = served.database().views().open_program(Arc::new(program))?;
    Ok(Asked { served, view, can_reduce, signature })
}

/// What the path names.
struct Named {
    served: Arc<Served>,
    scripts: Arc<crate::script::Scripts>,
    design: String,
    view: String,
}

async fn named(call: &Call) -> Result<Named> {
    Ok(Named {
        served: call.database().await?,
        scripts: call.state.scripts.clone(),
        design: call.parameter("ddoc")?.to_owned(),
        view: call.parameter("view")?.to_owned(),
    })
}

/// `GET /{db}/_design/{ddoc}/_view/{view}`, `POST` the same
pub(crate) async fn get(mut call: Call) -> Result<Answer> {
    let body = call.json_if_any().await?;
    let wanted = Wanted::parse(&call.query, body.as_ref())?;
    let show = show_of(&call.query)?;
    let Named { served, scripts, design, view } = named(&call).await?;
    let (asked, wanted, found) = blocking(move || {
        let asked = open(served, &scripts, &design, &view)?;
        let found = Found::of(&asked, &wanted)?;
        Ok((asked, wanted, found))
    })
    .await?;
    let etag = etag(&asked, &found, &call, body.as_ref());
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(Answer::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let patience = call.state.config.limits.stall_timeout;
    let answer = streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        write_found(&asked, found, &wanted, &show, &mut out).await?;
        out.buffer.push(b'\n');
        Ok(())
    });
    Ok(answer.await?.with(ETAG, &etag))
}

/// A tag that is another one wherever the answer may be: for another question, other functions, or another state of the database.
fn etag(asked: &Asked, found: &Found, call: &Call, body: Option<&Value>) -> String {
    let (rows, documents) = found.sequences();
    let question = call.parts.uri.path_and_query().map_or("", |path| path.as_str());
    let body = body.map(Value::to_json).unwrap_or_default();
    let state = format!("{} {} {rows} {documents}\n{question}\n{body}", asked.served.mark(), asked.signature);
    format!("\"{}\"", &blake3::hash(state.as_bytes()).to_hex()[..32])
}

/// `POST /{db}/_design/{ddoc}/_view/{view}/queries`
pub(crate) async fn queries(mut call: Call) -> Result<Answer> {
    let body = call.json().await?;
    let queries = body.get("queries").and_then(Value::as_array);
    let queries = queries.ok_or_else(|| Failure::bad_request("POST body must include `queries` parameter."))?;
    let wanted = queries.iter().map(|query| Wanted::parse(&call.query, Some(query))).collect::<Result<Vec<_>>>()?;
    let show = show_of(&call.query)?;
    let Named { served, scripts, design, view } = named(&call).await?;
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let asked = open(served, &scripts, &design, &view)?;
        // What doesn't fit the view is refused before anything is sent.
        wanted.iter().try_for_each(|wanted| wanted.is_reduced(asked.can_reduce).map(|_| ()))?;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, wanted) in wanted.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            write_found(&asked, Found::of(&asked, wanted)?, wanted, &show, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

/// What answers a question, before it is written.
enum Found {
    Rows(ProgramRows),
    Groups(ProgramGroups),
    /// What all rows come to, and up to when.
    Whole(Option<Value>, Sequence),
}

impl Found {
    fn of(asked: &Asked, wanted: &Wanted) -> Result<Self> {
        let query = wanted.query(&asked.view);
        if !wanted.is_reduced(asked.can_reduce)? {
            return Ok(Found::Rows(query.rows().map_err(view_failure)?));
        }
        match wanted.group {
            Some(level) => Ok(Found::Groups(query.groups(level).map_err(view_failure)?)),
            None => {
                let whole = query.reduce().map_err(view_failure)?;
                Ok(Found::Whole(whole, asked.view.info()?.sequence))
            }
        }
    }

    /// Up to when the rows are told, and the documents beside them.
    fn sequences(&self) -> (Sequence, Sequence) {
        match self {
            Found::Rows(rows) => (rows.sequence(), rows.snapshot().sequence()),
            Found::Groups(groups) => (groups.sequence(), groups.sequence()),
            Found::Whole(_, sequence) => (*sequence, *sequence),
        }
    }
}

async fn write_found(asked: &Asked, found: Found, wanted: &Wanted, show: &Show, out: &mut Pieces) -> Result<()> {
    match found {
        Found::Rows(rows) => write_rows(asked, rows, wanted, show, out).await,
        Found::Groups(groups) => write_groups(asked, groups, wanted, out).await,
        Found::Whole(whole, sequence) => {
            out.buffer.push(b'{');
            write_sequence(asked, wanted, sequence, out);
            out.buffer.extend_from_slice(b"\"rows\":[");
            // One row, which may be left out as any other.
            if let Some(value) = whole.filter(|_| wanted.skip == 0 && wanted.limit != Some(0)) {
                write_group(b"\n", &Value::Null, &value, out);
            }
            out.buffer.extend_from_slice(b"\n]}");
            Ok(())
        }
    }
}

fn write_sequence(asked: &Asked, wanted: &Wanted, sequence: Sequence, out: &mut Pieces) {
    if wanted.update_seq {
        out.buffer.extend_from_slice(b"\"update_seq\":");
        out.string(&asked.served.sequence_text(sequence));
        out.buffer.push(b',');
    }
}

async fn write_rows(
    asked: &Asked,
    mut rows: ProgramRows,
    wanted: &Wanted,
    show: &Show,
    out: &mut Pieces,
) -> Result<()> {
    out.buffer.push(b'{');
    write_sequence(asked, wanted, rows.sequence(), out);
    if wanted.is_sorted {
        let head = format!("\"total_rows\":{},\"offset\":{},", rows.total(), rows.offset());
        out.buffer.extend_from_slice(head.as_bytes());
    }
    out.buffer.extend_from_slice(b"\"rows\":[");
    let mut separator: &[u8] = b"\n";
    while let Some(row) = rows.next() {
        let row = row.map_err(view_failure)?;
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        out.buffer.extend_from_slice(b"{\"id\":");
        out.string(&row.id);
        out.buffer.extend_from_slice(b",\"key\":");
        row.key.write_json(&mut out.buffer);
        out.buffer.extend_from_slice(b",\"value\":");
        row.value.write_json(&mut out.buffer);
        if wanted.documents {
            out.buffer.extend_from_slice(b",\"doc\":");
            write_document(asked, &rows, &row, show, out)?;
        }
        out.buffer.push(b'}');
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}

/// The document of a row: the one that its value links to, if it does.
fn write_document(asked: &Asked, rows: &ProgramRows, row: &ProgramRow, show: &Show, out: &mut Pieces) -> Result<()> {
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
        Some(document) => Printer { served: &asked.served, snapshot, show }.print(&document, &mut out.buffer),
        None => {
            out.buffer.extend_from_slice(b"null");
            Ok(())
        }
    }
}

async fn write_groups(asked: &Asked, groups: ProgramGroups, wanted: &Wanted, out: &mut Pieces) -> Result<()> {
    out.buffer.push(b'{');
    write_sequence(asked, wanted, groups.sequence(), out);
    out.buffer.extend_from_slice(b"\"rows\":[");
    for (at, group) in groups.enumerate() {
        let (key, value) = group.map_err(view_failure)?;
        write_group(if at == 0 { b"\n" } else { b",\n" }, &key, &value, out);
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}

fn write_group(separator: &[u8], key: &Value, value: &Value, out: &mut Pieces) {
    out.buffer.extend_from_slice(separator);
    out.buffer.extend_from_slice(b"{\"key\":");
    key.write_json(&mut out.buffer);
    out.buffer.extend_from_slice(b",\"value\":");
    value.write_json(&mut out.buffer);
    out.buffer.push(b'}');
}

/// `GET /{db}/_design/{ddoc}/_info`
pub(crate) async fn info(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let scripts = call.state.scripts.clone();
    let name = call.parameter("ddoc")?.to_owned();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let design = design::open(&snapshot, &name)?.value()?;
        let names = design::view_names(&design);
        let (mut rows, mut sequence, mut signatures) = (0, snapshot.sequence(), String::new());
        for view in names {
            // What is none is told to whoever asks for it.
            let Ok(asked) = open(served.clone(), &scripts, &name, &view) else { continue };
            let info = asked.view.info()?;
            rows += info.row_count;
            sequence = sequence.min(info.sequence);
            signatures.push_str(&asked.signature);
        }
        let pending = snapshot.sequence().get() - sequence.get();
        let language = design.get("language").and_then(Value::as_str).unwrap_or("javascript");
        Answer::ok(&json!({"name": name, "view_index": {
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
pub(crate) async fn cleanup(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    blocking(move || {
        let designs = design::all(&served.database().snapshot()?)?;
        let kept = declared_signatures(&designs)?;
        for name in served.database().views().names()? {
            let signature = name.strip_prefix(PROGRAM_PREFIX);
            if signature.is_some_and(|signature| !kept.iter().any(|kept| kept == signature)) {
                served.database().views().remove(&name)?;
            }
        }
        super::mango::keep_indexes(&served)?;
        Ok(Answer::done(StatusCode::ACCEPTED))
    })
    .await
}
