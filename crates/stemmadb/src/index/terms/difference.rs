//! Index changes of an edit: the terms that only one of two versions of a document has.

use std::cmp::Ordering;

use super::{DocumentTerms, Term};
use crate::index::number::PathNumber;
use crate::index::posting::Presence;

/// The difference between the terms of two versions of a document, either of which may be missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermDifference<'a> {
    old: Option<&'a DocumentTerms>,
    new: Option<&'a DocumentTerms>,
}

/// The index changes when `old` is replaced by `new`.
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

    /// The presence terms that only the old version has, in order.
    pub(crate) fn removed_presence(self) -> impl Iterator<Item = (PathNumber, Presence)> {
        without(presence(self.old), presence(self.new))
    }

    /// The presence terms that only the new version has, in order.
    pub(crate) fn added_presence(self) -> impl Iterator<Item = (PathNumber, Presence)> {
        without(presence(self.new), presence(self.old))
    }
}

fn terms(version: Option<&DocumentTerms>) -> impl Iterator<Item = Term<'_>> {
    version.into_iter().flat_map(DocumentTerms::terms)
}

fn presence(version: Option<&DocumentTerms>) -> impl Iterator<Item = (PathNumber, Presence)> {
    version.into_iter().flat_map(|terms| terms.presence().iter().copied())
}

/// The items of one strictly ascending sequence that are not in another.
fn without<T: Ord>(items: impl Iterator<Item = T>, mut excluded: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut next = excluded.next();
    items.filter(move |item| {
        while let Some(other) = &next {
            match other.cmp(item) {
                Ordering::Less => next = excluded.next(),
                Ordering::Equal => {
                    next = excluded.next();
                    return false;
                }
                Ordering::Greater => break,
            }
        }
        true
    })
}
