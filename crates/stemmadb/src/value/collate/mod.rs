//! The one order of values: null < false < true < numbers < strings < arrays < objects.
//!
//! Numbers are one order, exact across integers and doubles, so `1` and `1.0` are equal here. Strings compare by code
//! point, which is the order of their UTF-8 bytes. Arrays compare element by element, then the shorter first; objects
//! field by field in their order, name before value, then the one with fewer fields.
//!
//! [`key`] has the same order as bytes; [`Language`] orders strings as people of a language do, where that is asked for.

pub(crate) mod key;
mod language;

use std::cmp::Ordering;

pub(crate) use language::{Language, VERSION};

use super::source::{Bounded, Look, Source, certain};
use super::{PackedValue, Value};
use crate::{Error, Result};

/// Compares two values. Costs a walk over the common part.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    certain(compare_sources(a, b))
}

/// Compares a packed value with a value, without unpacking it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged.
pub(crate) fn compare_packed(a: PackedValue<'_>, b: &Value) -> Result<Ordering> {
    compare_sources::<_, _, Error>(Bounded::from(a), b)
}

fn compare_sources<'a, 'b, A, B, E>(a: A, b: B) -> Result<Ordering, E>
where
    A: Source<'a>,
    B: Source<'b>,
    E: From<A::Error> + From<B::Error>,
{
    match (a.look()?, b.look()?) {
        (Look::Bool(a), Look::Bool(b)) => Ok(a.cmp(&b)),
        (Look::Number(a), Look::Number(b)) => Ok(a.compare(b)),
        (Look::String(a), Look::String(b)) => Ok(a.cmp(b)),
        (Look::Array(a_count, a), Look::Array(b_count, b)) => {
            for (a, b) in a.zip(b) {
                let order = compare_sources::<A, B, E>(a?, b?)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a_count.cmp(&b_count))
        }
        (Look::Object(a_count, a), Look::Object(b_count, b)) => {
            for (a, b) in a.zip(b) {
                let ((a_name, a), (b_name, b)) = (a?, b?);
                let order = match a_name.cmp(b_name) {
                    Ordering::Equal => compare_sources::<A, B, E>(a, b)?,
                    different => different,
                };
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a_count.cmp(&b_count))
        }
        (a, b) => Ok(a.kind().cmp(&b.kind())),
    }
}

#[cfg(test)]
mod tests;
