//! Routes about one file of a document.

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
    answer_written, has_etag, id_of, open, parent_of, wanted_revision, write_options, written_status,
};
use crate::app::Call;
use crate::directory::Served;
use crate::documents::{Content, Incoming, IncomingFile, check_id, md5_text};
use crate::error::{Failure, Result};
use crate::http::{Answer, Body, BodyTimeout, blocking, chunk_channel, next_frame, streamed_bytes};
use crate::writes::write_one;

/// Content is read and sent in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;

/// All files of a document, to be written again.
pub(super) fn all_of(served: &Served, snapshot: &Snapshot, document: &Document) -> Result<Vec<IncomingFile>> {
    let mut files = Vec::new();
    for file in document.attachments()? {
        let content = content_of(snapshot, document, &file)?;
        let (blob, md5) = served.store(content)?;
        files.push(IncomingFile {
            name: file.name,
            content_type: file.content_type,
            revpos: None,
            content: Content::Stored { blob, md5 },
        });
    }
    Ok(files)
}

pub(super) fn content_of(snapshot: &Snapshot, document: &Document, file: &Attachment) -> Result<BlobReader> {
    let content = snapshot.open_attachment(document, &file.name)?;
    content.ok_or_else(|| Failure::internal("a file is not where its document says"))
}

/// `GET /{db}/{doc}/{file}`
pub(crate) async fn get(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let (id, name) = (id_of(&call)?, call.parameter("file")?.to_owned());
    let wanted = wanted_revision(&call)?;
    let (file, md5, content) = blocking(move || {
        let snapshot = served.database().snapshot()?;
        let document = open(&snapshot, &id, wanted)?;
        let file = document.attachments()?.into_iter().find(|file| file.name == name);
        let file = file.ok_or_else(|| Failure::not_found("Document is missing attachment"))?;
        let md5 = served.md5_of(&snapshot, &document, &file)?;
        let content = content_of(&snapshot, &document, &file)?;
        Ok((file, md5, content))
    })
    .await?;
    let digest = md5_text(&md5);
    let plain = digest.trim_start_matches("md5-");
    let etag = format!("\"{plain}\"");
    if call.header("if-none-match").is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(Answer::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let (status, range) = match range_of(&call, file.length) {
        None => (StatusCode::OK, 0..file.length),
        Some(Some(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(None) => {
            let reason = "Requested range not satisfiable";
            let failure = Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, "requested_range_not_satisfiable", reason);
            return Ok(Answer::from(failure).with(CONTENT_RANGE, &format!("bytes */{}", file.length)));
        }
    };
    let length = range.end - range.start;
    let is_head = call.parts.method == hyper::Method::HEAD;
    let body = if is_head { Body::Whole(None) } else { sent(&call, content, range.clone()) };
    let mut answer = Answer::new(status, body)
        .with(CONTENT_TYPE, &file.content_type)
        .with(ACCEPT_RANGES, "bytes")
        .with(ETAG, &etag)
        .with(X_CONTENT_TYPE_OPTIONS, "nosniff")
        // A file may be a page with scripts of whoever wrote it, and is read by whoever has a session here.
        .with(CONTENT_SECURITY_POLICY, "sandbox");
    if is_head {
        answer = answer.with(CONTENT_LENGTH, &length.to_string());
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, file.length);
            Ok(answer.with(CONTENT_RANGE, &shown))
        }
        _ => Ok(answer.with(HeaderName::from_static("content-md5"), plain)),
    }
}

/// The range that is asked for: none if all is; within, none if it can't be had. Of several ranges all is sent, as is allowed.
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

/// The bytes of `range`, read as the client takes them.
fn sent(call: &Call, mut content: BlobReader, range: std::ops::Range<u64>) -> Body {
    let length = range.end - range.start;
    streamed_bytes(length, call.state.config.limits.stall_timeout, move |mut out| async move {
        let unread = |error: std::io::Error| Failure::internal(format!("a file can't be read: {error}"));
        content.seek(SeekFrom::Start(range.start)).map_err(unread)?;
        let mut left = length;
        while left > 0 {
            let count = content.by_ref().take(left.min(PIECE_BYTES)).read_to_end(&mut out.buffer).map_err(unread)?;
            if count == 0 {
                return Err(unread(std::io::ErrorKind::UnexpectedEof.into()));
            }
            left -= count as u64;
            out.flush_if_full().await;
        }
        Ok(())
    })
}

/// A bound on what is stored: what is compressed can be much larger than what was sent.
pub(super) struct Bounded<R> {
    inner: R,
    /// None once there was more.
    left: Option<u64>,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R, bytes_max: u64) -> Self {
        Bounded { inner, left: Some(bytes_max) }
    }

    /// What came of storing this: more than the bound is the sender's fault, not the disk's.
    fn outcome<T>(&self, stored: Result<T>) -> Result<T> {
        if self.left.is_none() { Err(Failure::too_large("the attachment is too large")) } else { stored }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.and_then(|left| left.checked_sub(count as u64));
        match self.left {
            Some(_) => Ok(count),
            None => Err(std::io::ErrorKind::FileTooLarge.into()),
        }
    }
}

/// Whether a request's body is compressed: files are kept as what they are.
pub(super) fn is_gzip(call: &Call) -> bool {
    call.header("content-encoding") == Some("gzip")
}

/// Stores the body of a request as it arrives.
async fn store_body(call: &mut Call, served: &Arc<Served>) -> Result<Content> {
    let limits = call.state.config.limits.clone();
    let Some(mut body) = call.body.take() else { return Err(Failure::bad_request("The request has no body")) };
    let place = call.upload_permit().await?;
    let (sender, arriving) = chunk_channel();
    let storing = served.clone();
    let (is_gzip, file_max) = (is_gzip(call), limits.attachment_bytes);
    let stored = tokio::task::spawn_blocking(move || {
        let _place = place;
        match is_gzip {
            true => {
                let mut content = Bounded::new(MultiGzDecoder::new(arriving), file_max);
                let stored = storing.store(&mut content);
                content.outcome(stored)
            }
            false => storing.store(arriving),
        }
    });
    let mut count: u64 = 0;
    let mut patience = BodyTimeout::for_client(limits.stall_timeout);
    let failed = loop {
        match next_frame(&mut body, &mut patience).await {
            Ok(None) => break None,
            Err(failure) => break Some(failure),
            Ok(Some(piece)) => {
                count += piece.len() as u64;
                if count > limits.attachment_bytes {
                    break Some(Failure::too_large("the attachment is too large"));
                }
                if sender.send(Ok(piece)).await.is_err() {
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
    Ok(Content::Stored { blob, md5 })
}

/// `PUT /{db}/{doc}/{file}`
pub(crate) async fn put(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let (id, name) = (id_of(&call)?, call.parameter("file")?.to_owned());
    check_id(&id)?;
    let content_type = call.header("content-type").unwrap_or("application/octet-stream").to_owned();
    // Of a compressed body it would be that of what was sent.
    let claimed = call.header("content-md5").filter(|_| !is_gzip(&call)).map(str::to_owned);
    let parent = parent_of(&call, None)?;
    let content = store_body(&mut call, &served).await?;
    if let (Some(claimed), Content::Stored { md5, .. }) = (claimed, &content)
        && md5_text(md5).trim_start_matches("md5-") != claimed
    {
        return Err(Failure::bad_request("Possible message corruption: the content's MD5 is not Content-MD5."));
    }
    let file = IncomingFile { name, content_type, revpos: None, content };
    change(call, served, id, parent, Some(file)).await
}

/// `DELETE /{db}/{doc}/{file}`
pub(crate) async fn delete(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let id = id_of(&call)?;
    let parent = parent_of(&call, None)?;
    change(call, served, id, parent, None).await
}

/// Writes the document again with another file, or without one.
async fn change(
    call: Call,
    served: Arc<Served>,
    id: String,
    parent: Option<stemmadb::Revision>,
    file: Option<IncomingFile>,
) -> Result<Answer> {
    let options = write_options(&call)?;
    let name = call.parameter("file")?.to_owned();
    let is_put = file.is_some();
    let database = served.name().to_owned();
    let (id, revision) = blocking(move || {
        let snapshot = served.database().snapshot()?;
        let document = match parent {
            Some(parent) => Some(snapshot.get_revision(&id, &parent)?.ok_or_else(|| match snapshot.get(&id) {
                Ok(None) if !is_put => Failure::missing(),
                _ => Failure::conflict(),
            })?),
            // A file may bring its document with it.
            None if is_put && snapshot.get(&id)?.is_none() => None,
            None => {
                open(&snapshot, &id, None)?;
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
        let kept = files.into_iter().map(|file| IncomingFile {
            name: file.name,
            content_type: file.content_type,
            revpos: None,
            content: Content::Stub,
        });
        let files = kept.chain(file).collect();
        let changed = Incoming { id: Some(id), revision: parent, body, files, ..Incoming::default() };
        write_one(&served, changed, &options)
    })
    .await?;
    let status = match written_status(&call) {
        StatusCode::CREATED if !is_put => StatusCode::OK,
        status => status,
    };
    answer_written(&call, status, &database, &id, &revision)
}
