//! Write-ahead log: the ordered record of every transaction, from which all other state can be rebuilt.
//!
//! A log is a sequence of *segments* (files of 64 MiB), and a segment is a sequence of *frames*. A frame holds one
//! transaction and is either complete or absent. One thread at a time appends; any number of threads wait for their
//! frames to be written or flushed, and one write and one flush serve all of them ([`commit`]). Opening the log replays
//! the frames ([`recovery`]).
//!
//! Invariants, each maintained by the file named:
//! - A frame acknowledged at [`Level::Flushed`] survives any crash, in order, together with every frame before it.
//! - A segment is sealed and flushed before the next one gets its name, so only the last segment can have a torn end
//!   ([`commit`]).
//! - A damaged frame ends the log only if no later frame proves that it was once complete; its bytes are then copied to
//!   a separate file ([`recovery`]). Any other damage is [`Corrupt`](crate::ErrorKind::Corrupt), and no file is
//!   modified.
//! - After the first failed write or flush, nothing is written or acknowledged until the log is reopened ([`commit`]).
//! - A segment's file is reused only when no reader holds it, and frames left over from its previous use are invalid in
//!   the new segment ([`retire`], [`frame`]).
//! - A record is valid only in the database and at the position that it was written for ([`payload`]).
//!
//! Of a payload, this module knows only where its records begin.

mod batch;
mod blobs;
mod cipher;
mod commit;
mod commit_waiter;
mod content_hash;
mod damaged_log;
mod export;
mod follow;
mod frame;
mod handles;
mod history;
mod mark;
mod payload;
mod position;
mod recovery;
mod repair;
mod retire;
mod scan;
mod segment;
mod set;
mod shared;
mod times;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::revision::Sequence;
use crate::sync::atomic::Ordering;
use crate::vfs::Vfs;
use crate::{Error, Result};
use frame::{FrameKind, PAYLOAD_BYTES_MAX};
use handles::Handles;
use scan::Scanner;
use segment::{SEGMENT_HEADER_BYTES, Segment};
use shared::Shared;

pub use blobs::{Blob, BlobReader, Digest};
pub(crate) use blobs::{Blobs, Sweep, is_content_of};
pub(crate) use cipher::OPENED;
pub(crate) use commit::is_disk_full;
pub use damaged_log::Skipped;
pub(crate) use damaged_log::{DamagedLog, SurvivingPayload};
pub(crate) use export::{ExportedSegment, FrameVisit, has_segments, read_frames, segment_file_name, segment_numbers};
pub(crate) use follow::FollowedEnd;
pub(crate) use history::{
    ExportedHistory, History, HistoryInfo, HistoryWriter, Moment, history_name, surviving_history, verify_history,
};
pub(crate) use payload::{ChecksumSeed, Payload};
pub(crate) use position::LogPosition;
pub(crate) use retire::{RetiredFile, RetiredSegment};
pub(crate) use segment::{DatabaseId, ENCRYPTED_FORMAT_VERSION, FORMAT_VERSION, SegmentInfo};
pub(crate) use set::SegmentSet;

/// Options for opening a log.
#[derive(Debug, Clone)]
pub(crate) struct LogOptions {
    /// Size of a segment, 4 KiB to 1 GiB; a frame that does not fit gets a larger segment.
    pub(crate) segment_bytes: u32,
    /// Database id: assigned to a new log, required to match in an existing one. `None`: a new log gets a random id.
    pub(crate) database_id: Option<DatabaseId>,
    /// Replay starts here, at the end of a frame. `None`: at the start of the first segment.
    pub(crate) replay_from: Option<LogPosition>,
    /// Everything before this position was flushed; a log that ends earlier is damaged.
    pub(crate) durable_at_least: LogPosition,
    /// The clock that commit times are taken from.
    pub(crate) now_us: TimeSource,
    /// Whether another process appends to the log: nothing is repaired, and nothing written. See [`Log::follow`].
    pub(crate) follows: bool,
}

/// A clock: returns microseconds since 1970.
#[derive(Clone)]
pub(crate) struct TimeSource(Arc<dyn Fn() -> u64 + Send + Sync>);

impl TimeSource {
    pub(crate) fn new(now_us: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        TimeSource(Arc::new(now_us))
    }

    fn get(&self) -> u64 {
        (self.0)()
    }
}

impl std::fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TimeSource")
    }
}

impl Default for TimeSource {
    fn default() -> Self {
        TimeSource::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64))
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            segment_bytes: 64 * 1024 * 1024,
            database_id: None,
            replay_from: None,
            durable_at_least: LogPosition::START,
            now_us: TimeSource::default(),
            follows: false,
        }
    }
}

/// A verified frame, as passed to the visitors of replay and [`Log::frames`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// Position of the payload; use [`LogPosition::advance`] for positions within it.
    pub(crate) position: LogPosition,
    /// Position after the frame; replay can start here.
    pub(crate) end: LogPosition,
    pub(crate) first_sequence: Sequence,
    /// The commit time, in microseconds since 1970; 0 for frames of versions that did not record it.
    pub(crate) time_us: u64,
    /// What the checksums of its records depend on.
    pub(crate) seed: ChecksumSeed,
    pub(crate) payload: &'a [u8],
}

/// A copy of a frame.
pub(crate) struct OwnedFrame {
    /// The frame without its payload.
    frame: Frame<'static>,
    payload: Vec<u8>,
}

impl OwnedFrame {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        OwnedFrame { frame: Frame { payload: &[], ..*frame }, payload: frame.payload.to_vec() }
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame { payload: &self.payload, ..self.frame }
    }
}

/// The positions assigned to an appended frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Start of the payload.
    pub(crate) payload: LogPosition,
    /// End of the frame; pass this to [`Log::commit`].
    pub(crate) end: LogPosition,
}

/// The durability level that a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Written to the operating system: survives a process crash, but not a machine crash or power loss.
    Written,
    /// Flushed to the storage medium: survives power loss.
    Flushed,
}

/// Positions up to which a log has been written and flushed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Everything before this was written to the operating system.
    pub(crate) written: LogPosition,
    /// Everything before this was flushed.
    pub(crate) durable: LogPosition,
}

/// Counters of a log since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogStatistics {
    pub(crate) frame_count: u64,
    /// Write calls; each writes a whole group of frames.
    pub(crate) write_count: u64,
    /// Flush calls; each flushes a whole group of frames.
    pub(crate) flush_count: u64,
    pub(crate) written_bytes: u64,
    /// Segments started.
    pub(crate) roll_count: u64,
    /// Segments started in the file of a retired segment.
    pub(crate) recycle_count: u64,
}

/// The log of one database. Methods may be called from any thread. [`DatabaseLock`](crate::vfs::DatabaseLock) allows
/// one log per directory.
///
/// Dropping it does not flush: uncommitted frames may be lost, as in a crash. Use [`Log::close`] for an orderly
/// shutdown.
pub(crate) struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens the log in `log/`, creating it if it does not exist, and passes every frame from `replay_from` on to
    /// `visit`, in order.
    ///
    /// Repairs the effects of a crash: bytes after the last complete frame are copied to `log/torn-…` and zeroed, the
    /// replayed frames are flushed, and a mark frame records that they are durable. If the disk is too full for the
    /// mark, the log is readable but rejects writes. Cost: reads everything that is replayed. A segment whose
    /// retirement was interrupted by a crash may be replayed once more.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset if frames are damaged that were once complete; the
    /// log is not modified. Errors of `visit` are returned unchanged.
    pub(crate) fn open(
        vfs: Arc<dyn Vfs>,
        options: LogOptions,
        visit: &mut dyn FnMut(Frame<'_>) -> Result<()>,
    ) -> Result<Log> {
        if !(4096..=1 << 30).contains(&options.segment_bytes) {
            return Err(Error::invalid(format!(
                "segments of {} bytes: 4096 to 2^30 are possible",
                options.segment_bytes
            )));
        }
        let handles = Handles::new(Arc::clone(&vfs));
        let recovered = recovery::recover(&*vfs, &handles, &options, visit)?;
        let shared = Arc::new(Shared::new(vfs, handles, &options, recovered)?);
        if !options.follows {
            shared.mark_if_possible()?;
        }
        Ok(Log { shared })
    }

    /// Appends a frame to the in-memory buffer and returns its position. No I/O: the frame is neither written nor
    /// durable until it is committed.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after a failed write or flush and after [`Log::close`];
    /// [`Invalid`](crate::ErrorKind::Invalid) if the payload is 1 GiB or longer.
    pub(crate) fn append(&self, first_sequence: Sequence, payload: &Payload) -> Result<Appended> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(format!("a transaction of {} bytes is too large for one frame", payload.len()))
                .with_hint("split it: a transaction can hold 1 GiB"));
        }
        self.shared.append(first_sequence, payload)
    }

    /// An empty payload, to append.
    pub(crate) fn new_payload(&self) -> Payload {
        self.shared.new_payload()
    }

    /// Appends a frame of bytes that are not records.
    #[cfg(test)]
    pub(crate) fn append_bytes(&self, first_sequence: Sequence, bytes: &[u8]) -> Result<Appended> {
        self.append(first_sequence, &Payload::from(bytes))
    }

    /// Waits until everything before `end` has reached `level`. One write and one flush serve all waiting threads.
    ///
    /// # Errors
    /// The error of the write or flush that covered this frame; [`Closed`](crate::ErrorKind::Closed) if one failed
    /// earlier. It is then unknown whether the frame survives until the log is reopened.
    pub(crate) fn commit(&self, end: LogPosition, level: Level) -> Result<()> {
        self.shared.commit(end, level)
    }

    /// The positions up to which the log was written and flushed; `None` once a write or flush has failed. From then on
    /// the written position is meaningless: the bytes may be missing at the next open, and commits waiting for them may
    /// have failed.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let progress = Progress { written: self.written(), durable: self.durable() };
        (!self.is_poisoned()).then_some(progress)
    }

    fn written(&self) -> LogPosition {
        LogPosition::from_u64(self.shared.written.load(Ordering::Acquire))
    }

    fn durable(&self) -> LogPosition {
        LogPosition::from_u64(self.shared.durable.load(Ordering::Acquire))
    }

    /// The end of the log: the position of the next frame.
    pub(crate) fn end(&self) -> LogPosition {
        self.shared.end()
    }

    /// The id of the database that the log belongs to.
    pub(crate) fn database_id(&self) -> DatabaseId {
        self.shared.database_id
    }

    /// What the checksums of records depend on, apart from their positions.
    pub(crate) fn checksum_seed(&self) -> ChecksumSeed {
        self.shared.checksum_seed
    }

    /// Whether a write or flush has failed. If so, the log rejects writes until it is reopened.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned.load(Ordering::Acquire)
    }

    /// [`SegmentSet::read`] on the current segments.
    #[cfg(test)]
    pub(crate) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        let list = self.shared.list();
        self.shared.read_since(&list, position, bytes, out)
    }

    /// A handle that keeps the current and all later segments readable, even after they are retired.
    pub(crate) fn segments_snapshot(&self) -> SegmentSet {
        SegmentSet { log: Arc::clone(&self.shared), list: self.shared.list() }
    }

    /// Bytes used in all segments.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.shared.list().segments.iter().map(|segment| u64::from(segment.used())).sum()
    }

    /// Information about every segment, in order.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        let list = self.shared.list();
        let active = list.segments.last().map(|segment| segment.number);
        let info = |segment: &Arc<Segment>| SegmentInfo {
            number: segment.number,
            key: segment.format.key,
            used_bytes: u64::from(segment.used()),
            is_active: Some(segment.number) == active,
        };
        list.segments.iter().map(info).collect()
    }

    /// Passes the frames of one segment to `visit`, in order and verified. For the active segment, the frames written
    /// so far.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if the segment does not exist; [`Corrupt`](crate::ErrorKind::Corrupt)
    /// with file and offset of the first damaged frame. Errors of `visit` are returned unchanged.
    pub(crate) fn frames(&self, segment: u32, visit: &mut dyn FnMut(Frame<'_>) -> Result<()>) -> Result<()> {
        let list = self.shared.list();
        let segment = list.find(segment).ok_or_else(|| segment::no_segment(segment))?;
        let used = segment.used();
        let mut scanner = Scanner::new(segment, u64::from(used));
        let mut offset = SEGMENT_HEADER_BYTES;
        while offset < used {
            let Some(found) = scanner.frame_at(offset)? else {
                return Err(segment.damaged(offset, "a frame's checksum is wrong"));
            };
            if found.header.kind == FrameKind::Data {
                visit(Frame::from_scan(&found))?;
            }
            offset = found.end().offset();
        }
        Ok(())
    }

    /// The position of the first non-zero byte in a segment's padding or after its seal, where all bytes must be zero.
    /// Such a byte means no loss of data, but the file was modified by something else.
    pub(crate) fn first_unexpected_byte(&self, segment: u32) -> Result<Option<LogPosition>> {
        let list = self.shared.list();
        let segment = list.find(segment).ok_or_else(|| segment::no_segment(segment))?;
        let used = segment.used();
        let mut scanner = Scanner::new(segment, u64::from(used));
        let mut offset = SEGMENT_HEADER_BYTES;
        while offset < used {
            let Some(header) = scanner.header_at(offset)? else { return Ok(None) };
            let (end, payload) = (offset + header.frame_bytes(), offset + segment.format.header_bytes());
            let start = payload + header.payload_bytes;
            if let Some(at) =
                scanner.bytes(u64::from(start), (end - start) as usize)?.iter().position(|&byte| byte != 0)
            {
                return Ok(Some(LogPosition::new(segment.number, start + at as u32)));
            }
            offset = end;
        }
        let is_active = list.segments.last().is_some_and(|last| last.number == segment.number);
        let sealed = used + segment.format.header_bytes();
        let has_more = !is_active && segment.length()? > u64::from(sealed);
        Ok(has_more.then(|| LogPosition::new(segment.number, sealed)))
    }

    /// Seals and flushes the active segment so that it can be retired. Does nothing if the segment has no frames.
    pub(crate) fn roll(&self) -> Result<()> {
        self.shared.roll()
    }

    /// Removes a segment from the log permanently. Its file is reused or removed once no [`SegmentSet`] holds it. The
    /// caller guarantees that nothing in the segment is still needed.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for the active segment; [`NotFound`](crate::ErrorKind::NotFound) if the
    /// segment does not exist.
    pub(crate) fn retire_file(&self, segment: u32, file: RetiredFile) -> Result<RetiredSegment> {
        self.shared.retire(segment, file)
    }

    /// Retires a segment whose file may be reused.
    #[cfg(test)]
    pub(crate) fn retire(&self, segment: u32) -> Result<()> {
        self.retire_file(segment, RetiredFile::KeptForReuse).map(|_| ())
    }

    /// Gives the files of retired segments back to the file system, instead of reusing them.
    pub(crate) fn remove_free(&self) -> Result<()> {
        self.shared.remove_free()
    }

    /// Removes the copies of torn ends.
    pub(crate) fn remove_torn(&self) -> Result<()> {
        repair::remove_torn(&*self.shared.vfs)
    }

    /// Bytes of all files of the log, with those that are kept for reuse.
    pub(crate) fn file_bytes(&self) -> Result<u64> {
        self.shared.file_bytes()
    }

    /// Bytes of the active segment's file that are neither used nor allocated for the next writes: it was reused.
    pub(crate) fn unused_bytes(&self) -> Result<u64> {
        self.shared.unused_bytes()
    }

    /// When the transaction with this sequence was committed, in microseconds since 1970; `None` if that is not known.
    /// Reads one segment, if its times were not asked for before.
    pub(crate) fn time_of(&self, sequence: Sequence) -> Result<Option<u64>> {
        self.shared.time_of(sequence)
    }

    /// Whether all segments record commit times.
    pub(crate) fn has_times(&self) -> bool {
        self.shared.list().segments.iter().all(|segment| segment.format.version != frame::Version::One)
    }

    /// The records of retired segments that are kept for reading the past.
    pub(crate) fn history(&self) -> &History {
        &self.shared.history
    }

    /// The first sequence of the first transaction that was committed after `time_us` (microseconds since 1970) and
    /// whose segment still exists; `None` if there is none. Reads one segment, if its times were not asked for before.
    pub(crate) fn first_sequence_after(&self, time_us: u64) -> Result<Option<Sequence>> {
        self.shared.first_sequence_after(time_us)
    }

    /// Flushes everything appended, appends a mark that the log is complete, and rejects further writes. Reads remain
    /// possible. Closing twice has no further effect.
    pub(crate) fn close(&self) -> Result<()> {
        self.shared.close()
    }

    /// Closes the file that is written to, if everything is flushed. The next write opens it again.
    pub(crate) fn close_idle_file(&self) {
        self.shared.close_idle_file();
    }

    pub(crate) fn statistics(&self) -> LogStatistics {
        self.shared.counters.read()
    }
}

impl<'a> Frame<'a> {
    /// The frame as visitors see it.
    fn from_scan(found: &scan::ScannedFrame<'a>) -> Self {
        Frame {
            position: found.payload_position(),
            end: found.end(),
            first_sequence: found.header.first_sequence,
            time_us: found.header.time_us,
            seed: found.seed,
            payload: found.payload,
        }
    }
}

#[cfg(test)]
mod tests;
