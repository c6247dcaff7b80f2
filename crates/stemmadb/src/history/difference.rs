//! What changed between two points in the past.

use crate::document::Document;
use crate::engine::Store;
use crate::index::DocumentNumber;
use crate::query::{Matcher, Selector};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::value::Value;
use crate::{Error, Result};

/// Documents whose changes are found at a time.
const BATCH_COUNT: usize = 256;

/// How a document differs between two states of the database. Returned by
/// [`History::differences`](crate::handles::History::differences).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Difference {
    /// The document did not exist in the first state.
    Added(Document),
    /// The document has another revision.
    Changed {
        /// The document in the first state.
        before: Document,
        /// The document in the second state.
        after: Document,
        /// The paths whose values differ, such as `address.city`; arrays are compared as a whole. Empty if only
        /// attachments differ, or the same body was written again.
        paths: Vec<String>,
    },
    /// The document does not exist in the second state.
    Removed(Document),
}

impl Difference {
    /// The document's id.
    pub fn id(&self) -> &DocumentId {
        match self {
            Difference::Added(document)
            | Difference::Removed(document)
            | Difference::Changed { after: document, .. } => document.id(),
        }
    }
}

/// The differences between two states, in the order of the last changes. An iterator; it reads as it goes.
pub struct Differences {
    before: Snapshot,
    after: Snapshot,
    matcher: Option<Matcher>,
    batch: std::vec::IntoIter<(Sequence, DocumentNumber)>,
    reached: Sequence,
    has_ended: bool,
}

/// The differences between the states as of `from` and as of `to`.
pub(crate) fn differences(
    store: &Store,
    from: Sequence,
    to: Sequence,
    selector: Option<&Selector>,
) -> Result<Differences> {
    if from > to {
        return Err(Error::invalid(format!("sequence {from} is not before sequence {to}")).with_hint("swap them"));
    }
    Ok(Differences {
        before: store.as_of(from)?,
        after: store.as_of(to)?,
        matcher: selector.map(Selector::matcher).transpose()?,
        batch: Vec::new().into_iter(),
        reached: from,
        has_ended: false,
    })
}

impl Differences {
    fn next_difference(&mut self) -> Result<Option<Difference>> {
        loop {
            while let Some((_, number)) = self.batch.next() {
                if let Some(difference) = self.of(number)? {
                    return Ok(Some(difference));
                }
            }
            let events = self.after.events_after(self.reached, BATCH_COUNT)?;
            if self.reached == events.reached {
                return Ok(None);
            }
            self.reached = events.reached;
            self.batch = events.events.into_iter();
        }
    }

    fn of(&self, number: DocumentNumber) -> Result<Option<Difference>> {
        let (before, after) = (winner(&self.before, number)?, winner(&self.after, number)?);
        if let Some(matcher) = &self.matcher {
            let matches = |document: &Option<Document>| match document {
                Some(document) => matcher.matches(document),
                None => Ok(false),
            };
            if !matches(&before)? && !matches(&after)? {
                return Ok(None);
            }
        }
        Ok(match (before, after) {
            (None, None) => None,
            (None, Some(after)) => Some(Difference::Added(after)),
            (Some(before), None) => Some(Difference::Removed(before)),
            (Some(before), Some(after)) if before.revision() == after.revision() => None,
            (Some(before), Some(after)) => {
                let mut paths = Vec::new();
                changed_paths(&before.value()?, &after.value()?, &mut String::new(), &mut paths);
                Some(Difference::Changed { before, after, paths })
            }
        })
    }
}

impl Iterator for Differences {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let next = self.next_difference().transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// The live document with this number, if there is one.
fn winner(snapshot: &Snapshot, number: DocumentNumber) -> Result<Option<Document>> {
    let Some(state) = snapshot.state(number)?.filter(|state| state.is_live()) else { return Ok(None) };
    let document = snapshot.winner(&state)?;
    Ok(if snapshot.has_expired(&document)? { None } else { Some(document) })
}

/// Appends the paths at which two values differ. `path` is that of the values.
fn changed_paths(before: &Value, after: &Value, path: &mut String, paths: &mut Vec<String>) {
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        if before != after {
            paths.push(path.clone());
        }
        return;
    };
    let length = path.len();
    let enter = |name: &str, path: &mut String| {
        if length > 0 {
            path.push('.');
        }
        path.push_str(name);
    };
    for (name, value) in old.iter() {
        enter(name, path);
        match new.get(name) {
            Some(other) => changed_paths(value, other, path, paths),
            None => paths.push(path.clone()),
        }
        path.truncate(length);
    }
    for (name, _) in new.iter().filter(|(name, _)| old.get(name).is_none()) {
        enter(name, path);
        paths.push(path.clone());
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_paths_are_named() {
        let of = |before: &str, after: &str| {
            let value = |json: &str| Value::parse(json.as_bytes()).unwrap();
            let mut paths = Vec::new();
            changed_paths(&value(before), &value(after), &mut String::new(), &mut paths);
            paths
        };
        assert!(of(r#"{"a": 1, "b": {"c": [1]}}"#, r#"{"a": 1, "b": {"c": [1]}}"#).is_empty());
        assert_eq!(
            of(r#"{"a": 1, "b": {"c": [1], "d": 2}}"#, r#"{"b": {"c": [2], "e": 1}}"#),
            ["a", "b.c", "b.d", "b.e"]
        );
        assert_eq!(of(r#"{"a": {"b": 1}}"#, r#"{"a": 1}"#), ["a"]);
    }
}
