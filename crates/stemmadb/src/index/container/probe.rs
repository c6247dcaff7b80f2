//! A container prepared for intersections with many stored ones.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::stored::{StoredRepr, parse, values};
use super::{Container, Repr};
use crate::Result;

/// An array of at least this length becomes a bitmap, which then has at most 64 bytes per member.
const ARRAY_BITS_MIN: usize = 128;

/// A container and, unless it is small, its bits.
pub(crate) struct ContainerProbe {
    members: Container,
    bits: Option<Arc<Bitmap>>,
}

impl ContainerProbe {
    pub(crate) fn new(members: &Container) -> Self {
        let bits = match &members.0 {
            Repr::Array(values) if values.len() < ARRAY_BITS_MIN => None,
            Repr::Array(values) => Some(Arc::new(Bitmap::of_sorted(values))),
            Repr::Bitmap(bitmap) => Some(Arc::clone(bitmap)),
            Repr::Runs(runs) => Some(Arc::new(Bitmap::of_runs(runs))),
        };
        ContainerProbe { members: members.clone(), bits }
    }

    /// The cardinality of the intersection.
    pub(crate) fn len(&self, other: &Container) -> u32 {
        self.members.and_len(other)
    }

    /// The cardinality of the intersection with a stored container, which is decoded only if both are unusual.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a container.
    pub(crate) fn stored_len(&self, stored: &[u8]) -> Result<u32> {
        match (parse(stored)?, &self.bits) {
            (StoredRepr::One(value), _) => Ok(u32::from(self.members.contains(value))),
            (StoredRepr::Array(pairs), Some(bits)) => {
                Ok(values(pairs).map(|value| u32::from(bits.contains(value))).sum())
            }
            (StoredRepr::Bits(bytes), Some(bits)) => Ok(bits.bytes_and_len(bytes)),
            _ => Ok(self.members.and_len(&Container::decode(stored)?)),
        }
    }
}
