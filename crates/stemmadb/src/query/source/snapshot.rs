//! Implements the query source for snapshots of the store.
//!
//! Invariant: expired documents are invisible: every method excludes them from sets and from counts.

use std::ops::Bound;
use std::sync::Arc;

use super::{IndexReader, IndexStatistics, Posting, QueryContext, VisitValue};
use crate::Result;
use crate::cache::{CachedResult, Column};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, NumberSum, PathNumber, Paths, Policy, Presence, Probe,
    ProbeCount, Union, Window,
};
use crate::query::language::interval::KeyRange;
use crate::read::{Snapshot, Term, TermWalk};
use crate::revision::{DocumentId, Sequence};
use crate::tree::Direction;

impl IndexReader for Snapshot {
    fn paths(&self) -> &Paths {
        Snapshot::paths(self)
    }

    fn policy(&self) -> &Policy {
        Snapshot::policy(self)
    }

    fn declared(&self) -> &DeclaredIndexes {
        Snapshot::declared(self)
    }

    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        self.without_expired(self.postings_in(path, key, window)?)
    }

    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        self.without_expired(self.any_postings(path, keys, window)?)
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        self.without_expired(Snapshot::range(self, path, &range.lower, &range.upper)?)
    }

    fn walk_containing(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        let (lower, upper) = (Bound::Included(&*range.lower), Bound::Excluded(&*range.upper));
        let walk = Snapshot::walk_holding(self, path, lower, upper, direction, literal.map(str::as_bytes))?;
        visit_terms(self, path, walk, visit)
    }

    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        // Columns contain expired documents.
        if self.expired()?.is_some() { Ok(None) } else { self.whole_column(path) }
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        self.without_expired(Snapshot::presence_in(self, path, kinds, window)?)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        let ended = self.expired()?;
        Ok(self.live_number(id)?.filter(|number| ended.is_none_or(|ended| !ended.contains(*number))))
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>, ids_max: u64) -> Result<Option<DocumentSet>> {
        self.ids_in_range_within(lower, upper, ids_max)?.map(|set| self.without_expired(set)).transpose()
    }

    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        Snapshot::ids(self, numbers)
    }

    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        Snapshot::load(self, numbers, visit)
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        let (found, has_more) = self.some_postings(path, key, from, count)?;
        Ok((self.without_expired(found)?, has_more))
    }
}

impl IndexStatistics for Snapshot {
    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        match self.expired()? {
            None => self.postings_count(path, key),
            Some(_) => Ok(self.equal(path, key)?.len()),
        }
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        match self.expired()? {
            None => self.presence_count(path, kinds),
            Some(_) => Ok(IndexReader::presence(self, path, kinds)?.len()),
        }
    }

    fn live_len(&self) -> Result<u64> {
        let ended = self.expired()?.map_or(0, DocumentSet::len);
        Ok(self.presence_count(PathNumber::ROOT, &[Presence::Object])? - ended)
    }

    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        match self.expired()? {
            None => self.range_count(path, &range.lower, &range.upper),
            Some(_) => Ok(None),
        }
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        Snapshot::histogram(self, path)
    }

    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        match self.expired()? {
            None => Snapshot::numbers(self, path),
            Some(_) => Ok(None),
        }
    }
}

impl QueryContext for Snapshot {
    fn check_stopped(&self) -> Result<()> {
        self.parts.refuse_if_closed()
    }

    fn page_sequence(&self) -> Option<Sequence> {
        (self.past.is_some() || self.is_published && self.declared.history.keeps_past()).then_some(self.at)
    }

    fn record_scan(&self, path: PathNumber, row_count: u64) {
        Snapshot::spend(self, path, row_count);
    }

    fn cache_lookup(&self, path: PathNumber, key: &[u8], result: &CachedResult) {
        Snapshot::cache_result(self, path, key, result);
    }
}

fn visit_terms(snapshot: &Snapshot, path: PathNumber, mut walk: TermWalk, visit: &mut VisitValue<'_>) -> Result<()> {
    let ended = snapshot.expired()?;
    let mut term_count = 0;
    while let Some(mut term) = walk.next_term()? {
        term_count += 1;
        let flow = match ended {
            None => visit(term.key, &mut term)?,
            Some(ended) => {
                let mut documents = term.take()?;
                documents.and_not_with(ended);
                if documents.is_empty() {
                    continue;
                }
                visit(term.key, &mut documents)?
            }
        };
        if flow.is_break() {
            break;
        }
    }
    if walk.reads_tree() {
        snapshot.spend(path, term_count);
    }
    Ok(())
}

impl Posting for Term<'_> {
    fn len(&mut self) -> Result<u64> {
        Term::len(self)
    }

    fn count_in(&mut self, others: &Probe) -> Result<ProbeCount> {
        Term::count_in(self, others)
    }

    fn take(&mut self) -> Result<DocumentSet> {
        Term::take(self)
    }

    fn take_some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        Term::take_some(self, from, count)
    }

    fn add_to(&mut self, union: &mut Union) -> Result<()> {
        Term::add_to(self, union)
    }
}
