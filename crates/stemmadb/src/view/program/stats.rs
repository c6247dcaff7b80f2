//! CouchDB's `_stats`: of numbers; of arrays of numbers, by element; and of objects that already are statistics.
//!
//! Layout of a partial reduction: a kind byte; then the number of statistics and each of them (count, exact sums,
//! extremes), or an error message.

use super::sum::{decode_text, encode_text};
use crate::value::collate::key;
use crate::value::{ExactSum, Number, Object, Value};
use crate::varint;
use crate::view::layout::damaged;
use crate::view::reduce::{Fold, add_square, row_value};
use crate::{Error, Result};

/// The statistics of at least one number, or precomputed statistics.
#[derive(Debug, Clone)]
struct Statistics {
    count: u64,
    sum: ExactSum,
    squares: ExactSum,
    min: Number,
    max: Number,
}

#[derive(Debug, Clone)]
enum Stats {
    One(Statistics),
    Many(Vec<Statistics>),
    Failed(String),
}

const ONE: u8 = 0;
const MANY: u8 = 1;
const FAILED: u8 = 2;

impl Statistics {
    fn from_number(number: Number) -> Self {
        let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
        sum.add(number, 1);
        add_square(number, &mut squares);
        Statistics { count: 1, sum, squares, min: number, max: number }
    }

    /// Reads precomputed statistics from an object.
    fn from_object(object: &Object) -> Option<Self> {
        let number = |name| object.get(name).and_then(Value::as_number);
        let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
        sum.add(number("sum")?, 1);
        squares.add(number("sumsqr")?, 1);
        let count = object.get("count").and_then(Value::as_u64)?;
        Some(Statistics { count, sum, squares, min: number("min")?, max: number("max")? })
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Some(Self::from_number(*number)),
            Value::Object(object) => Self::from_object(object),
            _ => None,
        }
    }

    fn add(&mut self, other: &Statistics) -> Option<()> {
        let mut encoded = Vec::new();
        other.sum.encode(&mut encoded);
        other.squares.encode(&mut encoded);
        let mut rest = encoded.as_slice();
        self.sum.add_encoded(&mut rest)?;
        self.squares.add_encoded(&mut rest)?;
        self.count = self.count.saturating_add(other.count);
        if other.min.compare(self.min).is_lt() {
            self.min = other.min;
        }
        if other.max.compare(self.max).is_gt() {
            self.max = other.max;
        }
        Some(())
    }

    fn value(&self) -> Result<Value> {
        let total = |sum: &ExactSum| sum.total().ok_or_else(|| Error::invalid("the sum is beyond the numbers"));
        let mut object = Object::new();
        object.insert("sum", total(&self.sum)?);
        object.insert("count", self.count);
        object.insert("min", self.min);
        object.insert("max", self.max);
        object.insert("sumsqr", total(&self.squares)?);
        Ok(object.into())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        varint::write(self.count, out);
        self.sum.encode(out);
        self.squares.encode(out);
        key::encode_number(self.min, out);
        key::encode_number(self.max, out);
    }

    fn decode(input: &mut &[u8]) -> Result<Self> {
        let count = varint::read(input)?;
        let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
        sum.add_encoded(input).ok_or_else(malformed)?;
        squares.add_encoded(input).ok_or_else(malformed)?;
        let mut number = || {
            let (number, length) = key::decode(input)?;
            *input = &input[length..];
            number.as_number().ok_or_else(malformed)
        };
        Ok(Statistics { count, sum, squares, min: number()?, max: number()? })
    }
}

fn malformed() -> Error {
    damaged("a partial reduction")
}

fn unsupported_value(value: &Value) -> Stats {
    let shown: String = value.to_json().chars().take(200).collect();
    Stats::Failed(format!(
        "The _stats function requires that map values be numbers or arrays of numbers, not '{shown}'"
    ))
}

impl Stats {
    fn from_value(value: &Value) -> Self {
        let statistics = match value {
            Value::Array(elements) => {
                elements.iter().map(Statistics::from_value).collect::<Option<_>>().map(Stats::Many)
            }
            other => Statistics::from_value(other).map(Stats::One),
        };
        statistics.unwrap_or_else(|| unsupported_value(value))
    }

    fn add(self, other: Stats) -> Stats {
        let beyond = || Stats::Failed("The sum is beyond the numbers.".to_owned());
        match (self, other) {
            (failed @ Stats::Failed(_), _) | (_, failed @ Stats::Failed(_)) => failed,
            (Stats::One(mut a), Stats::One(b)) => a.add(&b).map_or_else(beyond, |()| Stats::One(a)),
            (Stats::Many(mut a), Stats::Many(b)) if a.len() == b.len() => {
                let added: Option<()> = a.iter_mut().zip(&b).map(|(a, b)| a.add(b)).collect();
                added.map_or_else(beyond, |()| Stats::Many(a))
            }
            (a, _) => Stats::Failed(format!(
                "The _stats function requires that all map values have the same form, unlike '{}'",
                a.value().map(|value| value.to_json()).unwrap_or_default().chars().take(200).collect::<String>()
            )),
        }
    }

    fn value(&self) -> Result<Value> {
        match self {
            Stats::One(one) => one.value(),
            Stats::Many(many) => many.iter().map(Statistics::value).collect::<Result<Vec<_>>>().map(Value::from),
            Stats::Failed(why) => Ok(why.as_str().into()),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Stats::One(one) => {
                out.push(ONE);
                one.encode(out);
            }
            Stats::Many(many) => {
                out.push(MANY);
                varint::write(many.len() as u64, out);
                many.iter().for_each(|one| one.encode(out));
            }
            Stats::Failed(why) => {
                out.push(FAILED);
                encode_text(why, out);
            }
        }
    }

    fn decode(mut input: &[u8]) -> Result<Self> {
        let (&kind, rest) = input.split_first().ok_or_else(malformed)?;
        input = rest;
        match kind {
            ONE => Statistics::decode(&mut input).map(Stats::One),
            MANY => {
                let count = varint::read(&mut input)?;
                (0..count).map(|_| Statistics::decode(&mut input)).collect::<Result<_>>().map(Stats::Many)
            }
            FAILED => decode_text(&mut input).map(Stats::Failed),
            _ => Err(malformed()),
        }
    }
}

/// Folds statistics.
#[derive(Default)]
pub(super) struct StatsFold(Option<Stats>);

impl StatsFold {
    fn add(&mut self, other: Stats) {
        let before = self.0.take();
        self.0 = Some(match before {
            Some(before) => before.add(other),
            None => other,
        });
    }

    /// Decodes a partial reduction: the statistics, or an error message.
    pub(super) fn result(partial: &[u8]) -> Result<Result<Value, String>> {
        match Stats::decode(partial)? {
            Stats::Failed(why) => Ok(Err(why)),
            stats => stats.value().map(Ok),
        }
    }
}

impl Fold for StatsFold {
    fn row(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        self.add(Stats::from_value(&row_value(value)?));
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.add(Stats::decode(partial)?);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        let mut partial = Vec::new();
        if let Some(stats) = &self.0 {
            stats.encode(&mut partial);
        }
        Ok(partial)
    }
}
