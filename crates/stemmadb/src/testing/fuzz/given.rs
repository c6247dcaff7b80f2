//! Values and selectors out of a fuzzer's bytes: the same bytes give the same ones, and bytes that differ a little mostly do, too.

use arbitrary::{Result, Unstructured};

use crate::value::{Number, Object, Value};

/// Names that documents and selectors have in common; two of them are positions in arrays, too.
const NAMES: [&str; 6] = ["a", "b", "c", "0", "1", ""];
/// Arrays and objects that values made here have within each other at most.
const DEPTH: usize = 4;
const FIELDS_MAX: usize = 5;

/// A value of any kind.
pub(super) fn value(given: &mut Unstructured<'_>) -> Result<Value> {
    value_within(given, DEPTH)
}

/// An object of a few fields.
pub(super) fn object(given: &mut Unstructured<'_>) -> Result<Value> {
    object_within(given, DEPTH)
}

fn value_within(given: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let kinds = if depth == 0 { 3 } else { 5 };
    Ok(match given.int_in_range(0..=kinds)? {
        0 => Value::Null,
        1 => Value::Bool(given.arbitrary()?),
        2 => Value::Number(number(given)?),
        3 => Value::String(text(given)?),
        4 => {
            let count = given.int_in_range(0..=FIELDS_MAX)?;
            Value::Array((0..count).map(|_| value_within(given, depth - 1)).collect::<Result<_>>()?)
        }
        _ => object_within(given, depth - 1)?,
    })
}

fn object_within(given: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut object = Object::new();
    for _ in 0..given.int_in_range(0..=FIELDS_MAX)? {
        let name = if given.ratio(7, 8)? { (*given.choose(&NAMES)?).to_owned() } else { text(given)? };
        object.insert(name, value_within(given, depth)?);
    }
    Ok(Value::Object(object))
}

fn number(given: &mut Unstructured<'_>) -> Result<Number> {
    let zero = Number::from(0u64);
    Ok(match given.int_in_range(0..=4)? {
        0 => Number::from(i64::from(given.int_in_range(-3i8..=6)?)),
        1 => Number::from(given.arbitrary::<i64>()?),
        2 => Number::from(given.arbitrary::<u64>()?),
        3 => Number::from_f64(f64::from(given.arbitrary::<i16>()?) / 4.0).unwrap_or(zero),
        _ => Number::from_f64(given.arbitrary()?).unwrap_or(zero),
    })
}

/// Text: short and often alike, or any.
pub(super) fn text(given: &mut Unstructured<'_>) -> Result<String> {
    Ok(match given.int_in_range(0..=3)? {
        0 => (*given.choose(&["", "a", "ab", "abc", "b", "a\u{0}", "\u{e9}", "e\u{301}", "\u{10FFFF}"])?).to_owned(),
        1 => "a".repeat(given.int_in_range(0..=40)?),
        _ => given.arbitrary::<&str>()?.to_owned(),
    })
}

fn single(name: impl AsRef<str>, value: Value) -> Value {
    let mut object = Object::new();
    object.insert(name, value);
    Value::Object(object)
}

fn path(given: &mut Unstructured<'_>) -> Result<String> {
    if given.ratio(1, 10)? {
        return Ok((*given.choose(&["_id", "_rev", "_id.a"])?).to_owned());
    }
    let count = given.int_in_range(1..=3)?;
    let names: Vec<&str> = (0..count).map(|_| given.choose(&NAMES[..5]).copied()).collect::<Result<_>>()?;
    Ok(names.join("."))
}

/// A selector as Mango JSON has it: conditions, joined and turned round, up to `depth` joins deep.
pub(super) fn selector(given: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    if depth > 0 && given.ratio(2, 5)? {
        let join = *given.choose(&["$and", "$or", "$nor", "$not"])?;
        if join == "$not" {
            return Ok(single(join, selector(given, depth - 1)?));
        }
        let count = given.int_in_range(0..=3)?;
        let parts = (0..count).map(|_| selector(given, depth - 1)).collect::<Result<_>>()?;
        return Ok(single(join, Value::Array(parts)));
    }
    let test = if given.ratio(1, 5)? { value_within(given, 2)? } else { operators(given, depth)? };
    Ok(single(path(given)?, test))
}

fn operators(given: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut tests = Object::new();
    for _ in 0..given.int_in_range(1..=2)? {
        let (name, operand) = operator(given, depth)?;
        tests.insert(name, operand);
    }
    Ok(Value::Object(tests))
}

fn operator(given: &mut Unstructured<'_>, depth: usize) -> Result<(&'static str, Value)> {
    Ok(match given.int_in_range(0..=8)? {
        0..=2 => (*given.choose(&["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"])?, value_within(given, 2)?),
        3 => {
            let count = given.int_in_range(0..=3)?;
            let list = (0..count).map(|_| value_within(given, 2)).collect::<Result<_>>()?;
            (*given.choose(&["$in", "$nin", "$all"])?, Value::Array(list))
        }
        4 => ("$exists", Value::Bool(given.arbitrary()?)),
        5 => {
            let kinds = ["null", "boolean", "number", "string", "array", "object"];
            ("$type", Value::from(*given.choose(&kinds)?))
        }
        6 => match given.int_in_range(0..=2)? {
            0 => ("$beginsWith", Value::String(text(given)?)),
            1 => ("$regex", Value::from(*given.choose(&["^a", "b$", "^ab?$", "^(a|b)", "(?i)A", ".", "^a{3}"])?)),
            _ => ("$regex", Value::String(text(given)?)),
        },
        7 => match given.arbitrary()? {
            true => ("$mod", Value::from([given.int_in_range(1..=4i64)?, given.int_in_range(-2..=3i64)?])),
            false => ("$size", Value::from(given.int_in_range(0..=4u32)?)),
        },
        _ => {
            let inner = match depth {
                0 => Value::Object(Object::new()),
                _ if given.arbitrary()? => operators(given, depth - 1)?,
                _ => selector(given, depth - 1)?,
            };
            (*given.choose(&["$elemMatch", "$allMatch", "$keyMapMatch"])?, inner)
        }
    })
}
