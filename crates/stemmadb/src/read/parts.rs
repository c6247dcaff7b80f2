//! The state that snapshots share with the store.

use std::sync::Arc;

use crate::Result;
use crate::cache::{CachedResult, ReadCaches};
use crate::compression::{DocumentCompression, PackedBytes, StoredBody};
use crate::document::Document;
use crate::index::{DeclaredIndexes, PathNumber, Paths, Policy};
use crate::layout::record::{Record, RevisionRecord};
use crate::layout::settings::CompressionSetting;
use crate::log::{Blobs, DatabaseId, Log, LogPosition};
use crate::options::Options;
use crate::publish::Publisher;
use crate::read::read_timestamp::has_expired;
use crate::revision::Sequence;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{RwLock, refuse_if_cancelled};
use crate::tree::Tree;
use crate::value::{Body, Shapes};
use crate::vfs::Vfs;

/// The state that snapshots share with the store, and that stays alive as long as a snapshot does.
pub(crate) struct StoreParts {
    /// The directory of the log and of attachment contents.
    pub(crate) vfs: Arc<dyn Vfs>,
    /// Distinguishes the database from all others, including those it was copied from.
    pub(crate) identity: DatabaseId,
    pub(crate) log: Log,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) tree: Tree,
    pub(crate) shapes: Arc<Shapes>,
    pub(crate) compression: DocumentCompression,
    pub(crate) paths: Paths,
    pub(crate) policy: Policy,
    /// The declared indexes. Changed under the writer lock and with `Store::view` locked for writing, so that a
    /// snapshot's indexes match its data.
    pub(crate) declared: RwLock<Arc<DeclaredIndexes>>,
    /// Whether there is an expiration rule.
    pub(crate) has_expiries: AtomicBool,
    pub(crate) declared_generation: AtomicU64,
    pub(crate) publisher: Publisher,
    pub(crate) options: Options,
    pub(crate) caches: ReadCaches,
    /// How many revisions of each branch are kept in a revision tree.
    pub(crate) revs_limit: AtomicUsize,
    /// The log position of the last explicit compaction: older records of replaced revisions are not read any more.
    pub(crate) compacted_before: AtomicU64,
    /// The lowest sequence as of which the database can be read.
    pub(crate) history_floor: AtomicU64,
    /// From which log position on records are compressed as `compression` is set.
    pub(crate) compression_since: AtomicU64,
    /// The bound on memtables: `Options::memory_bytes` until it is changed.
    pub(crate) memory_bytes: AtomicUsize,
}

impl StoreParts {
    /// Returns an error once the database is closed, or the reads of this thread are cancelled.
    ///
    /// # Errors
    /// `Closed`; `Stopped`.
    pub(crate) fn refuse_if_closed(&self) -> Result<()> {
        refuse_if_cancelled()?;
        self.tree.refuse_if_closed()
    }

    /// The compression of new files and records.
    pub(crate) fn compression_setting(&self) -> CompressionSetting {
        let since = LogPosition::from_u64(self.compression_since.load(Ordering::Relaxed));
        CompressionSetting { compression: self.compression.setting(), since }
    }

    /// Sets the compression of new files and records. Called while the database is being opened, and under the writer
    /// lock.
    pub(crate) fn set_compression(&self, setting: CompressionSetting) {
        self.compression_since.store(setting.since.to_u64(), Ordering::Relaxed);
        self.compression.set(setting.compression);
        self.tree.set_compression(setting.compression.of_tree());
    }

    /// The body in the record at `position`, whose bytes are `record`.
    ///
    /// # Errors
    /// `Corrupt` if it is compressed and malformed.
    pub(crate) fn body(&self, record: &Arc<[u8]>, stored: &StoredBody<'_>, position: LogPosition) -> Result<Body> {
        Ok(match stored {
            StoredBody::Plain(packed) => Body::within(record.clone(), record.len() - packed.len()),
            StoredBody::Compressed(compressed) => {
                let packed = self.compression.decompress(compressed);
                Body::new(packed.map_err(|error| error.within(format!("log {position}")))?)
            }
        })
    }

    /// The record in `bytes`, which were read at `position`, with its length.
    ///
    /// # Errors
    /// Those of [`Record::decode`].
    pub(crate) fn record<'b>(&self, bytes: &'b [u8], position: LogPosition) -> Result<(Record<'b>, usize)> {
        Record::decode(bytes, position, self.log.checksum_seed())
    }

    /// The packed body in the record at `position`.
    ///
    /// # Errors
    /// Those of [`StoreParts::body`].
    pub(crate) fn packed<'r>(&self, record: &'r RevisionRecord<'_>, position: LogPosition) -> Result<PackedBytes<'r>> {
        self.compression.packed(&record.body).map_err(|error| error.within(format!("log {position}")))
    }

    /// Records of replaced revisions before this position count as removed.
    pub(crate) fn compacted_before(&self) -> LogPosition {
        LogPosition::from_u64(self.compacted_before.load(Ordering::Acquire))
    }

    pub(crate) fn set_compacted_before(&self, position: LogPosition) {
        self.compacted_before.store(position.to_u64(), Ordering::Release);
    }

    /// The lowest sequence as of which the database can be read.
    pub(crate) fn history_floor(&self) -> Sequence {
        Sequence(self.history_floor.load(Ordering::Acquire))
    }

    pub(crate) fn set_history_floor(&self, floor: Sequence) {
        self.history_floor.store(floor.0, Ordering::Release);
    }

    /// The bound on memtables, in bytes.
    pub(crate) fn memory_bytes_max(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// How many revisions of each branch are kept in a revision tree.
    pub(crate) fn revs_limit(&self) -> usize {
        self.revs_limit.load(Ordering::Relaxed)
    }

    /// Sets how many revisions of each branch are kept. Applied to each document when it is next written.
    pub(crate) fn set_revs_limit(&self, revs_limit: usize) {
        self.revs_limit.store(revs_limit.max(1), Ordering::Relaxed);
    }

    /// The cached documents of a term, if they are still current. None if there are expiration rules, because documents
    /// may then expire without a write.
    pub(crate) fn cached_result(&self, path: PathNumber, key: &[u8]) -> Option<CachedResult> {
        if self.has_expiries.load(Ordering::Acquire) { None } else { self.caches.documents.result(path, key) }
    }

    /// The current declared indexes.
    pub(crate) fn declared(&self) -> Arc<DeclaredIndexes> {
        self.declared.read().clone()
    }

    /// The generation of the current declared indexes.
    pub(crate) fn declared_generation(&self) -> u64 {
        self.declared_generation.load(Ordering::Acquire)
    }

    /// Replaces the declared indexes. Called under the writer lock and with `Store::view` locked for writing, except
    /// while the database is being opened.
    pub(crate) fn set_declared(&self, declared: DeclaredIndexes) {
        self.has_expiries.store(declared.expiries().next().is_some(), Ordering::Release);
        self.declared_generation.store(declared.generation, Ordering::Release);
        *self.declared.write() = Arc::new(declared);
    }

    /// Whether a document has expired. Costs one atomic load if there are no expiration rules.
    pub(crate) fn has_expired_by_now(&self, document: &Document) -> Result<bool> {
        if !self.has_expiries.load(Ordering::Acquire) {
            return Ok(false);
        }
        has_expired(&self.declared(), document, self.options.clock.now_ms())
    }
}
