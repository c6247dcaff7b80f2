//! Functions of the program that embeds the server, which clients call by name with typed input and output.
//!
//! A function runs on a thread that may block. What it reads and writes by its context is what the caller may read and
//! write: access rules, roles with statements and validation functions apply as to any request.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemmadb::{
    Aggregation, Database, Document, DocumentId, Edit, Error, Find, Object, Patch, Query, Result, Revision, Value,
};
use tokio::sync::Semaphore;

use crate::auth::{Restriction, narrowed, readable};
use crate::directory::{ServedDatabase, check_plain_name};
use crate::error::{Failure, library_error};
use crate::writes::{Editing, WriteOptions, apply_edits, edit_optimistically};

/// The calls that run at the same time: a quarter of the threads that may block.
const CALLS_MAX: usize = crate::http::BLOCKING_THREADS_MAX / 4;
/// The most bytes of a function's name.
const NAME_BYTES_MAX: usize = 128;

type Function = Box<dyn Fn(&FunctionContext, Value) -> Result<Value> + Send + Sync>;

/// The functions of a server by name.
pub(crate) struct Functions {
    by_name: BTreeMap<String, Function>,
    calls: Semaphore,
}

impl Default for Functions {
    fn default() -> Self {
        Functions { by_name: BTreeMap::new(), calls: Semaphore::new(CALLS_MAX) }
    }
}

impl Functions {
    /// Adds a function.
    ///
    /// # Errors
    /// 400 if the name is malformed, or there is one of this name.
    pub(crate) fn add<I, O>(
        &mut self,
        name: &str,
        function: impl Fn(&FunctionContext, I) -> Result<O> + Send + Sync + 'static,
    ) -> Result<(), Failure>
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        check_plain_name("a function", name, NAME_BYTES_MAX)?;
        let erased = move |context: &FunctionContext, input: Value| {
            let input = input.deserialize_into::<I>().map_err(|error| error.within("the function's input"))?;
            Value::from_serialize(&function(context, input)?)
        };
        match self.by_name.insert(name.to_owned(), Box::new(erased)) {
            None => Ok(()),
            Some(_) => Err(Failure::bad_request(format!("there are two functions `{name}`"))),
        }
    }

    /// Calls a function. Blocks.
    ///
    /// # Errors
    /// Those of the function; `NotFound` if there is none of this name; `Invalid` if the input does not fit it, or its
    /// result is larger than `bytes_max` as JSON; `Unavailable` if too many run; `Internal` if it panics.
    pub(crate) fn call(&self, name: &str, input: Value, context: &FunctionContext, bytes_max: usize) -> Result<Value> {
        let function = self.by_name.get(name).ok_or_else(|| {
            Error::not_found(format!("there is no function `{name}`"))
                .with_hint("the program that runs the server defines them")
        })?;
        let _permit = self.calls.try_acquire().map_err(|_| {
            Error::unavailable(format!("{CALLS_MAX} functions run already")).with_hint("try again later")
        })?;
        let called = catch_unwind(AssertUnwindSafe(|| function(context, input)));
        let output = called.map_err(|_| Error::internal(format!("the function `{name}` panicked")))??;
        match output.to_json().len() > bytes_max {
            true => Err(Error::invalid(format!("the result of `{name}` has more than {bytes_max} bytes"))
                .with_hint("return less, or raise limits.body_bytes")),
            false => Ok(output),
        }
    }
}

/// Who calls a function, and the database as the caller sees it.
pub struct FunctionContext {
    served: Arc<ServedDatabase>,
    options: WriteOptions,
    time_limit: Option<Duration>,
}

impl FunctionContext {
    pub(crate) fn new(served: Arc<ServedDatabase>, options: WriteOptions, time_limit: Option<Duration>) -> Self {
        FunctionContext { served, options, time_limit }
    }

    /// The documents that the caller may read and write; `None`: all.
    fn restriction(&self) -> Option<&Restriction> {
        self.options.validator.restriction.as_ref()
    }

    /// The caller's name; `None` if the database allows anonymous requests, and the caller is one.
    pub fn user(&self) -> Option<&str> {
        self.options.validator.user.name.as_deref()
    }

    /// The caller's roles.
    pub fn roles(&self) -> &[String] {
        &self.options.validator.user.roles
    }

    /// Whether the caller is an administrator of the database or the server.
    pub fn is_administrator(&self) -> bool {
        self.served.security().is_admin(&self.options.validator.user)
    }

    /// The name of the database that the function is called on.
    pub fn database_name(&self) -> &str {
        self.served.name()
    }

    /// The whole database, whatever the caller may do: access rules and validation functions do not apply.
    pub fn database(&self) -> &Database {
        self.served.database()
    }

    /// Reads a document, if the caller may read it.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        readable(self.restriction(), self.database().get(id)?).map_err(|failure| library_error(&failure))
    }

    /// Starts a query over the documents that the caller may read. It stops after the server's limit of a query's time.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        let mut query = narrowed(self.restriction(), query.into());
        if let Some(time) = self.time_limit {
            query = query.time_limit(time);
        }
        self.database().find(query)
    }

    /// Computes an aggregation of the documents that the caller may read: rows of a group and its figures.
    ///
    /// # Errors
    /// Those of [`Aggregation::rows`].
    pub fn aggregate(&self, aggregation: Aggregation) -> Result<Vec<(Value, Object)>> {
        let aggregation = match self.restriction() {
            Some(restriction) => aggregation.narrowed(restriction.selector()),
            None => aggregation,
        };
        let aggregation = match self.time_limit {
            Some(time) => aggregation.time_limit(time),
            None => aggregation,
        };
        aggregation.rows(&self.database().snapshot()?)
    }

    /// Applies edits independently, as the caller; the result has a revision or an error for each.
    ///
    /// # Errors
    /// `Unavailable` if the database can't be written. That of an edit is `Forbidden` if the caller may not make it.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        let outcomes = apply_edits(&self.served, edits, &self.options, None, |_| None)?;
        Ok(outcomes.into_iter().map(|outcome| outcome.map_err(Error::from)).collect())
    }

    /// Runs an optimistic transaction as the caller: `work` may run several times, and is applied as a whole or not at
    /// all.
    ///
    /// # Errors
    /// Those of `work`; `Conflict` if other writers interfere repeatedly.
    pub fn optimistic<T>(&self, mut work: impl FnMut(&mut FunctionTransaction<'_, '_, '_>) -> Result<T>) -> Result<T> {
        edit_optimistically(&self.served, &self.options, self.restriction(), |editing| {
            work(&mut FunctionTransaction(editing))
        })
    }
}

/// A transaction of a function, with the caller's rights. Made by [`FunctionContext::optimistic`].
pub struct FunctionTransaction<'t, 'a, 'b>(&'t mut Editing<'a, 'b>);

impl FunctionTransaction<'_, '_, '_> {
    /// Reads a document, if the caller may read it.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&mut self, id: &str) -> Result<Option<Document>> {
        self.0.get(id)
    }

    /// Starts a query over the documents that the caller may read.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<Find> {
        self.0.find(query.into())
    }

    /// Applies an edit; returns its revision.
    ///
    /// # Errors
    /// Those of the edit; `Forbidden` if the caller may not make it.
    pub fn edit(&mut self, edit: Edit) -> Result<Revision> {
        self.0.edit(edit)
    }

    /// Creates the document `id`; returns its revision.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Forbidden` if the caller may not write it; `Invalid` for a bad id or body.
    pub fn insert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.0.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Creates the document `id` or replaces its body; returns the new revision.
    ///
    /// # Errors
    /// `Forbidden` if the caller may not write it; `Invalid` for a bad id or body.
    pub fn upsert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.0.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of the document `id`; returns its new revision.
    ///
    /// # Errors
    /// `NotFound` if there is no such document that the caller may read; `Forbidden` if the caller may not write it.
    pub fn update(&mut self, id: &str, patch: &Patch) -> Result<Revision> {
        self.0.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_names_and_are_unique() {
        let mut functions = Functions::default();
        let same = |_: &FunctionContext, input: u32| Ok(input);
        functions.add("same", same).unwrap();
        for name in ["same", "", "a/b", "ä", &"x".repeat(129)] {
            assert!(functions.add(name, same).is_err(), "{name}");
        }
    }
}
