//! The face of views.

use std::sync::Arc;

use serde::Serialize;

use super::Database;
use crate::Result;
use crate::value::Value;
use crate::view::{DeclaredView, OpenView, ProgramView, View, ViewProgram};

impl Database {
    /// A view: a summary of documents that is kept, asked for by ranges of keys. Costs nothing but for the first time: its rows are
    /// made when it is first asked, and from then on brought up to date with what was written since.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if what an older version left can't be removed.
    pub fn view<V: View>(&self, view: V) -> Result<OpenView<V>> {
        self.handle.views.open(view)
    }

    /// A view that is told as JSON (see [`DeclaredView`]), and written down in a design document under `name`.
    ///
    /// # Errors
    /// `Invalid` if the definition is wrong; `Conflict` if it is to be unique and documents share a key.
    pub fn define_view<D: Serialize + ?Sized>(&self, name: &str, definition: &D) -> Result<OpenView<DeclaredView>> {
        self.handle.views.define(name, &Value::from_serialize(definition)?)
    }

    /// The view whose definition is written down under `name`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Invalid` if its definition is wrong.
    pub fn declared_view(&self, name: &str) -> Result<OpenView<DeclaredView>> {
        self.handle.views.declared(name)
    }

    /// Names and definitions of the views that are written down.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn declared_views(&self) -> Result<Vec<(String, Value)>> {
        self.handle.views.definitions()
    }

    /// A view whose functions are given at run time: see [`ViewProgram`].
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if what an older version left can't be removed.
    pub fn program_view(&self, program: Arc<dyn ViewProgram>) -> Result<ProgramView> {
        self.handle.views.open_program(program)
    }

    /// The names of all views that rows are kept of, in order.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn view_names(&self) -> Result<Vec<String>> {
        self.handle.views.names()
    }

    /// Forgets a view: its rows, and its definition if one is written down.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Unavailable` if the tree can't be written.
    pub fn drop_view(&self, name: &str) -> Result<()> {
        self.handle.views.forget(name)
    }
}
