//! Query limits: time, rows, memory, and cancellation from another thread.
//!
//! [`LimitedSource`] wraps a snapshot and checks the limits between steps: at each value walked and each document read.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{IndexReader, IndexStatistics, QueryContext, QuerySource, VisitValue};
use crate::cache::{CachedResult, Column};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, NumberSum, PathNumber, Paths, Policy, Presence, Window,
};
use crate::query::language::interval::KeyRange;
use crate::revision::{DocumentId, Sequence};
pub use crate::sync::{CancelCallback, Cancellation};
use crate::tree::Direction;
use crate::{Error, Result};

/// The clock is read once per this many steps.
const STEPS_A_LOOK: u32 = 64;

/// The limits of a query; each is optional.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryLimits {
    pub(crate) time: Option<Duration>,
    pub(crate) rows: Option<u64>,
    pub(crate) memory_bytes: Option<usize>,
    pub(crate) cancellation: Option<Cancellation>,
}

impl QueryLimits {
    /// Whether no limit is set.
    pub(crate) fn is_none(&self) -> bool {
        self.time.is_none() && self.rows.is_none() && self.memory_bytes.is_none() && self.cancellation.is_none()
    }

    /// Fails if a result must not have `count` rows.
    ///
    /// # Errors
    /// `Stopped` if `count` exceeds the row limit.
    pub(crate) fn allow_rows(&self, count: u64) -> Result<()> {
        match self.rows {
            Some(most) if count > most => Err(Error::stopped(format!("the query has more than its {most} rows"))
                .with_hint("set a limit and go on page by page, or allow more rows")),
            _ => Ok(()),
        }
    }

    /// Returns whether the query has a [`Cancellation`] that may be cancelled later.
    ///
    /// # Errors
    /// `Stopped` if it is already cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<bool> {
        match &self.cancellation {
            Some(cancellation) if cancellation.is_cancelled() => Err(Error::stopped("the query was cancelled")),
            cancellation => Ok(cancellation.is_some()),
        }
    }
}

/// A snapshot that enforces the limits of a query. Clones share the time limit.
#[derive(Clone)]
pub(crate) struct LimitedSource<S> {
    inner: S,
    active: Option<ActiveLimits>,
}

#[derive(Clone)]
struct ActiveLimits {
    limits: QueryLimits,
    deadline: Option<Instant>,
    steps: Cell<u32>,
}

impl<S: QuerySource> LimitedSource<S> {
    /// Starts the time limit.
    pub(crate) fn new(inner: S, limits: &QueryLimits) -> Self {
        let is_limited = limits.time.is_some() || limits.memory_bytes.is_some() || limits.cancellation.is_some();
        let active = is_limited.then(|| ActiveLimits {
            limits: limits.clone(),
            deadline: limits.time.and_then(|time| Instant::now().checked_add(time)),
            steps: Cell::new(0),
        });
        LimitedSource { inner, active }
    }

    fn checked(&self, set: DocumentSet) -> Result<DocumentSet> {
        if self.active.is_some() {
            self.check_memory(set.byte_count())?;
        }
        Ok(set)
    }
}

impl ActiveLimits {
    fn check_stopped(&self) -> Result<()> {
        self.limits.check_cancelled()?;
        let step = self.steps.get();
        self.steps.set(step.wrapping_add(1));
        if step.is_multiple_of(STEPS_A_LOOK) && self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let time = self.limits.time.unwrap_or_default();
            return Err(Error::stopped(format!("the query took longer than its {} ms", time.as_millis()))
                .with_hint("explain_analyze shows what takes long; a limit or one more condition may help"));
        }
        Ok(())
    }
}

impl<S: QuerySource> IndexReader for LimitedSource<S> {
    fn paths(&self) -> &Paths {
        self.inner.paths()
    }

    fn policy(&self) -> &Policy {
        self.inner.policy()
    }

    fn declared(&self) -> &DeclaredIndexes {
        self.inner.declared()
    }

    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        self.check_stopped()?;
        self.checked(self.inner.equal_in(path, key, window)?)
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        if self.active.is_none() {
            return self.inner.range(path, range);
        }
        // Value by value, so that it can be stopped.
        let found = self.range_within(path, range, u64::MAX - 1)?;
        found.ok_or_else(|| Error::internal("a range of more values than there can be"))
    }

    fn walk_containing(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        if self.active.is_none() {
            return self.inner.walk_containing(path, range, direction, literal, visit);
        }
        self.inner.walk_containing(path, range, direction, literal, &mut |key, documents| {
            self.check_stopped()?;
            visit(key, documents)
        })
    }

    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        self.check_stopped()?;
        self.inner.column(path)
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        self.check_stopped()?;
        self.checked(self.inner.presence_in(path, kinds, window)?)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        self.check_stopped()?;
        self.inner.number_of(id)
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>, ids_max: u64) -> Result<Option<DocumentSet>> {
        self.check_stopped()?;
        self.inner.ids_in_range(lower, upper, ids_max)?.map(|set| self.checked(set)).transpose()
    }

    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        self.check_stopped()?;
        self.inner.ids(numbers)
    }

    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        if self.active.is_none() {
            return self.inner.load(numbers, visit);
        }
        self.inner.load(numbers, &mut |number, document| {
            self.check_stopped()?;
            visit(number, document)
        })
    }

    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        self.check_stopped()?;
        self.checked(self.inner.equal_any(path, keys, window)?)
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        self.check_stopped()?;
        let (set, has_more) = self.inner.equal_from(path, key, from, count)?;
        Ok((self.checked(set)?, has_more))
    }

    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        if self.active.is_none() {
            return self.inner.range_within(path, range, values_max);
        }
        super::range_within(self, path, range, values_max)?.map(|set| self.checked(set)).transpose()
    }
}

impl<S: QuerySource> IndexStatistics for LimitedSource<S> {
    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        self.check_stopped()?;
        self.inner.equal_len(path, key)
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        self.check_stopped()?;
        self.inner.presence_len(path, kinds)
    }

    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        // The count as a whole cannot be stopped.
        if self.active.is_some() { Ok(None) } else { self.inner.range_len(path, range) }
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        self.inner.histogram(path)
    }

    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        self.inner.numbers(path)
    }

    fn live_len(&self) -> Result<u64> {
        self.check_stopped()?;
        self.inner.live_len()
    }
}

impl<S: QuerySource> QueryContext for LimitedSource<S> {
    fn record_scan(&self, path: PathNumber, row_count: u64) {
        self.inner.record_scan(path, row_count);
    }

    fn page_sequence(&self) -> Option<Sequence> {
        self.inner.page_sequence()
    }

    fn check_stopped(&self) -> Result<()> {
        self.inner.check_stopped()?;
        self.active.as_ref().map_or(Ok(()), ActiveLimits::check_stopped)
    }

    fn check_memory(&self, bytes: usize) -> Result<()> {
        let Some(most) = self.active.as_ref().and_then(|active| active.limits.memory_bytes) else { return Ok(()) };
        if bytes <= most {
            return Ok(());
        }
        Err(Error::stopped(format!("the query needs more than its {most} bytes of memory"))
            .with_hint("a limit keeps a sort small; a condition keeps sets and groups small"))
    }

    fn cache_lookup(&self, path: PathNumber, key: &[u8], result: &CachedResult) {
        self.inner.cache_lookup(path, key, result);
    }
}
