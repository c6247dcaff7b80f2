//! One request with its matched route, its authenticated user and its body: the argument of every handler.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, IF_MATCH, IF_NONE_MATCH, RANGE,
};
use hyper::http::request::Parts;
use stemmadb::past::At;
use stemmadb::{Sequence, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::ServerState;
use crate::accounts::{AuthProof, SessionCheck};
use crate::auth::{Restriction, Route, User};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{
    BodyTimeout, HttpResponse, JsonPurpose, MemoryReservation, Parameters, Query, RequestBody, decompress, read_all,
    read_json_within,
};
use crate::virtual_databases::{Databases, EnteredVirtual, FencedVirtual};

/// An asynchronous function that handles a request.
pub(crate) type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Result<HttpResponse>> + Send>>;

/// One request that was routed and authenticated.
pub(crate) struct Call {
    pub(crate) state: Arc<ServerState>,
    pub(crate) parts: Parts,
    pub(crate) route: &'static Route,
    pub(crate) parameters: Parameters,
    pub(crate) query: Query,
    pub(crate) user: User,
    /// The virtual database of the path, if it is one.
    pub(crate) virtual_database: Option<EnteredVirtual>,
    /// The part of the virtual database that the route is about, if it is about one.
    pub(crate) part: Option<Arc<ServedDatabase>>,
    /// The documents of the database that the user may read and write; `None`: all. Only routes that apply it are
    /// called with one.
    pub(crate) restriction: Option<Restriction>,
    /// Whether the user is one of a virtual database, and the request is about its shards or one of them.
    pub(crate) is_of_whole: bool,
    /// The credential that identified the user; long-lived requests check it again.
    pub(crate) proof: AuthProof,
    pub(crate) body: Option<RequestBody>,
    /// The memory reserved for the request's body.
    pub(crate) reservation: Arc<MemoryReservation>,
}

impl Call {
    /// The value of the path parameter `name`.
    ///
    /// # Errors
    /// 500 if the route has no such parameter.
    pub(crate) fn parameter(&self, name: &str) -> Result<&str> {
        self.parameters.get(name).ok_or_else(|| Failure::internal(format!("the route has no {name}")))
    }

    /// Opens the database that the path names, or what a virtual one stores itself.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(crate) async fn open_own(&self) -> Result<Arc<ServedDatabase>> {
        match &self.virtual_database {
            Some(entered) => Ok(entered.open.own.clone()),
            None => self.open_database().await,
        }
    }

    /// A JSON request of the same user, with other parameters of the path, and another query and body.
    pub(crate) fn derived(&self, method: Method, parameters: Parameters, query: Query, body: Option<Bytes>) -> Call {
        let mut parts = self.parts.clone();
        parts.method = method;
        // They are about the request's own answer.
        for name in [ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, IF_MATCH, IF_NONE_MATCH, RANGE] {
            parts.headers.remove(name);
        }
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Call {
            state: self.state.clone(),
            parts,
            route: self.route,
            parameters,
            query,
            user: self.user.clone(),
            virtual_database: None,
            part: None,
            restriction: self.restriction.clone(),
            is_of_whole: self.is_of_whole,
            proof: self.proof.clone(),
            body: Some(RequestBody::replaced(body.unwrap_or_default())),
            reservation: self.reservation.clone(),
        }
    }

    /// The point in the past as of which to read.
    ///
    /// # Errors
    /// 400 if the parameter `as_of` is malformed.
    pub(crate) fn as_of(&self) -> Result<Option<At>> {
        parse_as_of(&self.query)
    }

    /// Opens the database that the path names. For a virtual one, that is the part that the route is about: the shard
    /// of the document that the path names, or what it stores itself.
    ///
    /// # Errors
    /// 404 if it does not exist; 501 for a virtual database if the route is about all of its documents.
    pub(crate) async fn open_database(&self) -> Result<Arc<ServedDatabase>> {
        if let Some(part) = &self.part {
            return Ok(part.clone());
        }
        self.state.directory.open_database(self.parameter("db")?).await
    }

    /// As [`Call::open_database`], for a request that frees space: on a full disk, it may use the reserve.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(crate) async fn open_to_free_space(&self) -> Result<Arc<ServedDatabase>> {
        if self.virtual_database.is_some() || self.part.is_some() {
            return self.open_database().await;
        }
        self.state.directory.open_to_free_space(self.parameter("db")?).await
    }

    /// Opens the database that the path names, or the shards of a virtual one, for a request about several documents.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(crate) async fn open_databases(&mut self) -> Result<Databases> {
        match self.virtual_database.take() {
            Some(entered) => Ok(entered.into_databases()),
            None => Ok(Databases::one(self.open_database().await?)),
        }
    }

    /// The virtual database that the path names.
    ///
    /// # Errors
    /// 404 if it is not virtual.
    pub(crate) fn entered(&self) -> Result<&EnteredVirtual> {
        self.virtual_database.as_ref().ok_or_else(Failure::no_database)
    }

    /// The virtual database that the path names, as the library reads it.
    ///
    /// # Errors
    /// 404 if it is not virtual.
    pub(crate) fn take_reading(&mut self) -> Result<FencedVirtual> {
        self.virtual_database.take().map(EnteredVirtual::into_reading).ok_or_else(Failure::no_database)
    }

    /// A check that the client may still use the route, for requests that last long.
    pub(crate) fn session_check(&self) -> SessionCheck {
        SessionCheck {
            authenticator: self.state.authenticator.clone(),
            directory: self.state.directory.clone(),
            proof: self.proof.clone(),
            route: self.route,
            parameters: self.parameters.clone(),
            restriction: self.restriction.clone(),
        }
    }

    /// The value of a request header, if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the whole body, decompressing it if it is gzip.
    ///
    /// # Errors
    /// - 413 if it exceeds the body limit.
    /// - 408 if the client stops sending.
    /// - 503 if the memory budget stays exhausted.
    pub(crate) async fn bytes(&mut self) -> Result<Bytes> {
        self.bytes_up_to(self.state.settings.config().limits.body_bytes).await
    }

    /// Reads the whole body, which may have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// As [`Call::bytes`].
    pub(crate) async fn bytes_up_to(&mut self, bytes_max: usize) -> Result<Bytes> {
        let timeouts = BodyTimeout::for_client(self.state.config.limits.stall_timeout);
        let bytes = match self.body.take() {
            Some(body) => read_all(body, bytes_max, timeouts, Some(&self.reservation)).await?,
            None => return Ok(Bytes::new()),
        };
        match self.header("content-encoding") {
            Some("gzip") if !bytes.is_empty() => decompress(&bytes, bytes_max, &self.reservation).await,
            _ => Ok(bytes),
        }
    }

    /// Waits for a permit to stream the body to disk, which occupies a thread. There are fewer permits than threads, so
    /// that slow uploads leave threads for other requests.
    pub(crate) async fn upload_permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.state.uploads.clone().acquire_owned().await;
        permit.map_err(|_| Failure::internal("the server accepts no more uploads"))
    }

    /// Reads a body that is declared as JSON, or is empty, without parsing it.
    ///
    /// # Errors
    /// As [`Call::bytes`]; 415 if the `Content-Type` is not JSON.
    pub(crate) async fn json_text(&mut self) -> Result<Bytes> {
        let content_type = self.header("content-type").unwrap_or_default().to_ascii_lowercase();
        let bytes = self.bytes().await?;
        // Browsers send forms and plain text across sites without a CORS preflight, so those types are rejected.
        if !bytes.is_empty() && !content_type.starts_with("application/json") {
            return Err(Failure::new(
                hyper::StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "bad_content_type",
                "Content-Type must be application/json",
            ));
        }
        Ok(bytes)
    }

    /// Reads the body as JSON parameters; `None` if it is empty.
    ///
    /// # Errors
    /// As [`Call::json_text`]; 400 if it is not JSON; 413 if the parsed value would take far more memory than its text.
    pub(crate) async fn json_if_any(&mut self) -> Result<Option<Value>> {
        let text = self.json_text().await?;
        if text.is_empty() { Ok(None) } else { self.parsed(&text, JsonPurpose::Parameters).await.map(Some) }
    }

    /// Reads the body as JSON parameters.
    ///
    /// # Errors
    /// As [`Call::json_if_any`]; 400 if it is empty.
    pub(crate) async fn json(&mut self) -> Result<Value> {
        let text = self.json_text().await?;
        self.parsed(&text, JsonPurpose::Parameters).await
    }

    /// Reads the body as JSON that is a document or contains documents.
    ///
    /// # Errors
    /// As [`Call::json`].
    pub(crate) async fn document(&mut self) -> Result<Value> {
        let text = self.json_text().await?;
        self.parsed(&text, JsonPurpose::Documents).await
    }

    async fn parsed(&self, text: &[u8], purpose: JsonPurpose) -> Result<Value> {
        read_json_within(text, purpose, &self.reservation).await
    }
}

/// The point in the past as of which to read: a time, how long ago, or a sequence, also in the form of the changes
/// feed.
///
/// # Errors
/// 400 if the parameter `as_of` is none of these.
pub(crate) fn parse_as_of(query: &Query) -> Result<Option<At>> {
    let Some(text) = query.text("as_of") else { return Ok(None) };
    let at = text.parse().or_else(|error| {
        let sequence = text.split_once('-').and_then(|(number, _)| number.parse().ok());
        sequence.map(|sequence| At::Sequence(Sequence::new(sequence))).ok_or(error)
    });
    Ok(Some(at?))
}
