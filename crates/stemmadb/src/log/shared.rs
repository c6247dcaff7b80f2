//! State shared by the log and its readers: appending, reading and the current segment list.
//!
//! Concurrency: `state` is locked only as long as copying a frame takes, never during I/O. The holder of `state` may
//! lock `list`; a thread that holds another lock never locks `state`. `written` and `durable` are atomic copies of the
//! fields in `state`, for lock-free reads.

use std::sync::Arc;

use super::batch::{Batch, LogTail, NewFrame, NextSegment};
use super::cipher::{self, SegmentCipher, SegmentWriter, Session};
use super::commit::is_disk_full;
use super::commit_waiter::CommitWaiter;
use super::frame::{ALIGNMENT, FrameFormat, FrameKind};
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
    /// Whether what is written is encrypted.
    pub(super) is_encrypting: bool,
    /// Marks what is encrypted while the log is open.
    session: Session,
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
    /// Whether nothing is appended any more; from the beginning, if the log is followed.
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
            match options.follows {
                true => history.hide(segment.number),
                false => history.remove(segment.number)?,
            }
        }
        let keyring = vfs.keyring();
        let session = keyring.map_or(Ok(0), |keyring| cipher::new_session(keyring))?;
        let (format, is_encrypting) = (active.format, active.format.is_encrypted());
        let tail = LogTail {
            format,
            writer: SegmentWriter::new(keyring, format, active.number, session)?,
            next: end,
            capacity: options.segment_bytes,
            last_sequence: recovered.last_sequence,
            last_time_us: recovered.last_time_us,
            is_marked: repaired.is_marked,
        };
        let checksum_seed = ChecksumSeed::new(&recovered.database_id);
        Ok(Shared {
            // History that was written while the database was encrypted has decrypted records.
            checksum_seed: ChecksumSeed {
                is_opened: keyring.is_some() || !history.files().is_empty(),
                ..checksum_seed
            },
            is_encrypting,
            session,
            vfs,
            handles,
            database_id: recovered.database_id,
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
                is_closed: options.follows,
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
        if payload.is_encrypted != self.is_encrypting && !payload.starts.is_empty() {
            return Err(Error::internal("a payload has not the form that the log writes"));
        }
        let frame = NewFrame {
            kind: FrameKind::Data,
            first_sequence,
            payload: &payload.bytes,
            record_starts: &payload.starts,
            now_us: self.now_us.get(),
        };
        let mut state = self.state.lock();
        state.check_writable()?;
        self.push(&mut state, &frame)
    }

    /// An empty payload in the form that the log writes.
    pub(super) fn new_payload(&self) -> Payload {
        if self.is_encrypting { Payload::encrypted() } else { Payload::default() }
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
                self.roll_state(&mut state, self.segment_bytes, self.now_us.get())?;
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
        let expected = ExpectedSegments::encode(list.segments.iter().map(|segment| segment.number).chain(begun));
        let payload = match self.is_encrypting {
            true => cipher::payload_of(&expected),
            false => Payload::from(&expected[..]),
        };
        let (first_sequence, now_us) = (state.tail.last_sequence, self.now_us.get());
        let (payload, record_starts) = (&payload.bytes, &payload.starts);
        let mark = NewFrame { kind: FrameKind::Mark, first_sequence, payload, record_starts, now_us };
        self.push(&mut state, &mark)?;
        Ok(state.tail.next)
    }

    /// The newest list of segments.
    pub(super) fn list(&self) -> Arc<SegmentList> {
        Arc::clone(&self.list.read())
    }

    /// Reads a record, from the buffers if it is not written yet, otherwise from the segments of `list` and its
    /// successors, or from history.
    pub(super) fn read_since(
        &self,
        list: &SegmentList,
        position: LogPosition,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.read_records(list, position, bytes, &[(0, bytes)], out)
    }

    /// Reads a range with these records, each given by its start in the range and its length. Other bytes of the range
    /// are undefined if the log is encrypted.
    pub(super) fn read_records(
        &self,
        list: &SegmentList,
        position: LogPosition,
        bytes: usize,
        records: &[(usize, usize)],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if position.to_u64() >= self.written.load(Ordering::Acquire)
            && let Some(format) = self.read_unwritten(position, bytes, out)
        {
            let cipher = SegmentCipher::new(self.vfs.keyring(), format, position.segment());
            return match cipher.is_none_or(|cipher| cipher.first_damaged(out, position.offset(), records).is_none()) {
                true => Ok(()),
                false => Err(Error::internal("a record can't be decrypted before it is written")),
            };
        }
        let count = u32::try_from(bytes)
            .map_err(|_| Error::corrupt(format!("a read of {bytes} bytes at {position} is longer than any frame")))?;
        match list.find_since(position.segment()) {
            Some(segment) => segment.read_records(position.offset(), count, records, out),
            None if self.history.read(position, bytes, out)? => Ok(()),
            None => Err(Error::corrupt(format!("the log has no {position}: there is no such segment"))),
        }
    }

    /// Copies bytes that are not written yet, if there are; returns the format of their segment.
    fn read_unwritten(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Option<FrameFormat> {
        let state = self.state.lock();
        let mut batches = state.in_flight.iter().chain([&state.pending]);
        let (format, found) = batches.find_map(|batch| batch.find(position, bytes))?;
        out.clear();
        out.extend_from_slice(found);
        Some(format)
    }

    /// Adds a frame to the pending batch, in a new segment if it does not fit.
    fn push(&self, state: &mut LogState, frame: &NewFrame<'_>) -> Result<Appended> {
        if state.tail.is_full_for(frame.payload.len()) {
            let format = state.tail.format;
            let frame_bytes = format.version.frame_bytes(frame.payload.len());
            let capacity = self.segment_bytes.max(SEGMENT_HEADER_BYTES + frame_bytes + format.header_bytes());
            if state.tail.next.offset() > SEGMENT_HEADER_BYTES {
                self.roll_state(state, capacity, frame.now_us)?;
            } else {
                state.tail.capacity = capacity;
            }
        }
        let durable = state.durable;
        let batch = Arc::get_mut(&mut state.pending).ok_or_else(shared_batch)?;
        let position = state.tail.push(batch, frame, durable);
        Ok(Appended { payload: position.advance(state.tail.format.header_bytes()), end: state.tail.next })
    }

    /// Seals the segment; the next frame goes to a new one.
    fn roll_state(&self, state: &mut LogState, capacity: u32, now_us: u64) -> Result<()> {
        let (format, keyring) = (self.next_format(state.tail.format), self.vfs.keyring());
        let writer = SegmentWriter::new(keyring, format, state.tail.next.segment() + 1, self.session)?;
        let durable = state.durable;
        let batch = Arc::get_mut(&mut state.pending).ok_or_else(shared_batch)?;
        state.tail.roll(batch, durable, NextSegment { capacity, format, writer }, now_us);
        Ok(())
    }

    /// The format of the segment after one in this format. The key may be another one since; whether the log is
    /// encrypted does not change while it is open.
    fn next_format(&self, format: FrameFormat) -> FrameFormat {
        match self.vfs.keyring().and_then(|keyring| keyring.active()) {
            Some(key) if format.is_encrypted() => FrameFormat::current(&self.database_id, Some(key)),
            _ => format,
        }
    }
}

impl LogState {
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
