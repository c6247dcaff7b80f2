//! Arithmetic of expressions: exact for integers of 64 bits, otherwise in doubles.

use super::{Operator, is_null, wrong_kind};
use crate::value::{ExactSum, Number, Value};
use crate::{Error, Result};

/// Applies an arithmetic operator; null if an argument is null or missing.
pub(super) fn apply(operator: Operator, values: &[Option<&Value>]) -> Result<Value> {
    let mut numbers = Vec::with_capacity(values.len());
    let mut has_null = false;
    for value in values {
        match value {
            Some(Value::Number(number)) => numbers.push(*number),
            value if is_null(*value) => has_null = true,
            other => return Err(wrong_kind(operator.name(), "numbers", *other)),
        }
    }
    if has_null {
        return Ok(Value::Null);
    }
    let result = match (operator, numbers.as_slice()) {
        (Operator::Add, numbers) => {
            let mut sum = ExactSum::default();
            numbers.iter().for_each(|number| sum.add(*number, 1));
            sum.total()
        }
        (Operator::Subtract, [left, right]) => {
            let mut sum = ExactSum::default();
            sum.add(*left, 1);
            sum.subtract(*right, 1);
            sum.total()
        }
        (Operator::Multiply, numbers) => product(numbers),
        (Operator::Divide | Operator::Mod, [_, divisor]) if divisor.as_f64() == 0.0 => {
            return Err(Error::invalid(format!("{} divides by zero", operator.name()))
                .with_hint("{\"$cond\": [\"$n\", {\"$divide\": [1, \"$n\"]}, null]} gives null instead"));
        }
        (Operator::Divide, [left, right]) => quotient(*left, *right),
        (Operator::Mod, [left, right]) => match (left.to_integer(), right.to_integer()) {
            (Some(left), Some(right)) => Number::from_i128(left % right),
            _ => Number::from_f64(left.as_f64() % right.as_f64()),
        },
        _ => return Err(Error::internal("an arithmetic operator has the wrong number of arguments")),
    };
    result.map(Value::Number).ok_or_else(|| {
        Error::invalid(format!("the result of {} exceeds the range of a double", operator.name()))
            .with_hint("the largest double is about 1.8e308")
    })
}

fn product(numbers: &[Number]) -> Option<Number> {
    let whole = numbers.iter().try_fold(1_i128, |product, number| product.checked_mul(number.to_integer()?));
    let in_doubles = || Number::from_f64(numbers.iter().map(|number| number.as_f64()).product());
    whole.and_then(Number::from_i128).or_else(in_doubles)
}

/// An integer if the division leaves no remainder.
fn quotient(left: Number, right: Number) -> Option<Number> {
    match (left.to_integer(), right.to_integer()) {
        (Some(left), Some(right)) if left % right == 0 => Number::from_i128(left / right),
        _ => None,
    }
    .or_else(|| Number::from_f64(left.as_f64() / right.as_f64()))
}
