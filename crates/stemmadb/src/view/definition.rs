//! View definitions: the public [`View`] trait, and [`Mapping`], the internal form of typed, declared and program
//! views.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout::KEY_BYTES_MAX;
use super::reduce::{BuiltIn, CustomReduce, CustomReducer, Reducer, stored_value};
use crate::document::Document;
use crate::value::Value;
use crate::value::collate::key;
use crate::{Error, Result};

/// A materialized view: maps each document to rows ordered by key, and stores partial reductions so that any range of
/// rows is reduced in O(log n). Open one with [`Database::view`](crate::Database::view).
///
/// `map` must depend only on the document: its rows are stored until the document changes. When you change the
/// function, change the version.
///
/// ```
/// use stemmadb::{Database, Document, Emitter, Reduction, Result, View};
///
/// /// How many copies of each author's books were sold.
/// struct Sales;
///
/// impl View for Sales {
///     type Key = (String, i64);
///     type Value = u64;
///     type Reduced = u64;
///
///     fn name(&self) -> &str {
///         "sales"
///     }
///
///     fn map(&self, book: &Document, rows: &mut Emitter<'_, Self::Key, Self::Value>) -> Result<()> {
///         let (author, year, sold) = (book.get("author")?, book.get("year")?, book.get("sold")?);
///         if let (Some(author), Some(year), Some(sold)) = (author, year, sold) {
///             rows.emit((author.deserialize_into()?, year.deserialize_into()?), sold.deserialize_into()?);
///         }
///         Ok(())
///     }
///
///     fn reduction(&self) -> Reduction {
///         Reduction::Sum
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let db = Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"author": "Lem", "year": 1961, "sold": 5}))?;
/// db.insert("fiasco", &serde_json::json!({"author": "Lem", "year": 1986, "sold": 2}))?;
/// let sales = db.view(Sales)?;
/// assert_eq!(sales.query().prefix(("Lem",)).reduce()?, Some(7));
/// # Ok(())
/// # }
/// ```
pub trait View: Send + Sync + 'static {
    /// The key that rows are sorted and found by: any serializable type, in collation order.
    type Key: Serialize + DeserializeOwned;
    /// The value of a row; `()` for none.
    type Value: Serialize + DeserializeOwned;
    /// The result of a reduction; `()` without a reduction.
    type Reduced: Serialize + DeserializeOwned;

    /// The view's name, unique in the database.
    fn name(&self) -> &str;

    /// The version of the definition. Changing it rebuilds the rows, while the rows of the previous version still
    /// answer queries.
    fn version(&self) -> u64 {
        0
    }

    /// Emits the rows of one document: none, one or many.
    ///
    /// A document whose map fails has no rows; [`ViewInfo`](super::ViewInfo) reports the number of such documents and
    /// the first errors. An eager view refuses the write instead.
    ///
    /// # Errors
    /// Any error; see above.
    fn map(&self, document: &Document, rows: &mut Emitter<'_, Self::Key, Self::Value>) -> Result<()>;

    /// The reduction of the rows. Default: none.
    fn reduction(&self) -> Reduction {
        Reduction::None
    }

    /// For [`Reduction::Custom`]: reduces consecutive rows; there is at least one.
    ///
    /// # Errors
    /// Any error; it fails the query, or the write if the view is eager.
    fn reduce(&self, rows: &[(Self::Key, Self::Value)]) -> Result<Self::Reduced> {
        let _ = rows;
        Err(no_function("reduce"))
    }

    /// For [`Reduction::Custom`]: combines the reductions of adjacent ranges, in order; there are at least two.
    ///
    /// # Errors
    /// As for [`View::reduce`].
    fn rereduce(&self, parts: Vec<Self::Reduced>) -> Result<Self::Reduced> {
        let _ = parts;
        Err(no_function("rereduce"))
    }

    /// When rows are brought up to date. Default: when the view is queried.
    fn refresh(&self) -> Refresh {
        Refresh::Lazy
    }
}

fn no_function(name: &str) -> Error {
    Error::invalid(format!("the view has no function `{name}`")).with_hint("implement it, or name a built-in reduction")
}

/// When a view's rows are brought up to date. See [`DeclaredView`](crate::DeclaredView) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refresh {
    /// When the view is queried; writes cost nothing.
    #[default]
    Lazy,
    /// With each write, before it returns; a write whose document can't be mapped is refused. Takes effect when the
    /// view is first opened after the database was opened.
    Eager,
    /// Like `Eager`; in addition, a write that would give two documents the same key is refused with `Conflict`.
    Unique,
}

/// A reduction of rows. Sums of numbers are exact and rounded once at the end. See [`View`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Reduction {
    /// No reduction.
    #[default]
    None,
    /// `_count`: the number of rows.
    Count,
    /// `_sum`: the sum of the values that are numbers.
    Sum,
    /// `_stats`: count, sum, minimum, maximum and sum of squares of the values that are numbers:
    /// [`Stats`](super::Stats).
    Stats,
    /// `_min`: the smallest value.
    Min,
    /// `_max`: the largest value.
    Max,
    /// `_avg`: the average of the values that are numbers; null if there are none.
    Average,
    /// `_approx_count_distinct`: the approximate number of distinct keys, with a typical error of two percent.
    ApproxCountDistinct,
    /// Custom: [`View::reduce`] and [`View::rereduce`].
    Custom,
}

impl Reduction {
    pub(super) fn of(reducer: BuiltIn) -> Self {
        match reducer {
            BuiltIn::Count => Reduction::Count,
            BuiltIn::Sum => Reduction::Sum,
            BuiltIn::Stats => Reduction::Stats,
            BuiltIn::Min => Reduction::Min,
            BuiltIn::Max => Reduction::Max,
            BuiltIn::Average => Reduction::Average,
            BuiltIn::ApproxCountDistinct => Reduction::ApproxCountDistinct,
        }
    }

    pub(super) fn built_in(self) -> Option<BuiltIn> {
        match self {
            Reduction::None | Reduction::Custom => None,
            Reduction::Count => Some(BuiltIn::Count),
            Reduction::Sum => Some(BuiltIn::Sum),
            Reduction::Stats => Some(BuiltIn::Stats),
            Reduction::Min => Some(BuiltIn::Min),
            Reduction::Max => Some(BuiltIn::Max),
            Reduction::Average => Some(BuiltIn::Average),
            Reduction::ApproxCountDistinct => Some(BuiltIn::ApproxCountDistinct),
        }
    }
}

/// Collects the rows of one document; see [`View`] for an example.
pub struct Emitter<'a, K, V> {
    rows: &'a mut Vec<(Value, Value)>,
    failed: Option<Error>,
    types: PhantomData<fn(K, V)>,
}

impl<K: Serialize, V: Serialize> Emitter<'_, K, V> {
    /// Adds a row. A row that can't be stored, for example because its key is too long, makes the document's map fail
    /// when it returns.
    pub fn emit(&mut self, key: K, value: V) {
        let row = Value::from_serialize(&key).and_then(|key| Ok((key, Value::from_serialize(&value)?)));
        match row {
            Ok(row) => self.rows.push(row),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// A view over untyped values: the form that the engine uses.
pub(super) trait Mapping: Send + Sync {
    fn name(&self) -> &str;

    /// Changes whenever rows or partial reductions may differ.
    fn version(&self) -> String;

    fn refresh(&self) -> Refresh;

    /// Whether design documents are mapped too.
    fn includes_design_documents(&self) -> bool {
        false
    }

    /// Maps documents: returns the rows of each in order, or why it can't be mapped. An error of the whole call does
    /// not concern a single document and nothing of the batch is stored.
    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<Emitted>>>;

    fn reducer(&self) -> Option<Arc<dyn Reducer>>;
}

/// The rows of one document, sorted: key in collation form and stored value.
pub(super) type Emitted = Vec<(Vec<u8>, Vec<u8>)>;

/// Encodes rows for storage and sorts them.
fn emitted(rows: &[(Value, Value)]) -> Result<Emitted> {
    let mut emitted = Vec::with_capacity(rows.len());
    for (emitted_key, value) in rows {
        let mut bytes = Vec::new();
        key::encode(emitted_key, &mut bytes);
        if bytes.len() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!("a key of {} bytes is too long for a view", bytes.len())).with_hint(
                format!(
                    "at most {KEY_BYTES_MAX} bytes are possible: emit the beginning of a long text, or a hash of it"
                ),
            ));
        }
        emitted.push((bytes, stored_value(value)));
    }
    emitted.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(emitted)
}

/// Runs a view's map function over a document.
pub(super) fn map_document<V: View>(view: &V, document: &Document) -> Result<Vec<(Value, Value)>> {
    let mut rows = Vec::new();
    let mut emitter = Emitter { rows: &mut rows, failed: None, types: PhantomData };
    view.map(document, &mut emitter)?;
    emitter.failed.map_or(Ok(rows), Err)
}

/// Adapts a [`View`] to [`Mapping`].
pub(super) struct TypedMapping<V>(pub(super) Arc<V>);

impl<V: View> Mapping for TypedMapping<V> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn version(&self) -> String {
        let reducer = self.reducer();
        format!("{} {}", self.0.version(), reducer.as_ref().map_or("", |reducer| reducer.name()))
    }

    fn refresh(&self) -> Refresh {
        self.0.refresh()
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<Emitted>>> {
        Ok(documents.iter().map(|document| emitted(&map_document(&*self.0, document)?)).collect())
    }

    fn reducer(&self) -> Option<Arc<dyn Reducer>> {
        match self.0.reduction() {
            Reduction::Custom => Some(Arc::new(CustomReducer(Arc::new(TypedMapping(self.0.clone()))))),
            reduction => Some(Arc::new(reduction.built_in()?)),
        }
    }
}

impl<V: View> CustomReduce for TypedMapping<V> {
    fn reduce(&self, rows: &[(Value, Value)]) -> Result<Value> {
        let rows = rows.iter().map(|(key, value)| Ok((key.deserialize_into()?, value.deserialize_into()?)));
        Value::from_serialize(&self.0.reduce(&rows.collect::<Result<Vec<_>>>()?)?)
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        let parts = parts.iter().map(Value::deserialize_into).collect::<Result<_>>()?;
        Value::from_serialize(&self.0.rereduce(parts)?)
    }
}
