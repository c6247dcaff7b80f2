//! One request, with what was found out about it before its handler runs.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use stemmadb::Value;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::body::{Patience, inflated, read_all, read_json_within};
use super::room::{Room, Share};
use super::{Crowd, Parameters, Purpose, Query};
use crate::auth::{Auth, Claim, Standing, User};
use crate::config::Config;
use crate::connections::Connections;
use crate::directory::{Directory, Served};
use crate::error::{Failure, Result};
use crate::handlers::dashboard::Dashboard;
use crate::metrics::Metrics;
use crate::replicator::{Jobs, Reach};
use crate::routes::Route;
use crate::script::Scripts;
use crate::settings::Live;

/// Bodies that are stored as they arrive, at once; more wait. A quarter of the blocking pool's threads.
pub(crate) const UPLOADS_MAX: usize = 128;

/// What all requests share.
pub(crate) struct State {
    /// As the server was started, with the address that it has.
    pub(crate) config: Config,
    /// As it is in force, with what was changed since.
    pub(crate) live: Arc<Live>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) auth: Auth,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) jobs: Jobs,
    pub(crate) reach: Reach,
    pub(crate) connections: Arc<Connections>,
    pub(crate) dashboard: Dashboard,
    pub(crate) started: Instant,
    /// Room for bodies that are held.
    pub(crate) room: Arc<Room>,
    /// Places for bodies that are stored as they arrive.
    pub(crate) uploads: Arc<Semaphore>,
    /// Places for watches.
    pub(crate) watches: Arc<Semaphore>,
    /// Becomes true when the server is told to stop.
    pub(crate) stopping: watch::Receiver<bool>,
}

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
    /// What its body takes.
    pub(crate) share: Arc<Share>,
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

    /// What tells when whoever asked may not go on any more.
    pub(crate) fn standing(&self) -> Standing {
        let (claim, parameters) = (self.claim.clone(), self.parameters.clone());
        Standing { state: self.state.clone(), claim, route: self.route, parameters }
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
        let patience = Patience::with_sender(self.state.config.limits.stall_timeout);
        let bytes = match self.body.take() {
            Some(body) => read_all(body, bytes_max, patience, Some(&self.share)).await?,
            None => return Ok(Bytes::new()),
        };
        match self.header("content-encoding") {
            Some("gzip") if !bytes.is_empty() => inflated(&bytes, bytes_max, &self.share).await,
            _ => Ok(bytes),
        }
    }

    /// A place for a body that is stored as it arrives, which takes a thread: there are fewer than threads, so that slow senders leave some
    /// for others. Waits for one.
    pub(crate) async fn place_for_upload(&self) -> Result<OwnedSemaphorePermit> {
        let place = self.state.uploads.clone().acquire_owned().await;
        place.map_err(|_| Failure::internal("nothing is stored any more"))
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
        if text.is_empty() { Ok(None) } else { self.parsed(&text, Purpose::Question).await.map(Some) }
    }

    /// The body as JSON, a question.
    ///
    /// # Errors
    /// As [`Call::json_if_any`]; 400 if it is empty.
    pub(crate) async fn json(&mut self) -> Result<Value> {
        let text = self.json_text().await?;
        self.parsed(&text, Purpose::Question).await
    }

    /// The body as JSON that is a document, or has some.
    ///
    /// # Errors
    /// As [`Call::json`].
    pub(crate) async fn document(&mut self) -> Result<Value> {
        let text = self.json_text().await?;
        self.parsed(&text, Purpose::Documents).await
    }

    async fn parsed(&self, text: &[u8], purpose: Purpose) -> Result<Value> {
        read_json_within(text, purpose, &self.share).await
    }
}

/// Those who are at [`reading`] in this process.
static READERS: LazyLock<Crowd> = LazyLock::new(Crowd::default);

/// Runs a read that is a few look-ups as a rule, and may be long. Who reads alone does it on this thread, whose other work goes on elsewhere
/// meanwhile: to wake another thread and to be woken by it takes longer than most reads. Who comes while others read goes to the blocking pool.
pub(crate) async fn reading<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let reader = READERS.join();
    if reader.is_alone && may_step_aside() { tokio::task::block_in_place(work) } else { blocking(work).await }
}

/// Whether the runtime has other threads for what this one leaves.
pub(crate) fn may_step_aside() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Runs what may wait for the disk, or take longer than a point read, where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let share = Share::of_request();
    let work = move || {
        let _held = share;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Failure::internal(format!("a handler failed: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_read_holds_nobody_up() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (tell, told) = mpsc::channel();
            // It ends when another task of the only worker has run.
            let long = tokio::spawn(reading(move || Ok(told.recv_timeout(Duration::from_secs(60)).is_ok())));
            let beside = tokio::spawn(async move { reading(|| Ok(2)).await });
            assert_eq!(beside.await.unwrap().unwrap(), 2);
            tokio::spawn(async move { tell.send(()) }).await.unwrap().unwrap();
            assert!(long.await.unwrap().unwrap());
        });
    }
}
