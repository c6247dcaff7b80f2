//! Routes of a single document.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{ETAG, LOCATION};
use percent_encoding::percent_decode_str;
use serde_json::json;
use stemmadb::{Durability, Revision, Sequence, Snapshot, Value};
use stemmadb_http::url::{encode_id, encode_segment};

use super::tiers;
use crate::app::Call;
use crate::auth::Restriction;
use crate::design::WriteValidator;
use crate::directory::{ServedDatabase, WHOLE_DOCUMENT};
use crate::documents::{
    DocumentPrinter, IncomingDocument, LeavesRequest, OpenRevs, OpenedRevision, REPLICATOR_DATABASE, check_id,
    is_readable, open_revs, parse_revision, parse_revisions, parse_show_options, visible_branches,
};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, Query, blocking, read_json, streamed, write_string};
use crate::mango::sync_indexes_later;
use crate::replicator::{Acknowledgements, TargetWait};
use crate::writes::{WriteOptions, check_local_writer, new_document_id, run_write, write_one};

/// The document id in the path.
pub(super) fn document_id(call: &Call) -> Result<String> {
    for (parameter, prefix) in [("doc", ""), ("ddoc", "_design/"), ("local", "_local/")] {
        if let Some(name) = call.parameters.get(parameter) {
            return Ok(format!("{prefix}{name}"));
        }
    }
    Err(Failure::internal("the route names no document"))
}

/// `GET /{db}/{doc}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let id = document_id(&call)?;
    let served = tiers::open_for_reading(&call, &id).await?;
    let show = parse_show_options(&call.query)?;
    let accept = call.header("accept").unwrap_or_default();
    if let Some(text) = call.query.text("open_revs") {
        let revisions = match text {
            "all" => OpenRevs::All,
            text => OpenRevs::These(parse_revisions(&read_json(text.as_bytes(), JsonPurpose::Parameters)?)?),
        };
        let (latest, restriction) = (call.query.flag("latest", false)?, call.restriction.clone());
        let leaves = LeavesRequest { id, revisions, latest, show, restriction };
        return match accept.contains("multipart/mixed") {
            true => super::multipart::open_revs_response(&call, served, leaves).await,
            false => open_revs_json(&call, served, leaves).await,
        };
    }
    if show.files.content && accept.contains("multipart/related") {
        return super::multipart::related_response(&call, served, id, requested_revision(&call)?, show).await;
    }
    // Reading a document is fast enough for this thread; attachments may be large, so they are read on the blocking
    // pool.
    let (requested, as_of) = (requested_revision(&call)?, call.as_of()?);
    let if_none_match = call.header("if-none-match").map(|tags| tags.to_owned());
    let restriction = call.restriction.clone();
    let work = move || {
        let snapshot = served.read(as_of)?;
        let document = open_document(&snapshot, &id, requested, restriction.as_ref())?;
        let etag = format!("\"{}\"", document.revision());
        let has_tag = !show.is_volatile();
        // The replication state of a `_replicator` document changes without a new revision.
        let is_stable = has_tag && served.name() != REPLICATOR_DATABASE;
        if is_stable && if_none_match.is_some_and(|tags| has_etag(&tags, &etag)) {
            return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
        }
        let is_departure = restriction.is_some() && document.is_deleted();
        let show = if is_departure { show.without_branches() } else { show };
        let mut text = Vec::with_capacity(512);
        DocumentPrinter { served: &served, snapshot: &snapshot, show: &show }.print(&document, &mut text)?;
        text.push(b'\n');
        let answer = HttpResponse::text(StatusCode::OK, "application/json", text);
        Ok(if has_tag { answer.with(ETAG, &etag) } else { answer })
    };
    if as_of.is_some() || call.query.flag("attachments", false)? { blocking(work).await } else { work() }
}

/// Whether `If-None-Match` contains this tag.
pub(super) fn has_etag(tags: &str, etag: &str) -> bool {
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// The requested revision, and whether to return the leaf that descends from it; `None` for the winning revision.
pub(super) type RequestedRevision = Option<(Revision, bool)>;

pub(super) fn requested_revision(call: &Call) -> Result<RequestedRevision> {
    let Some(text) = call.query.text("rev") else { return Ok(None) };
    Ok(Some((parse_revision(text)?, call.query.flag("latest", false)?)))
}

/// Reads the requested revision of a document.
///
/// # Errors
/// 404: `deleted` if the winning revision is deleted, else `missing`, also if the user may not read it.
pub(super) fn open_document(
    snapshot: &Snapshot,
    id: &str,
    requested: RequestedRevision,
    restriction: Option<&Restriction>,
) -> Result<stemmadb::Document> {
    if let (Some((revision, latest)), Some(_)) = (requested, restriction) {
        let visible = visible_branches(snapshot, id, restriction)?;
        let opened = open_revs(snapshot, id, &visible, &OpenRevs::These(vec![revision]), latest, restriction)?;
        return match opened.into_iter().next() {
            Some(OpenedRevision::Document(document)) => Ok(*document),
            _ => Err(Failure::missing()),
        };
    }
    check_readable(snapshot, id, restriction)?;
    let document = open_any(snapshot, id, requested)?;
    match restriction {
        Some(restriction) if !restriction.allows(&document)? => Err(Failure::missing()),
        _ => Ok(document),
    }
}

/// Checks that a document is one that the user may read.
///
/// # Errors
/// 404 if it does not exist, or is none.
pub(super) fn check_readable(snapshot: &Snapshot, id: &str, restriction: Option<&Restriction>) -> Result<()> {
    if restriction.is_some() && !is_readable(snapshot, id, &snapshot.revisions(id)?, restriction)? {
        return Err(Failure::missing());
    }
    Ok(())
}

fn open_any(snapshot: &Snapshot, id: &str, requested: RequestedRevision) -> Result<stemmadb::Document> {
    match requested {
        None => match snapshot.get(id)? {
            Some(document) => Ok(document),
            None if snapshot.revisions(id)?.is_empty() => Err(Failure::missing()),
            None => Err(Failure::not_found("deleted")),
        },
        Some((revision, false)) => snapshot.get_revision(id, &revision)?.ok_or_else(Failure::missing),
        Some((revision, true)) => {
            let visible = visible_branches(snapshot, id, None)?;
            let opened = open_revs(snapshot, id, &visible, &OpenRevs::These(vec![revision]), true, None)?;
            match opened.into_iter().next() {
                Some(OpenedRevision::Document(document)) => Ok(*document),
                _ => Err(Failure::missing()),
            }
        }
    }
}

async fn open_revs_json(call: &Call, served: Arc<ServedDatabase>, leaves: LeavesRequest) -> Result<HttpResponse> {
    let stall_timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let (leaves, opened) = leaves.open(&served)?;
        let mut before = b'[';
        for opened in opened {
            out.buffer.push(std::mem::replace(&mut before, b','));
            match opened {
                OpenedRevision::Document(document) => {
                    out.buffer.extend_from_slice(b"{\"ok\":");
                    leaves.printer().print_with_branches(&document, &leaves.branches, &mut out.buffer)?;
                    out.buffer.push(b'}');
                }
                OpenedRevision::Missing(revision) => {
                    out.buffer.extend_from_slice(b"{\"missing\":");
                    out.string(&revision.to_string());
                    out.buffer.push(b'}');
                }
            }
            out.flush_if_full().await;
        }
        if before == b'[' {
            out.buffer.push(b'[');
        }
        out.buffer.extend_from_slice(b"]\n");
        Ok(())
    })
    .await
}

/// The write options of a request.
pub(super) fn write_options(call: &Call) -> Result<WriteOptions> {
    let is_batch = call.query.text("batch") == Some("ok");
    // `batch=ok` requests a response before the write is durable.
    let durability = if is_batch { Durability::None } else { call.state.config.durability };
    let (user, restriction) = (call.user.clone(), call.restriction.clone());
    let (scripts, is_of_whole) = (call.state.scripts.clone(), call.is_of_whole);
    let validator = WriteValidator { user, scripts, restriction, is_of_whole };
    Ok(WriteOptions { validator, new_edits: call.query.flag("new_edits", true)?, durability })
}

/// The status of a successful write: 202 with `batch=ok`, else 201.
pub(super) fn written_status(call: &Call) -> StatusCode {
    if call.query.text("batch") == Some("ok") { StatusCode::ACCEPTED } else { StatusCode::CREATED }
}

/// The parent revision of a write, from the query, the header `If-Match` or the document (`own`).
///
/// # Errors
/// 400 if they differ.
pub(super) fn parent_revision(call: &Call, own: Option<Revision>) -> Result<Option<Revision>> {
    let query = call.query.text("rev").map(parse_revision).transpose()?;
    let header = call.header("if-match").map(|tag| parse_revision(tag.trim_matches('"'))).transpose()?;
    let mut parent = own;
    for (named, source) in [(query, "query string"), (header, "etag")] {
        match (named, parent) {
            (Some(named), Some(known)) if named != known => {
                let reason = match source {
                    "etag" => "Document rev and etag have different values",
                    _ => "Document rev from request body and query string have different values",
                };
                return Err(Failure::bad_request(reason));
            }
            (Some(named), _) => parent = Some(named),
            (None, _) => {}
        }
    }
    Ok(parent)
}

/// `PUT /{db}/{doc}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    check_id(&id)?;
    let content_type = call.header("content-type").unwrap_or_default().to_owned();
    let mut document = match content_type.starts_with("multipart/related") {
        true => super::multipart::read_related(&mut call, &served, &id, &content_type).await?,
        false => IncomingDocument::parse_as(Some(&id), call.document().await?)?,
    };
    if !id.starts_with("_local/") {
        let parent = parent_revision(&call, document.revision)?;
        document.revision = tiers::bring_back(&call, &id, parent).await?;
    }
    write_document(&call, served, document).await
}

/// `POST /{db}`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    let mut document = IncomingDocument::parse(call.document().await?)?;
    let id = document.id.get_or_insert_with(new_document_id);
    let served = databases.of(id).clone();
    document.revision = tiers::bring_back(&call, id, document.revision).await?;
    write_document(&call, served, document).await
}

async fn write_document(call: &Call, served: Arc<ServedDatabase>, document: IncomingDocument) -> Result<HttpResponse> {
    let options = write_options(call)?;
    let wait = target_wait(call, served.name()).await?;
    let database = served.name().to_owned();
    let written = served.clone();
    // Storing attachments may take long, and the functions of design documents are compiled.
    let is_design = document.id.as_deref().is_some_and(|id| id.starts_with("_design/"));
    let (id, revision) = match document.files.is_empty() && !is_design {
        true => run_write(&served, move |served| write_one(served, document, &options)).await?,
        false => blocking(move || write_one(&served, document, &options)).await?,
    };
    if id == WHOLE_DOCUMENT {
        sync_indexes_later(written.clone());
    }
    let waited = wait_for_targets(wait, &written).await?;
    written_response_after(call, written_status(call), &database, &id, &revision, waited)
}

/// The targets that the request waits for, if it has the parameter `wait_for`.
///
/// # Errors
/// 400 if there are no such targets.
pub(super) async fn target_wait(call: &Call, database: &str) -> Result<Option<TargetWait>> {
    let Some(wait_for) = call.query.text("wait_for").map(str::to_owned) else { return Ok(None) };
    let (timeout, state, database) = (call.query.number("wait_timeout")?, call.state.clone(), database.to_owned());
    blocking(move || TargetWait::new(&state.topologies, &state.jobs, &database, &wait_for, timeout).map(Some)).await
}

/// Waits until the targets have what was written.
pub(super) async fn wait_for_targets(
    wait: Option<TargetWait>,
    served: &Arc<ServedDatabase>,
) -> Result<Option<Acknowledgements>> {
    let Some(wait) = wait else { return Ok(None) };
    let served = served.clone();
    let newest = blocking(move || {
        let newest = served.database().changes(Sequence::ZERO)?.descending(true).limit(1).run().next();
        Ok(newest.transpose()?.map_or(Sequence::ZERO, |change| change.sequence))
    });
    Ok(Some(wait.wait(newest.await?).await))
}

/// The response to a successful write.
pub(super) fn written_response(
    call: &Call,
    status: StatusCode,
    database: &str,
    id: &str,
    revision: &str,
) -> Result<HttpResponse> {
    written_response_after(call, status, database, id, revision, None)
}

/// The response to a successful write that may have waited for targets: 202 if some did not confirm it in time.
fn written_response_after(
    call: &Call,
    status: StatusCode,
    database: &str,
    id: &str,
    revision: &str,
    waited: Option<Acknowledgements>,
) -> Result<HttpResponse> {
    let mut text = b"{\"ok\":true,\"id\":".to_vec();
    write_string(&mut text, id);
    text.extend_from_slice(b",\"rev\":");
    write_string(&mut text, revision);
    let mut status = status;
    if let Some(waited) = waited {
        text.extend_from_slice(b",\"waited\":");
        serde_json::to_writer(&mut text, &waited).map_err(|error| Failure::internal(error.to_string()))?;
        status = if waited.is_complete { status } else { StatusCode::ACCEPTED };
    }
    text.extend_from_slice(b"}\n");
    let answer = HttpResponse::text(status, "application/json", text).with(ETAG, &format!("\"{revision}\""));
    if status != StatusCode::CREATED {
        return Ok(answer);
    }
    let path = format!("/{}/{}", encode_segment(database), encode_id(id));
    // An attachment has a URL of its own.
    let path = match call.parameters.get("file") {
        Some(file) => format!("{path}/{}", file.split('/').map(encode_segment).collect::<Vec<_>>().join("/")),
        None => path,
    };
    Ok(answer.with(LOCATION, &absolute_url(call, &path)))
}

/// The URL of a path of this server as the client sees it, which a proxy names in `X-Forwarded` headers, as in CouchDB.
pub(super) fn absolute_url(call: &Call, path: &str) -> String {
    let host = call.header("x-forwarded-host").or_else(|| call.header("host")).unwrap_or("localhost");
    let is_https = match (call.header("x-forwarded-ssl"), call.header("x-forwarded-proto")) {
        (Some("on"), _) | (_, Some("https")) => true,
        (_, Some("http")) => false,
        _ => call.state.config.is_encrypted(),
    };
    format!("{}://{host}{path}", if is_https { "https" } else { "http" })
}

/// `DELETE /{db}/{doc}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let served = call.open_to_free_space().await?;
    let id = document_id(&call)?;
    let parent = tiers::bring_back(&call, &id, parent_revision(&call, None)?).await?;
    let options = write_options(&call)?;
    let status = if written_status(&call) == StatusCode::ACCEPTED { StatusCode::ACCEPTED } else { StatusCode::OK };
    let wait = target_wait(&call, served.name()).await?;
    let (database, restriction) = (served.name().to_owned(), call.restriction.clone());
    let deleting = run_write(&served, move |served| {
        // Check first that the document exists: deleting a missing document is 404, not 409.
        let snapshot = served.database().snapshot()?;
        check_readable(&snapshot, &id, restriction.as_ref())?;
        let exists = match &parent {
            Some(parent) => snapshot.get_revision(&id, parent)?.is_some(),
            None => false,
        };
        if !exists {
            open_document(&snapshot, &id, None, restriction.as_ref())?;
            return Err(Failure::conflict());
        }
        let body = Value::Object(Default::default());
        let document =
            IncomingDocument { id: Some(id), revision: parent, deleted: true, body, ..IncomingDocument::default() };
        write_one(served, document, &options)
    });
    let (id, revision) = deleting.await?;
    let waited = wait_for_targets(wait, &served).await?;
    written_response_after(&call, status, &database, &id, &revision, waited)
}

/// `COPY /{db}/{doc}`
pub(crate) async fn copy(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    let requested = requested_revision(&call)?;
    let (target, parent) = destination(&call)?;
    let options = write_options(&call)?;
    let (database, restriction) = (served.name().to_owned(), call.restriction.clone());
    let (id, revision) = blocking(move || {
        let snapshot = served.database().snapshot()?;
        let source = open_document(&snapshot, &id, requested, restriction.as_ref())?;
        let files = super::attachment::copy_attachments(&served, &snapshot, &source)?;
        let body = source.value()?;
        let copy = IncomingDocument { id: Some(target), revision: parent, body, files, ..IncomingDocument::default() };
        write_one(&served, copy, &options)
    })
    .await?;
    written_response(&call, written_status(&call), &database, &id, &revision)
}

/// Parses the header `Destination`: the target's id and, optionally, its current revision.
pub(super) fn destination(call: &Call) -> Result<(String, Option<Revision>)> {
    let header = call.header("destination");
    let header = header.ok_or_else(|| Failure::bad_request("Destination header is mandatory for COPY."))?;
    let (path, query) = header.split_once('?').unwrap_or((header, ""));
    let path = match path.split_once("://") {
        // An absolute URL: skip the host and the database.
        Some((_, rest)) => rest.splitn(3, '/').nth(2).unwrap_or_default(),
        None => path,
    };
    let id = percent_decode_str(path.trim_start_matches('/')).decode_utf8();
    let id = id.map_err(|_| Failure::bad_request("Destination is not UTF-8."))?.into_owned();
    check_id(&id)?;
    let revision = Query::parse(query)?.text("rev").map(parse_revision).transpose()?;
    Ok((id, revision))
}

/// `COPY /{db}/_local/{local}`
pub(crate) async fn copy_local(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    let (target, parent) = destination(&call)?;
    let options = write_options(&call)?;
    let database = served.name().to_owned();
    let (id, revision) = blocking(move || {
        let (_, body) = served.database().local_documents().get(&id)?.ok_or_else(Failure::missing)?;
        write_one(
            &served,
            IncomingDocument { id: Some(target), revision: parent, body, ..IncomingDocument::default() },
            &options,
        )
    })
    .await?;
    written_response(&call, written_status(&call), &database, &id, &revision)
}

/// The id under which a local document is stored: users with a restriction have their own.
fn stored_local_id(call: &Call, id: &str) -> String {
    call.restriction.as_ref().map_or_else(|| id.to_owned(), |restriction| restriction.local_id(id))
}

/// `GET /{db}/_local/{local}`
pub(crate) async fn get_local(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    let stored = stored_local_id(&call, &id);
    let Some((number, body)) = served.database().local_documents().get(&stored)? else {
        return Err(Failure::missing());
    };
    let mut text = b"{\"_id\":".to_vec();
    write_string(&mut text, &id);
    text.extend_from_slice(format!(",\"_rev\":\"0-{number}\"").as_bytes());
    let body = body.to_json();
    if body.len() > 2 {
        text.push(b',');
    }
    text.extend_from_slice(&body.as_bytes()[1..]);
    text.push(b'\n');
    Ok(HttpResponse::text(StatusCode::OK, "application/json", text).with(ETAG, &format!("\"0-{number}\"")))
}

/// `DELETE /{db}/_local/{local}`
pub(crate) async fn delete_local(call: Call) -> Result<HttpResponse> {
    let served = call.open_to_free_space().await?;
    let id = document_id(&call)?;
    let stored = stored_local_id(&call, &id);
    check_local_writer(&served, &call.user, &stored)?;
    let deleting = run_write(&served, move |served| {
        served.database().local_documents().delete(&stored, None)?;
        Ok(HttpResponse::ok(&json!({"ok": true, "id": id, "rev": "0-0"}))?.with(ETAG, "\"0-0\""))
    });
    deleting.await
}
