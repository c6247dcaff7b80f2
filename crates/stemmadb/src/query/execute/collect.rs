//! Collects hits and sorts them, reading what the sort key needs of each document.
//!
//! If the number of wanted rows is bounded, only that many are retained in a heap: memory is proportional to the limit,
//! not to the result.

use std::collections::{BinaryHeap, VecDeque};

use super::cursor::{Filtered, Hit, HitPosition, Recheck};
use crate::Result;
use crate::document::Document as StoredDocument;
use crate::index::{DocumentNumber, DocumentSet};
use crate::query::language::document::{DocumentView, IdentityField, value_at};
use crate::query::language::sort::{self, SortPath, SortedPosition};
use crate::query::source::QuerySource;

/// The number of documents read at once; few in tests, so that small results take several batches.
pub(in crate::query) const BATCH_LEN: usize = if cfg!(test) { 3 } else { 256 };

/// Collects hits and sorts them.
pub(in crate::query) struct Collector<'k> {
    keys: &'k [SortPath],
    after: Option<&'k SortedPosition>,
    rows_needed: Option<u64>,
    /// The retained rows; the last one in order is on top.
    heap: BinaryHeap<(SortedPosition, DocumentNumber)>,
    heap_bytes: usize,
    candidate_count: u64,
}

impl<'k> Collector<'k> {
    /// Retains the first `wanted` hits after a position.
    pub(in crate::query) fn new(
        keys: &'k [SortPath],
        after: Option<&'k SortedPosition>,
        rows_needed: Option<u64>,
    ) -> Self {
        Collector { keys, after, rows_needed, heap: BinaryHeap::new(), heap_bytes: 0, candidate_count: 0 }
    }

    /// Adds the matching documents of a set.
    pub(in crate::query) fn add_all(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        documents: &DocumentSet,
    ) -> Result<()> {
        self.add_each(filtered, documents, Recheck::None)
    }

    /// Adds the matching documents of a set; each requires at least this recheck.
    pub(in crate::query) fn add_each(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        documents: &DocumentSet,
        recheck: Recheck,
    ) -> Result<()> {
        let mut numbers = documents.iter();
        let hit = |number| {
            let hit = filtered.hit(number);
            Hit { recheck: hit.recheck.max(recheck), ..hit }
        };
        loop {
            let hits: Vec<Hit> = numbers.by_ref().take(BATCH_LEN).map(hit).collect();
            if hits.is_empty() {
                return Ok(());
            }
            let (ready, rest): (Vec<Hit>, Vec<Hit>) =
                hits.into_iter().partition(|hit| hit.recheck == Recheck::None && self.is_by_id());
            self.add_ids(filtered, &ready)?;
            filtered.load(&rest, |at, document| self.add(rest[at].number, &document))?;
            filtered.source.check_memory(self.heap_bytes)?;
        }
    }

    /// Adds a hit whose sort key is known.
    pub(in crate::query) fn add_hit(&mut self, hit: Hit) {
        if let HitPosition::Sorted(sorted) = hit.position {
            self.push(hit.number, sorted);
        }
    }

    /// The number of matching documents after the start position, retained or not.
    pub(in crate::query) fn candidate_count(&self) -> u64 {
        self.candidate_count
    }

    /// Returns the retained hits in order.
    pub(in crate::query) fn finish(self) -> VecDeque<Hit> {
        let sorted = self.heap.into_sorted_vec().into_iter();
        sorted
            .map(|(sorted, number)| Hit { number, recheck: Recheck::None, position: HitPosition::Sorted(sorted) })
            .collect()
    }

    /// Whether the id alone decides the order, so that no document must be read.
    fn is_by_id(&self) -> bool {
        matches!(self.keys, [SortPath { path, .. }] if path.segments().eq(["_id"]))
    }

    fn add_ids(&mut self, filtered: &Filtered<impl QuerySource>, hits: &[Hit]) -> Result<()> {
        if hits.is_empty() {
            return Ok(());
        }
        let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
        for (number, id) in numbers.iter().zip(filtered.source.ids(&numbers)?) {
            let mut key = Vec::new();
            if let Some(by) = self.keys.first() {
                sort::append_value(&mut key, Some(&id.as_str().into()), by);
            }
            self.push(*number, SortedPosition { key: key.into(), id });
        }
        Ok(())
    }

    fn add(&mut self, number: DocumentNumber, document: &StoredDocument) -> Result<()> {
        let key = sort_key(self.keys, DocumentView::of(document)?)?;
        self.push(number, SortedPosition { key: key.into(), id: document.id().clone() });
        Ok(())
    }

    fn push(&mut self, number: DocumentNumber, sorted: SortedPosition) {
        if self.after.is_some_and(|after| sorted <= *after) {
            return;
        }
        self.candidate_count += 1;
        self.heap_bytes += byte_count(&sorted);
        self.heap.push((sorted, number));
        if self.rows_needed.is_some_and(|rows_needed| self.heap.len() as u64 > rows_needed)
            && let Some((sorted, _)) = self.heap.pop()
        {
            self.heap_bytes -= byte_count(&sorted);
        }
    }
}

/// Approximate memory of a retained row.
fn byte_count(sorted: &SortedPosition) -> usize {
    size_of::<(SortedPosition, DocumentNumber)>() + sorted.key.len() + sorted.id.as_str().len() + 32
}

/// Returns the sort key of a document.
pub(in crate::query) fn sort_key(keys: &[SortPath], document: DocumentView<'_>) -> Result<Vec<u8>> {
    let mut sort_key = Vec::new();
    for key in keys {
        if IdentityField::of(&key.path).is_some() {
            let value = value_at(&key.path, document)?;
            sort::append_value(&mut sort_key, value.as_ref(), key);
        } else {
            sort::append_packed(&mut sort_key, document.body.get(&key.path)?, key)?;
        }
    }
    Ok(sort_key)
}
