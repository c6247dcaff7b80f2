//! Inverted index: the terms of a document, and the sets of documents that have a term.
//!
//! A *term* is a path and a scalar at this path. The terms of a document are a pure function of the index policy, the
//! declared indexes and the document, and index maintenance and `check` call the same function. The *postings* of a
//! term are the set of numbers of the documents that have it, split into containers of 65,536 numbers. A declared index
//! is represented by an additional path at which every document has one term; an expiration rule is represented in the
//! same way. A document whose id names a collection has a term for it at the root path.
//!
//! This module does no I/O and does not depend on revisions.

mod collection;
mod container;
mod declared;
mod expiry;
mod histogram;
mod number;
mod numbers;
mod paths;
mod policy;
mod posting;
mod set;
mod terms;

pub(crate) use collection::collection_key_of_prefix;
pub(crate) use container::Container;
pub(crate) use declared::{DeclaredIndex, DeclaredIndexes, DeclaredKey, IndexDefinition, MISSING};
pub use declared::{Index, IndexPath};
pub use expiry::Expiry;
pub(crate) use expiry::{ExpirationRule, decode_expiration_key, expiration_key, parse_rfc3339_ms};
pub(crate) use histogram::Histogram;
pub(crate) use number::{DocumentNumber, PathNumber, Window, ordered_bytes, take_ordered};
pub(crate) use numbers::NumberSum;
pub(crate) use paths::{OwnedStep, PathEntry, Paths, Step};
pub use policy::Policy;
pub(crate) use posting::{
    PostingKey, Presence, after_postings, after_window, first_of_window, first_posting, posting_key,
};
pub(crate) use set::{DocumentSet, Probe, ProbeCount, Union};
pub(crate) use terms::{DocumentTerms, TermDifference, difference, document_terms};
