//! Group commit: batches concurrent appends into one write and one flush.
//!
//! There are two roles, each held by at most one thread. The *writer* takes all pending frames and writes them. The
//! *leader* of a *round* first becomes the writer and writes all pending frames, then flushes; this serves every thread
//! that appended before the leader took the pending frames. A thread that needs a flush while a round is running waits
//! for the end of that round if its frame is part of it, otherwise for the end of the next round. One of the threads
//! waiting for the next round becomes its leader.
//!
//! Concurrency: roles are flags in the state, acquired and released under its lock; no lock is held during I/O. Frames
//! that only need to be *written* are written while a round's flush is running (that flush does not cover them). A
//! batch that starts a new segment is written only by the leader of a round, because the old segment must be flushed
//! first. The leader's role is therefore always acquired before the writer's, which rules out deadlock.
//!
//! Invariants:
//! - One thread at a time flushes. The operating system may report a failed flush only once, so the thread that would
//!   acknowledge the frames is the one that sees the failure.
//! - `durable` advances to what was written *before* the flush started.
//! - The log is poisoned before a role is released.
//! - Everything appended while a round runs is covered by the next round, so every waiting thread is woken at the end
//!   of its round.

use std::sync::{Arc, LazyLock};

use super::batch::{Batch, BatchPart};
use super::commit_waiter::CommitWaiter;
use super::frame::FrameFormat;
use super::segment::{SEGMENT_HEADER_BYTES, Segment};
use super::shared::{LogState, Shared};
use super::{Level, LogPosition};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// Zeros are preallocated in steps of this size, so that a flush finds the file's length unchanged. Tests use a small
/// step so that their small files grow, too.
pub(super) const PREALLOCATION_BYTES: u64 = if cfg!(test) { 1536 } else { 1024 * 1024 };

/// A group longer than this gains nothing from preallocation.
const LONG_GROUP_BYTES: usize = if cfg!(test) { 700 } else { 256 * 1024 };

/// Allocated, since a constant would take as many bytes in the program's file. The pages are never written to.
static ZEROS: LazyLock<Box<[u8]>> = LazyLock::new(|| vec![0; PREALLOCATION_BYTES as usize].into_boxed_slice());

impl Shared {
    pub(super) fn commit(&self, end: LogPosition, level: Level) -> Result<()> {
        match level {
            Level::Written => self.commit_written(end),
            Level::Flushed => self.commit_flushed(end),
        }
    }

    fn commit_written(&self, end: LogPosition) -> Result<()> {
        if self.written.load(Ordering::Acquire) >= end.to_u64() {
            return Ok(());
        }
        let mut state = self.state.lock();
        while state.written < end {
            state.check_can_wait(end)?;
            if state.is_writing || state.is_gathering {
                self.written_moved.wait(&mut state);
            } else if state.pending.rolls(state.written.segment()) {
                drop(state);
                return self.commit_flushed(end);
            } else {
                let result = self.write_batch(&mut state, false);
                self.written_moved.notify_all();
                result?;
            }
        }
        Ok(())
    }

    fn commit_flushed(&self, end: LogPosition) -> Result<()> {
        let is_done = || self.durable.load(Ordering::Acquire) >= end.to_u64();
        while !is_done() {
            let mut state = self.state.lock();
            if state.durable >= end {
                break;
            }
            state.check_can_wait(end)?;
            if !state.is_flushing {
                self.lead_round(state)?;
                continue;
            }
            let round = if end <= state.served { state.round } else { state.round + 1 };
            state.waiting[side(round)] = true;
            drop(state);
            self.commit_waiters[side(round)].wait(round, || is_done() || self.is_poisoned.load(Ordering::Acquire));
        }
        Ok(())
    }

    /// Writes all pending frames, flushes, wakes the threads of this round and one thread of the next.
    fn lead_round(&self, mut state: MutexGuard<'_, LogState>) -> Result<()> {
        debug_assert!(!state.is_flushing, "one leader at a time");
        state.is_flushing = true;
        state.round += 1;
        let (round, next) = (state.round, state.round + 1);
        self.commit_waiters[side(round)].claim(round);
        state.served = LogPosition::END;
        state.is_gathering = true;
        while state.is_writing {
            self.written_moved.wait(&mut state);
        }
        state.is_gathering = false;
        state.served = state.tail.next;
        debug_assert!(state.written <= state.served, "a round covers at least everything already written");
        let result = self.write_and_flush(&mut state);
        state.is_flushing = false;
        let were_waiting = std::mem::take(&mut state.waiting[side(round)]);
        let are_waiting = state.waiting[side(next)];
        // A thread that needs its frame only written may be waiting for a leader that had nothing to write.
        self.written_moved.notify_all();
        drop(state);
        if are_waiting {
            self.commit_waiters[side(next)].call_leader(next);
        }
        if were_waiting {
            self.commit_waiters[side(round)].open();
        }
        result
    }

    fn write_and_flush(&self, state: &mut MutexGuard<'_, LogState>) -> Result<()> {
        if let Some(poison) = &state.poison {
            return Err(poison.duplicate());
        }
        self.write_batch(state, true)?;
        let target = state.written;
        if target <= state.durable {
            return Ok(());
        }
        let segment = self.last_segment();
        if let Err(error) = MutexGuard::unlocked(state, || segment.flush()) {
            return Err(self.poison(state, error));
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        debug_assert!(
            state.durable < target && target <= state.written,
            "only the leader of a round advances the durable position, and never beyond the written one"
        );
        state.durable = target;
        self.durable.store(target.to_u64(), Ordering::Release);
        Ok(())
    }

    /// Acquires the writer's role, writes the pending frames and releases the role.
    fn write_batch(&self, state: &mut MutexGuard<'_, LogState>, to_be_flushed: bool) -> Result<()> {
        debug_assert!(!state.is_writing, "one writer at a time");
        if state.pending.is_empty() {
            return Ok(());
        }
        let (batch, end) = state.take_pending();
        state.is_writing = true;
        let mut allocated = state.allocated;
        let result = MutexGuard::unlocked(state, || self.write_parts(&batch, &mut allocated, to_be_flushed));
        state.is_writing = false;
        state.allocated = allocated;
        if let Err(error) = result {
            // The failed batch stays in `in_flight` and readable: compaction may already refer to its positions.
            return Err(self.poison(state, error));
        }
        state.in_flight = None;
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.frames.fetch_add(batch.frame_count, Ordering::Relaxed);
        self.counters.bytes.fetch_add(batch.bytes.len() as u64, Ordering::Relaxed);
        state.keep_spare(batch);
        debug_assert!(state.written < end, "the written position advances with every batch");
        state.written = end;
        self.written.store(end.to_u64(), Ordering::Release);
        self.written_moved.notify_all();
        Ok(())
    }

    fn write_parts(&self, batch: &Batch, allocated: &mut u64, to_be_flushed: bool) -> Result<()> {
        let mut segment = self.last_segment();
        segment.pin()?;
        for part in &batch.parts {
            if part.segment != segment.number {
                debug_assert!(
                    to_be_flushed && part.segment == segment.number + 1 && part.offset == SEGMENT_HEADER_BYTES,
                    "only the leader of a round starts a segment: the next one, from its header on"
                );
                segment = self.begin_segment(part.segment, part.format)?;
                *allocated = segment.length()?;
            }
            self.write_part(&segment, batch, part, allocated, to_be_flushed)?;
        }
        Ok(())
    }

    fn write_part(
        &self,
        segment: &Segment,
        batch: &Batch,
        part: &BatchPart,
        allocated: &mut u64,
        to_be_flushed: bool,
    ) -> Result<()> {
        debug_assert!(part.offset == segment.used(), "frames are written in order, without gap or overlap");
        let bytes = &batch.bytes[part.start..part.end];
        if !bytes.is_empty() {
            segment.write(bytes, u64::from(part.offset))?;
        }
        let end = u64::from(part.end_offset());
        if part.sealed {
            return self.finish_segment(segment, part.end_offset());
        }
        if end > *allocated {
            *allocated = end;
            if to_be_flushed && self.vfs.is_persistent() && bytes.len() < LONG_GROUP_BYTES {
                *allocated += self.write_ahead(segment, end)?;
            }
        }
        segment.set_used(part.end_offset());
        Ok(())
    }

    /// Writes zeros after `end` and returns how many. They only make later flushes faster, so a full disk is not an
    /// error here.
    fn write_ahead(&self, segment: &Segment, end: u64) -> Result<u64> {
        let ahead = u64::from(self.segment_bytes).saturating_sub(end).min(PREALLOCATION_BYTES);
        match segment.write(&ZEROS[..ahead as usize], end) {
            Ok(()) => Ok(ahead),
            Err(error) if is_disk_full(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Flushes a sealed segment and truncates its file after the seal.
    fn finish_segment(&self, segment: &Segment, end: u32) -> Result<()> {
        segment.flush()?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        segment.set_used(end - segment.format.header_bytes());
        segment.shorten(u64::from(end))?;
        segment.handle.unpin();
        Ok(())
    }

    /// Creates the file of the next segment and adds it to the list.
    fn begin_segment(&self, number: u32, format: FrameFormat) -> Result<Arc<Segment>> {
        let segment = Arc::new(self.create_segment(number, format)?);
        let mut list = self.list.write();
        let mut segments = list.segments.clone();
        segments.push(Arc::clone(&segment));
        *list = list.followed_by(segments);
        drop(list);
        self.counters.rolls.fetch_add(1, Ordering::Relaxed);
        Ok(segment)
    }

    pub(super) fn last_segment(&self) -> Arc<Segment> {
        let list = self.list.read();
        Arc::clone(list.segments.last().expect("a log has a segment from its opening on"))
    }

    /// Closes the file of the active segment if everything is flushed; the next write opens it again.
    pub(super) fn close_idle_file(&self) {
        let state = self.state.lock();
        let is_idle = !state.is_writing && !state.is_flushing && state.durable == state.tail.next;
        if is_idle && self.vfs.is_persistent() {
            self.last_segment().handle.close();
        }
    }

    /// Records the first failure and returns a copy of it for the thread that encountered it.
    pub(super) fn poison(&self, state: &mut LogState, error: Error) -> Error {
        let copy = error.duplicate();
        state.poison.get_or_insert(error);
        self.is_poisoned.store(true, Ordering::Release);
        self.written_moved.notify_all();
        self.commit_waiters.iter().for_each(CommitWaiter::open);
        copy
    }
}

/// Whether the cause of an error is lack of disk space.
pub(crate) fn is_disk_full(error: &Error) -> bool {
    use std::io::ErrorKind;
    error.io_cause().is_some_and(|cause| matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

/// Index of the commit waiter of `round`.
fn side(round: u64) -> usize {
    (round % 2) as usize
}

impl LogState {
    /// The error for a thread that waits for `end` in vain: the failure itself, or that nothing was appended up to
    /// `end`.
    fn check_can_wait(&self, end: LogPosition) -> Result<()> {
        if let Some(poison) = &self.poison {
            return Err(poison.duplicate());
        }
        if end > self.tail.next {
            return Err(Error::internal(format!("commit of {end}, beyond the log's end at {}", self.tail.next)));
        }
        Ok(())
    }

    /// Moves the pending batch to `in_flight` and updates the durable offset in its first frame.
    fn take_pending(&mut self) -> (Arc<Batch>, LogPosition) {
        let spare = self.spare.take().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.pending, spare);
        if let Some(batch) = Arc::get_mut(&mut batch) {
            batch.restamp(self.durable);
        }
        self.in_flight = Some(Arc::clone(&batch));
        (batch, self.tail.next)
    }

    fn keep_spare(&mut self, mut batch: Arc<Batch>) {
        if let Some(unused) = Arc::get_mut(&mut batch) {
            unused.clear();
            self.spare = Some(batch);
        }
    }
}
