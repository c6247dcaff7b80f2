//! A cache of documents by number, for query results: many lookups at a time, of nearby numbers.
//!
//! Documents are kept on pages of 64 numbers, so that one lookup serves all results on a page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Weighter, sync::Cache};

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::revision::Sequence;
use crate::sync::RwLock;

/// Numbers per page: one bit each in a word.
const PAGE_NUMBERS: u64 = 64;
/// Slots of write stamps; documents whose numbers differ by this many share one.
const STAMP_COUNT: u64 = 1 << 16;
/// The size of a cached document besides its record: its entry on the page and reference counts.
const DOCUMENT_OVERHEAD_BYTES: usize = size_of::<CachedDocument>() + 32;

/// The size of a page besides its documents.
const PAGE_OVERHEAD_BYTES: usize = 160;

/// A bounded cache; see [`DocumentCache`](crate::cache::documents::DocumentCache) for when an entry is valid.
pub(super) struct NumberedCache {
    pages: Cache<u64, WeighedPage, PageWeighter>,
    stamps: Box<[AtomicU64]>,
}

/// A page with its size when it was inserted: the cache needs a weight that does not change.
#[derive(Clone, Default)]
struct WeighedPage {
    page: Arc<RwLock<Page>>,
    byte_count: usize,
}

/// The cached documents among 64 numbers.
#[derive(Default)]
struct Page {
    /// One bit for each number with a cached document.
    occupied: u64,
    cached: Vec<CachedDocument>,
    byte_count: usize,
}

struct CachedDocument {
    document: Document,
    as_of: Sequence,
}

#[derive(Clone)]
struct PageWeighter;

impl Weighter<u64, WeighedPage> for PageWeighter {
    fn weight(&self, _: &u64, weighed: &WeighedPage) -> u64 {
        (PAGE_OVERHEAD_BYTES + weighed.byte_count) as u64
    }
}

impl NumberedCache {
    pub(super) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / (PAGE_NUMBERS * 256)).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        NumberedCache {
            pages: Cache::with_weighter(expected_count, bytes.max(1), PageWeighter),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Fills `documents` with the cached ones among `numbers`, each at the same index.
    pub(super) fn get(&self, numbers: &[DocumentNumber], at: Sequence, documents: &mut [Option<Document>]) {
        debug_assert_eq!(numbers.len(), documents.len(), "one result for each number");
        let mut done_count = 0;
        for run in numbers.chunk_by(|a, b| page_of(*a) == page_of(*b)) {
            let documents = &mut documents[done_count..done_count + run.len()];
            done_count += run.len();
            let Some(WeighedPage { page, .. }) = self.pages.get(&page_of(run[0])) else { continue };
            let page = page.read();
            for (number, document) in run.iter().zip(documents) {
                if let Some(cached) = page.find(*number).filter(|cached| self.stamp(*number) <= cached.as_of)
                    && cached.document.sequence() <= at
                {
                    *document = Some(cached.document.clone());
                }
            }
        }
    }

    /// Caches documents, read from a snapshot at `as_of`. Costs less the fewer page changes there are in their order.
    pub(super) fn put<'d>(&self, documents: impl Iterator<Item = (DocumentNumber, &'d Document)>, as_of: Sequence) {
        let mut documents = documents.filter(|(number, _)| self.stamp(*number) <= as_of).peekable();
        while let Some((first, _)) = documents.peek() {
            let number = page_of(*first);
            let WeighedPage { page, .. } = self.pages.get(&number).unwrap_or_default();
            let byte_count = {
                let mut page = page.write();
                while let Some((number, document)) = documents.next_if(|(next, _)| page_of(*next) == number) {
                    page.insert(number, CachedDocument { document: document.clone(), as_of });
                }
                page.byte_count
            };
            self.pages.insert(number, WeighedPage { page, byte_count });
        }
    }

    /// Invalidates the entry of a document that a write at `sequence` changes. Call it before that write is published.
    pub(super) fn touch(&self, number: DocumentNumber, sequence: Sequence) {
        self.slot(number).fetch_max(sequence.0, Ordering::AcqRel);
    }

    /// The newest write of a document, or of one that shares its slot.
    pub(super) fn stamp(&self, number: DocumentNumber) -> Sequence {
        Sequence(self.slot(number).load(Ordering::Acquire))
    }

    fn slot(&self, number: DocumentNumber) -> &AtomicU64 {
        &self.stamps[(number.0 % STAMP_COUNT) as usize]
    }
}

fn page_of(number: DocumentNumber) -> u64 {
    number.0 / PAGE_NUMBERS
}

impl Page {
    fn find(&self, number: DocumentNumber) -> Option<&CachedDocument> {
        let bit = 1 << (number.0 % PAGE_NUMBERS);
        (self.occupied & bit != 0).then(|| &self.cached[self.count_below(bit)])
    }

    fn insert(&mut self, number: DocumentNumber, cached: CachedDocument) {
        let bit = 1 << (number.0 % PAGE_NUMBERS);
        let at = self.count_below(bit);
        self.byte_count += cached.byte_count();
        if self.occupied & bit == 0 {
            self.occupied |= bit;
            self.cached.insert(at, cached);
        } else {
            self.byte_count -= self.cached[at].byte_count();
            self.cached[at] = cached;
        }
        debug_assert_eq!(self.cached.len(), self.occupied.count_ones() as usize, "one bit for each cached document");
    }

    /// The number of cached documents with lower bits.
    fn count_below(&self, bit: u64) -> usize {
        (self.occupied & (bit - 1)).count_ones() as usize
    }
}

impl CachedDocument {
    fn byte_count(&self) -> usize {
        DOCUMENT_OVERHEAD_BYTES + self.document.byte_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::{DocumentId, Revision};
    use crate::value::{Body, Shapes};

    fn document(number: u64, sequence: u64) -> Document {
        let id = DocumentId::new(format!("{number}")).unwrap();
        let revision = Revision::of_edit(None, false, b"{}");
        Document::new(id, revision, Sequence(sequence), false, Body::new(vec![0; 100]), Arc::new(Shapes::default()))
    }

    fn found(cache: &NumberedCache, numbers: &[u64], at: u64) -> Vec<Option<u64>> {
        let numbers: Vec<_> = numbers.iter().map(|number| DocumentNumber(*number)).collect();
        let mut documents = vec![None; numbers.len()];
        cache.get(&numbers, Sequence(at), &mut documents);
        documents.iter().map(|found| found.as_ref().map(|found| found.id().as_str().parse().unwrap())).collect()
    }

    fn put(cache: &NumberedCache, numbers: &[u64], sequence: u64, as_of: u64) {
        let documents: Vec<_> = numbers.iter().map(|number| document(*number, sequence)).collect();
        let numbers = numbers.iter().map(|number| DocumentNumber(*number));
        cache.put(numbers.zip(&documents), Sequence(as_of));
    }

    #[test]
    fn documents_are_found_by_number_in_any_order() {
        let cache = NumberedCache::new(1 << 20);
        put(&cache, &[200, 3, 1, 63, 64, 3], 1, 5);
        put(&cache, &[2], 1, 5);
        let wanted = [63, 0, 1, 2, 3, 4, 64, 65, 200];
        let expected = [Some(63), None, Some(1), Some(2), Some(3), None, Some(64), None, Some(200)];
        assert_eq!(found(&cache, &wanted, 5), expected);
    }

    #[test]
    fn documents_written_since_are_not_returned() {
        let cache = NumberedCache::new(1 << 20);
        put(&cache, &[1, 2], 4, 5);
        assert_eq!(found(&cache, &[1, 2], 3), [None, None], "the snapshot is older");
        cache.touch(DocumentNumber(1), Sequence(6));
        assert_eq!(found(&cache, &[1, 2], 9), [None, Some(2)]);
        put(&cache, &[1], 4, 5);
        assert_eq!(found(&cache, &[1], 9), [None], "it was read before the write");
        put(&cache, &[1], 6, 7);
        assert_eq!(found(&cache, &[1], 9), [Some(1)]);
    }

    #[test]
    fn the_cache_stays_within_its_bound() {
        let cache = NumberedCache::new(64 << 10);
        for number in 0..10_000 {
            put(&cache, &[number], 1, 5);
        }
        let all: Vec<u64> = (0..10_000).collect();
        let kept_count = found(&cache, &all, 5).iter().flatten().count();
        assert!(kept_count > 64 && kept_count < (64 << 10) / 100, "{kept_count} are cached");
    }
}
