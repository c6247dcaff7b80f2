//! CouchDB's `_sum`: of numbers; of arrays and objects recursively, by element and by field. Sums are exact.
//!
//! Layout of a partial reduction: a kind byte; then an exact sum; or the number of elements and each sum; or the number
//! of fields and of each its name (length and bytes) and its sum; or an error message.

use crate::value::{ExactSum, Number, Object, Value};
use crate::varint;
use crate::view::layout::damaged;
use crate::view::reduce::{Fold, row_value};
use crate::{Error, Result};

/// The sum of several values.
#[derive(Debug, Clone)]
enum Sum {
    Number(ExactSum),
    Array(Vec<Sum>),
    Object(Vec<(String, Sum)>),
    Failed(String),
}

const NUMBER: u8 = 0;
const ARRAY: u8 = 1;
const OBJECT: u8 = 2;
const FAILED: u8 = 3;

/// Values nested deeper than this are not summed.
const DEPTH_MAX: usize = 64;

impl Sum {
    fn from_value(value: &Value, depth: usize) -> Self {
        match value {
            _ if depth == 0 => unsupported_value(value),
            Value::Number(number) => Sum::Number(exact_sum(*number)),
            Value::Array(elements) => {
                Sum::Array(elements.iter().map(|element| Sum::from_value(element, depth - 1)).collect())
            }
            Value::Object(fields) => Sum::Object(
                fields.iter().map(|(name, value)| (name.to_owned(), Sum::from_value(value, depth - 1))).collect(),
            ),
            _ => unsupported_value(value),
        }
    }

    fn add(self, other: Sum) -> Sum {
        match (self, other) {
            (failed @ Sum::Failed(_), _) | (_, failed @ Sum::Failed(_)) => failed,
            (Sum::Number(mut a), Sum::Number(b)) => {
                let mut bytes = Vec::new();
                b.encode(&mut bytes);
                match a.add_encoded(&mut bytes.as_slice()) {
                    Some(()) => Sum::Number(a),
                    None => Sum::Failed("The sum is beyond the numbers.".to_owned()),
                }
            }
            (Sum::Array(a), Sum::Array(b)) => add_elements(a, b),
            (number @ Sum::Number(_), Sum::Array(b)) => add_elements(vec![number], b),
            (Sum::Array(a), number @ Sum::Number(_)) => add_elements(a, vec![number]),
            (Sum::Object(mut a), Sum::Object(b)) => {
                for (name, value) in b {
                    match a.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => {
                            let before = std::mem::replace(known, Sum::Array(Vec::new()));
                            *known = before.add(value);
                        }
                        None => a.push((name, value)),
                    }
                }
                Sum::Object(a)
            }
            (Sum::Object(fields), other) | (other, Sum::Object(fields)) => {
                let object = Sum::Object(fields).value().unwrap_or_default();
                drop(other);
                unsupported_value(&object)
            }
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Sum::Failed(why) => Some(why),
            Sum::Number(_) => None,
            Sum::Array(elements) => elements.iter().find_map(Sum::failure),
            Sum::Object(fields) => fields.iter().find_map(|(_, sum)| sum.failure()),
        }
    }

    fn value(&self) -> Result<Value> {
        match self {
            Sum::Number(sum) => Ok(sum.total().ok_or_else(|| Error::invalid("the sum is beyond the numbers"))?.into()),
            Sum::Array(elements) => elements.iter().map(Sum::value).collect::<Result<Vec<_>>>().map(Value::from),
            Sum::Object(fields) => {
                let mut object = Object::new();
                for (name, sum) in fields {
                    object.insert(name, sum.value()?);
                }
                Ok(object.into())
            }
            Sum::Failed(why) => Ok(why.as_str().into()),
        }
    }

    /// Length in bytes as JSON; approximate for a number.
    fn json_byte_count(&self, encoded: &[u8]) -> Result<usize> {
        match self {
            Sum::Array(_) | Sum::Object(_) if encoded.len() > OVERFLOW_BYTES / 4 => Ok(self.value()?.to_json().len()),
            _ => Ok(encoded.len()),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Sum::Number(sum) => {
                out.push(NUMBER);
                sum.encode(out);
            }
            Sum::Array(elements) => {
                out.push(ARRAY);
                varint::write(elements.len() as u64, out);
                elements.iter().for_each(|element| element.encode(out));
            }
            Sum::Object(fields) => {
                out.push(OBJECT);
                varint::write(fields.len() as u64, out);
                for (name, sum) in fields {
                    encode_text(name, out);
                    sum.encode(out);
                }
            }
            Sum::Failed(why) => {
                out.push(FAILED);
                encode_text(why, out);
            }
        }
    }

    fn decode(input: &mut &[u8]) -> Result<Self> {
        let (&kind, rest) = input.split_first().ok_or_else(malformed)?;
        *input = rest;
        match kind {
            NUMBER => {
                let mut sum = ExactSum::default();
                sum.add_encoded(input).ok_or_else(malformed)?;
                Ok(Sum::Number(sum))
            }
            ARRAY => {
                let count = varint::read(input)?;
                (0..count).map(|_| Sum::decode(input)).collect::<Result<_>>().map(Sum::Array)
            }
            OBJECT => {
                let count = varint::read(input)?;
                let field = |_| Ok((decode_text(input)?, Sum::decode(input)?));
                (0..count).map(field).collect::<Result<_>>().map(Sum::Object)
            }
            FAILED => decode_text(input).map(Sum::Failed),
            _ => Err(malformed()),
        }
    }
}

fn add_elements(a: Vec<Sum>, b: Vec<Sum>) -> Sum {
    let (mut long, short, is_swapped) = if a.len() >= b.len() { (a, b, false) } else { (b, a, true) };
    for (sum, other) in long.iter_mut().zip(short) {
        let own = std::mem::replace(sum, Sum::Array(Vec::new()));
        *sum = if is_swapped { other.add(own) } else { own.add(other) };
    }
    Sum::Array(long)
}

fn exact_sum(number: Number) -> ExactSum {
    let mut sum = ExactSum::default();
    sum.add(number, 1);
    sum
}

fn overflow(input_bytes: usize, output_bytes: usize) -> Sum {
    Sum::Failed(format!(
        "Reduce output must shrink more rapidly: input size: {input_bytes} output size: {output_bytes}"
    ))
}

fn unsupported_value(value: &Value) -> Sum {
    let shown: String = value.to_json().chars().take(200).collect();
    Sum::Failed(format!(
        "The _sum function requires that map values be numbers, arrays, or objects, not '{shown}'. Objects cannot be \
        mixed with other data structures. Objects can be arbitrarily nested, provided that the values for all fields \
        are themselves numbers, arrays, or objects."
    ))
}

pub(super) fn encode_text(text: &str, out: &mut Vec<u8>) {
    varint::write(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn decode_text(input: &mut &[u8]) -> Result<String> {
    let length = varint::read(input)?;
    let (text, rest) = input.split_at_checked(length as usize).ok_or_else(malformed)?;
    *input = rest;
    String::from_utf8(text.to_vec()).map_err(|_| malformed())
}

fn malformed() -> Error {
    damaged("a partial reduction")
}

/// Folds a sum.
#[derive(Default)]
pub(super) struct SumFold {
    /// `None` before the first value.
    sum: Option<Sum>,
    /// The sum of the numbers, the most frequent case.
    numbers: Option<ExactSum>,
    /// The number of rows and parts that were folded, and their approximate size in bytes.
    input_count: usize,
    byte_count: usize,
}

/// As in CouchDB, a sum of several rows is refused if, as JSON, it is longer than this and than half of its input: it
/// would grow with the view.
const OVERFLOW_BYTES: usize = 4906;

impl SumFold {
    fn add(&mut self, other: Sum) {
        if let Sum::Failed(_) = other {
            self.sum.get_or_insert(other);
            return;
        }
        let sum = self.sum.take();
        self.sum = Some(match sum {
            Some(sum) => sum.add(other),
            None => other,
        });
    }

    /// What a partial reduction stands for: the sum, or why there is none.
    pub(super) fn result(partial: &[u8]) -> Result<Result<Value, String>> {
        let sum = Sum::decode(&mut &*partial)?;
        match sum.failure() {
            Some(why) => Ok(Err(why.to_owned())),
            None => sum.value().map(Ok),
        }
    }
}

impl Fold for SumFold {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.input_count += 1;
        self.byte_count += key.len() + value.len();
        match row_value(value)? {
            Value::Number(number) => self.numbers.get_or_insert_default().add(number, 1),
            other => self.add(Sum::from_value(&other, DEPTH_MAX)),
        }
        Ok(())
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        let part = Sum::decode(&mut &*partial)?;
        self.input_count += 1;
        self.byte_count += part.json_byte_count(partial)?;
        self.add(part);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        if let Some(numbers) = self.numbers.take() {
            self.add(Sum::Number(numbers));
        }
        let mut partial = Vec::new();
        if let Some(sum) = &self.sum {
            sum.encode(&mut partial);
            let byte_count = sum.json_byte_count(&partial)?;
            let is_overflow = byte_count > OVERFLOW_BYTES && byte_count * 2 > self.byte_count;
            if is_overflow && self.input_count > 1 && sum.failure().is_none() {
                partial.clear();
                overflow(self.byte_count, byte_count).encode(&mut partial);
            }
        }
        Ok(partial)
    }
}
