//! Transactions, whose steps are calls within a `with` block, and snapshots.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyAny, PyDict};
use stemmadb::{DocumentId, Edit, Error, Query, Result, Revision, Selector, Snapshot};
use stemmadb_client::AnyDatabase;
use stemmadb_client::bindings::{OpenTransaction, Reader, TransactionHints};

use crate::errors::{Raise, poisoned};
use crate::find::Find;
use crate::fork::OfProcess;
use crate::to_python;
use crate::write::{self, Put, Writer};

/// What to do about errors of transactions.
const HINTS: TransactionHints = TransactionHints {
    ended: "use it within its `with` block",
    changed: "run it again; `db.transact(function)` does so by itself",
};

impl Writer for OpenTransaction {
    fn current(&self, id: &str) -> Result<Option<Revision>> {
        Ok(self.get(id)?.map(|document| *document.revision()))
    }

    fn edit(&self, edit: Edit) -> Result<Option<Revision>> {
        OpenTransaction::edit(self, edit)
    }

    fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
        self.edits(edits)
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
            None => Err(HINTS.ended()).or_raise(py),
        }
    }

    fn end(&self, py: Python<'_>, commits: bool) -> PyResult<()> {
        let open = self.open.lock_py_attached(py).map_err(|_| poisoned())?.take();
        let Some(open) = open else { return Err(HINTS.ended()).or_raise(py) };
        let open = open.get()?;
        py.detach(|| open.end(commits)).or_raise(py)
    }
}

#[pymethods]
impl Transaction {
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (this, py) = (slf.get(), slf.py());
        let database = this.database.get()?;
        let begun = py.detach(|| OpenTransaction::begin(database.clone(), HINTS)).or_raise(py)?;
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
        let count = py.detach(|| reader.find(Query::new(Selector::everything()))?.count()).or_raise(py)?;
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
