//! The one order of values: null < false < true < numbers < strings < arrays < objects.
//!
//! Numbers are one order, exact across integers and doubles, so `1` and `1.0` are equal here. Strings compare by code
//! point, which is the order of their UTF-8 bytes. Arrays compare element by element, then the shorter first; objects
//! field by field in their order, name before value, then the one with fewer fields.
//!
//! [`key`] has the same order as bytes.

pub(crate) mod key;

use std::cmp::Ordering;

use super::{Object, Packed, PackedObject, PackedValue, Value};
use crate::Result;

/// Compares two values. Costs a walk over the common part.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a.compare(*b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            first_difference(a.iter().zip(b).map(|(a, b)| compare(a, b))).unwrap_or(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => compare_objects(a, b),
        _ => a.kind().cmp(&b.kind()),
    }
}

fn compare_objects(a: &Object, b: &Object) -> Ordering {
    let fields = a.iter().zip(b).map(|((a_name, a), (b_name, b))| a_name.cmp(b_name).then_with(|| compare(a, b)));
    first_difference(fields).unwrap_or(a.len().cmp(&b.len()))
}

fn first_difference(mut orders: impl Iterator<Item = Ordering>) -> Option<Ordering> {
    orders.find(|order| order.is_ne())
}

/// Compares a packed value with a value, without unpacking it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged.
pub(crate) fn compare_packed(a: PackedValue<'_>, b: &Value) -> Result<Ordering> {
    if a.kind() != b.kind() {
        return Ok(a.kind().cmp(&b.kind()));
    }
    Ok(match (a.read()?, b) {
        (Packed::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Packed::Number(a), Value::Number(b)) => a.compare(*b),
        (Packed::String(a), Value::String(b)) => a.cmp(b),
        (Packed::Array(a), Value::Array(b)) => {
            for (a, b) in a.iter().zip(b) {
                let order = compare_packed(a?, b)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            a.len().cmp(&b.len())
        }
        (Packed::Object(a), Value::Object(b)) => compare_packed_objects(a, b)?,
        _ => Ordering::Equal,
    })
}

fn compare_packed_objects(a: PackedObject<'_>, b: &Object) -> Result<Ordering> {
    for (a, (b_name, b)) in a.iter().zip(b) {
        let (a_name, a) = a?;
        let order = match a_name.cmp(b_name) {
            Ordering::Equal => compare_packed(a, b)?,
            different => different,
        };
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(a.len().cmp(&b.len()))
}

#[cfg(test)]
mod tests;
