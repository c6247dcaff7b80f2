//! Threads that serve connections. A thread that is done waits a while for other work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

type Work = Box<dyn FnOnce() + Send>;

/// How long a thread waits for work before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The stack of a thread. Only what is used of it takes memory.
const STACK_BYTES: usize = 2 << 20;

/// A pool of threads with an upper bound.
pub(super) struct Pool {
    state: Mutex<PoolState>,
    has_work: Condvar,
    count_max: usize,
    /// Changed while the state is locked.
    thread_count: AtomicUsize,
    /// The server's runtime, whose context the threads enter.
    runtime: Handle,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Work>,
    /// The threads that wait, less those that were woken and have not taken their work yet.
    idle_count: usize,
}

impl Pool {
    pub(super) fn new(count_max: usize, runtime: Handle) -> Arc<Self> {
        let thread_count = AtomicUsize::new(0);
        Arc::new(Pool { state: Mutex::default(), has_work: Condvar::new(), count_max, thread_count, runtime })
    }

    /// The number of threads.
    pub(super) fn thread_count(&self) -> usize {
        self.thread_count.load(Ordering::Relaxed)
    }

    /// The most threads.
    pub(super) fn count_max(&self) -> usize {
        self.count_max
    }

    /// Runs `work` on a thread of the pool. Returns false if all threads are occupied and no more may be started.
    pub(super) fn run(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        if state.idle_count > 0 {
            state.idle_count -= 1;
            state.queue.push_back(Box::new(work));
            self.has_work.notify_one();
            return true;
        }
        if self.thread_count() >= self.count_max {
            return false;
        }
        self.thread_count.fetch_add(1, Ordering::Relaxed);
        drop(state);
        let pool = self.clone();
        let builder = std::thread::Builder::new().name("stemma-wire".to_owned()).stack_size(STACK_BYTES);
        let started = builder.spawn(move || {
            let _context = pool.runtime.enter();
            work();
            pool.work_until_idle();
        });
        if started.is_err() {
            let _state = self.state.lock();
            self.thread_count.fetch_sub(1, Ordering::Relaxed);
        }
        started.is_ok()
    }

    fn work_until_idle(&self) {
        let mut state = self.state.lock();
        loop {
            state.idle_count += 1;
            let deadline = Instant::now() + IDLE_TIME;
            while state.queue.is_empty() {
                if self.has_work.wait_until(&mut state, deadline).timed_out() && state.queue.is_empty() {
                    state.idle_count -= 1;
                    self.thread_count.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
            }
            let work = state.queue.pop_front();
            drop(state);
            if let Some(work) = work {
                work();
            }
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn threads_are_reused_and_bounded() {
        let pool = Pool::new(2, Handle::current());
        let (sender, receiver) = mpsc::channel();
        let (gate, opened) = mpsc::channel::<()>();
        let opened = Arc::new(Mutex::new(opened));
        for _ in 0..2 {
            let (sender, opened) = (sender.clone(), opened.clone());
            assert!(pool.run(move || {
                opened.lock().recv().ok();
                sender.send(std::thread::current().id()).unwrap();
            }));
        }
        assert!(!pool.run(|| ()), "both threads are occupied");
        gate.send(()).unwrap();
        gate.send(()).unwrap();
        let first: Vec<_> = (0..2).map(|_| receiver.recv().unwrap()).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        let again = || {
            let sender = sender.clone();
            pool.run(move || sender.send(std::thread::current().id()).unwrap())
        };
        while !again() {
            assert!(Instant::now() < deadline, "no thread became idle");
            std::thread::yield_now();
        }
        assert!(first.contains(&receiver.recv().unwrap()));
        assert_eq!(pool.thread_count(), 2);
    }
}
