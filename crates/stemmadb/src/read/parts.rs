//! What snapshots share with the store.

use std::sync::Arc;

use crate::Result;
use crate::cache::{Answer, ReadCaches};
use crate::document::Document;
use crate::index::{DeclaredIndexes, PathNumber, Paths, Policy};
use crate::log::{Blobs, Log};
use crate::options::Options;
use crate::publish::Publisher;
use crate::read::read_timestamp::has_ended;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::tree::Tree;
use crate::value::Shapes;

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
    pub(crate) declared: RwLock<Arc<DeclaredIndexes>>,
    /// Whether there is a rule of expiry in force.
    pub(crate) has_expiries: AtomicBool,
    pub(crate) declared_generation: AtomicU64,
    pub(crate) publisher: Publisher,
    pub(crate) options: Options,
    pub(crate) caches: ReadCaches,
    /// How many revisions of a line of descent are remembered.
    pub(crate) revs_limit: AtomicUsize,
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

    /// The documents that have a term now, if that was asked lately and nothing changed them since; none too where documents end by
    /// themselves.
    pub(crate) fn kept_answer(&self, path: PathNumber, key: &[u8]) -> Option<Answer> {
        if self.has_expiries.load(Ordering::Acquire) { None } else { self.caches.documents.answer(path, key) }
    }

    /// The declared indexes now.
    pub(crate) fn declared(&self) -> Arc<DeclaredIndexes> {
        self.declared.read().clone()
    }

    /// The generation of the declared indexes now.
    pub(crate) fn declared_generation(&self) -> u64 {
        self.declared_generation.load(Ordering::Acquire)
    }

    /// Puts these in force. But for when a database is opened: under the writer lock, and while `Store::view` is locked to write.
    pub(crate) fn set_declared(&self, declared: DeclaredIndexes) {
        self.has_expiries.store(declared.expiries().next().is_some(), Ordering::Release);
        self.declared_generation.store(declared.generation, Ordering::Release);
        *self.declared.write() = Arc::new(declared);
    }

    /// Whether a document has ended. Costs a load where there are no rules of expiry.
    pub(crate) fn has_ended_by_now(&self, document: &Document) -> Result<bool> {
        if !self.has_expiries.load(Ordering::Acquire) {
            return Ok(false);
        }
        has_ended(&self.declared(), document, self.options.clock.now_ms())
    }
}
