//! The id directory: a cache of document ids by number, because query results are numbers and callers want ids.
//!
//! A number always names the same id, so entries never become outdated. Ids that are not cached are read from the tree.
//!
//! Ids are cached in pages of 1,024 numbers. Reading a whole page costs as much as about twenty single lookups, so it
//! is read once that many ids of it were requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use quick_cache::{Weighter, sync::Cache};

use crate::Result;
use crate::index::DocumentNumber;
use crate::revision::DocumentId;

/// Numbers per page.
const PAGE_NUMBERS: u64 = 1024;
/// A page is read after this many lookups.
const LOOKUPS_BEFORE_READ: u8 = 20;
/// The number of lookup counters, which pages share.
const COUNTER_COUNT: usize = 4096;

/// A bounded cache of pages of ids.
pub(crate) struct IdDirectory {
    pages: Cache<u64, Arc<IdPage>, IdPageWeighter>,
    lookups: Box<[AtomicU8]>,
    enabled: bool,
}

/// The ids of [`PAGE_NUMBERS`] documents.
#[derive(Default)]
pub(crate) struct IdPage {
    ids: Vec<Option<DocumentId>>,
    /// Bytes that the ids take outside of the page.
    shared_bytes: usize,
}

impl IdPage {
    /// The numbers of this page.
    pub(crate) fn numbers(page: u64) -> std::ops::Range<DocumentNumber> {
        DocumentNumber(page * PAGE_NUMBERS)..DocumentNumber((page + 1).saturating_mul(PAGE_NUMBERS))
    }

    /// Adds the id of a number; numbers must be added in ascending order.
    pub(crate) fn add(&mut self, number: DocumentNumber, id: DocumentId) {
        self.ids.resize_with((number.0 % PAGE_NUMBERS) as usize, || None);
        self.shared_bytes += id.shared_bytes();
        self.ids.push(Some(id));
    }

    /// Releases unused capacity.
    pub(crate) fn shrink(&mut self) {
        self.ids.shrink_to_fit();
    }

    /// The id of a number on this page.
    #[inline]
    pub(crate) fn id(&self, number: DocumentNumber) -> Option<&DocumentId> {
        self.ids.get((number.0 % PAGE_NUMBERS) as usize)?.as_ref()
    }

    fn byte_count(&self) -> usize {
        size_of::<Option<DocumentId>>() * self.ids.capacity() + self.shared_bytes
    }
}

#[derive(Clone)]
struct IdPageWeighter;

impl Weighter<u64, Arc<IdPage>> for IdPageWeighter {
    fn weight(&self, _: &u64, page: &Arc<IdPage>) -> u64 {
        (64 + page.byte_count()) as u64
    }
}

impl IdDirectory {
    /// Creates a directory of at most `bytes`; zero disables it.
    pub(crate) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / (PAGE_NUMBERS * size_of::<DocumentId>() as u64))
            .unwrap_or(usize::MAX)
            .clamp(16, 1 << 20);
        IdDirectory {
            pages: Cache::with_weighter(expected_count, bytes.max(1), IdPageWeighter),
            lookups: (0..COUNTER_COUNT).map(|_| AtomicU8::new(0)).collect(),
            enabled: bytes > 0,
        }
    }

    /// The page of `number`.
    pub(crate) fn page_of(number: DocumentNumber) -> u64 {
        number.0 / PAGE_NUMBERS
    }

    /// The page, for a lookup of `count` ids: the cached one, or the result of `read` once enough ids were requested;
    /// otherwise none.
    pub(crate) fn page(
        &self,
        page: u64,
        count: usize,
        read: impl FnOnce() -> Result<IdPage>,
    ) -> Result<Option<Arc<IdPage>>> {
        if !self.enabled {
            return Ok(None);
        }
        if let Some(found) = self.pages.get(&page) {
            return Ok(Some(found));
        }
        let counter = &self.lookups[page as usize % COUNTER_COUNT];
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        let before = counter.load(Ordering::Relaxed);
        if before.saturating_add(count) < LOOKUPS_BEFORE_READ {
            counter.store(before.saturating_add(count), Ordering::Relaxed);
            return Ok(None);
        }
        counter.store(0, Ordering::Relaxed);
        let read = Arc::new(read()?);
        self.pages.insert(page, Arc::clone(&read));
        Ok(Some(read))
    }

    /// Removes a page that lacks numbers assigned after it was read.
    pub(crate) fn forget(&self, page: u64) {
        self.pages.remove(&page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_returns_the_ids_that_were_added() {
        let mut page = IdPage::default();
        let number = |place: u64| DocumentNumber(3 * PAGE_NUMBERS + place);
        for (place, id) in [(1, "b"), (4, "eee"), (5, "f")] {
            page.add(number(place), DocumentId::new(id).unwrap());
        }
        let ids: Vec<_> = (0..8).map(|place| page.id(number(place)).map(DocumentId::as_str)).collect();
        assert_eq!(ids, [None, Some("b"), None, None, Some("eee"), Some("f"), None, None]);
    }

    #[test]
    fn a_page_is_read_after_many_lookups() {
        let directory = IdDirectory::new(1 << 20);
        let read = || Ok(IdPage::default());
        let refuse = || -> Result<IdPage> { panic!("the page is cached") };
        assert!(directory.page(7, 10, read).unwrap().is_none());
        assert!(directory.page(7, 10, read).unwrap().is_some());
        assert!(directory.page(7, 1, refuse).unwrap().is_some());
        directory.forget(7);
        assert!(directory.page(7, 1, read).unwrap().is_none());
        assert!(IdDirectory::new(0).page(7, 1000, read).unwrap().is_none());
    }
}
