//! Reducers that are functions of the program: partial reductions are what they return, as JSON.

use std::sync::Arc;

use super::{Fold, Reducer, row_value, stored_value};
use crate::Result;
use crate::value::Value;
use crate::value::collate::key;

/// A reducer's two functions, over values.
pub(in crate::view) trait CustomReduce: Send + Sync {
    /// What rows come to: at least one, in order.
    fn reduce(&self, rows: &[(Value, Value)]) -> Result<Value>;

    /// What reductions of rows that follow each other come to: at least two, in order.
    fn rereduce(&self, parts: Vec<Value>) -> Result<Value>;
}

/// A reducer of the program.
pub(in crate::view) struct Custom(pub(in crate::view) Arc<dyn CustomReduce>);

impl Reducer for Custom {
    fn name(&self) -> &str {
        "custom"
    }

    fn begin(&self) -> Box<dyn Fold + '_> {
        Box::new(CustomFold { reduce: &*self.0, rows: Vec::new(), parts: Vec::new() })
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        row_value(partial.get(1..).unwrap_or_default())
    }
}

struct CustomFold<'a> {
    reduce: &'a dyn CustomReduce,
    rows: Vec<(Value, Value)>,
    parts: Vec<Value>,
}

/// Rows given to a reducer at once, and parts.
const ROWS_MAX: usize = 1024;

impl CustomFold<'_> {
    fn fold_rows(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            let part = self.reduce.reduce(&self.rows)?;
            self.rows.clear();
            self.parts.push(part);
        }
        if self.parts.len() >= ROWS_MAX {
            let parts = std::mem::take(&mut self.parts);
            self.parts.push(self.reduce.rereduce(parts)?);
        }
        Ok(())
    }
}

impl Fold for CustomFold<'_> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows.push((key::decode(key)?.0, row_value(value)?));
        if self.rows.len() >= ROWS_MAX { self.fold_rows() } else { Ok(()) }
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.fold_rows()?;
        self.parts.push(row_value(partial.get(1..).unwrap_or_default())?);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.fold_rows()?;
        let whole = match self.parts.len() {
            0 => return Ok(Vec::new()),
            1 => self.parts.pop().unwrap_or(Value::Null),
            _ => self.reduce.rereduce(std::mem::take(&mut self.parts))?,
        };
        // So that `null` is not an empty part.
        Ok([&[1], stored_value(&whole).as_slice()].concat())
    }
}
