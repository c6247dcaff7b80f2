//! Attachment contents: stored before a document references them, or with it; removed once no document does.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use crate::Result;
use crate::engine::{Operation, Store};
use crate::layout::meta;
use crate::layout::record::Record;
use crate::log::{Blob, Digest, Sweep};

/// How many contents are removed from the log while the writer lock is held.
const REMOVED_TOGETHER_MAX: usize = 1024;

/// The result of removing unreferenced attachment contents.
///
/// Returned by [`Files::sweep`](crate::handles::Files::sweep).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Contents that were removed because no document referenced them.
    pub blob_count: u64,
    /// Bytes that were freed. Compaction reclaims those in the log.
    pub freed_bytes: u64,
}

impl Store {
    /// Stores content for a document to reference.
    pub(crate) fn store_content(&self, content: &mut dyn Read) -> Result<Arc<Blob>> {
        self.refuse_if_deletions_only()?;
        self.refuse_if_closed()?;
        self.parts.blobs.store(content).map(Arc::new)
    }

    /// Sweeps if some content may have become unreferenced.
    pub(super) fn sweep_content_if_needed(&self) -> Result<()> {
        if self.parts.blobs.take_unreferenced() { self.sweep_content().map(|_| ()) } else { Ok(()) }
    }

    /// Removes the contents that no leaf of any document references. If the index finds candidates, it also reads every
    /// document.
    pub(crate) fn sweep_content(&self) -> Result<SweepReport> {
        self.refuse_reentry(Operation::Write)?;
        self.refuse_if_closed()?;
        let sweep = self.parts.blobs.begin_sweep();
        let mut swept = SweepReport::default();
        let mut unreferenced = self.unreferenced_content()?;
        self.keep_for_the_past(&mut unreferenced)?;
        for digest in &unreferenced.in_files {
            swept.add(sweep.remove(digest)?);
        }
        for digests in unreferenced.in_log.chunks(REMOVED_TOGETHER_MAX) {
            self.remove_logged_content(&sweep, digests, &mut swept)?;
        }
        Ok(swept)
    }

    /// The contents that no leaf of any document has referenced since this call began, unless they are pinned.
    fn unreferenced_content(&self) -> Result<UnreferencedContent> {
        let stored = self.parts.blobs.list()?;
        // A writer that held content before the sweep began has appended its reference by now, so the snapshot below
        // contains it.
        drop(self.writer.lock());
        self.flush()?;
        // A removed reference must stay removed after a crash: take the snapshot, then flush, and only then remove
        // content.
        let snapshot = self.snapshot()?;
        self.flush()?;
        let mut unreferenced = UnreferencedContent::default();
        for digest in stored {
            if !snapshot.references_content(&digest)? {
                unreferenced.in_files.push(digest);
            }
        }
        // The contents of transactions that are not published yet are found too; all of them are pinned.
        snapshot.live_contents(&mut |digest, _| {
            if !snapshot.references_content(&digest)? {
                unreferenced.in_log.push(digest);
            }
            Ok(())
        })?;
        if !unreferenced.in_files.is_empty() || !unreferenced.in_log.is_empty() {
            let hidden = snapshot.unindexed_digests()?;
            unreferenced.in_files.retain(|digest| !hidden.contains(digest));
            unreferenced.in_log.retain(|digest| !hidden.contains(digest));
        }
        Ok(unreferenced)
    }

    /// Takes out the contents that revisions may refer to as of which the database can still be read: those that were
    /// not found unreferenced at or before the floor of the history.
    fn keep_for_the_past(&self, unreferenced: &mut UnreferencedContent) -> Result<()> {
        let tree = self.parts.tree.read();
        let since = meta::unreferenced_contents(&tree)?;
        let keeps = self.parts.declared().history.keeps_past();
        if since.is_empty() && !keeps {
            return Ok(());
        }
        let (floor, now) = (self.parts.history_floor(), self.newest_sequence());
        let found: BTreeSet<Digest> = unreferenced.in_files.iter().chain(&unreferenced.in_log).copied().collect();
        let is_removable = |digest: &Digest| !keeps || since.get(digest).is_some_and(|since| *since <= floor);
        unreferenced.in_files.retain(is_removable);
        unreferenced.in_log.retain(is_removable);
        let over: Vec<&Digest> =
            since.keys().filter(|digest| !found.contains(digest) || is_removable(digest)).collect();
        let new: Vec<&Digest> =
            found.iter().filter(|digest| !since.contains_key(digest) && !is_removable(digest)).collect();
        if over.is_empty() && new.is_empty() {
            return Ok(());
        }
        let mut tree = self.parts.tree.write()?;
        over.into_iter().try_for_each(|digest| meta::forget_unreferenced_content(&mut tree, digest))?;
        new.into_iter().try_for_each(|digest| meta::put_unreferenced_content(&mut tree, digest, now))?;
        tree.commit()
    }

    /// Removes contents from the log, except those pinned since the sweep began. Compaction reclaims their bytes.
    ///
    /// The references to them were removed earlier in the log, so that no crash can undo that and keep the removal.
    fn remove_logged_content(&self, sweep: &Sweep<'_>, digests: &[Digest], swept: &mut SweepReport) -> Result<()> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let snapshot = self.newest_snapshot()?;
        let (mut payload, mut removed) = (self.parts.log.new_payload(), Vec::new());
        for digest in digests {
            // A writer that pins the content after this waits for the lock, and then logs the content again.
            let Some(location) = snapshot.live_content(digest)?.filter(|_| !sweep.is_pinned(digest)) else { continue };
            Record::Content { removed: true, relocated: false, digest: *digest, bytes: &[] }.encode(&mut payload);
            removed.push(*digest);
            swept.add(u64::from(location.length));
        }
        if removed.is_empty() {
            return Ok(());
        }
        writer.log_end = self.parts.log.append(writer.next_sequence, &payload)?.end;
        let active = self.active_memtable();
        removed.into_iter().for_each(|digest| active.insert_content(digest, None));
        self.seal_if_full(&mut writer);
        Ok(())
    }
}

/// Contents that no leaf references.
#[derive(Default)]
struct UnreferencedContent {
    in_files: Vec<Digest>,
    in_log: Vec<Digest>,
}

impl SweepReport {
    /// Counts a content of this many bytes; none of 0, which was not removed.
    fn add(&mut self, freed_bytes: u64) {
        self.blob_count += u64::from(freed_bytes > 0);
        self.freed_bytes += freed_bytes;
    }
}
