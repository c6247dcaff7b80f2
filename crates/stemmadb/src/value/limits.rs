//! Size limits of values, applied in the same way to JSON text and to values built by a program.

use super::Value;
use crate::{Error, Result};

/// The greatest depth of a value, whatever [`Limits`] allow. Recursive functions over values rely on it.
pub const DEPTH_MAX: usize = 128;

/// Size limits of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of JSON text. For a value built by a program: the bytes of its names, strings and punctuation.
    pub bytes: usize,
    /// Values in the document, itself included.
    pub nodes: usize,
    /// Nesting of arrays and objects; at most [`DEPTH_MAX`].
    pub depth: usize,
}

impl Default for Limits {
    /// CouchDB's limit of 8,000,000 bytes, a million nodes, and a depth of 128.
    fn default() -> Self {
        Limits { bytes: 8_000_000, nodes: 1_000_000, depth: DEPTH_MAX }
    }
}

impl Limits {
    /// The effective depth limit.
    pub(crate) fn depth(&self) -> usize {
        self.depth.min(DEPTH_MAX)
    }
}

impl Value {
    /// Checks the value against `limits`, as the parser checks text. Costs a traversal of the value.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the value exceeds a limit; the message names it.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let mut remaining = RemainingLimits { bytes: limits.bytes, nodes: limits.nodes };
        match remaining.charge(self, limits.depth()) {
            Ok(()) => Ok(()),
            Err(ExceededLimit::Bytes) => Err(too_many_bytes(limits)),
            Err(ExceededLimit::Nodes) => Err(Error::invalid(too_many_nodes(limits))),
            Err(ExceededLimit::Depth) => Err(Error::invalid(too_deep(limits))),
        }
    }
}

pub(crate) fn too_many_bytes(limits: &Limits) -> Error {
    Error::invalid(format!("the document has more than {} bytes", limits.bytes))
        .with_hint("split the document, or raise the limit of bytes")
}

pub(crate) fn too_many_nodes(limits: &Limits) -> String {
    format!("more than {} values in one document", limits.nodes)
}

pub(crate) fn too_deep(limits: &Limits) -> String {
    format!("more than {} arrays and objects within each other", limits.depth())
}

enum ExceededLimit {
    Bytes,
    Nodes,
    Depth,
}

/// The bytes and nodes that may still be used.
struct RemainingLimits {
    bytes: usize,
    nodes: usize,
}

impl RemainingLimits {
    fn charge(&mut self, value: &Value, depth: usize) -> Result<(), ExceededLimit> {
        self.nodes = self.nodes.checked_sub(1).ok_or(ExceededLimit::Nodes)?;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.charge_bytes(1),
            Value::String(text) => self.charge_bytes(text.len() + 2),
            Value::Array(elements) => {
                let depth = depth.checked_sub(1).ok_or(ExceededLimit::Depth)?;
                self.charge_bytes(elements.len() + 1)?;
                elements.iter().try_for_each(|element| self.charge(element, depth))
            }
            Value::Object(object) => {
                let depth = depth.checked_sub(1).ok_or(ExceededLimit::Depth)?;
                self.charge_bytes(object.len() + 1)?;
                object.iter().try_for_each(|(name, value)| {
                    self.charge_bytes(name.len() + 3)?;
                    self.charge(value, depth)
                })
            }
        }
    }

    fn charge_bytes(&mut self, count: usize) -> Result<(), ExceededLimit> {
        self.bytes = self.bytes.checked_sub(count).ok_or(ExceededLimit::Bytes)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn each_limit_is_exact() {
        let limits = Limits { bytes: 100, nodes: 10, depth: 5 };
        assert!(nested(5).check(&limits).is_ok());
        assert!(nested(6).check(&limits).is_err());
        assert!(Value::Array(vec![Value::Null; 9]).check(&limits).is_ok());
        assert!(Value::Array(vec![Value::Null; 10]).check(&limits).is_err());
        assert!(Value::from("x".repeat(98)).check(&limits).is_ok());
        assert!(Value::from("x".repeat(99)).check(&limits).is_err());
    }

    #[test]
    fn limits_cannot_raise_the_maximum_depth() {
        let limits = Limits { depth: usize::MAX, ..Limits::default() };
        assert!(nested(DEPTH_MAX).check(&limits).is_ok());
        assert!(nested(DEPTH_MAX + 1).check(&limits).is_err());
    }
}
