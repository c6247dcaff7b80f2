//! Jobs: each a replication on a thread of its own, tried again, less and less often, as long as it is wanted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use stemmadb::replication::Peer;
use stemmadb::{Cancellation, Durability, ErrorKind, Replication, ReplicationStats};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::connect::OutboundClient;
use super::local::Local;
use super::remote::{Remote, Shared, refused};
use super::request::{Endpoint, Request};
use super::runtime::JobRuntime;
use crate::auth::User;
use crate::design::WriteValidator;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::MemoryBudget;
use crate::script::Scripts;
use crate::writes::WriteOptions;

/// How long a job waits for the source at once.
const WAIT: Duration = Duration::from_secs(30);
/// Events of a job that are remembered.
const HISTORY_COUNT: usize = 20;
/// Jobs at once: each is a thread.
const JOBS_MAX: usize = 500;

/// Who wants a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Whoever asked `_replicate`.
    Request,
    /// A document of `_replicator`.
    Document(String),
}

/// How a job stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) done: ReplicationStats,
    /// `running`, `crashing`, `completed` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) error_count: u64,
    /// When it is tried again, in seconds since 1970, while it waits for that.
    pub(crate) retry_at: Option<u64>,
    /// What happened, newest first.
    pub(crate) history: Vec<Event>,
}

/// What happened to a job.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// In seconds since 1970.
    pub(crate) time: u64,
    pub(crate) what: &'static str,
    /// Why it crashed.
    pub(crate) reason: Option<String>,
}

impl Outcome {
    /// Whether the last attempt came to anything.
    fn got_on(&self) -> bool {
        self.error.is_none() || self.done.written_count > 0
    }

    fn note(&mut self, what: &'static str, reason: Option<String>) {
        self.history.insert(0, Event { time: now(), what, reason });
        self.history.truncate(HISTORY_COUNT);
    }
}

/// A replication that goes on.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) request: Request,
    pub(crate) owner: Owner,
    pub(crate) started: u64,
    outcome: Mutex<Outcome>,
    cancellation: Cancellation,
    cancelled: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

/// What jobs need of the server.
pub(crate) struct JobContext {
    pub(crate) directory: Arc<Directory>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) outbound: OutboundClient,
    /// The memory that bodies may take, of which responses of other servers take some.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The largest JSON body, in bytes.
    pub(crate) body_bytes_max: usize,
    pub(crate) durability: Durability,
    pub(crate) retry_wait: Duration,
    pub(crate) retry_wait_max: Duration,
    /// Becomes true when the server is told to stop.
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
    fn new(request: Request, owner: Owner) -> Self {
        let mut outcome = Outcome { state: "running", ..Outcome::default() };
        outcome.note("added", None);
        Job {
            id: request.id(),
            request,
            owner,
            started: now(),
            outcome: Mutex::new(outcome),
            cancellation: Cancellation::new(),
            cancelled: watch::channel(false).0,
            ended: watch::channel(false).0,
        }
    }

    /// How it stands now.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome.lock().clone()
    }

    /// JobRuntime for its end.
    pub(crate) async fn ended(&self) -> Outcome {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended).await.ok();
        self.outcome()
    }

    /// Ends the job with `work`, also if that panics: whoever waits for the job is told.
    fn ends_with(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let mut outcome = self.outcome.lock();
            outcome.state = "failed";
            let reason = "the replication panicked: what the server says on stderr tells where";
            outcome.error = Some(reason.to_owned());
            outcome.note("crashed", Some(reason.to_owned()));
        }
        self.ended.send_replace(true);
    }

    fn cancel(&self) {
        self.cancellation.cancel();
        self.cancelled.send_replace(true);
    }

    fn note(&self, what: &'static str) {
        self.outcome.lock().note(what, None);
    }

    fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }
}

impl Jobs {
    /// No jobs yet.
    pub(crate) fn new(context: JobContext) -> Self {
        Jobs { context: Arc::new(context), by_id: Mutex::default() }
    }

    /// Begins a replication, or returns the one that goes on already.
    ///
    /// # Errors
    /// 403 if a side of it may not be reached; 503 if there are too many.
    pub(crate) fn start(&self, request: Request, owner: Owner) -> Result<Arc<Job>> {
        for host in [&request.source, &request.target].into_iter().filter_map(|side| side.host()) {
            self.context.outbound.check(host)?;
        }
        let job = Arc::new(Job::new(request, owner));
        let mut jobs = self.by_id.lock();
        if let Some(known) = jobs.get(&job.id).filter(|known| !*known.ended.borrow()) {
            return Ok(known.clone());
        }
        jobs.retain(|_, job| !*job.ended.borrow() || job.owner != Owner::Request);
        if jobs.len() >= JOBS_MAX {
            let reason = format!("there are {JOBS_MAX} replications already");
            return Err(Failure::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        let (context, driven, runtime) = (self.context.clone(), job.clone(), Handle::current());
        let thread = std::thread::Builder::new().name(format!("replicate-{}", &job.id[..8]));
        thread
            .spawn(move || driven.ends_with(|| drive(&context, &driven, &runtime)))
            .map_err(|error| Failure::internal(format!("a replication has no thread: {error}")))?;
        jobs.insert(job.id.clone(), job.clone());
        Ok(job)
    }

    /// Ends a job; whether there was one.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let job = self.by_id.lock().remove(id);
        job.is_some_and(|job| {
            job.cancel();
            true
        })
    }

    /// Ends the job that a document of `_replicator` wanted.
    pub(super) fn cancel_of(&self, document: &str) {
        let owner = Owner::Document(document.to_owned());
        let of_it = self.all().into_iter().filter(|job| job.owner == owner);
        of_it.for_each(|job| {
            self.cancel(&job.id);
        });
    }

    /// How many there are, by how they stand.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for job in self.all() {
            *counts.entry(job.outcome.lock().state).or_default() += 1;
        }
        counts
    }

    /// All jobs, those that ended too, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        self.by_id.lock().values().cloned().collect()
    }

    /// Ends all, and waits until they did. Blocks.
    pub(crate) fn stop(&self, runtime: &Handle, timeout: Duration) {
        let jobs = self.all();
        jobs.iter().for_each(|job| job.cancel());
        for job in jobs {
            runtime.block_on(async { tokio::time::timeout(timeout, job.ended()).await.ok() });
        }
    }
}

/// Runs a job to its end.
fn drive(context: &JobContext, job: &Arc<Job>, runtime: &Handle) {
    let mut pause = context.retry_wait;
    loop {
        job.note("started");
        {
            let mut outcome = job.outcome.lock();
            outcome.state = "running";
            outcome.retry_at = None;
            outcome.done = ReplicationStats::default();
        }
        let ended = attempt(context, job, runtime);
        // It was well once more, or got on: what fails now is another failure, not one more of those before.
        if job.outcome.lock().got_on() {
            pause = context.retry_wait;
        }
        let Err(error) = ended else {
            job.outcome.lock().state = "completed";
            job.note("completed");
            break;
        };
        if job.is_cancelled() {
            job.outcome.lock().state = "failed";
            job.note("cancelled");
            break;
        }
        tracing::warn!(target: "stemma::replicator", job = job.id, "a replication failed: {}", error.message());
        let is_hopeless = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound);
        let is_over = !job.request.continuous && (job.owner == Owner::Request || is_hopeless);
        {
            let mut outcome = job.outcome.lock();
            outcome.error = Some(error.message().to_owned());
            outcome.error_count += 1;
            outcome.state = if is_over { "failed" } else { "crashing" };
            outcome.note("crashed", Some(error.message().to_owned()));
            outcome.retry_at = (!is_over).then(|| outcome.history[0].time + pause.as_secs());
        }
        if is_over {
            break;
        }
        let mut cancelled = job.cancelled.subscribe();
        // Whoever cancels it wakes it.
        runtime.block_on(async {
            tokio::time::timeout(pause, cancelled.wait_for(|cancelled| *cancelled)).await.ok().map(|_| ())
        });
        pause = (pause * 2).min(context.retry_wait_max);
    }
}

/// Replicates once; or, if it is continuous, until something fails.
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
    loop {
        let caught_up = running.catch_up().map(|_| ());
        {
            let mut outcome = job.outcome.lock();
            outcome.done = running.stats().clone();
            if caught_up.is_ok() {
                outcome.error = None;
            }
        }
        caught_up?;
        if !request.continuous {
            return Ok(());
        }
        running.wait(WAIT)?;
    }
}

fn peer(
    context: &JobContext,
    job: &Job,
    runtime: &Handle,
    endpoint: &Endpoint,
    create: bool,
) -> stemmadb::Result<Shared> {
    match endpoint {
        Endpoint::Remote { url, headers } => {
            let cancelled = job.cancelled.subscribe();
            let remote = Remote::new(
                context.outbound.client.clone(),
                url.clone(),
                headers.clone(),
                JobRuntime::For(runtime.clone()),
                context.body_bytes_max,
                context.memory.clone(),
                cancelled,
            );
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
                context.directory.open_served(name).await
            });
            let served = opened.map_err(|failure| refused(&failure))?;
            let user = User { roles: vec![crate::auth::ADMIN_ROLE.to_owned()], ..User::default() };
            let validator = WriteValidator { user, scripts: context.scripts.clone() };
            let options = WriteOptions { validator, new_edits: false, durability: context.durability };
            let published = Mutex::new(served.published());
            let (runtime, cancelled) = (JobRuntime::For(runtime.clone()), job.cancelled.subscribe());
            Ok(Arc::new(Local { served, options, runtime, cancelled, published }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by taking out a defence of the replicator: whoever had asked waited for ever.
    #[test]
    fn a_job_that_panics_has_ended_and_failed() {
        let asked = stemmadb::Value::parse(r#"{"source": "db", "target": "copy"}"#).unwrap();
        let job = Job::new(Request::parse(&asked).unwrap(), Owner::Request);
        job.ends_with(|| panic!("it was wrong to think that this can't be"));
        let outcome = job.outcome();
        assert!(*job.ended.borrow());
        assert_eq!((outcome.state, outcome.history[0].what), ("failed", "crashed"));
        assert!(outcome.error.is_some_and(|error| error.contains("panicked")));
    }
}
