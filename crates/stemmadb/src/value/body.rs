//! A packed document body that owns its bytes, or shares those of the record it was read with.

use std::sync::Arc;

/// Packed bytes of one document, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Body {
    bytes: Arc<[u8]>,
    start: u32,
}

impl Body {
    /// The packed bytes as they are.
    pub(crate) fn new(packed: impl Into<Arc<[u8]>>) -> Self {
        Body { bytes: packed.into(), start: 0 }
    }

    /// The packed bytes from `start` to the end of a record's bytes.
    pub(crate) fn within(record: Arc<[u8]>, start: usize) -> Self {
        assert!(start <= record.len(), "a body lies within its record");
        Body { bytes: record, start: start as u32 }
    }

    /// The packed bytes.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    /// How many bytes it keeps alive.
    pub(crate) fn byte_count(&self) -> usize {
        self.bytes.len()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes)", self.packed().len())
    }
}
