//! Generators of values and selectors from a fuzzer's bytes: equal bytes give equal results, and similar bytes mostly
//! similar ones.

use arbitrary::{Result, Unstructured};

use crate::value::{Number, Object, Value};

/// Field names shared by documents and selectors; two of them are also array positions.
const NAMES: [&str; 6] = ["a", "b", "c", "0", "1", ""];
/// Maximum nesting depth of generated values.
const DEPTH: usize = 4;
const FIELDS_MAX: usize = 5;

/// Generates a value of any kind.
pub(super) fn value(input: &mut Unstructured<'_>) -> Result<Value> {
    value_within(input, DEPTH)
}

/// Generates an object with a few fields.
pub(super) fn object(input: &mut Unstructured<'_>) -> Result<Value> {
    object_within(input, DEPTH)
}

fn value_within(input: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let kinds = if depth == 0 { 3 } else { 5 };
    Ok(match input.int_in_range(0..=kinds)? {
        0 => Value::Null,
        1 => Value::Bool(input.arbitrary()?),
        2 => Value::Number(number(input)?),
        3 => Value::String(text(input)?),
        4 => {
            let count = input.int_in_range(0..=FIELDS_MAX)?;
            Value::Array((0..count).map(|_| value_within(input, depth - 1)).collect::<Result<_>>()?)
        }
        _ => object_within(input, depth - 1)?,
    })
}

fn object_within(input: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut object = Object::new();
    for _ in 0..input.int_in_range(0..=FIELDS_MAX)? {
        let name = if input.ratio(7, 8)? { (*input.choose(&NAMES)?).to_owned() } else { text(input)? };
        object.insert(name, value_within(input, depth)?);
    }
    Ok(Value::Object(object))
}

fn number(input: &mut Unstructured<'_>) -> Result<Number> {
    let zero = Number::from(0u64);
    Ok(match input.int_in_range(0..=4)? {
        0 => Number::from(i64::from(input.int_in_range(-3i8..=6)?)),
        1 => Number::from(input.arbitrary::<i64>()?),
        2 => Number::from(input.arbitrary::<u64>()?),
        3 => Number::from_f64(f64::from(input.arbitrary::<i16>()?) / 4.0).unwrap_or(zero),
        _ => Number::from_f64(input.arbitrary()?).unwrap_or(zero),
    })
}

/// Generates a string: short and often similar to others, or arbitrary.
pub(super) fn text(input: &mut Unstructured<'_>) -> Result<String> {
    Ok(match input.int_in_range(0..=3)? {
        0 => (*input.choose(&["", "a", "ab", "abc", "b", "a\u{0}", "\u{e9}", "e\u{301}", "\u{10FFFF}"])?).to_owned(),
        1 => "a".repeat(input.int_in_range(0..=40)?),
        _ => input.arbitrary::<&str>()?.to_owned(),
    })
}

fn single_field_object(name: impl AsRef<str>, value: Value) -> Value {
    let mut object = Object::new();
    object.insert(name, value);
    Value::Object(object)
}

fn path(input: &mut Unstructured<'_>) -> Result<String> {
    if input.ratio(1, 10)? {
        return Ok((*input.choose(&["_id", "_rev", "_id.a"])?).to_owned());
    }
    let count = input.int_in_range(1..=3)?;
    let names: Vec<&str> = (0..count).map(|_| input.choose(&NAMES[..5]).copied()).collect::<Result<_>>()?;
    Ok(names.join("."))
}

/// Generates a selector as Mango JSON: conditions combined and negated, up to `depth` levels deep.
pub(super) fn selector(input: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    if depth > 0 && input.ratio(2, 5)? {
        let combinator = *input.choose(&["$and", "$or", "$nor", "$not"])?;
        if combinator == "$not" {
            return Ok(single_field_object(combinator, selector(input, depth - 1)?));
        }
        let count = input.int_in_range(0..=3)?;
        let parts = (0..count).map(|_| selector(input, depth - 1)).collect::<Result<_>>()?;
        return Ok(single_field_object(combinator, Value::Array(parts)));
    }
    let test = if input.ratio(1, 5)? { value_within(input, 2)? } else { operators(input, depth)? };
    Ok(single_field_object(path(input)?, test))
}

fn operators(input: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut tests = Object::new();
    for _ in 0..input.int_in_range(1..=2)? {
        let (name, operand) = operator(input, depth)?;
        tests.insert(name, operand);
    }
    Ok(Value::Object(tests))
}

fn operator(input: &mut Unstructured<'_>, depth: usize) -> Result<(&'static str, Value)> {
    Ok(match input.int_in_range(0..=8)? {
        0..=2 => (*input.choose(&["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"])?, value_within(input, 2)?),
        3 => {
            let count = input.int_in_range(0..=3)?;
            let list = (0..count).map(|_| value_within(input, 2)).collect::<Result<_>>()?;
            (*input.choose(&["$in", "$nin", "$all"])?, Value::Array(list))
        }
        4 => ("$exists", Value::Bool(input.arbitrary()?)),
        5 => {
            let kinds = ["null", "boolean", "number", "string", "array", "object"];
            ("$type", Value::from(*input.choose(&kinds)?))
        }
        6 => match input.int_in_range(0..=2)? {
            0 => ("$beginsWith", Value::String(text(input)?)),
            1 => ("$regex", Value::from(*input.choose(&["^a", "b$", "^ab?$", "^(a|b)", "(?i)A", ".", "^a{3}"])?)),
            _ => ("$regex", Value::String(text(input)?)),
        },
        7 => match input.arbitrary()? {
            true => ("$mod", Value::from([input.int_in_range(1..=4i64)?, input.int_in_range(-2..=3i64)?])),
            false => ("$size", Value::from(input.int_in_range(0..=4u32)?)),
        },
        _ => {
            let inner = match depth {
                0 => Value::Object(Object::new()),
                _ if input.arbitrary()? => operators(input, depth - 1)?,
                _ => selector(input, depth - 1)?,
            };
            (*input.choose(&["$elemMatch", "$allMatch", "$keyMapMatch"])?, inner)
        }
    })
}
