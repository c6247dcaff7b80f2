//! The pool of workers. A call gets an idle worker that has its context open, else a new worker, else the one that was
//! idle longest.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::child::{CallResult, Watchdog, WorkerProcess};
use super::wire::{self, Frame};
use super::{CallKind, Context, ScriptError, ScriptLimits, WorkerCommand};

/// The timeout for a worker while all are busy.
const WAIT: Duration = Duration::from_secs(30);

/// The size of a batch of calls, in bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The pool of workers, which are started on demand.
pub struct Scripts {
    command: WorkerCommand,
    limits: ScriptLimits,
    state: Mutex<PoolState>,
    returned: Condvar,
    watchdog: OnceLock<Arc<Watchdog>>,
}

#[derive(Default)]
struct PoolState {
    /// Ordered by idle time, the longest first.
    idle: Vec<WorkerProcess>,
    busy_count: usize,
}

/// A worker checked out of the pool. It is returned when dropped, unless it failed.
struct CheckedOutWorker<'a> {
    scripts: &'a Scripts,
    worker: Option<WorkerProcess>,
}

impl Scripts {
    /// Creates a pool of workers that are started by `command`, within `limits`.
    pub fn new(command: WorkerCommand, limits: ScriptLimits) -> Self {
        Scripts { command, limits, state: Mutex::default(), returned: Condvar::new(), watchdog: OnceLock::new() }
    }

    /// Calls the function at `path` of the design document once for each list of arguments (JSON texts, empty for
    /// none), and returns the results: JSON, or the exception. Without calls it only compiles the function. Lines that
    /// functions log go to the server's log.
    ///
    /// # Errors
    /// [`ScriptError`] if not all calls could be made.
    pub fn call<A: AsRef<[B]>, B: AsRef<str>>(
        &self,
        context: &Context,
        kind: CallKind,
        path: &[&str],
        calls: &[A],
    ) -> Result<Vec<CallResult>, ScriptError> {
        let mut answers = Vec::with_capacity(calls.len());
        let path = serde_json::to_string(path).map_err(|error| ScriptError::Crashed(error.to_string()))?;
        let mut checked_out = self.check_out(context)?;
        let mut left = calls;
        loop {
            let mut frame = Frame::new(wire::CALL).text(kind.name()).text(&path);
            frame.number(left.first().map_or(1, |first| first.as_ref().len()));
            let mut count = 0;
            while let Some(arguments) = left.get(count).filter(|_| count == 0 || frame.byte_count() < BATCH_BYTES) {
                arguments.as_ref().iter().for_each(|argument| frame.push(argument.as_ref()));
                count += 1;
            }
            let expected = answers.len() + count;
            checked_out.request(frame, &mut |answer| {
                answers.push(answer);
                Ok(())
            })?;
            if answers.len() != expected {
                return Err(checked_out.fail(ScriptError::Crashed("it returned too few results".to_owned())));
            }
            left = &left[count..];
            if left.is_empty() {
                return Ok(answers);
            }
        }
    }

    /// The current number of workers.
    pub fn worker_count(&self) -> usize {
        let state = self.state.lock();
        state.idle.len() + state.busy_count
    }

    /// Checks out a worker and opens the context in it.
    fn check_out(&self, context: &Context) -> Result<CheckedOutWorker<'_>, ScriptError> {
        let worker = self.check_out_idle(&context.key)?;
        let mut checked_out = CheckedOutWorker { scripts: self, worker };
        if checked_out.worker.is_none() {
            let watchdog = self.watchdog()?;
            checked_out.worker = Some(WorkerProcess::start(&self.command, self.limits, &watchdog)?);
        }
        let opened = match &mut checked_out.worker {
            Some(worker) if worker.context.as_ref() != Some(&context.key) => worker.open(&context.key, &context.design),
            _ => Ok(()),
        };
        opened.map_err(|error| checked_out.fail(error))?;
        Ok(checked_out)
    }

    /// Returns an idle worker, or `None` if a new one must be started. Both count as busy from now on.
    fn check_out_idle(&self, key: &str) -> Result<Option<WorkerProcess>, ScriptError> {
        let mut state = self.state.lock();
        loop {
            let fitting = state.idle.iter().rposition(|worker| worker.context.as_deref() == Some(key));
            let is_full = state.idle.len() + state.busy_count >= self.limits.worker_count;
            let at = fitting.or((is_full && !state.idle.is_empty()).then_some(0));
            if let Some(at) = at {
                state.busy_count += 1;
                return Ok(Some(state.idle.remove(at)));
            }
            if !is_full {
                state.busy_count += 1;
                return Ok(None);
            }
            if self.returned.wait_for(&mut state, WAIT).timed_out() {
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

impl CheckedOutWorker<'_> {
    fn request(
        &mut self,
        frame: Frame,
        answer: &mut dyn FnMut(CallResult) -> Result<(), ScriptError>,
    ) -> Result<(), ScriptError> {
        let Some(worker) = &mut self.worker else { return Err(ScriptError::Crashed("it has ended".to_owned())) };
        let result = worker.request(frame, answer, &mut |line| log(line));
        result.map_err(|error| self.fail(error))
    }

    /// Discards the worker, unless only the function is at fault.
    fn fail(&mut self, error: ScriptError) -> ScriptError {
        if !matches!(error, ScriptError::Uncallable(_)) {
            self.worker = None;
        }
        error
    }
}

impl Drop for CheckedOutWorker<'_> {
    fn drop(&mut self) {
        let mut state = self.scripts.state.lock();
        state.busy_count -= 1;
        state.idle.extend(self.worker.take());
        drop(state);
        self.scripts.returned.notify_one();
    }
}

/// Logs a line of a design document's function.
fn log(line: &str) {
    tracing::info!(target: "stemma::script", "{line}");
}
