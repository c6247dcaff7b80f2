//! What is a view? A program's own type, or a JSON definition; inside, both are a [`Mapping`] over values.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout::KEY_BYTES_MAX;
use super::reduce::{BuiltIn, Custom, CustomReduce, Reducer, stored_value};
use crate::document::Document;
use crate::value::Value;
use crate::value::collate::key;
use crate::{Error, Result};

/// A summary of documents that is kept: each document is mapped to rows, rows lie in the order of their keys, and what a range
/// of rows comes to is told at once. Ask for one with [`Database::view`](crate::Database::view).
///
/// `map` must depend on nothing but the document: what it says is kept until the document changes. When you change what it
/// does, raise the version.
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
///         if let (Some(author), Some(year), Some(sold)) = (book.get("author")?, book.get("year")?, book.get("sold")?) {
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
    /// What rows are ordered and found by: of any type that serde can write, in the order of all values.
    type Key: Serialize + DeserializeOwned;
    /// What a row says; `()` for nothing.
    type Value: Serialize + DeserializeOwned;
    /// What rows come to; `()` without a reduction.
    type Reduced: Serialize + DeserializeOwned;

    /// Its name, unique in the database.
    fn name(&self) -> &str;

    /// Another version is another view: its rows are made anew, while those of the version before still answer.
    fn version(&self) -> u64 {
        0
    }

    /// Emits the rows of one document: none, one or many. A document that can't be mapped (an error) has no rows;
    /// [`ViewInfo`](super::ViewInfo) tells how many those are and why. An eager view refuses to write it.
    ///
    /// # Errors
    /// Yours.
    fn map(&self, document: &Document, rows: &mut Emitter<'_, Self::Key, Self::Value>) -> Result<()>;

    /// How rows are reduced. Default: not at all.
    fn reduction(&self) -> Reduction {
        Reduction::None
    }

    /// For [`Reduction::Custom`]: what some rows that follow each other come to; there is at least one.
    ///
    /// # Errors
    /// Yours; it fails the query, or the write if the view is eager.
    fn reduce(&self, rows: &[(Self::Key, Self::Value)]) -> Result<Self::Reduced> {
        let _ = rows;
        Err(no_function("reduce"))
    }

    /// For [`Reduction::Custom`]: what the reductions of neighbouring ranges come to, in their order; there are at least two.
    ///
    /// # Errors
    /// As [`View::reduce`].
    fn rereduce(&self, parts: Vec<Self::Reduced>) -> Result<Self::Reduced> {
        let _ = parts;
        Err(no_function("rereduce"))
    }

    /// When rows are brought up to date. Default: when they are asked for.
    fn refresh(&self) -> Refresh {
        Refresh::Lazy
    }
}

fn no_function(name: &str) -> Error {
    Error::invalid(format!("the view has no function `{name}`")).with_hint("implement it, or name a built-in reduction")
}

/// When a view's rows are brought up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refresh {
    /// When they are asked for: writes cost nothing.
    #[default]
    Lazy,
    /// With each write, before it returns; a write whose document can't be mapped is refused. From when the view is asked for
    /// first after opening.
    Eager,
    /// As eager; and a write that would give two documents one key is refused with `Conflict`.
    Unique,
}

/// How rows are reduced. Numbers are summed exactly, and rounded once at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Reduction {
    /// Not at all.
    #[default]
    None,
    /// `_count`: how many rows.
    Count,
    /// `_sum`: the sum of the values that are numbers.
    Sum,
    /// `_stats`: count, sum, least, greatest and sum of squares of the values that are numbers: [`Stats`](super::Stats).
    Stats,
    /// `_min`: the least value.
    Min,
    /// `_max`: the greatest value.
    Max,
    /// `_avg`: the average of the values that are numbers; null if there is none.
    Average,
    /// `_approx_count_distinct`: about how many distinct keys; typically two percent off.
    ApproxCountDistinct,
    /// By [`View::reduce`] and [`View::rereduce`].
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

/// Takes the rows of one document.
pub struct Emitter<'a, K, V> {
    rows: &'a mut Vec<(Value, Value)>,
    failed: Option<Error>,
    types: PhantomData<fn(K, V)>,
}

impl<K: Serialize, V: Serialize> Emitter<'_, K, V> {
    /// Adds a row. One that can't be written (its key is too long, say) fails the document's map when it returns.
    pub fn emit(&mut self, key: K, value: V) {
        let row = Value::from_serialize(&key).and_then(|key| Ok((key, Value::from_serialize(&value)?)));
        match row {
            Ok(row) => self.rows.push(row),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// A view over values: what the engine knows of it.
pub(super) trait Mapping: Send + Sync {
    fn name(&self) -> &str;

    /// Differs wherever rows or partial reductions may.
    fn version(&self) -> String;

    fn refresh(&self) -> Refresh;

    /// Whether design documents are mapped too.
    fn includes_design_documents(&self) -> bool {
        false
    }

    /// What each of these documents emits, in their order; or why it can't be mapped. An error of the whole is not the documents'.
    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<Emitted>>>;

    fn reducer(&self) -> Option<Arc<dyn Reducer>>;
}

/// What one document emits: its rows by key in collation form, in order, with their values as they are stored.
pub(super) type Emitted = Vec<(Vec<u8>, Vec<u8>)>;

/// The rows as they are stored, of keys in the order of all values.
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

/// What a view emits of a document.
pub(super) fn rows_of<V: View>(view: &V, document: &Document) -> Result<Vec<(Value, Value)>> {
    let mut rows = Vec::new();
    let mut emitter = Emitter { rows: &mut rows, failed: None, types: PhantomData };
    view.map(document, &mut emitter)?;
    emitter.failed.map_or(Ok(rows), Err)
}

/// A program's view as a mapping.
pub(super) struct Typed<V>(pub(super) Arc<V>);

impl<V: View> Mapping for Typed<V> {
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
        Ok(documents.iter().map(|document| emitted(&rows_of(&*self.0, document)?)).collect())
    }

    fn reducer(&self) -> Option<Arc<dyn Reducer>> {
        match self.0.reduction() {
            Reduction::Custom => Some(Arc::new(Custom(Arc::new(Typed(self.0.clone()))))),
            reduction => Some(Arc::new(reduction.built_in()?)),
        }
    }
}

impl<V: View> CustomReduce for Typed<V> {
    fn reduce(&self, rows: &[(Value, Value)]) -> Result<Value> {
        let rows = rows.iter().map(|(key, value)| Ok((key.deserialize_into()?, value.deserialize_into()?)));
        Value::from_serialize(&self.0.reduce(&rows.collect::<Result<Vec<_>>>()?)?)
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        let parts = parts.iter().map(Value::deserialize_into).collect::<Result<_>>()?;
        Value::from_serialize(&self.0.rereduce(parts)?)
    }
}
