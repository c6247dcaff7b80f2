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

/// See `docs/decisions/0024-allocator.md`.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that jemalloc reads when it is loaded, those of the command: freed memory is returned within a second.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "jemalloc reads its options from the symbol of this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 63] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:262144\0";

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
