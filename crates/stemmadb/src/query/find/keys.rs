//! Queries whose rows are merged with those of other databases: keys first, documents of the chosen rows afterwards.

use std::fmt;

use super::Find;
use crate::Result;
use crate::document::Document;
use crate::query::execute::rows::{self, KeyedRow, Rows};
use crate::query::language::RowKey;
use crate::query::language::document::DocumentView;
use crate::query::language::projection::project;
use crate::query::plan::Query;
use crate::query::source::QueryContext;
use crate::query::source::limits::LimitedSource;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::value::Value;

/// The keys of the rows of a sorted query, in order, from one snapshot. Documents are read only by [`KeyRows::load`].
/// Returned by [`Find::keys`].
pub struct KeyRows(Box<Rows<LimitedSource<Snapshot>, KeyedRow>>);

impl Find {
    /// Continues after the row with this key, which may be of another database. See [`Query::after_key`].
    pub fn after_key(self, key: RowKey) -> Self {
        self.with(|query| query.after_key(key))
    }

    /// Returns the keys of the rows, for merging them with those of other databases. `first_count` is how many the
    /// caller expects to need: rows are found in batches, the first of which has about as many.
    ///
    /// Costs what the query costs without reading the documents that the index decides.
    ///
    /// ```
    /// # use stemmadb::{Database, Selector};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// db.insert("dune", &serde_json::json!({"year": 1965}))?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let mut keys = db.find(Selector::everything()).sort("year").keys(1)?;
    /// let first = keys.next().expect("two books")?;
    /// assert_eq!(first.key.id().as_str(), "solaris");
    /// assert_eq!(keys.load(&[first])?[0].get("year")?, Some(1961.into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if the query is not sorted.
    pub fn keys(self, first_count: usize) -> Result<KeyRows> {
        self.with_source(|source, query| Ok(KeyRows(Box::new(rows::keys(source, query, first_count)?))))
    }
}

impl KeyRows {
    /// Reads the documents of some of the rows, in the order of `rows`.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Stopped` if the query reaches a limit.
    pub fn load(&self, rows: &[KeyedRow]) -> Result<Vec<Document>> {
        self.0.load(rows)
    }

    /// The sequence as of which further pages can be read, if the database keeps its past.
    pub fn page_sequence(&self) -> Option<Sequence> {
        self.0.page_sequence()
    }
}

impl Iterator for KeyRows {
    type Item = Result<KeyedRow>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl fmt::Debug for KeyRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRows").finish_non_exhaustive()
    }
}

impl Query {
    /// Returns the fields of a document that the query chooses, as [`Find::values`] does.
    ///
    /// ```
    /// # use stemmadb::{Database, Query, Selector};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// db.insert("dune", &serde_json::json!({"year": 1965, "title": "Dune"}))?;
    /// let query = Query::new(Selector::everything()).fields(["year"]);
    /// let dune = db.get("dune")?.expect("it was inserted");
    /// assert_eq!(query.project(&dune)?.to_json(), r#"{"year":1965}"#);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if the document's bytes are damaged.
    pub fn project(&self, document: &Document) -> Result<Value> {
        project(self.projection(), DocumentView::of(document)?)
    }
}

impl Snapshot {
    /// The sequence of the snapshot, if the database keeps its past, so that further pages of a query can be read as of
    /// it.
    pub fn page_sequence(&self) -> Option<Sequence> {
        QueryContext::page_sequence(self)
    }
}
