//! Reducers, and the partial reductions that they store as bytes.
//!
//! Invariants: a partial reduction of no rows is empty, and one of any rows is not; parts are combined in row order;
//! the result is the same however rows are divided into parts (exactly so for the built-in reducers).

mod built_in;
mod custom;
mod distinct;
mod function_fold;

pub use self::built_in::Stats;
pub(super) use self::built_in::{BuiltIn, add_square};
pub(super) use self::custom::{CustomReduce, CustomReducer};
pub(super) use self::distinct::Sketch;
pub(super) use self::function_fold::{FunctionFold, ReduceFunctions, decode_function_result};
use crate::tree::Direction;
use crate::value::Value;
use crate::{Error, Result};

/// Reduces rows to a partial reduction, and that to a result.
pub(super) trait Reducer: Send + Sync {
    /// The name within a slot's version. Reducers with different names have different partial reductions.
    fn name(&self) -> &str;

    /// Starts an empty fold.
    fn begin(&self) -> Box<dyn Fold + '_>;

    /// Decodes the result of a partial reduction of at least one row.
    fn result(&self, partial: &[u8]) -> Result<Value>;

    /// The row that alone decides the result: the first (ascending) or the last (descending), if it is one.
    fn deciding_row(&self) -> Option<Direction> {
        None
    }
}

/// Combines rows and partial reductions, in row order, into one partial reduction.
pub(super) trait Fold {
    /// Adds a row: its key in collation form and its value as JSON (empty for `null`).
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Adds a partial reduction.
    fn part(&mut self, partial: &[u8]) -> Result<()>;

    /// Returns the partial reduction of everything that was added.
    fn finish(self: Box<Self>) -> Result<Vec<u8>>;
}

/// Decodes the stored value of a row.
pub(super) fn row_value(stored: &[u8]) -> Result<Value> {
    if stored.is_empty() { Ok(Value::Null) } else { Value::parse(stored).map_err(|_| damaged()) }
}

/// Encodes a value for storage.
pub(super) fn stored_value(value: &Value) -> Vec<u8> {
    let mut stored = Vec::new();
    if !value.is_null() {
        value.write_json(&mut stored);
    }
    stored
}

#[cold]
fn damaged() -> Error {
    super::layout::damaged("a partial reduction")
}
