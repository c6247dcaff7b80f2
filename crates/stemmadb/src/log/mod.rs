//! What was written, in order? The log is the truth; everything else is reduced from it.
//!
//! A log is a row of *segments* (files of 64 MiB), each a row of *frames*; a frame is one transaction, whole or absent. One
//! thread at a time appends, any number wait for their frames to be written or flushed, and one write and one flush serve all
//! who wait ([`commit`]). Opening replays the frames ([`recovery`]).
//!
//! Invariants, each kept by the file named:
//! - What was acknowledged as [`Level::Flushed`] is found again after any crash, in order, with nothing missing before it.
//! - A segment is sealed and flushed before the next one gets its name, so only the last can have a torn end ([`commit`]).
//! - A damaged frame ends the log only if no later frame proves that it was whole once; then its bytes are kept aside
//!   ([`recovery`]). Anything else is [`Corrupt`](crate::ErrorKind::Corrupt), and nothing is touched.
//! - After the first failed write or flush nothing is written or acknowledged until the log is opened again ([`commit`]).
//! - A segment's file is reused only when no reader holds it, and the frames of its former life are invalid in its new one
//!   ([`retire`], [`frame`]).
//!
//! This room does not know what a payload means. Nothing else touches files, except LMDB its own.

mod batch;
mod commit;
mod frame;
mod position;
mod recovery;
mod retire;
mod scan;
mod segment;
mod vfs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::revision::Sequence;
use crate::{Error, Result};
use batch::{Batch, Tail};
use frame::{FRAME_HEADER_BYTES, FrameKind, PAYLOAD_BYTES_MAX, frame_bytes};
use retire::Free;
use scan::Scanner;
use segment::{SEGMENT_HEADER_BYTES, SegmentList};

pub(crate) use position::LogPosition;
pub(crate) use segment::{DatabaseId, FORMAT_VERSION, SegmentInfo, SegmentSet};
pub(crate) use vfs::{DatabaseLock, DiskVfs, MemoryVfs, Vfs, VfsFile, VfsLock};

/// How a log is opened.
#[derive(Debug, Clone)]
pub(crate) struct LogOptions {
    /// The size of a segment; a frame that does not fit gets a larger one. 4 KiB to 1 GiB.
    pub(crate) segment_bytes: u32,
    /// The id of the database: given to a new log, and demanded of an existing one. `None`: a new log gets a random one.
    pub(crate) database_id: Option<DatabaseId>,
    /// Replay begins here, at a frame's end as this log once told it. `None`: at the beginning of the first segment.
    pub(crate) replay_from: Option<LogPosition>,
    /// The caller knows that everything before this was flushed: a log that ends earlier is damaged.
    pub(crate) durable_at_least: LogPosition,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            segment_bytes: 64 * 1024 * 1024,
            database_id: None,
            replay_from: None,
            durable_at_least: LogPosition::START,
        }
    }
}

/// A frame, verified, as replay and [`Log::frames`] show it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// Where the payload begins: [`LogPosition::advance`] gives places in it.
    pub(crate) position: LogPosition,
    /// Where the frame ends: replay can begin here.
    pub(crate) end: LogPosition,
    pub(crate) first_sequence: Sequence,
    pub(crate) payload: &'a [u8],
}

/// Where an appended frame will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Where the payload begins.
    pub(crate) payload: LogPosition,
    /// Where the frame ends: what to commit.
    pub(crate) end: LogPosition,
}

/// How safe a frame is asked to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Handed to the operating system: survives the end of the process, not of the machine.
    Written,
    /// Flushed to the medium: survives power loss.
    Flushed,
}

/// What a log did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogStatistics {
    pub(crate) frame_count: u64,
    /// Writes of frames, each of a whole group.
    pub(crate) write_count: u64,
    /// Flushes of frames, each for a whole group.
    pub(crate) flush_count: u64,
    pub(crate) written_bytes: u64,
    /// Segments begun.
    pub(crate) roll_count: u64,
    /// Segments begun in a retired one's file.
    pub(crate) recycle_count: u64,
}

/// The log of one database. All methods may be called from any thread; there is one log per directory ([`DatabaseLock`]).
///
/// Dropping it flushes nothing: what is not committed may be lost, as in a crash. [`Log::close`] ends it in good order.
pub(crate) struct Log {
    shared: Arc<Shared>,
}

/// What the log and its readers have in common.
pub(crate) struct Shared {
    vfs: Arc<dyn Vfs>,
    database_id: DatabaseId,
    segment_bytes: u32,
    state: Mutex<State>,
    /// Signalled when `written` moves, a role is free again, or the log is poisoned.
    written_moved: Condvar,
    /// Signalled when `durable` moves, the flusher's role is free again, or the log is poisoned.
    durable_moved: Condvar,
    /// Copies of what the state holds, read without its lock.
    written: AtomicU64,
    durable: AtomicU64,
    is_poisoned: AtomicBool,
    segments: RwLock<Arc<SegmentList>>,
    free: Mutex<Vec<Free>>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    frames: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    bytes: AtomicU64,
    rolls: AtomicU64,
    recycled: AtomicU64,
}

/// Guarded by one lock, held for no longer than copying a frame takes; never during a read, write or flush.
struct State {
    tail: Tail,
    /// Appended and not yet being written. Nobody else holds it, so it can be added to.
    pending: Arc<Batch>,
    /// Being written.
    in_flight: Option<Arc<Batch>>,
    spare: Option<Arc<Batch>>,
    /// Somebody writes `in_flight`.
    is_writing: bool,
    /// Somebody leads a flush: takes what is pending, writes it, and flushes.
    is_flushing: bool,
    /// The leader of a flush still waits for a writer to finish; it will take all that is pending.
    is_gathering: bool,
    written: LogPosition,
    durable: LogPosition,
    poison: Option<Error>,
    is_closed: bool,
    /// The offset in the active segment's file up to which its bytes exist, zeros or stale.
    allocated: u64,
}

impl Log {
    /// Opens the log in `log/`, creating it if there is none, and shows every frame from `replay_from` on to `visit`, in order.
    ///
    /// What a crash left behind is put right: bytes after the last whole frame are kept as `log/torn-…` and zeroed, what was
    /// replayed is flushed, and a mark is appended that says so. Costs a read of what is replayed.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset if frames are damaged that were once whole; the log is left as it
    /// was. Whatever `visit` returns.
    pub(crate) fn open(
        vfs: Arc<dyn Vfs>,
        options: LogOptions,
        visit: &mut dyn FnMut(Frame<'_>) -> Result<()>,
    ) -> Result<Log> {
        let segment_range = 4096..=1 << 30;
        if !segment_range.contains(&options.segment_bytes) {
            return Err(Error::invalid(format!(
                "segments of {} bytes: 4096 to 2^30 are possible",
                options.segment_bytes
            )));
        }
        let recovered = recovery::recover(&vfs, &options, visit)?;
        let shared = Arc::new(Shared::new(vfs, &options, recovered)?);
        let log = Log { shared };
        log.mark()?;
        Ok(log)
    }

    /// Appends a frame to the buffer and says where it will be. No I/O: it is neither written nor durable until committed.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after a failed write or flush and after [`Log::close`]; [`Invalid`](crate::ErrorKind::Invalid)
    /// if the payload is 1 GiB or longer.
    pub(crate) fn append(&self, first_sequence: Sequence, payload: &[u8]) -> Result<Appended> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(format!("a transaction of {} bytes is too large for one frame", payload.len()))
                .with_hint("split it: a transaction can hold 1 GiB"));
        }
        self.shared.append(FrameKind::Data, Some(first_sequence), payload)
    }

    /// Waits until everything before `end` is as safe as `level` says. One write and one flush serve all who wait.
    ///
    /// # Errors
    /// The failure of the write or flush that would have served, [`Closed`](crate::ErrorKind::Closed) if one failed before. Then it is
    /// unknown whether the frame survives: opening the log again tells.
    pub(crate) fn commit(&self, end: LogPosition, level: Level) -> Result<()> {
        self.shared.commit(end, level)
    }

    /// Everything before this was handed to the operating system.
    pub(crate) fn written(&self) -> LogPosition {
        LogPosition::from_u64(self.shared.written.load(Ordering::Acquire))
    }

    /// Everything before this was flushed.
    pub(crate) fn durable(&self) -> LogPosition {
        LogPosition::from_u64(self.shared.durable.load(Ordering::Acquire))
    }

    /// Where the next frame goes: everything appended lies before it.
    pub(crate) fn end(&self) -> LogPosition {
        self.shared.state.lock().tail.next
    }

    /// Whether a write or flush failed: nothing more is taken until the log is opened again.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned.load(Ordering::Acquire)
    }

    pub(crate) fn database_id(&self) -> DatabaseId {
        self.shared.database_id
    }

    /// [`SegmentSet::read`] through the segments of now.
    pub(crate) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        let segments = Arc::clone(&self.shared.segments.read());
        self.shared.read_in(&segments, position, bytes, out)
    }

    /// The segments of now: what a reader holds to be able to read on when they are retired.
    pub(crate) fn segments_snapshot(&self) -> SegmentSet {
        SegmentSet { log: Arc::clone(&self.shared), segments: Arc::clone(&self.shared.segments.read()) }
    }

    /// What segments there are, in order.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        let segments = Arc::clone(&self.shared.segments.read());
        let active = segments.last().map(|segment| segment.number);
        let info = |segment: &Arc<segment::Segment>| SegmentInfo {
            number: segment.number,
            used_bytes: u64::from(segment.used()),
            is_active: Some(segment.number) == active,
        };
        segments.iter().map(info).collect()
    }

    /// Shows the frames of one segment to `visit`, in order, each verified; of the active one, those written so far.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such segment, [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset
    /// of the first damaged frame, whatever `visit` returns.
    pub(crate) fn frames(&self, segment: u32, visit: &mut dyn FnMut(Frame<'_>) -> Result<()>) -> Result<()> {
        let segments = Arc::clone(&self.shared.segments.read());
        let segment = segment::find(&segments, segment)
            .ok_or_else(|| Error::not_found(format!("the log has no segment {segment}")))?;
        let used = segment.used();
        let mut scanner = Scanner::new(segment, u64::from(used));
        let mut offset = SEGMENT_HEADER_BYTES;
        while offset < used {
            let Some(found) = scanner.frame_at(offset)? else {
                return Err(segment.damaged(offset, "a frame's checksum is wrong"));
            };
            if let Some(frame) = Frame::of(&found) {
                visit(frame)?;
            }
            offset = found.end().offset();
        }
        Ok(())
    }

    /// Ends the active segment, so that it can be retired, and flushes it. Does nothing if it has no frames.
    pub(crate) fn roll(&self) -> Result<()> {
        self.shared.roll()
    }

    /// Takes a segment out of the log, for good: nothing in it is needed any more. Its file is reused or removed when
    /// no [`SegmentSet`] holds it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for the active segment, [`NotFound`](crate::ErrorKind::NotFound) for none.
    pub(crate) fn retire(&self, segment: u32) -> Result<()> {
        self.shared.retire(segment)
    }

    /// Flushes everything appended, marks the log as whole, and takes no more. Reading goes on. Closing twice is closing once.
    pub(crate) fn close(&self) -> Result<()> {
        if self.shared.state.lock().is_closed {
            return Ok(());
        }
        self.commit(self.end(), Level::Flushed)?;
        self.mark()?;
        self.shared.state.lock().is_closed = true;
        Ok(())
    }

    pub(crate) fn statistics(&self) -> LogStatistics {
        let counters = &self.shared.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStatistics {
            frame_count: count(&counters.frames),
            write_count: count(&counters.writes),
            flush_count: count(&counters.flushes),
            written_bytes: count(&counters.bytes),
            roll_count: count(&counters.rolls),
            recycle_count: count(&counters.recycled),
        }
    }

    /// Appends a mark and flushes it, unless the last frame is one: all before it is then known to be durable.
    fn mark(&self) -> Result<()> {
        if self.shared.state.lock().tail.is_marked {
            return Ok(());
        }
        let mark = self.shared.append(FrameKind::Mark, None, &[])?;
        self.commit(mark.end, Level::Flushed)
    }
}

impl<'a> Frame<'a> {
    /// The frame as the caller knows it, if it is a transaction.
    fn of(found: &scan::Found<'a>) -> Option<Self> {
        (found.header.kind == FrameKind::Data).then(|| Frame {
            position: found.payload_position(),
            end: found.end(),
            first_sequence: found.header.first_sequence,
            payload: found.payload,
        })
    }
}

impl Shared {
    fn new(vfs: Arc<dyn Vfs>, options: &LogOptions, recovered: recovery::Recovered) -> Result<Self> {
        let active = recovered.segments.last().ok_or_else(|| Error::internal("a log without segments"))?;
        let end = LogPosition::new(active.number, active.used());
        let allocated = active.file.len().map_err(|error| Error::io(format_args!("examine {}", active.name), error))?;
        let tail = Tail {
            next: end,
            capacity: options.segment_bytes,
            last_sequence: recovered.last_sequence,
            is_marked: recovered.is_marked,
        };
        Ok(Shared {
            vfs,
            database_id: recovered.database_id,
            segment_bytes: options.segment_bytes,
            state: Mutex::new(State {
                tail,
                pending: Arc::default(),
                in_flight: None,
                spare: None,
                is_writing: false,
                is_flushing: false,
                is_gathering: false,
                written: end,
                durable: end,
                poison: None,
                is_closed: false,
                allocated,
            }),
            written_moved: Condvar::new(),
            durable_moved: Condvar::new(),
            written: AtomicU64::new(end.to_u64()),
            durable: AtomicU64::new(end.to_u64()),
            is_poisoned: AtomicBool::new(false),
            segments: RwLock::new(Arc::new(recovered.segments)),
            free: Mutex::new(recovered.free),
            counters: Counters::default(),
        })
    }

    fn append(&self, kind: FrameKind, first_sequence: Option<Sequence>, payload: &[u8]) -> Result<Appended> {
        let checksum = crc32c::crc32c(payload);
        let mut state = self.state.lock();
        state.refuse_if_ended()?;
        let State { tail, pending, durable, .. } = &mut *state;
        let batch = Arc::get_mut(pending).ok_or_else(|| Error::internal("the pending batch is shared"))?;
        if tail.is_full_for(payload.len()) {
            let needed = SEGMENT_HEADER_BYTES + frame_bytes(payload.len()) + FRAME_HEADER_BYTES;
            let capacity = self.segment_bytes.max(needed);
            if tail.next.offset() > SEGMENT_HEADER_BYTES {
                tail.roll(batch, *durable, capacity);
            } else {
                tail.capacity = capacity;
            }
        }
        let sequence = first_sequence.unwrap_or(tail.last_sequence);
        let place = tail.push(batch, kind, sequence, payload, checksum, *durable);
        Ok(Appended { payload: place.advance(FRAME_HEADER_BYTES), end: tail.next })
    }

    fn roll(&self) -> Result<()> {
        let end = {
            let mut state = self.state.lock();
            state.refuse_if_ended()?;
            let State { tail, pending, durable, .. } = &mut *state;
            if tail.next.offset() > SEGMENT_HEADER_BYTES {
                let batch = Arc::get_mut(pending).ok_or_else(|| Error::internal("the pending batch is shared"))?;
                tail.roll(batch, *durable, self.segment_bytes);
            }
            tail.next
        };
        self.commit(end, Level::Flushed)
    }

    /// Reads from the buffers what is not written yet, else from `segments`, else from the segments of now.
    fn read_in(&self, segments: &SegmentList, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        if position.to_u64() >= self.written.load(Ordering::Acquire) && self.read_unwritten(position, bytes, out) {
            return Ok(());
        }
        let count = u32::try_from(bytes)
            .map_err(|_| Error::corrupt(format!("a read of {bytes} bytes at {position} is longer than any frame")))?;
        if let Some(segment) = segment::find(segments, position.segment()) {
            return segment.read(position.offset(), count, out);
        }
        let now = Arc::clone(&self.segments.read());
        match segment::find(&now, position.segment()) {
            Some(segment) => segment.read(position.offset(), count, out),
            None => Err(Error::corrupt(format!("the log has no {position}: that segment is missing"))),
        }
    }

    fn read_unwritten(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> bool {
        let state = self.state.lock();
        let batches = state.in_flight.iter().chain(Some(&state.pending));
        for batch in batches {
            if let Some(found) = batch.find(position, bytes) {
                out.clear();
                out.extend_from_slice(found);
                return true;
            }
        }
        false
    }
}

impl State {
    /// The error every caller gets once the log is closed or poisoned.
    fn refuse_if_ended(&self) -> Result<()> {
        if let Some(poison) = &self.poison {
            return Err(Error::closed(format!("the log takes no writes since one failed: {poison}"))
                .with_hint("mend the cause, then reopen the database; nothing acknowledged is lost"));
        }
        if self.is_closed {
            return Err(Error::closed("the log is closed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
