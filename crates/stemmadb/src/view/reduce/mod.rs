//! What do rows come to? Reducers, and the partial reductions they keep as bytes.
//!
//! Invariants: a partial reduction of no rows is empty, one of any rows is not; parts are joined in the order of their rows, and
//! however rows are cut into parts, the end is the same: exactly so for the built-in reducers.

mod built_in;
mod called;
mod custom;
mod distinct;

pub use self::built_in::Stats;
pub(super) use self::built_in::{BuiltIn, add_square};
pub(super) use self::called::{Called, Functions, called_result};
pub(super) use self::custom::{Custom, CustomReduce};
pub(super) use self::distinct::Sketch;
use crate::value::Value;
use crate::{Error, Result};

/// Folds rows.
pub(super) trait Reducer: Send + Sync {
    /// What it is called in a slot's version: reducers of another name have other partial reductions.
    fn name(&self) -> &str;

    /// A fold of nothing yet.
    fn begin(&self) -> Box<dyn Fold + '_>;

    /// The result that a partial reduction of some rows stands for.
    fn result(&self, partial: &[u8]) -> Result<Value>;
}

/// Rows and partial reductions on their way into one, in the order of their rows.
pub(super) trait Fold {
    /// Adds a row: its key in collation form, its value as JSON (nothing for `null`).
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Adds a partial reduction.
    fn part(&mut self, partial: &[u8]) -> Result<()>;

    /// The partial reduction of all that was added.
    fn finish(self: Box<Self>) -> Result<Vec<u8>>;
}

/// The value of a row.
pub(super) fn row_value(stored: &[u8]) -> Result<Value> {
    if stored.is_empty() { Ok(Value::Null) } else { Value::parse(stored).map_err(|_| damaged()) }
}

/// What a value is stored as.
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
