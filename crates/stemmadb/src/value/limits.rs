//! How large a value may be, counted the same way for text and for values a program builds.

use super::Value;
use crate::{Error, Result};

/// The depth no value exceeds, whatever [`Limits`] say: what recursion over values relies on.
pub const DEPTH_MAX: usize = 128;

/// How large a document may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of JSON text; of a value built by a program, the bytes of its names, strings and punctuation.
    pub bytes: usize,
    /// Values within it, itself included.
    pub nodes: usize,
    /// Arrays and objects within each other; at most [`DEPTH_MAX`].
    pub depth: usize,
}

impl Default for Limits {
    /// CouchDB's size of 8,000,000 bytes, a million nodes, and a depth of 128.
    fn default() -> Self {
        Limits { bytes: 8_000_000, nodes: 1_000_000, depth: DEPTH_MAX }
    }
}

impl Limits {
    /// The depth in force.
    pub(crate) fn depth(&self) -> usize {
        self.depth.min(DEPTH_MAX)
    }
}

impl Value {
    /// Refuses a value beyond `limits`, as the parser refuses its text. Costs a walk over the value.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the limit.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let mut left = Left { bytes: limits.bytes, nodes: limits.nodes };
        match left.take(self, limits.depth()) {
            Ok(()) => Ok(()),
            Err(Beyond::Bytes) => Err(too_many_bytes(limits)),
            Err(Beyond::Nodes) => Err(Error::invalid(too_many_nodes(limits))),
            Err(Beyond::Depth) => Err(Error::invalid(too_deep(limits))),
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

enum Beyond {
    Bytes,
    Nodes,
    Depth,
}

struct Left {
    bytes: usize,
    nodes: usize,
}

impl Left {
    fn take(&mut self, value: &Value, depth: usize) -> Result<(), Beyond> {
        self.nodes = self.nodes.checked_sub(1).ok_or(Beyond::Nodes)?;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.take_bytes(1),
            Value::String(text) => self.take_bytes(text.len() + 2),
            Value::Array(elements) => {
                let depth = depth.checked_sub(1).ok_or(Beyond::Depth)?;
                self.take_bytes(elements.len() + 1)?;
                elements.iter().try_for_each(|element| self.take(element, depth))
            }
            Value::Object(object) => {
                let depth = depth.checked_sub(1).ok_or(Beyond::Depth)?;
                self.take_bytes(object.len() + 1)?;
                object.iter().try_for_each(|(name, value)| {
                    self.take_bytes(name.len() + 3)?;
                    self.take(value, depth)
                })
            }
        }
    }

    fn take_bytes(&mut self, count: usize) -> Result<(), Beyond> {
        self.bytes = self.bytes.checked_sub(count).ok_or(Beyond::Bytes)?;
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
    fn no_limit_allows_more_than_the_depth_recursion_is_safe_at() {
        let limits = Limits { depth: usize::MAX, ..Limits::default() };
        assert!(nested(DEPTH_MAX).check(&limits).is_ok());
        assert!(nested(DEPTH_MAX + 1).check(&limits).is_err());
    }
}
