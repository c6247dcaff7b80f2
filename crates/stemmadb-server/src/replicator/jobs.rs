//! Replication jobs: each runs on its own thread and is retried with exponential backoff.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use stemmadb::replication::Peer;
use stemmadb::{Cancellation, Durability, ErrorKind, Replication, ReplicationStats, Value};
use stemmadb_http::runtime::BlockingRuntime;
use stemmadb_http::{HttpPeer, library_error};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::local::LocalPeer;
use super::peer_limits;
use super::request::{Endpoint, ReplicationRequest};
use crate::auth::User;
use crate::design::WriteValidator;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::{MemoryBudget, server_runtime};
use crate::outbound::OutboundClient;
use crate::script::Scripts;
use crate::writes::WriteOptions;

/// The timeout of one wait for changes of the source.
const WAIT: Duration = Duration::from_secs(30);
/// The number of events kept per job.
const HISTORY_COUNT: usize = 20;
/// The maximum number of jobs at the same time; each has a thread.
const JOBS_MAX: usize = 500;

/// The origin of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobOwner {
    /// A client's request to `_replicate`.
    Request,
    /// A document of `_replicator`.
    Document(String),
    /// A topology, by its name.
    Topology(String),
}

impl JobOwner {
    /// The id of the job that runs a replication for this owner. Equal requests of clients share a job.
    fn job_id(&self, request: &ReplicationRequest) -> String {
        match self {
            JobOwner::Request | JobOwner::Document(_) => request.id(),
            JobOwner::Topology(name) => format!("{}-{name}", request.id()),
        }
    }
}

/// The progress and state of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobStatus {
    pub(crate) done: ReplicationStats,
    /// The last attempt.
    pub(crate) session: ReplicationSession,
    /// `running`, `crashing`, `completed` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) error_count: u64,
    /// The time of the next attempt, in seconds since 1970, while the job waits for it.
    pub(crate) retry_at: Option<u64>,
    /// Whether the target had everything when this was last checked, and the job waits for changes.
    pub(crate) is_caught_up: bool,
    /// When the target last had everything, in seconds since 1970.
    pub(crate) caught_up_at: Option<u64>,
    /// Past events, newest first.
    pub(crate) history: Vec<JobEvent>,
}

/// An attempt to replicate.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplicationSession {
    pub(crate) id: String,
    /// In seconds since 1970.
    pub(crate) started: u64,
    /// In seconds since 1970.
    pub(crate) ended: u64,
    /// The position of the source at which it started.
    pub(crate) start_position: Option<Value>,
}

/// An event in the history of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobEvent {
    /// In seconds since 1970.
    pub(crate) time: u64,
    pub(crate) what: &'static str,
    /// The error, if the job crashed.
    pub(crate) reason: Option<String>,
}

impl JobStatus {
    /// When it last changed, in seconds since 1970.
    pub(crate) fn updated(&self) -> u64 {
        self.history.first().map_or(0, |event| event.time).max(self.session.ended)
    }

    /// Whether the last attempt made progress.
    fn made_progress(&self) -> bool {
        self.error.is_none() || self.done.written_count > 0
    }

    fn record(&mut self, what: &'static str, reason: Option<String>) {
        self.history.insert(0, JobEvent { time: now(), what, reason });
        self.history.truncate(HISTORY_COUNT);
    }
}

/// A replication job.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) request: ReplicationRequest,
    pub(crate) owner: JobOwner,
    pub(crate) started: u64,
    status: Mutex<JobStatus>,
    cancellation: Cancellation,
    cancelled: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

/// The parts of the server that jobs use.
pub(crate) struct JobContext {
    pub(crate) directory: Arc<Directory>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) outbound: Arc<OutboundClient>,
    /// The memory budget of bodies, which responses of other servers are charged to as well.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The largest JSON body, in bytes.
    pub(crate) body_bytes_max: usize,
    pub(crate) durability: Durability,
    pub(crate) retry_wait: Duration,
    pub(crate) retry_wait_max: Duration,
    /// Becomes true when the server stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The jobs of a server.
pub(crate) struct Jobs {
    pub(super) context: Arc<JobContext>,
    by_id: Mutex<BTreeMap<String, Arc<Job>>>,
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Job {
    fn new(request: ReplicationRequest, owner: JobOwner) -> Self {
        let mut status = JobStatus { state: "running", ..JobStatus::default() };
        status.record("added", None);
        Job {
            id: owner.job_id(&request),
            request,
            owner,
            started: now(),
            status: Mutex::new(status),
            cancellation: Cancellation::new(),
            cancelled: watch::channel(false).0,
            ended: watch::channel(false).0,
        }
    }

    /// Returns the current status.
    pub(crate) fn status(&self) -> JobStatus {
        self.status.lock().clone()
    }

    /// Waits until the job has ended.
    pub(crate) async fn ended(&self) -> JobStatus {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended).await.ok();
        self.status()
    }

    /// Runs `work` and marks the job as ended, even if `work` panics, so that waiting tasks are always woken.
    fn run_to_end(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let mut status = self.status.lock();
            status.state = "failed";
            let reason = "the replication panicked: the server's stderr shows where";
            status.error = Some(reason.to_owned());
            status.record("crashed", Some(reason.to_owned()));
        }
        self.ended.send_replace(true);
    }

    fn cancel(&self) {
        self.cancellation.cancel();
        self.cancelled.send_replace(true);
    }

    fn record(&self, what: &'static str) {
        self.status.lock().record(what, None);
    }

    fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }
}

impl Jobs {
    /// Creates an empty set of jobs.
    pub(crate) fn new(context: JobContext) -> Self {
        Jobs { context: Arc::new(context), by_id: Mutex::default() }
    }

    /// Starts a replication, or returns the job that already runs it.
    ///
    /// # Errors
    /// 403 if the replicator may not connect to the source or the target; 503 if there are too many jobs.
    pub(crate) fn start(&self, request: ReplicationRequest, owner: JobOwner) -> Result<Arc<Job>> {
        for host in [&request.source, &request.target].into_iter().filter_map(|side| side.host()) {
            self.context.outbound.check(host)?;
        }
        let job = Arc::new(Job::new(request, owner));
        let mut jobs = self.by_id.lock();
        if let Some(existing) = jobs.get(&job.id).filter(|existing| !*existing.ended.borrow()) {
            return Ok(existing.clone());
        }
        jobs.retain(|_, job| !*job.ended.borrow() || job.owner != JobOwner::Request);
        if jobs.len() >= JOBS_MAX {
            let reason = format!("there are {JOBS_MAX} replications already");
            return Err(Failure::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        let (context, running_job, runtime) = (self.context.clone(), job.clone(), server_runtime());
        let thread = std::thread::Builder::new().name(format!("replicate-{}", &job.id[..8]));
        thread
            .spawn(move || running_job.run_to_end(|| drive(&context, &running_job, &runtime)))
            .map_err(|error| Failure::internal(format!("a replication has no thread: {error}")))?;
        jobs.insert(job.id.clone(), job.clone());
        Ok(job)
    }

    /// Cancels a job. Returns whether it existed.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let job = self.by_id.lock().remove(id);
        job.is_some_and(|job| {
            job.cancel();
            true
        })
    }

    /// Cancels the job that a document of `_replicator` requested.
    pub(super) fn cancel_document_job(&self, document: &str) {
        let owner = JobOwner::Document(document.to_owned());
        let owned = self.all().into_iter().filter(|job| job.owner == owner);
        owned.for_each(|job| {
            self.cancel(&job.id);
        });
    }

    /// Returns the number of jobs in each state.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for job in self.all() {
            *counts.entry(job.status.lock().state).or_default() += 1;
        }
        counts
    }

    /// Returns all jobs, including those that ended, ordered by id.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        self.by_id.lock().values().cloned().collect()
    }

    /// Cancels all jobs and waits until they end, at most until `deadline`. Blocks.
    pub(crate) fn stop(&self, runtime: &Handle, deadline: Instant) {
        let jobs = self.all();
        jobs.iter().for_each(|job| job.cancel());
        for job in jobs {
            let left = deadline.saturating_duration_since(Instant::now());
            runtime.block_on(async { tokio::time::timeout(left, job.ended()).await.ok() });
        }
    }
}

/// Runs a job to its end.
fn drive(context: &JobContext, job: &Arc<Job>, runtime: &Handle) {
    let mut pause = context.retry_wait;
    loop {
        job.record("started");
        {
            let mut status = job.status.lock();
            status.state = "running";
            status.retry_at = None;
            // Until the attempt knows better, as much is pending as before.
            let pending_count = status.done.pending_count;
            status.done = ReplicationStats { pending_count, ..ReplicationStats::default() };
        }
        let ended = attempt(context, job, runtime);
        // After an attempt that made progress the backoff starts over: this is a new failure, not a repeated one.
        if job.status.lock().made_progress() {
            pause = context.retry_wait;
        }
        let Err(error) = ended else {
            job.status.lock().state = "completed";
            job.record("completed");
            break;
        };
        if job.is_cancelled() {
            job.status.lock().state = "failed";
            job.record("cancelled");
            break;
        }
        tracing::warn!(target: "stemma::replicator", job = job.id, "a replication failed: {}", error.message());
        let is_hopeless = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound);
        let is_over = !job.request.continuous && (job.owner == JobOwner::Request || is_hopeless);
        let reason = error_text(&error);
        {
            let mut status = job.status.lock();
            status.error = Some(reason.clone());
            status.error_count += 1;
            status.state = if is_over { "failed" } else { "crashing" };
            status.record("crashed", Some(reason));
            status.retry_at = (!is_over).then(|| status.history[0].time + pause.as_secs());
        }
        if is_over {
            break;
        }
        let mut cancelled = job.cancelled.subscribe();
        // Cancelling the job interrupts the pause.
        runtime.block_on(async {
            tokio::time::timeout(pause, cancelled.wait_for(|cancelled| *cancelled)).await.ok().map(|_| ())
        });
        pause = (pause * 2).min(context.retry_wait_max);
    }
}

/// The error of a failed replication. Clients recognize a missing database by its beginning.
fn error_text(error: &stemmadb::Error) -> String {
    let is_missing_database = error.message().ends_with(Failure::no_database().reason());
    format!("{}{}", if is_missing_database { "db_not_found: " } else { "" }, error.message())
}

/// Replicates once, or, if the replication is continuous, until something fails.
fn attempt(context: &JobContext, job: &Arc<Job>, runtime: &Handle) -> stemmadb::Result<()> {
    let request = &job.request;
    let source = peer(context, job, runtime, &request.source, false)?;
    let target = peer(context, job, runtime, &request.target, request.create_target)?;
    let mut replication =
        Replication::new(&*source, &*target).only(request.selection.clone()).cancelled_by(&job.cancellation);
    if let Some(since) = &request.since {
        replication = replication.since(since.clone());
    }
    if let Some(count) = request.batch_count {
        replication = replication.batch(count);
    }
    let mut running = replication.begin()?;
    let (id, start_position) = (running.session_id().to_owned(), running.position().cloned());
    let started = now();
    job.status.lock().session = ReplicationSession { id, started, ended: started, start_position };
    loop {
        let show = |stats: &ReplicationStats| {
            let mut status = job.status.lock();
            (status.done, status.session.ended) = (stats.clone(), now());
        };
        let caught_up = running.catch_up_showing(show).map(|_| ());
        {
            let mut status = job.status.lock();
            let pending_count = running.stats().pending_count.or(status.done.pending_count);
            status.done = ReplicationStats { pending_count, ..running.stats().clone() };
            status.session.ended = now();
            if caught_up.is_ok() {
                status.error = None;
            }
        }
        caught_up?;
        if !request.continuous {
            return Ok(());
        }
        set_caught_up(job, true);
        let waited = running.wait(WAIT);
        set_caught_up(job, false);
        waited?;
    }
}

/// Records that the target has everything, or that it may lack what changed from now on.
fn set_caught_up(job: &Job, is_caught_up: bool) {
    let mut status = job.status.lock();
    status.is_caught_up = is_caught_up;
    status.caught_up_at = Some(now());
}

/// Opens one side of the replication as a peer.
fn peer(
    context: &JobContext,
    job: &Job,
    runtime: &Handle,
    endpoint: &Endpoint,
    create: bool,
) -> stemmadb::Result<Arc<dyn Peer>> {
    match endpoint {
        Endpoint::Remote { url, headers } => {
            let cancelled = job.cancelled.subscribe();
            let (client, runtime) = (context.outbound.client.clone(), BlockingRuntime::Threaded(runtime.clone()));
            let limits = peer_limits(context.body_bytes_max, context.memory.clone());
            let remote = HttpPeer::with_client(client, url.clone(), headers.clone(), runtime, limits, cancelled);
            if create {
                remote.create()?;
            }
            Ok(Arc::new(remote) as Arc<dyn Peer>)
        }
        Endpoint::Local(name) => {
            let opened = runtime.block_on(async {
                if create && !context.directory.contains(name) {
                    context.directory.create(name).await?;
                }
                context.directory.open_database(name).await
            });
            let served = opened.map_err(|failure| library_error(&failure))?;
            let user = User { roles: vec![crate::auth::ADMIN_ROLE.to_owned()], ..User::default() };
            let validator = WriteValidator { user, scripts: context.scripts.clone(), restriction: None };
            let options = WriteOptions { validator, new_edits: false, durability: context.durability };
            let published = Mutex::new(served.published());
            let (runtime, cancelled) = (BlockingRuntime::Threaded(runtime.clone()), job.cancelled.subscribe());
            Ok(Arc::new(LocalPeer { served, options, runtime, cancelled, published }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a client that waited for a panicked job used to wait forever.
    #[test]
    fn panicked_job_has_ended_and_failed() {
        let body = stemmadb::Value::parse(r#"{"source": "db", "target": "copy"}"#).unwrap();
        let job = Job::new(ReplicationRequest::parse(&body).unwrap(), JobOwner::Request);
        job.run_to_end(|| panic!("a bug"));
        let status = job.status();
        assert!(*job.ended.borrow());
        assert_eq!((status.state, status.history[0].what), ("failed", "crashed"));
        assert!(status.error.is_some_and(|error| error.contains("panicked")));
    }
}
