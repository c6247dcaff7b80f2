//! Batches: reads, checks and edits in one transaction and one round trip.

use stemmadb::{Document, Edit, Object, Query, Result, Revision, Selector, Value};
use stemmadb_wire::{Operation, Repetition};

use crate::convert::{document_or_null, edit_value, group_of, missing_field, object, revision_of};
use crate::database::RemoteDatabase;

/// A batch of steps that run in order in one transaction on the server, in one round trip. See
/// [`RemoteDatabase::batch`].
///
/// A step can take parts of its arguments from the results of earlier steps: [`Batch::with`]. If a check fails or an
/// edit can't be applied, nothing is written.
///
/// ```no_run
/// # use stemmadb::{DocumentId, Edit, Patch, Value, field};
/// # fn order(db: &stemmadb_client::RemoteDatabase) -> stemmadb::Result<()> {
/// // Sells a book: reads it, requires that there is one, takes it, and writes the sale at the book's price.
/// let sale = Edit::Insert { id: DocumentId::new("sale-1")?, body: r#"{"book": "solaris"}"#.parse()? };
/// let take = Patch::new().increment("count", -1);
/// let results = db
///     .batch()
///     .get("solaris")
///     .require(0, field("count").ge(1))?
///     .edit(Edit::Update { id: DocumentId::new("solaris")?, revision: None, patch: take })?
///     .edit(sale)?
///     .with("body.price", 0, "body.price")
///     .run()?;
/// let book = results.document(0)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a batch does nothing until it is run"]
pub struct Batch {
    database: RemoteDatabase,
    steps: Vec<Object>,
    /// Whether a step writes.
    writes: bool,
}

impl Batch {
    pub(crate) fn new(database: RemoteDatabase) -> Self {
        Batch { database, steps: Vec::new(), writes: false }
    }

    fn step<const N: usize>(mut self, op: &str, arguments: [(&str, Value); N]) -> Self {
        let mut step: Object = [("op", Value::from(op))].into_iter().collect();
        arguments.into_iter().for_each(|(name, value)| drop(step.insert(name, value)));
        self.steps.push(step);
        self
    }

    /// Reads a document. Its result is a document or null.
    pub fn get(self, id: &str) -> Self {
        self.step("get", [("id", id.into())])
    }

    /// Reads several documents. Its result is an array of documents and nulls.
    pub fn get_many<I: AsRef<str>>(self, ids: impl IntoIterator<Item = I>) -> Self {
        let ids = ids.into_iter().map(|id| Value::from(id.as_ref())).collect::<Vec<_>>();
        self.step("get_many", [("ids", ids.into())])
    }

    /// Finds documents. Its result is an array of documents. All steps together return at most 1,000 documents.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn find(self, query: impl Into<Query>) -> Result<Self> {
        Ok(self.step("find", [("query", query.into().to_value()?)]))
    }

    /// Counts documents.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn count(self, query: impl Into<Query>) -> Result<Self> {
        Ok(self.step("count", [("query", query.into().to_value()?)]))
    }

    /// Computes an aggregation, given as [`Aggregation::parse`](stemmadb::Aggregation::parse) reads it. Its result is
    /// an array of groups, each with `key` and `figures`.
    pub fn aggregate(self, aggregation: &Value) -> Self {
        self.step("aggregate", [("aggregation", aggregation.clone())])
    }

    /// Requires that the document `id` is at `revision`; `None`: that it does not exist.
    pub fn check(self, id: &str, revision: Option<&Revision>) -> Self {
        match revision {
            Some(revision) => self.step("check", [("id", id.into()), ("rev", revision.to_string().into())]),
            None => self.step("check", [("id", id.into()), ("absent", true.into())]),
        }
    }

    /// Requires that the document that the step `of` read matches a selector, as the transaction sees it now.
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    pub fn require(self, of: usize, selector: impl Into<Selector>) -> Result<Self> {
        Ok(self.step("require", [("of", (of as u64).into()), ("selector", selector.into().to_value()?)]))
    }

    /// Adds an edit. Its result is a revision.
    ///
    /// # Errors
    /// `Invalid` if it can't be sent.
    pub fn edit(mut self, edit: Edit) -> Result<Self> {
        if let Value::Object(step) = edit_value(edit)? {
            self.steps.push(step);
        }
        self.writes = true;
        Ok(self)
    }

    /// Takes a part of the last step's arguments from the result of the earlier step `of`, counted from 0.
    ///
    /// `to` is a path of the arguments: `id`, `ids`, `rev`, `body.price`, `patch.$set.price`. `from` is a path of the
    /// result: `body.author`; `body.lines[].product` makes an array of the elements' values, and `[].id` of documents'
    /// ids.
    pub fn with(mut self, to: &str, of: usize, from: &str) -> Self {
        if let Some(step) = self.steps.last_mut() {
            let mut references = step.remove("from").unwrap_or_else(|| Value::Object(Object::new()));
            if let Some(references) = references.as_object_mut() {
                references.insert(to, Value::Array(vec![(of as u64).into(), from.into()]));
            }
            step.insert("from", references);
        }
        self
    }

    /// Runs the steps.
    ///
    /// # Errors
    /// `Conflict` if a check or requirement does not hold; `NotFound` if a result lacks what a later step takes; those
    /// of the edits. Nothing is written then.
    pub fn run(self) -> Result<BatchResults> {
        let steps: Vec<Value> = self.steps.into_iter().map(Value::Object).collect();
        let count = steps.len();
        let arguments = self.database.durable(object([("steps", steps.into())]));
        let repetition = if self.writes { Repetition::Keyed } else { Repetition::Safe };
        let RemoteDatabase { shared, name, .. } = &self.database;
        let (_, reply) = shared.call_repeatedly(Operation::Batch, repetition, name, &arguments)?;
        match reply.into_item()?.into_value()? {
            Value::Array(results) if results.len() == count => Ok(BatchResults { database: self.database, results }),
            _ => Err(missing_field("results")),
        }
    }
}

/// The results of the steps of a [`Batch`].
#[derive(Debug)]
pub struct BatchResults {
    database: RemoteDatabase,
    results: Vec<Value>,
}

impl BatchResults {
    /// The result of a step as JSON: a document has `id`, `rev`, `seq` and `body`.
    pub fn value(&self, step: usize) -> Option<&Value> {
        self.results.get(step)
    }

    fn result(&self, step: usize) -> Result<&Value> {
        self.value(step).ok_or_else(|| stemmadb::Error::invalid(format!("the batch has no step {step}")))
    }

    /// The document that a step read, if it exists.
    ///
    /// # Errors
    /// `Invalid` if the step does not read one document.
    pub fn document(&self, step: usize) -> Result<Option<Document>> {
        document_or_null(&self.database.shared.factory, self.result(step)?)
    }

    /// The documents that a step read.
    ///
    /// # Errors
    /// `Invalid` if the step does not read several documents.
    pub fn documents(&self, step: usize) -> Result<Vec<Option<Document>>> {
        let rows = self.result(step)?.as_array().ok_or_else(|| missing_field("documents"))?;
        rows.iter().map(|row| document_or_null(&self.database.shared.factory, row)).collect()
    }

    /// The key and the figures of each group that a step computed.
    ///
    /// # Errors
    /// `Invalid` if the step aggregates nothing.
    pub fn groups(&self, step: usize) -> Result<Vec<(Value, Object)>> {
        let rows = self.result(step)?.as_array().ok_or_else(|| missing_field("groups"))?;
        rows.iter().cloned().map(group_of).collect()
    }

    /// The revision that a step wrote.
    ///
    /// # Errors
    /// `Invalid` if the step is no edit.
    pub fn revision(&self, step: usize) -> Result<Revision> {
        revision_of(self.result(step)?)
    }

    /// The number that a step counted.
    ///
    /// # Errors
    /// `Invalid` if the step counts nothing.
    pub fn count(&self, step: usize) -> Result<u64> {
        self.result(step)?.as_u64().ok_or_else(|| missing_field("count"))
    }
}
