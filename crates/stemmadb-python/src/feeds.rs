//! The changes feed and live queries, as iterators that wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::PyList;
use stemmadb::{Change, DeltaEvent, Query, Selector, Sequence};
use stemmadb_client::{AnyDatabase, AnySubscription, AnyWatch};

use crate::errors::{Raise, Result, poisoned};
use crate::find::duration;
use crate::fork::OfProcess;
use crate::to_python;

/// How long a wait may take until signals are looked at.
const SLICE: Duration = Duration::from_millis(100);

/// What a feed returns within a time.
enum Step<T> {
    Item(T),
    Nothing,
    Closed,
}

/// Waits for `next` in slices, so that Ctrl-C is noticed.
fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut next: impl FnMut(Duration) -> Result<Step<T>> + Send,
) -> PyResult<Step<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        py.check_signals()?;
        let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
        match py.detach(|| next(left.min(SLICE))).or_raise(py)? {
            Step::Nothing if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            step => return Ok(step),
        }
    }
}

fn step<T>(database: &AnyDatabase, item: Option<T>) -> Step<T> {
    match item {
        Some(item) => Step::Item(item),
        None if database.is_closed() => Step::Closed,
        None => Step::Nothing,
    }
}

/// Ends an iteration.
fn ended<'py>() -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(None)
}

/// The iterator that awaits the next item of a feed in a thread.
fn asynchronous<'py>(feed: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(feed.py(), "stemmadb._asyncio", "AsyncFeed")?.call1((feed,))
}

/// Changes of documents, in order; waits for new ones. Made by `Database.changes`.
///
/// It can be iterated over with `for` and `async for`. It ends when the database is closed, or if there is no change
/// within its timeout.
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Changes {
    database: OfProcess<AnyDatabase>,
    feed: Mutex<OfProcess<AnySubscription>>,
    /// The sequence of the last change that was returned. Read while another thread waits with the feed.
    reached: AtomicU64,
    timeout: Option<Duration>,
}

/// What `Database.changes` is asked for.
pub(crate) struct ChangesRequest {
    pub(crate) since: Sequence,
    pub(crate) documents: bool,
    pub(crate) ids: Option<Vec<String>>,
    pub(crate) selector: Option<Selector>,
    pub(crate) timeout: Option<f64>,
}

impl Changes {
    pub(crate) fn new(py: Python<'_>, database: &AnyDatabase, request: ChangesRequest) -> PyResult<Self> {
        let ChangesRequest { since, documents, ids, selector, timeout } = request;
        let mut subscription = database.subscribe(since).documents(documents);
        if let Some(ids) = ids {
            subscription = subscription.ids(ids);
        }
        if let Some(selector) = &selector {
            subscription = subscription.selector(selector).or_raise(py)?;
        }
        let feed = Mutex::new(OfProcess::new(subscription));
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let reached = AtomicU64::new(since.get());
        Ok(Changes { database: OfProcess::new(database.clone()), feed, reached, timeout })
    }

    fn next(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Step<Change>> {
        let database = self.database.get()?;
        let mut feed = self.feed.lock_py_attached(py).map_err(|_| poisoned())?;
        let subscription = feed.get_mut()?;
        let found = wait(py, timeout, |time| Ok(step(database, subscription.next_within(time)?)))?;
        if let Step::Item(_) = &found {
            // Of a virtual database, it stays where it was: the sequences of shards are no positions.
            self.reached.store(subscription.reached().get(), Ordering::Release);
        }
        Ok(found)
    }
}

#[pymethods]
impl Changes {
    /// The sequence of the last change that was returned: pass it to `changes(since=…)` to continue.
    #[getter]
    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.next(py, self.timeout)? {
            Step::Item(change) => PyChange::object(py, change).map(Some),
            Step::Nothing | Step::Closed => ended(),
        }
    }

    fn __aiter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asynchronous(slf.into_any())
    }

    /// Returns the next change, or `None` if there is none within `seconds`. Raises `StopIteration` when the database
    /// is closed.
    fn next_within<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.next(py, Some(duration(py, seconds)?))? {
            Step::Item(change) => PyChange::object(py, change).map(Some),
            Step::Nothing => Ok(None),
            Step::Closed => Err(PyStopIteration::new_err(())),
        }
    }
}

/// The latest change of a document.
#[pyclass(frozen, module = "stemmadb._stemmadb", name = "Change")]
pub(crate) struct PyChange {
    change: Change,
    document: Option<Py<PyAny>>,
}

impl PyChange {
    fn object(py: Python<'_>, change: Change) -> PyResult<Bound<'_, PyAny>> {
        let document = change.document.as_ref().map(|document| to_python::document(py, document)).transpose()?;
        Ok(Bound::new(py, PyChange { change, document: document.map(Bound::unbind) })?.into_any())
    }
}

#[pymethods]
impl PyChange {
    /// The sequence of the write.
    #[getter]
    fn sequence(&self) -> u64 {
        self.change.sequence.get()
    }

    /// The document's id.
    #[getter]
    fn id(&self) -> &str {
        self.change.id.as_str()
    }

    /// Its winning revision.
    #[getter]
    fn revision(&self) -> String {
        self.change.revision.to_string()
    }

    /// Whether it was deleted.
    #[getter]
    fn deleted(&self) -> bool {
        self.change.deleted
    }

    /// The revisions of all branches, the winner first: more than one are a conflict.
    #[getter]
    fn leaves(&self) -> Vec<String> {
        self.change.leaves.iter().map(ToString::to_string).collect()
    }

    /// The document, with `changes(documents=True)`.
    #[getter]
    fn document(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.document.as_ref().map(|document| document.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        let kind = if self.change.deleted { "deleted" } else { "changed" };
        format!("Change({} {} {kind} at {})", self.change.id, self.change.revision, self.change.sequence)
    }
}

/// A live query: its result, and then what each transaction changes in it. Made by `Database.watch`.
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Watch {
    database: OfProcess<AnyDatabase>,
    watch: Mutex<OfProcess<AnyWatch>>,
    timeout: Option<Duration>,
}

impl Watch {
    pub(crate) fn new(
        py: Python<'_>,
        database: &AnyDatabase,
        selector: Selector,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let watch = py.detach(|| database.watch(Query::new(selector))).or_raise(py)?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        Ok(Watch { database: OfProcess::new(database.clone()), watch: Mutex::new(OfProcess::new(watch)), timeout })
    }

    fn next(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Step<PlainDelta>> {
        let database = self.database.get()?;
        let mut watch = self.watch.lock_py_attached(py).map_err(|_| poisoned())?;
        let watch = watch.get_mut()?;
        wait(py, timeout, |time| {
            let Some(delta) = watch.next_within(time)? else { return Ok(step(database, None)) };
            let events = delta.events().collect::<Result<_>>()?;
            Ok(Step::Item(PlainDelta { sequence: delta.sequence(), is_first: delta.is_first(), events }))
        })
    }
}

#[pymethods]
impl Watch {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.next(py, self.timeout)? {
            Step::Item(delta) => delta.object(py).map(Some),
            Step::Nothing | Step::Closed => ended(),
        }
    }

    fn __aiter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asynchronous(slf.into_any())
    }

    /// Returns the next delta, or `None` if there is none within `seconds`. Raises `StopIteration` when the database is
    /// closed.
    fn next_within<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.next(py, Some(duration(py, seconds)?))? {
            Step::Item(delta) => delta.object(py).map(Some),
            Step::Nothing => Ok(None),
            Step::Closed => Err(PyStopIteration::new_err(())),
        }
    }
}

/// A delta whose documents were read.
struct PlainDelta {
    sequence: Sequence,
    is_first: bool,
    events: Vec<DeltaEvent>,
}

impl PlainDelta {
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let [added, changed, removed] = [PyList::empty(py), PyList::empty(py), PyList::empty(py)];
        for event in &self.events {
            match event {
                DeltaEvent::Added(document) => added.append(to_python::document(py, document)?)?,
                DeltaEvent::Changed(document) => changed.append(to_python::document(py, document)?)?,
                DeltaEvent::Removed { id, .. } => removed.append(id.as_str())?,
            }
        }
        let delta = Delta {
            sequence: self.sequence.get(),
            is_first: self.is_first,
            added: added.unbind(),
            changed: changed.unbind(),
            removed: removed.unbind(),
        };
        Ok(Bound::new(py, delta)?.into_any())
    }
}

/// A step from one result of a live query to the next.
#[pyclass(frozen, get_all, module = "stemmadb._stemmadb")]
pub(crate) struct Delta {
    /// The sequence of the result after this step.
    sequence: u64,
    /// Whether it is the first one, whose `added` is the whole result.
    is_first: bool,
    /// The documents that match now, and did not before.
    added: Py<PyList>,
    /// The documents that still match, and were written.
    changed: Py<PyList>,
    /// The ids of those that don't match any more, or were deleted.
    removed: Py<PyList>,
}

#[pymethods]
impl Delta {
    fn __repr__(&self, py: Python<'_>) -> String {
        let count = |list: &Py<PyList>| list.bind(py).len();
        let (added, changed, removed) = (count(&self.added), count(&self.changed), count(&self.removed));
        format!("Delta({added} added, {changed} changed, {removed} removed, at {})", self.sequence)
    }
}
