//! A database on a server as a replication peer, over HTTP. Calls block, and end as soon as they are cancelled.

use std::io::{self, Read};
use std::iter;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming as IncomingBody;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Method, Request as HttpRequest, Response, StatusCode};
use hyper_util::client::legacy::{Client, connect::Connect};
use parking_lot::Mutex;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, TransferFile, WriteOutcome,
};
use stemmadb::{Cancellation, DocumentId, Error, Object, Revision, Value};
use tokio::sync::{Notify, mpsc, watch};

use crate::foundation::{
    Body, BodyTimeout, ChunkReader, Failure, IncomingDocument, JsonPurpose, MemoryBudget, MemoryReservation,
    next_frame, parse_revision, read_all, read_json, read_json_within,
};
use crate::network::Network;
use crate::runtime::BlockingRuntime;
use crate::signature::{SigningKey, signed};
use crate::url::{encode_id, encode_segment};
use crate::verified_content::{ExpectedContent, VerifiedContent};

/// The number of documents requested with one `_bulk_get`.
const READ_COUNT: usize = 50;
/// The largest response, in bytes, except for documents: a page of the changes feed.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// The number of characters of a malformed response that an error shows.
const ERROR_CHARACTERS_MAX: usize = 300;

/// A database on a CouchDB-compatible server: a [`Peer`] of replications.
///
/// Calls block, and must be made on a thread that may block. They end with `Stopped` when the
/// [`Cancellation`](stemmadb::Cancellation) of their replication is used. A connection that fails makes a call fail
/// with `Unavailable`: the replication decides whether it is repeated. Responses are read with at most 256 MiB of
/// memory; files are streamed.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use stemmadb::Database;
/// use stemmadb::replication::{BackgroundReplication, ReplicationScope};
/// use stemmadb_http::{HttpOptions, HttpPeer};
///
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::open("library.stemma")?;
/// // Once, in both directions.
/// let server = HttpPeer::new("https://ada:secret@db.example.org/library")?;
/// let pulled = db.replicate_from(&server)?;
/// let pushed = db.replicate_to(&server)?;
/// println!("{} here, {} there", pulled.written_count, pushed.written_count);
///
/// // Whenever the server can be reached, until it is stopped.
/// let options = HttpOptions::new().bearer_token("stemma_…");
/// let server = Arc::new(HttpPeer::with("https://db.example.org/library", options)?);
/// let selector = stemmadb::Value::parse(br#"{"type": "book"}"#)?;
/// let pull = BackgroundReplication::start(server.clone(), Arc::new(db.clone()), |replication| {
///     replication.only(ReplicationScope::Selector(selector))
/// })?;
/// let push = BackgroundReplication::start(Arc::new(db.clone()), server, |replication| replication)?;
/// # drop((pull, push));
/// # Ok(())
/// # }
/// ```
pub struct HttpPeer<C = Network> {
    client: Client<C, Body>,
    url: String,
    headers: Vec<(String, String)>,
    signing_key: Option<Arc<SigningKey>>,
    runtime: BlockingRuntime,
    pub(crate) limits: PeerLimits,
    /// Becomes true when the owner cancels all calls.
    cancelled: watch::Receiver<bool>,
    /// The last revision of each checkpoint document, which some servers require for an update.
    checkpoints: Mutex<Vec<(String, String)>>,
}

/// What the responses of a server may take.
#[derive(Clone)]
pub struct PeerLimits {
    /// The largest response with documents, in bytes.
    pub document_bytes_max: usize,
    /// The memory budget that responses are charged to.
    pub memory: Arc<MemoryBudget>,
    /// The timeout for a response that makes no progress.
    pub stall_timeout: Duration,
}

/// A parsed JSON response, which holds its memory reservation until it is dropped.
pub(crate) struct JsonResponse {
    value: Value,
    _reservation: Arc<MemoryReservation>,
}

impl Deref for JsonResponse {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

/// Converts a failure, of another server or of this one, into an error of the library.
pub fn library_error(failure: &Failure) -> Error {
    let message = format!("{}: {}", failure.error(), failure.reason());
    match failure.status().as_u16() {
        404 => Error::not_found(message),
        409 => Error::conflict(message),
        413 => Error::invalid(message).with_source(TooLarge),
        // A temporary failure: a timeout or a rate limit.
        408 | 429 => Error::unavailable(message),
        400..=499 => Error::invalid(message),
        _ => Error::unavailable(message),
    }
}

/// Converts a failure to read a response into an error of the library: the connection was cut, or stood still.
fn interruption(failure: &Failure) -> Error {
    match failure.status() {
        StatusCode::PAYLOAD_TOO_LARGE => library_error(failure),
        _ => unavailable(format!("a response is incomplete: {}", failure.reason())),
    }
}

/// Converts a row of a `_bulk_docs` response for a document that was not written into an error of the library.
fn row_error(row: &Value) -> Error {
    let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or("unknown");
    let message = format!("{}: {}: {}", text("id"), text("error"), text("reason"));
    match text("error") {
        "internal_server_error" | "service_unavailable" | "timeout" | "too_many_requests" => {
            Error::unavailable(message)
        }
        _ => Error::invalid(message),
    }
}

/// The source of errors for a request or response that was too large, and may succeed if it is split.
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

fn refusal() -> Error {
    Error::stopped("the replication was cancelled")
}

fn unavailable(what: impl std::fmt::Display) -> Error {
    Error::unavailable(what.to_string())
}

/// Formats an error with its chain of sources.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn json_body(value: &Value) -> Body {
    Body::Full(Some(value.to_json().into_bytes().into()))
}

impl<C: Connect + Clone + Send + Sync + 'static> HttpPeer<C> {
    /// Returns the database at a URL, with its own client, limits and cancellation.
    #[doc(hidden)]
    pub fn with_client(
        client: Client<C, Body>,
        url: String,
        headers: Vec<(String, String)>,
        runtime: BlockingRuntime,
        limits: PeerLimits,
        cancelled: watch::Receiver<bool>,
    ) -> Self {
        HttpPeer { client, url, headers, signing_key: None, runtime, limits, cancelled, checkpoints: Mutex::default() }
    }

    /// Signs each request with this key.
    #[doc(hidden)]
    #[must_use]
    pub fn signed_by(self, key: Option<Arc<SigningKey>>) -> Self {
        HttpPeer { signing_key: key, ..self }
    }

    /// Runs a future to its end, or until it is cancelled.
    fn wait_for<T>(&self, work: impl Future<Output = stemmadb::Result<T>>) -> stemmadb::Result<T> {
        let mut cancelled = self.cancelled.clone();
        let stopped = Arc::new(Notify::new());
        let stop = stopped.clone();
        let _registered = Cancellation::current().map(|current| current.on_cancel(move || stop.notify_one()));
        self.runtime.block_on(async {
            tokio::select! {
                result = work => result,
                Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => Err(refusal()),
                () = stopped.notified() => Err(refusal()),
            }
        })
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: Body,
        timeout: Duration,
    ) -> stemmadb::Result<Response<IncomingBody>> {
        let mut request = HttpRequest::builder().method(method.clone()).uri(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request = request.header(ACCEPT, "application/json");
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Body::Chunks { length: Some(length), .. } = &body {
            request = request.header(CONTENT_LENGTH, *length);
        }
        let mut request = request.body(body).map_err(unavailable)?;
        if let Some(key) = &self.signing_key {
            request = signed(key, request).await?;
        }
        let answered = tokio::time::timeout(timeout, self.client.request(request)).await;
        let answered = answered.map_err(|_| unavailable(format!("{} did not answer in time", self.url)))?;
        answered
            .map_err(|error| unavailable(format!("{method} {}: {}", self.url, error_chain(&error))).with_source(error))
    }

    /// Reads the JSON of a response.
    pub(crate) async fn read_response(&self, response: Response<IncomingBody>) -> stemmadb::Result<JsonResponse> {
        self.read_response_within(response, RESPONSE_BYTES_MAX).await
    }

    async fn read_response_within(
        &self,
        response: Response<IncomingBody>,
        bytes_max: usize,
    ) -> stemmadb::Result<JsonResponse> {
        let status = response.status();
        let reservation = self.limits.memory.reservation();
        let bytes = read_all(
            response.into_body(),
            bytes_max,
            BodyTimeout::for_peer(self.limits.stall_timeout),
            Some(&reservation),
        )
        .await
        .map_err(|error| interruption(&error))?;
        if status.is_success() {
            let value = read_json_within(&bytes, JsonPurpose::Documents, &reservation).await;
            return value
                .map(|value| JsonResponse { value, _reservation: reservation })
                .map_err(|error| unavailable(error.reason()));
        }
        if status.is_redirection() {
            // Another server must not be able to direct this one to other addresses.
            return Err(Error::invalid(format!("the response is {status}: redirects are not followed")));
        }
        let response = read_json(&bytes, JsonPurpose::Documents).unwrap_or_default();
        let text = |name: &str| response.get(name).and_then(Value::as_str).map(str::to_owned);
        let reason = text("reason").unwrap_or_else(|| format!("the response is {status}, without a reason"));
        Err(library_error(&Failure::new(status, text("error").unwrap_or_else(|| "unknown".to_owned()), reason)))
    }

    fn request_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> stemmadb::Result<JsonResponse> {
        let content_type = body.map(|_| "application/json");
        let body = body.map_or(Body::Full(None), json_body);
        self.wait_for(async {
            let response = self.send(method, path, content_type, body, timeout).await?;
            self.read_response(response).await
        })
    }

    /// Reads some revisions and passes each to `take`. Splits the request if the response would be too large.
    fn read_some(
        &self,
        some: &[(&DocumentId, &Revision)],
        take: &mut dyn FnMut(Transfer) -> stemmadb::Result<()>,
    ) -> stemmadb::Result<()> {
        let body = some.iter().map(|(id, revision)| {
            let mut row = Object::new();
            row.insert("id", id.as_str());
            row.insert("rev", revision.to_string());
            Value::Object(row)
        });
        let body = json_body(&single("docs", Value::Array(body.collect())));
        let path = "/_bulk_get?revs=true&latest=true&attachments=false&att_encoding_info=true";
        let response = self.wait_for(async {
            let response =
                self.send(Method::POST, path, Some("application/json"), body, self.limits.stall_timeout).await?;
            self.read_response_within(response, self.limits.document_bytes_max).await
        });
        let response = match response {
            Err(error) if is_too_large(&error) && some.len() > 1 => {
                let (first, second) = some.split_at(some.len() / 2);
                self.read_some(first, take)?;
                return self.read_some(second, take);
            }
            response => response?,
        };
        let JsonResponse { value: response, _reservation } = response;
        let rows = take_array(response, "results");
        if rows.len() < some.len() {
            return Err(unavailable(format!("{} omits requested revisions from its response", self.url)));
        }
        for (row, (id, revision)) in rows.into_iter().zip(some) {
            let answers = take_array(row, "docs");
            if answers.is_empty() {
                return Err(unavailable(format!("{} returns nothing for {revision} of `{id}`", self.url)));
            }
            for answer in answers {
                let document = parse_document(answer)
                    .map_err(|why| unavailable(format!("{revision} of `{id}` can't be read: {why}")))?;
                document.map_or(Ok(()), |document| take(self.transfer(id, document)?))?;
            }
        }
        Ok(())
    }

    /// Writes documents without files. Splits the request if it is too large; a single document that is too large is
    /// recorded as refused.
    fn write_plain(&self, plain: &[Transfer], written: &mut WriteOutcome) -> stemmadb::Result<()> {
        if plain.is_empty() {
            return Ok(());
        }
        let mut body = Object::new();
        body.insert("new_edits", false);
        body.insert("docs", Value::Array(plain.iter().map(document_json).collect()));
        let response =
            match self.request_json(Method::POST, "/_bulk_docs", Some(&body.into()), self.limits.stall_timeout) {
                Err(error) if is_too_large(&error) => {
                    if plain.len() == 1 {
                        written.refusals.push(error);
                        return Ok(());
                    }
                    let (first, second) = plain.split_at(plain.len() / 2);
                    self.write_plain(first, written)?;
                    return self.write_plain(second, written);
                }
                response => response?,
            };
        let rows =
            response.as_array().ok_or_else(|| unavailable(format!("{} does not report what it wrote", self.url)))?;
        let refusals: Vec<_> = rows.iter().filter(|row| row.get("error").is_some()).map(row_error).collect();
        // A server may report more rows than it was sent.
        written.count += plain.len().saturating_sub(refusals.len());
        written.refusals.extend(refusals);
        Ok(())
    }

    /// Sends a request to a route of the database, such as `/_restore`; returns the response. Waits for it at most for
    /// `timeout`.
    ///
    /// # Errors
    /// The error that the server returns; `Unavailable` if it does not answer.
    pub fn request(
        &self,
        method: Method,
        route: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> stemmadb::Result<Value> {
        Ok(self.request_json(method, route, body, timeout)?.value)
    }

    /// Creates the database if it does not exist.
    ///
    /// # Errors
    /// The error that the server returns; `Unavailable` if it does not answer.
    pub fn create(&self) -> stemmadb::Result<()> {
        let created = self.wait_for(self.send(Method::PUT, "", None, Body::Full(None), self.limits.stall_timeout))?;
        match created.status() {
            StatusCode::PRECONDITION_FAILED => Ok(()),
            _ => self.wait_for(self.read_response(created)).map(|_| ()),
        }
    }

    fn feed(
        &self,
        parameters: &str,
        selection: &ReplicationScope,
        timeout: Duration,
    ) -> stemmadb::Result<JsonResponse> {
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
                let parameters = parameters
                    .iter()
                    .map(|(name, value)| format!("&{}={}", encode_segment(name), encode_segment(value)));
                (format!("&filter={}{}", encode_segment(name), parameters.collect::<String>()), None)
            }
        };
        let method = if body.is_some() { Method::POST } else { Method::GET };
        self.request_json(method, &format!("/_changes?style=all_docs{parameters}{more}"), body.as_ref(), timeout)
    }

    /// Returns an opener for the content of a file, which is streamed.
    fn open_file(
        &self,
        id: &DocumentId,
        revision: &Revision,
        name: &str,
        expected: ExpectedContent,
    ) -> stemmadb::replication::ContentOpener {
        let path = format!("/{}/{}?rev={revision}", encode_id(id.as_str()), encode_segment(name));
        let (remote, label) = (self.clone_for_reader(), format!("`{name}` of `{id}`"));
        let (id, revision) = (id.clone(), *revision);
        Box::new(move || {
            let stall_timeout = remote.limits.stall_timeout;
            let response = remote.wait_for(remote.send(Method::GET, &path, None, Body::Full(None), stall_timeout))?;
            if response.status() == StatusCode::NOT_FOUND && !remote.has_leaf(&id, &revision)? {
                return Ok(None);
            }
            if !response.status().is_success() {
                remote.wait_for(remote.read_response(response))?;
                return Err(unavailable("a file could not be read"));
            }
            let (mut body, mut timeout) = (response.into_body(), BodyTimeout::for_peer(stall_timeout));
            // Each chunk is awaited by the thread that reads the content.
            let pieces = iter::from_fn(move || {
                let next = async { next_frame(&mut body, &mut timeout).await.map_err(|error| interruption(&error)) };
                remote.wait_for(next).map_err(io::Error::other).transpose()
            });
            Ok(Some(Box::new(VerifiedContent::new(ChunkReader::new(pieces), label, expected)) as Box<dyn Read + Send>))
        })
    }

    /// Whether a revision is a leaf.
    fn has_leaf(&self, id: &DocumentId, revision: &Revision) -> stemmadb::Result<bool> {
        let mut is_found = false;
        let read = self.read_some(&[(id, revision)], &mut |transfer| {
            is_found |= transfer.revisions.first() == Some(revision);
            Ok(())
        });
        read.map(|()| is_found)
    }

    /// Clones the peer, without its checkpoint revisions.
    fn clone_for_reader(&self) -> Self {
        HttpPeer {
            client: self.client.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            signing_key: self.signing_key.clone(),
            runtime: self.runtime.clone(),
            limits: self.limits.clone(),
            cancelled: self.cancelled.clone(),
            checkpoints: Mutex::default(),
        }
    }

    fn transfer(&self, id: &DocumentId, document: Value) -> stemmadb::Result<Transfer> {
        let stubs = document.get("_attachments").and_then(Value::as_object).cloned().unwrap_or_default();
        let byte_count = document.to_json().len();
        let read =
            IncomingDocument::parse_as(Some(id.as_str()), document).map_err(|error| unavailable(error.reason()))?;
        let revisions = read.history().map_err(|error| unavailable(error.reason()))?;
        let revision = revisions[0];
        let file = |(name, stub): (&str, &Value)| {
            let number = |field: &str| stub.get(field).and_then(Value::as_u64);
            let text = |field: &str| stub.get(field).and_then(Value::as_str).map(str::to_owned);
            let expected = ExpectedContent::from_stub(stub);
            TransferFile {
                name: name.to_owned(),
                content_type: text("content_type").unwrap_or_else(|| "application/octet-stream".to_owned()),
                generation: number("revpos").and_then(|revpos| u32::try_from(revpos).ok()).unwrap_or(1),
                length: expected.length.unwrap_or(0),
                md5: expected.md5,
                open: self.open_file(id, &revision, name, expected),
            }
        };
        let files = stubs.iter().map(file).collect();
        let mut body = read.body;
        if let Some(object) = body.as_object_mut() {
            object.extend(read.replication_state);
        }
        Ok(Transfer { id: id.clone(), revisions, deleted: read.deleted, body, files, byte_count })
    }

    /// Writes a document with its files, streamed as one `multipart/related` request. Returns false, without writing,
    /// if a file no longer exists at the source.
    fn put_with_files(&self, transfer: Transfer) -> stemmadb::Result<bool> {
        let boundary = uuid::Uuid::new_v4().simple().to_string();
        let path = format!("/{}?new_edits=false", encode_id(transfer.id.as_str()));
        let json = document_json(&transfer).to_json();
        let first = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n{json}");
        let head = |file: &TransferFile| format!("\r\n--{boundary}\r\nContent-Length: {}\r\n\r\n", file.length);
        let last = format!("\r\n--{boundary}--");
        let heads: Vec<String> = transfer.files.iter().map(head).collect();
        let lengths: u64 = transfer.files.iter().zip(&heads).map(|(file, head)| file.length + head.len() as u64).sum();
        let length = first.len() as u64 + lengths + last.len() as u64;
        let (sender, from) = mpsc::channel(4);
        let files = transfer.files;
        // A flag instead of the task's result: a server that responds early and stops reading would block the task, and
        // the wait for its result.
        let is_gone = Arc::new(AtomicBool::new(false));
        let gone_flag = is_gone.clone();
        self.runtime.handle().spawn_blocking(move || {
            let sent = send_parts(&sender, first, heads.into_iter().zip(files), last);
            let why = match sent {
                Ok(true) => return,
                Ok(false) => {
                    gone_flag.store(true, Ordering::SeqCst);
                    "a file is gone".to_owned()
                }
                Err(error) => error.to_string(),
            };
            // Without this error the body would look complete.
            sender.blocking_send(Err(io::Error::other(why))).ok();
        });
        let content_type = format!("multipart/related; boundary=\"{boundary}\"");
        let body = Body::Chunks { from, length: Some(length) };
        self.wait_for(async {
            // Long enough for any files: the server detects a stalled upload.
            let timeout = Duration::from_secs(24 * 3600);
            let answered = async {
                self.read_response(self.send(Method::PUT, &path, Some(&content_type), body, timeout).await?).await
            };
            match answered.await {
                Ok(_) => Ok(true),
                Err(_) if is_gone.load(Ordering::SeqCst) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }
}

/// Sends all parts. Returns false if a file no longer exists at the source.
fn send_parts(
    sender: &mpsc::Sender<io::Result<Bytes>>,
    first: String,
    files: impl Iterator<Item = (String, TransferFile)>,
    last: String,
) -> stemmadb::Result<bool> {
    let gone = |_| unavailable("the connection is gone");
    sender.blocking_send(Ok(first.into())).map_err(gone)?;
    for (head, file) in files {
        sender.blocking_send(Ok(head.into())).map_err(gone)?;
        let Some(mut content) = (file.open)()? else { return Ok(false) };
        loop {
            let mut piece = vec![0; 64 << 10];
            let count = content.read(&mut piece).map_err(unavailable)?;
            if count == 0 {
                break;
            }
            piece.truncate(count);
            sender.blocking_send(Ok(piece.into())).map_err(gone)?;
        }
    }
    sender.blocking_send(Ok(last.into())).map_err(gone).map(|()| true)
}

/// Takes the array in the field `name` out of an object. Returns an empty one if there is none.
fn take_array(value: Value, name: &str) -> Vec<Value> {
    let Value::Object(mut object) = value else { return Vec::new() };
    match object.remove(name) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// Takes the document out of a row of a `_bulk_get` response, without copying it. Returns `None` if the revision no
/// longer exists; the feed then has its successor.
///
/// # Errors
/// The row, if the revision can't be read. Skipping such a revision would lose it.
fn parse_document(mut answer: Value) -> std::result::Result<Option<Value>, String> {
    if let Some(document) = answer.as_object_mut().and_then(|answer| answer.remove("ok")) {
        return Ok(Some(document));
    }
    match answer.get("error").and_then(|error| error.get("error")?.as_str()) {
        Some("not_found") => Ok(None),
        _ => Err(answer.to_json().chars().take(ERROR_CHARACTERS_MAX).collect()),
    }
}

fn single(name: &str, value: Value) -> Value {
    Value::Object([(name, value)].into_iter().collect())
}

fn revision_texts(revisions: &[Revision]) -> Value {
    Value::Array(revisions.iter().map(|revision| Value::from(revision.to_string())).collect())
}

/// The JSON of a document for `_bulk_docs` and `PUT` with `new_edits=false`.
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
            let mut stub = Object::new();
            stub.insert("content_type", file.content_type.as_str());
            stub.insert("revpos", file.generation);
            stub.insert("length", file.length);
            stub.insert("follows", true);
            files.insert(&file.name, stub);
        }
        object.insert("_attachments", files);
    }
    object.extend(transfer.body.as_object().into_iter().flatten().map(|(name, value)| (name, value.clone())));
    object.into()
}

impl<C: Connect + Clone + Send + Sync + 'static> Peer for HttpPeer<C> {
    fn identity(&self) -> stemmadb::Result<String> {
        Ok(self.url.clone())
    }

    fn database_id(&self) -> stemmadb::Result<String> {
        let response = self.request_json(Method::GET, "", None, self.limits.stall_timeout)?;
        let text = |name: &str| response.get(name).and_then(Value::as_str);
        // Servers other than Stemma return at most the time of creation.
        Ok(text("uuid")
            .map_or_else(|| format!("{}#{}", self.url, text("instance_start_time").unwrap_or("0")), str::to_owned))
    }

    fn get_checkpoint(&self, id: &str) -> stemmadb::Result<Option<Value>> {
        match self.request_json(Method::GET, &format!("/{}", encode_id(id)), None, self.limits.stall_timeout) {
            Err(error) if error.kind() == stemmadb::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(JsonResponse { value: mut body, .. }) => {
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
        self.request_json(
            Method::POST,
            "/_ensure_full_commit",
            Some(&Object::new().into()),
            self.limits.stall_timeout,
        )?;
        let mut body = body.clone();
        let known = self.checkpoints.lock().iter().find(|(known, _)| known == id).map(|(_, revision)| revision.clone());
        if let (Some(object), Some(revision)) = (body.as_object_mut(), known) {
            object.insert("_rev", revision);
        }
        let response =
            self.request_json(Method::PUT, &format!("/{}", encode_id(id)), Some(&body), self.limits.stall_timeout)?;
        if let Some(revision) = response.get("rev").and_then(Value::as_str) {
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
        let response = self.feed(
            &format!("&limit={count}&since={}", encode_segment(&since)),
            selection,
            self.limits.stall_timeout,
        )?;
        let malformed = || unavailable(format!("{} returns a malformed changes feed", self.url));
        let rows = response.get("results").and_then(Value::as_array).ok_or_else(malformed)?;
        let mut leaves = Vec::with_capacity(rows.len());
        for row in rows {
            let id = row.get("id").and_then(Value::as_str).ok_or_else(malformed)?;
            let changes = row.get("changes").and_then(Value::as_array).ok_or_else(malformed)?;
            let revision = |change: &Value| {
                let text = change.get("rev").and_then(Value::as_str).ok_or_else(malformed)?;
                parse_revision(text).map_err(|failure| library_error(&failure))
            };
            let revisions = changes.iter().map(revision).collect::<stemmadb::Result<_>>()?;
            leaves.push(DocumentLeaves { id: DocumentId::new(id)?, revisions });
        }
        let is_last = leaves.len() < count;
        let position = response.get("last_seq").cloned().ok_or_else(malformed)?;
        let pending_count = response.get("pending").and_then(Value::as_u64);
        Ok(ChangesPage { leaves, position, is_last, pending_count })
    }

    fn filter_code(&self, name: &str, parameters: &[(String, String)]) -> stemmadb::Result<String> {
        let view = parameters.iter().find(|(name, _)| name == "view").map_or("", |(_, view)| view.as_str());
        let (name, members) = if name == "_view" { (view, "views") } else { (name, "filters") };
        let Some((design, function)) = name.split_once('/') else { return Ok(String::new()) };
        let path = format!("/_design/{}", encode_segment(design));
        let design = self.request_json(Method::GET, &path, None, self.limits.stall_timeout)?;
        let function = design.get(members).and_then(|functions| functions.get(function));
        Ok(function.map(Value::to_json).unwrap_or_default())
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> stemmadb::Result<Vec<MissingRevisions>> {
        let body: Object =
            leaves.iter().map(|leaves| (leaves.id.as_str(), revision_texts(&leaves.revisions))).collect();
        let response = self.request_json(Method::POST, "/_revs_diff", Some(&body.into()), self.limits.stall_timeout)?;
        let malformed = || unavailable(format!("{} returns a malformed list of missing revisions", self.url));
        let list = |value: Option<&Value>| {
            let texts = value.and_then(Value::as_array).unwrap_or_default().iter();
            texts.map(|text| text.as_str()?.parse().ok()).collect::<Option<Vec<Revision>>>().ok_or_else(malformed)
        };
        let wanted = response.as_object().ok_or_else(malformed)?.iter().map(|(id, difference)| {
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
        let parameters = format!(
            "&feed=longpoll&limit=1&timeout={}&since={}",
            timeout.as_millis(),
            encode_segment(&sequence_text(since))
        );
        self.feed(&parameters, &ReplicationScope::All, timeout + self.limits.stall_timeout).map(|_| ())
    }
}

/// A position as text for a URL.
pub(crate) fn sequence_text(position: &Value) -> String {
    position.as_str().map_or_else(|| position.to_json(), str::to_owned)
}
