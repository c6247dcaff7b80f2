//! Batches of writes, with a `_local` document that records how far they got.

use stemmadb::{Object, Revision, Value};

use super::{Database, DocumentWrite, durability_of};
use crate::arguments::DurabilityChoice;
use crate::failure::{Failure, Result};

/// Makes the body of the `_local` document from the outcomes of a batch.
type LocalBody<'a> = &'a dyn Fn(&[Result<()>]) -> Option<Object>;

impl Database {
    /// Writes a batch of documents with one acknowledgment. Each write succeeds or fails on its own, until one fails
    /// with an outcome for which `goes_on` returns false. Returns the outcomes so far, in input order.
    ///
    /// Writes a `_local` document in the same transaction: `local` has its id, and its body for the outcomes, if any.
    pub(crate) fn bulk(
        &self,
        writes: Vec<DocumentWrite>,
        durability: DurabilityChoice,
        goes_on: &dyn Fn(&Result<()>) -> bool,
        local: (&str, LocalBody<'_>),
    ) -> Result<Vec<Result<()>>> {
        // For each write: its outcome if it is no edit.
        let mut settled = Vec::with_capacity(writes.len());
        let mut edits = Vec::with_capacity(writes.len());
        for write in writes {
            let outcome = match self.edit_of(write) {
                Ok(Some(edit)) => {
                    edits.push(edit);
                    settled.push(None);
                    continue;
                }
                Ok(None) => Ok(()),
                Err(failure) => Err(failure),
            };
            let stops = !goes_on(&outcome);
            settled.push(Some(outcome));
            if stops {
                break;
            }
        }
        let db = self.inner.with_durability(durability_of(durability));
        let continues = |error: &stemmadb::Error| goes_on(&Err(Failure::of(error)));
        let mut outcomes = Vec::new();
        db.local_documents().put_with(local.0, edits, continues, |written| {
            outcomes = merge_outcomes(settled, written);
            (local.1)(&outcomes)
        })?;
        Ok(outcomes)
    }

    /// Reads a `_local` document.
    pub(crate) fn local_document(&self, id: &str) -> Result<Option<Value>> {
        Ok(self.inner.local_documents().get(id)?.map(|(_, body)| body))
    }
}

/// The outcomes of all writes, in order: those that were settled before the transaction, and those of edits.
fn merge_outcomes(settled: Vec<Option<Result<()>>>, written: &[stemmadb::Result<Revision>]) -> Vec<Result<()>> {
    let mut written = written.iter();
    let mut outcomes = Vec::with_capacity(settled.len());
    for outcome in settled {
        match (outcome, written.len()) {
            (Some(outcome), _) => outcomes.push(outcome),
            // The transaction stopped before this edit.
            (None, 0) => break,
            (None, _) => outcomes.extend(written.next().map(|outcome| match outcome {
                Ok(_) => Ok(()),
                Err(error) => Err(Failure::of(error)),
            })),
        }
    }
    outcomes
}
