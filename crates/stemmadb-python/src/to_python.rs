//! Documents and values as Python objects, made straight from packed records.
//!
//! The names of fields are strings of a cache: each thread makes one string object for a name, so that a thousand
//! documents share it, and its hash is computed once.

use std::cell::RefCell;
use std::fmt;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use pyo3::{IntoPyObjectExt, intern};
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use stemmadb::{Document, DocumentId, Number, Revision, Sequence, Value};

use crate::errors::Raise;
use crate::write::missing;

/// Entries of the cache of names, a power of two.
const NAME_COUNT: usize = 1024;
/// Longer names are not kept.
const NAME_BYTES_MAX: usize = 64;

/// String objects by their text; a name replaces another that has the same place.
struct NameCache(Vec<Option<Name>>);

struct Name {
    text: Box<str>,
    object: Py<PyString>,
    is_interned: bool,
}

thread_local! {
    static NAMES: RefCell<NameCache> = RefCell::new(NameCache((0..NAME_COUNT).map(|_| None).collect()));
}

impl NameCache {
    /// Runs `make` with this thread's cache; with none while the cache is in use, such as by a finalizer that runs
    /// during a conversion.
    fn with<T>(make: impl FnOnce(Option<&mut NameCache>) -> T) -> T {
        NAMES.with(|names| match names.try_borrow_mut() {
            Ok(mut names) => make(Some(&mut names)),
            Err(_) => make(None),
        })
    }

    fn get<'py>(&mut self, py: Python<'py>, text: &str) -> Bound<'py, PyString> {
        if text.len() > NAME_BYTES_MAX {
            return PyString::new(py, text);
        }
        let place = &mut self.0[place_of(text)];
        match place {
            Some(name) if *name.text == *text => {
                // Names that only one document has are never interned: the interpreter may keep those forever.
                if !name.is_interned {
                    name.object = PyString::intern(py, text).unbind();
                    name.is_interned = true;
                }
                name.object.bind(py).clone()
            }
            _ => {
                let object = PyString::new(py, text);
                *place = Some(Name { text: text.into(), object: object.clone().unbind(), is_interned: false });
                object
            }
        }
    }
}

/// FNV-1a: names are short.
fn place_of(text: &str) -> usize {
    let hash = text
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    (hash >> 20) as usize % NAME_COUNT
}

/// Makes Python objects of what a deserializer reads.
struct Objects<'py, 'n> {
    py: Python<'py>,
    names: Option<&'n mut NameCache>,
    /// The dictionary to fill, instead of a new one.
    target: Option<Bound<'py, PyDict>>,
}

impl<'py> Objects<'py, '_> {
    fn name(&mut self, text: &str) -> Bound<'py, PyString> {
        match &mut self.names {
            Some(names) => names.get(self.py, text),
            None => PyString::new(self.py, text),
        }
    }

    fn child(&mut self) -> Objects<'py, '_> {
        Objects { py: self.py, names: self.names.as_deref_mut(), target: None }
    }
}

/// An exception within a deserializer.
fn failed<E: serde::de::Error>(error: PyErr) -> E {
    E::custom(error)
}

impl<'de, 'py> DeserializeSeed<'de> for Objects<'py, '_> {
    type Value = Bound<'py, PyAny>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, 'py> Visitor<'de> for Objects<'py, '_> {
    type Value = Bound<'py, PyAny>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(self.py.None().into_bound(self.py))
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<Self::Value, E> {
        truth.into_bound_py_any(self.py).map_err(failed)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
        number.into_bound_py_any(self.py).map_err(failed)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
        number.into_bound_py_any(self.py).map_err(failed)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Self::Value, E> {
        number.into_bound_py_any(self.py).map_err(failed)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(PyString::new(self.py, text).into_any())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<Self::Value, A::Error> {
        let list = PyList::empty(self.py);
        while let Some(element) = elements.next_element_seed(self.child())? {
            list.append(element).map_err(failed)?;
        }
        Ok(list.into_any())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Self::Value, A::Error> {
        let dict = self.target.take().unwrap_or_else(|| PyDict::new(self.py));
        while let Some(name) = fields.next_key_seed(FieldName(&mut self))? {
            let value = fields.next_value_seed(self.child())?;
            dict.set_item(name, value).map_err(failed)?;
        }
        Ok(dict.into_any())
    }
}

/// Makes the string object of a field's name.
struct FieldName<'o, 'py, 'n>(&'o mut Objects<'py, 'n>);

impl<'de, 'py> DeserializeSeed<'de> for FieldName<'_, 'py, '_> {
    type Value = Bound<'py, PyString>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, 'py> Visitor<'de> for FieldName<'_, 'py, '_> {
    type Value = Bound<'py, PyString>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.name(text))
    }
}

/// A value as a Python object.
pub(crate) fn value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    NameCache::with(|names| value_with(&mut Objects { py, names, target: None }, value))
}

fn value_with<'py>(objects: &mut Objects<'py, '_>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    let py = objects.py;
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(truth) => truth.into_bound_py_any(py),
        Value::Number(number) => self::number(py, *number),
        Value::String(text) => Ok(PyString::new(py, text).into_any()),
        Value::Array(elements) => {
            let list = PyList::empty(py);
            for element in elements {
                list.append(value_with(objects, element)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(object) => {
            let dict = PyDict::new(py);
            for (name, value) in object.iter() {
                let name = objects.name(name);
                dict.set_item(name, value_with(objects, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// A number as an `int` or a `float`.
pub(crate) fn number(py: Python<'_>, number: Number) -> PyResult<Bound<'_, PyAny>> {
    match (number.as_i64(), number.as_u64()) {
        (Some(signed), _) => signed.into_bound_py_any(py),
        (None, Some(unsigned)) => unsigned.into_bound_py_any(py),
        (None, None) => number.as_f64().into_bound_py_any(py),
    }
}

/// What a document has besides its body.
#[pyclass(frozen, module = "stemmadb._stemmadb")]
pub(crate) struct Meta {
    pub(crate) id: DocumentId,
    pub(crate) revision: Revision,
    sequence: Sequence,
    deleted: bool,
}

#[pymethods]
impl Meta {
    #[new]
    fn new(py: Python<'_>, id: &str, revision: &str, sequence: u64, deleted: bool) -> PyResult<Self> {
        let (id, revision) = (DocumentId::new(id).or_raise(py)?, revision.parse::<Revision>().or_raise(py)?);
        Ok(Meta { id, revision, sequence: Sequence::new(sequence), deleted })
    }

    #[getter]
    fn id(&self) -> &str {
        self.id.as_str()
    }

    #[getter]
    fn revision(&self) -> String {
        self.revision.to_string()
    }

    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    #[getter]
    fn deleted(&self) -> bool {
        self.deleted
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let arguments = (self.id.as_str(), self.revision.to_string(), self.sequence.get(), self.deleted);
        (py.get_type::<Meta>(), arguments).into_pyobject(py)
    }
}

/// A document as an object of the package's class `Document`, a `dict`.
pub(crate) fn document<'py>(py: Python<'py>, document: &Document) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let object = CLASS.import(py, "stemmadb._document", "Document")?.call0()?;
    let target = object.cast::<PyDict>().map_err(PyErr::from)?.clone();
    let filled = NameCache::with(|names| document.deserialize_with(Objects { py, names, target: Some(target) }));
    filled.or_raise(py)?;
    let meta = Meta {
        id: document.id().clone(),
        revision: *document.revision(),
        sequence: document.sequence(),
        deleted: document.is_deleted(),
    };
    object.setattr(intern!(py, "_meta"), Bound::new(py, meta)?)?;
    Ok(object)
}

/// `default`, or None.
pub(crate) fn or_none<'py>(py: Python<'py>, default: Option<Bound<'py, PyAny>>) -> Bound<'py, PyAny> {
    default.unwrap_or_else(|| py.None().into_bound(py))
}

/// The document that was read, or `default`, or None.
pub(crate) fn document_or<'py>(
    py: Python<'py>,
    found: Option<Document>,
    default: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match found {
        Some(found) => document(py, &found),
        None => Ok(or_none(py, default)),
    }
}

/// The document `id` that was read.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn existing<'py>(py: Python<'py>, id: &str, found: Option<Document>) -> PyResult<Bound<'py, PyAny>> {
    document(py, &found.ok_or_else(|| missing(id)).or_raise(py)?)
}

/// A document, or an object of a model that a function of the package makes of it.
pub(crate) fn document_as<'py>(
    py: Python<'py>,
    found: &Document,
    convert: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let made = document(py, found)?;
    match convert {
        Some(convert) => convert.bind(py).call1((made,)),
        None => Ok(made),
    }
}
