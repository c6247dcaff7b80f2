//! Routes of a single attachment.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    X_CONTENT_TYPE_OPTIONS,
};
use stemmadb::{Attachment, BlobReader, Document, Snapshot, Value};

use super::document::{
    check_readable, document_id, has_etag, open_document, parent_revision, requested_revision, write_options,
    written_response, written_status,
};
use super::tiers;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::{IncomingContent, IncomingDocument, IncomingFile, check_id, format_md5_digest};
use crate::error::{Failure, Result};
use crate::http::{
    Body, BodyTimeout, HttpResponse, blocking, chunk_channel, next_frame, spawn_blocking, streamed_bytes,
};
use crate::writes::write_one;

/// The size of the chunks in which content is read and sent.
const CHUNK_BYTES: u64 = 64 << 10;

/// Stores copies of all attachments of a document, for a new document.
pub(super) fn copy_attachments(
    served: &ServedDatabase,
    snapshot: &Snapshot,
    document: &Document,
) -> Result<Vec<IncomingFile>> {
    let mut files = Vec::new();
    for file in document.attachments()? {
        let content = open_content(snapshot, document, &file)?;
        let (blob, md5) = served.store(content)?;
        files.push(IncomingFile {
            name: file.name,
            content_type: file.content_type,
            revpos: None,
            content: IncomingContent::Stored { blob, md5 },
        });
    }
    Ok(files)
}

pub(super) fn open_content(snapshot: &Snapshot, document: &Document, file: &Attachment) -> Result<BlobReader> {
    let content = snapshot.open_attachment(document, &file.name)?;
    content.ok_or_else(|| Failure::internal("an attachment of the document is missing"))
}

/// `GET /{db}/{doc}/{file}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (id, name) = (document_id(&call)?, call.parameter("file")?.to_owned());
    let served = tiers::open_for_reading(&call, &id).await?;
    let (requested, as_of, restriction) = (requested_revision(&call)?, call.as_of()?, call.restriction.clone());
    let (file, md5, content) = blocking(move || {
        let snapshot = served.read(as_of)?;
        let document = open_document(&snapshot, &id, requested, restriction.as_ref())?;
        let file = document.attachments()?.into_iter().find(|file| file.name == name);
        let file = file.ok_or_else(|| Failure::not_found("Document is missing attachment"))?;
        let md5 = served.md5_of(&snapshot, &document, &file)?;
        let content = open_content(&snapshot, &document, &file)?;
        Ok((file, md5, content))
    })
    .await?;
    let digest = format_md5_digest(&md5);
    let base64_md5 = digest.trim_start_matches("md5-");
    let etag = format!("\"{base64_md5}\"");
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let (status, range) = match range_of(&call, file.length) {
        None => (StatusCode::OK, 0..file.length),
        Some(Some(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(None) => {
            let reason = "Requested range not satisfiable";
            let failure = Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, "requested_range_not_satisfiable", reason);
            return Ok(HttpResponse::from(failure).with(CONTENT_RANGE, &format!("bytes */{}", file.length)));
        }
    };
    let length = range.end - range.start;
    let is_head = call.parts.method == hyper::Method::HEAD;
    let body = if is_head { Body::Full(None) } else { content_body(&call, content, range.clone()) };
    let mut answer = HttpResponse::new(status, body)
        .with(CONTENT_TYPE, &file.content_type)
        .with(ACCEPT_RANGES, "bytes")
        .with(ETAG, &etag)
        .with(X_CONTENT_TYPE_OPTIONS, "nosniff")
        // An attachment may be an HTML page with scripts. The sandbox keeps them from using the session of the user who
        // opens it.
        .with(CONTENT_SECURITY_POLICY, "sandbox");
    if is_head {
        answer = answer.with(CONTENT_LENGTH, &length.to_string());
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, file.length);
            Ok(answer.with(CONTENT_RANGE, &content_range))
        }
        _ => Ok(answer.with(HeaderName::from_static("content-md5"), base64_md5)),
    }
}

/// Parses the header `Range`: `None` for the whole content, `Some(None)` if the range can't be satisfied. A request for
/// several ranges gets the whole content, which HTTP allows.
fn range_of(call: &Call, length: u64) -> Option<Option<std::ops::Range<u64>>> {
    let text = call.header("range")?.strip_prefix("bytes=")?;
    if text.contains(',') {
        return None;
    }
    let (from, to) = text.split_once('-')?;
    let range = match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => from..to.saturating_add(1).min(length),
        (Ok(from), Err(_)) if to.trim().is_empty() => from..length,
        (Err(_), Ok(last)) if from.trim().is_empty() => length.saturating_sub(last)..length,
        _ => return None,
    };
    if range.start == 0 && range.end == length {
        return None;
    }
    Some((range.start < range.end).then_some(range))
}

/// A body with the bytes of `range`, which are read at the speed of the client.
fn content_body(call: &Call, mut content: BlobReader, range: std::ops::Range<u64>) -> Body {
    let length = range.end - range.start;
    streamed_bytes(length, call.state.config.limits.stall_timeout, move |mut out| async move {
        let read_failure = |error: std::io::Error| Failure::internal(format!("an attachment can't be read: {error}"));
        content.seek(SeekFrom::Start(range.start)).map_err(read_failure)?;
        let mut left = length;
        while left > 0 {
            let count =
                content.by_ref().take(left.min(CHUNK_BYTES)).read_to_end(&mut out.buffer).map_err(read_failure)?;
            if count == 0 {
                return Err(read_failure(std::io::ErrorKind::UnexpectedEof.into()));
            }
            left -= count as u64;
            out.flush_if_full().await;
        }
        Ok(())
    })
}

/// A reader that fails after a number of bytes. Bounds decompressed content, which can be much larger than the request
/// body.
pub(super) struct BoundedReader<R> {
    inner: R,
    /// The bytes left; `None` once the bound was exceeded.
    left: Option<u64>,
}

impl<R> BoundedReader<R> {
    pub(super) fn new(inner: R, bytes_max: u64) -> Self {
        BoundedReader { inner, left: Some(bytes_max) }
    }

    /// Maps the result of storing this content: exceeding the bound is the client's error (413), not a storage error.
    fn outcome<T>(&self, stored: Result<T>) -> Result<T> {
        if self.left.is_none() { Err(Failure::too_large("the attachment is too large")) } else { stored }
    }
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.and_then(|left| left.checked_sub(count as u64));
        match self.left {
            Some(_) => Ok(count),
            None => Err(std::io::ErrorKind::FileTooLarge.into()),
        }
    }
}

/// Whether the request body is gzip-compressed. Attachments are stored uncompressed.
pub(super) fn is_gzip(call: &Call) -> bool {
    call.header("content-encoding") == Some("gzip")
}

/// Streams the request body to a blob.
async fn store_body(call: &mut Call, served: &Arc<ServedDatabase>) -> Result<IncomingContent> {
    let limits = call.state.settings.config().limits.clone();
    let Some(mut body) = call.body.take() else { return Err(Failure::bad_request("The request has no body")) };
    let permit = call.upload_permit().await?;
    let (sender, arriving) = chunk_channel();
    let storage = served.clone();
    let (is_gzip, file_max) = (is_gzip(call), limits.attachment_bytes);
    let stored = spawn_blocking(move || {
        let _permit = permit;
        match is_gzip {
            true => {
                let mut content = BoundedReader::new(MultiGzDecoder::new(arriving), file_max);
                let stored = storage.store(&mut content);
                content.outcome(stored)
            }
            false => storage.store(arriving),
        }
    });
    let mut count: u64 = 0;
    let mut timeouts = BodyTimeout::for_client(limits.stall_timeout);
    let failed = loop {
        match next_frame(&mut body, &mut timeouts).await {
            Ok(None) => break None,
            Err(failure) => break Some(failure),
            Ok(Some(chunk)) => {
                count += chunk.len() as u64;
                if count > limits.attachment_bytes {
                    break Some(Failure::too_large("the attachment is too large"));
                }
                if sender.send(Ok(chunk)).await.is_err() {
                    break None;
                }
            }
        }
    };
    if let Some(failure) = failed {
        sender.send(Err(std::io::ErrorKind::UnexpectedEof.into())).await.ok();
        drop(sender);
        stored.await.ok();
        return Err(failure);
    }
    drop(sender);
    let (blob, md5) = stored.await.map_err(|error| Failure::internal(error.to_string()))??;
    body.finish(&mut timeouts).await?;
    Ok(IncomingContent::Stored { blob, md5 })
}

/// `PUT /{db}/{doc}/{file}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let (id, name) = (document_id(&call)?, call.parameter("file")?.to_owned());
    check_id(&id)?;
    let content_type = call.header("content-type").unwrap_or("application/octet-stream").to_owned();
    // For a compressed body, Content-MD5 covers the compressed bytes and can't be checked here.
    let expected_md5 = call.header("content-md5").filter(|_| !is_gzip(&call)).map(str::to_owned);
    let parent = tiers::bring_back(&call, &id, parent_revision(&call, None)?).await?;
    let content = store_body(&mut call, &served).await?;
    if let (Some(expected_md5), IncomingContent::Stored { md5, .. }) = (expected_md5, &content)
        && format_md5_digest(md5).trim_start_matches("md5-") != expected_md5
    {
        return Err(Failure::bad_request(
            "Possible message corruption: the MD5 of the content differs from Content-MD5.",
        ));
    }
    let file = IncomingFile { name, content_type, revpos: None, content };
    write_change(call, served, id, parent, Some(file)).await
}

/// `DELETE /{db}/{doc}/{file}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    let parent = tiers::bring_back(&call, &id, parent_revision(&call, None)?).await?;
    write_change(call, served, id, parent, None).await
}

/// Writes a new revision of the document with an attachment added, replaced or removed.
async fn write_change(
    call: Call,
    served: Arc<ServedDatabase>,
    id: String,
    parent: Option<stemmadb::Revision>,
    file: Option<IncomingFile>,
) -> Result<HttpResponse> {
    let options = write_options(&call)?;
    let name = call.parameter("file")?.to_owned();
    let is_put = file.is_some();
    let (database, restriction) = (served.name().to_owned(), call.restriction.clone());
    let (id, revision) = blocking(move || {
        let snapshot = served.database().snapshot()?;
        if snapshot.get(&id)?.is_some() {
            check_readable(&snapshot, &id, restriction.as_ref())?;
        }
        let document = match parent {
            Some(parent) => Some(snapshot.get_revision(&id, &parent)?.ok_or_else(Failure::conflict)?),
            // Adding an attachment to a missing document creates the document.
            None if is_put && snapshot.get(&id)?.is_none() => None,
            None => {
                open_document(&snapshot, &id, None, restriction.as_ref())?;
                return Err(Failure::conflict());
            }
        };
        let (body, mut files) = match &document {
            None => (Value::Object(Default::default()), Vec::new()),
            Some(document) => (document.value()?, document.attachments()?),
        };
        if !is_put && !files.iter().any(|file| file.name == name) {
            return Err(Failure::not_found("Document is missing attachment"));
        }
        files.retain(|file| file.name != name);
        let unchanged = files.into_iter().map(|file| IncomingFile {
            name: file.name,
            content_type: file.content_type,
            revpos: None,
            content: IncomingContent::Stub,
        });
        let files = unchanged.chain(file).collect();
        let changed = IncomingDocument { id: Some(id), revision: parent, body, files, ..IncomingDocument::default() };
        write_one(&served, changed, &options)
    })
    .await?;
    let status = match written_status(&call) {
        StatusCode::CREATED if !is_put => StatusCode::OK,
        status => status,
    };
    written_response(&call, status, &database, &id, &revision)
}
