//! Write pacing: slows writers down gradually, so that memory never fills before a checkpoint frees some.
//!
//! While a checkpoint runs, writers may fill the memory that is left in the time that the checkpoint still needs. The
//! fewer bytes are left, the slower they get; no writer ever waits for a whole checkpoint. All writers share one
//! schedule: each write reserves its time on it, and waits for that without holding a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A write waits at most this long; what it owes beyond is left to the next ones.
const DELAY_MAX: Duration = Duration::from_millis(40);

/// Shorter delays are added up, because sleeping for them would take longer.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// Merges that keep pace with checkpoints leave at most this many runs. With more, writers are slowed down.
const RUN_COUNT_GOAL: usize = 20;

/// With this many runs, writers wait as long as they ever do.
const RUN_COUNT_MAX: usize = 40;

/// A checkpoint's speed is known once it has done this part of its work.
const SPEED_KNOWN_AT: f64 = 0.1;

/// The share of the newest value in an average.
const AVERAGE_SHARE: f64 = 0.2;

/// The work of one checkpoint, counted while it runs.
#[derive(Debug)]
pub(super) struct CheckpointProgress {
    done: AtomicU64,
    total: u64,
}

impl CheckpointProgress {
    /// No progress yet of about `total` steps.
    pub(super) fn new(total: u64) -> Self {
        CheckpointProgress { done: AtomicU64::new(0), total }
    }

    pub(super) fn add(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// The part that is done, from 0 to 1.
    fn fraction(&self) -> f64 {
        let done = self.done.load(Ordering::Relaxed);
        if self.total == 0 { 0.0 } else { (done as f64 / self.total as f64).min(1.0) }
    }
}

/// The memory for writes at one time, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryUse {
    /// What is left until writers have to wait.
    pub(super) free: usize,
    /// The memtable that is merged now; none if there is none.
    pub(super) sealed: Option<usize>,
}

/// The schedule of writes.
#[derive(Default)]
pub(super) struct Pace {
    state: Mutex<PaceState>,
}

#[derive(Default)]
struct PaceState {
    /// When the next write may begin.
    free_at: Option<Instant>,
    /// The average size of a write, in bytes of memory.
    write_bytes: f64,
    /// The average speed of checkpoints, in bytes of memory a second.
    speed: Option<f64>,
    checkpoint: Option<RunningCheckpoint>,
}

struct RunningCheckpoint {
    began: Instant,
    bytes: usize,
    progress: Arc<CheckpointProgress>,
}

impl Pace {
    /// Records that a checkpoint of a memtable of `bytes` begins.
    pub(super) fn begin_checkpoint(&self, bytes: usize, progress: &Arc<CheckpointProgress>) {
        let progress = progress.clone();
        self.state.lock().checkpoint = Some(RunningCheckpoint { began: Instant::now(), bytes, progress });
    }

    /// Records that the checkpoint has ended. The speed of one that failed says nothing.
    pub(super) fn end_checkpoint(&self, has_succeeded: bool) {
        let mut state = self.state.lock();
        if let Some(checkpoint) = state.checkpoint.take().filter(|_| has_succeeded) {
            let speed = checkpoint.bytes as f64 / checkpoint.began.elapsed().as_secs_f64().max(1e-6);
            state.speed = Some(state.speed.map_or(speed, |average| mix(average, speed)));
        }
    }

    /// Records the size of a write.
    pub(super) fn add_write(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.write_bytes = mix(state.write_bytes, bytes as f64);
    }

    /// Reserves the time of the next write; returns how long to wait for it.
    pub(super) fn delay(&self, memory: MemoryUse, run_count: usize) -> Option<Duration> {
        if memory.sealed.is_none() && run_count <= RUN_COUNT_GOAL {
            return None;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let speed = state.speed_max(memory, run_count, now)?;
        let own = Duration::try_from_secs_f64(state.write_bytes / speed.max(1.0)).unwrap_or(DELAY_MAX);
        let begin = state.free_at.map_or(now, |free_at| free_at.max(now));
        state.free_at = Some((begin + own).min(now + DELAY_MAX));
        let delay = begin - now;
        (delay >= DELAY_MIN).then_some(delay)
    }
}

impl PaceState {
    /// The speed of all writers together, in bytes of memory a second, at which memory lasts and merges keep pace; none
    /// if it is not known.
    fn speed_max(&self, memory: MemoryUse, run_count: usize, now: Instant) -> Option<f64> {
        let for_memory = memory.sealed.and_then(|sealed| {
            let (mut speed, mut left) = (self.speed, 1.0);
            if let Some(checkpoint) = &self.checkpoint {
                let done = checkpoint.progress.fraction();
                left = 1.0 - done;
                if done >= SPEED_KNOWN_AT {
                    let elapsed = (now - checkpoint.began).as_secs_f64().max(1e-6);
                    speed = Some(done * checkpoint.bytes as f64 / elapsed);
                }
            }
            let seconds_left = left * sealed as f64 / speed?;
            Some(memory.free as f64 / seconds_left.max(1e-3))
        });
        let for_merges = self.speed.filter(|_| run_count > RUN_COUNT_GOAL).map(|speed| {
            let room = RUN_COUNT_MAX.saturating_sub(run_count) as f64 / (RUN_COUNT_MAX - RUN_COUNT_GOAL) as f64;
            speed * room
        });
        match (for_memory, for_merges) {
            (Some(memory), Some(merges)) => Some(memory.min(merges)),
            (memory, merges) => memory.or(merges),
        }
    }
}

fn mix(average: f64, newest: f64) -> f64 {
    average + (newest - average) * AVERAGE_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A pace in the middle of a checkpoint that has done `done` percent of 32 MiB in one second.
    fn pace(done: u64) -> Pace {
        let progress = Arc::new(CheckpointProgress::new(100));
        progress.add(done);
        let began = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let checkpoint = Some(RunningCheckpoint { began, bytes: 32 * MIB, progress });
        let state = PaceState { free_at: None, write_bytes: MIB as f64, speed: Some(32.0 * MIB as f64), checkpoint };
        Pace { state: Mutex::new(state) }
    }

    fn speed_max(pace: &Pace, free: usize, run_count: usize) -> f64 {
        let memory = MemoryUse { free: free * MIB, sealed: Some(32 * MIB) };
        pace.state.lock().speed_max(memory, run_count, Instant::now()).unwrap() / MIB as f64
    }

    #[test]
    fn free_memory_lasts_until_the_checkpoint_ends() {
        // It needs another second for the second half.
        assert_eq!(speed_max(&pace(50), 16, 0).round(), 16.0);
        // Nine seconds, and less memory.
        assert_eq!((speed_max(&pace(10), 9, 0)).round(), 1.0);
        assert!(speed_max(&pace(99), 32, 0) > 1_000.0);
        assert_eq!(speed_max(&pace(50), 0, 0), 0.0);
    }

    #[test]
    fn many_runs_slow_writers_down_to_a_stop() {
        let speeds: Vec<f64> = (20..=41).map(|run_count| speed_max(&pace(99), 32, run_count)).collect();
        assert!(speeds.is_sorted_by(|left, right| left >= right), "{speeds:?}");
        assert_eq!(speeds[21], 0.0);
    }

    #[test]
    fn writers_share_one_schedule_and_never_wait_for_long() {
        let pace = pace(50);
        let memory = MemoryUse { free: 512 * MIB, sealed: Some(32 * MIB) };
        assert_eq!(pace.delay(memory, 0), None, "the first one begins at once");
        let delays: Vec<_> = (0..9).map(|_| pace.delay(memory, 0).unwrap_or_default()).collect();
        assert!(delays[8] > delays[0], "{delays:?}");
        let memory = MemoryUse { free: 0, sealed: Some(32 * MIB) };
        let delays: Vec<_> = (0..100).map(|_| pace.delay(memory, 0).unwrap_or_default()).collect();
        assert!(delays.iter().all(|delay| *delay <= DELAY_MAX), "{delays:?}");
    }

    #[test]
    fn writers_are_free_while_nothing_is_merged() {
        let memory = MemoryUse { free: MIB, sealed: None };
        assert!((0..100).all(|_| pace(50).delay(memory, RUN_COUNT_GOAL).is_none()));
    }
}
