//! What an attempt asked the database, and whether the answer would be another by now.

use std::collections::HashSet;

use crate::Result;
use crate::document::Document;
use crate::query::Matcher;
use crate::read::Snapshot;
use crate::revision::Sequence;

/// Changes looked at together.
const BATCH_COUNT: usize = 1024;

/// Says whether a document was read.
pub(crate) type Test = Box<dyn Fn(&Document) -> Result<bool>>;

/// Ids, selectors and what else was asked for.
#[derive(Default)]
pub(super) struct Reads {
    ids: HashSet<String>,
    selectors: Vec<Matcher>,
    tests: Vec<Test>,
}

impl Reads {
    /// The document `id` was asked for, whether it is there or not.
    pub(super) fn id(&mut self, id: &str) {
        if !self.ids.contains(id) {
            self.ids.insert(id.to_owned());
        }
    }

    /// The documents that match were asked for.
    pub(super) fn selector(&mut self, matcher: Matcher) {
        self.selectors.push(matcher);
    }

    /// The documents were asked for that the test says yes of.
    pub(super) fn test(&mut self, test: Test) {
        self.tests.push(test);
    }

    /// Whether something that `base` answered is changed in `now` by what was written after `since`. Costs a look at each such change.
    pub(super) fn are_changed(&self, base: &Snapshot, since: Sequence, now: &Snapshot) -> Result<bool> {
        if self.ids.is_empty() && self.selectors.is_empty() && self.tests.is_empty() {
            return Ok(false);
        }
        // What ends is no event. Whoever began later may have seen that it is gone.
        for number in now.ended_between(base)?.iter() {
            let id = now.id(number)?;
            if self.ids.contains(id.as_str()) || self.is_hit(id.as_str(), base, now)? {
                return Ok(true);
            }
        }
        let mut after = since;
        while after < now.sequence() {
            let batch = now.events_after(after, BATCH_COUNT)?;
            for (_, number) in batch.events {
                let id = now.id(number)?;
                if self.ids.contains(id.as_str()) || self.is_hit(id.as_str(), base, now)? {
                    return Ok(true);
                }
            }
            after = batch.reached;
        }
        Ok(false)
    }

    /// Whether the document matches a selector or a test, as it was or as it is.
    fn is_hit(&self, id: &str, base: &Snapshot, now: &Snapshot) -> Result<bool> {
        if self.selectors.is_empty() && self.tests.is_empty() {
            return Ok(false);
        }
        for document in [base.get(id)?, now.get(id)?].into_iter().flatten() {
            for selector in &self.selectors {
                if selector.matches(&document)? {
                    return Ok(true);
                }
            }
            for test in &self.tests {
                if test(&document)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
