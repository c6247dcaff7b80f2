//! Routes about one document.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{ETAG, LOCATION};
use percent_encoding::percent_decode_str;
use serde_json::json;
use stemmadb::{Durability, Revision, Snapshot, Value};

use crate::app::Call;
use crate::design::WriteValidator;
use crate::directory::Served;
use crate::documents::REPLICATOR_DATABASE;
use crate::documents::{
    Incoming, Leaves, OpenRevs, Opened, Printer, check_id, open_revs, parse_revision, revision_list, show_of,
};
use crate::error::{Failure, Result};
use crate::http::{Answer, JsonPurpose, Query, blocking, read_json, streamed, write_string};
use crate::writes::{WriteOptions, run_write, write_one};

/// The id that the path names.
pub(super) fn id_of(call: &Call) -> Result<String> {
    for (parameter, prefix) in [("doc", ""), ("ddoc", "_design/"), ("local", "_local/")] {
        if let Some(name) = call.parameters.get(parameter) {
            return Ok(format!("{prefix}{name}"));
        }
    }
    Err(Failure::internal("the route names no document"))
}

/// `GET /{db}/{doc}`
pub(crate) async fn get(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let show = show_of(&call.query)?;
    let accept = call.header("accept").unwrap_or_default();
    if let Some(text) = call.query.text("open_revs") {
        let wanted = match text {
            "all" => OpenRevs::All,
            text => OpenRevs::These(revision_list(&read_json(text.as_bytes(), JsonPurpose::Parameters)?)?),
        };
        let leaves = Leaves { id, wanted, latest: call.query.flag("latest", false)?, show };
        return match accept.contains("multipart/mixed") {
            true => super::multipart::open_revs_mixed(&call, served, leaves).await,
            false => open_revs_json(&call, served, leaves).await,
        };
    }
    if show.files.content && accept.contains("multipart/related") {
        return super::multipart::related(&call, served, id, wanted_revision(&call)?, show).await;
    }
    // One document is a look-up; with files it may be long.
    let wanted = wanted_revision(&call)?;
    let is_known = call.header("if-none-match").map(|tags| tags.to_owned());
    let work = move || {
        let snapshot = served.database().snapshot()?;
        let document = open(&snapshot, &id, wanted)?;
        let etag = format!("\"{}\"", document.revision());
        // What became of a replication is shown without a new revision.
        let has_tag = !show.is_volatile() && served.name() != REPLICATOR_DATABASE;
        if has_tag && is_known.is_some_and(|tags| has_etag(&tags, &etag)) {
            return Ok(Answer::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
        }
        let mut text = Vec::with_capacity(512);
        Printer { served: &served, snapshot: &snapshot, show: &show }.print(&document, &mut text)?;
        text.push(b'\n');
        let answer = Answer::text(StatusCode::OK, "application/json", text);
        Ok(if has_tag { answer.with(ETAG, &etag) } else { answer })
    };
    if call.query.flag("attachments", false)? { blocking(work).await } else { work() }
}

/// Whether `If-None-Match` names this tag.
pub(super) fn has_etag(tags: &str, etag: &str) -> bool {
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// Which revision is asked for, and whether its newest descendant will do.
pub(super) type Wanted = Option<(Revision, bool)>;

pub(super) fn wanted_revision(call: &Call) -> Result<Wanted> {
    let Some(text) = call.query.text("rev") else { return Ok(None) };
    Ok(Some((parse_revision(text)?, call.query.flag("latest", false)?)))
}

/// The document, or the revision of it that is asked for.
///
/// # Errors
/// 404: `missing`, or `deleted` if that is all that is known.
pub(super) fn open(snapshot: &Snapshot, id: &str, wanted: Wanted) -> Result<stemmadb::Document> {
    match wanted {
        None => match snapshot.get(id)? {
            Some(document) => Ok(document),
            None if snapshot.revisions(id)?.is_empty() => Err(Failure::missing()),
            None => Err(Failure::not_found("deleted")),
        },
        Some((revision, false)) => snapshot.get_revision(id, &revision)?.ok_or_else(Failure::missing),
        Some((revision, true)) => {
            let branches = snapshot.revisions(id)?;
            let opened = open_revs(snapshot, id, &branches, &OpenRevs::These(vec![revision]), true)?;
            match opened.into_iter().next() {
                Some(Opened::Document(document)) => Ok(*document),
                _ => Err(Failure::missing()),
            }
        }
    }
}

async fn open_revs_json(call: &Call, served: Arc<Served>, leaves: Leaves) -> Result<Answer> {
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let (leaves, opened) = leaves.open(&served)?;
        let mut before = b'[';
        for opened in opened {
            out.buffer.push(std::mem::replace(&mut before, b','));
            match opened {
                Opened::Document(document) => {
                    out.buffer.extend_from_slice(b"{\"ok\":");
                    leaves.printer().print_of(&document, &leaves.branches, &mut out.buffer)?;
                    out.buffer.push(b'}');
                }
                Opened::Missing(revision) => {
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

/// How a call's documents are written.
pub(super) fn write_options(call: &Call) -> Result<WriteOptions> {
    let is_batch = call.query.text("batch") == Some("ok");
    // Who asks for a batch wants to be told at once, and takes the risk.
    let durability = if is_batch { Durability::None } else { call.state.config.durability };
    let validator = WriteValidator { user: call.user.clone(), scripts: call.state.scripts.clone() };
    Ok(WriteOptions { validator, new_edits: call.query.flag("new_edits", true)?, durability })
}

/// The status of a write that succeeded.
pub(super) fn written_status(call: &Call) -> StatusCode {
    if call.query.text("batch") == Some("ok") { StatusCode::ACCEPTED } else { StatusCode::CREATED }
}

/// The revision that the query or a header says is to be succeeded.
///
/// # Errors
/// 400 if they differ from each other, or from what the document itself says.
pub(super) fn parent_of(call: &Call, own: Option<Revision>) -> Result<Option<Revision>> {
    let query = call.query.text("rev").map(parse_revision).transpose()?;
    let header = call.header("if-match").map(|tag| parse_revision(tag.trim_matches('"'))).transpose()?;
    let mut parent = own;
    for (named, place) in [(query, "query string"), (header, "etag")] {
        match (named, parent) {
            (Some(named), Some(known)) if named != known => {
                let reason = match place {
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
pub(crate) async fn put(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    check_id(&id)?;
    let content_type = call.header("content-type").unwrap_or_default().to_owned();
    let mut document = match content_type.starts_with("multipart/related") {
        true => super::multipart::read_related(&mut call, &served, &id, &content_type).await?,
        false => Incoming::parse_as(Some(&id), call.document().await?)?,
    };
    if !id.starts_with("_local/") {
        document.revision = parent_of(&call, document.revision)?;
    }
    written(&call, served, document).await
}

/// `POST /{db}`
pub(crate) async fn post(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let document = Incoming::parse(call.document().await?)?;
    written(&call, served, document).await
}

async fn written(call: &Call, served: Arc<Served>, document: Incoming) -> Result<Answer> {
    let options = write_options(call)?;
    let database = served.name().to_owned();
    // Files may be long.
    let (id, revision) = match document.files.is_empty() {
        true => run_write(&served, move |served| write_one(served, document, &options)).await?,
        false => blocking(move || write_one(&served, document, &options)).await?,
    };
    answer_written(call, written_status(call), &database, &id, &revision)
}

/// What a write answers.
pub(super) fn answer_written(
    call: &Call,
    status: StatusCode,
    database: &str,
    id: &str,
    revision: &str,
) -> Result<Answer> {
    let mut text = b"{\"ok\":true,\"id\":".to_vec();
    write_string(&mut text, id);
    text.extend_from_slice(b",\"rev\":");
    write_string(&mut text, revision);
    text.extend_from_slice(b"}\n");
    let answer = Answer::text(status, "application/json", text).with(ETAG, &format!("\"{revision}\""));
    if status != StatusCode::CREATED {
        return Ok(answer);
    }
    let host = call.header("host").unwrap_or("localhost");
    Ok(answer.with(LOCATION, &format!("http://{host}/{}/{}", encoded(database), encoded_id(id))))
}

/// What a path's segment may not have as it is.
const SEGMENT: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, SEGMENT).to_string()
}

fn encoded_id(id: &str) -> String {
    match id.split_once('/') {
        Some((kind @ ("_design" | "_local"), name)) => format!("{kind}/{}", encoded(name)),
        _ => encoded(id),
    }
}

/// `DELETE /{db}/{doc}`
pub(crate) async fn delete(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let parent = parent_of(&call, None)?;
    let options = write_options(&call)?;
    let status = if written_status(&call) == StatusCode::ACCEPTED { StatusCode::ACCEPTED } else { StatusCode::OK };
    let database = served.name().to_owned();
    let deleting = run_write(&served, move |served| {
        // Whether there is anything to delete is asked first: 404 rather than 409.
        let snapshot = served.database().snapshot()?;
        let is_there = match &parent {
            Some(parent) => snapshot.get_revision(&id, parent)?.is_some(),
            None => false,
        };
        if !is_there {
            open(&snapshot, &id, None)?;
            return Err(Failure::conflict());
        }
        let body = Value::Object(Default::default());
        let document = Incoming { id: Some(id), revision: parent, deleted: true, body, ..Incoming::default() };
        write_one(served, document, &options)
    });
    let (id, revision) = deleting.await?;
    answer_written(&call, status, &database, &id, &revision)
}

/// `COPY /{db}/{doc}`
pub(crate) async fn copy(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let wanted = wanted_revision(&call)?;
    let (target, parent) = destination(&call)?;
    let options = write_options(&call)?;
    let database = served.name().to_owned();
    let (id, revision) = blocking(move || {
        let snapshot = served.database().snapshot()?;
        let source = open(&snapshot, &id, wanted)?;
        let files = super::attachment::all_of(&served, &snapshot, &source)?;
        let body = source.value()?;
        let copy = Incoming { id: Some(target), revision: parent, body, files, ..Incoming::default() };
        write_one(&served, copy, &options)
    })
    .await?;
    answer_written(&call, written_status(&call), &database, &id, &revision)
}

/// The id, and perhaps the revision, that `Destination` names.
fn destination(call: &Call) -> Result<(String, Option<Revision>)> {
    let header = call.header("destination");
    let header = header.ok_or_else(|| Failure::bad_request("Destination header is mandatory for COPY."))?;
    let (path, query) = header.split_once('?').unwrap_or((header, ""));
    let path = match path.split_once("://") {
        // A URL: what comes after the database.
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
pub(crate) async fn copy_local(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let (target, parent) = destination(&call)?;
    let options = write_options(&call)?;
    let database = served.name().to_owned();
    let (id, revision) = blocking(move || {
        let (_, body) = served.database().local_documents().get(&id)?.ok_or_else(Failure::missing)?;
        write_one(&served, Incoming { id: Some(target), revision: parent, body, ..Incoming::default() }, &options)
    })
    .await?;
    answer_written(&call, written_status(&call), &database, &id, &revision)
}

/// `GET /{db}/_local/{local}`
pub(crate) async fn get_local(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let Some((number, body)) = served.database().local_documents().get(&id)? else { return Err(Failure::missing()) };
    let mut text = b"{\"_id\":".to_vec();
    write_string(&mut text, &id);
    text.extend_from_slice(format!(",\"_rev\":\"0-{number}\"").as_bytes());
    let body = body.to_json();
    if body.len() > 2 {
        text.push(b',');
    }
    text.extend_from_slice(&body.as_bytes()[1..]);
    text.push(b'\n');
    Ok(Answer::text(StatusCode::OK, "application/json", text).with(ETAG, &format!("\"0-{number}\"")))
}

/// `PUT /{db}/_local/{local}` is a document's; this is for what has no body: nothing.
pub(crate) async fn delete_local(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let deleting = run_write(&served, move |served| {
        served.database().local_documents().delete(&id, None)?;
        Answer::ok(&json!({"ok": true, "id": id, "rev": "0-0"}))
    });
    deleting.await
}
