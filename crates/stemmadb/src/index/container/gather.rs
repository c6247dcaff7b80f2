//! Union of many containers in any order, as a range query needs it. Members may occur several times.
//!
//! Members are marked in a bitmap, which is counted once at the end. Two cases avoid the bitmap: a single container,
//! which is returned unchanged, and a small number of members.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::stored::{self, StoredRepr};
use super::{Container, Repr, normalized};
use crate::Result;

/// The number of members that are buffered before they are marked in the bitmap.
const PENDING_MAX: usize = 4096;
/// The members of a container of at most this size are buffered, not marked.
const SMALL_MAX: usize = 32;

/// Accumulates the union of containers.
#[derive(Default)]
pub(crate) struct ContainerUnion {
    /// The first large container, as long as it is the only one.
    first: Container,
    /// Members that are not in the bitmap yet.
    pending: Vec<u16>,
    /// The bitmap, whose cardinality is not maintained.
    marked: Option<Box<Bitmap>>,
}

impl ContainerUnion {
    /// Adds a member.
    pub(crate) fn add(&mut self, value: u16) {
        self.pending.push(value);
        if self.pending.len() >= PENDING_MAX {
            let pending = std::mem::take(&mut self.pending);
            let bitmap = self.bitmap();
            pending.iter().for_each(|&value| bitmap.mark(value));
            self.pending = pending;
            self.pending.clear();
        }
    }

    /// Adds the members of a container.
    pub(crate) fn add_container(&mut self, members: &Container) {
        match &members.0 {
            Repr::Array(values) if values.len() <= SMALL_MAX => values.iter().for_each(|&value| self.add(value)),
            _ if self.is_first() => self.first = members.clone(),
            members => self.bitmap().mark_all(members),
        }
    }

    /// Adds the members of a stored container.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn add_stored(&mut self, bytes: &[u8]) -> Result<()> {
        match stored::parse(bytes)? {
            StoredRepr::One(value) => self.add(value),
            StoredRepr::Array(pairs) if pairs.len() <= SMALL_MAX => {
                stored::values(pairs).for_each(|value| self.add(value))
            }
            _ if self.is_first() => self.first = Container::decode(bytes)?,
            StoredRepr::Array(pairs) => {
                let bitmap = self.bitmap();
                stored::values(pairs).for_each(|value| bitmap.mark(value));
            }
            StoredRepr::Bits(bits) => self.bitmap().mark_bytes(bits),
            StoredRepr::Runs => {
                let runs = Container::decode(bytes)?;
                self.bitmap().mark_all(&runs.0);
            }
        }
        Ok(())
    }

    /// Returns the union.
    pub(crate) fn finish(mut self) -> Container {
        let Some(mut bitmap) = self.marked else {
            self.first.or_with(&Container::from_unsorted(&mut self.pending));
            return self.first;
        };
        self.pending.iter().for_each(|&value| bitmap.mark(value));
        bitmap.count();
        normalized(Repr::Bitmap(Arc::from(bitmap)))
    }

    fn is_first(&self) -> bool {
        self.marked.is_none() && self.first.is_empty()
    }

    fn bitmap(&mut self) -> &mut Bitmap {
        let first = std::mem::take(&mut self.first);
        self.marked.get_or_insert_with(|| {
            let mut bitmap = Box::new(Bitmap::new());
            bitmap.mark_all(&first.0);
            bitmap
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::tests::sets;
    use super::*;

    proptest! {
        #[test]
        fn result_is_the_union(parts in prop::collection::vec((sets(), any::<bool>()), 0..8), singles: Vec<u16>) {
            let mut union = ContainerUnion::default();
            let mut expected: BTreeSet<u16> = singles.iter().copied().collect();
            for (members, is_stored) in parts {
                let values: Vec<u16> = members.iter().copied().collect();
                let container = Container::from_sorted(&values);
                if is_stored && !values.is_empty() {
                    let mut bytes = Vec::new();
                    container.encode(&mut bytes);
                    union.add_stored(&bytes).unwrap();
                } else {
                    union.add_container(&container);
                }
                expected.extend(members);
            }
            singles.iter().for_each(|single| union.add(*single));
            let found = union.finish();
            prop_assert_eq!(found.len() as usize, expected.len());
            prop_assert!(found.iter().eq(expected));
        }
    }

    #[test]
    fn damaged_containers_are_corrupt() {
        let mut union = ContainerUnion::default();
        for _ in 0..3 {
            for damaged in [&[][..], &[1], &[1, 0, 2, 0, 1], &[1, 0, 2, 0], &[2, 0, 1, 0], &[3, 0, 0, 0], &[9, 9, 9]] {
                assert!(union.add_stored(damaged).is_err(), "{damaged:?}");
            }
            union.add_container(&Container::of_range(1, 900));
        }
    }
}
