//! Candidate documents of a selector, deleted documents included, computed from the index without reading documents.

use super::execute::evaluate::evaluate;
use super::language::selector::Selector;
use super::plan::catalog::Catalog;
use super::plan::request::Query;
use super::source::IndexReader;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::read::Snapshot;

/// Returns a superset of the documents that the selector matches: the documents that the index finds, and the documents
/// that it does not cover because they are deleted or expired.
pub(crate) fn candidates(snapshot: &Snapshot, selector: &Selector) -> Result<DocumentSet> {
    let prepared = Query::new(selector.clone()).prepare_unordered()?;
    let plan = prepared.plan(false, Catalog::of(snapshot));
    let mut found = evaluate(&plan.filter, snapshot, None)?.possible();
    found.or_with(&IndexReader::presence(snapshot, PathNumber::ROOT, &[Presence::Overflow])?);
    let last = snapshot.last_number()?;
    let mut unknown = DocumentSet::from_sorted((1..=last.0).map(DocumentNumber));
    unknown.and_not_with(&IndexReader::presence(snapshot, PathNumber::ROOT, &[Presence::Object])?);
    found.or_with(&unknown);
    Ok(found)
}
