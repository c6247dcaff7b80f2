//! Work on many members, shared between processors once it is worth a thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// From this duration of one piece of work on, others are done by other threads, too: about ten times what starting a
/// thread costs.
const WORTH_A_THREAD: Duration = Duration::from_micros(300);

/// What `work` makes of each item, in their order. It is done by this thread, until one item has taken long enough;
/// then by one thread for each processor.
pub(crate) fn map<M: Sync, T: Send>(items: &[M], work: impl Fn(&M) -> T + Sync) -> Vec<T> {
    let mut done = Vec::with_capacity(items.len());
    while let Some(item) = items.get(done.len()) {
        let begun = Instant::now();
        done.push(work(item));
        if begun.elapsed() >= WORTH_A_THREAD {
            done.extend(share(&items[done.len()..], &work));
        }
    }
    done
}

/// What `work` makes of each item, in their order, by one thread for each processor. A thread that can't be started
/// leaves its items to the others.
fn share<M: Sync, T: Send>(items: &[M], work: &(impl Fn(&M) -> T + Sync)) -> Vec<T> {
    let helper_count = thread::available_parallelism().map_or(1, usize::from).min(items.len()).saturating_sub(1);
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        items.get(at).map(|item| (at, work(item)))
    };
    let take_all = || std::iter::from_fn(take).collect::<Vec<_>>();
    let mut done = thread::scope(|scope| {
        let started = (0..helper_count).map_while(|_| thread::Builder::new().spawn_scoped(scope, take_all).ok());
        let helpers: Vec<_> = started.collect();
        let mut done = take_all();
        for helper in helpers {
            match helper.join() {
                Ok(of_helper) => done.extend(of_helper),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[test]
    fn short_work_stays_on_its_thread_and_keeps_its_order() {
        let own = thread::current().id();
        let items: Vec<u32> = (0..100).collect();
        let made = map(&items[..3], |item| (item * 2, thread::current().id()));
        assert_eq!(made, [(0, own), (2, own), (4, own)]);
        assert_eq!(share(&items, &|item| item * 2), (0..100).map(|item| item * 2).collect::<Vec<_>>());
        assert!(map(&[], |item: &u32| *item).is_empty());
    }

    #[test]
    fn long_work_is_shared() {
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            return;
        }
        // After the first item, two wait for each other: on one thread, they would wait forever.
        let (waiting, changed) = (Mutex::new(0), Condvar::new());
        let threads = map(&[0, 1, 2], |item| {
            if *item == 0 {
                thread::sleep(WORTH_A_THREAD);
            } else {
                let mut waiting = waiting.lock().unwrap();
                *waiting += 1;
                changed.notify_all();
                drop(changed.wait_while(waiting, |waiting| *waiting < 2).unwrap());
            }
            thread::current().id()
        });
        assert_eq!(threads.into_iter().collect::<HashSet<_>>().len(), 2);
    }
}
