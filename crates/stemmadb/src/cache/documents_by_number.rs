//! Documents by number, as the rows of queries ask for them: many at once, and near each other.
//!
//! Numbers are kept 64 to a page, so that a look-up serves all rows that lie on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Weighter, sync::Cache};

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::revision::Sequence;
use crate::sync::RwLock;

/// Numbers of a page: one bit each in a word.
const PAGE_NUMBERS: u64 = 64;
/// Slots of write stamps; documents so many numbers apart share one.
const STAMP_COUNT: u64 = 1 << 16;
/// What a document costs beside its record: its place on the page and reference counts.
const DOCUMENT_OVERHEAD_BYTES: usize = size_of::<Kept>() + 32;

/// What a page costs beside its documents.
const PAGE_OVERHEAD_BYTES: usize = 160;

/// A bounded cache; see [`DocumentCache`](crate::cache::documents::DocumentCache) for what makes an entry good.
pub(super) struct NumberedCache {
    pages: Cache<u64, Weighed, ByBytes>,
    stamps: Box<[AtomicU64]>,
}

/// A page, and what it took when it was put here: the cache needs a weight that does not change.
#[derive(Clone, Default)]
struct Weighed {
    page: Arc<RwLock<Page>>,
    byte_count: usize,
}

/// The documents that are kept of 64.
#[derive(Default)]
struct Page {
    /// Which of them there are.
    places: u64,
    kept: Vec<Kept>,
    byte_count: usize,
}

struct Kept {
    document: Document,
    as_of: Sequence,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<u64, Weighed> for ByBytes {
    fn weight(&self, _: &u64, weighed: &Weighed) -> u64 {
        (PAGE_OVERHEAD_BYTES + weighed.byte_count) as u64
    }
}

impl NumberedCache {
    pub(super) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / (PAGE_NUMBERS * 256)).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        NumberedCache {
            pages: Cache::with_weighter(expected_count, bytes.max(1), ByBytes),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Adds to `documents` what is kept of `numbers`, each at its place.
    pub(super) fn get(&self, numbers: &[DocumentNumber], at: Sequence, documents: &mut [Option<Document>]) {
        let mut done_count = 0;
        for run in numbers.chunk_by(|a, b| page_of(*a) == page_of(*b)) {
            let documents = &mut documents[done_count..done_count + run.len()];
            done_count += run.len();
            let Some(Weighed { page, .. }) = self.pages.get(&page_of(run[0])) else { continue };
            let page = page.read();
            for (number, document) in run.iter().zip(documents) {
                if let Some(kept) = page.find(*number).filter(|kept| self.stamp(*number) <= kept.as_of)
                    && kept.document.sequence() <= at
                {
                    *document = Some(kept.document.clone());
                }
            }
        }
    }

    /// Keeps documents, which were read from a snapshot at `as_of`. The fewer pages they lie on one after the other, the less it costs.
    pub(super) fn put<'d>(&self, documents: impl Iterator<Item = (DocumentNumber, &'d Document)>, as_of: Sequence) {
        let mut documents = documents.filter(|(number, _)| self.stamp(*number) <= as_of).peekable();
        while let Some((first, _)) = documents.peek() {
            let number = page_of(*first);
            let Weighed { page, .. } = self.pages.get(&number).unwrap_or_default();
            let byte_count = {
                let mut page = page.write();
                while let Some((number, document)) = documents.next_if(|(next, _)| page_of(*next) == number) {
                    page.keep(number, Kept { document: document.clone(), as_of });
                }
                page.byte_count
            };
            self.pages.insert(number, Weighed { page, byte_count });
        }
    }

    /// Notes that a write at `sequence` touches a document; to be called before that write is published.
    pub(super) fn touch(&self, number: DocumentNumber, sequence: Sequence) {
        self.slot(number).fetch_max(sequence.0, Ordering::AcqRel);
    }

    /// When a document was written last, or one that shares its slot.
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
    fn find(&self, number: DocumentNumber) -> Option<&Kept> {
        let bit = 1 << (number.0 % PAGE_NUMBERS);
        (self.places & bit != 0).then(|| &self.kept[self.count_below(bit)])
    }

    fn keep(&mut self, number: DocumentNumber, kept: Kept) {
        let bit = 1 << (number.0 % PAGE_NUMBERS);
        let at = self.count_below(bit);
        self.byte_count += kept.byte_count();
        if self.places & bit == 0 {
            self.places |= bit;
            self.kept.insert(at, kept);
        } else {
            self.byte_count -= self.kept[at].byte_count();
            self.kept[at] = kept;
        }
    }

    /// How many are kept whose bits are lower.
    fn count_below(&self, bit: u64) -> usize {
        (self.places & (bit - 1)).count_ones() as usize
    }
}

impl Kept {
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
    fn what_was_written_since_is_not_told() {
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
    fn it_keeps_to_its_bound() {
        let cache = NumberedCache::new(64 << 10);
        for number in 0..10_000 {
            put(&cache, &[number], 1, 5);
        }
        let all: Vec<u64> = (0..10_000).collect();
        let kept_count = found(&cache, &all, 5).iter().flatten().count();
        assert!(kept_count > 64 && kept_count < (64 << 10) / 100, "{kept_count} are kept");
    }
}
