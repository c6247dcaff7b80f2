//! Documents with their files in one message: what CouchDB's replicator sends and asks for.

use std::io::Read;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use hyper::StatusCode;
use stemmadb::{Branch, Document, Snapshot, Value};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::attachment::{Bounded, content_of, is_gzip};
use super::document::{Wanted, open};
use crate::app::Call;
use crate::directory::Served;
use crate::documents::{Content, FileView, Incoming, Leaves, Opened, Printer, Show};
use crate::error::{Failure, Result};
use crate::http::{
    Answer, BodyTimeout, JsonPurpose, Parts, Pieces, boundary, check_json_memory, chunk_channel, next_frame, read_json,
    streamed,
};

/// A document is read in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;

/// The same with files in parts of their own.
pub(super) fn following(show: Show) -> Show {
    let files = FileView { content: true, follows: true, ..show.files };
    Show { files, ..show }
}

/// A document, and the content of its files in parts of their own.
pub(super) async fn related(
    call: &Call,
    served: Arc<Served>,
    id: String,
    wanted: Wanted,
    show: Show,
) -> Result<Answer> {
    let show = following(show);
    let inner = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/related; boundary=\"{inner}\"");
    streamed(StatusCode::OK, &content_type, call.state.config.limits.stall_timeout, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        let document = open(&snapshot, &id, wanted)?;
        let branches = snapshot.revisions(&id)?;
        let printer = Printer { served: &served, snapshot: &snapshot, show: &show };
        write_related(&printer, &document, &branches, &inner, &mut out).await
    })
    .await
}

/// Leaves of a document, each a part.
pub(super) async fn open_revs_mixed(call: &Call, served: Arc<Served>, leaves: Leaves) -> Result<Answer> {
    let leaves = Leaves { show: following(leaves.show), ..leaves };
    let outer = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/mixed; boundary=\"{outer}\"");
    streamed(StatusCode::OK, &content_type, call.state.config.limits.stall_timeout, move |mut out| async move {
        let (leaves, opened) = leaves.open(&served)?;
        for (at, opened) in opened.into_iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\r\n" };
            out.buffer.extend_from_slice(format!("{line_end}--{outer}\r\n").as_bytes());
            match opened {
                Opened::Document(document) => {
                    write_opened(&leaves.printer(), &document, &leaves.branches, &mut out).await?
                }
                Opened::Missing(revision) => {
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

/// Writes the head and the body of a part that is a document.
pub(super) async fn write_opened(
    printer: &Printer<'_>,
    document: &Document,
    branches: &[Branch],
    out: &mut Pieces,
) -> Result<()> {
    let branch = branches.iter().find(|branch| branch.revisions.first() == Some(document.revision()));
    let files = document.attachments()?;
    if files.iter().any(|file| printer.show.files.wants(file, branch)) {
        let inner = Uuid::new_v4().simple().to_string();
        let head = format!("Content-Type: multipart/related; boundary=\"{inner}\"\r\n\r\n");
        out.buffer.extend_from_slice(head.as_bytes());
        write_related(printer, document, branches, &inner, out).await
    } else {
        out.buffer.extend_from_slice(b"Content-Type: application/json\r\n\r\n");
        printer.print_of(document, branches, &mut out.buffer)
    }
}

async fn write_related(
    printer: &Printer<'_>,
    document: &Document,
    branches: &[Branch],
    boundary: &str,
    out: &mut Pieces,
) -> Result<()> {
    let branch = branches.iter().find(|branch| branch.revisions.first() == Some(document.revision()));
    out.buffer.extend_from_slice(format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").as_bytes());
    printer.print_of(document, branches, &mut out.buffer)?;
    for file in document.attachments()?.iter().filter(|file| printer.show.files.wants(file, branch)) {
        // A name with a quote or a line's end in it would end the field.
        let name: String = file.name.chars().map(|c| if c == '"' || c.is_control() { '_' } else { c }).collect();
        let kind: String = file.content_type.chars().filter(|c| !c.is_control()).collect();
        let head = format!(
            "\r\n--{boundary}\r\nContent-Disposition: attachment; filename=\"{name}\"\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
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
    out: &mut Pieces,
) -> Result<()> {
    let mut content = content_of(snapshot, document, file)?;
    let mut piece = vec![0; 32 << 10];
    loop {
        match content.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => out.buffer.extend_from_slice(&piece[..count]),
            Err(error) => return Err(Failure::internal(format!("a file can't be read: {error}"))),
        }
        out.flush_if_full().await;
    }
}

/// Reads a document and its files from the parts of a request's body; the files are stored as they arrive.
pub(super) async fn read_related(
    call: &mut Call,
    served: &Arc<Served>,
    id: &str,
    content_type: &str,
) -> Result<Incoming> {
    let limits = call.state.config.limits.clone();
    let boundary = boundary(content_type);
    let boundary = boundary.ok_or_else(|| Failure::bad_request("multipart/related needs a boundary"))?.to_owned();
    let Some(mut body) = call.body.take() else { return Err(Failure::bad_request("The request has no body")) };
    let place = call.upload_permit().await?;
    let (sender, arriving) = chunk_channel();
    let (served, id) = (served.clone(), id.to_owned());
    let (json_max, file_max) = (limits.body_bytes, limits.attachment_bytes);
    let (runtime, share, is_gzip) = (Handle::current(), call.reservation.clone(), is_gzip(call));
    let read = tokio::task::spawn_blocking(move || -> Result<Incoming> {
        let _place = place;
        // Here, since a decoder reads what it begins with at once.
        let arriving: Box<dyn Read> = match is_gzip {
            true => Box::new(MultiGzDecoder::new(arriving)),
            false => Box::new(arriving),
        };
        let mut parts = Parts::new(arriving, &boundary);
        let grow = |byte_count| runtime.block_on(share.grow(byte_count));
        let document = read_json_part(&mut parts, json_max, &grow)?;
        let mut document = Incoming::parse_as(Some(&id), document)?;
        store_parts(&mut parts, &mut document, &served, file_max)?;
        Ok(document)
    });
    let mut patience = BodyTimeout::for_client(limits.stall_timeout);
    loop {
        match next_frame(&mut body, &mut patience).await {
            Ok(None) => break,
            Ok(Some(piece)) => {
                if sender.send(Ok(piece)).await.is_err() {
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
    // What comes after the last part is of no interest, yet the client wants to be rid of it.
    while let Ok(Some(_)) = next_frame(&mut body, &mut patience).await {}
    Ok(document)
}

fn broken(error: std::io::Error) -> Failure {
    Failure::bad_request(format!("invalid multipart body: {error}"))
}

/// The first part, which is the document. What it takes is told to `grow` before.
fn read_json_part<R: Read>(
    parts: &mut Parts<R>,
    json_max: usize,
    grow: &impl Fn(usize) -> Result<()>,
) -> Result<Value> {
    parts.next_part().map_err(broken)?.ok_or_else(|| Failure::bad_request("the first part is missing"))?;
    let mut json = Vec::new();
    while parts.by_ref().take(PIECE_BYTES).read_to_end(&mut json).map_err(broken)? > 0 {
        if json.len() > json_max {
            return Err(Failure::too_large("the document is too large"));
        }
        grow(PIECE_BYTES as usize)?;
    }
    grow(check_json_memory(&json, JsonPurpose::Documents)?)?;
    read_json(&json, JsonPurpose::Documents)
}

/// Stores the files that the further parts are.
fn store_parts<R: Read>(parts: &mut Parts<R>, document: &mut Incoming, served: &Served, file_max: u64) -> Result<()> {
    while let Some(head) = parts.next_part().map_err(broken)? {
        // By name where the part says it, else in the order of the document.
        let follows = |content: &Content| matches!(content, Content::Follows { .. });
        let named = head.file_name().map(str::to_owned);
        let by_name =
            document.files.iter().position(|file| follows(&file.content) && Some(&file.name) == named.as_ref());
        let place = by_name.or_else(|| document.files.iter().position(|file| follows(&file.content)));
        let Some(file) = place.and_then(|place| document.files.get_mut(place)) else { continue };
        let Content::Follows { gzip, length } = file.content else { continue };
        let body = parts.by_ref();
        let (blob, md5) = match gzip {
            true => served.store(Bounded::new(MultiGzDecoder::new(body), file_max))?,
            false => served.store(Bounded::new(body, file_max))?,
        };
        if length.is_some_and(|length| length != blob.length()) {
            let (name, found, said) = (&file.name, blob.length(), length.unwrap_or_default());
            return Err(Failure::bad_request(format!("`{name}` has {found} bytes; its document says {said}")));
        }
        file.content = Content::Stored { blob, md5 };
    }
    Ok(())
}
