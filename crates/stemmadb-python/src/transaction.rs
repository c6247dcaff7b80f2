//! Transactions: a thread runs an optimistic transaction of the library, and the methods of the Python object are jobs
//! that it does, since `with` has no function that could be run again.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyAny, PyDict};
use stemmadb::{
    Aggregation, Attempt, Document, DocumentId, Edit, Error, Object, Query, Result, Revision, Snapshot, Value,
};
use stemmadb_client::{AnyDatabase, AnyFind, RemoteAttempt};

use crate::errors::{Raise, poisoned};
use crate::find::Find;
use crate::fork::OfProcess;
use crate::reader::{Reader, ReadyFind};
use crate::to_python;
use crate::write::{self, Put, Writer};

/// The attempt of either database.
enum AnyAttempt<'a, 'b> {
    Embedded(&'a mut Attempt<'b>),
    Remote(&'a mut RemoteAttempt),
}

type Job = Box<dyn for<'a, 'b> FnOnce(AnyAttempt<'a, 'b>) + Send>;

/// A request to the transaction's thread.
enum Message {
    Run(Job),
    Commit,
}

/// A transaction that has not ended yet.
pub(crate) struct OpenTransaction {
    jobs: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

fn ended() -> Error {
    Error::invalid("the transaction has ended").with_hint("use it within its `with` block")
}

/// The error by which an attempt ends without a commit.
fn rolled_back() -> Error {
    Error::invalid("the transaction was rolled back")
}

fn changed() -> Error {
    Error::conflict("another write changed what this transaction read, so nothing of it was written")
        .with_hint("run it again; `db.transact(function)` does so by itself")
}

/// Does jobs until the transaction ends. `Ok` commits.
fn serve(jobs: &Receiver<Message>, mut attempt: impl FnMut(Job)) -> Result<()> {
    loop {
        match jobs.recv() {
            Ok(Message::Run(job)) => attempt(job),
            Ok(Message::Commit) => return Ok(()),
            Err(_) => return Err(rolled_back()),
        }
    }
}

fn run(database: &AnyDatabase, jobs: &Receiver<Message>) -> Result<()> {
    let mut attempt_count = 0;
    let mut first = || {
        attempt_count += 1;
        if attempt_count > 1 { Err(changed()) } else { Ok(()) }
    };
    match database {
        AnyDatabase::Embedded(database) => database.optimistic(|attempt| {
            first()?;
            serve(jobs, |job| job(AnyAttempt::Embedded(attempt)))
        }),
        AnyDatabase::Remote(database) => database.optimistic(|attempt| {
            first()?;
            serve(jobs, |job| job(AnyAttempt::Remote(attempt)))
        }),
    }
}

impl OpenTransaction {
    fn begin(database: AnyDatabase) -> Result<Self> {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("stemma-transaction".to_owned());
        let thread = thread.spawn(move || run(&database, &receiver)).map_err(Error::no_thread)?;
        Ok(OpenTransaction { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread do `work`; returns its result.
    fn ask<T: Send + 'static>(
        &self,
        work: impl for<'a, 'b> FnOnce(AnyAttempt<'a, 'b>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered): (SyncSender<Result<T>>, _) = sync_channel(1);
        let job: Job = Box::new(move |attempt| {
            // Nobody waits if the asking thread ended.
            answer.send(work(attempt)).ok();
        });
        {
            let jobs = self.jobs.lock().map_err(|_| ended())?;
            let jobs = jobs.as_ref().ok_or_else(ended)?;
            if jobs.send(Message::Run(job)).is_err() {
                return Err(self.early_end());
            }
        }
        answered.recv().unwrap_or_else(|_| Err(self.early_end()))
    }

    /// Why the thread ended before the transaction did, such as since the database was closed.
    fn early_end(&self) -> Error {
        self.join().err().unwrap_or_else(ended)
    }

    fn join(&self) -> Result<()> {
        let Ok(mut thread) = self.thread.lock() else { return Err(ended()) };
        let Some(thread) = thread.take() else { return Err(ended()) };
        thread.join().unwrap_or_else(|_| Err(Error::internal("the thread of a transaction failed")))
    }

    /// Ends the transaction.
    fn end(&self, commits: bool) -> Result<()> {
        let jobs = self.jobs.lock().map_err(|_| ended())?.take().ok_or_else(ended)?;
        if commits {
            // If the thread ended already, its result says why.
            jobs.send(Message::Commit).ok();
        }
        drop(jobs);
        let result = self.join();
        if commits { result } else { Ok(()) }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.get(&id),
            AnyAttempt::Remote(attempt) => attempt.get(&id),
        })
    }

    pub(crate) fn find(&self, query: Query) -> Result<ReadyFind> {
        self.ask(move |attempt| {
            Ok(match attempt {
                AnyAttempt::Embedded(attempt) => ReadyFind::Find(Box::new(AnyFind::Embedded(attempt.find(query)?))),
                AnyAttempt::Remote(attempt) => ReadyFind::Rows(attempt.find(query)?),
            })
        })
    }

    pub(crate) fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        let aggregation = Aggregation::parse(aggregation)?;
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.aggregate(&aggregation),
            AnyAttempt::Remote(_) => Err(Error::invalid("a transaction of a remote database can't aggregate")),
        })
    }
}

impl Writer for OpenTransaction {
    fn current(&self, id: &str) -> Result<Option<Revision>> {
        Ok(self.get(id)?.map(|document| *document.revision()))
    }

    /// A remote database assigns revisions at the commit: there is none yet.
    fn edit(&self, edit: Edit) -> Result<Option<Revision>> {
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.edit(edit).map(Some),
            AnyAttempt::Remote(attempt) => attempt.edit(edit).map(|()| None),
        })
    }

    fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
        self.ask(move |attempt| {
            Ok(match attempt {
                AnyAttempt::Embedded(attempt) => edits.into_iter().map(|edit| attempt.edit(edit).map(Some)).collect(),
                AnyAttempt::Remote(attempt) => {
                    edits.into_iter().map(|edit| attempt.edit(edit).map(|()| None)).collect()
                }
            })
        })
    }
}

/// A transaction: all of its writes are made at the end of its `with` block, or none.
///
/// It reads the state in which it began, with its own writes. At the end it raises `Conflict`, and writes nothing, if
/// another write changed what it read. Other writers do not wait for it.
///
/// >>> with db.transaction() as tx:
/// ...     account = tx["ada"]
/// ...     tx["ada"] = {**account, "balance": account["balance"] - 10}
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Transaction {
    database: OfProcess<AnyDatabase>,
    open: Mutex<Option<Arc<OfProcess<Arc<OpenTransaction>>>>>,
}

impl Transaction {
    pub(crate) fn new(database: AnyDatabase) -> Self {
        Transaction { database: OfProcess::new(database), open: Mutex::new(None) }
    }

    fn open(&self, py: Python<'_>) -> PyResult<Arc<OpenTransaction>> {
        let open = self.open.lock_py_attached(py).map_err(|_| poisoned())?.clone();
        match open {
            Some(open) => open.get().cloned(),
            None => Err(ended()).or_raise(py),
        }
    }

    fn end(&self, py: Python<'_>, commits: bool) -> PyResult<()> {
        let open = self.open.lock_py_attached(py).map_err(|_| poisoned())?.take();
        let Some(open) = open else { return Err(ended()).or_raise(py) };
        let open = open.get()?;
        py.detach(|| open.end(commits)).or_raise(py)
    }
}

#[pymethods]
impl Transaction {
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (this, py) = (slf.get(), slf.py());
        let database = this.database.get()?;
        let begun = py.detach(|| OpenTransaction::begin(database.clone())).or_raise(py)?;
        let mut open = this.open.lock_py_attached(py).map_err(|_| poisoned())?;
        if open.is_some() {
            return Err(Error::invalid("the transaction has begun already")).or_raise(py);
        }
        *open = Some(Arc::new(OfProcess::new(Arc::new(begun))));
        drop(open);
        Ok(slf)
    }

    /// Commits, or rolls back if there is an exception.
    #[pyo3(signature = (kind, error, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (error, traceback);
        self.end(py, kind.is_none())?;
        Ok(false)
    }

    /// Returns a document, or `default` if there is none.
    #[pyo3(signature = (id, default=None))]
    fn get<'py>(&self, py: Python<'py>, id: &str, default: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open(py)?;
        to_python::document_or(py, py.detach(|| open.get(id)).or_raise(py)?, default)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open(py)?;
        to_python::existing(py, id, py.detach(|| open.get(id)).or_raise(py)?)
    }

    fn __contains__(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        let open = self.open(py)?;
        Ok(py.detach(|| open.get(id)).or_raise(py)?.is_some())
    }

    fn __setitem__(&self, py: Python<'_>, id: &str, document: &Bound<'_, PyAny>) -> PyResult<()> {
        write::set(py, &*self.open(py)?, id, document)
    }

    fn __delitem__(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        write::delete(py, &*self.open(py)?, id, None).map(drop)
    }

    /// Creates a document, as `Database.insert` does.
    #[pyo3(signature = (document, value=None, /))]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        document: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::insert(py, &*self.open(py)?, document, value)
    }

    /// Creates many documents, as `Database.insert_many` does. Returns their number.
    #[pyo3(signature = (documents, *, existing="error"))]
    fn insert_many(&self, py: Python<'_>, documents: &Bound<'_, PyAny>, existing: &str) -> PyResult<u64> {
        write::insert_many(py, &self.open(py)?, documents, existing, write::BATCH_COUNT)
    }

    /// Creates or replaces a document, as `Database.put` does.
    #[pyo3(signature = (document, value=None, /, *, revision=None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        document: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
        revision: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::put(py, &*self.open(py)?, Put { document, value, revision })
    }

    /// Changes parts of a document, as `Database.update` does.
    #[pyo3(signature = (id, patch, /, *, revision=None))]
    fn update<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        patch: &Bound<'py, PyAny>,
        revision: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::update(py, &*self.open(py)?, id, patch, revision)
    }

    /// Deletes a document, as `Database.delete` does.
    #[pyo3(signature = (id, revision=None))]
    fn delete<'py>(&self, py: Python<'py>, id: &str, revision: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        write::delete(py, &*self.open(py)?, id, revision)
    }

    /// Finds documents, as `Database.find` does, with what this transaction wrote.
    #[pyo3(signature = (selector=None, *, sort=None, limit=None, skip=None, fields=None, after=None, into=None,
                        timeout=None, **equalities))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn find(
        &self,
        py: Python<'_>,
        selector: Option<&Bound<'_, PyAny>>,
        sort: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        skip: Option<u64>,
        fields: Option<&Bound<'_, PyAny>>,
        after: Option<&str>,
        into: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        equalities: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Find> {
        let find = Find::new(Reader::Transaction(self.open(py)?), py, selector, equalities)?;
        find.refined(py, sort, limit, skip, fields, after, into, timeout)
    }
}

/// A state of a database that does not change: `Database.snapshot()` and `Database.as_of(…)`.
#[pyclass(frozen, module = "stemmadb._stemmadb", name = "Snapshot")]
pub(crate) struct PySnapshot {
    reader: OfProcess<Reader>,
    sequence: Option<u64>,
}

impl PySnapshot {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        let sequence = Some(snapshot.sequence().get());
        PySnapshot { reader: OfProcess::new(Reader::Snapshot(snapshot)), sequence }
    }

    pub(crate) fn remote(past: stemmadb_client::RemotePast) -> Self {
        PySnapshot { reader: OfProcess::new(Reader::RemotePast(past)), sequence: None }
    }
}

#[pymethods]
impl PySnapshot {
    /// The sequence as of which it reads; `None` for a remote database.
    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Returns a document, or `default` if there is none.
    #[pyo3(signature = (id, default=None))]
    fn get<'py>(&self, py: Python<'py>, id: &str, default: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let reader = self.reader.get()?;
        to_python::document_or(py, py.detach(|| reader.get(id)).or_raise(py)?, default)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyAny>> {
        let reader = self.reader.get()?;
        to_python::existing(py, id, py.detach(|| reader.get(id)).or_raise(py)?)
    }

    fn __contains__(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        let reader = self.reader.get()?;
        Ok(py.detach(|| reader.get(id)).or_raise(py)?.is_some())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let reader = self.reader.get()?;
        let count = py.detach(|| reader.find(Query::new(stemmadb::Selector::everything()))?.count()).or_raise(py)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Finds documents, as `Database.find` does.
    #[pyo3(signature = (selector=None, *, sort=None, limit=None, skip=None, fields=None, after=None, into=None,
                        timeout=None, **equalities))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn find(
        &self,
        py: Python<'_>,
        selector: Option<&Bound<'_, PyAny>>,
        sort: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        skip: Option<u64>,
        fields: Option<&Bound<'_, PyAny>>,
        after: Option<&str>,
        into: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        equalities: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Find> {
        let find = Find::new(self.reader.get()?.clone(), py, selector, equalities)?;
        find.refined(py, sort, limit, skip, fields, after, into, timeout)
    }
}

/// A new id: a UUID of version 7, so that documents that are inserted together are stored together.
pub(crate) fn new_id() -> Result<DocumentId> {
    DocumentId::new(uuid::Uuid::now_v7().to_string())
}
