//! A database that is reached over HTTP, as a peer. Its calls block the job's thread; a cancelled job's end at once.

use std::io::{self, Read};
use std::iter;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming as Arrived;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Method, Request as HttpRequest, Response, StatusCode};
use hyper_util::client::legacy::{Client, connect::Connect};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, TransferFile, WriteOutcome,
};
use stemmadb::{DocumentId, Error, Object, Revision, Value};
use tokio::sync::{mpsc, watch};

use super::connect::Network;
use super::runtime::JobRuntime;
use super::verified_content::{ExpectedContent, VerifiedContent};
use crate::documents::{Incoming, parse_revision};
use crate::error::Failure;
use crate::http::{
    Body, BodyTimeout, ChunkReader, JsonPurpose, MemoryBudget, MemoryReservation, next_frame, read_all, read_json,
    read_json_within,
};

/// What a path's segment may not have as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Documents asked for at once.
const READ_COUNT: usize = 50;
/// The largest answer that is held, in bytes, but for documents: a page of the feed.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// So many letters are told of an answer that is none.
const WHY_MAX: usize = 300;
/// How long an answer may stand still.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database that is reached over HTTP, by connections of `C`.
pub(super) struct Remote<C = Network> {
    client: Client<C, Body>,
    url: String,
    headers: Vec<(String, String)>,
    runtime: JobRuntime,
    /// So many bytes of documents are held at once, as of a client's.
    document_bytes_max: usize,
    /// What answers take memory of.
    memory: Arc<MemoryBudget>,
    /// Becomes true when the job is cancelled.
    cancelled: watch::Receiver<bool>,
    /// Revisions of checkpoints, which some servers want to be told.
    checkpoints: Mutex<Vec<(String, String)>>,
}

/// What a request was answered with. It takes memory for as long as it is there.
struct Answered {
    value: Value,
    _reservation: Arc<MemoryReservation>,
}

impl Deref for Answered {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

/// What a refusal by a server, or here, is to the library.
pub(super) fn refused(failure: &Failure) -> Error {
    let message = format!("{}: {}", failure.error(), failure.reason());
    match failure.status().as_u16() {
        404 => Error::not_found(message),
        409 => Error::conflict(message),
        413 => Error::invalid(message).with_source(TooLarge),
        // Not now: it stood still, or came too often.
        408 | 429 => Error::unavailable(message),
        400..=499 => Error::invalid(message),
        _ => Error::unavailable(message),
    }
}

/// What a row about a document that was not written is to the library.
fn refused_row(row: &Value) -> Error {
    let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or("unknown");
    let message = format!("{}: {}: {}", text("id"), text("error"), text("reason"));
    match text("error") {
        "internal_server_error" | "service_unavailable" | "timeout" | "too_many_requests" => {
            Error::unavailable(message)
        }
        _ => Error::invalid(message),
    }
}

/// It was too much at once: less may do.
#[derive(Debug)]
struct TooLarge;

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too large")
    }
}

impl std::error::Error for TooLarge {}

fn is_too_large(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<TooLarge>())
}

fn broken(what: impl std::fmt::Display) -> Error {
    Error::unavailable(what.to_string())
}

/// An error and what it is because of.
fn causes(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told.push_str(&format!(": {error}"));
        cause = error.source();
    }
    told
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The path of a document: `_design/` and `_local/` keep their slash.
fn document_path(id: &str) -> String {
    match id.split_once('/') {
        Some((kind @ ("_design" | "_local"), name)) => format!("{kind}/{}", encoded(name)),
        _ => encoded(id),
    }
}

fn json_body(value: &Value) -> Body {
    Body::Whole(Some(value.to_json().into_bytes().into()))
}

impl<C: Connect + Clone + Send + Sync + 'static> Remote<C> {
    pub(super) fn new(
        client: Client<C, Body>,
        url: String,
        headers: Vec<(String, String)>,
        runtime: JobRuntime,
        document_bytes_max: usize,
        memory: Arc<MemoryBudget>,
        cancelled: watch::Receiver<bool>,
    ) -> Self {
        Remote { client, url, headers, runtime, document_bytes_max, memory, cancelled, checkpoints: Mutex::default() }
    }

    /// Runs a future to its end, or until the job is cancelled.
    fn wait_for<T>(&self, work: impl Future<Output = stemmadb::Result<T>>) -> stemmadb::Result<T> {
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                result = work => result,
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Error::stopped("the replication was cancelled")),
            }
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: Body,
        timeout: Duration,
    ) -> stemmadb::Result<Response<Arrived>> {
        let mut request = HttpRequest::builder().method(method.clone()).uri(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request = request.header(ACCEPT, "application/json");
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Body::Pieces { length: Some(length), .. } = &body {
            request = request.header(CONTENT_LENGTH, *length);
        }
        let request = request.body(body).map_err(broken)?;
        let answered = tokio::time::timeout(timeout, self.client.request(request)).await;
        let answered = answered.map_err(|_| broken(format!("{} did not answer in time", self.url)))?;
        answered.map_err(|error| broken(format!("{method} {}: {}", self.url, causes(&error))).with_source(error))
    }

    /// The JSON that a request is answered with.
    async fn told(&self, response: Response<Arrived>) -> stemmadb::Result<Answered> {
        self.told_within(response, ANSWER_BYTES_MAX).await
    }

    async fn told_within(&self, response: Response<Arrived>, bytes_max: usize) -> stemmadb::Result<Answered> {
        let status = response.status();
        let reservation = self.memory.reservation();
        let bytes = read_all(response.into_body(), bytes_max, BodyTimeout::for_peer(PATIENCE), Some(&reservation))
            .await
            .map_err(|error| refused(&error))?;
        if status.is_success() {
            let value = read_json_within(&bytes, JsonPurpose::Documents, &reservation).await;
            return value
                .map(|value| Answered { value, _reservation: reservation })
                .map_err(|error| broken(error.reason()));
        }
        if status.is_redirection() {
            // Whoever is replicated with may not say where else this server is to go.
            return Err(Error::invalid(format!("it answers {status}: what it points to is not followed")));
        }
        let told = read_json(&bytes, JsonPurpose::Documents).unwrap_or_default();
        let text = |name: &str| told.get(name).and_then(Value::as_str).map(str::to_owned);
        let reason = text("reason").unwrap_or_else(|| format!("it answers {status}, and not why"));
        Err(refused(&Failure::new(status, text("error").unwrap_or_else(|| "unknown".to_owned()), reason)))
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>, timeout: Duration) -> stemmadb::Result<Answered> {
        let content_type = body.map(|_| "application/json");
        let body = body.map_or(Body::Whole(None), json_body);
        self.wait_for(async {
            let response = self.send(method, path, content_type, body, timeout).await?;
            self.told(response).await
        })
    }

    /// Shows some revisions to `take`: in parts, if they are too large together.
    fn read_some(
        &self,
        some: &[(&DocumentId, &Revision)],
        take: &mut dyn FnMut(Transfer) -> stemmadb::Result<()>,
    ) -> stemmadb::Result<()> {
        let asked = some.iter().map(|(id, revision)| {
            let mut row = Object::new();
            row.insert("id", id.as_str());
            row.insert("rev", revision.to_string());
            Value::Object(row)
        });
        let asked = json_body(&single("docs", Value::Array(asked.collect())));
        let path = "/_bulk_get?revs=true&latest=true&attachments=false&att_encoding_info=true";
        let told = self.wait_for(async {
            let response = self.send(Method::POST, path, Some("application/json"), asked, PATIENCE).await?;
            self.told_within(response, self.document_bytes_max).await
        });
        let told = match told {
            Err(error) if is_too_large(&error) && some.len() > 1 => {
                let (first, second) = some.split_at(some.len() / 2);
                self.read_some(first, take)?;
                return self.read_some(second, take);
            }
            told => told?,
        };
        let Answered { value: told, _reservation } = told;
        let rows = list_in(told, "results");
        if rows.len() < some.len() {
            return Err(broken(format!("{} leaves out revisions that it was asked for", self.url)));
        }
        for (row, (id, revision)) in rows.into_iter().zip(some) {
            let answers = list_in(row, "docs");
            if answers.is_empty() {
                return Err(broken(format!("{} says nothing of {revision} of `{id}`", self.url)));
            }
            for answer in answers {
                let document =
                    found(answer).map_err(|why| broken(format!("{revision} of `{id}` can't be read: {why}")))?;
                document.map_or(Ok(()), |document| take(self.transfer(id, document)?))?;
            }
        }
        Ok(())
    }

    /// Writes documents without files: in parts, if they are too large together. One that is too large by itself is refused.
    fn write_plain(&self, plain: &[Transfer], written: &mut WriteOutcome) -> stemmadb::Result<()> {
        if plain.is_empty() {
            return Ok(());
        }
        let mut body = Object::new();
        body.insert("new_edits", false);
        body.insert("docs", Value::Array(plain.iter().map(document_json).collect()));
        let told = match self.ask(Method::POST, "/_bulk_docs", Some(&body.into()), PATIENCE) {
            Err(error) if is_too_large(&error) => {
                if plain.len() == 1 {
                    written.refusals.push(error);
                    return Ok(());
                }
                let (first, second) = plain.split_at(plain.len() / 2);
                self.write_plain(first, written)?;
                return self.write_plain(second, written);
            }
            told => told?,
        };
        let rows = told.as_array().ok_or_else(|| broken(format!("{} does not say what it wrote", self.url)))?;
        let refused: Vec<_> = rows.iter().filter(|row| row.get("error").is_some()).map(refused_row).collect();
        // It may name more than it was sent.
        written.count += plain.len().saturating_sub(refused.len());
        written.refusals.extend(refused);
        Ok(())
    }

    /// Makes the database, if there is none.
    pub(super) fn create(&self) -> stemmadb::Result<()> {
        let created = self.wait_for(self.send(Method::PUT, "", None, Body::Whole(None), PATIENCE))?;
        match created.status() {
            StatusCode::PRECONDITION_FAILED => Ok(()),
            _ => self.wait_for(self.told(created)).map(|_| ()),
        }
    }

    fn feed(&self, parameters: &str, selection: &ReplicationScope, timeout: Duration) -> stemmadb::Result<Answered> {
        let (more, body) = match selection {
            ReplicationScope::All => (String::new(), None),
            ReplicationScope::Ids(ids) => {
                let ids = ids.iter().map(Value::from).collect();
                ("&filter=_doc_ids".to_owned(), Some(single("doc_ids", Value::Array(ids))))
            }
            ReplicationScope::Selector(selector) => {
                ("&filter=_selector".to_owned(), Some(single("selector", selector.clone())))
            }
            ReplicationScope::Filter(name, parameters) => {
                let parameters =
                    parameters.iter().map(|(name, value)| format!("&{}={}", encoded(name), encoded(value)));
                (format!("&filter={}{}", encoded(name), parameters.collect::<String>()), None)
            }
        };
        let method = if body.is_some() { Method::POST } else { Method::GET };
        self.ask(method, &format!("/_changes?style=all_docs{parameters}{more}"), body.as_ref(), timeout)
    }

    /// A file's content, read as it arrives.
    fn open_file(
        &self,
        id: &DocumentId,
        revision: &Revision,
        name: &str,
        told: ExpectedContent,
    ) -> stemmadb::replication::ContentOpener {
        let path = format!("/{}/{}?rev={revision}", document_path(id.as_str()), encoded(name));
        let (remote, of) = (self.another(), format!("`{name}` of `{id}`"));
        let (id, revision) = (id.clone(), *revision);
        Box::new(move || {
            let response = remote.wait_for(remote.send(Method::GET, &path, None, Body::Whole(None), PATIENCE))?;
            if response.status() == StatusCode::NOT_FOUND && !remote.has_leaf(&id, &revision)? {
                return Ok(None);
            }
            if !response.status().is_success() {
                remote.wait_for(remote.told(response))?;
                return Err(broken("a file could not be read"));
            }
            let (mut body, mut timeout) = (response.into_body(), BodyTimeout::for_peer(PATIENCE));
            // Waited for by whoever reads it.
            let pieces = iter::from_fn(move || {
                let next = async { next_frame(&mut body, &mut timeout).await.map_err(|error| refused(&error)) };
                remote.wait_for(next).map_err(io::Error::other).transpose()
            });
            Ok(Some(Box::new(VerifiedContent::new(ChunkReader::of(pieces), of, told)) as Box<dyn Read + Send>))
        })
    }

    /// Whether a revision is one of those that were not replaced.
    fn has_leaf(&self, id: &DocumentId, revision: &Revision) -> stemmadb::Result<bool> {
        let mut found = false;
        let read = self.read_some(&[(id, revision)], &mut |transfer| {
            found |= transfer.revisions.first() == Some(revision);
            Ok(())
        });
        read.map(|()| found)
    }

    fn another(&self) -> Self {
        Remote {
            client: self.client.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            runtime: self.runtime.clone(),
            document_bytes_max: self.document_bytes_max,
            memory: self.memory.clone(),
            cancelled: self.cancelled.clone(),
            checkpoints: Mutex::default(),
        }
    }

    fn transfer(&self, id: &DocumentId, document: Value) -> stemmadb::Result<Transfer> {
        let stubs = document.get("_attachments").and_then(Value::as_object).cloned().unwrap_or_default();
        let byte_count = document.to_json().len();
        let read = Incoming::parse_as(Some(id.as_str()), document).map_err(|error| broken(error.reason()))?;
        let revisions = read.history().map_err(|error| broken(error.reason()))?;
        let revision = revisions[0];
        let file = |(name, stub): (&str, &Value)| {
            let number = |field: &str| stub.get(field).and_then(Value::as_u64);
            let text = |field: &str| stub.get(field).and_then(Value::as_str).map(str::to_owned);
            let told = ExpectedContent::of_stub(stub);
            TransferFile {
                name: name.to_owned(),
                content_type: text("content_type").unwrap_or_else(|| "application/octet-stream".to_owned()),
                generation: number("revpos").and_then(|revpos| u32::try_from(revpos).ok()).unwrap_or(1),
                length: told.length.unwrap_or(0),
                md5: told.md5,
                open: self.open_file(id, &revision, name, told),
            }
        };
        let files = stubs.iter().map(file).collect();
        Ok(Transfer { id: id.clone(), revisions, deleted: read.deleted, body: read.body, files, byte_count })
    }

    /// Writes a document with its files, in one message of several parts, as they are read; not if one is gone. Whether it was written.
    fn put_with_files(&self, transfer: Transfer) -> stemmadb::Result<bool> {
        let boundary = uuid::Uuid::new_v4().simple().to_string();
        let path = format!("/{}?new_edits=false", document_path(transfer.id.as_str()));
        let json = document_json(&transfer).to_json();
        let first = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n{json}");
        let head = |file: &TransferFile| format!("\r\n--{boundary}\r\nContent-Length: {}\r\n\r\n", file.length);
        let last = format!("\r\n--{boundary}--");
        let heads: Vec<String> = transfer.files.iter().map(head).collect();
        let lengths: u64 = transfer.files.iter().zip(&heads).map(|(file, head)| file.length + head.len() as u64).sum();
        let length = first.len() as u64 + lengths + last.len() as u64;
        let (sender, from) = mpsc::channel(4);
        let files = transfer.files;
        // Not the task's outcome: whoever answers early, and takes no more, would be waited for.
        let is_gone = Arc::new(AtomicBool::new(false));
        let found_gone = is_gone.clone();
        self.runtime.handle().spawn_blocking(move || {
            let sent = send_parts(&sender, first, heads.into_iter().zip(files), last);
            let why = match sent {
                Ok(true) => return,
                Ok(false) => {
                    found_gone.store(true, Ordering::SeqCst);
                    "a file is gone".to_owned()
                }
                Err(error) => error.to_string(),
            };
            // An end without this were that of the whole.
            sender.blocking_send(Err(io::Error::other(why))).ok();
        });
        let content_type = format!("multipart/related; boundary=\"{boundary}\"");
        let body = Body::Pieces { from, length: Some(length) };
        self.wait_for(async {
            // However long the files are: what stands still is noticed by the server.
            let timeout = Duration::from_secs(24 * 3600);
            let answered =
                async { self.told(self.send(Method::PUT, &path, Some(&content_type), body, timeout).await?).await };
            match answered.await {
                Ok(_) => Ok(true),
                Err(_) if is_gone.load(Ordering::SeqCst) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }
}

/// Whether all was sent: a file may be gone.
fn send_parts(
    sender: &mpsc::Sender<io::Result<Bytes>>,
    first: String,
    files: impl Iterator<Item = (String, TransferFile)>,
    last: String,
) -> stemmadb::Result<bool> {
    let gone = |_| broken("the connection is gone");
    sender.blocking_send(Ok(first.into())).map_err(gone)?;
    for (head, file) in files {
        sender.blocking_send(Ok(head.into())).map_err(gone)?;
        let Some(mut content) = (file.open)()? else { return Ok(false) };
        loop {
            let mut piece = vec![0; 64 << 10];
            let count = content.read(&mut piece).map_err(broken)?;
            if count == 0 {
                break;
            }
            piece.truncate(count);
            sender.blocking_send(Ok(piece.into())).map_err(gone)?;
        }
    }
    sender.blocking_send(Ok(last.into())).map_err(gone).map(|()| true)
}

/// The list that an object has under a name; an empty one if there is none.
fn list_in(value: Value, name: &str) -> Vec<Value> {
    let Value::Object(mut object) = value else { return Vec::new() };
    match object.remove(name) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// The document of an answer, taken out, since it may be large; none if the revision is there no longer: what took its place is told by the feed.
///
/// # Errors
/// Why it can't be read. To go on without it were to leave it out for good.
fn found(mut answer: Value) -> std::result::Result<Option<Value>, String> {
    if let Some(document) = answer.as_object_mut().and_then(|answer| answer.remove("ok")) {
        return Ok(Some(document));
    }
    match answer.get("error").and_then(|error| error.get("error")?.as_str()) {
        Some("not_found") => Ok(None),
        _ => Err(answer.to_json().chars().take(WHY_MAX).collect()),
    }
}

fn single(name: &str, value: Value) -> Value {
    Value::Object([(name, value)].into_iter().collect())
}

fn texts(revisions: &[Revision]) -> Value {
    Value::Array(revisions.iter().map(|revision| Value::from(revision.to_string())).collect())
}

/// A document as another server takes it.
fn document_json(transfer: &Transfer) -> Value {
    let mut object = Object::new();
    object.insert("_id", transfer.id.as_str());
    if let Some(revision) = transfer.revisions.first() {
        object.insert("_rev", revision.to_string());
        let hash = |revision: &Revision| {
            let text = revision.to_string();
            Value::from(text.split_once('-').map_or("", |(_, hash)| hash))
        };
        let mut revisions = Object::new();
        revisions.insert("start", revision.generation());
        revisions.insert("ids", Value::Array(transfer.revisions.iter().map(hash).collect()));
        object.insert("_revisions", revisions);
    }
    if transfer.deleted {
        object.insert("_deleted", true);
    }
    if !transfer.files.is_empty() {
        let mut files = Object::new();
        for file in &transfer.files {
            let mut told = Object::new();
            told.insert("content_type", file.content_type.as_str());
            told.insert("revpos", file.generation);
            told.insert("length", file.length);
            told.insert("follows", true);
            files.insert(&file.name, told);
        }
        object.insert("_attachments", files);
    }
    object.extend(transfer.body.as_object().into_iter().flatten().map(|(name, value)| (name, value.clone())));
    object.into()
}

impl<C: Connect + Clone + Send + Sync + 'static> Peer for Remote<C> {
    fn identity(&self) -> stemmadb::Result<String> {
        Ok(self.url.clone())
    }

    fn database_id(&self) -> stemmadb::Result<String> {
        let told = self.ask(Method::GET, "", None, PATIENCE)?;
        let text = |name: &str| told.get(name).and_then(Value::as_str);
        // Other servers tell when it was made, or nothing.
        Ok(text("uuid")
            .map_or_else(|| format!("{}#{}", self.url, text("instance_start_time").unwrap_or("0")), str::to_owned))
    }

    fn get_checkpoint(&self, id: &str) -> stemmadb::Result<Option<Value>> {
        match self.ask(Method::GET, &format!("/{}", document_path(id)), None, PATIENCE) {
            Err(error) if error.kind() == stemmadb::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(Answered { value: mut body, .. }) => {
                if let Some(object) = body.as_object_mut() {
                    object.remove("_id");
                    if let Some(Value::String(revision)) = object.remove("_rev") {
                        *self.checkpoints.lock() = vec![(id.to_owned(), revision)];
                    }
                }
                Ok(Some(body))
            }
        }
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> stemmadb::Result<()> {
        self.ask(Method::POST, "/_ensure_full_commit", Some(&Object::new().into()), PATIENCE)?;
        let mut body = body.clone();
        let known = self.checkpoints.lock().iter().find(|(known, _)| known == id).map(|(_, revision)| revision.clone());
        if let (Some(object), Some(revision)) = (body.as_object_mut(), known) {
            object.insert("_rev", revision);
        }
        let told = self.ask(Method::PUT, &format!("/{}", document_path(id)), Some(&body), PATIENCE)?;
        if let Some(revision) = told.get("rev").and_then(Value::as_str) {
            *self.checkpoints.lock() = vec![(id.to_owned(), revision.to_owned())];
        }
        Ok(())
    }

    fn changes(
        &self,
        since: Option<&Value>,
        count: usize,
        selection: &ReplicationScope,
    ) -> stemmadb::Result<ChangesPage> {
        let since = since.map_or_else(|| "0".to_owned(), sequence_text);
        let told = self.feed(&format!("&limit={count}&since={}", encoded(&since)), selection, PATIENCE)?;
        let wrong = || broken(format!("{} answers with a feed that is none", self.url));
        let rows = told.get("results").and_then(Value::as_array).ok_or_else(wrong)?;
        let mut leaves = Vec::with_capacity(rows.len());
        for row in rows {
            let id = row.get("id").and_then(Value::as_str).ok_or_else(wrong)?;
            let changes = row.get("changes").and_then(Value::as_array).ok_or_else(wrong)?;
            let revision = |change: &Value| {
                let text = change.get("rev").and_then(Value::as_str).ok_or_else(wrong)?;
                parse_revision(text).map_err(|failure| refused(&failure))
            };
            let revisions = changes.iter().map(revision).collect::<stemmadb::Result<_>>()?;
            leaves.push(DocumentLeaves { id: DocumentId::new(id)?, revisions });
        }
        let is_last = leaves.len() < count;
        let position = told.get("last_seq").cloned().ok_or_else(wrong)?;
        Ok(ChangesPage { leaves, position, is_last })
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> stemmadb::Result<Vec<MissingRevisions>> {
        let asked: Object = leaves.iter().map(|leaves| (leaves.id.as_str(), texts(&leaves.revisions))).collect();
        let told = self.ask(Method::POST, "/_revs_diff", Some(&asked.into()), PATIENCE)?;
        let wrong = || broken(format!("{} does not say which revisions it lacks", self.url));
        let list = |value: Option<&Value>| {
            let texts = value.and_then(Value::as_array).unwrap_or_default().iter();
            texts.map(|text| text.as_str()?.parse().ok()).collect::<Option<Vec<Revision>>>().ok_or_else(wrong)
        };
        let wanted = told.as_object().ok_or_else(wrong)?.iter().map(|(id, difference)| {
            let possible_ancestors = list(difference.get("possible_ancestors"))?;
            Ok(MissingRevisions {
                id: DocumentId::new(id)?,
                revisions: list(difference.get("missing"))?,
                possible_ancestors,
            })
        });
        wanted.collect()
    }

    fn read(
        &self,
        wanted: &[MissingRevisions],
        take: &mut dyn FnMut(Transfer) -> stemmadb::Result<()>,
    ) -> stemmadb::Result<()> {
        let all: Vec<_> =
            wanted.iter().flat_map(|wanted| wanted.revisions.iter().map(move |rev| (&wanted.id, rev))).collect();
        all.chunks(READ_COUNT).try_for_each(|some| self.read_some(some, take))
    }

    fn write(&self, transfers: Vec<Transfer>, written: &mut WriteOutcome) -> stemmadb::Result<()> {
        let (with_files, plain): (Vec<_>, Vec<_>) =
            transfers.into_iter().partition(|transfer| !transfer.files.is_empty());
        self.write_plain(&plain, written)?;
        for transfer in with_files {
            match self.put_with_files(transfer) {
                Err(error) if matches!(error.kind(), stemmadb::ErrorKind::Invalid | stemmadb::ErrorKind::Conflict) => {
                    written.refusals.push(error);
                }
                outcome => written.count += usize::from(outcome?),
            }
        }
        Ok(())
    }

    fn wait(&self, since: &Value, timeout: Duration) -> stemmadb::Result<()> {
        let parameters =
            format!("&feed=longpoll&limit=1&timeout={}&since={}", timeout.as_millis(), encoded(&sequence_text(since)));
        self.feed(&parameters, &ReplicationScope::All, timeout + PATIENCE).map(|_| ())
    }
}

/// A position as it stands in a URL.
fn sequence_text(position: &Value) -> String {
    position.as_str().map_or_else(|| position.to_json(), str::to_owned)
}

/// A peer that the job and its replication share.
pub(super) type Shared = Arc<dyn Peer>;
