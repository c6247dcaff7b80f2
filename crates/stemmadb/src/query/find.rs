//! A query on its way: narrowed step by step, then run against one snapshot.

mod group_by;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::execute::aggregate::{self, Summary, canonical};
use super::execute::explain::{self, Explanation};
use super::execute::rows::{self, Rows};
use super::language::document::{self, value_at};
use super::language::field::field;
use super::language::selector::Selector;
use super::language::sort::Sort;
use super::plan::facts::FactsState;
use super::plan::request::Query;
use super::source::limits::{Cancellation, Guarded};
use crate::Result;
use crate::cache::CachedResult;
use crate::document::Document;
use crate::engine::{Store, Transaction};
use crate::read::Snapshot;
use crate::revision::DocumentId;
use crate::value::{Number, Path, Value};

pub use group_by::GroupBy;

/// A query bound to the state of the database when it was begun. Nothing is read before it is run.
#[must_use = "a query does nothing until it is run"]
pub struct Find {
    at: At,
    query: Query,
}

/// What a query is answered from.
enum At {
    State(Result<Snapshot>),
    /// What the database keeps of an answer that holds; should something else be asked, its state then.
    Kept(CachedResult, Arc<Store>),
}

impl Find {
    /// Asks the newest state of a store.
    pub(crate) fn newest(store: &Arc<Store>, query: Query) -> Self {
        let at = match store.kept_answer(&query) {
            Some(answer) => At::Kept(answer, store.clone()),
            None => At::State(store.snapshot()),
        };
        Find { at, query }
    }

    fn with(self, change: impl FnOnce(Query) -> Query) -> Self {
        Find { query: change(self.query), ..self }
    }

    /// Asks the snapshot, within the limits of the query.
    pub(super) fn with_source<T>(self, ask: impl FnOnce(Guarded<Snapshot>, &Query) -> Result<T>) -> Result<T> {
        let snapshot = match self.at {
            At::State(snapshot) => snapshot?,
            At::Kept(_, store) => store.snapshot()?,
        };
        ask(Guarded::new(snapshot, self.query.limits()), &self.query)
    }

    fn extreme(self, path: &str, descending: bool) -> Result<Option<Value>> {
        let has_value = field(path).exists();
        let query = self.query.narrowed(has_value);
        let query = if descending { query.sort_descending(path) } else { query.sort(path) };
        let found = Find { query: query.limit(1), ..self }.first()?;
        let Some(found) = found else { return Ok(None) };
        let value = value_at(&Path::parse(path)?, document::Document::of(&found)?)?;
        value.map(|value| Ok(canonical(&value)?.1)).transpose()
    }

    /// Orders by the value at `path`, ascending; documents without one come first. Where earlier paths leave a tie, this one
    /// decides, and at last the document id. Without any order, rows come as their documents were first inserted, or, with a limit, in
    /// whichever order finds them soonest.
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort(path))
    }

    /// Orders by the value at `path`, descending; documents without one come last.
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_descending(path))
    }

    /// Orders by the value at `path`, ascending, strings as people of a language do: a BCP 47 tag such as `de`, or `und` for the order
    /// of no particular language.
    pub fn sort_collated(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_collated(path, language))
    }

    /// As [`Find::sort_collated`], descending.
    pub fn sort_collated_descending(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_collated_descending(path, language))
    }

    /// Orders as `sort` says, whatever was asked before.
    pub fn order(self, sort: Sort) -> Self {
        self.with(|query| query.order(sort))
    }

    /// At most `count` rows. Without a sort, any so many.
    pub fn limit(self, count: u64) -> Self {
        self.with(|query| query.limit(count))
    }

    /// Leaves out the first `count` rows.
    pub fn skip(self, count: u64) -> Self {
        self.with(|query| query.skip(count))
    }

    /// What [`Find::values`] returns of each document.
    pub fn fields<P: AsRef<str>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|query| query.fields(paths))
    }

    /// Continues after the row that a continuation token stands for.
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|query| query.after(token))
    }

    /// Fails with `Stopped` once it has run for so long, from the moment rows, a count or whatever else is asked for.
    pub fn time_limit(self, time: Duration) -> Self {
        self.with(|query| query.time_limit(time))
    }

    /// Fails with `Stopped` where there is one row more than `count`; unlike [`Find::limit`], which ends the result in silence.
    pub fn rows_max(self, count: u64) -> Self {
        self.with(|query| query.rows_max(count))
    }

    /// Fails with `Stopped` where a sort, a grouping or a set of documents would take more than about `bytes` of memory.
    pub fn memory_max(self, bytes: usize) -> Self {
        self.with(|query| query.memory_max(bytes))
    }

    /// Fails with `Stopped` once `cancellation` is used.
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.with(|query| query.cancelled_by(cancellation))
    }

    /// The matching documents, streamed.
    ///
    /// # Errors
    /// `Invalid` if the query can't be run as it is; `Corrupt` if stored bytes are damaged.
    pub fn run(self) -> Result<Found<Document>> {
        match self.at {
            At::Kept(answer, _) if self.query.is_look_up() => {
                Ok(Found(Inner::kept(answer, self.query.into_selector())))
            }
            at => Find { at, ..self }.read(rows::documents),
        }
    }

    fn read<T>(
        self,
        open: impl FnOnce(Guarded<Snapshot>, &Query) -> Result<Rows<Guarded<Snapshot>, T>>,
    ) -> Result<Found<T>> {
        Ok(Found(Inner::Read(Box::new(self.with_source(open)?))))
    }

    /// The matching documents, all at once.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// The first matching document.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn first(self) -> Result<Option<Document>> {
        self.limit(1).run()?.next().transpose()
    }

    /// The ids of the matching documents, streamed; bodies are read only where the index can't decide.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn ids(self) -> Result<Found<DocumentId>> {
        self.read(rows::ids)
    }

    /// The fields asked for of each matching document, streamed; whole documents with `_id` and `_rev` if none were.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn values(self) -> Result<Found<Value>> {
        self.read(rows::values)
    }

    /// How many documents match; sort, limit and skip play no part.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn count(self) -> Result<u64> {
        self.with_source(rows::count)
    }

    /// Whether any document matches. Stops at the first.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn exists(self) -> Result<bool> {
        let first = Find { query: self.query.unordered().limit(1), ..self }.ids()?.next().transpose()?;
        Ok(first.is_some())
    }

    /// The distinct values at `path` of what matches, in their order; documents without one add none. Equal values (`1` and
    /// `1.0`) are one, a whole number shown as an integer. Sort, limit and skip play no part, here and in all that follow.
    ///
    /// Costs a step for each distinct value in the index, or reads the documents where that is less.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        Ok(self.group_by(path).counts()?.into_iter().map(|(value, _)| value).collect())
    }

    /// The least value at `path` of what matches, in the order of all values; none if no document has one.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn min(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), false)
    }

    /// The greatest value at `path` of what matches, in the order of all values; none if no document has one.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn max(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), true)
    }

    /// What the numbers at `path` come to: count, sum, least, greatest, average. From the index, without any document.
    ///
    /// Of all documents the database keeps the sum: it costs two look-ups, and one for each number written since the last checkpoint. Of
    /// what a filter leaves it costs a step for each distinct number.
    ///
    /// ```
    /// # use stemmadb::{Database, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// # db.insert("a", &serde_json::json!({"price": 5}))?;
    /// # db.insert("b", &serde_json::json!({"price": 2.5}))?;
    /// let prices = db.find(field("price").gt(0)).summary("price")?;
    /// assert_eq!((prices.count, prices.average()), (2, Some(3.75)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if the sum is beyond the numbers.
    pub fn summary(self, path: impl AsRef<str>) -> Result<Summary> {
        self.with_source(|source, query| aggregate::summary(source, query, path.as_ref()))
    }

    /// The sum of the numbers at `path`: an integer if it is a whole number that fits 64 bits, else the nearest double to the
    /// exact sum; 0 if there are none.
    ///
    /// # Errors
    /// As [`Find::summary`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<Number> {
        self.with_source(|source, query| aggregate::sum(source, query, path.as_ref()))
    }

    /// The average of the numbers at `path`: their sum as a double, divided by their count; none if there are none.
    ///
    /// # Errors
    /// As [`Find::summary`].
    pub fn average(self, path: impl AsRef<str>) -> Result<Option<f64>> {
        Ok(self.summary(path)?.average())
    }

    /// What matches, in groups of documents with one value at `path`.
    pub fn group_by(self, path: impl AsRef<str>) -> GroupBy {
        GroupBy { find: self, path: path.as_ref().to_owned() }
    }

    /// How the query would be answered, with about how many documents each step gives: the index is asked a little for that, no document
    /// is read.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain(self) -> Result<Explanation> {
        self.with_source(|source, query| explain::explain(source, query, false))
    }

    /// How the query is answered: runs it and tells what each step found and took.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain_analyze(self) -> Result<Explanation> {
        self.with_source(|source, query| explain::explain(source, query, true))
    }
}

impl Snapshot {
    /// What matches a selector (or a whole [`Query`]) in this state of the database.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        Find { at: At::State(Ok(self.clone())), query: query.into() }
    }
}

impl Transaction<'_> {
    /// What matches a selector (or a whole [`Query`]), with what this transaction wrote so far.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn find(&self, query: impl Into<Query>) -> Result<Find> {
        Ok(self.snapshot()?.find(query))
    }
}

impl fmt::Debug for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Find").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Store {
    /// The documents that a query asks for, if it was prepared, asks for those of one term, was answered lately, and nothing changed
    /// them since.
    fn kept_answer(&self, query: &Query) -> Option<CachedResult> {
        let facts = FactsState::new(&self.parts.paths, self.parts.declared_generation());
        query.ask_term(facts, |path, key| self.parts.cached_result(path, key))
    }
}

/// The rows of a result, in order. After an error there are no further rows.
pub struct Found<T>(Inner<T>);

enum Inner<T> {
    Read(Box<Rows<Guarded<Snapshot>, T>>),
    Kept { answer: CachedResult, next: usize, make: fn(&Document) -> T, selector: Selector },
}

impl Inner<Document> {
    fn kept(answer: CachedResult, selector: Selector) -> Self {
        Inner::Kept { answer, next: 0, make: Document::clone, selector }
    }
}

impl<T> Found<T> {
    /// The token that continues after the row returned last: none before the first row, and none at the end. It survives a
    /// restart; pass it to [`Find::after`] of the same query.
    ///
    /// # Errors
    /// `Invalid` if the query can't be told from others.
    pub fn token(&self) -> Result<Option<String>> {
        match &self.0 {
            Inner::Read(rows) => rows.token(),
            Inner::Kept { answer, next, selector, .. } => rows::token_after(answer, *next, selector),
        }
    }

    /// How many documents were read so far, to decide or to return.
    pub fn documents_read(&self) -> u64 {
        match &self.0 {
            Inner::Read(rows) => rows.documents_read(),
            Inner::Kept { .. } => 0,
        }
    }
}

impl<T> Iterator for Found<T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Inner::Read(rows) => rows.next(),
            Inner::Kept { answer, next, make, .. } => {
                let Some((_, document)) = answer.get(*next) else {
                    // There is no token after the end.
                    *next = usize::MAX;
                    return None;
                };
                *next += 1;
                Some(Ok(make(document)))
            }
        }
    }
}
