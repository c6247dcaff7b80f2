//! One container of the members of many, which come in no order: what a range of values needs, in which a document may be twice.
//!
//! What comes is marked in a bitmap and counted once, at the end. Two cases are spared that: one container alone, which is kept
//! as it came, and few members.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::stored::{self, Stored};
use super::{Container, Form, settled};
use crate::Result;

/// So many members are collected before they are marked.
const PENDING_MAX: usize = 4096;
/// A container of so few members is collected, not marked.
const FEW: usize = 32;

/// Containers on their way into one.
#[derive(Default)]
pub(crate) struct Gather {
    /// The first container of many members, while there is no other.
    first: Container,
    /// Members that are not in the bitmap yet.
    pending: Vec<u16>,
    /// Its count is not kept.
    marked: Option<Box<Bitmap>>,
}

impl Gather {
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
            Form::Array(values) if values.len() <= FEW => values.iter().for_each(|&value| self.add(value)),
            _ if self.is_first() => self.first = members.clone(),
            form => self.bitmap().mark_all(form),
        }
    }

    /// Adds the members of a stored container.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn add_stored(&mut self, bytes: &[u8]) -> Result<()> {
        match stored::look(bytes)? {
            Stored::One(value) => self.add(value),
            Stored::Array(pairs) if pairs.len() <= FEW => stored::values(pairs).for_each(|value| self.add(value)),
            _ if self.is_first() => self.first = Container::decode(bytes)?,
            Stored::Array(pairs) => {
                let bitmap = self.bitmap();
                stored::values(pairs).for_each(|value| bitmap.mark(value));
            }
            Stored::Bits(bits) => self.bitmap().mark_bytes(bits),
            Stored::Runs => {
                let runs = Container::decode(bytes)?;
                self.bitmap().mark_all(&runs.0);
            }
        }
        Ok(())
    }

    /// What was added.
    pub(crate) fn finish(mut self) -> Container {
        let Some(mut bitmap) = self.marked else {
            self.first.or_with(&Container::from_unsorted(&mut self.pending));
            return self.first;
        };
        self.pending.iter().for_each(|&value| bitmap.mark(value));
        bitmap.count();
        settled(Form::Bitmap(Arc::from(bitmap)))
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
        fn what_was_gathered_is_the_union(parts in prop::collection::vec((sets(), any::<bool>()), 0..8), singles: Vec<u16>) {
            let mut gather = Gather::default();
            let mut expected: BTreeSet<u16> = singles.iter().copied().collect();
            for (members, is_stored) in parts {
                let values: Vec<u16> = members.iter().copied().collect();
                let container = Container::from_sorted(&values);
                if is_stored && !values.is_empty() {
                    let mut bytes = Vec::new();
                    container.encode(&mut bytes);
                    gather.add_stored(&bytes).unwrap();
                } else {
                    gather.add_container(&container);
                }
                expected.extend(members);
            }
            singles.iter().for_each(|single| gather.add(*single));
            let found = gather.finish();
            prop_assert_eq!(found.len() as usize, expected.len());
            prop_assert!(found.iter().eq(expected));
        }
    }

    #[test]
    fn damaged_containers_are_refused() {
        let mut gather = Gather::default();
        for _ in 0..3 {
            for damaged in [&[][..], &[1], &[1, 0, 2, 0, 1], &[1, 0, 2, 0], &[2, 0, 1, 0], &[3, 0, 0, 0], &[9, 9, 9]] {
                assert!(gather.add_stored(damaged).is_err(), "{damaged:?}");
            }
            gather.add_container(&Container::of_range(1, 900));
        }
    }
}
