//! Rows and parts on their way to functions of a program, some at a time.

use super::{Fold, row_value, stored_value};
use crate::Result;
use crate::value::Value;

/// A reducer's two functions.
pub(in crate::view) trait Functions {
    /// A row as they get it.
    type Row;
    /// Partial reductions begin with it: where nothing else tells them apart from those of no rows, which are empty.
    const MARK: &'static [u8];

    /// A row: its key in collation form, and its value as it is stored.
    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::Row>;

    /// What rows come to: at least one, in order.
    fn reduce(&self, rows: &[Self::Row]) -> Result<Value>;

    /// What reductions of rows that follow each other come to: at least two, in order.
    fn rereduce(&self, parts: Vec<Value>) -> Result<Value>;
}

/// Rows or parts given to a function at once.
const ROWS_MAX: usize = 1024;

/// A fold by functions.
pub(in crate::view) struct Called<F: Functions> {
    functions: F,
    rows: Vec<F::Row>,
    parts: Vec<Value>,
}

/// What a partial reduction by functions stands for.
pub(in crate::view) fn called_result<F: Functions>(partial: &[u8]) -> Result<Value> {
    row_value(partial.get(F::MARK.len()..).unwrap_or_default())
}

impl<F: Functions> Called<F> {
    pub(in crate::view) fn new(functions: F) -> Self {
        Called { functions, rows: Vec::new(), parts: Vec::new() }
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

impl<F: Functions> Fold for Called<F> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows.push(self.functions.row(key, value)?);
        if self.rows.len() >= ROWS_MAX { self.fold_rows() } else { Ok(()) }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.fold_rows()?;
        self.parts.push(called_result::<F>(partial)?);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.fold_rows()?;
        let whole = match self.parts.len() {
            0 => return Ok(Vec::new()),
            1 => self.parts.pop().unwrap_or(Value::Null),
            _ => self.functions.rereduce(std::mem::take(&mut self.parts))?,
        };
        Ok([F::MARK, stored_value(&whole).as_slice()].concat())
    }
}
