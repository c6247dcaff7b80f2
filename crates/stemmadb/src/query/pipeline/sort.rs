//! `$sort` of rows that are not documents in their original order. Ties keep their order.

use super::measure::measure;
use crate::Result;
use crate::query::language::sort::{Sort, append_value};
use crate::query::source::QuerySource;
use crate::value::Value;

/// The rows collected so far, of which the first ones are wanted.
pub(super) struct SortedRows<'s> {
    sort: &'s Sort,
    rows_needed: usize,
    rows: Vec<(Vec<u8>, Value)>,
    bytes: usize,
}

/// How many rows more than the needed ones are collected before the surplus is dropped.
const SURPLUS: usize = if cfg!(test) { 2 } else { 1_000 };

impl<'s> SortedRows<'s> {
    /// Sorts rows and returns at most `rows_needed` of them.
    pub(super) fn new(sort: &'s Sort, rows_needed: usize) -> Self {
        SortedRows { sort, rows_needed, rows: Vec::new(), bytes: 0 }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// `Stopped` if the rows need more memory than the query may use.
    pub(super) fn add(&mut self, row: Value, source: &impl QuerySource) -> Result<()> {
        let mut key = Vec::new();
        for by in &self.sort.keys {
            append_value(&mut key, by.path.get(&row), by);
        }
        self.bytes += byte_count(&key, &row)?;
        self.rows.push((key, row));
        if self.rows.len() >= self.rows_needed.saturating_mul(2).saturating_add(SURPLUS) {
            self.rows.sort_by(|left, right| left.0.cmp(&right.0));
            for (key, row) in self.rows.drain(self.rows_needed..) {
                self.bytes = self.bytes.saturating_sub(byte_count(&key, &row)?);
            }
        }
        source.check_memory(self.bytes)
    }

    /// Returns the rows in order.
    pub(super) fn finish(mut self) -> Vec<Value> {
        self.rows.sort_by(|left, right| left.0.cmp(&right.0));
        self.rows.truncate(self.rows_needed);
        self.rows.into_iter().map(|(_, row)| row).collect()
    }
}

fn byte_count(key: &[u8], row: &Value) -> Result<usize> {
    Ok(key.len() + measure(row)?)
}
