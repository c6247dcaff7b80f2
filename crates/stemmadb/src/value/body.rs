//! A packed document body, which owns its bytes or shares the buffer of the record it was read with.

use std::sync::Arc;

/// Packed bytes of one document, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Body {
    bytes: Arc<[u8]>,
    start: u32,
}

impl Body {
    /// A body of these packed bytes.
    pub(crate) fn new(packed: impl Into<Arc<[u8]>>) -> Self {
        Body { bytes: packed.into(), start: 0 }
    }

    /// A body of the packed bytes from `start` to the end of a record's buffer.
    pub(crate) fn within(record: Arc<[u8]>, start: usize) -> Self {
        assert!(start <= record.len(), "a body starts inside its record");
        assert!(u32::try_from(start).is_ok(), "the offset of a body fits 32 bits");
        Body { bytes: record, start: start as u32 }
    }

    /// The packed bytes.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    /// The size of the buffer that this body keeps alive.
    pub(crate) fn byte_count(&self) -> usize {
        self.bytes.len()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes)", self.packed().len())
    }
}
