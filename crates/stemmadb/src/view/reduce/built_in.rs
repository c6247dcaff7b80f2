//! The built-in reducers. `_sum`, `_avg` and `_stats` fold the values that are numbers, exactly; `_min` and `_max` fold
//! all values, in collation order.

use serde::{Deserialize, Serialize};

use super::distinct::Sketch;
use super::{Fold, Reducer, damaged, row_value};
use crate::index::{ordered_bytes, take_ordered};
use crate::value::collate::{self, key};
use crate::value::{ExactSum, Number, Numeric, Object, Value};
use crate::{Error, Result};

/// The result of [`Reduction::Stats`](crate::Reduction::Stats).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// The sum of the numbers.
    pub sum: f64,
    /// The number of numbers.
    pub count: u64,
    /// The smallest number; `None` if there are none.
    pub min: Option<f64>,
    /// The largest number; `None` if there are none.
    pub max: Option<f64>,
    /// The sum of the squares.
    pub sumsqr: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum BuiltIn {
    Count,
    Sum,
    Stats,
    Min,
    Max,
    Average,
    ApproxCountDistinct,
}

impl BuiltIn {
    pub(in crate::view) const ALL: [BuiltIn; 7] = [
        BuiltIn::Count,
        BuiltIn::Sum,
        BuiltIn::Stats,
        BuiltIn::Min,
        BuiltIn::Max,
        BuiltIn::Average,
        BuiltIn::ApproxCountDistinct,
    ];
}

impl Reducer for BuiltIn {
    fn name(&self) -> &str {
        match self {
            BuiltIn::Count => "_count",
            BuiltIn::Sum => "_sum",
            BuiltIn::Stats => "_stats",
            BuiltIn::Min => "_min",
            BuiltIn::Max => "_max",
            BuiltIn::Average => "_avg",
            BuiltIn::ApproxCountDistinct => "_approx_count_distinct",
        }
    }

    fn begin(&self) -> Box<dyn Fold + '_> {
        match self {
            BuiltIn::Count => Box::new(Count(0)),
            BuiltIn::Sum | BuiltIn::Average => Box::new(Sum::default()),
            BuiltIn::Stats => Box::new(Statistics::default()),
            BuiltIn::Min => Box::new(Extreme { is_max: false, found: None }),
            BuiltIn::Max => Box::new(Extreme { is_max: true, found: None }),
            BuiltIn::ApproxCountDistinct => Box::new(Sketch::default()),
        }
    }

    fn result(&self, partial: &[u8]) -> Result<Value> {
        match self {
            BuiltIn::Count => Ok(Count::decode(partial)?.into()),
            BuiltIn::Sum => Ok(total(&Sum::decode(partial)?.sum)?.into()),
            BuiltIn::Average => {
                let sum = Sum::decode(partial)?;
                match sum.count {
                    0 => Ok(Value::Null),
                    count => Ok((total(&sum.sum)?.as_f64() / count as f64).into()),
                }
            }
            BuiltIn::Stats => Statistics::decode(partial)?.result(),
            BuiltIn::Min | BuiltIn::Max => row_value(partial.get(1..).ok_or_else(damaged)?),
            BuiltIn::ApproxCountDistinct => Ok(Sketch::decode(partial)?.estimate().into()),
        }
    }
}

fn total(sum: &ExactSum) -> Result<Number> {
    sum.total().ok_or_else(|| Error::invalid("the sum is beyond the numbers"))
}

fn number(value: &[u8]) -> Result<Option<Number>> {
    // Only JSON numbers begin with these bytes.
    match value.first() {
        Some(b'-' | b'0'..=b'9') => Ok(row_value(value)?.as_number()),
        _ => Ok(None),
    }
}

fn put_count(count: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&ordered_bytes(count));
}

fn take_count(input: &mut &[u8]) -> Result<u64> {
    take_ordered(input)
}

struct Count(u64);

impl Count {
    fn decode(partial: &[u8]) -> Result<u64> {
        take_count(&mut &*partial)
    }
}

impl Fold for Count {
    fn row(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.0 = self.0.saturating_add(Self::decode(partial)?);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if self.0 > 0 {
            put_count(self.0, &mut partial);
        }
        Ok(partial)
    }
}

/// A sum and the number of summands. `has_rows` is also set by rows without a number.
#[derive(Default)]
struct Sum {
    has_rows: bool,
    count: u64,
    sum: ExactSum,
}

impl Sum {
    fn decode(partial: &[u8]) -> Result<Self> {
        let mut sum = Sum::default();
        sum.part(partial)?;
        Ok(sum)
    }
}

impl Fold for Sum {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.has_rows = true;
        if let Some(number) = number(value)? {
            self.count += 1;
            self.sum.add(number, 1);
        }
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        let mut rest = partial;
        self.has_rows = true;
        self.count = self.count.saturating_add(take_count(&mut rest)?);
        self.sum.add_encoded(&mut rest).ok_or_else(damaged)
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if self.has_rows {
            put_count(self.count, &mut partial);
            self.sum.encode(&mut partial);
        }
        Ok(partial)
    }
}

#[derive(Default)]
struct Statistics {
    has_rows: bool,
    count: u64,
    sum: ExactSum,
    squares: ExactSum,
    min: Option<Number>,
    max: Option<Number>,
}

impl Statistics {
    fn decode(partial: &[u8]) -> Result<Self> {
        let mut statistics = Statistics::default();
        statistics.part(partial)?;
        Ok(statistics)
    }

    fn extend(&mut self, number: Number) {
        if self.min.is_none_or(|min| number.compare(min).is_lt()) {
            self.min = Some(number);
        }
        if self.max.is_none_or(|max| number.compare(max).is_gt()) {
            self.max = Some(number);
        }
    }

    fn result(&self) -> Result<Value> {
        let mut object = Object::new();
        object.insert("sum", total(&self.sum)?);
        object.insert("count", self.count);
        object.insert("min", self.min.map_or(Value::Null, Value::from));
        object.insert("max", self.max.map_or(Value::Null, Value::from));
        object.insert("sumsqr", total(&self.squares)?);
        Ok(object.into())
    }
}

impl Fold for Statistics {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.has_rows = true;
        if let Some(number) = number(value)? {
            self.count += 1;
            self.sum.add(number, 1);
            add_square(number, &mut self.squares);
            self.extend(number);
        }
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        let mut rest = partial;
        self.has_rows = true;
        let count = take_count(&mut rest)?;
        self.count = self.count.saturating_add(count);
        self.sum.add_encoded(&mut rest).ok_or_else(damaged)?;
        self.squares.add_encoded(&mut rest).ok_or_else(damaged)?;
        while !rest.is_empty() {
            let (extreme, length) = key::decode(rest)?;
            self.extend(extreme.as_number().ok_or_else(damaged)?);
            rest = &rest[length..];
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if self.has_rows {
            put_count(self.count, &mut partial);
            self.sum.encode(&mut partial);
            self.squares.encode(&mut partial);
            for extreme in [self.min, self.max].into_iter().flatten() {
                key::encode_number(extreme, &mut partial);
            }
        }
        Ok(partial)
    }
}

/// Adds the square of a number exactly, except for doubles whose square overflows a double.
pub(in crate::view) fn add_square(number: Number, squares: &mut ExactSum) {
    let mut add = |double: f64| {
        if let Some(number) = Number::from_f64(double) {
            squares.add(number, 1);
        }
    };
    match number.numeric() {
        Numeric::F64(double) => {
            let square = double * double;
            add(if square.is_finite() { square } else { f64::MAX });
            add(double.mul_add(double, -square));
        }
        Numeric::I64(_) | Numeric::U64(_) => {
            let integer = number.to_integer().unwrap_or_default().unsigned_abs();
            let square = integer * integer;
            for part in 0..4 {
                let bits = (square >> (32 * part)) as u32;
                add(f64::from(bits) * 2f64.powi(32 * part));
            }
        }
    }
}

/// Keeps the smallest or largest value.
struct Extreme {
    is_max: bool,
    found: Option<Value>,
}

impl Extreme {
    fn add(&mut self, value: Value) {
        let is_better = self.found.as_ref().is_none_or(|found| {
            let order = collate::compare(&value, found);
            if self.is_max { order.is_gt() } else { order.is_lt() }
        });
        if is_better {
            self.found = Some(value);
        }
    }
}

impl Fold for Extreme {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.add(row_value(value)?);
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.add(row_value(partial.get(1..).ok_or_else(damaged)?)?);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if let Some(value) = &self.found {
            // The mark keeps a stored `null`, which is empty, from looking like an empty part.
            partial.push(1);
            value.write_json(&mut partial);
        }
        Ok(partial)
    }
}
