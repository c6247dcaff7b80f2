//! A page of the document cache: the cached documents among 64 adjacent numbers, so that one lookup serves all rows of
//! a query that are on it.

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::revision::Sequence;

/// Numbers per page: one bit each in a word.
const PAGE_NUMBERS: u64 = 64;
/// The size of a cached document besides its record: its entry on the page and reference counts.
const DOCUMENT_OVERHEAD_BYTES: usize = size_of::<CachedDocument>() + 32;

/// The cached documents among 64 numbers.
#[derive(Default)]
pub(super) struct DocumentPage {
    /// One bit for each number with a cached document.
    occupied: u64,
    cached: Vec<CachedDocument>,
    byte_count: usize,
}

/// A document, and the sequence of the snapshot that it was read from.
pub(super) struct CachedDocument {
    pub(super) document: Document,
    pub(super) as_of: Sequence,
}

/// The number of the page that has a document.
pub(super) fn page_of(number: DocumentNumber) -> u64 {
    number.0 / PAGE_NUMBERS
}

impl DocumentPage {
    /// Memory used by the documents, in bytes.
    pub(super) fn byte_count(&self) -> usize {
        self.byte_count
    }

    pub(super) fn find(&self, number: DocumentNumber) -> Option<&CachedDocument> {
        let bit = 1 << (number.0 % PAGE_NUMBERS);
        (self.occupied & bit != 0).then(|| &self.cached[self.count_below(bit)])
    }

    pub(super) fn insert(&mut self, number: DocumentNumber, cached: CachedDocument) {
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
