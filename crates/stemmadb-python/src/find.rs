//! Queries, their rows, and groups.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};
use stemmadb::aggregation::GroupPaths;
use stemmadb::{Document, DocumentId, Error, Object, Patch, Query, Selector, Sort, Summary, Value, field};
use stemmadb_client::bindings::{Reader, ReadyFind};
use stemmadb_client::{AnyDatabase, AnyFind, AnyRows};

use crate::columns::{Column, Data};
use crate::errors::{Raise, Result, poisoned};
use crate::fork::OfProcess;
use crate::{arrow, from_python, to_python};

/// Rows that are read at once, at first and at most.
const FIRST_ROWS: usize = 16;
const ROWS_MAX: usize = 512;

/// A query. It is run when it is iterated over, or by one of its methods; each run reads the newest state.
///
/// >>> recent = db.find({"year": {"$gt": 1960}}, sort="-year")
/// >>> recent.count()
/// 2
/// >>> [book["title"] for book in recent]
/// ['Dune', 'Solaris']
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Find {
    reader: OfProcess<Reader>,
    query: Query,
    has_fields: bool,
    /// Makes an object of a model of a document.
    convert: Option<Py<PyAny>>,
}

/// The selector of the arguments of `find`.
pub(crate) fn selector(
    py: Python<'_>,
    selector: Option<&Bound<'_, PyAny>>,
    equalities: Option<&Bound<'_, PyDict>>,
) -> PyResult<Selector> {
    let given = match selector {
        None => None,
        Some(selector) => Some(Selector::parse(&from_python::value(selector)?).or_raise(py)?),
    };
    let Some(equalities) = equalities.filter(|equalities| !equalities.is_empty()) else {
        return Ok(given.unwrap_or_else(Selector::everything));
    };
    let mut all = given;
    for (name, value) in equalities.iter() {
        let name = name.cast::<PyString>().map_err(PyErr::from)?;
        let condition = condition(name.to_str()?, from_python::value(&value)?).or_raise(py)?;
        all = Some(match all {
            Some(all) => all.and(condition),
            None => condition,
        });
    }
    Ok(all.unwrap_or_else(Selector::everything))
}

/// The operators that a keyword can end with.
const OPERATORS: [&str; 15] =
    ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists", "type", "size", "mod", "regex", "all", "beginsWith"];

/// `year=1961`, `address__city="Oslo"` and `year__gt=1960` as conditions.
fn condition(keyword: &str, value: Value) -> Result<Selector> {
    let (path, operator) = match keyword.rsplit_once("__") {
        Some((path, operator)) if OPERATORS.contains(&operator) && !path.is_empty() => (path, operator),
        _ => (keyword, "eq"),
    };
    let path = path.replace("__", ".");
    let at = || field(&path);
    let selector = match operator {
        "eq" => at().eq(value),
        "ne" => at().ne(value),
        "gt" => at().gt(value),
        "gte" => at().ge(value),
        "lt" => at().lt(value),
        "lte" => at().le(value),
        _ => {
            let test: Object = [(format!("${operator}"), value)].into_iter().collect();
            return Selector::parse(&Value::Object([(path, Value::Object(test))].into_iter().collect()));
        }
    };
    selector.check()?;
    Ok(selector)
}

/// `"year"`, `"-year"`, a list of such, or Mango's form.
fn sort_order(sort: &Bound<'_, PyAny>) -> PyResult<Sort> {
    let py = sort.py();
    let key = |key: &Bound<'_, PyAny>| -> PyResult<Value> {
        let Ok(path) = key.cast::<PyString>() else { return from_python::value(key) };
        Ok(match path.to_str()?.strip_prefix('-') {
            Some(path) => Value::Object([(path, Value::from("desc"))].into_iter().collect()),
            None => Value::from(path.to_str()?),
        })
    };
    let keys = if sort.is_instance_of::<PyList>() || sort.is_instance_of::<PyTuple>() {
        sort.try_iter()?.map(|entry| key(&entry?)).collect::<PyResult<Vec<_>>>()?
    } else {
        vec![key(sort)?]
    };
    Sort::parse(&Value::Array(keys)).or_raise(py)
}

/// A string, or several.
fn strings(given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    match given.cast::<PyString>() {
        Ok(one) => Ok(vec![one.to_str()?.to_owned()]),
        Err(_) => given.extract(),
    }
}

/// The function that makes objects of the model `into`.
pub(crate) fn converter(into: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    static CONVERTER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Some(into) = into else { return Ok(None) };
    let converter = CONVERTER.import(into.py(), "stemmadb._convert", "converter")?.call1((into,))?;
    Ok(Some(converter.unbind()))
}

/// A time in seconds.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let wrong = || Error::invalid(format!("{seconds} is no time in seconds"));
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong()).or_raise(py)
}

impl Find {
    pub(crate) fn new(
        reader: Reader,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
        equalities: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let query = Query::new(selector(py, given, equalities)?);
        Ok(Find { reader: OfProcess::new(reader), query, has_fields: false, convert: None })
    }

    /// The query with the keywords of `find`.
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    pub(crate) fn refined(
        mut self,
        py: Python<'_>,
        sort: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        skip: Option<u64>,
        fields: Option<&Bound<'_, PyAny>>,
        after: Option<&str>,
        into: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        if let Some(sort) = sort {
            self.query = self.query.order(sort_order(sort)?);
        }
        if let Some(limit) = limit {
            self.query = self.query.limit(limit);
        }
        if let Some(skip) = skip {
            self.query = self.query.skip(skip);
        }
        if let Some(fields) = fields {
            self.query = self.query.fields(strings(fields)?);
            self.has_fields = true;
        }
        if let Some(after) = after {
            self.query = self.query.after(after);
        }
        if let Some(seconds) = timeout {
            self.query = self.query.time_limit(duration(py, seconds)?);
        }
        if into.is_some() {
            self.convert = converter(into)?;
        }
        Ok(self)
    }

    fn copied(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Find {
            reader: OfProcess::new(self.reader.get()?.clone()),
            query: self.query.clone(),
            has_fields: self.has_fields,
            convert: self.convert.as_ref().map(|convert| convert.clone_ref(py)),
        })
    }

    /// Runs something with the query, without the interpreter's lock.
    fn run<T: Send>(&self, py: Python<'_>, work: impl FnOnce(ReadyFind) -> Result<T> + Send) -> PyResult<T> {
        let reader = self.reader.get()?;
        py.detach(|| work(reader.find(self.query.clone())?)).or_raise(py)
    }

    fn ask<T: Send>(&self, py: Python<'_>, work: impl FnOnce(AnyFind) -> Result<T> + Send) -> PyResult<T> {
        self.run(py, |find| work(find.find()?))
    }

    /// The rows as columns.
    fn table(&self, py: Python<'_>) -> PyResult<Column> {
        let has_fields = self.has_fields;
        self.run(py, |find| match find {
            ReadyFind::Rows(rows) => Column::of_documents(rows.into_iter().map(Ok)),
            ReadyFind::Find(find) if has_fields => Column::of_values(find.values()?),
            ReadyFind::Find(find) => Column::of_documents(find.run()?),
        })
    }

    fn database(&self, py: Python<'_>) -> PyResult<&AnyDatabase> {
        match self.reader.get()? {
            Reader::Database(database) => Ok(database),
            _ => Err(Error::invalid("only a query of the database itself can write")).or_raise(py),
        }
    }

    pub(crate) fn rows(&self, py: Python<'_>) -> PyResult<Rows> {
        let has_fields = self.has_fields;
        let (mut read, mut failure) = (VecDeque::new(), None);
        let source = self.run(py, |find| {
            let mut source = match find {
                ReadyFind::Rows(rows) => RowSource::Read(rows.into_iter()),
                ReadyFind::Find(find) if has_fields => RowSource::Values(find.values()?),
                ReadyFind::Find(find) => RowSource::Documents(find.run()?),
            };
            source.fill(&mut read, &mut failure, FIRST_ROWS);
            Ok(source)
        })?;
        Ok(Rows {
            is_finished: read.len() < FIRST_ROWS && failure.is_none(),
            source: Mutex::new(OfProcess::new(source)),
            read,
            failure,
            count: FIRST_ROWS,
            convert: self.convert.as_ref().map(|convert| convert.clone_ref(py)),
        })
    }

    /// The ids of the documents, as rows.
    pub(crate) fn id_rows(&self, py: Python<'_>) -> PyResult<Rows> {
        let rows = self.ask(py, AnyFind::ids)?;
        let source = Mutex::new(OfProcess::new(RowSource::Ids(rows)));
        Ok(Rows { source, read: VecDeque::new(), failure: None, is_finished: false, count: FIRST_ROWS, convert: None })
    }

    fn aggregation(&self, py: Python<'_>, groups: &[String], figures: &Bound<'_, PyDict>) -> PyResult<Value> {
        let mut aggregation = Object::new();
        aggregation.insert("selector", self.query.selector().to_value().or_raise(py)?);
        if !groups.is_empty() {
            aggregation.insert("group_by", groups.iter().map(String::as_str).map(Value::from).collect::<Vec<_>>());
        }
        let mut named = Object::new();
        for (name, figure) in figures.iter() {
            // `("sum", "price")` is written as an object in JSON.
            let figure = match figure.cast::<PyTuple>() {
                Ok(pair) => {
                    let (function, path): (String, String) = pair.extract()?;
                    Value::Object([(function, Value::from(path))].into_iter().collect())
                }
                Err(_) => from_python::value(&figure)?,
            };
            named.insert(name.extract::<String>()?, figure);
        }
        aggregation.insert("figures", Value::Object(named));
        Ok(Value::Object(aggregation))
    }
}

#[pymethods]
impl Find {
    fn __iter__(&self, py: Python<'_>) -> PyResult<Rows> {
        self.rows(py)
    }

    /// Sorts by a path; descending if it begins with `-`. Takes several as a list.
    fn sort(&self, py: Python<'_>, sort: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copied(py)?.refined(py, Some(sort), None, None, None, None, None, None)
    }

    /// Returns at most `count` rows.
    fn limit(&self, py: Python<'_>, count: u64) -> PyResult<Self> {
        self.copied(py)?.refined(py, None, Some(count), None, None, None, None, None)
    }

    /// Leaves out the first `count` rows.
    fn skip(&self, py: Python<'_>, count: u64) -> PyResult<Self> {
        self.copied(py)?.refined(py, None, None, Some(count), None, None, None, None)
    }

    /// Returns only these paths, as a `dict` for each document.
    #[pyo3(signature = (*paths))]
    fn fields(&self, py: Python<'_>, paths: &Bound<'_, PyTuple>) -> PyResult<Self> {
        self.copied(py)?.refined(py, None, None, None, Some(paths.as_any()), None, None, None)
    }

    /// Returns objects of a dataclass or pydantic model.
    fn into(&self, py: Python<'_>, model: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copied(py)?.refined(py, None, None, None, None, None, Some(model), None)
    }

    /// Adds conditions, as those of `Database.find`.
    #[pyo3(signature = (selector=None, **equalities))]
    fn r#where(
        &self,
        py: Python<'_>,
        selector: Option<&Bound<'_, PyAny>>,
        equalities: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let added = self::selector(py, selector, equalities)?;
        let mut query = self.query.to_value().or_raise(py)?;
        if let Some(object) = query.as_object_mut() {
            object.insert("selector", self.query.selector().clone().and(added).to_value().or_raise(py)?);
        }
        let mut copied = self.copied(py)?;
        copied.query = Query::parse(&query).or_raise(py)?;
        if let (Some(time), ..) = self.query.execution_limits() {
            copied.query = copied.query.time_limit(time);
        }
        Ok(copied)
    }

    /// Returns the first row, or `default` if there is none.
    #[pyo3(signature = (default=None))]
    fn first<'py>(&self, py: Python<'py>, default: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let none = || Ok(to_python::or_none(py, default));
        if self.has_fields {
            let mut rows = self.limit(py, 1)?.rows(py)?;
            return rows.next_row(py)?.map_or_else(none, Ok);
        }
        match self.run(py, ReadyFind::first)? {
            Some(found) => to_python::document_as(py, &found, self.convert.as_ref()),
            None => none(),
        }
    }

    /// Returns the only row. Raises `NotFound` if there is none, and `Invalid` if there are several.
    fn one<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut rows = self.limit(py, 2)?.rows(py)?;
        let first = rows.next_row(py)?.ok_or_else(|| Error::not_found("no document matches")).or_raise(py)?;
        match rows.next_row(py)? {
            None => Ok(first),
            Some(_) => Err(Error::invalid("more than one document matches").with_hint("use first()")).or_raise(py),
        }
    }

    /// Returns all rows as a list.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (mut rows, list) = (self.rows(py)?, PyList::empty(py));
        while let Some(row) = rows.next_row(py)? {
            list.append(row)?;
        }
        Ok(list)
    }

    /// Returns the number of documents that match, whatever the limit. Usually from the index alone.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, ReadyFind::count)
    }

    /// Whether any document matches.
    fn exists(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, ReadyFind::exists)
    }

    /// Returns the ids of the documents.
    fn ids(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.ask(py, |find| find.ids()?.map(|id| Ok(id?.as_str().to_owned())).collect())
    }

    /// Returns the distinct values at a path, in order; `tags[]` stands for the elements of `tags`.
    fn distinct<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python::value(py, &Value::Array(self.ask(py, |find| find.distinct(path))?))
    }

    /// Returns the smallest value at a path, or `None`.
    fn min<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python::value(py, &self.ask(py, |find| find.min(path))?.unwrap_or_default())
    }

    /// Returns the largest value at a path, or `None`.
    fn max<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python::value(py, &self.ask(py, |find| find.max(path))?.unwrap_or_default())
    }

    /// Returns the sum of the numbers at a path.
    fn sum<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python::number(py, self.ask(py, |find| find.sum(path))?)
    }

    /// Returns the average of the numbers at a path, or `None`.
    fn average(&self, py: Python<'_>, path: &str) -> PyResult<Option<f64>> {
        self.ask(py, |find| find.average(path))
    }

    /// Returns count, sum, smallest and largest of the numbers at a path.
    fn summary<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
        summary_object(py, &self.ask(py, |find| find.summary(path))?)
    }

    /// Returns figures of all documents that match, by name.
    ///
    /// >>> db.find().aggregate(n="count", mean=("average", "year"))
    /// {'n': 2, 'mean': 1963.0}
    #[pyo3(signature = (**figures))]
    fn aggregate<'py>(&self, py: Python<'py>, figures: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let aggregation = self.aggregation(py, &[], &figures.cloned().unwrap_or_else(|| PyDict::new(py)))?;
        let reader = self.reader.get()?;
        let mut rows = py.detach(|| reader.aggregate(&aggregation)).or_raise(py)?;
        let (_, figures) = rows.pop().unwrap_or_default();
        to_python::value(py, &Value::Object(figures))
    }

    /// Groups the documents by the values at up to eight paths.
    #[pyo3(signature = (*paths))]
    fn group_by(slf: Bound<'_, Self>, paths: Vec<String>) -> Groups {
        Groups { find: slf.unbind(), paths }
    }

    /// Returns the plan of the query; with `analyze`, after running it, with the rows and times of each step.
    #[pyo3(signature = (*, analyze=false))]
    fn explain<'py>(&self, py: Python<'py>, analyze: bool) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (text, tree) = self.ask(py, |find| match find {
            AnyFind::Embedded(find) => {
                let plan = if analyze { find.explain_analyze() } else { find.explain() }?;
                Ok((plan.to_string(), plan.to_value()))
            }
            AnyFind::Remote(find) => Ok((find.explain()?, Value::Null)),
        })?;
        CLASS.import(py, "stemmadb._types", "Plan")?.call1((text, to_python::value(py, &tree)?))
    }

    /// Changes all documents that match, in one transaction; returns how many of them changed.
    fn update(&self, py: Python<'_>, patch: &Bound<'_, PyAny>) -> PyResult<u64> {
        let patch = Patch::parse(&from_python::value(patch)?).or_raise(py)?;
        let database = self.database(py)?;
        py.detach(|| database.update_where(self.query.clone(), &patch)).or_raise(py)
    }

    /// Deletes all documents that match, in one transaction; returns how many.
    fn delete(&self, py: Python<'_>) -> PyResult<u64> {
        let database = self.database(py)?;
        py.detach(|| database.delete_where(self.query.clone())).or_raise(py)
    }

    /// The rows as an Arrow stream, for libraries that read the Arrow PyCapsule interface.
    ///
    /// Values of several types at one path become JSON text, integers above 2^63 - 1 doubles.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // It may be ignored: consumers convert what they get.
        let _ = requested_schema;
        arrow::stream(py, self.table(py)?)
    }

    /// The rows as columns: name, type, data, and a mask of those that have a value unless all have one.
    fn _columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if let Data::Struct(fields) = self.table(py)?.data {
            for (name, column) in &fields.fields {
                list.append(column_object(py, name, column)?)?;
            }
        }
        Ok(list)
    }

    /// Returns the rows as a `pyarrow.Table`, with the column `_id`.
    fn to_arrow<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf, "to_arrow")
    }

    /// Returns the rows as a `pandas.DataFrame`, with the column `_id`.
    fn to_pandas<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf, "to_pandas")
    }

    /// Returns the rows as a `polars.DataFrame`, with the column `_id`.
    fn to_polars<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf, "to_polars")
    }

    fn _repr_html_<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf, "find_html")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Find({})", self.query.to_value().or_raise(py)?.to_json()))
    }
}

fn frame<'py>(find: Bound<'py, Find>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    let module = find.py().import("stemmadb._frames")?;
    module.getattr(function)?.call1((find,))
}

/// A column for numpy: name, type, data, and a mask.
fn column_object<'py>(py: Python<'py>, name: &str, column: &Column) -> PyResult<Bound<'py, PyTuple>> {
    let mask = column.valid.contains(&false);
    let mask = mask.then(|| PyBytes::new(py, &column.valid.iter().map(|valid| u8::from(*valid)).collect::<Vec<_>>()));
    let (kind, data) = match &column.data {
        Data::Bool(values) => ("bool", values.iter().map(|value| u8::from(*value)).collect::<Vec<u8>>()),
        Data::Int(values) => ("int64", values.iter().flat_map(|value| value.to_ne_bytes()).collect()),
        Data::Float(values) => ("float64", values.iter().flat_map(|value| value.to_ne_bytes()).collect()),
        _ => {
            let list = PyList::empty(py);
            for (row, valid) in column.valid.iter().enumerate() {
                match &column.data {
                    Data::Text(text) | Data::Json(text) if *valid => list.append(PyString::new(py, text.get(row)))?,
                    _ => list.append(to_python::value(py, &column.value(row))?)?,
                }
            }
            return (name, "object", list, None::<u8>).into_pyobject(py);
        }
    };
    (name, kind, PyBytes::new(py, &data), mask).into_pyobject(py)
}

/// A summary of numbers as the package's `Summary`.
fn summary_object<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let number = |number: Option<stemmadb::Number>| {
        number.map_or_else(|| Ok(py.None().into_bound(py)), |number| to_python::number(py, number))
    };
    let class = CLASS.import(py, "stemmadb._types", "Summary")?;
    class.call1((summary.count, number(summary.sum)?, number(summary.min)?, number(summary.max)?))
}

enum RowSource {
    Documents(AnyRows<Document>),
    Values(AnyRows<Value>),
    Ids(AnyRows<DocumentId>),
    Read(std::vec::IntoIter<Document>),
}

enum Row {
    Document(Document),
    Value(Value),
    Id(DocumentId),
}

impl Row {
    fn object<'py>(&self, py: Python<'py>, convert: Option<&Py<PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Row::Document(document) => to_python::document_as(py, document, convert),
            Row::Value(value) => {
                let made = to_python::value(py, value)?;
                convert.map_or(Ok(made.clone()), |convert| convert.bind(py).call1((made,)))
            }
            Row::Id(id) => Ok(PyString::new(py, id.as_str()).into_any()),
        }
    }
}

impl RowSource {
    fn next(&mut self) -> Option<Result<Row>> {
        match self {
            RowSource::Documents(rows) => rows.next().map(|row| row.map(Row::Document)),
            RowSource::Values(rows) => rows.next().map(|row| row.map(Row::Value)),
            RowSource::Ids(rows) => rows.next().map(|row| row.map(Row::Id)),
            RowSource::Read(rows) => rows.next().map(|row| Ok(Row::Document(row))),
        }
    }

    /// Reads up to `count` rows, or up to a failure.
    fn fill(&mut self, read: &mut VecDeque<Row>, failure: &mut Option<Error>, count: usize) {
        while read.len() < count {
            match self.next() {
                Some(Ok(row)) => read.push_back(row),
                Some(Err(error)) => {
                    *failure = Some(error);
                    return;
                }
                None => return,
            }
        }
    }

    fn token(&self) -> Result<Option<String>> {
        match self {
            RowSource::Documents(rows) => rows.token(),
            RowSource::Values(rows) => rows.token(),
            RowSource::Ids(rows) => rows.token(),
            RowSource::Read(_) => Ok(None),
        }
    }
}

/// The rows of a query. Reads ahead up to 512 rows.
#[pyclass(module = "stemmadb._stemmadb")]
pub(crate) struct Rows {
    /// Locked only since Python may share the object between threads: rows are read by one at a time.
    source: Mutex<OfProcess<RowSource>>,
    read: VecDeque<Row>,
    /// What ended the rows after those that were read.
    failure: Option<Error>,
    /// Whether the rows that were read are the last ones.
    is_finished: bool,
    count: usize,
    convert: Option<Py<PyAny>>,
}

impl Rows {
    pub(crate) fn next_row<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Rows that were read ahead are not for a forked child either.
        self.source.get_mut().map_err(|_| poisoned())?.get()?;
        if self.read.is_empty() {
            self.fill(py)?;
        }
        match self.read.pop_front() {
            Some(row) => row.object(py, self.convert.as_ref()).map(Some),
            None => Ok(None),
        }
    }

    fn fill(&mut self, py: Python<'_>) -> PyResult<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure).or_raise(py);
        }
        if self.is_finished {
            return Ok(());
        }
        py.check_signals()?;
        let source = self.source.get_mut().map_err(|_| poisoned())?.get_mut()?;
        let (read, failure, count) = (&mut self.read, &mut self.failure, self.count);
        py.detach(|| source.fill(read, failure, count));
        self.is_finished = self.read.len() < self.count && self.failure.is_none();
        self.count = (self.count * 2).min(ROWS_MAX);
        match self.failure.take_if(|_| self.read.is_empty()) {
            Some(failure) => Err(failure).or_raise(py),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl Rows {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next_row(py)
    }

    /// The token with which `find(after=…)` continues after the last row of a limited query; `None` at the end.
    ///
    /// It is known once all rows of the limit were read.
    #[getter]
    fn token(&mut self, py: Python<'_>) -> PyResult<Option<String>> {
        if !self.read.is_empty() {
            return Ok(None);
        }
        self.source.get_mut().map_err(|_| poisoned())?.get()?.token().or_raise(py)
    }
}

/// The documents of a query, grouped by the values at paths.
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Groups {
    find: Py<Find>,
    paths: Vec<String>,
}

impl Groups {
    fn paths(&self) -> GroupPaths {
        GroupPaths::from(self.paths.as_slice())
    }
}

#[pymethods]
impl Groups {
    /// Returns each value with its number of documents, in the order of the values. For several paths, the value is a
    /// list.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let groups = self.find.get().ask(py, |find| find.group_by(self.paths()).counts())?;
        let rows = groups.iter().map(|(value, count)| Ok((to_python::value(py, value)?, *count)));
        PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns each value with a `Summary` of the numbers at a path.
    fn summaries<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyList>> {
        let groups = self.find.get().ask(py, |find| find.group_by(self.paths()).summaries(path))?;
        let rows =
            groups.iter().map(|(value, summary)| Ok((to_python::value(py, value)?, summary_object(py, summary)?)));
        PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns a `dict` for each group: the values at the paths, and figures by name, such as `n="count"` and
    /// `total=("sum", "price")`.
    ///
    /// The functions are sum, average, min, max, distinct and count_distinct.
    #[pyo3(signature = (**figures))]
    fn aggregate<'py>(&self, py: Python<'py>, figures: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyList>> {
        let find = self.find.get();
        let aggregation = find.aggregation(py, &self.paths, &figures.cloned().unwrap_or_else(|| PyDict::new(py)))?;
        let reader = find.reader.get()?;
        let groups = py.detach(|| reader.aggregate(&aggregation)).or_raise(py)?;
        let list = PyList::empty(py);
        for (value, figures) in &groups {
            let row = PyDict::new(py);
            match (self.paths.as_slice(), value) {
                ([path], value) => row.set_item(path, to_python::value(py, value)?)?,
                (paths, Value::Array(values)) => {
                    for (path, value) in paths.iter().zip(values) {
                        row.set_item(path, to_python::value(py, value)?)?;
                    }
                }
                _ => {}
            }
            for (name, figure) in figures.iter() {
                row.set_item(name, to_python::value(py, figure)?)?;
            }
            list.append(row)?;
        }
        Ok(list)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.counts(py)?.into_any().call_method0(intern!(py, "__iter__"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("{}.group_by({})", self.find.get().__repr__(py)?, self.paths.join(", ")))
    }
}
