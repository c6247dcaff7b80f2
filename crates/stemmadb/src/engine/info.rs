//! Counts and sizes of an open database.

use std::time::Duration;

use crate::Result;
use crate::compression::Compression;
use crate::engine::Store;
use crate::layout::{FIRST_NUMBER, meta};
use crate::options::Durability;
use crate::revision::Sequence;
use crate::sync::atomic::Ordering;

/// Counts and sizes of an open database.
///
/// Returned by [`Database::info`](crate::Database::info).
#[derive(Debug, Clone)]
pub struct Info {
    /// Live documents: neither deleted nor expired.
    pub document_count: u64,
    /// Documents whose winner is a deletion, or that have expired.
    pub deleted_count: u64,
    /// The newest published sequence.
    pub sequence: Sequence,
    /// The default durability of a write.
    pub durability: Durability,
    /// How new records and files are compressed.
    pub compression: Compression,
    /// Bytes used in the log's segments.
    pub log_bytes: u64,
    /// Bytes of log records that are still needed.
    pub live_bytes: u64,
    /// The number of log segments.
    pub segment_count: usize,
    /// Bytes of the history files, which keep what was replaced in retired segments.
    pub history_bytes: u64,
    /// Size of all files of the tree, in bytes.
    pub tree_bytes: u64,
    /// Bytes of the files that make up the newest state of the tree.
    pub tree_live_bytes: u64,
    /// Bytes of files that merges have replaced and that are only kept for snapshots: the rest of `tree_bytes`.
    pub tree_held_bytes: u64,
    /// The oldest snapshot that keeps such files, if there is one.
    pub oldest_snapshot: Option<OldestSnapshot>,
    /// Bytes held by memtables.
    pub memory_bytes: u64,
    /// Bytes held by the read caches, which [`Options::cache_bytes`](crate::Options::cache_bytes) limits.
    pub cache_bytes: u64,
    /// Log flushes since the database was opened.
    pub flush_count: u64,
    /// Log writes since the database was opened.
    pub write_count: u64,
    /// How many times a writer waited for a checkpoint since the database was opened.
    pub stall_count: u64,
    /// Distinct indexed paths.
    pub path_count: usize,
    /// Distinct object shapes.
    pub shape_count: usize,
    /// The version of the file format.
    pub format_version: u32,
}

/// The oldest snapshot that keeps files which the database itself no longer needs. Running queries and iterators that
/// were not read to their end are snapshots too.
///
/// Part of [`Info`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldestSnapshot {
    /// The snapshot shows everything up to this sequence, and maybe some of what followed.
    pub sequence: Sequence,
    /// The snapshot was taken at least this long ago.
    pub age: Duration,
}

impl Store {
    /// The oldest snapshot that keeps files of the past.
    fn oldest_snapshot(&self) -> Result<Option<OldestSnapshot>> {
        let Some((tree, age)) = self.parts.tree.oldest_past() else { return Ok(None) };
        let next_sequence = meta::checkpoint(&tree)?.map_or(Sequence(1), |checkpoint| checkpoint.next_sequence);
        Ok(Some(OldestSnapshot { sequence: Sequence(next_sequence.0.saturating_sub(1)), age }))
    }

    /// Collects the counts and sizes.
    pub(crate) fn info(&self) -> Result<Info> {
        let numbers_taken = self.parts.publisher.published_numbers().0 - FIRST_NUMBER.0;
        let snapshot = self.snapshot()?;
        let live = snapshot.presence_count(crate::index::PathNumber::ROOT, &[crate::index::Presence::Object])?;
        let live = live - snapshot.expired()?.map_or(0, crate::index::DocumentSet::len);
        let statistics = self.parts.log.statistics();
        let tree = self.parts.tree.size();
        let live_bytes = meta::live_bytes(&snapshot.tree)?.values().sum();
        Ok(Info {
            document_count: live,
            deleted_count: numbers_taken.saturating_sub(live),
            sequence: snapshot.at,
            durability: self.parts.options.durability,
            compression: self.parts.compression.setting(),
            log_bytes: self.parts.log.used_bytes(),
            live_bytes,
            segment_count: self.parts.log.segments().len(),
            history_bytes: self.parts.log.history().files().iter().map(|file| file.bytes).sum(),
            tree_bytes: tree.file_bytes,
            tree_live_bytes: tree.live_bytes,
            tree_held_bytes: tree.file_bytes - tree.live_bytes,
            oldest_snapshot: self.oldest_snapshot()?,
            memory_bytes: self.memory_bytes() as u64,
            cache_bytes: self.parts.caches.byte_count() + tree.memory_bytes,
            flush_count: statistics.flush_count,
            write_count: statistics.write_count,
            stall_count: self.stall_count.load(Ordering::Relaxed),
            path_count: self.parts.paths.len(),
            shape_count: self.parts.shapes.len(),
            format_version: crate::log::FORMAT_VERSION,
        })
    }
}
