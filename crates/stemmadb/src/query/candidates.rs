//! Which documents may a selector match, deleted ones among them? What the index can tell, without reading one.

use super::execute::evaluate::evaluate;
use super::language::selector::Selector;
use super::plan::facts::Facts;
use super::plan::request::Query;
use super::source::Source;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::read::Snapshot;

/// All documents that the selector may match, and perhaps others: those that the index names, and those that it does not know, which are
/// deleted or have ended.
pub(crate) fn candidates(snapshot: &Snapshot, selector: &Selector) -> Result<DocumentSet> {
    let prepared = Query::new(selector.clone()).prepare_unordered()?;
    let plan = prepared.plan(false, Facts::of(snapshot));
    let mut found = evaluate(&plan.filter, snapshot, None)?.possible();
    found.or_with(&Source::presence(snapshot, PathNumber::ROOT, &[Presence::Overflow])?);
    let last = snapshot.last_number()?;
    let mut unknown = DocumentSet::from_sorted((1..=last.0).map(DocumentNumber));
    unknown.and_not_with(&Source::presence(snapshot, PathNumber::ROOT, &[Presence::Object])?);
    found.or_with(&unknown);
    Ok(found)
}
