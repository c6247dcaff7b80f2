//! Multipart messages of a document and its attachments, as CouchDB's replicator sends and requests them.

use std::io::Read;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use hyper::StatusCode;
use stemmadb::{Branch, Document, Snapshot, Value};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::attachment::{BoundedReader, is_gzip, open_content};
use super::document::{RequestedRevision, open_document};
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::{
    DocumentPrinter, FileView, IncomingContent, IncomingDocument, LeavesRequest, OpenedRevision, ShowOptions,
    visible_branches,
};
use crate::error::{Failure, Result};
use crate::http::{
    BodyTimeout, HttpResponse, JsonPurpose, Parts, ResponseWriter, boundary, check_json_memory, chunk_channel,
    next_frame, read_json, spawn_blocking, streamed,
};

/// The size of the chunks in which a document part is read.
const CHUNK_BYTES: u64 = 64 << 10;

/// Requests the content of attachments in separate parts.
pub(super) fn with_following_content(show: ShowOptions) -> ShowOptions {
    let files = FileView { content: true, follows: true, ..show.files };
    ShowOptions { files, ..show }
}

/// The response with a document and its attachments as `multipart/related`.
pub(super) async fn related_response(
    call: &Call,
    served: Arc<ServedDatabase>,
    id: String,
    requested: RequestedRevision,
    show: ShowOptions,
) -> Result<HttpResponse> {
    let (show, restriction) = (with_following_content(show), call.restriction.clone());
    let inner = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/related; boundary=\"{inner}\"");
    streamed(StatusCode::OK, &content_type, call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        let document = open_document(&snapshot, &id, requested, restriction.as_ref())?;
        let branches = visible_branches(&snapshot, &id, restriction.as_ref())?.branches;
        let printer = DocumentPrinter { served: &served, snapshot: &snapshot, show: &show };
        write_related(&printer, &document, &branches, &inner, &mut out).await
    })
    .await
}

/// The response with several leaf revisions as `multipart/mixed`.
pub(super) async fn open_revs_response(
    call: &Call,
    served: Arc<ServedDatabase>,
    leaves: LeavesRequest,
) -> Result<HttpResponse> {
    let leaves = LeavesRequest { show: with_following_content(leaves.show), ..leaves };
    let outer = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/mixed; boundary=\"{outer}\"");
    streamed(StatusCode::OK, &content_type, call.state.config.limits.stall_timeout, move |mut out| async move {
        let (leaves, opened) = leaves.open(&served)?;
        for (at, opened) in opened.into_iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\r\n" };
            out.buffer.extend_from_slice(format!("{line_end}--{outer}\r\n").as_bytes());
            match opened {
                OpenedRevision::Document(document) => {
                    write_document_part(&leaves.printer(), &document, &leaves.branches, &mut out).await?
                }
                OpenedRevision::Missing(revision) => {
                    let part =
                        format!("Content-Type: application/json; error=\"true\"\r\n\r\n{{\"missing\":\"{revision}\"}}");
                    out.buffer.extend_from_slice(part.as_bytes());
                }
            }
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(format!("\r\n--{outer}--").as_bytes());
        Ok(())
    })
    .await
}

/// Writes the headers and the body of a part that contains a document.
pub(super) async fn write_document_part(
    printer: &DocumentPrinter<'_>,
    document: &Document,
    branches: &[Branch],
    out: &mut ResponseWriter,
) -> Result<()> {
    let branch = branches.iter().find(|branch| branch.revisions.contains(document.revision()));
    let files = document.attachments()?;
    if files.iter().any(|file| printer.show.files.includes_content(file, branch)) {
        let inner = Uuid::new_v4().simple().to_string();
        let head = format!("Content-Type: multipart/related; boundary=\"{inner}\"\r\n\r\n");
        out.buffer.extend_from_slice(head.as_bytes());
        write_related(printer, document, branches, &inner, out).await
    } else {
        out.buffer.extend_from_slice(b"Content-Type: application/json\r\n\r\n");
        printer.print_with_branches(document, branches, &mut out.buffer)
    }
}

async fn write_related(
    printer: &DocumentPrinter<'_>,
    document: &Document,
    branches: &[Branch],
    boundary: &str,
    out: &mut ResponseWriter,
) -> Result<()> {
    let branch = branches.iter().find(|branch| branch.revisions.contains(document.revision()));
    out.buffer.extend_from_slice(format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").as_bytes());
    printer.print_with_branches(document, branches, &mut out.buffer)?;
    for file in document.attachments()?.iter().filter(|file| printer.show.files.includes_content(file, branch)) {
        // Quotes and control characters would end the header field.
        let name: String = file.name.chars().map(|c| if c == '"' || c.is_control() { '_' } else { c }).collect();
        let kind: String = file.content_type.chars().filter(|c| !c.is_control()).collect();
        let head = format!(
            "\r\n--{boundary}\r\nContent-Disposition: attachment; filename=\"{name}\"\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n",
            file.length
        );
        out.buffer.extend_from_slice(head.as_bytes());
        write_content(printer.snapshot, document, file, out).await?;
    }
    out.buffer.extend_from_slice(format!("\r\n--{boundary}--").as_bytes());
    Ok(())
}

async fn write_content(
    snapshot: &Snapshot,
    document: &Document,
    file: &stemmadb::Attachment,
    out: &mut ResponseWriter,
) -> Result<()> {
    let mut content = open_content(snapshot, document, file)?;
    let mut chunk = vec![0; 32 << 10];
    loop {
        match content.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => out.buffer.extend_from_slice(&chunk[..count]),
            Err(error) => return Err(Failure::internal(format!("an attachment can't be read: {error}"))),
        }
        out.flush_if_full().await;
    }
}

/// Reads a document and its attachments from a multipart body; attachments are streamed to blobs.
pub(super) async fn read_related(
    call: &mut Call,
    served: &Arc<ServedDatabase>,
    id: &str,
    content_type: &str,
) -> Result<IncomingDocument> {
    let limits = call.state.settings.config().limits.clone();
    let boundary = boundary(content_type);
    let boundary = boundary.ok_or_else(|| Failure::bad_request("multipart/related needs a boundary"))?.to_owned();
    let Some(mut body) = call.body.take() else { return Err(Failure::bad_request("The request has no body")) };
    let permit = call.upload_permit().await?;
    let (sender, arriving) = chunk_channel();
    let (served, id) = (served.clone(), id.to_owned());
    let (json_max, file_max) = (limits.body_bytes, limits.attachment_bytes);
    let (runtime, reservation, is_gzip) = (Handle::current(), call.reservation.clone(), is_gzip(call));
    let read = spawn_blocking(move || -> Result<IncomingDocument> {
        let _permit = permit;
        // Create the decoder on this thread, because its constructor reads the gzip header, which blocks.
        let arriving: Box<dyn Read> = match is_gzip {
            true => Box::new(MultiGzDecoder::new(arriving)),
            false => Box::new(arriving),
        };
        let mut parts = Parts::new(arriving, &boundary);
        let grow = |byte_count| runtime.block_on(reservation.grow(byte_count));
        let document = read_json_part(&mut parts, json_max, &grow)?;
        let mut document = IncomingDocument::parse_as(Some(&id), document)?;
        store_parts(&mut parts, &mut document, &served, file_max)?;
        Ok(document)
    });
    let mut timeouts = BodyTimeout::for_client(limits.stall_timeout);
    loop {
        match next_frame(&mut body, &mut timeouts).await {
            Ok(None) => break,
            Ok(Some(chunk)) => {
                if sender.send(Ok(chunk)).await.is_err() {
                    break;
                }
            }
            Err(failure) => {
                sender.send(Err(std::io::ErrorKind::UnexpectedEof.into())).await.ok();
                drop(sender);
                read.await.ok();
                return Err(failure);
            }
        }
    }
    drop(sender);
    let document = read.await.map_err(|error| Failure::internal(error.to_string()))??;
    // Discard data after the last part: the client may not read the response before it has sent everything.
    body.finish(&mut timeouts).await?;
    Ok(document)
}

fn invalid_multipart(error: std::io::Error) -> Failure {
    Failure::bad_request(format!("invalid multipart body: {error}"))
}

/// Reads the first part, which is the document. Calls `grow` to reserve memory for it.
fn read_json_part<R: Read>(
    parts: &mut Parts<R>,
    json_max: usize,
    grow: &impl Fn(usize) -> Result<()>,
) -> Result<Value> {
    parts.next_part().map_err(invalid_multipart)?.ok_or_else(|| Failure::bad_request("the first part is missing"))?;
    let mut json = Vec::new();
    while parts.by_ref().take(CHUNK_BYTES).read_to_end(&mut json).map_err(invalid_multipart)? > 0 {
        if json.len() > json_max {
            return Err(Failure::too_large("the document is too large"));
        }
        grow(CHUNK_BYTES as usize)?;
    }
    grow(check_json_memory(&json, JsonPurpose::Documents)?)?;
    read_json(&json, JsonPurpose::Documents)
}

/// Stores the attachments in the remaining parts.
fn store_parts<R: Read>(
    parts: &mut Parts<R>,
    document: &mut IncomingDocument,
    served: &ServedDatabase,
    file_max: u64,
) -> Result<()> {
    while let Some(head) = parts.next_part().map_err(invalid_multipart)? {
        // Match the part by file name or, without one, in the order of the document.
        let follows = |content: &IncomingContent| matches!(content, IncomingContent::Follows { .. });
        let named = head.file_name().map(str::to_owned);
        let by_name =
            document.files.iter().position(|file| follows(&file.content) && Some(&file.name) == named.as_ref());
        let position = by_name.or_else(|| document.files.iter().position(|file| follows(&file.content)));
        let Some(file) = position.and_then(|position| document.files.get_mut(position)) else { continue };
        let IncomingContent::Follows { gzip, length } = file.content else { continue };
        let body = parts.by_ref();
        let (blob, md5) = match gzip {
            true => served.store(BoundedReader::new(MultiGzDecoder::new(body), file_max))?,
            false => served.store(BoundedReader::new(body, file_max))?,
        };
        if length.is_some_and(|length| length != blob.length()) {
            let (name, actual, declared) = (&file.name, blob.length(), length.unwrap_or_default());
            return Err(Failure::bad_request(format!(
                "`{name}` has {actual} bytes, but its document declares {declared}"
            )));
        }
        file.content = IncomingContent::Stored { blob, md5 };
    }
    Ok(())
}
