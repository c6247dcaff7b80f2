//! State shared by the log and its readers: appending, reading and the current segment list.
//!
//! Concurrency: `state` is locked only as long as copying a frame takes, never during I/O. The holder of `state` may
//! lock `list`; a thread that holds another lock never locks `state`. `written` and `durable` are atomic copies of the
//! fields in `state`, for lock-free reads.

use std::sync::Arc;

use super::batch::{Batch, LogTail, NewFrame};
use super::commit::is_disk_full;
use super::commit_waiter::CommitWaiter;
use super::frame::{ALIGNMENT, FRAME_HEADER_BYTES, FrameFormat, FrameKind, Version};
use super::handles::Handles;
use super::history::History;
use super::mark::ExpectedSegments;
use super::payload::{ChecksumSeed, Payload};
use super::recovery::Recovered;
use super::retire::FreeFile;
use super::segment::{DatabaseId, SEGMENT_HEADER_BYTES};
use super::set::SegmentList;
use super::{Appended, Level, LogOptions, LogPosition, LogStatistics, TimeSource};
use crate::revision::Sequence;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::vfs::Vfs;
use crate::{Error, Result};

pub(crate) struct Shared {
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) handles: Arc<Handles>,
    pub(super) database_id: DatabaseId,
    /// Derived from the id; reads need it.
    pub(super) checksum_seed: ChecksumSeed,
    pub(super) segment_bytes: u32,
    now_us: TimeSource,
    pub(super) state: Mutex<LogState>,
    /// Signaled when `written` advances, the writer's role is released, or the log is poisoned.
    pub(super) written_moved: Condvar,
    /// Threads waiting for a flush; consecutive rounds alternate between the two.
    pub(super) commit_waiters: [CommitWaiter; 2],
    pub(super) written: AtomicU64,
    pub(super) durable: AtomicU64,
    pub(super) is_poisoned: AtomicBool,
    /// The newest list of segments.
    pub(super) list: RwLock<Arc<SegmentList>>,
    pub(super) history: History,
    pub(super) free: Mutex<Vec<FreeFile>>,
    /// Serializes retirements.
    pub(super) retiring: Mutex<()>,
    pub(super) counters: Counters,
}

pub(super) struct LogState {
    pub(super) tail: LogTail,
    /// Appended frames that are not being written yet. Not shared, so that frames can be added.
    pub(super) pending: Arc<Batch>,
    /// The batch that is being written.
    pub(super) in_flight: Option<Arc<Batch>>,
    pub(super) spare: Option<Arc<Batch>>,
    /// Whether a thread is writing `in_flight`.
    pub(super) is_writing: bool,
    /// Whether a thread leads a round: takes the pending batch, writes it and flushes.
    pub(super) is_flushing: bool,
    /// Whether the leader is still waiting for a writer to finish; it then takes the whole pending batch.
    pub(super) is_gathering: bool,
    /// Number of the running or last round, starting at 1.
    pub(super) round: u64,
    /// The running round covers everything before this position.
    pub(super) served: LogPosition,
    /// Which of the two commit waiters has waiting threads.
    pub(super) waiting: [bool; 2],
    pub(super) written: LogPosition,
    pub(super) durable: LogPosition,
    pub(super) poison: Option<Error>,
    is_closed: bool,
    /// Offset in the active segment's file up to which its bytes are allocated, zeroed or stale.
    pub(super) allocated: u64,
}

impl Shared {
    pub(super) fn new(
        vfs: Arc<dyn Vfs>,
        handles: Arc<Handles>,
        options: &LogOptions,
        recovered: Recovered,
    ) -> Result<Self> {
        let repaired = recovered.repaired;
        let active = repaired.segments.last().ok_or_else(|| Error::internal("a log without segments"))?;
        let end = LogPosition::new(active.number, active.used());
        debug_assert!(end.offset().is_multiple_of(ALIGNMENT), "a recovered log ends at a frame boundary");
        active.pin()?;
        let allocated = active.length()?;
        let history = History::open(&vfs, recovered.database_id)?;
        for segment in &repaired.segments {
            history.remove(segment.number)?;
        }
        let tail = LogTail {
            format: FrameFormat::current(&recovered.database_id),
            next: end,
            capacity: options.segment_bytes,
            last_sequence: recovered.last_sequence,
            last_time_us: recovered.last_time_us,
            is_marked: repaired.is_marked,
        };
        Ok(Shared {
            vfs,
            handles,
            database_id: recovered.database_id,
            checksum_seed: ChecksumSeed::new(&recovered.database_id),
            segment_bytes: options.segment_bytes,
            now_us: options.now_us.clone(),
            state: Mutex::new(LogState {
                tail,
                pending: Arc::default(),
                in_flight: None,
                spare: None,
                is_writing: false,
                is_flushing: false,
                is_gathering: false,
                round: 0,
                served: end,
                waiting: [false; 2],
                written: end,
                durable: end,
                poison: None,
                is_closed: false,
                allocated,
            }),
            written_moved: Condvar::new(),
            commit_waiters: Default::default(),
            written: AtomicU64::new(end.to_u64()),
            durable: AtomicU64::new(end.to_u64()),
            is_poisoned: AtomicBool::new(false),
            history,
            list: RwLock::new(Arc::new(SegmentList::new(repaired.segments))),
            free: Mutex::new(repaired.free),
            retiring: Mutex::new(()),
            counters: Counters::default(),
        })
    }

    pub(super) fn append(&self, first_sequence: Sequence, payload: &Payload) -> Result<Appended> {
        let frame = NewFrame {
            kind: FrameKind::Data,
            first_sequence,
            payload: &payload.bytes,
            record_starts: &payload.starts,
            now_us: self.now_us.get(),
        };
        let mut state = self.state.lock();
        state.check_writable()?;
        state.push(self.segment_bytes, &frame)
    }

    /// The position of the next frame.
    pub(super) fn end(&self) -> LogPosition {
        self.state.lock().tail.next
    }

    pub(super) fn roll(&self) -> Result<()> {
        let end = {
            let mut state = self.state.lock();
            state.check_writable()?;
            if state.tail.next.offset() > SEGMENT_HEADER_BYTES {
                state.roll(self.segment_bytes, self.now_us.get())?;
            }
            state.tail.next
        };
        self.commit(end, Level::Flushed)
    }

    /// Appends a mark and flushes it, unless the last frame is a mark: then everything before it is known to be
    /// durable.
    pub(super) fn mark(&self) -> Result<()> {
        let end = self.append_mark(false)?;
        self.commit(end, Level::Flushed)
    }

    /// Appends a mark to a log that was just opened. If the disk is full, the log is left poisoned, and therefore
    /// read-only.
    pub(super) fn mark_if_possible(&self) -> Result<()> {
        match self.mark() {
            Err(_) if self.state.lock().poison.as_ref().is_some_and(is_disk_full) => Ok(()),
            outcome => outcome,
        }
    }

    pub(super) fn close(&self) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.is_closed && state.durable == state.tail.next {
                return Ok(());
            }
            state.check_not_poisoned()?;
            state.is_closed = true;
        }
        self.commit(self.end(), Level::Flushed)?;
        let end = self.append_mark(false)?;
        self.commit(end, Level::Flushed)
    }

    /// Appends a mark that lists the current segments. `is_forced`: even if the last frame is a mark.
    pub(super) fn append_mark(&self, is_forced: bool) -> Result<LogPosition> {
        let mut state = self.state.lock();
        state.check_not_poisoned()?;
        if state.tail.is_marked && !is_forced {
            return Ok(state.tail.next);
        }
        let list = self.list();
        let last = list.segments.last().map_or(0, |segment| segment.number);
        // Segments started in the buffer count too, although they have no file yet.
        let begun = last + 1..=state.tail.next.segment();
        let payload = ExpectedSegments::encode(list.segments.iter().map(|segment| segment.number).chain(begun));
        let (first_sequence, now_us) = (state.tail.last_sequence, self.now_us.get());
        let mark = NewFrame { kind: FrameKind::Mark, first_sequence, payload: &payload, record_starts: &[], now_us };
        state.push(self.segment_bytes, &mark)?;
        Ok(state.tail.next)
    }

    /// The newest list of segments.
    pub(super) fn list(&self) -> Arc<SegmentList> {
        Arc::clone(&self.list.read())
    }

    /// Reads from the buffers if the bytes are not written yet, otherwise from the segments of `list` and its
    /// successors.
    pub(super) fn read_since(
        &self,
        list: &SegmentList,
        position: LogPosition,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if position.to_u64() >= self.written.load(Ordering::Acquire) && self.read_unwritten(position, bytes, out) {
            return Ok(());
        }
        let count = u32::try_from(bytes)
            .map_err(|_| Error::corrupt(format!("a read of {bytes} bytes at {position} is longer than any frame")))?;
        match list.find_since(position.segment()) {
            Some(segment) => segment.read(position.offset(), count, out),
            None if self.history.read(position, bytes, out)? => Ok(()),
            None => Err(Error::corrupt(format!("the log has no {position}: there is no such segment"))),
        }
    }

    fn read_unwritten(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> bool {
        let state = self.state.lock();
        let mut batches = state.in_flight.iter().chain([&state.pending]);
        match batches.find_map(|batch| batch.find(position, bytes)) {
            Some(found) => {
                out.clear();
                out.extend_from_slice(found);
                true
            }
            None => false,
        }
    }
}

impl LogState {
    /// Adds a frame to the pending batch, in a new segment if it does not fit.
    fn push(&mut self, segment_bytes: u32, frame: &NewFrame<'_>) -> Result<Appended> {
        if self.tail.is_full_for(frame.payload.len()) {
            let frame_bytes = Version::CURRENT.frame_bytes(frame.payload.len());
            let capacity = segment_bytes.max(SEGMENT_HEADER_BYTES + frame_bytes + FRAME_HEADER_BYTES);
            if self.tail.next.offset() > SEGMENT_HEADER_BYTES {
                self.roll(capacity, frame.now_us)?;
            } else {
                self.tail.capacity = capacity;
            }
        }
        let durable = self.durable;
        let batch = Arc::get_mut(&mut self.pending).ok_or_else(shared_batch)?;
        let position = self.tail.push(batch, frame, durable);
        Ok(Appended { payload: position.advance(FRAME_HEADER_BYTES), end: self.tail.next })
    }

    /// Seals the segment; the next frame goes to a new one.
    fn roll(&mut self, capacity: u32, now_us: u64) -> Result<()> {
        let durable = self.durable;
        let batch = Arc::get_mut(&mut self.pending).ok_or_else(shared_batch)?;
        self.tail.roll(batch, durable, capacity, now_us);
        Ok(())
    }

    /// Returns an error if the log is closed or poisoned.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_not_poisoned()?;
        if self.is_closed {
            return Err(Error::closed("the log is closed"));
        }
        Ok(())
    }

    fn check_not_poisoned(&self) -> Result<()> {
        match &self.poison {
            Some(poison) => Err(Error::closed(format!("the log takes no writes since one failed: {poison}"))
                .with_hint("fix the cause, then reopen the database; nothing acknowledged is lost")),
            None => Ok(()),
        }
    }
}

fn shared_batch() -> Error {
    Error::internal("the log's pending batch is shared")
}

/// Counters since opening.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) frames: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) rolls: AtomicU64,
    pub(super) recycled: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> LogStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStatistics {
            frame_count: count(&self.frames),
            write_count: count(&self.writes),
            flush_count: count(&self.flushes),
            written_bytes: count(&self.bytes),
            roll_count: count(&self.rolls),
            recycle_count: count(&self.recycled),
        }
    }
}
