//! The native part of the Python package `stemmadb`: its classes, and conversions between Python objects and documents.
//!
//! What Python can say as well is Python, in `python/stemmadb`: exceptions, models, frames, and the class `Database`
//! with the methods of a mapping. Every call that may wait releases the interpreter's lock.

mod arguments;
mod arrow;
mod arrow_read;
mod columns;
mod database;
mod errors;
mod feeds;
mod find;
mod fork;
mod from_python;
mod to_python;
mod transaction;
mod views;
mod write;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _stemmadb {
    #[pymodule_export]
    use super::database::Database;
    #[pymodule_export]
    use super::feeds::{Changes, Delta, PyChange, Watch};
    #[pymodule_export]
    use super::find::{Find, Groups, Rows};
    #[pymodule_export]
    use super::fork::after_fork;
    #[pymodule_export]
    use super::to_python::Meta;
    #[pymodule_export]
    use super::transaction::{PySnapshot, Transaction};
    #[pymodule_export]
    use super::views::View;
}
