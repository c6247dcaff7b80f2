//! The document cache: recently read documents, found by id or by number, and the results of single-term lookups, in
//! one map with one bound. A hit costs a hash lookup and touches neither memtable, tree nor log.
//!
//! Invariant: an entry is used only while no write has changed its documents, or its term's set of documents, since the
//! snapshot it was read from. Each write sets [`WriteStamps`] *before* it is published; a reader accepts an entry only
//! if the entry's snapshot is at least as new as the stamps.
//!
//! A document that is read both by id and by number has two entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::cache::document_page::{CachedDocument, DocumentPage, page_of};
use crate::cache::write_stamps::{TermSlot, WriteStamps};
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentTerms, PathNumber, TermDifference};
use crate::revision::{DocumentId, Sequence};
use crate::sync::RwLock;

/// The size of an entry besides its content: key, value, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: usize = 192;
/// The size of a document of a result besides its record.
const RESULT_DOCUMENT_BYTES: usize = size_of::<(DocumentNumber, Document)>();
/// One of this many pages is cached once the cache is full: a query that reads more documents than fit does not spend
/// its time on replacing them all.
const PAGES_A_REPLACEMENT: u32 = 4;
/// The cache reserves memory for this many entries at most; it grows as needed.
const RESERVED_MAX: u64 = 1 << 10;

/// The documents that have a term, by number.
pub(crate) type CachedResult = Arc<[(DocumentNumber, Document)]>;

pub(crate) struct DocumentCache {
    /// None: the cache is disabled.
    enabled: Option<EnabledCache>,
}

struct EnabledCache {
    entries: Cache<EntryKey, Entry, EntryWeighter>,
    stamps: WriteStamps,
    /// Counts the pages that were not cached before.
    new_pages: AtomicU32,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum EntryKey {
    Id(DocumentId),
    /// The documents by number of one page.
    Page(u64),
    Term(PathNumber, Box<[u8]>),
}

/// A borrowed key, with the same hash: its variants are in the same order.
#[derive(Hash)]
enum BorrowedKey<'a> {
    Id(&'a str),
    Page(u64),
    Term(PathNumber, &'a [u8]),
}

#[derive(Clone)]
enum Entry {
    /// The entry is valid for snapshots from the document's own sequence to `as_of`, that of the snapshot it was read
    /// from.
    Document {
        document: Document,
        number: DocumentNumber,
        as_of: Sequence,
    },
    /// A page with its size when it was inserted: the map needs a weight that does not change.
    Page {
        page: Arc<RwLock<DocumentPage>>,
        byte_count: usize,
    },
    Result {
        result: CachedResult,
        as_of: Sequence,
        slot: TermSlot,
    },
}

#[derive(Clone)]
struct EntryWeighter;

impl Equivalent<EntryKey> for BorrowedKey<'_> {
    fn equivalent(&self, key: &EntryKey) -> bool {
        match (self, key) {
            (BorrowedKey::Id(id), EntryKey::Id(key)) => *id == key.as_str(),
            (BorrowedKey::Page(page), EntryKey::Page(key)) => page == key,
            (BorrowedKey::Term(path, value), EntryKey::Term(key_path, key)) => path == key_path && **value == **key,
            _ => false,
        }
    }
}

impl Weighter<EntryKey, Entry> for EntryWeighter {
    fn weight(&self, key: &EntryKey, entry: &Entry) -> u64 {
        let key_bytes = match key {
            EntryKey::Id(id) => id.as_str().len(),
            EntryKey::Page(_) => 0,
            EntryKey::Term(_, value) => value.len(),
        };
        let content_bytes = match entry {
            Entry::Document { document, .. } => document.byte_count(),
            Entry::Page { byte_count, .. } => *byte_count,
            Entry::Result { result, .. } => {
                result.iter().map(|(_, document)| document.byte_count() + RESULT_DOCUMENT_BYTES).sum()
            }
        };
        (ENTRY_OVERHEAD_BYTES + key_bytes + content_bytes) as u64
    }
}

impl EnabledCache {
    /// Whether to cache a page that is not in the map.
    fn admits_page(&self) -> bool {
        let is_full = self.entries.weight() > self.entries.capacity() / 8 * 7;
        !is_full || self.new_pages.fetch_add(1, Ordering::Relaxed).is_multiple_of(PAGES_A_REPLACEMENT)
    }
}

impl DocumentCache {
    /// Creates a cache of at most `bytes_max`; zero disables it.
    pub(crate) fn new(bytes_max: u64) -> Self {
        if bytes_max == 0 {
            return DocumentCache { enabled: None };
        }
        let stamps = WriteStamps::new(bytes_max);
        let entry_bytes = bytes_max.saturating_sub(stamps.byte_count()).max(1);
        let reserved = (entry_bytes / 1_024).clamp(16, RESERVED_MAX) as usize;
        let entries = Cache::with_weighter(reserved, entry_bytes, EntryWeighter);
        DocumentCache { enabled: Some(EnabledCache { entries, stamps, new_pages: AtomicU32::new(0) }) }
    }

    /// Changes the bound, unless the cache is disabled.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        if let Some(cache) = &self.enabled {
            cache.entries.set_capacity(bytes_max.saturating_sub(cache.stamps.byte_count()).max(1));
        }
    }

    /// Memory used, in bytes.
    pub(crate) fn byte_count(&self) -> u64 {
        self.enabled.as_ref().map_or(0, |cache| cache.entries.weight() + cache.stamps.byte_count())
    }

    /// The document `id` as of the snapshot `at`, if a valid entry has it.
    pub(crate) fn get(&self, id: &str, at: Sequence) -> Option<Document> {
        let cache = self.enabled.as_ref()?;
        let Entry::Document { document, number, as_of } = cache.entries.get(&BorrowedKey::Id(id))? else { return None };
        (cache.stamps.document(number) <= as_of && document.sequence() <= at).then_some(document)
    }

    /// Caches document `number`, read from a snapshot at `as_of`, by its id.
    pub(crate) fn put(&self, number: DocumentNumber, document: &Document, as_of: Sequence) {
        if let Some(cache) = &self.enabled
            && cache.stamps.document(number) <= as_of
        {
            let entry = Entry::Document { document: document.clone(), number, as_of };
            cache.entries.insert(EntryKey::Id(document.id().clone()), entry);
        }
    }

    /// Fills `documents` with the cached ones among `numbers` as of the snapshot `at`, each at the same index.
    pub(crate) fn get_numbers(&self, numbers: &[DocumentNumber], at: Sequence, documents: &mut [Option<Document>]) {
        debug_assert_eq!(numbers.len(), documents.len(), "one result for each number");
        let Some(EnabledCache { entries, stamps, .. }) = &self.enabled else { return };
        let mut done_count = 0;
        for run in numbers.chunk_by(|a, b| page_of(*a) == page_of(*b)) {
            let documents = &mut documents[done_count..done_count + run.len()];
            done_count += run.len();
            let Some(Entry::Page { page, .. }) = entries.get(&BorrowedKey::Page(page_of(run[0]))) else { continue };
            let page = page.read();
            for (number, document) in run.iter().zip(documents) {
                if let Some(cached) = page.find(*number).filter(|cached| stamps.document(*number) <= cached.as_of)
                    && cached.document.sequence() <= at
                {
                    *document = Some(cached.document.clone());
                }
            }
        }
    }

    /// Caches documents, read from a snapshot at `as_of`, by their numbers. Costs less the fewer page changes there are
    /// in their order.
    pub(crate) fn put_numbers<'d>(
        &self,
        documents: impl Iterator<Item = (DocumentNumber, &'d Document)>,
        as_of: Sequence,
    ) {
        let Some(cache) = &self.enabled else { return };
        let EnabledCache { entries, stamps, .. } = cache;
        let mut documents = documents.filter(|(number, _)| stamps.document(*number) <= as_of).peekable();
        while let Some((first, _)) = documents.peek() {
            let number = page_of(*first);
            let page = match entries.get(&BorrowedKey::Page(number)) {
                Some(Entry::Page { page, .. }) => page,
                _ if cache.admits_page() => Arc::default(),
                _ => {
                    while documents.next_if(|(next, _)| page_of(*next) == number).is_some() {}
                    continue;
                }
            };
            let byte_count = {
                let mut page = page.write();
                while let Some((number, document)) = documents.next_if(|(next, _)| page_of(*next) == number) {
                    page.insert(number, CachedDocument { document: document.clone(), as_of });
                }
                page.byte_count()
            };
            entries.insert(EntryKey::Page(number), Entry::Page { page, byte_count });
        }
    }

    /// The current documents of a term, if a valid entry has them.
    pub(crate) fn result(&self, path: PathNumber, key: &[u8]) -> Option<CachedResult> {
        let EnabledCache { entries, stamps, .. } = self.enabled.as_ref()?;
        let Entry::Result { result, as_of, slot } = entries.get(&BorrowedKey::Term(path, key))? else { return None };
        let is_fresh =
            stamps.is_term_unchanged(slot, as_of) && result.iter().all(|(number, _)| stamps.document(*number) <= as_of);
        is_fresh.then_some(result)
    }

    /// Caches all documents of a term, read from a snapshot at `as_of`; starts to watch its path if necessary.
    pub(crate) fn put_result(&self, path: PathNumber, key: &[u8], result: &CachedResult, as_of: Sequence) {
        let Some(EnabledCache { entries, stamps, .. }) = &self.enabled else { return };
        let slot = stamps.term_slot(path, key);
        if stamps.watch(path) <= as_of && stamps.is_term_unchanged(slot, as_of) {
            entries.insert(EntryKey::Term(path, key.into()), Entry::Result { result: result.clone(), as_of, slot });
        }
    }

    /// Announces that a transaction is about to change documents, with sequences up to `last`. The caller holds the
    /// writer lock.
    pub(crate) fn begin(&self, last: Sequence) {
        if let Some(cache) = &self.enabled {
            cache.stamps.begin(last);
        }
    }

    /// Invalidates the entries of a document that a write at `sequence` changes, and leaves with these terms. Call it
    /// before that write is published.
    pub(crate) fn touch(
        &self,
        number: DocumentNumber,
        sequence: Sequence,
        terms: Option<&DocumentTerms>,
        change: TermDifference<'_>,
    ) {
        let Some(EnabledCache { stamps, .. }) = &self.enabled else { return };
        stamps.touch_document(number, sequence);
        if !stamps.is_watching() {
            return;
        }
        for term in change.removed_terms().chain(change.added_terms()) {
            stamps.touch_term(term.path, term.key, sequence);
        }
        if terms.is_some_and(DocumentTerms::overflow) {
            stamps.touch_incomplete(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;
    use crate::value::{Body, Shapes};

    const PATH: PathNumber = PathNumber(3);

    fn document(number: u64, sequence: u64) -> Document {
        let id = DocumentId::new(format!("{number}")).unwrap();
        let revision = Revision::of_edit(None, false, b"{}");
        Document::new(id, revision, Sequence(sequence), false, Body::new(vec![0; 100]), Arc::new(Shapes::default()))
    }

    fn stamps(cache: &DocumentCache) -> &WriteStamps {
        &cache.enabled.as_ref().unwrap().stamps
    }

    fn found(cache: &DocumentCache, numbers: &[u64], at: u64) -> Vec<Option<u64>> {
        let numbers: Vec<_> = numbers.iter().map(|number| DocumentNumber(*number)).collect();
        let mut documents = vec![None; numbers.len()];
        cache.get_numbers(&numbers, Sequence(at), &mut documents);
        documents.iter().map(|found| found.as_ref().map(|found| found.id().as_str().parse().unwrap())).collect()
    }

    fn put(cache: &DocumentCache, numbers: &[u64], sequence: u64, as_of: u64) {
        let documents: Vec<_> = numbers.iter().map(|number| document(*number, sequence)).collect();
        let numbers = numbers.iter().map(|number| DocumentNumber(*number));
        cache.put_numbers(numbers.zip(&documents), Sequence(as_of));
    }

    #[test]
    fn documents_are_found_by_number_in_any_order() {
        let cache = DocumentCache::new(1 << 20);
        put(&cache, &[200, 3, 1, 63, 64, 3], 1, 5);
        put(&cache, &[2], 1, 5);
        let wanted = [63, 0, 1, 2, 3, 4, 64, 65, 200];
        let expected = [Some(63), None, Some(1), Some(2), Some(3), None, Some(64), None, Some(200)];
        assert_eq!(found(&cache, &wanted, 5), expected);
    }

    #[test]
    fn documents_written_since_are_not_returned() {
        let cache = DocumentCache::new(1 << 20);
        let by_id = |id: &str, at: u64| cache.get(id, Sequence(at)).map(|document| document.sequence().0);
        put(&cache, &[1, 2], 4, 5);
        cache.put(DocumentNumber(1), &document(1, 4), Sequence(5));
        cache.put(DocumentNumber(2), &document(2, 4), Sequence(5));
        assert_eq!(found(&cache, &[1, 2], 3), [None, None], "the snapshot is older");
        assert_eq!((by_id("1", 3), by_id("1", 4)), (None, Some(4)));
        stamps(&cache).touch_document(DocumentNumber(1), Sequence(6));
        assert_eq!(found(&cache, &[1, 2], 9), [None, Some(2)]);
        assert_eq!((by_id("1", 9), by_id("2", 9)), (None, Some(4)));
        put(&cache, &[1], 4, 5);
        cache.put(DocumentNumber(1), &document(1, 4), Sequence(5));
        assert_eq!((found(&cache, &[1], 9), by_id("1", 9)), (vec![None], None), "it was read before the write");
        put(&cache, &[1], 6, 7);
        cache.put(DocumentNumber(1), &document(1, 6), Sequence(7));
        assert_eq!((found(&cache, &[1], 9), by_id("1", 9)), (vec![Some(1)], Some(6)));
    }

    #[test]
    fn the_cache_stays_within_its_bound() {
        let bytes_max = 64 << 10;
        let cache = DocumentCache::new(bytes_max);
        for number in 0..10_000 {
            put(&cache, &[number], 1, 5);
            cache.put(DocumentNumber(number), &document(number, 1), Sequence(5));
            let result = [(DocumentNumber(number), document(number, 1))].into();
            cache.put_result(PATH, &number.to_be_bytes(), &result, Sequence(5));
            assert!(cache.byte_count() <= bytes_max);
        }
        let all: Vec<u64> = (0..10_000).collect();
        let kept_count = found(&cache, &all, 5).iter().flatten().count();
        assert!(kept_count > 0 && kept_count < (64 << 10) / 100, "{kept_count} are cached");
        assert_eq!(DocumentCache::new(0).byte_count(), 0);
    }

    #[test]
    fn a_write_to_a_term_or_with_incomplete_terms_invalidates_a_result() {
        let cache = DocumentCache::new(1 << 20);
        let stamps = stamps(&cache);
        let is_cached = || cache.result(PATH, b"key").is_some();
        let no_documents: CachedResult = Arc::new([]);
        assert!(!is_cached());
        cache.put_result(PATH, b"key", &no_documents, Sequence(1));
        assert!(is_cached());
        stamps.begin(Sequence(2));
        stamps.touch_term(PathNumber(4), b"key", Sequence(2));
        assert!(is_cached());
        stamps.touch_term(PATH, b"key", Sequence(2));
        assert!(!is_cached());
        // A snapshot from before the write must not restore the entry.
        cache.put_result(PATH, b"key", &no_documents, Sequence(1));
        assert!(!is_cached());
        cache.put_result(PATH, b"key", &no_documents, Sequence(2));
        assert!(is_cached());
        stamps.touch_incomplete(Sequence(3));
        assert!(!is_cached());
    }

    #[test]
    fn writes_before_a_path_is_watched_are_not_missed() {
        let cache = DocumentCache::new(1 << 20);
        // Written, but not published: the write did not stamp the term.
        stamps(&cache).begin(Sequence(5));
        stamps(&cache).touch_term(PATH, b"key", Sequence(5));
        cache.put_result(PATH, b"key", &(Arc::new([]) as CachedResult), Sequence(4));
        assert!(cache.result(PATH, b"key").is_none());
        cache.put_result(PATH, b"key", &(Arc::new([]) as CachedResult), Sequence(5));
        assert!(cache.result(PATH, b"key").is_some());
    }
}
