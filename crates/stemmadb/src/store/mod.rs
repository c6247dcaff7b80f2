//! Where is everything? The log, the tree and the memtables, and how a write goes through them.
//!
//! Invariants:
//! - The tree never holds what the durable log does not: a checkpoint flushes the log past what it merges before it commits.
//! - What a reader sees was published; what was published is as durable as was asked.
//! - A memtable is dropped only after the tree holds all of it.
//!
//! Concurrency: `building`, then `compaction`, then `upkeep` (one checkpoint at a time), then `writer` (the writer lock), then `view`; nobody
//! waits for the disk while holding one of the last two.

mod attachments;
mod cache;
mod check;
mod checkpoint;
mod clock;
mod columns;
mod compact;
mod declare;
mod descent;
mod directory;
mod document;
mod edit;
mod events;
mod expire;
mod fetch;
mod guard;
mod layout;
mod listing;
mod locals;
mod meta;
mod moment;
mod options;
mod outlook;
mod path_info;
mod postings;
mod publish;
mod record;
mod recover;
mod salvage;
mod schemas;
mod settings;
mod snapshot;
mod statistics;
mod unique;
mod upkeep;
mod walk;
mod write;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::index::{Declared, DocumentNumber, PathNumber, Paths, Policy};
use crate::log::{Blobs, Level, Log, LogPosition};
use crate::memtable::Memtable;
use crate::revision::{Revision, Sequence};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::tree::Tree;
use crate::value::Shapes;
use crate::{Error, Result};

pub use attachments::{Attachment, File, FileContent, Swept};
pub(crate) use cache::Answer;
pub use check::{CheckReport, Damage};
pub use clock::Clock;
pub(crate) use columns::Column;
pub use declare::{Duplicates, IndexInfo, IndexState};
pub use document::Document;
pub use edit::Edit;
pub(crate) use guard::{Admitted, Guard};
pub use listing::{Listed, Listing};
pub use options::{Durability, Options};
pub use path_info::PathInfo;
pub use publish::Notifier;
pub(crate) use publish::{Heard, Listener, Observer, Published, Publisher, Written};
use record::Record;
pub use recover::Progress;
pub(crate) use salvage::salvage;
pub use salvage::{SalvageReport, Salvaged, SalvagedRevision};
pub use snapshot::{Branch, Snapshot};
pub(crate) use upkeep::Upkeeper;
pub(crate) use walk::{Term, TermWalk};
pub use write::Transaction;
use write::{Receipt, Writer};

/// The names of all shapes are written into every segment if they take no more than one part in so many of it.
const NAMED_SHARE: usize = 32;

/// What snapshots share with the store, and keep alive without it.
pub(crate) struct StoreParts {
    pub(crate) log: Log,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) tree: Box<dyn Tree>,
    pub(crate) shapes: Arc<Shapes>,
    pub(crate) paths: Paths,
    pub(crate) policy: Policy,
    /// The declared indexes. Changed under the writer lock, and while `Store::view` is locked to write: so no snapshot knows of
    /// another state than the one it can see.
    declared: RwLock<Arc<Declared>>,
    /// Whether there is a rule of expiry in force.
    has_expiries: AtomicBool,
    declared_generation: AtomicU64,
    pub(crate) publisher: Publisher,
    pub(crate) options: Options,
    cache: cache::DocumentCache,
    directory: directory::IdDirectory,
    columns: columns::NewestColumns,
    statistics: statistics::Kept,
    /// How many revisions of a line of descent are remembered.
    revs_limit: AtomicUsize,
}

impl StoreParts {
    /// How many revisions of a line of descent are remembered.
    pub(crate) fn revs_limit(&self) -> usize {
        self.revs_limit.load(Ordering::Relaxed)
    }

    /// Sets how many revisions of a line of descent are remembered, as each document is written next.
    pub(crate) fn set_revs_limit(&self, revs_limit: usize) {
        self.revs_limit.store(revs_limit.max(1), Ordering::Relaxed);
    }
}

/// An open database.
pub(crate) struct Store {
    pub(crate) parts: Arc<StoreParts>,
    writer: Mutex<Writer>,
    view: RwLock<View>,
    /// Held by whoever checkpoints.
    upkeep: Mutex<upkeep::Upkeep>,
    /// Held by whoever compacts.
    compaction: Mutex<()>,
    /// Held by whoever builds a declared index.
    building: Mutex<()>,
    declaring: declare::Declaring,
    sweeping: expire::Sweeping,
    wanted: upkeep::Wanted,
    /// Signalled when a checkpoint has freed memory, and when it never will.
    memory_freed: Condvar,
    memory_lock: Mutex<()>,
    /// Why upkeep stopped, if it did.
    broken: Mutex<Option<Error>>,
    closed: AtomicBool,
    guards: guard::Guards,
    /// The mark of the thread whose transaction is open.
    writing_thread: AtomicUsize,
    /// How often a writer waited for memory.
    stall_count: AtomicU64,
}

/// Notes that a transaction of this thread is open, as long as it lives.
struct Here<'a>(&'a AtomicUsize);

impl<'a> Here<'a> {
    fn mark(place: &'a AtomicUsize) -> Self {
        place.store(crate::sync::thread_mark(), Ordering::Relaxed);
        Here(place)
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What lies on top of the tree.
struct View {
    active: Arc<Memtable>,
    /// Oldest first.
    sealed: Vec<Sealed>,
}

/// A full memtable on its way into the tree.
#[derive(Clone)]
struct Sealed {
    memtable: Arc<Memtable>,
    /// The end of the last frame that is in it (or in an older one): once it is merged, recovery may begin here.
    log_end: LogPosition,
    next_sequence: Sequence,
    next_number: DocumentNumber,
    /// Shapes below this number are in the log at or before its end.
    shape_count: usize,
    /// The declared indexes as of that end.
    declared: Arc<Declared>,
}

/// Counts and sizes of an open database.
#[derive(Debug, Clone)]
pub struct Info {
    /// Documents that are neither deleted nor ended.
    pub document_count: u64,
    /// Documents whose winner is a deletion, or that ended.
    pub deleted_count: u64,
    /// The newest published sequence.
    pub sequence: Sequence,
    /// What a write waits for, unless it says otherwise.
    pub durability: Durability,
    /// Bytes of the log's segments.
    pub log_bytes: u64,
    /// Bytes of the log's records that are still needed.
    pub live_bytes: u64,
    /// Segments of the log.
    pub segment_count: usize,
    /// Bytes of the tree.
    pub tree_bytes: u64,
    /// Bytes of the tree in use.
    pub tree_live_bytes: u64,
    /// Bytes that memtables hold.
    pub memory_bytes: u64,
    /// Flushes of the log since it was opened.
    pub flush_count: u64,
    /// Writes to the log since it was opened.
    pub write_count: u64,
    /// How often a writer waited for the tree to catch up.
    pub stall_count: u64,
    /// Distinct paths indexed.
    pub path_count: usize,
    /// Distinct shapes of objects.
    pub shape_count: usize,
    /// The version of the files' format.
    pub format_version: u32,
}

impl Store {
    /// A snapshot of everything published.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_at(None)
    }

    /// A snapshot of everything appended, published or not: what the writer works on. Call it under the writer lock.
    fn newest_snapshot(&self) -> Result<Snapshot> {
        self.snapshot_at(Some(Sequence(u64::MAX >> 1)))
    }

    /// Tree, sequence and memtables are taken under one lock, so no checkpoint can drop a memtable in between; and in this order:
    /// what a running checkpoint has merged so far was published before, and what is published is in the memtables already.
    fn snapshot_at(&self, at: Option<Sequence>) -> Result<Snapshot> {
        let view = self.view.read();
        let declared = self.parts.declared();
        let tree = self.parts.tree.read()?;
        let columns = self.parts.columns.of(&tree);
        let is_published = at.is_none();
        let at = at.unwrap_or_else(|| self.parts.publisher.published());
        let mut memtables: SmallVec<[Arc<Memtable>; 4]> =
            view.sealed.iter().map(|sealed| sealed.memtable.clone()).collect();
        if !view.active.is_empty() {
            memtables.push(view.active.clone());
        }
        let segments = self.parts.log.segments_snapshot();
        let moment = moment::Moment::of(&declared, &self.parts.options.clock);
        Ok(Snapshot {
            parts: self.parts.clone(),
            at,
            is_published,
            memtables,
            tree,
            columns,
            segments,
            declared,
            moment,
        })
    }

    fn active_memtable(&self) -> Arc<Memtable> {
        self.view.read().active.clone()
    }

    /// Runs `work` under the writer lock and commits what it wrote, all or nothing.
    pub(crate) fn write<T>(
        &self,
        durability: Durability,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        self.refuse_reentry()?;
        self.wait_for_memory()?;
        let level = durability.level();
        let (seen, outcome) = {
            let mut writer = self.writer.lock();
            let _here = Here::mark(&self.writing_thread);
            let mut transaction = Transaction::begin(self, &writer)?;
            let seen = transaction.base().sequence();
            let result = work(&mut transaction);
            (seen, result.and_then(|result| Ok((result, transaction.commit(&mut writer, level)?))))
        };
        let (result, receipt) = match outcome {
            Ok((result, Some(receipt))) => (result, receipt),
            // What it read must not be known before it can be seen, and is there to stay.
            Ok((result, None)) => return self.wait_for(seen).map(|()| result),
            Err(error) => return self.wait_for(seen).and(Err(error)),
        };
        self.finish(receipt, level)?;
        if let Durability::Interval(interval) = durability {
            self.flush_within(interval)?;
        }
        Ok(result)
    }

    /// Asks `guard` before each transaction from now on, as long as it lives. Call it within a transaction to miss none.
    pub(crate) fn guard(&self, guard: std::sync::Weak<dyn Guard>) {
        self.guards.add(guard);
    }

    /// A transaction that holds no lock and is never committed: it shows what its edits would do.
    pub(crate) fn speculate(&self) -> Result<Transaction<'_>> {
        Transaction::speculate(self)
    }

    /// The document `id`, of everything published; a hot one without a snapshot.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        match self.parts.cache.get(id, self.parts.publisher.published()) {
            Some(document) if !self.parts.has_ended_by_now(&document)? => Ok(Some(document)),
            Some(_) => Ok(None),
            None => self.snapshot()?.get(id),
        }
    }

    /// Flushes everything appended.
    pub(crate) fn flush(&self) -> Result<()> {
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.parts.publisher.advance(&self.parts.log);
        Ok(())
    }

    /// Applies one edit in a transaction of its own.
    pub(crate) fn edit(&self, durability: Durability, edit: Edit) -> Result<Revision> {
        let prepared = self.parts.prepare(edit)?;
        self.write(durability, |transaction| transaction.stage(prepared))
    }

    /// Applies each edit on its own merits, in one frame: one may fail and the others stand.
    pub(crate) fn bulk(&self, durability: Durability, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        let prepared: Vec<_> = edits.into_iter().map(|edit| self.parts.prepare(edit)).collect();
        self.write(durability, |transaction| {
            transaction.judge_each();
            Ok(prepared.into_iter().map(|prepared| transaction.stage(prepared?)).collect())
        })
    }

    /// Waits until the transaction is as durable as was asked, and visible.
    fn finish(&self, receipt: Receipt, level: Level) -> Result<()> {
        let StoreParts { log, publisher, .. } = &*self.parts;
        let committed = log.commit(receipt.end, level);
        publisher.advance(log);
        // Whether it is visible decides: what readers saw is not refused, and what is refused nobody sees later.
        if publisher.wait_for(receipt.last_sequence, || committed.is_err() || log.is_poisoned()) {
            return Ok(());
        }
        publisher.wake(false);
        self.memory_freed.notify_all();
        committed.and_then(|()| Err(failed_before()))
    }

    /// Waits until what was written up to `sequence` is visible.
    fn wait_for(&self, sequence: Sequence) -> Result<()> {
        if self.parts.publisher.wait_for(sequence, || self.parts.log.is_poisoned()) {
            Ok(())
        } else {
            Err(failed_before())
        }
    }

    /// A write within a transaction on the same thread would wait for itself.
    fn refuse_reentry(&self) -> Result<()> {
        if self.writing_thread.load(Ordering::Relaxed) != crate::sync::thread_mark() {
            return Ok(());
        }
        Err(Error::invalid("a write to the database itself within a transaction of the same thread")
            .with_hint("write through the transaction that the function was given"))
    }

    fn refuse_if_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed("the database is closed"));
        }
        if self.parts.options.read_only {
            return Err(Error::unavailable("the database is open for reading only")
                .with_hint("to write, open it without `read_only`, on a disk that takes writes"));
        }
        match &*self.broken.lock() {
            Some(error) => Err(error.duplicate()),
            None => Ok(()),
        }
    }

    /// Makes a full memtable's place free. Call it under the writer lock. One half of the memory is written to while the other is
    /// merged: the more is merged at once, the fewer pages of the tree each document costs.
    fn seal_if_full(&self, writer: &mut Writer) {
        let full = self.active_memtable().byte_count() >= self.parts.options.memory_bytes / 2;
        if full {
            self.seal(writer);
        }
    }

    /// Seals the active memtable, if there is anything in it. Call it under the writer lock.
    fn seal(&self, writer: &mut Writer) {
        let mut view = self.view.write();
        if view.active.is_empty() {
            return;
        }
        let memtable = std::mem::replace(&mut view.active, Arc::new(Memtable::new()));
        view.sealed.push(Sealed {
            memtable,
            log_end: writer.log_end,
            next_sequence: writer.next_sequence,
            next_number: writer.next_number,
            shape_count: writer.logged_shape_count,
            declared: self.parts.declared(),
        });
        drop(view);
        self.wanted.ask();
    }

    fn memory_bytes(&self) -> usize {
        let view = self.view.read();
        view.sealed.iter().map(|sealed| sealed.memtable.byte_count()).sum::<usize>() + view.active.byte_count()
    }

    /// Holds a writer back while memtables fill their bound: slower, never refused.
    fn wait_for_memory(&self) -> Result<()> {
        if self.memory_bytes() <= self.parts.options.memory_bytes {
            return Ok(());
        }
        self.stall_count.fetch_add(1, Ordering::Relaxed);
        if !self.parts.options.background {
            return self.checkpoint();
        }
        let mut lock = self.memory_lock.lock();
        while self.memory_bytes() > self.parts.options.memory_bytes {
            self.refuse_if_closed()?;
            self.declaring.refuse_if_stopped()?;
            if self.view.read().sealed.is_empty() {
                break;
            }
            self.memory_freed.wait_for(&mut lock, std::time::Duration::from_millis(50));
        }
        Ok(())
    }

    /// Counts and sizes.
    pub(crate) fn info(&self) -> Result<Info> {
        let numbers_taken = self.parts.publisher.published_numbers().0 - FIRST_NUMBER.0;
        let snapshot = self.snapshot()?;
        let live = snapshot.presence_count(crate::index::PathNumber::ROOT, &[crate::index::Presence::Object])?;
        let live = live - snapshot.ended()?.map_or(0, crate::index::DocumentSet::len);
        let statistics = self.parts.log.statistics();
        let tree = self.parts.tree.size()?;
        let live_bytes = meta::live_bytes(&*snapshot.tree)?.values().sum();
        Ok(Info {
            document_count: live,
            deleted_count: numbers_taken.saturating_sub(live),
            sequence: snapshot.at,
            durability: self.parts.options.durability,
            log_bytes: self.parts.log.segments().iter().map(|segment| segment.used_bytes).sum(),
            live_bytes,
            segment_count: self.parts.log.segments().len(),
            tree_bytes: tree.file_bytes,
            tree_live_bytes: tree.live_bytes,
            memory_bytes: self.memory_bytes() as u64,
            flush_count: statistics.flush_count,
            write_count: statistics.write_count,
            stall_count: self.stall_count.load(Ordering::Relaxed),
            path_count: self.parts.paths.len(),
            shape_count: self.parts.shapes.len(),
            format_version: crate::log::FORMAT_VERSION,
        })
    }
}

/// Document numbers begin at one, so that zero can never be a forgotten one.
const FIRST_NUMBER: DocumentNumber = DocumentNumber(1);

impl StoreParts {
    /// The documents that have a term now, if that was asked lately and nothing changed them since; none too where documents end by
    /// themselves.
    pub(crate) fn kept_answer(&self, path: PathNumber, key: &[u8]) -> Option<Answer> {
        if self.has_expiries.load(Ordering::Acquire) { None } else { self.cache.answer(path, key) }
    }

    /// What the index is built by, as it is stored.
    fn settings(&self) -> Vec<u8> {
        settings::Settings::encode(&self.policy, &self.declared())
    }

    /// The declared indexes now.
    fn declared(&self) -> Arc<Declared> {
        self.declared.read().clone()
    }

    /// The generation of the declared indexes now.
    pub(crate) fn declared_generation(&self) -> u64 {
        self.declared_generation.load(Ordering::Acquire)
    }

    /// Puts these in force. But for when a database is opened: under the writer lock, and while `Store::view` is locked to write.
    fn set_declared(&self, declared: Declared) {
        self.has_expiries.store(declared.expiries().next().is_some(), Ordering::Release);
        self.declared_generation.store(declared.generation, Ordering::Release);
        *self.declared.write() = Arc::new(declared);
    }

    /// Whether a document has ended. Costs a load where there are no rules of expiry.
    fn has_ended_by_now(&self, document: &Document) -> Result<bool> {
        if !self.has_expiries.load(Ordering::Acquire) {
            return Ok(false);
        }
        moment::has_ended(&self.declared(), document, self.options.clock.now_ms())
    }

    /// Whether there are so few shapes that every segment can name them: a segment that is lost then takes no others with it.
    fn may_name_all_shapes(&self) -> bool {
        self.shapes.text_bytes() <= self.options.segment_bytes as usize / NAMED_SHARE
    }

    /// Appends the records of the shapes from number `from` on; returns how many shapes there are.
    fn log_shapes_since(&self, from: usize, payload: &mut Vec<u8>) -> usize {
        let mut count = from;
        for (number, shape) in self.shapes.since(from) {
            Record::Shape { number: number.get() as u32, names: shape.names().collect() }.encode(payload);
            count = number.get() + 1;
        }
        count
    }
}

fn failed_before() -> Error {
    Error::closed("the log failed while this transaction waited for one before it")
        .with_hint("reopen the database: the transaction may or may not be in it")
}

/// For docs/format.md.
#[cfg(test)]
pub(crate) fn example_record(revision: &Revision, body: &[u8]) -> Vec<u8> {
    let record = record::RevisionRecord {
        deleted: false,
        relocated: false,
        forgotten: record::Forgotten::Nothing,
        number: FIRST_NUMBER,
        sequence: Sequence(1),
        id: "solaris",
        path: smallvec::smallvec![*revision],
        body,
    };
    let mut bytes = Vec::new();
    Record::Revision(record).encode(&mut bytes);
    bytes
}

/// For docs/format.md.
#[cfg(test)]
pub(crate) fn example_id_row(
    number: DocumentNumber,
    sequence: Sequence,
    position: LogPosition,
    length: u32,
) -> Vec<u8> {
    layout::IdRow { number, sequence, deleted: false, position, length }.encode()
}

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
