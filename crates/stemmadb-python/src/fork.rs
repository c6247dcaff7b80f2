//! Fork safety: what was opened before a fork is neither used nor dropped in the child.
//!
//! A database has threads, which a child doesn't have, and an open log, which both processes would write. Each object
//! remembers the generation of its process, which [`after_fork`] increases in a child: Python calls it.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors::forked;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Something that belongs to the process that made it. In a forked child it can't be used, and is leaked.
pub(crate) struct OfProcess<T> {
    generation: u32,
    /// Only `None` while it is dropped.
    inner: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(inner: T) -> Self {
        OfProcess { generation: GENERATION.load(Ordering::Relaxed), inner: Some(inner) }
    }

    fn is_forked(&self) -> bool {
        self.generation != GENERATION.load(Ordering::Relaxed)
    }

    /// The object.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.inner.as_ref().filter(|_| !self.is_forked()).ok_or_else(forked)
    }

    /// The object, to change it.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        let is_forked = self.is_forked();
        self.inner.as_mut().filter(|_| !is_forked).ok_or_else(forked)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.inner.take());
        }
    }
}

/// Called by Python in a forked child.
#[pyfunction]
#[pyo3(name = "_after_fork")]
pub(crate) fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
