//! Values that no two documents may have: who has which, in the course of a transaction.
//!
//! Judged is what a transaction leaves behind, so that a value may move from one document to another within it; where each edit stands
//! on its own merits, each is judged as it comes. Only what an edit brings is judged: a document may keep what it has, and revisions
//! that were written elsewhere are never refused.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::index::{DeclaredIndexes, DocumentNumber, PathNumber};
use crate::read::snapshot::Snapshot;
use crate::value::PackedValue;
use crate::{Error, Result};

/// A unique index's path, and a key there.
pub(super) type Claim = (PathNumber, Box<[u8]>);

/// What the documents that a transaction wrote have in unique indexes.
#[derive(Default)]
pub(super) struct Claims {
    documents: HashMap<DocumentNumber, Claimed>,
    holders: HashMap<Claim, SmallVec<[DocumentNumber; 1]>>,
}

#[derive(Default)]
struct Claimed {
    claims: Vec<Claim>,
    /// Those among them that are to be judged.
    brought: Vec<Claim>,
}

impl Claims {
    /// Notes that `number` had `old` and has `new` now, which is judged if its edit `is_judged`.
    pub(super) fn note(&mut self, number: DocumentNumber, old: &[Claim], new: &[Claim], is_judged: bool) {
        let before = self.documents.remove(&number).unwrap_or_default();
        for claim in &before.claims {
            if let Some(holders) = self.holders.get_mut(claim) {
                holders.retain(|holder| *holder != number);
            }
        }
        for claim in new {
            self.holders.entry(claim.clone()).or_default().push(number);
        }
        let is_brought = |claim: &&Claim| before.brought.contains(claim) || is_judged && !old.contains(claim);
        let brought = new.iter().filter(is_brought).cloned().collect();
        self.documents.insert(number, Claimed { claims: new.to_vec(), brought });
    }

    /// The document other than `number` that has this value, in the transaction or, untouched by it, in `base`.
    pub(super) fn holder(
        &self,
        base: &Snapshot,
        number: DocumentNumber,
        claim: &Claim,
    ) -> Result<Option<DocumentNumber>> {
        let staged = self.holders.get(claim).and_then(|holders| holders.iter().find(|holder| **holder != number));
        if let Some(holder) = staged {
            return Ok(Some(*holder));
        }
        let stored = base.postings(claim.0, &claim.1)?;
        let ended = base.ended()?;
        let is_gone = |holder| ended.is_some_and(|ended| ended.contains(holder));
        Ok(stored.iter().find(|holder| *holder != number && !self.documents.contains_key(holder) && !is_gone(*holder)))
    }

    /// What is to be judged of `number`.
    pub(super) fn brought(&self, number: DocumentNumber) -> &[Claim] {
        self.documents.get(&number).map_or(&[], |claimed| &claimed.brought)
    }
}

/// The error of a document whose value at `path` another one has.
pub(super) fn taken(declared: &DeclaredIndexes, path: PathNumber, document: PackedValue<'_>, holder: &str) -> Error {
    let Some(index) = declared.indexes.iter().find(|index| index.path == path) else {
        return Error::internal("a value is unique in an index that is not declared");
    };
    let value = index.definition.shown(document).unwrap_or_default();
    let name = &index.definition.name;
    Error::duplicate_value(format!("index `{name}` is unique, and document `{holder}` has {value} already"))
        .with_hint("choose another value, or change that document first")
}
