//! The interface between the query engine and the snapshot it reads.
//!
//! - [`IndexReader`] reads postings, columns and documents.
//! - [`IndexStatistics`] counts documents and estimates how values are distributed.
//! - [`QueryContext`] enforces the limits of one query and reports to the shared caches.
//!
//! [`QuerySource`] is all three. Every returned set contains live documents only. The methods are not lazy: each call
//! returns its complete result, and the executor requests no more than it needs.

pub(in crate::query) mod limits;
mod snapshot;

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::language::interval::KeyRange;
use crate::Result;
use crate::cache::{CachedResult, Column};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, NumberSum, PathNumber, Paths, Policy, Presence, Probe,
    ProbeCount, Union, Window,
};
use crate::revision::{DocumentId, Sequence};
use crate::tree::Direction;

pub(crate) use limits::QueryLimits;
pub use limits::{CancelCallback, Cancellation};

/// Callback of an index walk: receives each distinct value's key and its documents.
pub(crate) type VisitValue<'a> = dyn FnMut(&[u8], &mut dyn Posting) -> Result<ControlFlow<()>> + 'a;

/// The documents of one value, read on demand during a walk and at most once.
pub(crate) trait Posting {
    /// The number of documents. Call it instead of `take`.
    fn len(&mut self) -> Result<u64>;

    /// How many of the documents are in `others`. Call it instead of `take`.
    fn count_in(&mut self, others: &Probe) -> Result<ProbeCount> {
        Ok(others.count(&self.take()?))
    }

    /// Returns the set and leaves this posting empty.
    fn take(&mut self) -> Result<DocumentSet>;

    /// Returns some of the documents in order of their numbers, in whole chunks: at least `count` from `from` on unless
    /// fewer remain, and whether there may be more. Each further call continues with the remaining documents.
    fn take_some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        let _ = (from, count);
        Ok((self.take()?, false))
    }

    /// Adds the documents to a union.
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

/// Reads the index and the documents of one snapshot.
pub(crate) trait IndexReader {
    /// The path dictionary, for lookups only.
    fn paths(&self) -> &Paths;

    /// The policy that decides which paths are indexed, and how far.
    fn policy(&self) -> &Policy;

    /// The declared indexes.
    fn declared(&self) -> &DeclaredIndexes;

    /// The documents of a window that have this term.
    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet>;

    /// The documents with a term in the range.
    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet>;

    /// Calls `visit` with each distinct value's key and its documents, in key order, until it breaks. The walk may skip
    /// values whose text does not contain `literal`, which must not contain a zero byte.
    fn walk_containing(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()>;

    /// As [`IndexReader::walk_containing`], without a literal.
    fn walk(&self, path: PathNumber, range: &KeyRange, direction: Direction, visit: &mut VisitValue<'_>) -> Result<()> {
        self.walk_containing(path, range, direction, None, visit)
    }

    /// The in-memory column of all scalars at a path, if queries used the path often enough for it to be cached.
    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        let _ = path;
        Ok(None)
    }

    /// The documents of a window with a value of one of these kinds at the path. At [`PathNumber::ROOT`], `Object` is
    /// every live document and `Overflow` every document whose terms are incomplete.
    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet>;

    /// The number of the live document with this id.
    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>>;

    /// The documents whose ids are in the range, in byte order, or `None` if it has more than `ids_max` ids; stops
    /// reading there.
    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>, ids_max: u64) -> Result<Option<DocumentSet>>;

    /// The ids of these documents, in the order of `numbers`.
    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>>;

    /// Reads these documents and calls `visit` with each, in the order of `numbers`.
    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()>;

    /// The documents with this term.
    fn equal(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        self.equal_in(path, key, Window::ALL)
    }

    /// As [`IndexReader::presence_in`], for all documents.
    fn presence(&self, path: PathNumber, kinds: &[Presence]) -> Result<DocumentSet> {
        self.presence_in(path, kinds, Window::ALL)
    }

    /// The documents of a window with one of these terms; `keys` must be sorted.
    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        let mut union = Union::new();
        for key in keys {
            union.add_set(&self.equal_in(path, key, window)?);
        }
        Ok(union.finish())
    }

    /// The documents with this term from about `from` on: at least `count` unless fewer remain; and whether there may
    /// be more.
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

    /// The documents with a term in the range, or `None` if it has more than `values_max` distinct values; stops
    /// reading there.
    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        if values_max == u64::MAX {
            return self.range(path, range).map(Some);
        }
        range_within(self, path, range, values_max)
    }
}

/// Counts and value distributions, which the planner uses to compare costs and the executor to count without reading
/// sets.
pub(crate) trait IndexStatistics: IndexReader {
    /// The number of documents with this term.
    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        Ok(self.equal(path, key)?.len())
    }

    /// The number of documents with a value of one of these kinds at the path.
    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        Ok(self.presence(path, kinds)?.len())
    }

    /// The number of documents with a term in the range. `None` if a document can have two of the terms, or if counting
    /// would cost as much as reading the sets.
    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        let _ = (path, range);
        Ok(None)
    }

    /// The number of live documents.
    fn live_len(&self) -> Result<u64> {
        Ok(self.presence(PathNumber::ROOT, &[Presence::Object])?.len())
    }

    /// The distribution of a path's values when statistics were last collected, if they were. Use it for estimates
    /// only.
    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        let _ = path;
        None
    }

    /// The stored aggregates of the numbers at a path. `None` if a document can have two of them, or if reading the
    /// aggregates would cost as much as reading every number.
    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        let _ = path;
        Ok(None)
    }
}

/// The limits of one query, and the caches it contributes to. The defaults impose no limit and cache nothing.
pub(crate) trait QueryContext {
    /// Fails if the query must stop; the executor calls it between steps.
    ///
    /// # Errors
    /// `Stopped` if the query was cancelled or its time limit has passed.
    fn check_stopped(&self) -> Result<()> {
        Ok(())
    }

    /// Fails if the query must not hold this many bytes in memory.
    ///
    /// # Errors
    /// `Stopped` if `bytes` exceeds the memory limit.
    fn check_memory(&self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Returns the sequence as of which further pages are read, if the past is kept.
    fn page_sequence(&self) -> Option<Sequence> {
        None
    }

    /// Records that the query visited `row_count` rows of a path that a cached column would have saved.
    fn record_scan(&self, path: PathNumber, row_count: u64) {
        let _ = (path, row_count);
    }

    /// Offers the documents of a term to the shared result cache, which accepts small sets.
    fn cache_lookup(&self, path: PathNumber, key: &[u8], result: &CachedResult) {
        let _ = (path, key, result);
    }
}

/// Everything that the query engine needs to execute a query.
pub(crate) trait QuerySource: IndexStatistics + QueryContext {}

impl<T: IndexStatistics + QueryContext> QuerySource for T {}

/// The documents with a term in the range, collected value by value; `None` if there are more than `values_max` values.
pub(in crate::query) fn range_within<R: IndexReader + ?Sized>(
    reader: &R,
    path: PathNumber,
    range: &KeyRange,
    values_max: u64,
) -> Result<Option<DocumentSet>> {
    let (mut union, mut left) = (Union::new(), Some(values_max));
    reader.walk(path, range, Direction::Ascending, &mut |_, documents| {
        left = left.and_then(|left| left.checked_sub(1));
        if left.is_none() {
            return Ok(ControlFlow::Break(()));
        }
        documents.add_to(&mut union)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(left.map(|_| union.finish()))
}

impl<T: IndexReader> IndexReader for &T {
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

    fn walk_containing(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        (**self).walk_containing(path, range, direction, literal, visit)
    }

    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        (**self).column(path)
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        (**self).presence_in(path, kinds, window)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        (**self).number_of(id)
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>, ids_max: u64) -> Result<Option<DocumentSet>> {
        (**self).ids_in_range(lower, upper, ids_max)
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

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        (**self).equal_from(path, key, from, count)
    }

    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        (**self).range_within(path, range, values_max)
    }
}

impl<T: IndexStatistics> IndexStatistics for &T {
    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        (**self).range_len(path, range)
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        (**self).presence_len(path, kinds)
    }

    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        (**self).equal_len(path, key)
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        (**self).histogram(path)
    }

    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        (**self).numbers(path)
    }

    fn live_len(&self) -> Result<u64> {
        (**self).live_len()
    }
}

impl<T: QueryContext> QueryContext for &T {
    fn record_scan(&self, path: PathNumber, row_count: u64) {
        (**self).record_scan(path, row_count);
    }

    fn check_stopped(&self) -> Result<()> {
        (**self).check_stopped()
    }

    fn check_memory(&self, bytes: usize) -> Result<()> {
        (**self).check_memory(bytes)
    }

    fn cache_lookup(&self, path: PathNumber, key: &[u8], result: &CachedResult) {
        (**self).cache_lookup(path, key, result);
    }
}
