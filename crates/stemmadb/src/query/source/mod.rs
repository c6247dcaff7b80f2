//! What a query needs of a snapshot: the index's facts and the documents, in batches.
//!
//! Every set holds live documents only. Nothing here is asked to be lazy: a call answers what it was asked for, and the
//! executor asks for no more than it needs.

pub(in crate::query) mod limits;
mod snapshot;

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::language::interval::KeyRange;
use crate::Result;
use crate::cache::{CachedResult, Column};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, NumberSum, PathNumber, Paths, Policy, Presence, Union,
    Window,
};
use crate::revision::DocumentId;
use crate::tree::Direction;

pub use limits::Cancellation;
pub(crate) use limits::Limits;

/// What a walk calls with each distinct value's key and its documents.
pub(crate) type VisitValue<'a> = dyn FnMut(&[u8], &mut dyn Posting) -> Result<ControlFlow<()>> + 'a;

/// The documents of one value, met on a walk: made only if they are asked for, and at most once.
pub(crate) trait Posting {
    /// How many there are.
    fn len(&mut self) -> Result<u64>;

    /// Takes them.
    fn take(&mut self) -> Result<DocumentSet>;

    /// Takes some of them, by number: at least `count` from chunk to chunk, unless there are no more from `from` on, and whether there
    /// may be more. Asked again, it goes on with those.
    fn take_some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        let _ = (from, count);
        Ok((self.take()?, false))
    }

    /// Adds them to a union.
    fn add_to(&mut self, union: &mut Union) -> Result<()> {
        union.add_set(&self.take()?);
        Ok(())
    }
}

impl Posting for DocumentSet {
    fn len(&mut self) -> Result<u64> {
        Ok(DocumentSet::len(self))
    }

    fn take(&mut self) -> Result<DocumentSet> {
        Ok(std::mem::take(self))
    }
}

/// A snapshot, as queries see it.
pub(crate) trait Source {
    /// The dictionary of paths; only looked up.
    fn paths(&self) -> &Paths;

    /// Which paths are indexed, and how much of them.
    fn policy(&self) -> &Policy;

    /// The declared indexes.
    fn declared(&self) -> &DeclaredIndexes;

    /// The documents of a window with this term.
    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet>;

    /// The documents with a term in the range.
    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet>;

    /// Calls `visit` with each distinct value's key and its documents, in the order of keys, until it breaks. Values whose text does not
    /// hold `literal`, which has no zero in it, may be left out.
    fn walk_holding(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()>;

    /// As [`Source::walk_holding`], whatever the values hold.
    fn walk(&self, path: PathNumber, range: &KeyRange, direction: Direction, visit: &mut VisitValue<'_>) -> Result<()> {
        self.walk_holding(path, range, direction, None, visit)
    }

    /// All scalars at a path in memory, if it was asked so often that they are kept.
    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        let _ = path;
        Ok(None)
    }

    /// Notes that a path was worth so many rows of work, which its column would have spared.
    fn spend(&self, path: PathNumber, row_count: u64) {
        let _ = (path, row_count);
    }

    /// The documents of a window with a value of one of these kinds at the path. At [`PathNumber::ROOT`], `Object` is every
    /// live document, and `Overflow` those whose terms are incomplete.
    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet>;

    /// The live document with this id.
    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>>;

    /// The documents whose ids are in the range, in the order of bytes.
    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet>;

    /// The ids of these documents, in the order of the numbers given.
    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>>;

    /// Reads these documents and calls `visit` with each, in the order of the numbers given.
    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()>;

    /// The documents with this term.
    fn equal(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        self.equal_in(path, key, Window::ALL)
    }

    /// As [`Source::presence_in`], of all documents.
    fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        self.presence_in(path, kinds, Window::ALL)
    }

    /// The documents of a window with one of these terms; `keys` are sorted.
    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        let mut union = Union::new();
        for key in keys {
            union.add_set(&self.equal_in(path, key, window)?);
        }
        Ok(union.finish())
    }

    /// Whether the query may go on; asked between steps.
    ///
    /// # Errors
    /// `Stopped` if it was cancelled or its time is over.
    fn proceed(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the query may hold so many bytes at once.
    ///
    /// # Errors
    /// `Stopped` if that is more than it was given.
    fn hold(&self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// How many documents have this term.
    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        Ok(self.equal(path, key)?.len())
    }

    /// How many documents have a value of one of these kinds at the path.
    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        Ok(self.presence(path, kinds)?.len())
    }

    /// How many documents have a term in the range, where none can have two of them and it costs less than finding them.
    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        let _ = (path, range);
        Ok(None)
    }

    /// The documents with this term, from about `from` on: so many at least, unless there are no more; and whether there may be more.
    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        let _ = (from, count);
        Ok((self.equal(path, key)?, false))
    }

    /// How the values of a path were spread when that was last looked at, if it is known. Only for estimates.
    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        let _ = path;
        None
    }

    /// Lets others have all documents of a term that were found here, if they are few.
    fn keep_answer(&self, path: PathNumber, key: &[u8], answer: &CachedResult) {
        let _ = (path, key, answer);
    }

    /// What the numbers of a path come to, where no document can have two of them and it costs less than meeting each.
    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        let _ = path;
        Ok(None)
    }

    /// How many live documents there are.
    fn live_len(&self) -> Result<u64> {
        Ok(self.presence(PathNumber::ROOT, &[Presence::Object])?.len())
    }

    /// The documents with a term in the range, if there are at most `values_max` distinct values in it; costs no more than that.
    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        if values_max == u64::MAX {
            return self.range(path, range).map(Some);
        }
        range_within(self, path, range, values_max)
    }
}

/// The documents with a term in the range, met value by value, if there are at most so many.
pub(in crate::query) fn range_within<S: Source + ?Sized>(
    source: &S,
    path: PathNumber,
    range: &KeyRange,
    values_max: u64,
) -> Result<Option<DocumentSet>> {
    let (mut union, mut left) = (Union::new(), Some(values_max));
    source.walk(path, range, Direction::Ascending, &mut |_, documents| {
        left = left.and_then(|left| left.checked_sub(1));
        if left.is_none() {
            return Ok(ControlFlow::Break(()));
        }
        documents.add_to(&mut union)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(left.map(|_| union.finish()))
}

impl<T: Source> Source for &T {
    fn paths(&self) -> &Paths {
        (**self).paths()
    }

    fn policy(&self) -> &Policy {
        (**self).policy()
    }

    fn declared(&self) -> &DeclaredIndexes {
        (**self).declared()
    }

    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        (**self).equal_in(path, key, window)
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        (**self).range(path, range)
    }

    fn walk_holding(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        (**self).walk_holding(path, range, direction, literal, visit)
    }

    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        (**self).column(path)
    }

    fn spend(&self, path: PathNumber, row_count: u64) {
        (**self).spend(path, row_count);
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        (**self).presence_in(path, kinds, window)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        (**self).number_of(id)
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        (**self).ids_in_range(lower, upper)
    }

    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        (**self).ids(numbers)
    }

    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        (**self).load(numbers, visit)
    }

    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        (**self).equal_any(path, keys, window)
    }

    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        (**self).range_len(path, range)
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        (**self).presence_len(path, kinds)
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        (**self).equal_from(path, key, from, count)
    }

    fn proceed(&self) -> Result<()> {
        (**self).proceed()
    }

    fn hold(&self, bytes: usize) -> Result<()> {
        (**self).hold(bytes)
    }

    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        (**self).equal_len(path, key)
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        (**self).histogram(path)
    }

    fn keep_answer(&self, path: PathNumber, key: &[u8], answer: &CachedResult) {
        (**self).keep_answer(path, key, answer);
    }

    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        (**self).numbers(path)
    }

    fn live_len(&self) -> Result<u64> {
        (**self).live_len()
    }

    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        (**self).range_within(path, range, values_max)
    }
}
