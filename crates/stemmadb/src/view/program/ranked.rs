//! CouchDB's `_first` and `_last` (the value of the first or last row), and `_top_N` and `_bottom_N` (the greatest or
//! smallest distinct values in ICU collation order).
//!
//! Layout of a partial reduction: the value as JSON; or each of the values as its length and its JSON.

use std::collections::BTreeMap;

use super::keys;
use crate::Result;
use crate::value::Value;
use crate::varint;
use crate::view::layout::damaged;
use crate::view::reduce::{Fold, row_value, stored_value};

/// Keeps the first or the last value.
pub(super) struct FirstLastFold {
    is_last: bool,
    found: Option<Vec<u8>>,
}

impl FirstLastFold {
    pub(super) fn new(is_last: bool) -> Self {
        FirstLastFold { is_last, found: None }
    }

    fn add(&mut self, value: &[u8]) {
        if self.is_last || self.found.is_none() {
            self.found = Some(value.to_vec());
        }
    }
}

impl Fold for FirstLastFold {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.add(value);
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.add(partial);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        Ok(self.found.unwrap_or_default())
    }
}

/// Keeps the greatest or the smallest values.
pub(super) struct RankFold {
    count_max: u8,
    is_top: bool,
    /// Stored values by their collation bytes.
    best: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl RankFold {
    pub(super) fn new(count_max: u8, is_top: bool) -> Self {
        RankFold { count_max, is_top, best: BTreeMap::new() }
    }

    fn add(&mut self, value: &Value) {
        self.best.entry(keys::collation_key(value)).or_insert_with(|| stored_value(value));
        if self.best.len() > usize::from(self.count_max) {
            if self.is_top {
                self.best.pop_first()
            } else {
                self.best.pop_last()
            };
        }
    }

    /// Decodes the values of a partial reduction, best first.
    pub(super) fn values(mut partial: &[u8]) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        while !partial.is_empty() {
            let length = varint::read(&mut partial)?;
            let length = usize::try_from(length).ok().filter(|length| *length <= partial.len());
            let (value, rest) = partial.split_at(length.ok_or_else(|| damaged("a partial reduction"))?);
            values.push(row_value(value)?);
            partial = rest;
        }
        Ok(values)
    }
}

impl Fold for RankFold {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.add(&row_value(value)?);
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        Self::values(partial)?.iter().for_each(|value| self.add(value));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        let mut put = |value: &Vec<u8>| {
            varint::write(value.len() as u64, &mut partial);
            partial.extend_from_slice(value);
        };
        match self.is_top {
            true => self.best.values().rev().for_each(&mut put),
            false => self.best.values().for_each(&mut put),
        }
        Ok(partial)
    }
}
