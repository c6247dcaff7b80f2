//! Reads documents and ids by document number, for query results.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Result;
use crate::cache::ids::{IdCache, IdPage, PlainPage};
use crate::document::Document;
use crate::index::DocumentNumber;
use crate::layout::{self, DocumentRow};
use crate::log::LogPosition;
use crate::memtable::DocumentState;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::tree::{Direction, Table};

/// Records are read together if the gap between them is at most `GAP_BYTES_MAX` and the whole range at most
/// `WINDOW_BYTES_MAX`: a system call costs about as much as copying this many bytes.
const GAP_BYTES_MAX: u64 = 4 << 10;
const WINDOW_BYTES_MAX: u64 = 128 << 10;
/// Two threads share the reading of at least this many documents: it takes far longer than starting a thread.
const SHARED_COUNT_MIN: usize = 512;
/// The maximum number of id pages that one call holds.
const PAGES_AT_HAND: usize = 256;

/// The location of a record to read.
struct RecordToRead {
    /// Its index among the requested documents.
    index: usize,
    number: DocumentNumber,
    id: DocumentId,
    sequence: Sequence,
    position: LogPosition,
    length: u32,
}

impl RecordToRead {
    fn end(&self) -> u64 {
        self.position.to_u64() + u64::from(self.length)
    }
}

impl Snapshot {
    /// The ids of documents, in the requested order. Costs tens to hundreds of nanoseconds for each number on a cached
    /// page, otherwise a lookup in the tree; lookups of nearby numbers share the blocks that they read.
    pub(crate) fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        self.parts.refuse_if_closed()?;
        let mut ids = vec![None; numbers.len()];
        self.cached_ids(numbers, &mut ids)?;
        let missing: Vec<usize> = (0..numbers.len()).filter(|index| ids[*index].is_none()).collect();
        if !missing.is_empty() {
            self.read_missing_ids(numbers, &missing, &mut ids)?;
        }
        ids.into_iter().map(|id| id.ok_or_else(|| layout::damaged(Table::Docs))).collect()
    }

    /// Fills `ids` with those on cached pages, and those on pages that are now requested often enough to be read.
    fn cached_ids(&self, numbers: &[DocumentNumber], ids: &mut [Option<DocumentId>]) -> Result<()> {
        let cache = &self.parts.caches.ids;
        // Pages used so far, for numbers that alternate between them.
        let mut pages: SmallVec<[(u64, Option<Arc<IdPage>>); 8]> = SmallVec::new();
        let mut done_count = 0;
        for run in numbers.chunk_by(|a, b| IdCache::page_of(*a) == IdCache::page_of(*b)) {
            let ids = &mut ids[done_count..done_count + run.len()];
            done_count += run.len();
            let number = IdCache::page_of(run[0]);
            let slot = number as usize % PAGES_AT_HAND;
            if pages.get(slot).is_none_or(|(held, _)| *held != number) {
                let page = cache.page(number, run.len(), || self.read_id_page(number))?;
                if pages.len() <= slot {
                    pages.resize(slot + 1, (u64::MAX, None));
                }
                pages[slot] = (number, page);
            }
            let Some(page) = &pages[slot].1 else { continue };
            for (document, id) in run.iter().zip(ids) {
                *id = page.id(*document);
                if id.is_none() && self.recent(*document).is_none() {
                    cache.forget(number);
                }
            }
        }
        Ok(())
    }

    /// Reads the ids of the numbers at these indexes from memtables and tree.
    fn read_missing_ids(
        &self,
        numbers: &[DocumentNumber],
        missing: &[usize],
        ids: &mut [Option<DocumentId>],
    ) -> Result<()> {
        let mut in_tree = Vec::with_capacity(missing.len());
        for index in missing {
            match self.recent(numbers[*index]) {
                Some(state) => ids[*index] = Some(state.id.clone()),
                None => in_tree.push(*index),
            }
        }
        let keys: Vec<_> = in_tree.iter().map(|index| layout::number_key(numbers[*index].0)).collect();
        self.tree.get_many(Table::Docs, keys.iter().map(|key| key.as_slice()), |at, row| {
            let row = row.ok_or_else(|| layout::damaged(Table::Docs))?;
            ids[in_tree[at]] = Some(DocumentId::from_stored(DocumentRow::decode(row)?.id)?);
            Ok(())
        })
    }

    /// The id of one document.
    pub(crate) fn id(&self, number: DocumentNumber) -> Result<DocumentId> {
        if let Some(state) = self.recent(number) {
            return Ok(state.id.clone());
        }
        let row = self.tree.get(Table::Docs, &layout::number_key(number.0))?;
        let row = row.ok_or_else(|| layout::damaged(Table::Docs))?;
        DocumentId::from_stored(DocumentRow::decode(&row)?.id)
    }

    fn read_id_page(&self, page: u64) -> Result<IdPage> {
        let numbers = IdPage::numbers(page);
        let (lower, upper) = (layout::number_key(numbers.start.0), layout::number_key(numbers.end.0));
        let mut rows =
            self.tree.scan(Table::Docs, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut ids = PlainPage::default();
        while let Some((key, value)) = rows.next()? {
            let number = DocumentNumber(layout::number_of_key(Table::Docs, key)?);
            ids.add(number, DocumentId::from_stored(DocumentRow::decode(value)?.id)?);
        }
        Ok(ids.finish())
    }

    /// Calls `visit` with the winners of these documents, in the requested order. The documents must exist, as the
    /// index shows. Records that are near each other in the log are read together.
    pub(crate) fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        self.parts.refuse_if_closed()?;
        let mut documents = vec![None; numbers.len()];
        if self.may_use_cache() {
            self.parts.caches.documents.get_numbers(numbers, self.at, &mut documents);
        }
        if self.has_memory() {
            for (number, document) in numbers.iter().zip(&mut documents) {
                if let Some(state) = self.state_in_memory(*number) {
                    *document = Some(self.winner(&state)?);
                }
            }
        }
        if documents.iter().any(Option::is_none) {
            self.read_missing(numbers, &mut documents)?;
        }
        for (number, document) in numbers.iter().zip(documents) {
            visit(*number, document.ok_or_else(|| layout::damaged(Table::Docs))?)?;
        }
        Ok(())
    }

    /// The state of a document that is in a memtable.
    fn recent(&self, number: DocumentNumber) -> Option<Arc<DocumentState>> {
        if self.has_memory() { self.state_in_memory(number) } else { None }
    }

    /// Reads the documents that are still missing from tree and log.
    fn read_missing(&self, numbers: &[DocumentNumber], documents: &mut [Option<Document>]) -> Result<()> {
        let missing: Vec<usize> = (0..numbers.len()).filter(|index| documents[*index].is_none()).collect();
        let found = match missing.len() >= SHARED_COUNT_MIN {
            true => self.read_with_two_threads(numbers, &missing)?,
            false => self.read_documents(numbers, &missing)?,
        };
        for (index, document) in found {
            documents[index] = Some(document);
        }
        if self.may_use_cache() {
            let is_current = |index: &usize| self.is_published || self.current_as_of(numbers[*index]).is_some();
            let read = missing.into_iter().filter(is_current);
            let read = read.filter_map(|index| Some((numbers[index], documents[index].as_ref()?)));
            let as_of = self.past.as_ref().map_or(self.at, |past| past.newest);
            self.parts.caches.documents.put_numbers(read, as_of);
        }
        Ok(())
    }

    /// As [`Snapshot::read_documents`], by two threads, whose reads overlap.
    fn read_with_two_threads(&self, numbers: &[DocumentNumber], indexes: &[usize]) -> Result<Vec<(usize, Document)>> {
        let (first, second) = indexes.split_at(indexes.len() / 2);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("stemma-read".to_owned());
            // Without another thread, this one reads both parts.
            let helper = thread.spawn_scoped(scope, || self.read_documents(numbers, second)).ok();
            let first = self.read_documents(numbers, first);
            let second = match helper {
                Some(helper) => helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                None => self.read_documents(numbers, second),
            };
            let mut documents = first?;
            documents.extend(second?);
            Ok(documents)
        })
    }

    /// Reads the documents with these indexes among `numbers`.
    fn read_documents(&self, numbers: &[DocumentNumber], indexes: &[usize]) -> Result<Vec<(usize, Document)>> {
        let records = self.find_records(numbers, indexes)?;
        let mut documents = Vec::with_capacity(records.len());
        let mut bytes = Vec::new();
        let mut rest = &records[..];
        while let Some(first) = rest.first() {
            let count = window(rest);
            let (near, far) = rest.split_at(count);
            let length = near[count - 1].end() - first.position.to_u64();
            let start_of = |record: &RecordToRead| (record.position.to_u64() - first.position.to_u64()) as usize;
            let records: SmallVec<[_; 16]> =
                near.iter().map(|record| (start_of(record), record.length as usize)).collect();
            self.segments.read_records(first.position, length as usize, &records, &mut bytes)?;
            for record_to_read in near {
                let start = start_of(record_to_read);
                let record = &bytes[start..start + record_to_read.length as usize];
                let document = self.decode_record(
                    record.into(),
                    record_to_read.position,
                    record_to_read.id.clone(),
                    record_to_read.number,
                    record_to_read.sequence,
                )?;
                documents.push((record_to_read.index, document));
            }
            rest = far;
        }
        Ok(documents)
    }

    /// Where the records of these documents are, in the order of the log.
    fn find_records(&self, numbers: &[DocumentNumber], indexes: &[usize]) -> Result<Vec<RecordToRead>> {
        let keys: Vec<_> = indexes.iter().map(|index| layout::number_key(numbers[*index].0)).collect();
        let mut records = Vec::with_capacity(indexes.len());
        self.tree.get_many(Table::Docs, keys.iter().map(|key| key.as_slice()), |at, row| {
            let row = row.ok_or_else(|| layout::damaged(Table::Docs))?;
            let DocumentRow { id, sequence, position, length, .. } = DocumentRow::decode(row)?;
            let (index, id) = (indexes[at], DocumentId::from_stored(id)?);
            records.push(RecordToRead { index, number: numbers[index], id, sequence, position, length });
            Ok(())
        })?;
        records.sort_unstable_by_key(|record_to_read| record_to_read.position);
        Ok(records)
    }
}

/// How many of these records, sorted by position, are read together.
fn window(records: &[RecordToRead]) -> usize {
    let start = records[0].position;
    let mut end = records[0].end();
    let mut count = 1;
    for record_to_read in &records[1..] {
        let position = record_to_read.position.to_u64();
        let is_near = record_to_read.position.segment() == start.segment()
            && position <= end + GAP_BYTES_MAX
            && record_to_read.end() - start.to_u64() <= WINDOW_BYTES_MAX;
        if !is_near {
            break;
        }
        end = end.max(record_to_read.end());
        count += 1;
    }
    count
}
