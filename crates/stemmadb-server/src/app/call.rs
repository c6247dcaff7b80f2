//! One request, with what was found out about it before its handler runs.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use stemmadb::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::State;
use crate::accounts::{Claim, SessionCheck};
use crate::auth::{Route, User};
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::{
    BodyTimeout, JsonPurpose, MemoryReservation, Parameters, Query, inflated, read_all, read_json_within,
};

/// One request.
pub(crate) struct Call {
    pub(crate) state: Arc<State>,
    pub(crate) parts: Parts,
    pub(crate) route: &'static Route,
    pub(crate) parameters: Parameters,
    pub(crate) query: Query,
    pub(crate) user: User,
    /// By what it is known that it is that user.
    pub(crate) claim: Claim,
    pub(crate) body: Option<Incoming>,
    /// The memory that its body takes.
    pub(crate) reservation: Arc<MemoryReservation>,
}

impl Call {
    /// What the parameter `name` of the route stands for.
    pub(crate) fn parameter(&self, name: &str) -> Result<&str> {
        self.parameters.get(name).ok_or_else(|| Failure::internal(format!("the route has no {name}")))
    }

    /// The database that the path names.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn database(&self) -> Result<Arc<Served>> {
        self.state.directory.open_served(self.parameter("db")?).await
    }

    /// Checks repeatedly whether the client may still use the route.
    pub(crate) fn session_check(&self) -> SessionCheck {
        SessionCheck {
            authenticator: self.state.authenticator.clone(),
            directory: self.state.directory.clone(),
            claim: self.claim.clone(),
            route: self.route,
            parameters: self.parameters.clone(),
        }
    }

    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The whole body.
    ///
    /// # Errors
    /// 413 if it is larger than is taken; 408 if it stands still; 503 if there is no room for it for long.
    pub(crate) async fn bytes(&mut self) -> Result<Bytes> {
        self.bytes_up_to(self.state.config.limits.body_bytes).await
    }

    /// The same of a body that is never longer than this.
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
            Some("gzip") if !bytes.is_empty() => inflated(&bytes, bytes_max, &self.reservation).await,
            _ => Ok(bytes),
        }
    }

    /// Waits for a permit to store a body as it arrives, which occupies a thread. There are fewer permits than threads, so that slow senders
    /// leave some threads for other requests.
    pub(crate) async fn upload_permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.state.uploads.clone().acquire_owned().await;
        permit.map_err(|_| Failure::internal("nothing is stored any more"))
    }

    /// The text of a body that is said to be JSON, or is empty.
    ///
    /// # Errors
    /// As [`Call::bytes`]; 415 if it says that it is something else.
    pub(crate) async fn json_text(&mut self) -> Result<Bytes> {
        let content_type = self.header("content-type").unwrap_or_default().to_ascii_lowercase();
        let bytes = self.bytes().await?;
        // What a page of another site can send without being asked: forms and plain text.
        if !bytes.is_empty() && !content_type.starts_with("application/json") {
            return Err(Failure::new(
                hyper::StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "bad_content_type",
                "Content-Type must be application/json",
            ));
        }
        Ok(bytes)
    }

    /// The body as JSON, a question; none if it is empty.
    ///
    /// # Errors
    /// As [`Call::json_text`]; 400 if it is none, 413 if it would take far more memory than it is long.
    pub(crate) async fn json_if_any(&mut self) -> Result<Option<Value>> {
        let text = self.json_text().await?;
        if text.is_empty() { Ok(None) } else { self.parsed(&text, JsonPurpose::Parameters).await.map(Some) }
    }

    /// The body as JSON, a question.
    ///
    /// # Errors
    /// As [`Call::json_if_any`]; 400 if it is empty.
    pub(crate) async fn json(&mut self) -> Result<Value> {
        let text = self.json_text().await?;
        self.parsed(&text, JsonPurpose::Parameters).await
    }

    /// The body as JSON that is a document, or has some.
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
