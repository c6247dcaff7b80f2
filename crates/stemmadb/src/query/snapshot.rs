//! A snapshot of the store answers queries.

use std::ops::Bound;
use std::sync::Arc;

use super::interval::KeyRange;
use super::source::{Posting, Source, VisitValue};
use crate::Result;
use crate::index::{Declared, DocumentNumber, DocumentSet, Histogram, PathNumber, Paths, Policy, Presence, Union};
use crate::revision::DocumentId;
use crate::store::{Document, Snapshot, Term};
use crate::tree::Direction;

impl Source for Snapshot {
    fn paths(&self) -> &Paths {
        Snapshot::paths(self)
    }

    fn policy(&self) -> &Policy {
        Snapshot::policy(self)
    }

    fn declared(&self) -> &Declared {
        Snapshot::declared(self)
    }

    fn equal(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        self.postings(path, key)
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        Snapshot::range(self, path, &range.lower, &range.upper)
    }

    fn walk(&self, path: PathNumber, range: &KeyRange, direction: Direction, visit: &mut VisitValue<'_>) -> Result<()> {
        let (lower, upper) = (Bound::Included(&*range.lower), Bound::Excluded(&*range.upper));
        let mut walk = Snapshot::walk(self, path, lower, upper, direction)?;
        while let Some(mut term) = walk.next_term()? {
            if visit(term.key, &mut term)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        Snapshot::presence(self, path, kinds)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        self.live_number(id)
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        Snapshot::ids_in_range(self, lower, upper)
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

    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        self.postings_count(path, key)
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        self.presence_count(path, kinds)
    }

    fn live_len(&self) -> Result<u64> {
        self.presence_count(PathNumber::ROOT, &[Presence::Object])
    }

    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        self.range_count(path, &range.lower, &range.upper)
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        Snapshot::histogram(self, path)
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        self.some_postings(path, key, from, count)
    }
}

impl Posting for Term<'_, '_> {
    fn len(&mut self) -> Result<u64> {
        Term::len(self)
    }

    fn take(&mut self) -> Result<DocumentSet> {
        Term::take(self)
    }

    fn add_to(&mut self, union: &mut Union) -> Result<()> {
        Term::add_to(self, union)
    }
}
