//! What an edit changes in the index: the terms that only one of two versions has.

use std::cmp::Ordering;

use super::{DocumentTerms, Term};
use crate::index::number::PathNumber;
use crate::index::posting::Presence;

/// The difference between two versions of a document; either may be missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermDifference<'a> {
    old: Option<&'a DocumentTerms>,
    new: Option<&'a DocumentTerms>,
}

/// What changes in the index when `old` becomes `new`.
pub(crate) fn difference<'a>(old: Option<&'a DocumentTerms>, new: Option<&'a DocumentTerms>) -> TermDifference<'a> {
    TermDifference { old, new }
}

impl<'a> TermDifference<'a> {
    /// The terms that only the old version has, in order.
    pub(crate) fn removed_terms(self) -> impl Iterator<Item = Term<'a>> {
        without(terms(self.old), terms(self.new))
    }

    /// The terms that only the new version has, in order.
    pub(crate) fn added_terms(self) -> impl Iterator<Item = Term<'a>> {
        without(terms(self.new), terms(self.old))
    }

    /// What only the old version has at a path, in order.
    pub(crate) fn removed_presence(self) -> impl Iterator<Item = (PathNumber, Presence)> {
        without(presence(self.old), presence(self.new))
    }

    /// What only the new version has at a path, in order.
    pub(crate) fn added_presence(self) -> impl Iterator<Item = (PathNumber, Presence)> {
        without(presence(self.new), presence(self.old))
    }
}

fn terms(of: Option<&DocumentTerms>) -> impl Iterator<Item = Term<'_>> {
    of.into_iter().flat_map(DocumentTerms::terms)
}

fn presence(of: Option<&DocumentTerms>) -> impl Iterator<Item = (PathNumber, Presence)> {
    of.into_iter().flat_map(|terms| terms.presence().iter().copied())
}

/// The items of one sorted sequence that are not in another.
fn without<T: Ord>(these: impl Iterator<Item = T>, mut those: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut other = those.next();
    these.filter(move |item| {
        while let Some(known) = &other {
            match known.cmp(item) {
                Ordering::Less => other = those.next(),
                Ordering::Equal => {
                    other = those.next();
                    return false;
                }
                Ordering::Greater => break,
            }
        }
        true
    })
}
