//! The content of files: stored before a document names it, removed once none does.

use std::io::Read;
use std::sync::Arc;

use crate::Result;
use crate::engine::Store;
use crate::log::{Blob, Digest};

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Contents that no document names any more, and that are gone now.
    pub blob_count: u64,
    /// The bytes that were freed.
    pub freed_bytes: u64,
}

impl Store {
    /// Stores content that a document is to name.
    pub(crate) fn store_content(&self, content: &mut dyn Read) -> Result<Arc<Blob>> {
        self.refuse_if_closed()?;
        self.parts.blobs.store(content).map(Arc::new)
    }

    /// Sweeps if something may have become superfluous.
    pub(super) fn sweep_content_if_wanted(&self) -> Result<()> {
        if self.parts.blobs.take_unreferenced() { self.sweep_content().map(|_| ()) } else { Ok(()) }
    }

    /// Removes the content that no leaf of any document names. Costs a look at every document if there is such content.
    pub(crate) fn sweep_content(&self) -> Result<Swept> {
        self.refuse_if_closed()?;
        let sweep = self.parts.blobs.begin_sweep();
        let mut swept = Swept::default();
        for digest in self.unnamed_content()? {
            let freed_bytes = sweep.remove(&digest)?;
            swept.blob_count += u64::from(freed_bytes > 0);
            swept.freed_bytes += freed_bytes;
        }
        Ok(swept)
    }

    /// The content that no leaf of any document names, and none did since this began, but for what is held meanwhile.
    fn unnamed_content(&self) -> Result<Vec<Digest>> {
        let stored = self.parts.blobs.list()?;
        // Whoever named content that they held before the sweep has appended that, and it is seen.
        drop(self.writer.lock());
        self.flush()?;
        // What is no longer named must be so after a crash too: seen first, flushed then, removed at last.
        let snapshot = self.snapshot()?;
        self.flush()?;
        let mut unnamed = Vec::new();
        for digest in stored {
            if !snapshot.names(&digest)? {
                unnamed.push(digest);
            }
        }
        if !unnamed.is_empty() {
            let hidden = snapshot.hidden_digests()?;
            unnamed.retain(|digest| !hidden.contains(digest));
        }
        Ok(unnamed)
    }
}
