//! Collation order of values: null < false < true < numbers < strings < arrays < objects.
//!
//! Numbers compare numerically, exact across integers and doubles, so `1` and `1.0` are equal. Strings compare by code
//! point, which is the order of their UTF-8 bytes. Arrays compare element by element; a prefix of an array comes before
//! it. Objects compare field by field in their order, name before value; a prefix comes first, too.
//!
//! [`key`] encodes values into bytes with the same order. [`Language`] orders strings by the rules of a language.

#[cfg(not(feature = "collation"))]
#[path = "no_collator.rs"]
mod collator;
#[cfg(feature = "collation")]
mod collator;
pub(crate) mod key;
mod language;

use std::cmp::Ordering;

pub(crate) use language::{Language, VERSION};

use super::traverse::{DepthLimited, Node, ValueTree, into_ok};
use super::{PackedValue, Value};
use crate::{Error, Result};

/// Compares two values. Costs a traversal of their common part.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    into_ok(compare_trees(a, b))
}

/// Compares a packed value with a value, without unpacking it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged.
pub(crate) fn compare_packed(a: PackedValue<'_>, b: &Value) -> Result<Ordering> {
    compare_trees::<_, _, Error>(DepthLimited::from(a), b)
}

fn compare_trees<'a, 'b, A, B, E>(a: A, b: B) -> Result<Ordering, E>
where
    A: ValueTree<'a>,
    B: ValueTree<'b>,
    E: From<A::Error> + From<B::Error>,
{
    match (a.node()?, b.node()?) {
        (Node::Bool(a), Node::Bool(b)) => Ok(a.cmp(&b)),
        (Node::Number(a), Node::Number(b)) => Ok(a.compare(b)),
        (Node::String(a), Node::String(b)) => Ok(a.cmp(b)),
        (Node::Array(a_count, a), Node::Array(b_count, b)) => {
            for (a, b) in a.zip(b) {
                let order = compare_trees::<A, B, E>(a?, b?)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a_count.cmp(&b_count))
        }
        (Node::Object(a_count, a), Node::Object(b_count, b)) => {
            for (a, b) in a.zip(b) {
                let ((a_name, a), (b_name, b)) = (a?, b?);
                let order = match a_name.cmp(b_name) {
                    Ordering::Equal => compare_trees::<A, B, E>(a, b)?,
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
