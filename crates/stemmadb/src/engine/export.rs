//! Export of an open database: a consistent set of its files, for backups and branches.
//!
//! Writers, checkpoints and compaction go on; the export keeps what they would remove.

use std::sync::Arc;

use crate::Result;
use crate::engine::{Operation, Store};
use crate::log::{Blob, ExportedHistory, ExportedSegment, Level, LogPosition, SegmentSet};
use crate::read::StoreParts;
use crate::revision::Sequence;
use crate::tree::TreeExport;
use crate::vfs::Vfs;

/// How often an export with the tree is tried again because a segment was retired meanwhile.
const ATTEMPTS_MAX: usize = 1000;

/// The files of a database at one time.
pub(crate) struct StoreExport {
    /// Where the log and the attachment contents are.
    pub(crate) vfs: Arc<dyn Vfs>,
    /// Everything up to `end`, ascending.
    pub(crate) segments: Vec<ExportedSegment>,
    /// The end of the log, which is flushed up to there.
    pub(crate) end: LogPosition,
    /// The newest sequence before `end`.
    pub(crate) sequence: Sequence,
    /// When it was committed, in microseconds since 1970; 0 if that is not known.
    pub(crate) time_us: u64,
    /// What is kept of the past until then.
    pub(crate) history: Vec<ExportedHistory>,
    /// The attachment contents in files, none of which is removed while the export exists. All that documents refer to
    /// at `end` are among them.
    pub(crate) blobs: Vec<Blob>,
    /// The state of the tree, which the log up to `end` completes.
    pub(crate) tree: TreeExport,
    /// Keeps the segments that exist now and all later ones.
    pub(crate) segments_kept: SegmentSet,
}

impl Store {
    /// Exports the database as it is now. With `since`, also the segments that were retired since that set was taken.
    ///
    /// # Errors
    /// `Invalid` within a transaction of this thread; `Closed` or `Unavailable` if the log can't be flushed.
    pub(crate) fn export(&self, since: Option<&SegmentSet>) -> Result<StoreExport> {
        self.refuse_reentry(Operation::Write)?;
        self.parts.refuse_if_closed()?;
        let StoreParts { log, blobs, tree, vfs, .. } = &*self.parts;
        // No content is removed until those that exist are pinned.
        let sweep = blobs.begin_sweep();
        let mut attempt = 0;
        let (segments_kept, tree, end, sequence) = loop {
            attempt += 1;
            let kept = log.segments_snapshot();
            let tree = tree.export();
            let (end, sequence) = {
                let writer = self.writer.lock();
                // Of a log that is followed, more may be known than is applied.
                let end = if self.parts.options.is_replica { writer.log_end } else { log.end() };
                (end, Sequence(writer.next_sequence.0 - 1))
            };
            if !self.parts.options.read_only {
                log.commit(end, Level::Flushed)?;
                self.parts.publisher.advance(log);
            }
            // The tree may refer to a segment that was retired before `end`.
            if log.has_all_of(&kept) || attempt == ATTEMPTS_MAX {
                break (kept, tree, end, sequence);
            }
        };
        let blobs = blobs.pin_all()?;
        drop(sweep);
        let mut history = log.history().export()?;
        // The segments of later ones are in the export.
        history.retain(|file| file.info.until.sequence <= sequence);
        let segments = since.unwrap_or(&segments_kept).export(end);
        let time_us = log.commit_time_of(sequence)?.unwrap_or(0);
        Ok(StoreExport { vfs: vfs.clone(), segments, end, sequence, time_us, history, blobs, tree, segments_kept })
    }
}

impl Store {
    /// Seals the active segment if it has more than `byte_count` bytes, so that its file does not change any more.
    ///
    /// # Errors
    /// `Closed` or `Unavailable` if the log can't be written.
    pub(crate) fn seal_segment_longer_than(&self, byte_count: u64) -> Result<()> {
        let is_long = |segment: crate::log::SegmentInfo| segment.is_active && segment.used_bytes > byte_count;
        if self.takes_writes() && self.parts.log.segments().into_iter().any(is_long) {
            self.parts.log.roll()?;
        }
        Ok(())
    }
}
