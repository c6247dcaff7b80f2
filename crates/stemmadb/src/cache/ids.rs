//! The id cache: document ids by number, because query results are numbers and callers want ids.
//!
//! A number always names the same id, so entries never become outdated. Ids that are not cached are read from the tree.
//!
//! Ids are cached in pages of 1,024 numbers, as long as they fit. Once they don't, pages are compressed when they are
//! read or used: ids are in groups of 16, and each is stored without the bytes that it has in common with the first one
//! of its group. Ids that count up take about 5 bytes then, instead of 24 and those above 23 bytes.
//!
//! ```text
//! shared, rest (varints), rest of the id; both are 0 for a number without a document
//! ```
//!
//! Reading a whole page costs as much as about twenty single lookups, so it is read once that many ids of it were
//! requested, or six times as many once the cache is full: a database whose ids do not fit has the ids of as many
//! documents as fit cached, and does not replace them all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use quick_cache::{Weighter, sync::Cache};
use smallvec::SmallVec;

use crate::index::DocumentNumber;
use crate::revision::DocumentId;
use crate::tree::common_prefix;
use crate::{Result, varint};

/// Numbers per page.
const PAGE_NUMBERS: u64 = 1024;
/// The first id of each group is stored completely.
const GROUP_NUMBERS: usize = 16;
/// A page is read after this many lookups, and after that many once the cache is full.
const LOOKUPS_BEFORE_READ: u8 = 20;
const LOOKUPS_BEFORE_REPLACING: u8 = 120;
/// The number of lookup counters, which pages share.
const COUNTER_COUNT: usize = 4096;
/// The size of a page besides its ids: key, hash slot, reference count.
const PAGE_OVERHEAD_BYTES: usize = 128;
/// The cache reserves memory for this many pages at most; it grows as needed.
const RESERVED_MAX: u64 = 256;

/// A bounded cache of pages of ids.
pub(crate) struct IdCache {
    pages: Cache<u64, Arc<IdPage>, IdPageWeighter>,
    lookups: Box<[AtomicU8]>,
    /// Whether pages are compressed, because they did not fit.
    is_compressed: AtomicBool,
    bytes_max: AtomicU64,
}

/// The ids of [`PAGE_NUMBERS`] documents.
pub(crate) enum IdPage {
    Plain(PlainPage),
    Compressed(CompressedPage),
}

/// Ids by their index.
#[derive(Default)]
pub(crate) struct PlainPage {
    ids: Vec<Option<DocumentId>>,
    /// Bytes that the ids take outside of the page.
    shared_bytes: usize,
}

#[derive(Default)]
pub(crate) struct CompressedPage {
    bytes: Box<[u8]>,
    /// The offset of each group.
    groups: Box<[u32]>,
    count: usize,
}

impl PlainPage {
    /// Adds the id of a number; numbers must be added in ascending order.
    pub(crate) fn add(&mut self, number: DocumentNumber, id: DocumentId) {
        debug_assert!(self.ids.len() <= index_of(number), "numbers are added in ascending order");
        self.ids.resize_with(index_of(number), || None);
        self.shared_bytes += id.shared_bytes();
        self.ids.push(Some(id));
    }

    /// Releases unused capacity.
    pub(crate) fn finish(mut self) -> IdPage {
        self.ids.shrink_to_fit();
        IdPage::Plain(self)
    }

    fn compress(&self) -> CompressedPage {
        let (mut bytes, mut groups) = (Vec::new(), Vec::new());
        for group in self.ids.chunks(GROUP_NUMBERS) {
            groups.push(bytes.len() as u32);
            let first = group.iter().flatten().next().map_or(&[][..], |first| first.as_str().as_bytes());
            let mut is_first = true;
            for id in group {
                let id = id.as_ref().map_or(&[][..], |id| id.as_str().as_bytes());
                let shared = if is_first { 0 } else { common_prefix(first, id) };
                is_first &= id.is_empty();
                varint::write(shared as u64, &mut bytes);
                varint::write((id.len() - shared) as u64, &mut bytes);
                bytes.extend_from_slice(&id[shared..]);
            }
        }
        CompressedPage { bytes: bytes.into(), groups: groups.into(), count: self.ids.len() }
    }
}

impl CompressedPage {
    /// The id at an index. Costs a pass over the lengths of its group.
    fn id(&self, index: usize) -> Option<DocumentId> {
        if index >= self.count {
            return None;
        }
        let mut input = self.bytes.get(*self.groups.get(index / GROUP_NUMBERS)? as usize..)?;
        let mut first: &[u8] = &[];
        for _ in 0..index % GROUP_NUMBERS {
            if let Some((0, rest)) = take_entry(&mut input)?
                && first.is_empty()
            {
                first = rest;
            }
        }
        let (shared, rest) = take_entry(&mut input)??;
        let mut id: SmallVec<[u8; 64]> = SmallVec::from_slice(first.get(..shared)?);
        id.extend_from_slice(rest);
        DocumentId::from_stored(std::str::from_utf8(&id).ok()?).ok()
    }
}

impl IdPage {
    /// The numbers of this page.
    pub(crate) fn numbers(page: u64) -> std::ops::Range<DocumentNumber> {
        DocumentNumber(page * PAGE_NUMBERS)..DocumentNumber((page + 1).saturating_mul(PAGE_NUMBERS))
    }

    /// The id of a number on this page.
    #[inline]
    pub(crate) fn id(&self, number: DocumentNumber) -> Option<DocumentId> {
        match self {
            IdPage::Plain(page) => page.ids.get(index_of(number))?.clone(),
            IdPage::Compressed(page) => page.id(index_of(number)),
        }
    }

    fn byte_count(&self) -> usize {
        PAGE_OVERHEAD_BYTES
            + match self {
                IdPage::Plain(page) => size_of::<Option<DocumentId>>() * page.ids.capacity() + page.shared_bytes,
                IdPage::Compressed(page) => page.bytes.len() + size_of_val(&*page.groups),
            }
    }
}

/// The index of a number on its page.
#[inline]
fn index_of(number: DocumentNumber) -> usize {
    (number.0 % PAGE_NUMBERS) as usize
}

/// The next entry of a page; the inner option is none for a number without a document.
#[inline]
fn take_entry<'a>(input: &mut &'a [u8]) -> Option<Option<(usize, &'a [u8])>> {
    let (shared, rest_len, header) = match **input {
        [shared, rest, ..] if (shared | rest) < 0x80 => (usize::from(shared), usize::from(rest), 2),
        _ => {
            let mut after = *input;
            let shared = varint::read(&mut after).ok()? as usize;
            let rest = varint::read(&mut after).ok()? as usize;
            (shared, rest, input.len() - after.len())
        }
    };
    let rest = input.get(header..header + rest_len)?;
    *input = &input[header + rest_len..];
    Some((shared + rest_len > 0).then_some((shared, rest)))
}

#[derive(Clone)]
struct IdPageWeighter;

impl Weighter<u64, Arc<IdPage>> for IdPageWeighter {
    fn weight(&self, _: &u64, page: &Arc<IdPage>) -> u64 {
        page.byte_count() as u64
    }
}

impl IdCache {
    /// Creates a cache of at most `bytes_max`; zero disables it.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let reserved = (bytes_max / (4 * PAGE_NUMBERS)).clamp(16, RESERVED_MAX) as usize;
        IdCache {
            pages: Cache::with_weighter(reserved, bytes_max.max(1), IdPageWeighter),
            lookups: (0..COUNTER_COUNT).map(|_| AtomicU8::new(0)).collect(),
            is_compressed: AtomicBool::new(false),
            bytes_max: bytes_max.into(),
        }
    }

    /// Changes the bound; zero disables the cache.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.pages.set_capacity(bytes_max.max(1));
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Memory used, in bytes.
    pub(crate) fn byte_count(&self) -> u64 {
        self.pages.weight()
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
        if self.bytes_max() == 0 {
            return Ok(None);
        }
        if let Some(found) = self.pages.get(&page) {
            return Ok(Some(self.keep_small(page, found)));
        }
        let counter = &self.lookups[page as usize % COUNTER_COUNT];
        let count = counter.load(Ordering::Relaxed).saturating_add(u8::try_from(count).unwrap_or(u8::MAX));
        let lookups_needed = if self.is_full_with(0) { LOOKUPS_BEFORE_REPLACING } else { LOOKUPS_BEFORE_READ };
        if count < lookups_needed {
            counter.store(count, Ordering::Relaxed);
            return Ok(None);
        }
        counter.store(0, Ordering::Relaxed);
        let read = read()?;
        if self.is_full_with(read.byte_count() as u64) {
            self.is_compressed.store(true, Ordering::Relaxed);
        }
        let read = self.keep_small(page, Arc::new(read));
        if matches!(*read, IdPage::Plain(_)) {
            self.pages.insert(page, Arc::clone(&read));
        }
        Ok(Some(read))
    }

    /// Replaces a plain page by a compressed one if pages did not fit.
    #[inline]
    fn keep_small(&self, number: u64, page: Arc<IdPage>) -> Arc<IdPage> {
        match &*page {
            IdPage::Plain(plain) if self.is_compressed.load(Ordering::Relaxed) => {
                let page = Arc::new(IdPage::Compressed(plain.compress()));
                self.pages.insert(number, Arc::clone(&page));
                page
            }
            _ => page,
        }
    }

    /// Whether a further page is likely to replace another once these bytes are added.
    fn is_full_with(&self, bytes: u64) -> bool {
        self.pages.weight() + bytes > self.bytes_max() / 8 * 7
    }

    /// Removes a page that lacks numbers assigned after it was read.
    pub(crate) fn forget(&self, page: u64) {
        self.pages.remove(&page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(page: u64, index: u64) -> DocumentNumber {
        DocumentNumber(page * PAGE_NUMBERS + index)
    }

    fn page_of_ids(page: u64, ids: &[(u64, String)]) -> PlainPage {
        let mut plain = PlainPage::default();
        ids.iter().for_each(|(index, id)| plain.add(number(page, *index), DocumentId::new(id).unwrap()));
        plain
    }

    #[test]
    fn a_page_returns_the_ids_that_were_added() {
        let ids = [(1, "b"), (4, "eee"), (5, "f"), (6, "ffé"), (8, "ffè"), (40, "ffè1"), (1023, "z")];
        let mut ids: Vec<_> = ids.map(|(index, id)| (index, id.to_owned())).to_vec();
        ids.insert(6, (100, "long".repeat(250)));
        ids.insert(7, (101, "long".repeat(249)));
        let plain = page_of_ids(3, &ids);
        for page in [IdPage::Compressed(plain.compress()), plain.finish()] {
            for index in 0..PAGE_NUMBERS {
                let expected = ids.iter().find(|(at, _)| *at == index).map(|(_, id)| id.as_str());
                assert_eq!(page.id(number(3, index)).as_ref().map(DocumentId::as_str), expected, "{index}");
            }
        }
        let short = page_of_ids(3, &ids[..2]);
        assert!(short.compress().id(5).is_none() && short.finish().id(number(3, 5)).is_none());
        assert!(CompressedPage::default().id(0).is_none());
    }

    #[test]
    fn ids_that_count_up_are_small() {
        let ids: Vec<_> =
            (0..PAGE_NUMBERS).map(|index| (index, format!("document-{:012}", 77_000_000 + index))).collect();
        let page = IdPage::Compressed(page_of_ids(3, &ids).compress());
        assert!(page.byte_count() < 6 * PAGE_NUMBERS as usize, "{} bytes", page.byte_count());
        assert!(ids.iter().all(|(index, id)| page.id(number(3, *index)).unwrap().as_str() == id));
    }

    #[test]
    fn a_page_is_read_after_many_lookups() {
        let cache = IdCache::new(1 << 20);
        let read = || Ok(PlainPage::default().finish());
        let refuse = || -> Result<IdPage> { panic!("the page is cached") };
        assert!(cache.page(7, 10, read).unwrap().is_none());
        assert!(cache.page(7, 10, read).unwrap().is_some());
        assert!(cache.page(7, 1, refuse).unwrap().is_some());
        cache.forget(7);
        assert!(cache.page(7, 1, read).unwrap().is_none());
        assert!(IdCache::new(0).page(7, 1000, read).unwrap().is_none());
    }

    #[test]
    fn a_full_cache_keeps_its_pages_and_answers_from_them() {
        let cache = IdCache::new(2 << 20);
        let ids: Vec<_> = (0..PAGE_NUMBERS).map(|index| (index, format!("{:x}", index * index))).collect();
        let mut reads = 0;
        for _ in 0..20 {
            for page in 0..1_000 {
                let read = || {
                    reads += 1;
                    Ok(page_of_ids(page, &ids).finish())
                };
                if let Some(found) = cache.page(page, 20, read).unwrap() {
                    assert_eq!(found.id(number(page, 9)).unwrap().as_str(), "51");
                }
                assert!(cache.byte_count() <= 2 << 20);
            }
        }
        assert!(reads < 1_000 + 19 * 1_000 / 4, "{reads} pages were read");
    }
}
