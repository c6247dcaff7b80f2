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
mod blobs;
mod commit;
mod commit_waiter;
mod damaged_log;
mod frame;
mod handles;
mod mark;
mod position;
mod recovery;
mod repair;
mod retire;
mod scan;
mod segment;
mod set;
mod shared;
mod vfs;

use std::sync::Arc;

use crate::revision::Sequence;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};
use frame::{FRAME_HEADER_BYTES, FrameKind, PAYLOAD_BYTES_MAX};
use handles::Handles;
use scan::Scanner;
use segment::{SEGMENT_HEADER_BYTES, Segment};
use shared::Shared;

pub(crate) use blobs::Blobs;
pub use blobs::{Blob, BlobReader, Digest};
pub use damaged_log::Skipped;
pub(crate) use damaged_log::{Remains, Wreck};
pub(crate) use position::LogPosition;
pub(crate) use segment::{DatabaseId, FORMAT_VERSION, SegmentInfo};
pub(crate) use set::SegmentSet;
pub use vfs::{Call, Failure, FaultVfs, Random};
pub(crate) use vfs::{DatabaseLock, DiskVfs, MemoryVfs, ReadingVfs, Vfs};
#[cfg(test)]
pub(crate) use vfs::{VfsFile, VfsLock};

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

/// How far a log has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Everything before this was handed to the operating system.
    pub(crate) written: LogPosition,
    /// Everything before this was flushed.
    pub(crate) durable: LogPosition,
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

impl Log {
    /// Opens the log in `log/`, creating it if there is none, and shows every frame from `replay_from` on to `visit`, in order.
    ///
    /// What a crash left behind is put right: bytes after the last whole frame are kept as `log/torn-…` and zeroed, what was
    /// replayed is flushed, and a mark is appended that says so. On a disk too full for the mark, the log can be read, and takes
    /// no writes. Costs a read of what is replayed. Frames may be shown of a segment whose retirement a crash interrupted.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset if frames are damaged that were once whole; the log is left as it
    /// was. Whatever `visit` returns.
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
        shared.mark_if_possible()?;
        Ok(Log { shared })
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
        self.shared.append(first_sequence, payload)
    }

    /// Waits until everything before `end` is as safe as `level` says. One write and one flush serve all who wait.
    ///
    /// # Errors
    /// The failure of the write or flush that would have served, [`Closed`](crate::ErrorKind::Closed) if one failed before. Then it is
    /// unknown whether the frame survives: opening the log again tells.
    pub(crate) fn commit(&self, end: LogPosition, level: Level) -> Result<()> {
        self.shared.commit(end, level)
    }

    /// How far everything was handed to the operating system, and how far it was flushed; none once a write or flush failed. Then what
    /// was written is no progress any more: it may be gone at the next opening, and whoever waited for it may have been refused.
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

    /// Where the next frame goes: everything appended lies before it.
    pub(crate) fn end(&self) -> LogPosition {
        self.shared.end()
    }

    /// What tells this database from others.
    pub(crate) fn database_id(&self) -> DatabaseId {
        self.shared.database_id
    }

    /// Whether a write or flush failed: nothing more is taken until the log is opened again.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned.load(Ordering::Acquire)
    }

    /// [`SegmentSet::read`] through the segments of now.
    #[cfg(test)]
    pub(crate) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        let list = self.shared.list();
        self.shared.read_since(&list, position, bytes, out)
    }

    /// What a reader holds to be able to go on reading segments that are retired meanwhile.
    pub(crate) fn segments_snapshot(&self) -> SegmentSet {
        SegmentSet { log: Arc::clone(&self.shared), list: self.shared.list() }
    }

    /// What segments there are, in order.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        let list = self.shared.list();
        let active = list.segments.last().map(|segment| segment.number);
        let info = |segment: &Arc<Segment>| SegmentInfo {
            number: segment.number,
            used_bytes: u64::from(segment.used()),
            is_active: Some(segment.number) == active,
        };
        list.segments.iter().map(info).collect()
    }

    /// Shows the frames of one segment to `visit`, in order, each verified; of the active one, those written so far.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such segment, [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset
    /// of the first damaged frame, whatever `visit` returns.
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
                visit(Frame::of(&found))?;
            }
            offset = found.end().offset();
        }
        Ok(())
    }

    /// The first place in a segment where a byte should be zero and is not: between frames, or behind the seal. Nothing is lost with
    /// it, but something wrote there.
    pub(crate) fn first_stray(&self, segment: u32) -> Result<Option<LogPosition>> {
        let list = self.shared.list();
        let segment = list.find(segment).ok_or_else(|| segment::no_segment(segment))?;
        let used = segment.used();
        let mut scanner = Scanner::new(segment, u64::from(used));
        let mut offset = SEGMENT_HEADER_BYTES;
        while offset < used {
            let Some(header) = scanner.header_at(offset)? else { return Ok(None) };
            let (start, end) = (offset + FRAME_HEADER_BYTES + header.payload_bytes, offset + header.frame_bytes());
            if let Some(at) =
                scanner.bytes(u64::from(start), (end - start) as usize)?.iter().position(|&byte| byte != 0)
            {
                return Ok(Some(LogPosition::new(segment.number, start + at as u32)));
            }
            offset = end;
        }
        let is_active = list.segments.last().is_some_and(|last| last.number == segment.number);
        let sealed = used + FRAME_HEADER_BYTES;
        let has_more = !is_active && segment.length()? > u64::from(sealed);
        Ok(has_more.then(|| LogPosition::new(segment.number, sealed)))
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
        self.shared.close()
    }

    pub(crate) fn statistics(&self) -> LogStatistics {
        self.shared.counters.read()
    }
}

impl<'a> Frame<'a> {
    /// The frame as the caller knows it.
    fn of(found: &scan::Found<'a>) -> Self {
        Frame {
            position: found.payload_position(),
            end: found.end(),
            first_sequence: found.header.first_sequence,
            payload: found.payload,
        }
    }
}

#[cfg(test)]
mod tests;
