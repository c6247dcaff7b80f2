//! Which terms does a document have, and which documents have a term?
//!
//! A *term* is a path and a scalar found there. The terms of a document are a pure function of the policy and the
//! document, so whoever maintains the index and whoever checks it cannot disagree. The documents that have a term are
//! its *postings*: sets of document numbers, cut into containers of 65,536. A declared index is a path more, at which each document
//! has one term. So is a rule of expiry. At the root stands the collection that the id names.
//!
//! This room reads and writes no files and knows nothing of revisions.

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
pub(crate) use declared::{Declared, DeclaredIndex, DeclaredKey, Definition, MISSING};
pub use declared::{Index, IndexPath};
pub use expiry::Expiry;
pub(crate) use expiry::{Rule, end_key, end_of_key};
pub(crate) use histogram::Histogram;
pub(crate) use number::{DocumentNumber, PathNumber, Window, ordered, take_ordered};
pub(crate) use numbers::Numbers;
pub(crate) use paths::{KeptStep, PathEntry, Paths, Step};
pub use policy::Policy;
pub(crate) use posting::{
    PostingKey, Presence, after_postings, after_window, first_of_window, first_posting, posting_key,
};
pub(crate) use set::{DocumentSet, Union};
pub(crate) use terms::{DocumentTerms, TermDifference, difference, document_terms};
