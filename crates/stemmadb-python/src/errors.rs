//! Errors: exceptions of the package by the kind of an error.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use stemmadb::Error;
use stemmadb_client::bindings::error_name;

/// The result of everything that only the library can fail.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Calls `make(name, message, hint)` of the package's module of exceptions.
fn exception(py: Python<'_>, name: &str, message: &str, hint: Option<&str>) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = MAKE.import(py, "stemmadb._errors", "make").and_then(|make| make.call1((name, message, hint)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The exception of an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error_name(error.kind()), error.message(), error.hint())
}

/// The exception for an object of this process that a forked child uses.
pub(crate) fn forked() -> PyErr {
    Python::attach(|py| {
        exception(
            py,
            "Forked",
            "this database was opened before the process forked, and belongs to the parent",
            Some("open it after the fork; with multiprocessing, use the start method `spawn` or open it in the worker"),
        )
    })
}

/// Converts errors of the library to exceptions.
pub(crate) trait Raise<T> {
    /// Returns the exception of an error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raise<T> for Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error))
    }
}

/// A lock that a panicking thread left.
pub(crate) fn poisoned() -> PyErr {
    PyRuntimeError::new_err("another thread failed while it used this object")
}
