//! Passes rows and parts in batches to reduce functions supplied by a program.

use super::{Fold, row_value, stored_value};
use crate::Result;
use crate::value::Value;

/// The two functions of a custom reducer.
pub(in crate::view) trait ReduceFunctions {
    /// The row type that the functions take.
    type Row;
    /// Prefix of non-empty partial reductions, for reducers that otherwise could not distinguish them from empty ones.
    const PARTIAL_PREFIX: &'static [u8];

    /// Decodes a row from its key in collation form and its stored value.
    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::Row>;

    /// Reduces rows in order; there is at least one.
    fn reduce(&self, rows: &[Self::Row]) -> Result<Value>;

    /// Combines reductions of adjacent ranges in order; there are at least two.
    fn rereduce(&self, parts: Vec<Value>) -> Result<Value>;
}

/// Maximum number of rows or parts per call.
const ROWS_MAX: usize = 1024;

/// A fold that calls the functions.
pub(in crate::view) struct FunctionFold<F: ReduceFunctions> {
    functions: F,
    rows: Vec<F::Row>,
    parts: Vec<Value>,
}

/// Decodes the result of a partial reduction.
pub(in crate::view) fn decode_function_result<F: ReduceFunctions>(partial: &[u8]) -> Result<Value> {
    row_value(partial.get(F::PARTIAL_PREFIX.len()..).unwrap_or_default())
}

impl<F: ReduceFunctions> FunctionFold<F> {
    pub(in crate::view) fn new(functions: F) -> Self {
        FunctionFold { functions, rows: Vec::new(), parts: Vec::new() }
    }

    fn fold_rows(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            let part = self.functions.reduce(&self.rows)?;
            self.rows.clear();
            self.parts.push(part);
        }
        if self.parts.len() >= ROWS_MAX {
            let parts = std::mem::take(&mut self.parts);
            self.parts.push(self.functions.rereduce(parts)?);
        }
        Ok(())
    }
}

impl<F: ReduceFunctions> Fold for FunctionFold<F> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows.push(self.functions.row(key, value)?);
        if self.rows.len() >= ROWS_MAX { self.fold_rows() } else { Ok(()) }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.fold_rows()?;
        self.parts.push(decode_function_result::<F>(partial)?);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.fold_rows()?;
        let whole = match self.parts.len() {
            0 => return Ok(Vec::new()),
            1 => self.parts.pop().unwrap_or(Value::Null),
            _ => self.functions.rereduce(std::mem::take(&mut self.parts))?,
        };
        Ok([F::PARTIAL_PREFIX, stored_value(&whole).as_slice()].concat())
    }
}
