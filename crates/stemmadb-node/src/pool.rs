//! Threads for calls that may wait, so that Node's event loop and its own four threads never do.
//!
//! Threads are started as calls need them and end when they are idle. Writers that wait for the disk share a flush, so
//! that many of them at once are an advantage; Node's pool would allow four.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a thread waits for its next job.
const IDLE: Duration = Duration::from_secs(5);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// For calls that end by themselves.
pub(crate) static CALLS: Pool = Pool::new("stemma-call", 32);
/// For feeds, which wait as long as nothing happens: each has a thread meanwhile.
pub(crate) static WAITS: Pool = Pool::new("stemma-wait", usize::MAX);

/// A number of threads that grows up to a limit.
pub(crate) struct Pool {
    name: &'static str,
    thread_count_max: usize,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    thread_count: usize,
    idle_count: usize,
}

impl Pool {
    const fn new(name: &'static str, thread_count_max: usize) -> Self {
        let state = State { jobs: VecDeque::new(), thread_count: 0, idle_count: 0 };
        Pool { name, thread_count_max, state: Mutex::new(state), wake: Condvar::new() }
    }

    /// No job runs while the lock is held, so it is never left in between.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job soon. If the system has no thread for it, and there is none yet, the job is dropped.
    pub(crate) fn run(&'static self, job: Job) {
        let mut state = self.state();
        state.jobs.push_back(job);
        if state.idle_count >= state.jobs.len() {
            self.wake.notify_one();
        } else if state.thread_count < self.thread_count_max {
            state.thread_count += 1;
            let started = thread::Builder::new().name(self.name.to_owned()).spawn(|| self.work());
            if started.is_err() {
                state.thread_count -= 1;
                // Other threads of this pool will come to it; feeds don't end, so they may not.
                let abandoned = match state.thread_count == 0 || self.thread_count_max == usize::MAX {
                    true => state.jobs.pop_back(),
                    false => None,
                };
                drop(state);
                drop(abandoned);
            }
        }
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // Whoever waits for the job is told by the job's own destructors.
                catch_unwind(AssertUnwindSafe(job)).ok();
                state = self.state();
                continue;
            }
            state.idle_count += 1;
            let (locked, waited) = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = locked;
            state.idle_count -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.thread_count -= 1;
                return;
            }
        }
    }
}
