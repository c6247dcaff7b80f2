//! A database, embedded or remote.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use stemmadb::past::{Difference, PastRevision};
use stemmadb::{Error, Expiry, Index, Object, Options, Query, Schema, Selector, Sequence, Value};
use stemmadb_client::bindings::Reader;
use stemmadb_client::{AnyDatabase, Client, ClientOptions};

use crate::arguments::{self, FileReader, point, retention};
use crate::errors::{Raise, Result};
use crate::feeds::{Changes, ChangesRequest, Watch};
use crate::find::{self, Find, Rows};
use crate::fork::OfProcess;
use crate::transaction::{PySnapshot, Transaction};
use crate::views::View;
use crate::write::{self, Put, Writer};
use crate::{from_python, to_python};

/// The location of a database that is gone when it is closed.
const IN_MEMORY: &str = ":memory:";

/// The core of `stemmadb.Database`.
#[pyclass(frozen, subclass, weakref, module = "stemmadb._stemmadb")]
pub(crate) struct Database {
    database: OfProcess<Owned>,
    is_closed: AtomicBool,
    location: String,
}

/// A database that is closed without the interpreter's lock.
struct Owned(Option<AnyDatabase>);

impl Drop for Owned {
    fn drop(&mut self) {
        let database = self.0.take();
        Python::attach(|py| py.detach(|| drop(database)));
    }
}

fn closed() -> Error {
    Error::closed("the database is closed")
}

impl Database {
    pub(crate) fn any(&self, py: Python<'_>) -> PyResult<&AnyDatabase> {
        let database = self.database.get()?;
        match &database.0 {
            Some(database) if !self.is_closed.load(Ordering::Acquire) => Ok(database),
            _ => Err(closed()).or_raise(py),
        }
    }

    /// Runs something with the database, without the interpreter's lock.
    fn run<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&AnyDatabase) -> Result<T> + Send) -> PyResult<T> {
        let database = self.any(py)?;
        py.detach(|| work(database)).or_raise(py)
    }

    fn embedded<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&stemmadb::Database) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, |database| match database {
            AnyDatabase::Embedded(database) => work(database),
            AnyDatabase::Remote(_) => Err(Error::invalid("only a database in this process can do this")
                .with_hint("use the command `stemma` where the server is")),
        })
    }
}

/// A time as an aware `datetime`.
fn datetime<'py>(py: Python<'py>, time: SystemTime) -> PyResult<Bound<'py, PyAny>> {
    static OF_MICROSECONDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let us = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    OF_MICROSECONDS.import(py, "stemmadb._convert", "datetime_of")?.call1((us,))
}

fn revision_object<'py>(py: Python<'py>, revision: &PastRevision) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let time = revision.time.map(|time| datetime(py, time)).transpose()?;
    let document = to_python::document(py, &revision.document)?;
    let class = CLASS.import(py, "stemmadb._types", "Revision")?;
    class.call1((document, revision.sequence.get(), time, revision.author.as_deref()))
}

fn difference_object<'py>(py: Python<'py>, difference: &Difference) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let object = |document| to_python::document(py, document);
    let (before, after, paths) = match difference {
        Difference::Added(after) => (None, Some(object(after)?), Vec::new()),
        Difference::Removed(before) => (Some(object(before)?), None, Vec::new()),
        Difference::Changed { before, after, paths } => (Some(object(before)?), Some(object(after)?), paths.clone()),
        other => {
            let error = Error::internal(format!("document `{}` differs in an unknown way", other.id()));
            return Err(error).or_raise(py);
        }
    };
    CLASS.import(py, "stemmadb._types", "Difference")?.call1((difference.id().as_str(), before, after, paths))
}

#[pymethods]
impl Database {
    #[new]
    #[pyo3(signature = (location, *, durability="sync", interval=0.1, create=true, read_only=false, key=None,
                        cache_bytes=None, timeout=30.0))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        location: &Bound<'_, PyAny>,
        durability: &str,
        interval: f64,
        create: bool,
        read_only: bool,
        key: Option<&Bound<'_, PyAny>>,
        cache_bytes: Option<u64>,
        timeout: f64,
    ) -> PyResult<Self> {
        let location: String = py.import("os")?.call_method1("fspath", (location,))?.extract()?;
        let durability = arguments::durability(py, durability, interval)?;
        let opened = if location.contains("://") {
            let options = ClientOptions::new().timeout(find::duration(py, timeout)?);
            py.detach(|| {
                let database = Client::connect_with(&location, options)?.default_database().ok_or_else(|| {
                    Error::invalid("the URL names no database").with_hint("stemma://host:5985/database")
                })?;
                Ok(AnyDatabase::Remote(match durability {
                    stemmadb::Durability::None => database.with_durability(durability),
                    _ => database,
                }))
            })
        } else {
            let mut options = Options::new().durability(durability).create(create).read_only(read_only);
            if let Some(key) = key {
                options = options.encryption(arguments::key(key)?);
            }
            if let Some(bytes) = cache_bytes {
                options = options.cache_bytes(bytes);
            }
            py.detach(|| match location.as_str() {
                IN_MEMORY => stemmadb::Database::in_memory_with(options),
                path => stemmadb::Database::open_with(path, options),
            })
            .map(AnyDatabase::Embedded)
        };
        let location = match location.split_once("://") {
            // The password stays out of `repr`.
            Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
            None => location,
        };
        let database = OfProcess::new(Owned(Some(opened.or_raise(py)?)));
        Ok(Database { database, is_closed: AtomicBool::new(false), location })
    }

    /// Closes the database. Everything that was made of it raises `Closed` from then on. Closing it again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let database = self.database.get()?;
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match &database.0 {
            Some(AnyDatabase::Embedded(database)) => py.detach(|| database.clone().close()).or_raise(py),
            _ => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, error, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (kind, error, traceback);
        self.close(py)?;
        Ok(false)
    }

    /// The path or URL with which it was opened, without a password.
    #[getter]
    fn location(&self) -> &str {
        &self.location
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The sequence of the newest write.
    #[getter]
    fn sequence(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |database| match database {
            AnyDatabase::Embedded(database) => Ok(database.sequence().get()),
            AnyDatabase::Remote(database) => Ok(database.sequence()?.get()),
        })
    }

    /// Returns a document, or `default` if there is none. With `into`, as an object of a dataclass or pydantic model.
    ///
    /// >>> db.get("solaris")
    /// {'title': 'Solaris', 'year': 1961}
    #[pyo3(signature = (id, default=None, *, into=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        default: Option<Bound<'py, PyAny>>,
        into: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.run(py, |database| database.get(id))? {
            Some(found) => to_python::document_as(py, &found, find::converter(into)?.as_ref()),
            None => Ok(to_python::or_none(py, default)),
        }
    }

    /// Returns several documents as of one moment, `None` for those that don't exist.
    fn get_many<'py>(&self, py: Python<'py>, ids: Vec<String>) -> PyResult<Bound<'py, PyList>> {
        let found = self.run(py, |database| database.get_many(&ids))?;
        let list = PyList::empty(py);
        for document in &found {
            match document {
                Some(document) => list.append(to_python::document(py, document)?)?,
                None => list.append(py.None())?,
            }
        }
        Ok(list)
    }

    /// Returns a revision of a document that is still stored, or `None`.
    fn get_revision<'py>(&self, py: Python<'py>, id: &str, revision: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let revision = revision.parse().or_raise(py)?;
        let found = self.run(py, |database| database.get_revision(id, &revision))?;
        found.map(|found| to_python::document(py, &found)).transpose()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python::existing(py, id, self.run(py, |database| database.get(id))?)
    }

    fn __setitem__(&self, py: Python<'_>, id: &str, document: &Bound<'_, PyAny>) -> PyResult<()> {
        write::set(py, self.any(py)?, id, document)
    }

    fn __delitem__(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        write::delete(py, self.any(py)?, id, None).map(drop)
    }

    fn __contains__(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(id) = id.cast::<PyString>() else { return Ok(false) };
        let id = id.to_str()?;
        Ok(self.run(py, |database| database.get(id))?.is_some())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.run(py, |database| database.find(Query::new(Selector::everything())).count())?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn _rows(&self, py: Python<'_>) -> PyResult<Rows> {
        Find::new(Reader::Database(self.any(py)?.clone()), py, None, None)?.rows(py)
    }

    fn _ids(&self, py: Python<'_>) -> PyResult<Rows> {
        Find::new(Reader::Database(self.any(py)?.clone()), py, None, None)?.id_rows(py)
    }

    /// Creates a document; returns its id and revision. `insert(document)` or `insert(id, document)`.
    ///
    /// Without an id, the document's `_id` or that of its model counts, otherwise a new one is made. Raises `Conflict`
    /// if the document exists.
    ///
    /// >>> db.insert("eden", {"title": "Eden", "year": 1958}).id
    /// 'eden'
    #[pyo3(signature = (document, value=None, /))]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        document: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::insert(py, self.any(py)?, document, value)
    }

    /// Creates the documents of an iterable, a DataFrame or an Arrow stream; returns how many were written.
    ///
    /// They are written in batches with one flush each: use a transaction for all or nothing. Documents whose id exists
    /// raise `Conflict` after their batch, or with `existing`, are replaced (`"replace"`) or left as they are
    /// (`"skip"`).
    ///
    /// >>> db.insert_many({"_id": f"book-{n}", "n": n} for n in range(1000))
    /// 1000
    #[pyo3(signature = (documents, *, existing="error", batch=write::BATCH_COUNT))]
    fn insert_many(&self, py: Python<'_>, documents: &Bound<'_, PyAny>, existing: &str, batch: usize) -> PyResult<u64> {
        write::insert_many(py, &Arc::new(self.any(py)?.clone()), documents, existing, batch.max(1))
    }

    /// Creates or replaces a document; returns its id and revision. `put(document)` or `put(id, document)`.
    ///
    /// With `revision`, or if the one document is as it was read, it replaces only this revision: `Conflict` says that
    /// the document was written in between.
    #[pyo3(signature = (document, value=None, /, *, revision=None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        document: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
        revision: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::put(py, self.any(py)?, Put { document, value, revision })
    }

    /// Changes parts of a document: new fields, or operators such as `{"$inc": {"reads": 1}}`. Returns its id and
    /// revision.
    fn _update<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        patch: &Bound<'py, PyAny>,
        revision: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        write::update(py, self.any(py)?, id, patch, revision)
    }

    /// Deletes a document; with `revision`, only if it is current. Returns the id and the deletion's revision.
    #[pyo3(signature = (id, revision=None))]
    fn delete<'py>(&self, py: Python<'py>, id: &str, revision: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        write::delete(py, self.any(py)?, id, revision)
    }

    /// Finds documents: by a Mango selector, by keywords, or both.
    ///
    /// Keywords are equalities; `__` separates the names of a path, and an operator at its end: `year__gt=1960`,
    /// `address__city="Oslo"`. `sort` is a path, `-path` for descending, or a list. `fields` chooses paths, and makes
    /// each row a plain `dict`. `after` continues after the token of another query's rows. `into` is a dataclass or
    /// pydantic model. A query that takes longer than `timeout` seconds raises `Stopped`.
    ///
    /// >>> db.find({"year": {"$gt": 1960}}, sort="-year", limit=1).first()
    /// {'title': 'Dune', 'year': 1965}
    /// >>> db.find(year__gt=1960).count()
    /// 2
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
        let find = Find::new(Reader::Database(self.any(py)?.clone()), py, selector, equalities)?;
        find.refined(py, sort, limit, skip, fields, after, into, timeout)
    }

    /// Begins a transaction: `with db.transaction() as tx:`.
    ///
    /// It commits at the end of the block, and is rolled back if the block raises. `Conflict` at the end says that
    /// another write changed what it read: nothing was written.
    fn transaction(&self, py: Python<'_>) -> PyResult<Transaction> {
        Ok(Transaction::new(self.any(py)?.clone()))
    }

    /// Takes a snapshot of the newest state, for several reads that must agree.
    fn snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        self.embedded(py, |database| database.snapshot()).map(PySnapshot::new)
    }

    /// The database as it was: at a sequence, at a `datetime`, a `timedelta` ago, or by text: `"-2h"`,
    /// `"2026-11-24T12:00:00Z"`.
    fn as_of(&self, py: Python<'_>, at: &Bound<'_, PyAny>) -> PyResult<PySnapshot> {
        let at = point(at)?;
        match self.any(py)? {
            AnyDatabase::Embedded(database) => py.detach(|| database.as_of(at)).or_raise(py).map(PySnapshot::new),
            AnyDatabase::Remote(database) => Ok(PySnapshot::remote(database.as_of(at))),
        }
    }

    /// Returns the stored revisions of a document, deletions included, the newest first.
    fn history<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyList>> {
        let revisions = self.run(py, |database| database.history().revisions(id))?;
        let list = PyList::empty(py);
        for revision in &revisions {
            list.append(revision_object(py, revision)?)?;
        }
        Ok(list)
    }

    /// Returns the documents that differ between two points in the past.
    #[pyo3(signature = (start, end, selector=None))]
    fn differences<'py>(
        &self,
        py: Python<'py>,
        start: &Bound<'py, PyAny>,
        end: &Bound<'py, PyAny>,
        selector: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (start, end) = (point(start)?, point(end)?);
        let selector = selector.map(|given| find::selector(py, Some(given), None)).transpose()?;
        let found = self.run(py, |database| database.history().differences(start, end, selector.as_ref()))?;
        let list = PyList::empty(py);
        for difference in &found {
            list.append(difference_object(py, difference)?)?;
        }
        Ok(list)
    }

    /// Sets how much of the past is kept from now on: a `timedelta`, a number of revisions of each document,
    /// `"everything"`, or `None`.
    fn keep_history(&self, py: Python<'_>, kept: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let kept = retention(kept.as_ref())?;
        self.run(py, |database| database.history().keep(kept))
    }

    /// Writes the last revision of a deleted document again; returns its revision.
    fn undelete(&self, py: Python<'_>, id: &str) -> PyResult<String> {
        self.run(py, |database| Ok(database.history().undelete(id)?.to_string()))
    }

    /// Iterates over changes, and waits for new ones.
    ///
    /// `since` is a sequence, `"now"` for new changes only, or 0 for all. It ends if there is no change within
    /// `timeout` seconds: 0 for those that exist. Filters by ids or a selector.
    ///
    /// >>> for change in db.changes(since=0, timeout=0):
    /// ...     print(change.id)
    /// solaris
    /// dune
    #[pyo3(signature = (since=None, *, documents=false, ids=None, selector=None, timeout=None))]
    fn changes(
        &self,
        py: Python<'_>,
        since: Option<&Bound<'_, PyAny>>,
        documents: bool,
        ids: Option<Vec<String>>,
        selector: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Changes> {
        let since = match since {
            None => 0,
            Some(since) => match since.cast::<PyString>() {
                Ok(text) if text.to_str()? == "now" => self.sequence(py)?,
                _ => since.extract::<u64>()?,
            },
        };
        let selector = selector.map(|given| find::selector(py, Some(given), None)).transpose()?;
        let request = ChangesRequest { since: Sequence::new(since), documents, ids, selector, timeout };
        Changes::new(py, self.any(py)?, request)
    }

    /// Starts a live query: an iterator, also for `async for`, over deltas. The first one has the whole result.
    ///
    /// It ends when the database is closed, or if nothing changes within `timeout` seconds.
    #[pyo3(signature = (selector=None, *, timeout=None, **equalities))]
    fn watch(
        &self,
        py: Python<'_>,
        selector: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        equalities: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Watch> {
        Watch::new(py, self.any(py)?, find::selector(py, selector, equalities)?, timeout)
    }

    /// Declares an index on one or more paths; a unique one refuses two documents with the same values.
    ///
    /// Every field is indexed anyway: declare one for uniqueness, for the order of several paths, or for a language.
    #[pyo3(signature = (*paths, unique=false, name=None, language=None))]
    fn create_index(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        unique: bool,
        name: Option<String>,
        language: Option<&str>,
    ) -> PyResult<()> {
        let mut definition = Object::new();
        let path = |path: &String| {
            let (name, descending) = path.strip_prefix('-').map_or((path.as_str(), false), |path| (path, true));
            let mut path: Object =
                [("path", Value::from(name)), ("descending", descending.into())].into_iter().collect();
            if let Some(language) = language {
                path.insert("collation", language);
            }
            Value::Object(path)
        };
        definition.insert("on", paths.iter().map(path).collect::<Vec<_>>());
        definition.insert("unique", unique);
        if let Some(name) = name {
            definition.insert("name", name);
        }
        let index = Index::parse(&Value::Object(definition)).or_raise(py)?;
        self.run(py, |database| database.indexes().create(index))
    }

    /// Returns the declared indexes: their names, paths, and whether they are unique.
    fn indexes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for index in self.run(py, |database| database.indexes().list())? {
            let object = PyDict::new(py);
            object.set_item("name", index.name)?;
            object.set_item("paths", index.paths.iter().map(|path| path.path().to_string()).collect::<Vec<_>>())?;
            object.set_item("unique", index.unique)?;
            list.append(object)?;
        }
        Ok(list)
    }

    /// Removes a declared index.
    fn drop_index(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |database| database.indexes().remove(name))
    }

    /// Requires the documents of a collection, whose ids begin with `collection:`, to match a JSON Schema; `None`
    /// removes it.
    fn require_schema(&self, py: Python<'_>, collection: &str, schema: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(schema) = schema else { return self.run(py, |database| database.schemas().remove(collection)) };
        let schema = from_python::value(&schema)?;
        self.run(py, |database| database.schemas().require(collection, Schema::new(&schema)?))
    }

    /// Has documents expire at the time that is stored at a path: seconds since 1970, or text as of a `datetime`. With
    /// `collection`, only those whose ids begin with `collection:`.
    #[pyo3(signature = (path, *, collection=None))]
    fn add_expiration(&self, py: Python<'_>, path: &str, collection: Option<&str>) -> PyResult<()> {
        let rule = match collection {
            Some(collection) => Expiry::at(path).of_collection(collection),
            None => Expiry::at(path),
        };
        self.embedded(py, |database| database.expiration().add_rule(rule))
    }

    /// Has a document expire in so many seconds, by its expiration rule; `None`: never.
    fn expire(&self, py: Python<'_>, id: &str, seconds: Option<f64>) -> PyResult<()> {
        let time = seconds.map(|seconds| find::duration(py, seconds)).transpose()?;
        self.embedded(py, |database| database.expiration().expire(id, time).map(drop))
    }

    /// Attaches a file to a document: `bytes`, or a binary file that is open. Returns the document's id and revision.
    #[pyo3(signature = (id, name, content, *, content_type="application/octet-stream", revision=None))]
    fn attach<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        name: &str,
        content: &Bound<'py, PyAny>,
        content_type: &str,
        revision: Option<&str>,
    ) -> PyResult<String> {
        let named = revision.map(|revision| revision.parse()).transpose().or_raise(py)?;
        let content = FileReader::new(content)?;
        self.run(py, |database| {
            let revision = match named {
                Some(revision) => revision,
                None => database.current(id)?.ok_or_else(|| write::missing(id))?,
            };
            Ok(database.files().attach(id, &revision, name, content_type, content)?.to_string())
        })
    }

    /// Returns the content of an attached file, or `None`.
    fn read_file<'py>(&self, py: Python<'py>, id: &str, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let content = self.run(py, |database| {
            let Some(mut file) = database.files().open(id, name)? else { return Ok(None) };
            let mut content = Vec::new();
            file.read_to_end(&mut content).map_err(Error::from)?;
            Ok(Some(content))
        })?;
        Ok(content.map(|content| PyBytes::new(py, &content)))
    }

    /// Returns name, content type and length of each file of a document.
    fn attachments<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for file in self.run(py, |database| database.get(id)?.ok_or_else(|| write::missing(id))?.attachments())? {
            let object = PyDict::new(py);
            object.set_item("name", file.name)?;
            object.set_item("content_type", file.content_type)?;
            object.set_item("length", file.length)?;
            list.append(object)?;
        }
        Ok(list)
    }

    /// Defines a view, or opens it if it has this definition; see the guide on views for the form of definitions.
    ///
    /// >>> years = db.define_view("years", {"key": "year", "reduce": "_count"})
    /// >>> years.groups()
    /// [(1961, 1), (1965, 1)]
    fn define_view(&self, py: Python<'_>, name: &str, definition: &Bound<'_, PyAny>) -> PyResult<View> {
        let definition = from_python::value(definition)?;
        let view = self.run(py, |database| database.views().define(name, &definition))?;
        Ok(View::new(view, name))
    }

    /// Opens a view that was defined.
    fn view(&self, py: Python<'_>, name: &str) -> PyResult<View> {
        let view = self.run(py, |database| database.views().open(name))?;
        Ok(View::new(view, name))
    }

    /// Returns the definitions of views by name.
    fn views<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let object = PyDict::new(py);
        for (name, definition) in self.run(py, |database| database.views().definitions())? {
            object.set_item(name, to_python::value(py, &definition)?)?;
        }
        Ok(object)
    }

    /// Removes a view.
    fn drop_view(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |database| database.views().remove(name))
    }

    /// Returns the paths that documents have, with the number of documents and of distinct values at each.
    fn paths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for path in self.embedded(py, |database| database.indexes().paths())? {
            let object = PyDict::new(py);
            object.set_item("path", path.path)?;
            object.set_item("documents", path.document_count)?;
            object.set_item("values", path.value_count)?;
            let kinds = PyDict::new(py);
            for (kind, count) in path.kinds {
                kinds.set_item(kind.name(), count)?;
            }
            object.set_item("types", kinds)?;
            list.append(object)?;
        }
        Ok(list)
    }

    /// Returns counts and sizes.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.embedded(py, |database| database.info())?;
        let object = PyDict::new(py);
        object.set_item("documents", info.document_count)?;
        object.set_item("deleted", info.deleted_count)?;
        object.set_item("sequence", info.sequence.get())?;
        object.set_item("log_bytes", info.log_bytes)?;
        object.set_item("tree_bytes", info.tree_bytes)?;
        object.set_item("history_bytes", info.history_bytes)?;
        object.set_item("cache_bytes", info.cache_bytes)?;
        Ok(object)
    }

    /// Flushes every earlier write to disk.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |database| match database {
            AnyDatabase::Embedded(database) => database.flush(),
            AnyDatabase::Remote(database) => database.flush(),
        })
    }

    /// Makes a backup in a directory while the database is used; later ones there add what is new.
    fn backup(&self, py: Python<'_>, directory: &Bound<'_, PyAny>) -> PyResult<()> {
        let directory: String = py.import("os")?.call_method1("fspath", (directory,))?.extract()?;
        self.embedded(py, |database| database.maintenance().backup(directory).map(drop))
    }

    /// Checks all stored bytes and indexes; returns the problems found.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let report = self.embedded(py, |database| database.maintenance().check())?;
        Ok(report.damages.into_iter().map(|damage| damage.what).collect())
    }

    /// Rewrites the log without what nobody needs; returns the bytes that were freed.
    fn compact(&self, py: Python<'_>) -> PyResult<u64> {
        self.embedded(py, |database| database.maintenance().compact())
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("Database({:?}{state})", self.location)
    }
}
