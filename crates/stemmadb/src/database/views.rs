//! Views other than typed ones: declared as JSON, or by functions given at run time: [`Database::views`].

use std::sync::Arc;

use serde::Serialize;

use super::Database;
use crate::Result;
use crate::value::Value;
use crate::view::{DeclaredView, OpenView, ProgramView, ViewProgram};

/// Operations on views. Made by [`Database::views`]; cheap. [`Database::view`] opens a view written in Rust.
#[derive(Debug, Clone, Copy)]
pub struct Views<'a> {
    database: &'a Database,
}

impl<'a> Views<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Views { database }
    }

    /// Stores a view's JSON definition (see [`DeclaredView`]) in a design document under `name`, and opens the view.
    ///
    /// # Errors
    /// `Invalid` if the definition is wrong; `Conflict` if the view's keys must be unique and documents share one.
    pub fn define<D: Serialize + ?Sized>(&self, name: &str, definition: &D) -> Result<OpenView<DeclaredView>> {
        self.database.handle.views.define(name, &Value::from_serialize(definition)?)
    }

    /// Opens the view whose definition is stored under `name`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Invalid` if its definition is wrong.
    pub fn open(&self, name: &str) -> Result<OpenView<DeclaredView>> {
        self.database.handle.views.declared(name)
    }

    /// Lists the stored view definitions by name.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn definitions(&self) -> Result<Vec<(String, Value)>> {
        self.database.handle.views.definitions()
    }

    /// Opens a view whose functions are given at run time; see [`ViewProgram`].
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if the rows of an older version can't be removed.
    pub fn open_program(&self, program: Arc<dyn ViewProgram>) -> Result<ProgramView> {
        self.database.handle.views.open_program(program)
    }

    /// Lists the names of all views that have stored rows, sorted.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn names(&self) -> Result<Vec<String>> {
        self.database.handle.views.names()
    }

    /// Removes a view: its rows, and its definition if one is stored.
    ///
    /// # Errors
    /// `NotFound` if there is no such view; `Unavailable` if the tree can't be written.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.database.handle.views.forget(name)
    }
}
