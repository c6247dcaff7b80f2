//! Hits into a sorted order, by reading what the order needs of each.
//!
//! With a bound on the rows wanted, only so many of the first are kept: memory follows the limit, not the result.

use std::collections::{BinaryHeap, VecDeque};

use super::cursor::{Filtered, Hit, Need, Place};
use crate::Result;
use crate::document::Document as StoredDocument;
use crate::index::{DocumentNumber, DocumentSet};
use crate::query::language::document::{Document, Identity, value_at};
use crate::query::language::sort::{self, SortPath, Sorted};
use crate::query::source::Source;

/// How many documents are read at once; few in tests, so that small results take several batches.
pub(in crate::query) const BATCH: usize = if cfg!(test) { 3 } else { 256 };

/// Collects hits and sorts them.
pub(in crate::query) struct Collector<'k> {
    keys: &'k [SortPath],
    after: Option<&'k Sorted>,
    wanted: Option<u64>,
    /// The last of the rows kept is on top.
    kept: BinaryHeap<(Sorted, DocumentNumber)>,
    kept_bytes: usize,
    met_count: u64,
}

impl<'k> Collector<'k> {
    /// Keeps the first `wanted` hits after a position.
    pub(in crate::query) fn new(keys: &'k [SortPath], after: Option<&'k Sorted>, wanted: Option<u64>) -> Self {
        Collector { keys, after, wanted, kept: BinaryHeap::new(), kept_bytes: 0, met_count: 0 }
    }

    /// Adds the documents of a set that match.
    pub(in crate::query) fn add_all(
        &mut self,
        filtered: &Filtered<impl Source>,
        documents: &DocumentSet,
    ) -> Result<()> {
        self.add_each(filtered, documents, Need::Nothing)
    }

    /// Adds the documents of a set that match; each needs at least this.
    pub(in crate::query) fn add_each(
        &mut self,
        filtered: &Filtered<impl Source>,
        documents: &DocumentSet,
        need: Need,
    ) -> Result<()> {
        let mut numbers = documents.iter();
        let hit = |number| {
            let hit = filtered.hit(number);
            Hit { need: hit.need.max(need), ..hit }
        };
        loop {
            let hits: Vec<Hit> = numbers.by_ref().take(BATCH).map(hit).collect();
            if hits.is_empty() {
                return Ok(());
            }
            let (ready, rest): (Vec<Hit>, Vec<Hit>) =
                hits.into_iter().partition(|hit| hit.need == Need::Nothing && self.is_by_id());
            self.add_ids(filtered, &ready)?;
            filtered.load(&rest, |at, document| self.add(rest[at].number, &document))?;
            filtered.source.hold(self.kept_bytes)?;
        }
    }

    /// Adds a hit whose place is known.
    pub(in crate::query) fn add_hit(&mut self, hit: Hit) {
        if let Place::Sorted(sorted) = hit.place {
            self.keep(hit.number, sorted);
        }
    }

    /// How many documents after the position it was given, kept or not.
    pub(in crate::query) fn met_count(&self) -> u64 {
        self.met_count
    }

    /// The hits in order.
    pub(in crate::query) fn finish(self) -> VecDeque<Hit> {
        let sorted = self.kept.into_sorted_vec().into_iter();
        sorted.map(|(sorted, number)| Hit { number, need: Need::Nothing, place: Place::Sorted(sorted) }).collect()
    }

    /// Whether the id alone decides, so that no document must be read.
    fn is_by_id(&self) -> bool {
        matches!(self.keys, [SortPath { path, .. }] if path.segments().eq(["_id"]))
    }

    fn add_ids(&mut self, filtered: &Filtered<impl Source>, hits: &[Hit]) -> Result<()> {
        if hits.is_empty() {
            return Ok(());
        }
        let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
        for (number, id) in numbers.iter().zip(filtered.source.ids(&numbers)?) {
            let mut key = Vec::new();
            if let Some(by) = self.keys.first() {
                sort::append_value(&mut key, Some(&id.as_str().into()), by);
            }
            self.keep(*number, Sorted { key: key.into(), id });
        }
        Ok(())
    }

    fn add(&mut self, number: DocumentNumber, document: &StoredDocument) -> Result<()> {
        let key = sort_key(self.keys, Document::of(document)?)?;
        self.keep(number, Sorted { key: key.into(), id: document.id().clone() });
        Ok(())
    }

    fn keep(&mut self, number: DocumentNumber, sorted: Sorted) {
        if self.after.is_some_and(|after| sorted <= *after) {
            return;
        }
        self.met_count += 1;
        self.kept_bytes += byte_count(&sorted);
        self.kept.push((sorted, number));
        if self.wanted.is_some_and(|wanted| self.kept.len() as u64 > wanted)
            && let Some((sorted, _)) = self.kept.pop()
        {
            self.kept_bytes -= byte_count(&sorted);
        }
    }
}

/// About what a row that waits takes.
fn byte_count(sorted: &Sorted) -> usize {
    size_of::<(Sorted, DocumentNumber)>() + sorted.key.len() + sorted.id.as_str().len() + 32
}

/// The sort key of a document.
pub(in crate::query) fn sort_key(keys: &[SortPath], document: Document<'_>) -> Result<Vec<u8>> {
    let mut sort_key = Vec::new();
    for key in keys {
        if Identity::of(&key.path).is_some() {
            let value = value_at(&key.path, document)?;
            sort::append_value(&mut sort_key, value.as_ref(), key);
        } else {
            sort::append_packed(&mut sort_key, document.body.get(&key.path)?, key)?;
        }
    }
    Ok(sort_key)
}
