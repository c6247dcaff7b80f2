//! Operands of the table `postings`: which documents of a chunk gained and lost a term, without what was there before.
//!
//! ```text
//! container                                  documents that gained the term
//! 04, container                              documents that lost it
//! 05, length (varint), container, container  both: the length of the first, gained, lost
//! ```
//!
//! A value, which is what readers see, is a container: the first form. A document is never in both sets.

use crate::index::Container;
use crate::tree::MergeOperator;
use crate::{Error, Result, varint};

const LOST: u8 = 4;
const BOTH: u8 = 5;

/// Combines the operands of the table `postings`.
pub(crate) struct PostingOperator;

/// Appends the operand for documents that gained and lost a term; both lists ascend, and one is not empty.
pub(crate) fn encode(gained: &Container, lost: &Container, out: &mut Vec<u8>) {
    debug_assert!(!gained.is_empty() || !lost.is_empty(), "an operand changes something");
    if lost.is_empty() {
        return gained.encode(out);
    }
    if gained.is_empty() {
        out.push(LOST);
        return lost.encode(out);
    }
    let mut encoded = Vec::new();
    gained.encode(&mut encoded);
    out.push(BOTH);
    varint::write(encoded.len() as u64, out);
    out.extend_from_slice(&encoded);
    lost.encode(out);
}

/// Appends the operand for one document that gained or lost a term: the same as that of [`encode`].
pub(crate) fn encode_one(low: u16, has_gained: bool, out: &mut Vec<u8>) {
    if !has_gained {
        out.push(LOST);
    }
    Container::encode_one(low, out);
}

/// The containers of an operand: gained, lost.
type Parts<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn split(operand: &[u8]) -> Result<Parts<'_>> {
    // A container of one member has two bytes, whatever they are.
    match *operand {
        [_, _] => Ok((Some(operand), None)),
        [LOST, ref lost @ ..] => Ok((None, Some(lost))),
        [BOTH, ref rest @ ..] => {
            let mut rest = rest;
            let length = usize::try_from(varint::read(&mut rest)?).map_err(|_| damaged())?;
            let (gained, lost) = rest.split_at_checked(length).ok_or_else(damaged)?;
            Ok((Some(gained), Some(lost)))
        }
        _ => Ok((Some(operand), None)),
    }
}

fn decode(part: Option<&[u8]>) -> Result<Container> {
    part.map_or_else(|| Ok(Container::new()), Container::decode)
}

fn damaged() -> Error {
    Error::corrupt("a stored change of a set of documents is damaged")
}

impl MergeOperator for PostingOperator {
    fn combine(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let (older_gained, older_lost) = split(older)?;
        let (newer_gained, newer_lost) = split(newer)?;
        let mut gained = decode(older_gained)?;
        let newer_gained = decode(newer_gained)?;
        if let Some(newer_lost) = newer_lost {
            let newer_lost = Container::decode(newer_lost)?;
            gained.and_not_with(&newer_lost);
            gained.or_with(&newer_gained);
            let mut lost = decode(older_lost)?;
            lost.and_not_with(&newer_gained);
            lost.or_with(&newer_lost);
            encode(&gained, &lost, out);
        } else {
            gained.or_with(&newer_gained);
            let mut lost = decode(older_lost)?;
            lost.and_not_with(&newer_gained);
            encode(&gained, &lost, out);
        }
        Ok(())
    }

    fn finish<'a>(&self, operand: &'a [u8]) -> Result<Option<&'a [u8]>> {
        Ok(split(operand)?.0)
    }

    fn removes(&self, operand: &[u8]) -> bool {
        operand.len() > 2 && matches!(operand[0], LOST | BOTH)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    type Change = (BTreeSet<u16>, BTreeSet<u16>);

    fn change() -> impl Strategy<Value = Change> {
        let set = || prop::collection::btree_set(prop_oneof![0..20_u16, any::<u16>()], 0..12);
        (set(), set(), any::<u16>()).prop_map(|(mut gained, lost, one)| {
            gained = gained.difference(&lost).copied().collect();
            if gained.is_empty() && lost.is_empty() {
                gained.insert(one);
            }
            (gained, lost)
        })
    }

    fn operand((gained, lost): &Change) -> Vec<u8> {
        let container = |set: &BTreeSet<u16>| Container::from_sorted(&set.iter().copied().collect::<Vec<_>>());
        let mut out = Vec::new();
        encode(&container(gained), &container(lost), &mut out);
        out
    }

    fn combine(older: &[u8], newer: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        PostingOperator.combine(older, newer, &mut out).unwrap();
        out
    }

    fn value(operand: &[u8]) -> BTreeSet<u16> {
        let Some(value) = PostingOperator.finish(operand).unwrap() else { return BTreeSet::new() };
        Container::decode(value).unwrap().iter().collect()
    }

    proptest! {
        #[test]
        fn changes_combine_in_any_grouping(changes in prop::collection::vec(change(), 3..6)) {
            let operands: Vec<_> = changes.iter().map(operand).collect();
            let forwards = operands[1..].iter().fold(operands[0].clone(), |older, newer| combine(&older, newer));
            let last = operands.len() - 1;
            let newest = operands[last].clone();
            let backwards = operands[..last].iter().rev().fold(newest, |newer, older| combine(older, &newer));
            let mut expected = BTreeSet::new();
            for (gained, lost) in &changes {
                expected.retain(|member| !lost.contains(member));
                expected.extend(gained);
            }
            prop_assert_eq!(value(&forwards), expected);
            prop_assert_eq!(forwards, backwards);
        }

        #[test]
        fn random_bytes_never_panic(
            older in prop::collection::vec(any::<u8>(), 0..40),
            newer in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            PostingOperator.combine(&older, &newer, &mut Vec::new()).ok();
            PostingOperator.finish(&older).ok();
            PostingOperator.removes(&older);
        }
    }
}
