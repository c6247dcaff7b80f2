//! Databases that are read as one: `_federation`.
//!
//! A question is allowed to users who may ask the same of each member on this server. Members on other servers are read
//! with the credentials of their URLs, so only administrators and the definition's `readers` may ask for them.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::json;
use stemmadb::{Aggregation, Query, Selector, Value};
use stemmadb_federation::{FederatedAggregation, FederatedChange, FederatedFind, Federation, MissingMembers};

use super::aggregate::rows_text;
use crate::app::Call;
use crate::auth::{Access, Route, refused};
use crate::documents::print_document;
use crate::error::{Failure, Result};
use crate::federations::{DefinedFederation, FederationDefinition};
use crate::http::{HttpResponse, Parameters, ResponseWriter, blocking, streamed, write_string};
use crate::mango::{FindRequest, exclude_design_documents};
use crate::servers::Reached;

/// The rights that questions need in each member on this server.
static FIND: Route = Route { method: Method::POST, path: "/{db}/_find", access: Access::Member };
static AGGREGATE: Route = Route { method: Method::POST, path: "/{db}/_aggregate", access: Access::Member };
static CHANGES: Route = Route { method: Method::GET, path: "/{db}/_changes", access: Access::Member };

/// `GET /_federation`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    HttpResponse::json(StatusCode::OK, &json!({ "federations": call.state.federations.list() }))
}

/// `GET /_federation/{name}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    HttpResponse::json(StatusCode::OK, &call.state.federations.shown(call.parameter("name")?)?)
}

/// `PUT /_federation/{name}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let definition = FederationDefinition::parse(call.json().await?)?;
    let (federations, name) = (call.state.federations.clone(), call.parameter("name")?.to_owned());
    blocking(move || federations.define(&name, definition)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /_federation/{name}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (federations, name) = (call.state.federations.clone(), call.parameter("name")?.to_owned());
    blocking(move || federations.remove(&name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

/// A question to a federation: what its parameters say, and the members that its user may read.
struct Question {
    defined: Arc<DefinedFederation>,
    tag: Option<String>,
    locals: Vec<(String, Reached)>,
    time: Option<Duration>,
    /// If the answer may be partial: the members that are missing.
    missing: Option<MissingMembers>,
    /// Members on this server that can't be opened, with the reason.
    unopened: Vec<(String, String)>,
}

impl Question {
    async fn parse(call: &Call, rights: &Route) -> Result<Self> {
        let defined = call.state.federations.get(call.parameter("name")?)?;
        let tag = call.query.text("tag").map(str::to_owned);
        let asked = call.query.number("timeout")?.map(Duration::from_millis);
        let time = call.state.config.limits.query_time.into_iter().chain(asked).min();
        let missing = call.query.flag("partial", false)?.then(MissingMembers::new);
        let mut question = Question { defined, tag, locals: Vec::new(), time, missing, unopened: Vec::new() };
        let defined = question.defined.clone();
        let members = defined.members(question.tag.as_deref())?;
        if members.iter().any(|member| member.is_remote()) {
            defined.check_reader(&call.user)?;
        }
        for member in members.into_iter().filter(|member| !member.is_remote()) {
            match open_local(call, rights, &member.database).await {
                Ok(served) => question.locals.push((member.name.clone(), served)),
                Err(failure) => {
                    let is_absent = !matches!(failure.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                    let failure = failure.within(&format!("member `{}`", member.name));
                    match question.missing.is_some() && is_absent {
                        true => question.unopened.push((member.name.clone(), failure.reason().to_owned())),
                        false => return Err(failure),
                    }
                }
            }
        }
        Ok(question)
    }

    /// Opens the members that are left; `None` if there are none.
    fn open(&self) -> Result<Option<Federation>> {
        let remote_count = self.defined.members(self.tag.as_deref())?.iter().filter(|one| one.is_remote()).count();
        match self.locals.len() + remote_count {
            0 => Ok(None),
            _ => self.defined.open(self.tag.as_deref(), &self.locals).map(Some),
        }
    }

    /// A query with the question's time limit, and with members that may be missing.
    fn find(&self, federation: &Federation, query: impl Into<Query>) -> FederatedFind {
        let find = federation.find(query);
        let find = self.time.into_iter().fold(find, |find, time| find.deadline(time));
        self.missing.iter().fold(find, |find, missing| find.partial(missing))
    }

    /// Appends the list of missing members to an object, if the answer may be partial.
    fn write_missing(&self, out: &mut Vec<u8>) {
        let Some(missing) = &self.missing else { return };
        let answered = missing.members().into_iter().map(|member| (member.name, member.reason));
        let missing = self.unopened.iter().cloned().chain(answered);
        let missing: Vec<_> = missing.map(|(name, reason)| json!({"member": name, "reason": reason})).collect();
        out.extend_from_slice(b",\n\"missing\":");
        out.extend_from_slice(json!(missing).to_string().as_bytes());
    }
}

/// Opens a database of this server, or of its cluster, for a user who may ask it the same.
async fn open_local(call: &Call, rights: &Route, database: &str) -> Result<Reached> {
    let mut parameters = Parameters::default();
    parameters.push("db", database.to_owned());
    let state = &call.state;
    let restriction = state.authenticator.authorize(&state.directory, rights, &parameters, &call.user).await?;
    if restriction.is_some() {
        return Err(refused("a federation"));
    }
    state.servers.reach(database).await
}

/// The response to an error of a federation, whose message names the member.
pub(super) fn failure(error: stemmadb::Error) -> Failure {
    match error.kind() {
        stemmadb::ErrorKind::NotFound => Failure::not_found(error.message().to_owned()),
        _ => error.into(),
    }
}

/// A parameter of a query that several databases can't answer together, if it has one.
pub(super) fn unsupported_parameter(request: &FindRequest) -> Option<&'static str> {
    let parameters = [
        ("conflicts", request.conflicts),
        ("execution_stats", request.execution_stats),
        ("use_index", request.use_index.is_some()),
        ("partition", request.partition.is_some()),
    ];
    parameters.into_iter().find_map(|(name, is_set)| is_set.then_some(name))
}

/// The documents that `find` finds in several databases, and perhaps a warning. `held` is dropped when all of them are
/// read.
pub(super) async fn found_response(
    call: &Call,
    request: FindRequest,
    warning: Option<String>,
    find: impl FnOnce(Query) -> FederatedFind + Send + 'static,
    held: impl Send + 'static,
) -> Result<HttpResponse> {
    let limits = &call.state.config.limits;
    let query_time = limits.query_time;
    streamed(StatusCode::OK, "application/json", limits.stall_timeout, move |mut out| async move {
        let query = request.query(true)?;
        let find = query_time.into_iter().fold(find(query.clone()), |find, time| find.deadline(time));
        write_documents((!request.is_at_end()).then_some(find), &query, &request, &mut out).await?;
        if let Some(warning) = warning {
            out.buffer.extend_from_slice(b",\n\"warning\":");
            out.string(&warning);
        }
        out.buffer.extend_from_slice(b"}\n");
        drop(held);
        Ok(())
    })
    .await
}

/// The figures of `aggregate`, the aggregation of a body over several databases. `held` is dropped afterwards.
pub(super) async fn aggregated_response(
    call: &Call,
    body: Value,
    aggregate: impl FnOnce(&Value) -> FederatedAggregation + Send + 'static,
    held: impl Send + 'static,
) -> Result<HttpResponse> {
    Aggregation::parse(&body)?;
    let query_time = call.state.config.limits.query_time;
    blocking(move || {
        let aggregation = aggregate(&body).within(exclude_design_documents(Selector::everything()));
        let aggregation = query_time.into_iter().fold(aggregation, |one, time| one.deadline(time));
        let mut text = rows_text(aggregation.rows().map_err(failure)?);
        text.extend_from_slice(b"}\n");
        drop(held);
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// Parses the body of a count: a `selector`, and nothing else.
pub(super) fn counted_selector(body: &Value) -> Result<Selector> {
    match body.as_object().map(|body| (body.len(), body.get("selector"))) {
        Some((1, Some(selector))) => Ok(Selector::parse(selector)?),
        _ => Err(Failure::bad_request("the body is an object with a `selector` and nothing else")),
    }
}

/// `POST /_federation/{name}/_find`
pub(crate) async fn find(mut call: Call) -> Result<HttpResponse> {
    let question = Question::parse(&call, &FIND).await?;
    let request = FindRequest::parse(&call.json().await?)?;
    // `partition` is ignored.
    if let Some(name) = unsupported_parameter(&request).filter(|name| *name != "partition") {
        return Err(Failure::bad_request(format!("a query of a federation has no `{name}`")));
    }
    let timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", timeout, move |mut out| async move {
        write_found(&question, &request, &mut out).await
    })
    .await
}

async fn write_found(question: &Question, request: &FindRequest, out: &mut ResponseWriter) -> Result<()> {
    let query = request.query(true)?;
    let federation = question.open()?.filter(|_| !request.is_at_end());
    let find = federation.map(|federation| question.find(&federation, query.clone()));
    write_documents(find, &query, request, out).await?;
    question.write_missing(&mut out.buffer);
    out.buffer.extend_from_slice(b"}\n");
    Ok(())
}

/// Writes the beginning of a response: the documents that a query of several databases finds, and the bookmark.
async fn write_documents(
    find: Option<FederatedFind>,
    query: &Query,
    request: &FindRequest,
    out: &mut ResponseWriter,
) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"docs\":[");
    let (mut count, mut token) = (0, None);
    if let Some(find) = find {
        let mut rows = find.run().map_err(failure)?;
        for document in rows.by_ref() {
            out.buffer.extend_from_slice(if count == 0 { b"\n" } else { b",\n" });
            let document = document.map_err(failure)?;
            match request.fields.is_some() {
                true => query.project(&document)?.write_json(&mut out.buffer),
                false => print_document(&document, &mut out.buffer)?,
            }
            count += 1;
            out.flush_if_full().await;
        }
        token = rows.token()?;
    }
    out.buffer.extend_from_slice(b"\n],\n\"bookmark\":");
    out.string(&FindRequest::bookmark_of(count, token));
    Ok(())
}

/// `POST /_federation/{name}/_count`
pub(crate) async fn count(mut call: Call) -> Result<HttpResponse> {
    let question = Question::parse(&call, &FIND).await?;
    let selector = counted_selector(&call.json().await?)?;
    blocking(move || {
        let mut count = 0;
        if let Some(federation) = question.open()? {
            count = question.find(&federation, exclude_design_documents(selector)).count().map_err(failure)?;
        }
        let mut text = format!("{{\"count\":{count}").into_bytes();
        question.write_missing(&mut text);
        text.extend_from_slice(b"}\n");
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// `POST /_federation/{name}/_aggregate`
pub(crate) async fn aggregate(mut call: Call) -> Result<HttpResponse> {
    let question = Question::parse(&call, &AGGREGATE).await?;
    let body = call.json().await?;
    if body.get("pipeline").is_some() {
        return Err(Failure::not_implemented("A federation runs no pipelines: ask for `figures` and `group_by`."));
    }
    Aggregation::parse(&body)?;
    blocking(move || {
        let rows = match question.open()? {
            Some(federation) => {
                let aggregation =
                    federation.aggregation(&body).within(exclude_design_documents(Selector::everything()));
                let aggregation = question.time.into_iter().fold(aggregation, |one, time| one.deadline(time));
                let aggregation = question.missing.iter().fold(aggregation, |one, missing| one.partial(missing));
                aggregation.rows().map_err(failure)?
            }
            None => Vec::new(),
        };
        let mut text = rows_text(rows);
        question.write_missing(&mut text);
        text.extend_from_slice(b"}\n");
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// The parameters of `_changes`.
struct ChangesParameters {
    since: Option<String>,
    limit: Option<usize>,
    include_docs: bool,
    all_leaves: bool,
}

/// `GET /_federation/{name}/_changes`
pub(crate) async fn changes(call: Call) -> Result<HttpResponse> {
    let question = Question::parse(&call, &CHANGES).await?;
    let since = call.query.text("since").map(|since| since.trim_matches('"'));
    let parameters = ChangesParameters {
        since: since.filter(|since| !matches!(*since, "" | "0")).map(str::to_owned),
        limit: call.query.number("limit")?,
        include_docs: call.query.flag("include_docs", false)?,
        all_leaves: call.query.text("style") == Some("all_docs"),
    };
    let timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", timeout, move |mut out| async move {
        write_changes(&question, &parameters, &mut out).await
    })
    .await
}

async fn write_changes(question: &Question, parameters: &ChangesParameters, out: &mut ResponseWriter) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"results\":[\n");
    let mut last = parameters.since.clone().unwrap_or_else(|| "0".to_owned());
    if let Some(federation) = question.open()? {
        let mut changes = federation.changes().documents(parameters.include_docs);
        changes = parameters.since.iter().fold(changes, |changes, since| changes.after(since));
        changes = parameters.limit.into_iter().fold(changes, |changes, limit| changes.limit(limit));
        changes = question.missing.iter().fold(changes, |changes, missing| changes.partial(missing));
        let mut rows = changes.run().map_err(failure)?;
        let mut is_first = true;
        while let Some(change) = rows.next() {
            let change = change.map_err(failure)?;
            if !std::mem::take(&mut is_first) {
                out.buffer.extend_from_slice(b",\n");
            }
            write_change(&change, &rows.token(), parameters, &mut out.buffer)?;
            out.flush_if_full().await;
        }
        last = rows.token();
    }
    out.buffer.extend_from_slice(b"\n],\n\"last_seq\":");
    out.string(&last);
    question.write_missing(&mut out.buffer);
    out.buffer.extend_from_slice(b"}\n");
    Ok(())
}

fn write_change(
    change: &FederatedChange,
    token: &str,
    parameters: &ChangesParameters,
    out: &mut Vec<u8>,
) -> Result<()> {
    let FederatedChange { member, change, .. } = change;
    out.extend_from_slice(b"{\"seq\":");
    write_string(out, token);
    out.extend_from_slice(b",\"member\":");
    write_string(out, member);
    out.extend_from_slice(b",\"id\":");
    write_string(out, change.id.as_str());
    let leaves = if parameters.all_leaves { &change.leaves[..] } else { std::slice::from_ref(&change.revision) };
    let leaves: Vec<_> = leaves.iter().map(|leaf| json!({"rev": leaf.to_string()})).collect();
    out.extend_from_slice(b",\"changes\":");
    out.extend_from_slice(json!(leaves).to_string().as_bytes());
    if change.deleted {
        out.extend_from_slice(b",\"deleted\":true");
    }
    if let Some(document) = &change.document {
        out.extend_from_slice(b",\"doc\":");
        print_document(document, out)?;
    }
    out.push(b'}');
    Ok(())
}
