//! Attachment contents: stored before a document references them, removed once no document does.

use std::io::Read;
use std::sync::Arc;

use crate::Result;
use crate::engine::Store;
use crate::log::{Blob, Digest};

/// The result of removing unreferenced attachment contents.
///
/// Returned by [`Files::sweep`](crate::handles::Files::sweep).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Contents that were removed because no document referenced them.
    pub blob_count: u64,
    /// Bytes that were freed.
    pub freed_bytes: u64,
}

impl Store {
    /// Stores content for a document to reference.
    pub(crate) fn store_content(&self, content: &mut dyn Read) -> Result<Arc<Blob>> {
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
        self.refuse_if_closed()?;
        let sweep = self.parts.blobs.begin_sweep();
        let mut swept = SweepReport::default();
        for digest in self.unreferenced_content()? {
            let freed_bytes = sweep.remove(&digest)?;
            swept.blob_count += u64::from(freed_bytes > 0);
            swept.freed_bytes += freed_bytes;
        }
        Ok(swept)
    }

    /// The contents that no leaf of any document has referenced since this call began, and that are not pinned.
    fn unreferenced_content(&self) -> Result<Vec<Digest>> {
        let stored = self.parts.blobs.list()?;
        // A writer that held content before the sweep began has appended its reference by now, so the snapshot below
        // contains it.
        drop(self.writer.lock());
        self.flush()?;
        // A removed reference must stay removed after a crash: take the snapshot, then flush, and only then remove
        // content.
        let snapshot = self.snapshot()?;
        self.flush()?;
        let mut unnamed = Vec::new();
        for digest in stored {
            if !snapshot.references_content(&digest)? {
                unnamed.push(digest);
            }
        }
        if !unnamed.is_empty() {
            let hidden = snapshot.unindexed_digests()?;
            unnamed.retain(|digest| !hidden.contains(digest));
        }
        Ok(unnamed)
    }
}
