//! Views whose functions are given at run time, as a server has them from design documents: documents are mapped by batches, and everything
//! else is as in CouchDB: keys in the order of ICU, rows of one key in the order of their documents' ids, and its reducers.
//!
//! Inside, such a view is one as any other: a [`Mapping`](super::definition::Mapping) with rows, back references and partial reductions.
//!
//! Layout: a row's key is the joined key of what the emitted key is in the order of ICU, cut where it is long, and the document's id; its
//! value is the length of the emitted key as JSON, that JSON, and the emitted value as JSON (nothing for `null`). A partial reduction is
//! the number of rows, and what they come to by the program's reducer.

mod keys;
mod mapping;
mod query;
mod ranked;
mod reduce;
mod stats;
mod sum;

use crate::Result;
use crate::document::Document;
use crate::value::Value;
use crate::view::definition::Reduction;

pub(super) use mapping::ProgramMapping;
pub use query::{ProgramGroups, ProgramQuery, ProgramRows, ProgramView, RowBound, RowChoice};

/// What one document emits: keys and values.
pub type EmittedRows = Vec<(Value, Value)>;

/// The functions of a view, given at run time. Ask for one with [`Views::open_program`](crate::Views::open_program).
///
/// What `map` says must depend on nothing but the document and the name: other functions have another name, since what was made by these
/// is kept under theirs.
pub trait ViewProgram: Send + Sync + 'static {
    /// Its name, which no other functions in the database have.
    fn name(&self) -> &str;

    /// The rows of each of some documents, key and value, in the order of the documents; or why one has none. Called with many
    /// documents at once where there are many.
    ///
    /// # Errors
    /// An error of the whole is that of whoever asked: nothing is kept of the batch.
    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>>;

    /// Whether design documents are mapped too.
    fn includes_design_documents(&self) -> bool {
        false
    }

    /// How rows are reduced.
    fn reducer(&self) -> ProgramReducer {
        ProgramReducer::None
    }

    /// For [`ProgramReducer::Custom`]: what some rows that follow each other come to; there is at least one.
    ///
    /// # Errors
    /// Yours; it fails the query.
    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        let _ = rows;
        Err(crate::Error::invalid("the view has no function `reduce`"))
    }

    /// For [`ProgramReducer::Custom`]: what the reductions of neighbouring ranges come to, in their order; there are at least two.
    ///
    /// # Errors
    /// As [`ViewProgram::reduce`].
    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        let _ = parts;
        Err(crate::Error::invalid("the view has no function `rereduce`"))
    }
}

/// How the rows of a program's view are reduced: as in CouchDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ProgramReducer {
    /// Not at all.
    #[default]
    None,
    /// `_count`: how many rows.
    Count,
    /// `_sum`: of numbers; of arrays and objects, element by element and field by field.
    Sum,
    /// `_stats`: sum, count, least, greatest and sum of squares; of arrays, element by element.
    Stats,
    /// `_approx_count_distinct`: about how many distinct keys.
    ApproxCountDistinct,
    /// `_first`: the value of the first row.
    First,
    /// `_last`: the value of the last row.
    Last,
    /// `_top_N`: the greatest values, the greatest first, each once; so many at most.
    Top(u8),
    /// `_bottom_N`: the least values, the least first, each once; so many at most.
    Bottom(u8),
    /// As views of types and declared views are reduced, which pass over values that are no numbers.
    Typed(Reduction),
    /// By [`ViewProgram::reduce`] and [`ViewProgram::rereduce`].
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

    /// The most values that `_top_N` and `_bottom_N` keep.
    const RANKED_MAX: u8 = 100;

    /// The built-in reducer of this name, with its underscore; none if there is none.
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

/// A row of a program's view.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProgramRow {
    /// The id of the document that emitted it. In a reduction empty, where id and key are so long that it was cut.
    pub id: String,
    /// What it was emitted under.
    pub key: Value,
    /// What was emitted.
    pub value: Value,
}
