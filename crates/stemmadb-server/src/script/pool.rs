//! Which worker is asked: one that has the context open, else a new one, else the one that was idle longest.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::child::{Answer, Watchdog, Worker};
use super::wire::{self, Frame};
use super::{Bounded, Context, Launch, ScriptError, Verb};

/// How long is waited for a worker while all are busy.
const WAIT: Duration = Duration::from_secs(30);

/// Calls are sent to a worker in batches of so many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The workers. None is started before it is needed.
pub struct Scripts {
    launch: Launch,
    bounds: Bounded,
    workers: Mutex<Workers>,
    returned: Condvar,
    watchdog: OnceLock<Arc<Watchdog>>,
}

#[derive(Default)]
struct Workers {
    /// The one idle longest first.
    idle: Vec<Worker>,
    busy_count: usize,
}

/// A worker taken out of the pool; it goes back unless it failed.
struct Taken<'a> {
    scripts: &'a Scripts,
    worker: Option<Worker>,
}

impl Scripts {
    /// Workers started by `launch`, within `bounds`.
    pub fn new(launch: Launch, bounds: Bounded) -> Self {
        Scripts { launch, bounds, workers: Mutex::default(), returned: Condvar::new(), watchdog: OnceLock::new() }
    }

    /// Calls the function at `path` of the design document once for each list of arguments (texts of JSON, empty for none), and
    /// returns what each call came to: a result as JSON, or what was thrown. Lines that functions log go to the server's log.
    ///
    /// # Errors
    /// [`ScriptError`], if the calls could not all be made.
    pub fn call<A: AsRef<[B]>, B: AsRef<str>>(
        &self,
        context: &Context,
        verb: Verb,
        path: &[&str],
        calls: &[A],
    ) -> Result<Vec<Answer>, ScriptError> {
        let mut answers = Vec::with_capacity(calls.len());
        let path = serde_json::to_string(path).map_err(|error| ScriptError::Crashed(error.to_string()))?;
        let mut taken = self.take(context)?;
        let mut left = calls;
        while let Some(first) = left.first() {
            let mut frame = Frame::new(wire::CALL).text(verb.name()).text(&path);
            frame.number(first.as_ref().len());
            let mut count = 0;
            while let Some(arguments) = left.get(count).filter(|_| count == 0 || frame.byte_count() < BATCH_BYTES) {
                arguments.as_ref().iter().for_each(|argument| frame.push(argument.as_ref()));
                count += 1;
            }
            let expected = answers.len() + count;
            taken.ask(frame, &mut |answer| {
                answers.push(answer);
                Ok(())
            })?;
            if answers.len() != expected {
                return Err(taken.fail(ScriptError::Crashed("it gave too few answers".to_owned())));
            }
            left = &left[count..];
        }
        Ok(answers)
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        let workers = self.workers.lock();
        workers.idle.len() + workers.busy_count
    }

    /// A worker that has the context open.
    fn take(&self, context: &Context) -> Result<Taken<'_>, ScriptError> {
        let worker = self.take_any(&context.key)?;
        let mut taken = Taken { scripts: self, worker };
        if taken.worker.is_none() {
            let watchdog = self.watchdog()?;
            taken.worker = Some(Worker::start(&self.launch, self.bounds, &watchdog)?);
        }
        let opened = match &mut taken.worker {
            Some(worker) if worker.context.as_ref() != Some(&context.key) => worker.open(&context.key, &context.design),
            _ => Ok(()),
        };
        opened.map_err(|error| taken.fail(error))?;
        Ok(taken)
    }

    /// An idle worker, or none where a new one is to be started. Either counts as busy from now on.
    fn take_any(&self, key: &str) -> Result<Option<Worker>, ScriptError> {
        let mut workers = self.workers.lock();
        loop {
            let fitting = workers.idle.iter().rposition(|worker| worker.context.as_deref() == Some(key));
            let is_full = workers.idle.len() + workers.busy_count >= self.bounds.worker_count;
            let at = fitting.or((is_full && !workers.idle.is_empty()).then_some(0));
            if let Some(at) = at {
                workers.busy_count += 1;
                return Ok(Some(workers.idle.remove(at)));
            }
            if !is_full {
                workers.busy_count += 1;
                return Ok(None);
            }
            if self.returned.wait_for(&mut workers, WAIT).timed_out() {
                return Err(ScriptError::Busy);
            }
        }
    }

    fn watchdog(&self) -> Result<Arc<Watchdog>, ScriptError> {
        if let Some(watchdog) = self.watchdog.get() {
            return Ok(watchdog.clone());
        }
        let started = Watchdog::start().map_err(|error| ScriptError::Crashed(error.to_string()))?;
        Ok(self.watchdog.get_or_init(|| started).clone())
    }
}

impl Taken<'_> {
    fn ask(
        &mut self,
        frame: Frame,
        answer: &mut dyn FnMut(Answer) -> Result<(), ScriptError>,
    ) -> Result<(), ScriptError> {
        let Some(worker) = &mut self.worker else { return Err(ScriptError::Crashed("it has ended".to_owned())) };
        let asked = worker.ask(frame, answer, &mut |line| log(line));
        asked.map_err(|error| self.fail(error))
    }

    /// Ends the worker, unless all that is wrong is the function.
    fn fail(&mut self, error: ScriptError) -> ScriptError {
        if !matches!(error, ScriptError::Uncallable(_)) {
            self.worker = None;
        }
        error
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut workers = self.scripts.workers.lock();
        workers.busy_count -= 1;
        workers.idle.extend(self.worker.take());
        drop(workers);
        self.scripts.returned.notify_one();
    }
}

/// A line that a design document's function logged.
fn log(line: &str) {
    tracing::info!(target: "stemma::script", "{line}");
}
