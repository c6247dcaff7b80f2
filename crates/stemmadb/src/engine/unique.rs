//! Unique constraints: which documents hold which unique values in the course of a transaction.
//!
//! Constraints are checked against the state that a transaction leaves behind, so a value may move from one document to
//! another within it. Where edits are independent of each other, they are checked after each edit. Only new values are
//! checked: a document may keep the values it has, and revisions from other databases are never refused.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::index::{DeclaredIndexes, DocumentNumber, PathNumber};
use crate::read::snapshot::Snapshot;
use crate::value::PackedValue;
use crate::{Error, Result};

/// The path of a unique index, and a key in it.
pub(super) type UniqueKey = (PathNumber, Box<[u8]>);

/// The unique values of the documents that a transaction wrote.
#[derive(Default)]
pub(super) struct UniqueKeys {
    documents: HashMap<DocumentNumber, DocumentKeys>,
    holders: HashMap<UniqueKey, SmallVec<[DocumentNumber; 1]>>,
}

#[derive(Default)]
struct DocumentKeys {
    keys: Vec<UniqueKey>,
    /// The values among them that have to be checked.
    keys_to_check: Vec<UniqueKey>,
}

impl UniqueKeys {
    /// Records that `number` had the values `old` and now has `new`; new values are checked later if
    /// `checks_uniqueness`.
    pub(super) fn record(
        &mut self,
        number: DocumentNumber,
        old: &[UniqueKey],
        new: &[UniqueKey],
        checks_uniqueness: bool,
    ) {
        let before = self.documents.remove(&number).unwrap_or_default();
        for key in &before.keys {
            if let Some(holders) = self.holders.get_mut(key) {
                holders.retain(|holder| *holder != number);
            }
        }
        for key in new {
            self.holders.entry(key.clone()).or_default().push(number);
        }
        let has_to_be_checked =
            |key: &&UniqueKey| before.keys_to_check.contains(key) || checks_uniqueness && !old.contains(key);
        let keys_to_check = new.iter().filter(has_to_be_checked).cloned().collect();
        self.documents.insert(number, DocumentKeys { keys: new.to_vec(), keys_to_check });
    }

    /// The document other than `number` that has this value, either in the transaction or, if the transaction did not
    /// write it, in `base`.
    pub(super) fn holder(
        &self,
        base: &Snapshot,
        number: DocumentNumber,
        key: &UniqueKey,
    ) -> Result<Option<DocumentNumber>> {
        let staged = self.holders.get(key).and_then(|holders| holders.iter().find(|holder| **holder != number));
        if let Some(holder) = staged {
            return Ok(Some(*holder));
        }
        let stored = base.postings(key.0, &key.1)?;
        let expired = base.expired()?;
        let is_gone = |holder| expired.is_some_and(|expired| expired.contains(holder));
        Ok(stored.iter().find(|holder| *holder != number && !self.documents.contains_key(holder) && !is_gone(*holder)))
    }

    /// The values of `number` that have to be checked.
    pub(super) fn keys_to_check(&self, number: DocumentNumber) -> &[UniqueKey] {
        self.documents.get(&number).map_or(&[], |document| &document.keys_to_check)
    }
}

/// The error for a document whose value at `path` is taken by `holder`.
pub(super) fn duplicate_error(
    declared: &DeclaredIndexes,
    path: PathNumber,
    document: PackedValue<'_>,
    holder: &str,
) -> Error {
    let Some(index) = declared.indexes.iter().find(|index| index.path == path) else {
        return Error::internal("a value is unique in an index that is not declared");
    };
    let value = index.definition.shown(document).unwrap_or_default();
    let name = &index.definition.name;
    Error::duplicate_value(format!("index `{name}` is unique, and document `{holder}` has {value} already"))
        .with_hint("choose another value, or change that document first")
}
