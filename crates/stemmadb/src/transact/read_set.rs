//! Read set of an optimistic transaction, and its validation against later changes.

use std::collections::HashSet;

use crate::Result;
use crate::document::Document;
use crate::query::Matcher;
use crate::read::Snapshot;
use crate::revision::Sequence;

/// The number of changes that are validated per batch.
const BATCH_COUNT: usize = 1024;

/// Returns whether a document belongs to a read set.
pub(crate) type ReadPredicate = Box<dyn Fn(&Document) -> Result<bool>>;

/// The documents that an attempt has read, by id, selector or predicate.
#[derive(Default)]
pub(super) struct ReadSet {
    ids: HashSet<String>,
    selectors: Vec<Matcher>,
    predicates: Vec<ReadPredicate>,
}

impl ReadSet {
    /// Adds the document `id`, whether it exists or not.
    pub(super) fn add_id(&mut self, id: &str) {
        if !self.ids.contains(id) {
            self.ids.insert(id.to_owned());
        }
    }

    /// Adds the documents that match a selector.
    pub(super) fn add_selector(&mut self, matcher: Matcher) {
        self.selectors.push(matcher);
    }

    /// Adds the documents for which a predicate returns true.
    pub(super) fn add_predicate(&mut self, predicate: ReadPredicate) {
        self.predicates.push(predicate);
    }

    /// Whether a change after `since` affects the read set, given the snapshots before (`base`) and after (`now`).
    /// Costs one step per change.
    pub(super) fn is_changed(&self, base: &Snapshot, since: Sequence, now: &Snapshot) -> Result<bool> {
        if self.ids.is_empty() && self.selectors.is_empty() && self.predicates.is_empty() {
            return Ok(false);
        }
        // The expiration of a document is no change, but a later transaction may have committed based on it.
        for number in now.expired_between(base)?.iter() {
            let id = now.id(number)?;
            if self.ids.contains(id.as_str()) || self.matches(id.as_str(), base, now)? {
                return Ok(true);
            }
        }
        let mut after = since;
        while after < now.sequence() {
            let batch = now.events_after(after, BATCH_COUNT)?;
            for (_, number) in batch.events {
                let id = now.id(number)?;
                if self.ids.contains(id.as_str()) || self.matches(id.as_str(), base, now)? {
                    return Ok(true);
                }
            }
            after = batch.reached;
        }
        Ok(false)
    }

    /// Whether the old or the new version of the document matches a selector or a predicate.
    fn matches(&self, id: &str, base: &Snapshot, now: &Snapshot) -> Result<bool> {
        if self.selectors.is_empty() && self.predicates.is_empty() {
            return Ok(false);
        }
        for document in [base.get(id)?, now.get(id)?].into_iter().flatten() {
            for selector in &self.selectors {
                if selector.matches(&document)? {
                    return Ok(true);
                }
            }
            for predicate in &self.predicates {
                if predicate(&document)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
