//! Materialized views that are declared as JSON.

use std::ops::Bound as RangeBound;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use stemmadb::{Error, Value};
use stemmadb_client::{AnyView, AnyViewQuery};

use crate::errors::{Raise, Result};
use crate::fork::OfProcess;
use crate::{from_python, to_python};

/// A materialized view: rows by key, which are updated when they are asked for. Made by `Database.view`.
///
/// Rows are chosen by `key`, `keys`, `prefix` (the first elements of keys that are lists), or from `start` up to, but
/// without, `end`.
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct View {
    view: OfProcess<AnyView>,
    name: String,
}

/// Which rows are chosen.
struct Choice<'a, 'py> {
    key: Option<&'a Bound<'py, PyAny>>,
    keys: Option<&'a Bound<'py, PyAny>>,
    prefix: Option<&'a Bound<'py, PyAny>>,
    start: Option<&'a Bound<'py, PyAny>>,
    end: Option<&'a Bound<'py, PyAny>>,
    descending: bool,
    limit: Option<u64>,
    skip: Option<u64>,
}

impl View {
    pub(crate) fn new(view: AnyView, name: &str) -> Self {
        View { view: OfProcess::new(view), name: name.to_owned() }
    }

    fn query(&self, py: Python<'_>, choice: &Choice<'_, '_>) -> PyResult<AnyViewQuery> {
        let mut query = self.view.get()?.query();
        let count = [choice.key, choice.keys, choice.prefix, choice.start.or(choice.end)].iter().flatten().count();
        if count > 1 {
            let error = Error::invalid("rows of a view are chosen in several ways");
            return Err(error.with_hint("give one of key, keys, prefix, or start and end")).or_raise(py);
        }
        if let Some(key) = choice.key {
            query = query.key(from_python::value(key)?);
        }
        if let Some(keys) = choice.keys {
            let keys = keys.try_iter()?.map(|key| from_python::value(&key?)).collect::<PyResult<Vec<_>>>()?;
            query = query.keys(keys);
        }
        if let Some(prefix) = choice.prefix {
            query = query.prefix(from_python::value(prefix)?);
        }
        if choice.start.is_some() || choice.end.is_some() {
            let bound = |key: Option<&Bound<'_, PyAny>>| key.map(from_python::value).transpose();
            let start = bound(choice.start)?.map_or(RangeBound::Unbounded, RangeBound::Included);
            let end = bound(choice.end)?.map_or(RangeBound::Unbounded, RangeBound::Excluded);
            query = query.range((start, end));
        }
        if choice.descending {
            query = query.descending();
        }
        if let Some(limit) = choice.limit {
            query = query.limit(limit);
        }
        if let Some(skip) = choice.skip {
            query = query.skip(skip);
        }
        Ok(query)
    }
}

#[pymethods]
impl View {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns rows in the order of their keys: id, key and value, and with `documents` the document.
    #[pyo3(signature = (*, key=None, keys=None, prefix=None, start=None, end=None, descending=false, limit=None,
                        skip=None, documents=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn rows<'py>(
        &self,
        py: Python<'py>,
        key: Option<&Bound<'py, PyAny>>,
        keys: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        descending: bool,
        limit: Option<u64>,
        skip: Option<u64>,
        documents: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let query = self.query(py, &Choice { key, keys, prefix, start, end, descending, limit, skip })?;
        let query = if documents { query.with_documents() } else { query };
        let rows = py.detach(|| query.rows()).or_raise(py)?;
        let (class, list) = (CLASS.import(py, "stemmadb._types", "ViewRow")?, PyList::empty(py));
        for row in &rows {
            let document = row.document.as_ref().map(|document| to_python::document(py, document)).transpose()?;
            let (key, value) = (to_python::value(py, &row.key)?, to_python::value(py, &row.value)?);
            list.append(class.call1((row.id.as_str(), key, value, document))?)?;
        }
        Ok(list)
    }

    /// Returns the reduction of the chosen rows; `None` if there are none.
    #[pyo3(signature = (*, key=None, keys=None, prefix=None, start=None, end=None))]
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        key: Option<&Bound<'py, PyAny>>,
        keys: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let choice = Choice { key, keys, prefix, start, end, descending: false, limit: None, skip: None };
        let query = self.query(py, &choice)?;
        to_python::value(py, &py.detach(|| query.reduce()).or_raise(py)?.unwrap_or_default())
    }

    /// Returns the reduction for each key, or with `level`, for the first elements of keys that are lists.
    #[pyo3(signature = (*, level=None, key=None, keys=None, prefix=None, start=None, end=None, descending=false,
                        limit=None, skip=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn groups<'py>(
        &self,
        py: Python<'py>,
        level: Option<usize>,
        key: Option<&Bound<'py, PyAny>>,
        keys: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        descending: bool,
        limit: Option<u64>,
        skip: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let query = self.query(py, &Choice { key, keys, prefix, start, end, descending, limit, skip })?;
        let groups: Result<Vec<(Value, Value)>> = py.detach(|| match level {
            Some(level) => query.group_level(level),
            None => query.group(),
        });
        let groups = groups.or_raise(py)?;
        let pair = |(key, value): &(Value, Value)| Ok((to_python::value(py, key)?, to_python::value(py, value)?));
        PyList::new(py, groups.iter().map(pair).collect::<PyResult<Vec<_>>>()?)
    }

    fn __repr__(&self) -> String {
        format!("View({:?})", self.name)
    }
}
