//! Views whose functions are supplied at run time, as a server loads them from design documents. Documents are mapped
//! in batches; everything else is as in CouchDB: keys in ICU collation order, rows of one key ordered by document id,
//! and CouchDB's reducers.
//!
//! Internally such a view is a [`Mapping`](super::definition::Mapping) with rows, back references and partial
//! reductions like any other.
//!
//! Layout: a row's key joins the emitted key in ICU collation order (truncated if long) and the document's id; in a
//! partitioned view, a hash of the partition precedes both. Its value is the length of the emitted key as JSON, that
//! JSON, and the emitted value as JSON (empty for `null`). A partial reduction is the number of rows, and their
//! reduction by the program's reducer.

mod adapter;
mod keys;
mod merged;
mod query;
mod ranked;
mod reduce;
mod stats;
mod sum;

use crate::Result;
use crate::document::Document;
use crate::value::Value;
use crate::view::definition::Reduction;

pub(super) use adapter::ProgramMapping;
pub(in crate::view) use keys::root_collation;
pub use merged::{MergedGroups, MergedQuery, MergedRows, RowPlace, combine_reductions};
pub use query::{ProgramGroups, ProgramQuery, ProgramRows, ProgramView, RowBound, RowChoice};

/// The rows that one document emits: keys and values. See [`ViewProgram`] for an example.
pub type EmittedRows = Vec<(Value, Value)>;

/// The functions of a view, supplied at run time. Open the view with
/// [`Views::open_program`](crate::handles::Views::open_program).
///
/// `map` must depend only on the document and the program's name. A changed function needs a new name, because its rows
/// are stored under the name.
///
/// ```
/// use std::sync::Arc;
///
/// use stemmadb::views::{EmittedRows, ProgramReducer, ViewProgram};
/// use stemmadb::{Database, Document, Result, Value};
///
/// struct Years;
///
/// fn rows(document: &Document) -> Result<EmittedRows> {
///     Ok(document.get("year")?.map(|year| (year, Value::Null)).into_iter().collect())
/// }
///
/// impl ViewProgram for Years {
///     fn name(&self) -> &str {
///         "years 1"
///     }
///
///     fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
///         documents.iter().map(|document| Ok(rows(document))).collect()
///     }
///
///     fn reducer(&self) -> ProgramReducer {
///         ProgramReducer::Count
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let db = Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let years = db.views().open_program(Arc::new(Years))?;
/// assert_eq!(years.query().reduce()?, Some(1.into()));
/// # Ok(())
/// # }
/// ```
pub trait ViewProgram: Send + Sync + 'static {
    /// The program's name, unique among all programs of the database.
    fn name(&self) -> &str;

    /// Maps documents: returns each document's rows (key and value) in the order of the documents, or why it has none.
    /// Called with many documents per batch where possible.
    ///
    /// # Errors
    /// An error of the whole call is returned to the caller of the query; nothing of the batch is stored.
    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>>;

    /// Whether design documents are mapped too. Default: false.
    fn includes_design_documents(&self) -> bool {
        false
    }

    /// Whether the rows are stored by partition: a document's partition is its id before the first `:`. Each query of
    /// such a view names a partition, see [`ProgramQuery::within`], and costs as much as that partition's rows.
    /// Default: false.
    fn is_partitioned(&self) -> bool {
        false
    }

    /// The reducer. Default: none.
    fn reducer(&self) -> ProgramReducer {
        ProgramReducer::None
    }

    /// For [`ProgramReducer::Custom`]: reduces consecutive rows; there is at least one.
    ///
    /// # Errors
    /// Any error; it fails the query.
    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        let _ = rows;
        Err(crate::Error::invalid("the view has no function `reduce`"))
    }

    /// For [`ProgramReducer::Custom`]: combines the reductions of adjacent ranges, in order; there are at least two.
    ///
    /// # Errors
    /// As for [`ViewProgram::reduce`].
    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        let _ = parts;
        Err(crate::Error::invalid("the view has no function `rereduce`"))
    }
}

/// The reduction of a program view's rows, as in CouchDB. See [`ViewProgram`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ProgramReducer {
    /// No reduction.
    #[default]
    None,
    /// `_count`: the number of rows.
    Count,
    /// `_sum`: the sum of numbers; of arrays and objects, by element and by field.
    Sum,
    /// `_stats`: sum, count, minimum, maximum and sum of squares; of arrays, by element.
    Stats,
    /// `_approx_count_distinct`: the approximate number of distinct keys.
    ApproxCountDistinct,
    /// `_first`: the value of the first row.
    First,
    /// `_last`: the value of the last row.
    Last,
    /// `_top_N`: the N greatest distinct values, greatest first.
    Top(u8),
    /// `_bottom_N`: the N smallest distinct values, smallest first.
    Bottom(u8),
    /// A reduction of typed and declared views, which ignores values that are not numbers.
    Typed(Reduction),
    /// Custom: [`ViewProgram::reduce`] and [`ViewProgram::rereduce`].
    Custom,
}

impl ProgramReducer {
    const NAMES: [(&'static str, ProgramReducer); 6] = [
        ("_count", ProgramReducer::Count),
        ("_sum", ProgramReducer::Sum),
        ("_stats", ProgramReducer::Stats),
        ("_approx_count_distinct", ProgramReducer::ApproxCountDistinct),
        ("_first", ProgramReducer::First),
        ("_last", ProgramReducer::Last),
    ];

    /// The largest N of `_top_N` and `_bottom_N`.
    const RANKED_MAX: u8 = 100;

    /// Returns the built-in reducer with this name (including its underscore), or `None`.
    pub fn built_in(name: &str) -> Option<Self> {
        let of_count = |name: &str| name.parse().ok().filter(|count| (1..=Self::RANKED_MAX).contains(count));
        if let Some(count) = name.strip_prefix("_top_") {
            return of_count(count).map(ProgramReducer::Top);
        }
        if let Some(count) = name.strip_prefix("_bottom_") {
            return of_count(count).map(ProgramReducer::Bottom);
        }
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, reducer)| *reducer)
    }
}

/// A row of a program view. See [`ViewProgram`] for an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProgramRow {
    /// Id of the document that emitted it. In a reduction it is empty if id and key are so long that the row key was
    /// truncated.
    pub id: String,
    /// The emitted key.
    pub key: Value,
    /// The emitted value.
    pub value: Value,
}
