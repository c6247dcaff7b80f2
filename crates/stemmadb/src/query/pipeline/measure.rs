//! Sizes of rows: bounds that keep computed values printable and in memory.

use crate::value::{DEPTH_MAX, Value};
use crate::{Error, Result};

/// The largest row, in bytes of memory.
pub(super) const ROW_BYTES_MAX: usize = 16 << 20;
/// Approximate memory of a value in addition to its text, and of a field's name.
const VALUE_BYTES: usize = 32;

/// Returns the approximate memory of a value.
///
/// # Errors
/// `Stopped` if it nests deeper than documents may.
pub(super) fn measure(value: &Value) -> Result<usize> {
    at_depth(value, 0)
}

/// Returns a computed row if it is not too large.
///
/// # Errors
/// `Stopped` if it is.
pub(super) fn bounded(row: Value) -> Result<Value> {
    if measure(&row)? > ROW_BYTES_MAX { Err(too_large()) } else { Ok(row) }
}

pub(super) fn too_large() -> Error {
    Error::stopped(format!("a row needs more than {} MiB", ROW_BYTES_MAX >> 20))
        .with_hint("$project or $unset what later stages do not need")
}

fn at_depth(value: &Value, depth: usize) -> Result<usize> {
    if depth > DEPTH_MAX {
        return Err(Error::stopped(format!("a row nests deeper than {DEPTH_MAX} levels"))
            .with_hint("nest objects and arrays less deeply"));
    }
    let mut bytes = VALUE_BYTES;
    match value {
        Value::String(text) => bytes += text.len(),
        Value::Array(elements) => {
            for element in elements {
                bytes += at_depth(element, depth + 1)?;
            }
        }
        Value::Object(object) => {
            for (name, field) in object {
                bytes += VALUE_BYTES + name.len() + at_depth(field, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(bytes)
}
