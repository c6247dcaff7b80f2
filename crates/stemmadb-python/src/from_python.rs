//! Python objects as values: JSON types here, everything else by `stemmadb._convert.encode`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use stemmadb::{DEPTH_MAX, DocumentId, Error, Number, Object, Revision, Value};

use crate::errors::{Raise, raised};
use crate::to_python::Meta;

/// Why an object has no value: an exception, or an error with the path to the object, innermost first.
enum Unstorable {
    Raised(PyErr),
    Found(Vec<String>, Error),
}

impl From<PyErr> for Unstorable {
    fn from(error: PyErr) -> Self {
        Unstorable::Raised(error)
    }
}

impl Unstorable {
    fn new(error: Error) -> Self {
        Unstorable::Found(Vec::new(), error)
    }

    fn within(self, step: impl FnOnce() -> String) -> Self {
        match self {
            Unstorable::Found(mut path, error) => {
                path.push(step());
                Unstorable::Found(path, error)
            }
            raised => raised,
        }
    }

    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Unstorable::Raised(error) => error,
            Unstorable::Found(path, error) if path.is_empty() => raised(py, &error),
            Unstorable::Found(mut path, error) => {
                path.reverse();
                raised(py, &error.within(format_args!("at `{}`", path.join("."))))
            }
        }
    }
}

/// The value of an object.
///
/// # Errors
/// `Invalid`, with the path to what can't be stored.
pub(crate) fn value(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    convert(object, 0).map_err(|error| error.into_exception(object.py()))
}

fn convert(object: &Bound<'_, PyAny>, depth: usize) -> Result<Value, Unstorable> {
    if let Ok(text) = object.cast_exact::<PyString>() {
        return string(text);
    }
    if object.is_exact_instance_of::<PyInt>() {
        return integer(object);
    }
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return double(number.value());
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(truth) = object.cast_exact::<PyBool>() {
        return Ok(Value::Bool(truth.is_true()));
    }
    if depth > DEPTH_MAX {
        let error = Error::invalid(format!("more than {DEPTH_MAX} lists and dicts within each other"));
        return Err(Unstorable::new(error.with_hint("does an object contain itself?")));
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        return self::object(dict, depth).map(Value::Object);
    }
    if let Ok(list) = object.cast::<PyList>() {
        return array(list.iter(), depth);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return array(tuple.iter(), depth);
    }
    let encoded = encoded(object)?;
    if encoded.is(object.py().NotImplemented()) {
        let class = object.get_type().qualname()?;
        let error = Error::invalid(format!("an object of the class `{class}` can't be stored"));
        return Err(Unstorable::new(error.with_hint("convert it, or say how with `stemmadb.register`")));
    }
    convert(&encoded, depth + 1)
}

/// What the package stores for an object that is not of a JSON type.
fn encoded<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ENCODE.import(object.py(), "stemmadb._convert", "encode")?.call1((object,))
}

fn string(text: &Bound<'_, PyString>) -> Result<Value, Unstorable> {
    match text.to_str() {
        Ok(text) => Ok(Value::String(text.to_owned())),
        Err(_) => Err(Unstorable::new(Error::invalid("a string has half of a surrogate pair, which is not Unicode"))),
    }
}

fn integer(object: &Bound<'_, PyAny>) -> Result<Value, Unstorable> {
    if let Ok(signed) = object.extract::<i64>() {
        return Ok(Value::from(signed));
    }
    match object.extract::<u64>() {
        Ok(unsigned) => Ok(Value::from(unsigned)),
        Err(_) => Err(Unstorable::new(
            Error::invalid("an integer is outside -2^63 to 2^64 - 1").with_hint("store it as a float or a string"),
        )),
    }
}

fn double(number: f64) -> Result<Value, Unstorable> {
    let number = Number::from_f64(number).ok_or_else(|| {
        let error = Error::invalid(format!("{number} is not a JSON number"));
        Unstorable::new(error.with_hint("store None instead"))
    })?;
    Ok(Value::Number(number))
}

fn array<'py>(elements: impl Iterator<Item = Bound<'py, PyAny>>, depth: usize) -> Result<Value, Unstorable> {
    let mut array = Vec::with_capacity(elements.size_hint().0);
    for (position, element) in elements.enumerate() {
        array.push(convert(&element, depth + 1).map_err(|error| error.within(|| position.to_string()))?);
    }
    Ok(Value::Array(array))
}

fn object(dict: &Bound<'_, PyDict>, depth: usize) -> Result<Object, Unstorable> {
    let mut object = Object::new();
    for (name, value) in dict.iter() {
        let Ok(name) = name.cast::<PyString>() else {
            let error = Error::invalid(format!("the key {name} of a dict is not a string"));
            return Err(Unstorable::new(error.with_hint("names of fields are strings: convert the keys with str()")));
        };
        let Ok(name) = name.to_str() else {
            return Err(Unstorable::new(Error::invalid("the name of a field is not Unicode")));
        };
        object.insert(name, convert(&value, depth + 1).map_err(|error| error.within(|| name.to_owned()))?);
    }
    Ok(object)
}

/// A document that a program gives: a `dict`, a `Document`, or an object of a model.
pub(crate) struct Given {
    /// The id that it names, if it names one.
    pub(crate) id: Option<DocumentId>,
    /// The revision that was read, if it was.
    pub(crate) revision: Option<Revision>,
    pub(crate) body: Value,
}

/// Reads a document that a program gives. In a `dict`, `_id` and `_rev` are the id and the revision, and not part of
/// the body.
///
/// # Errors
/// `Invalid` if it is none.
pub(crate) fn given(object: &Bound<'_, PyAny>) -> PyResult<Given> {
    static SPLIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    if !object.is_instance_of::<PyDict>() {
        // A model: its id, and a dict.
        let split = SPLIT.import(py, "stemmadb._convert", "split")?.call1((object,))?;
        let (id, body): (Option<String>, Bound<'_, PyAny>) = split.extract()?;
        let id = id.map(DocumentId::new).transpose().or_raise(py)?;
        return Ok(Given { id, revision: None, body: value(&body)? });
    }
    let (mut id, mut revision) = (None, None);
    if !object.is_exact_instance_of::<PyDict>()
        && let Ok(meta) = object.getattr(intern!(py, "_meta"))
        && let Ok(meta) = meta.cast::<Meta>()
    {
        (id, revision) = (Some(meta.get().id.clone()), Some(meta.get().revision));
    }
    let mut body = value(object)?;
    if let Some(fields) = body.as_object_mut() {
        if fields.contains("_id")
            && let Some(named) = fields.remove("_id")
        {
            let named = named.as_str().ok_or_else(|| Error::invalid("`_id` is not a string")).or_raise(py)?;
            id = Some(DocumentId::new(named).or_raise(py)?);
        }
        if fields.contains("_rev")
            && let Some(named) = fields.remove("_rev")
        {
            let named = named.as_str().ok_or_else(|| Error::invalid("`_rev` is not a string")).or_raise(py)?;
            revision = Some(named.parse().or_raise(py)?);
        }
    }
    Ok(Given { id, revision, body })
}
