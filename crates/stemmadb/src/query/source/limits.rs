//! What a query may take: time, rows, memory; and a way to stop it from elsewhere.
//!
//! A snapshot is asked through a [`Guarded`] one, which looks at the limits between steps: each value walked, each document read.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Source, VisitValue};
use crate::cache::{CachedResult, Column};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, NumberSum, PathNumber, Paths, Policy, Presence, Window,
};
use crate::query::language::interval::KeyRange;
use crate::revision::DocumentId;
use crate::tree::Direction;
use crate::{Error, Result};

/// The clock is looked at once in so many steps.
const STEPS_A_LOOK: u32 = 64;

/// Stops queries from another thread. Clones stop the same queries.
///
/// ```
/// # use stemmadb::{Cancellation, Database, ErrorKind, Selector};
/// # let db = Database::in_memory();
/// let cancellation = Cancellation::new();
/// let find = db.find(Selector::everything()).cancelled_by(&cancellation);
/// cancellation.cancel();
/// assert_eq!(find.count().unwrap_err().kind(), ErrorKind::Stopped);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// One that was not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops every query that was given this, now and later: each fails with `Stopped` at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The limits of a query; none unless they are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) time: Option<Duration>,
    pub(crate) rows: Option<u64>,
    pub(crate) memory_bytes: Option<usize>,
    pub(crate) cancellation: Option<Cancellation>,
}

impl Limits {
    /// Whether none is set.
    pub(crate) fn is_none(&self) -> bool {
        self.time.is_none() && self.rows.is_none() && self.memory_bytes.is_none() && self.cancellation.is_none()
    }

    /// Whether a result may have so many rows.
    ///
    /// # Errors
    /// `Stopped` if not.
    pub(crate) fn allow_rows(&self, count: u64) -> Result<()> {
        match self.rows {
            Some(most) if count > most => Err(Error::stopped(format!("the query has more than its {most} rows"))
                .with_hint("set a limit and go on page by page, or allow more rows")),
            _ => Ok(()),
        }
    }

    /// Whether somebody may cancel the query, now or later.
    ///
    /// # Errors
    /// `Stopped` if somebody has.
    pub(crate) fn proceed(&self) -> Result<bool> {
        match &self.cancellation {
            Some(cancellation) if cancellation.is_cancelled() => Err(Error::stopped("the query was cancelled")),
            cancellation => Ok(cancellation.is_some()),
        }
    }
}

/// A snapshot that looks at the limits.
pub(crate) struct Guarded<S> {
    inner: S,
    guard: Option<Guard>,
}

struct Guard {
    limits: Limits,
    deadline: Option<Instant>,
    steps: Cell<u32>,
}

impl<S: Source> Guarded<S> {
    /// The time runs from now on.
    pub(crate) fn new(inner: S, limits: &Limits) -> Self {
        let is_limited = limits.time.is_some() || limits.memory_bytes.is_some() || limits.cancellation.is_some();
        let guard = is_limited.then(|| Guard {
            limits: limits.clone(),
            deadline: limits.time.and_then(|time| Instant::now().checked_add(time)),
            steps: Cell::new(0),
        });
        Guarded { inner, guard }
    }

    fn held(&self, set: DocumentSet) -> Result<DocumentSet> {
        if self.guard.is_some() {
            self.hold(set.byte_count())?;
        }
        Ok(set)
    }
}

impl Guard {
    fn proceed(&self) -> Result<()> {
        self.limits.proceed()?;
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

impl<S: Source> Source for Guarded<S> {
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
        self.proceed()?;
        self.held(self.inner.equal_in(path, key, window)?)
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        if self.guard.is_none() {
            return self.inner.range(path, range);
        }
        // Value by value, so that it can be stopped.
        let found = self.range_within(path, range, u64::MAX - 1)?;
        found.ok_or_else(|| Error::internal("a range of more values than there can be"))
    }

    fn walk_holding(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        literal: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        if self.guard.is_none() {
            return self.inner.walk_holding(path, range, direction, literal, visit);
        }
        self.inner.walk_holding(path, range, direction, literal, &mut |key, documents| {
            self.proceed()?;
            visit(key, documents)
        })
    }

    fn column(&self, path: PathNumber) -> Result<Option<Arc<Column>>> {
        self.proceed()?;
        self.inner.column(path)
    }

    fn spend(&self, path: PathNumber, row_count: u64) {
        self.inner.spend(path, row_count);
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        self.proceed()?;
        self.held(self.inner.presence_in(path, kinds, window)?)
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        self.proceed()?;
        self.inner.number_of(id)
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        self.proceed()?;
        self.held(self.inner.ids_in_range(lower, upper)?)
    }

    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        self.proceed()?;
        self.inner.ids(numbers)
    }

    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        if self.guard.is_none() {
            return self.inner.load(numbers, visit);
        }
        self.inner.load(numbers, &mut |number, document| {
            self.proceed()?;
            visit(number, document)
        })
    }

    fn equal_any(&self, path: PathNumber, keys: &[Vec<u8>], window: Window) -> Result<DocumentSet> {
        self.proceed()?;
        self.held(self.inner.equal_any(path, keys, window)?)
    }

    fn proceed(&self) -> Result<()> {
        self.guard.as_ref().map_or(Ok(()), Guard::proceed)
    }

    fn hold(&self, bytes: usize) -> Result<()> {
        let Some(most) = self.guard.as_ref().and_then(|guard| guard.limits.memory_bytes) else { return Ok(()) };
        if bytes <= most {
            return Ok(());
        }
        Err(Error::stopped(format!("the query needs more than its {most} bytes of memory"))
            .with_hint("a limit keeps a sort small; a condition keeps sets and groups small"))
    }

    fn equal_len(&self, path: PathNumber, key: &[u8]) -> Result<u64> {
        self.proceed()?;
        self.inner.equal_len(path, key)
    }

    fn presence_len(&self, path: PathNumber, kinds: &[Presence]) -> Result<u64> {
        self.proceed()?;
        self.inner.presence_len(path, kinds)
    }

    fn range_len(&self, path: PathNumber, range: &KeyRange) -> Result<Option<u64>> {
        // As a whole it can't be stopped.
        if self.guard.is_some() { Ok(None) } else { self.inner.range_len(path, range) }
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        self.proceed()?;
        let (set, has_more) = self.inner.equal_from(path, key, from, count)?;
        Ok((self.held(set)?, has_more))
    }

    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        self.inner.histogram(path)
    }

    fn keep_answer(&self, path: PathNumber, key: &[u8], answer: &CachedResult) {
        self.inner.keep_answer(path, key, answer);
    }

    fn numbers(&self, path: PathNumber) -> Result<Option<NumberSum>> {
        self.inner.numbers(path)
    }

    fn live_len(&self) -> Result<u64> {
        self.proceed()?;
        self.inner.live_len()
    }

    fn range_within(&self, path: PathNumber, range: &KeyRange, values_max: u64) -> Result<Option<DocumentSet>> {
        if self.guard.is_none() {
            return self.inner.range_within(path, range, values_max);
        }
        super::range_within(self, path, range, values_max)?.map(|set| self.held(set)).transpose()
    }
}
