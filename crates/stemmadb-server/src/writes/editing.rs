//! Optimistic transactions of a user: reads of what the user may read, and validated writes.

use std::cell::Cell;

use stemmadb::{Aggregation, Attempt, Document, Edit, Error, Find, Object, Query, Result, Revision, Value};

use super::departures::edit_in;
use super::edits::{needs_validation, prepare_edits, resolve};
use super::write::WriteOptions;
use crate::auth::{Restriction, narrowed, readable};
use crate::design::Validators;
use crate::directory::ServedDatabase;
use crate::error::library_error;

/// An attempt at a transaction whose edits are validated, and which reads what the user may read.
pub(crate) struct Editing<'a, 'b> {
    attempt: &'a mut Attempt<'b>,
    served: &'a ServedDatabase,
    options: &'a WriteOptions,
    readable: Option<&'a Restriction>,
    writes_design: &'a Cell<bool>,
}

/// Runs an optimistic transaction of a user, who may read the documents of `readable`, and write those of the options.
///
/// # Errors
/// Those of `work` and of [`stemmadb::Database::optimistic`].
pub(crate) fn edit_optimistically<T>(
    served: &ServedDatabase,
    options: &WriteOptions,
    readable: Option<&Restriction>,
    mut work: impl FnMut(&mut Editing<'_, '_>) -> Result<T>,
) -> Result<T> {
    let writes_design = Cell::new(false);
    let database = served.database().with_durability(options.durability);
    let result = options.validator.user.writing(|| {
        database.optimistic(|attempt| {
            let mut editing = Editing { attempt, served, options, readable, writes_design: &writes_design };
            work(&mut editing)
        })
    })?;
    if writes_design.get() {
        served.extension::<Validators>().invalidate();
    }
    Ok(result)
}

impl Editing<'_, '_> {
    /// Reads a document.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub(crate) fn get(&mut self, id: &str) -> Result<Option<Document>> {
        readable(self.readable, self.attempt.get(id)?).map_err(|failure| library_error(&failure))
    }

    /// Runs a query.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub(crate) fn find(&mut self, query: Query) -> Result<Find> {
        self.attempt.find(narrowed(self.readable, query))
    }

    /// Computes an aggregation.
    ///
    /// # Errors
    /// Those of [`Aggregation::rows`].
    pub(crate) fn aggregate(&mut self, aggregation: Aggregation) -> Result<Vec<(Value, Object)>> {
        self.attempt.aggregate(&match self.readable {
            Some(readable) => aggregation.narrowed(readable.selector()),
            None => aggregation,
        })
    }

    /// Validates and applies an edit.
    ///
    /// # Errors
    /// Those of the edit; `Forbidden` if the user may not make it.
    pub(crate) fn edit(&mut self, edit: Edit) -> Result<Revision> {
        self.writes_design.set(self.writes_design.get() || edit.id().is_design());
        if !needs_validation(self.served, std::slice::from_ref(&edit), &self.options.validator) {
            return self.attempt.edit(edit);
        }
        // As this attempt sees the document.
        let (attempt, validator) = (&mut *self.attempt, &self.options.validator);
        let edit = resolve(self.served, edit, validator, |id| attempt.get(id))?;
        let prepared = prepare_edits(self.served, vec![edit], self.options);
        let prepared = prepared.map_err(|failure| library_error(&failure))?;
        let edit = prepared.into_iter().next().ok_or_else(|| Error::internal("an edit has no result"))?;
        edit_in(self.served, self.attempt, edit?)
    }

    /// Writes a `_local` document with the transaction.
    ///
    /// # Errors
    /// `Invalid` if the id or the body is malformed.
    pub(crate) fn put_local(&mut self, id: &str, body: &Value) -> Result<()> {
        self.attempt.put_local(id, body)
    }
}
