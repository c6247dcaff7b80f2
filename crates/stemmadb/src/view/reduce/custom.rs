//! Custom reducers of typed views; partial reductions are the functions' results as JSON.

use std::sync::Arc;

use super::function_fold::{FunctionFold, ReduceFunctions, decode_function_result};
use super::{Fold, Reducer, row_value};
use crate::Result;
use crate::value::Value;
use crate::value::collate::key;

/// The two functions of a custom reducer, over untyped values.
pub(in crate::view) trait CustomReduce: Send + Sync {
    /// Reduces rows in order; there is at least one.
    fn reduce(&self, rows: &[(Value, Value)]) -> Result<Value>;

    /// Combines reductions of adjacent ranges in order; there are at least two.
    fn rereduce(&self, parts: Vec<Value>) -> Result<Value>;
}

/// Adapts a [`CustomReduce`] to [`Reducer`].
pub(in crate::view) struct CustomReducer(pub(in crate::view) Arc<dyn CustomReduce>);

impl Reducer for CustomReducer {
    fn name(&self) -> &str {
        "custom"
    }

    fn begin(&self) -> Box<dyn Fold + '_> {
        Box::new(FunctionFold::new(&*self.0))
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        decode_function_result::<&dyn CustomReduce>(partial)
    }
}

impl ReduceFunctions for &dyn CustomReduce {
    type Row = (Value, Value);
    const PARTIAL_PREFIX: &'static [u8] = &[1];

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
