//! Reducers that are functions of the program: partial reductions are what they return, as JSON.

use std::sync::Arc;

use super::called::{Called, Functions, called_result};
use super::{Fold, Reducer, row_value};
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
        Box::new(Called::new(&*self.0))
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        called_result::<&dyn CustomReduce>(partial)
    }
}

impl Functions for &dyn CustomReduce {
    type Row = (Value, Value);
    const MARK: &'static [u8] = &[1];

    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::Row> {
        Ok((key::decode(key)?.0, row_value(value)?))
    }

    fn reduce(&self, rows: &[Self::Row]) -> Result<Value> {
        (**self).reduce(rows)
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        (**self).rereduce(parts)
    }
}
