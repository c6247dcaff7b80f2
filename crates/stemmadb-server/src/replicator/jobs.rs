//! Replication jobs: each is a task, which has a thread while it copies, and none while it waits for changes or for the
//! next attempt after a failure, with exponential backoff.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::Method;
use parking_lot::Mutex;
use stemmadb::replication::{Peer, RunningReplication};
use stemmadb::{Cancellation, Durability, ErrorKind, Replication, ReplicationStats, Sequence, Value};
use stemmadb_http::runtime::BlockingRuntime;
use stemmadb_http::url::encode_segment;
use stemmadb_http::{HttpPeer, SigningKey, library_error};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};

use super::conflicts::{ConflictDefinition, ConflictRules};
use super::local::{LocalPeer, document_changes};
use super::request::{Endpoint, ReplicationRequest};
use super::virtual_peer::VirtualPeer;
use super::{STALL_TIMEOUT, peer_limits};
use crate::auth::User;
use crate::design::WriteValidator;
use crate::directory::{Directory, Place};
use crate::error::{Failure, Result};
use crate::http::{MemoryBudget, server_runtime};
use crate::outbound::OutboundClient;
use crate::script::Scripts;
use crate::virtual_databases::VirtualDatabases;
use crate::writes::WriteOptions;

/// The timeout of one wait for changes of the source.
const WAIT: Duration = Duration::from_secs(30);
/// The number of events kept per job.
const HISTORY_COUNT: usize = 20;
/// The maximum number of jobs at the same time. One that waits for changes takes a few kilobytes.
const JOBS_MAX: usize = 20_000;
/// The most threads of jobs, each of which copies.
pub(crate) const JOB_THREADS_MAX: usize = 256;

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
    /// Why a database did not get the conflict rule.
    pub(crate) rule_error: Option<String>,
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
    /// The sequence of a local source up to which the target has everything durably.
    confirmed: watch::Sender<Sequence>,
    ended: watch::Sender<bool>,
}

/// The parts of the server that jobs use.
pub(crate) struct JobContext {
    pub(crate) directory: Arc<Directory>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) outbound: Arc<OutboundClient>,
    pub(crate) conflict_rules: Arc<ConflictRules>,
    pub(crate) virtual_databases: Arc<VirtualDatabases>,
    /// The memory budget of bodies, which responses of other servers are charged to as well.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The largest JSON body, in bytes.
    pub(crate) body_bytes_max: usize,
    pub(crate) durability: Durability,
    /// The key that signs requests to other servers, if a replication asks for it.
    pub(crate) signing_key: Arc<SigningKey>,
    /// The header by which other servers of the cluster recognize this one.
    pub(crate) server_seal: (String, String),
    /// Permits for threads of jobs.
    pub(crate) threads: Semaphore,
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
            confirmed: watch::channel(Sequence::ZERO).0,
            ended: watch::channel(false).0,
        }
    }

    /// Returns the current status.
    pub(crate) fn status(&self) -> JobStatus {
        self.status.lock().clone()
    }

    /// A receiver of the sequence of a local source up to which the target has everything durably.
    pub(super) fn confirmed(&self) -> watch::Receiver<Sequence> {
        self.confirmed.subscribe()
    }

    /// Waits until the job has ended.
    pub(crate) async fn ended(&self) -> JobStatus {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended).await.ok();
        self.status()
    }

    fn begin_attempt(&self) {
        let mut status = self.status.lock();
        status.record("started", None);
        status.state = "running";
        status.retry_at = None;
        // Until the attempt knows better, as much is pending as before.
        let pending_count = status.done.pending_count;
        status.done = ReplicationStats { pending_count, ..ReplicationStats::default() };
    }

    /// Records that the target has everything, or that it may lack what changed from now on.
    fn set_caught_up(&self, is_caught_up: bool) {
        let mut status = self.status.lock();
        status.is_caught_up = is_caught_up;
        status.caught_up_at = Some(now());
    }

    /// Records a failure; returns whether the job ends with it, instead of trying again after `pause`.
    fn fails_for_good(&self, error: &stemmadb::Error, pause: Duration) -> bool {
        tracing::warn!(target: "stemma::replicator", job = self.id, "a replication failed: {}", error.message());
        let is_hopeless = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound);
        let is_over = error.kind() == ErrorKind::Internal
            || (!self.request.continuous && (self.owner == JobOwner::Request || is_hopeless));
        let reason = error_text(error);
        let mut status = self.status.lock();
        status.error = Some(reason.clone());
        status.error_count += 1;
        status.state = if is_over { "failed" } else { "crashing" };
        status.record("crashed", Some(reason));
        status.retry_at = (!is_over).then(|| status.history[0].time + pause.as_secs());
        is_over
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

    /// The key that signs requests to other servers.
    pub(crate) fn signing_key(&self) -> &SigningKey {
        &self.context.signing_key
    }

    /// The conflict rules of the server's databases.
    pub(crate) fn conflict_rules(&self) -> &Arc<ConflictRules> {
        &self.context.conflict_rules
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
        // The requests of clients that ended; not at each start, because there may be many jobs.
        if job.owner == JobOwner::Request || jobs.len() >= JOBS_MAX {
            jobs.retain(|_, job| !*job.ended.borrow() || job.owner != JobOwner::Request);
        }
        if jobs.len() >= JOBS_MAX {
            let reason = format!("there are {JOBS_MAX} replications already");
            return Err(Failure::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        server_runtime().spawn(drive(self.context.clone(), job.clone()));
        jobs.insert(job.id.clone(), job.clone());
        Ok(job)
    }

    /// The server of the cluster that should run a replication: the one that has its source or else its target; none
    /// if that is this one.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) async fn other_runner(&self, request: &ReplicationRequest) -> Result<Option<String>> {
        let directory = &self.context.directory;
        let local = [&request.source, &request.target].into_iter().find_map(|side| match side {
            Endpoint::Local(name) => Some(name),
            Endpoint::Remote { .. } => None,
        });
        match local {
            Some(name) => directory.other_owner(name).await,
            None => Ok(directory.other_member_for(&request.id())),
        }
    }

    /// Cancels a job. Returns whether it existed.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let job = self.by_id.lock().remove(id);
        job.is_some_and(|job| {
            job.cancel();
            true
        })
    }

    /// Cancels the jobs that documents of `_replicator` requested: one of them, or all.
    pub(super) fn cancel_document_jobs(&self, document: Option<&str>) {
        let is_owned = |job: &Job| match (&job.owner, document) {
            (JobOwner::Document(id), Some(document)) => id == document,
            (JobOwner::Document(_), None) => true,
            _ => false,
        };
        let cancelled: Vec<Arc<Job>> = {
            let mut jobs = self.by_id.lock();
            jobs.extract_if(.., |_, job| is_owned(job)).map(|(_, job)| job).collect()
        };
        cancelled.iter().for_each(|job| job.cancel());
    }

    /// The job that runs a replication for this owner, if there is one.
    pub(super) fn find(&self, request: &ReplicationRequest, owner: &JobOwner) -> Option<Arc<Job>> {
        self.by_id.lock().get(&owner.job_id(request)).filter(|job| job.request == *request).cloned()
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

/// Runs a job to its end. It has a thread only while it copies.
async fn drive(context: Arc<JobContext>, job: Arc<Job>) {
    let (mut pause, mut active) = (context.retry_wait, None);
    let mut cancelled = job.cancelled.subscribe();
    loop {
        let is_new_attempt = active.is_none();
        if is_new_attempt {
            job.begin_attempt();
        }
        let caught_up = on_thread(&context, &job, active.take()).await;
        let ended = match caught_up {
            Ok(_) if !job.request.continuous => Ok(()),
            Ok(caught_up) => {
                job.set_caught_up(true);
                let waited = tokio::select! {
                    waited = caught_up.wait() => waited,
                    _ = cancelled.wait_for(|cancelled| *cancelled) => {
                        Err(stemmadb::Error::stopped("the replication was cancelled"))
                    }
                };
                job.set_caught_up(false);
                match waited {
                    Ok(()) => {
                        active = Some(caught_up);
                        continue;
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
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
        if job.fails_for_good(&error, pause) {
            break;
        }
        // Cancelling the job interrupts the pause.
        tokio::time::timeout(pause, cancelled.wait_for(|cancelled| *cancelled)).await.ok();
        pause = (pause * 2).min(context.retry_wait_max);
    }
    job.ended.send_replace(true);
}

/// Catches up on a thread of its own, once one of the permitted threads is free.
async fn on_thread(
    context: &Arc<JobContext>,
    job: &Arc<Job>,
    active: Option<ActiveReplication>,
) -> stemmadb::Result<ActiveReplication> {
    let mut cancelled = job.cancelled.subscribe();
    let _permit = tokio::select! {
        permit = context.threads.acquire() => permit.ok(),
        _ = cancelled.wait_for(|cancelled| *cancelled) => {
            return Err(stemmadb::Error::stopped("the replication was cancelled"));
        }
    };
    let (sender, caught_up) = oneshot::channel();
    let (context, running_job, runtime) = (context.clone(), job.clone(), Handle::current());
    let thread = std::thread::Builder::new().name(format!("replicate-{}", &job.id[..8]));
    let spawned = thread.spawn(move || {
        let _entered = runtime.enter();
        let work = || catch_up(&context, &running_job, &runtime, active);
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(stemmadb::Error::internal("the replication panicked: the server's stderr shows where"))
        });
        sender.send(result).ok();
    });
    spawned.map_err(|error| stemmadb::Error::unavailable(format!("a replication has no thread: {error}")))?;
    caught_up.await.unwrap_or_else(|_| Err(stemmadb::Error::internal("a replication's thread ended")))
}

/// The error of a failed replication. Clients recognize a missing database by its beginning.
fn error_text(error: &stemmadb::Error) -> String {
    let is_missing_database = error.message().ends_with(Failure::no_database().reason());
    format!("{}{}", if is_missing_database { "db_not_found: " } else { "" }, error.message())
}

/// A replication that has read its checkpoints, and waits for changes of its source between two runs.
struct ActiveReplication {
    running: RunningReplication<'static>,
    source: Side,
}

/// A database that is replicated.
#[derive(Clone)]
enum Side {
    Local(Arc<LocalPeer>),
    Virtual(Arc<VirtualPeer>),
    Remote(Arc<HttpPeer>),
}

impl Side {
    fn peer(&self) -> Arc<dyn Peer> {
        match self {
            Side::Local(local) => local.clone(),
            Side::Virtual(whole) => whole.clone(),
            Side::Remote(remote) => remote.clone(),
        }
    }
}

impl ActiveReplication {
    /// Reads the checkpoints. Blocks.
    fn begin(context: &JobContext, job: &Arc<Job>, runtime: &Handle) -> stemmadb::Result<Self> {
        let request = &job.request;
        let source = open_side(context, job, runtime, &request.source, false)?;
        let target = open_side(context, job, runtime, &request.target, request.create_target)?;
        set_conflict_rules(context, job, runtime)?;
        let mut replication = Replication::shared(source.peer(), target.peer())
            .only(request.selection.clone())
            .cancelled_by(&job.cancellation);
        if let Some(since) = &request.since {
            replication = replication.since(since.clone());
        }
        if let Some(count) = request.batch_count {
            replication = replication.batch(count);
        }
        let running = replication.begin()?;
        let (id, start_position) = (running.session_id().to_owned(), running.position().cloned());
        let started = now();
        job.status.lock().session = ReplicationSession { id, started, ended: started, start_position };
        Ok(ActiveReplication { running, source })
    }

    /// Waits until the source may have changes. Holds no thread.
    async fn wait(&self) -> stemmadb::Result<()> {
        match &self.source {
            Side::Local(local) => local.changed().await,
            Side::Virtual(whole) => whole.changed().await,
            Side::Remote(remote) => match self.running.position() {
                Some(position) => remote.changed(position, WAIT).await,
                None => Ok(()),
            },
        }
    }
}

/// Begins, or goes on, and copies everything that the target lacks. Blocks.
fn catch_up(
    context: &JobContext,
    job: &Arc<Job>,
    runtime: &Handle,
    active: Option<ActiveReplication>,
) -> stemmadb::Result<ActiveReplication> {
    let mut active = match active {
        Some(active) => active,
        None => ActiveReplication::begin(context, job, runtime)?,
    };
    let show = |stats: &ReplicationStats| {
        let mut status = job.status.lock();
        (status.done, status.session.ended) = (stats.clone(), now());
    };
    let caught_up = active.running.catch_up_showing(show).map(|_| ());
    {
        let mut status = job.status.lock();
        let stats = active.running.stats();
        let pending_count = stats.pending_count.or(status.done.pending_count);
        status.done = ReplicationStats { pending_count, ..stats.clone() };
        status.session.ended = now();
        if caught_up.is_ok() {
            status.error = None;
        }
    }
    caught_up?;
    if let (Side::Local(_), Some(position)) = (&active.source, active.running.position().and_then(Value::as_u64)) {
        job.confirmed.send_replace(Sequence::new(position));
    }
    Ok(active)
}

/// Gives both databases the conflict rule of the request. A server that has no conflict rules is named in the status;
/// the rule is then applied by the other database, whose results are replicated.
///
/// # Errors
/// Those that may pass.
fn set_conflict_rules(context: &JobContext, job: &Job, runtime: &Handle) -> stemmadb::Result<()> {
    let Some(definition) = &job.request.conflicts else { return Ok(()) };
    let mut refused = None;
    for endpoint in [&job.request.source, &job.request.target] {
        let set = match endpoint {
            Endpoint::Local(name) => match cluster_peer(context, job, runtime, name, false)? {
                Some(remote) => set_remote_rule(&remote, definition),
                None => runtime
                    .block_on(context.directory.open_database(name))
                    .and_then(|served| context.conflict_rules.define(&served, definition.clone()))
                    .map_err(|failure| library_error(&failure)),
            },
            Endpoint::Remote { .. } => set_remote_rule(&remote_peer(context, job, runtime, endpoint)?, definition),
        };
        match set {
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(error) => {
                refused = Some(format!("{} has no conflict rule: {}", endpoint.display_name(), error.message()));
            }
            Ok(()) => {}
        }
    }
    job.status.lock().rule_error = refused;
    Ok(())
}

fn set_remote_rule(remote: &HttpPeer, definition: &ConflictDefinition) -> stemmadb::Result<()> {
    let body = Value::from_serialize(&definition.shown())?;
    remote.request(Method::PUT, "/_conflict_rule", Some(&body), STALL_TIMEOUT).map(drop)
}

/// A database of another server of the cluster as a peer; none if it is on this one. Requests go to this server, which
/// knows where it is.
fn cluster_peer(
    context: &JobContext,
    job: &Job,
    runtime: &Handle,
    name: &str,
    create: bool,
) -> stemmadb::Result<Option<HttpPeer>> {
    let Some(address) = context.directory.own_address() else { return Ok(None) };
    let placed = runtime.block_on(context.directory.place(name, false, create));
    if let Place::Here(_) = placed.map_err(|failure| library_error(&failure))? {
        return Ok(None);
    }
    let url = format!("{address}/{}", encode_segment(name));
    let endpoint = Endpoint::Remote { url, headers: vec![context.server_seal.clone()], is_signed: false };
    remote_peer(context, job, runtime, &endpoint).map(Some)
}

/// A database on another server as a peer.
fn remote_peer(context: &JobContext, job: &Job, runtime: &Handle, endpoint: &Endpoint) -> stemmadb::Result<HttpPeer> {
    let Endpoint::Remote { url, headers, is_signed } = endpoint else {
        return Err(stemmadb::Error::internal("a local database is no remote peer"));
    };
    let (client, runtime) = (context.outbound.client.clone(), BlockingRuntime::Threaded(runtime.clone()));
    let limits = peer_limits(context.body_bytes_max, context.memory.clone());
    let peer = HttpPeer::with_client(client, url.clone(), headers.clone(), runtime, limits, job.cancelled.subscribe());
    Ok(peer.signed_by(is_signed.then(|| context.signing_key.clone())))
}

/// Opens one side of the replication. Blocks.
fn open_side(
    context: &JobContext,
    job: &Job,
    runtime: &Handle,
    endpoint: &Endpoint,
    create: bool,
) -> stemmadb::Result<Side> {
    let remote = match endpoint {
        Endpoint::Remote { .. } => Some(remote_peer(context, job, runtime, endpoint)?),
        Endpoint::Local(name) => cluster_peer(context, job, runtime, name, create)?,
    };
    if let Some(remote) = remote {
        if create {
            remote.create()?;
        }
        return Ok(Side::Remote(Arc::new(remote)));
    }
    match endpoint {
        Endpoint::Remote { .. } => Err(stemmadb::Error::internal("a remote database was not opened")),
        Endpoint::Local(name) => {
            let is_of_whole = context.directory.is_virtual(name);
            let user = User { roles: vec![crate::auth::ADMIN_ROLE.to_owned()], ..User::default() };
            let validator = WriteValidator { user, scripts: context.scripts.clone(), restriction: None, is_of_whole };
            let options = WriteOptions { validator, new_edits: false, durability: context.durability };
            if is_of_whole {
                let (databases, cancelled) = (context.virtual_databases.clone(), job.cancelled.subscribe());
                let whole = VirtualPeer::open(databases, name, options, runtime.clone(), cancelled);
                return Ok(Side::Virtual(Arc::new(whole.map_err(|failure| library_error(&failure))?)));
            }
            let opened = runtime.block_on(async {
                if create && !context.directory.contains(name) {
                    context.directory.create(name).await?;
                }
                context.directory.open_database(name).await
            });
            let served = opened.map_err(|failure| library_error(&failure))?;
            let published = Mutex::new(document_changes(&served));
            let (runtime, cancelled) = (BlockingRuntime::Threaded(runtime.clone()), job.cancelled.subscribe());
            Ok(Side::Local(Arc::new(LocalPeer { served, options, runtime, cancelled, published })))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a client that waited for a panicked job used to wait forever.
    #[test]
    fn panicked_job_has_ended_and_failed() {
        let body = stemmadb::Value::parse(r#"{"source": "db", "target": "copy", "continuous": true}"#).unwrap();
        let job = Job::new(ReplicationRequest::parse(&body).unwrap(), JobOwner::Request);
        let error = stemmadb::Error::internal("the replication panicked: the server's stderr shows where");
        assert!(job.fails_for_good(&error, Duration::ZERO));
        let status = job.status();
        assert_eq!((status.state, status.history[0].what), ("failed", "crashed"));
        assert!(status.error.is_some_and(|error| error.contains("panicked")));
    }
}
