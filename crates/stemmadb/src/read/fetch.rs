//! Reads documents and ids by document number, for query results.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Result;
use crate::cache::id_directory::{IdDirectory, IdPage};
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
    /// The ids of documents, in the requested order. Costs tens of nanoseconds for each number on a page that is used
    /// often or densely, otherwise a lookup in the tree.
    pub(crate) fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        let directory = &self.parts.caches.id_directory;
        let mut ids = Vec::with_capacity(numbers.len());
        // Pages used so far, for numbers that alternate between them.
        let mut pages: SmallVec<[(u64, Option<Arc<IdPage>>); 8]> = SmallVec::new();
        for run in numbers.chunk_by(|a, b| IdDirectory::page_of(*a) == IdDirectory::page_of(*b)) {
            let page = IdDirectory::page_of(run[0]);
            let slot = page as usize % PAGES_AT_HAND;
            if pages.get(slot).is_none_or(|(held, _)| *held != page) {
                let ids_of_page = directory.page(page, run.len(), || self.read_ids(page))?;
                if pages.len() <= slot {
                    pages.resize(slot + 1, (u64::MAX, None));
                }
                pages[slot] = (page, ids_of_page);
            }
            let Some(ids_of_page) = &pages[slot].1 else {
                for number in run {
                    ids.push(self.id(*number)?);
                }
                continue;
            };
            for number in run {
                match ids_of_page.id(*number) {
                    Some(id) => ids.push(id.clone()),
                    None => {
                        ids.push(self.id(*number)?);
                        if self.recent(*number).is_none() {
                            directory.forget(page);
                        }
                    }
                }
            }
        }
        Ok(ids)
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

    fn read_ids(&self, page: u64) -> Result<IdPage> {
        let numbers = IdPage::numbers(page);
        let (lower, upper) = (layout::number_key(numbers.start.0), layout::number_key(numbers.end.0));
        let mut rows =
            self.tree.scan(Table::Docs, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        let mut ids = IdPage::default();
        while let Some((key, value)) = rows.next()? {
            let number = DocumentNumber(layout::number_of_key(Table::Docs, key)?);
            ids.add(number, DocumentId::from_stored(DocumentRow::decode(value)?.id)?);
        }
        ids.shrink();
        Ok(ids)
    }

    /// Calls `visit` with the winners of these documents, in the requested order. The documents must exist, as the
    /// index shows. Records that are near each other in the log are read together.
    pub(crate) fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        let mut documents = vec![None; numbers.len()];
        if self.is_published {
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

    fn read_missing(&self, numbers: &[DocumentNumber], documents: &mut [Option<Document>]) -> Result<()> {
        let missing: Vec<usize> = (0..numbers.len()).filter(|index| documents[*index].is_none()).collect();
        let keys: Vec<_> = missing.iter().map(|index| layout::number_key(numbers[*index].0)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let mut records = Vec::with_capacity(missing.len());
        for (index, row) in missing.iter().copied().zip(self.tree.get_many(Table::Docs, &keys)?) {
            let row = row.ok_or_else(|| layout::damaged(Table::Docs))?;
            let DocumentRow { id, sequence, position, length, .. } = DocumentRow::decode(&row)?;
            let id = DocumentId::from_stored(id)?;
            records.push(RecordToRead { index, number: numbers[index], id, sequence, position, length });
        }
        records.sort_unstable_by_key(|record_to_read| record_to_read.position);
        let mut bytes = Vec::new();
        let mut rest = &records[..];
        while let Some(first) = rest.first() {
            let count = window(rest);
            let (near, far) = rest.split_at(count);
            let length = near[count - 1].end() - first.position.to_u64();
            self.segments.read(first.position, length as usize, &mut bytes)?;
            for record_to_read in near {
                let start = (record_to_read.position.to_u64() - first.position.to_u64()) as usize;
                let record = &bytes[start..start + record_to_read.length as usize];
                let document = self.decode_record(
                    record.into(),
                    record_to_read.position,
                    record_to_read.id.clone(),
                    record_to_read.number,
                    record_to_read.sequence,
                )?;
                documents[record_to_read.index] = Some(document);
            }
            rest = far;
        }
        if self.is_published {
            let read = missing.into_iter().filter_map(|index| Some((numbers[index], documents[index].as_ref()?)));
            self.parts.caches.documents.put_numbers(read, self.at);
        }
        Ok(())
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
