//! Writes: of a database, and in a transaction.

use std::sync::Arc;
use std::thread::JoinHandle;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyString};
use stemmadb::{DocumentId, Edit, Error, ErrorKind, Object, Patch, Result, Revision, Value};
use stemmadb_client::AnyDatabase;

use crate::arrow_read::ArrowRows;
use crate::errors::Raise;
use crate::find::Find;
use crate::from_python::{self, Given};
use crate::transaction::new_id;

/// Documents that `insert_many` writes together.
pub(crate) const BATCH_COUNT: usize = 5_000;

/// What edits are applied to.
pub(crate) trait Writer: Send + Sync {
    /// The current revision of a document.
    fn current(&self, id: &str) -> Result<Option<Revision>>;

    /// Applies an edit; returns the new revision if it is known already.
    fn edit(&self, edit: Edit) -> Result<Option<Revision>>;

    /// Applies several edits independently.
    fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>>;
}

impl Writer for AnyDatabase {
    fn current(&self, id: &str) -> Result<Option<Revision>> {
        Ok(self.get(id)?.map(|document| *document.revision()))
    }

    fn edit(&self, edit: Edit) -> Result<Option<Revision>> {
        AnyDatabase::edit(self, edit).map(Some)
    }

    fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
        Ok(AnyDatabase::bulk(self, edits)?.into_iter().map(|result| result.map(Some)).collect())
    }
}

/// The arguments of a `put`: an id and a document, or a document that names its id.
pub(crate) struct Put<'a, 'py> {
    pub(crate) document: &'a Bound<'py, PyAny>,
    pub(crate) value: Option<&'a Bound<'py, PyAny>>,
    pub(crate) revision: Option<&'a str>,
}

/// The error for an id that no document has.
pub(crate) fn missing(id: &str) -> Error {
    Error::not_found(format!("there is no document `{id}`"))
}

/// The id and revision of a write, as the package's `Written`.
fn written<'py>(py: Python<'py>, id: &DocumentId, revision: Option<Revision>) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.import(py, "stemmadb._types", "Written")?;
    class.call1((id.as_str(), revision.map(|revision| revision.to_string())))
}

fn apply<'py, W: Writer>(py: Python<'py>, writer: &W, edit: Edit) -> PyResult<Bound<'py, PyAny>> {
    let id = edit.id().clone();
    let revision = py.detach(|| writer.edit(edit)).or_raise(py)?;
    written(py, &id, revision)
}

/// Reads `(document)` or `(id, document)`.
fn arguments(document: &Bound<'_, PyAny>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Given> {
    let Some(value) = value else {
        if document.is_instance_of::<PyString>() {
            let error = Error::invalid("the document is missing").with_hint("write (id, document), or (document)");
            return Err(error).or_raise(document.py());
        }
        return from_python::given(document);
    };
    let id = document.cast::<PyString>().map_err(|_| Error::invalid("an id is a string")).or_raise(document.py())?;
    // Under another id it is another document, whatever revision was read.
    let Given { id: own_id, revision, body } = from_python::given(value)?;
    let id = DocumentId::new(id.to_str()?).or_raise(document.py())?;
    let revision = revision.filter(|_| own_id.as_ref() == Some(&id));
    Ok(Given { id: Some(id), revision, body })
}

/// Creates a document.
pub(crate) fn insert<'py, W: Writer>(
    py: Python<'py>,
    writer: &W,
    document: &Bound<'py, PyAny>,
    value: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let Given { id, body, .. } = arguments(document, value)?;
    let id = id.map_or_else(new_id, Ok).or_raise(py)?;
    apply(py, writer, Edit::Insert { id, body })
}

/// Creates or replaces a document; with a revision that was read, only if it is still current.
pub(crate) fn put<'py, W: Writer>(py: Python<'py>, writer: &W, put: Put<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    let Given { id, revision, body } = arguments(put.document, put.value)?;
    let named = put.revision.map(|revision| revision.parse::<Revision>()).transpose().or_raise(py)?;
    // The revision of a document that was read counts if it is put as it is, without an id beside it.
    let revision = named.or(revision.filter(|_| put.value.is_none()));
    let id = id.map_or_else(new_id, Ok).or_raise(py)?;
    match revision {
        Some(revision) => apply(py, writer, Edit::Replace { id, revision, body }),
        None => apply(py, writer, Edit::Upsert { id, body }),
    }
}

/// `writer[id] = document`.
pub(crate) fn set<W: Writer>(py: Python<'_>, writer: &W, id: &str, document: &Bound<'_, PyAny>) -> PyResult<()> {
    let Given { body, .. } = from_python::given(document)?;
    let edit = Edit::Upsert { id: DocumentId::new(id).or_raise(py)?, body };
    py.detach(|| writer.edit(edit)).or_raise(py).map(drop)
}

/// Changes parts of a document.
pub(crate) fn update<'py, W: Writer>(
    py: Python<'py>,
    writer: &W,
    id: &str,
    patch: &Bound<'py, PyAny>,
    revision: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let patch = Patch::parse(&from_python::value(patch)?).or_raise(py)?;
    let revision = revision.map(|revision| revision.parse::<Revision>()).transpose().or_raise(py)?;
    apply(py, writer, Edit::Update { id: DocumentId::new(id).or_raise(py)?, revision, patch })
}

/// Deletes a document; without a revision, whatever its current one.
pub(crate) fn delete<'py, W: Writer>(
    py: Python<'py>,
    writer: &W,
    id: &str,
    revision: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let named = revision.map(|revision| revision.parse::<Revision>()).transpose().or_raise(py)?;
    let id = DocumentId::new(id).or_raise(py)?;
    let deleted = py.detach(|| {
        loop {
            let revision = match named {
                Some(revision) => revision,
                None => writer.current(id.as_str())?.ok_or_else(|| missing(id.as_str()))?,
            };
            match writer.edit(Edit::Delete { id: id.clone(), revision }) {
                // It was written between the read and the deletion.
                Err(error) if error.kind() == ErrorKind::Conflict && named.is_none() => {}
                result => return result,
            }
        }
    });
    written(py, &id, deleted.or_raise(py)?)
}

/// What `insert_many` does with documents whose id exists.
#[derive(Clone, Copy, PartialEq)]
enum Existing {
    Error,
    Replace,
    Skip,
}

impl Existing {
    fn edit(self, id: DocumentId, body: Value) -> Edit {
        match self {
            Existing::Replace => Edit::Upsert { id, body },
            Existing::Error | Existing::Skip => Edit::Insert { id, body },
        }
    }
}

/// The rows of an object that exports an Arrow stream. The rows of a query are documents, which need no detour.
fn arrow_rows(documents: &Bound<'_, PyAny>) -> PyResult<Option<ArrowRows>> {
    let py = documents.py();
    let export = intern!(py, "__arrow_c_stream__");
    if documents.is_instance_of::<Find>() || !documents.hasattr(export)? {
        return Ok(None);
    }
    let capsule = documents.call_method0(export)?;
    ArrowRows::new(capsule.cast::<PyCapsule>()?)?.or_raise(py).map(Some)
}

/// Creates the documents of an Arrow stream, whose column `_id` has their ids.
fn insert_arrow<W: Writer + 'static>(
    py: Python<'_>,
    mut load: Load<W>,
    mut rows: ArrowRows,
    batch_count: usize,
) -> PyResult<u64> {
    let existing = load.existing;
    let edit = |fields: Result<Object>| {
        let mut fields = fields?;
        let id = match fields.remove("_id") {
            None => new_id()?,
            Some(Value::String(id)) => DocumentId::new(id)?,
            Some(_) => return Err(Error::invalid("the column `_id` is not text")),
        };
        Ok(existing.edit(id, Value::Object(fields)))
    };
    loop {
        let batch = py.detach(|| rows.by_ref().take(batch_count).map(edit).collect::<Result<Vec<_>>>());
        match batch {
            Err(error) => {
                load.finish(py, Vec::new())?;
                return Err(error).or_raise(py);
            }
            Ok(batch) if batch.len() < batch_count => return load.finish(py, batch),
            Ok(batch) => load.start(py, batch)?,
        }
        py.check_signals()?;
    }
}

type BatchResult = Result<Vec<Result<Option<Revision>>>>;

/// Creates the documents of an iterable, in batches: while one is written, the next is read.
pub(crate) fn insert_many<W: Writer + 'static>(
    py: Python<'_>,
    writer: &Arc<W>,
    documents: &Bound<'_, PyAny>,
    existing: &str,
    batch_count: usize,
) -> PyResult<u64> {
    static ROWS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let existing = match existing {
        "error" => Existing::Error,
        "replace" => Existing::Replace,
        "skip" => Existing::Skip,
        _ => {
            let error = Error::invalid("`existing` is none of \"error\", \"replace\" and \"skip\"");
            return Err(error).or_raise(py);
        }
    };
    let mut load = Load { writer: writer.clone(), existing, written: 0, running: None };
    let mut batch = Vec::with_capacity(batch_count.min(BATCH_COUNT));
    let rows = ROWS.import(py, "stemmadb._frames", "rows")?.call1((documents,))?;
    if let Some(rows) = arrow_rows(&rows)? {
        return insert_arrow(py, load, rows, batch_count);
    }
    for document in rows.try_iter()? {
        let Given { id, body, .. } = match document.and_then(|document| from_python::given(&document)) {
            Ok(given) => given,
            Err(error) => {
                // What came before it is written, as an error of the database leaves it.
                load.finish(py, batch)?;
                return Err(error);
            }
        };
        let id = id.map_or_else(new_id, Ok).or_raise(py)?;
        batch.push(existing.edit(id, body));
        if batch.len() >= batch_count {
            load.start(py, std::mem::replace(&mut batch, Vec::with_capacity(batch_count.min(BATCH_COUNT))))?;
            py.check_signals()?;
        }
    }
    load.finish(py, batch)
}

/// The batches of an `insert_many`.
struct Load<W> {
    writer: Arc<W>,
    existing: Existing,
    written: u64,
    running: Option<JoinHandle<BatchResult>>,
}

impl<W: Writer + 'static> Load<W> {
    /// Waits for the previous batch, then starts to write this one.
    fn start(&mut self, py: Python<'_>, batch: Vec<Edit>) -> PyResult<()> {
        self.wait(py)?;
        let writer = self.writer.clone();
        let thread = std::thread::Builder::new().name("stemma-insert-many".to_owned());
        let running = thread.spawn(move || writer.bulk(batch)).map_err(Error::no_thread).or_raise(py)?;
        self.running = Some(running);
        Ok(())
    }

    fn wait(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let result = py.detach(|| running.join());
        let result = result.unwrap_or_else(|_| Err(Error::internal("the thread of an insert_many failed")));
        self.count(py, result)
    }

    fn count(&mut self, py: Python<'_>, result: BatchResult) -> PyResult<()> {
        let mut failure = None;
        for result in result.or_raise(py)? {
            match result {
                Ok(_) => self.written += 1,
                Err(error) if self.existing == Existing::Skip && error.kind() == ErrorKind::Conflict => {}
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        match failure {
            Some(error) => Err(error).or_raise(py),
            None => Ok(()),
        }
    }

    fn finish(mut self, py: Python<'_>, batch: Vec<Edit>) -> PyResult<u64> {
        self.wait(py)?;
        if !batch.is_empty() {
            let writer = self.writer.clone();
            let result = py.detach(move || writer.bulk(batch));
            self.count(py, result)?;
        }
        Ok(self.written)
    }
}
