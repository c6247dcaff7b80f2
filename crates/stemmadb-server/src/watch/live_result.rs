//! The result of a live query of a virtual database, and what changes do to it.
//!
//! A document that changes its shard is reported again by the changes feed. The result has the ids and revisions of its
//! documents, so the client sees each revision once.

use std::collections::HashMap;

use stemmadb::{Change, Document, Revision, Selector};

use crate::error::Result;

/// The revisions of the documents that the client has.
#[derive(Default)]
pub(crate) struct LiveResult(HashMap<String, Revision>);

/// What a change does to the result.
pub(crate) enum ResultChange<'a> {
    Entered(&'a Document),
    Changed(&'a Document),
    Left,
}

impl LiveResult {
    /// Adds a document of the first result; returns false if the client has it.
    pub(crate) fn add(&mut self, document: &Document) -> bool {
        self.0.insert(document.id().as_str().to_owned(), *document.revision()).is_none()
    }

    /// Applies a change, which has its document, to the result of a selector; `None` if it does nothing to it.
    /// `is_partial`: whether the client may have documents that are not known here, which then leave as well.
    ///
    /// # Errors
    /// 500 if the document can't be read.
    pub(crate) fn apply<'a>(
        &mut self,
        change: &'a Change,
        selector: &Selector,
        is_partial: bool,
    ) -> Result<Option<ResultChange<'a>>> {
        let id = change.id.as_str();
        let document = change.document.as_ref().filter(|_| !change.deleted && !change.id.is_design());
        Ok(match document {
            Some(document) if selector.matches_document(document)? => {
                match self.0.insert(id.to_owned(), change.revision) {
                    Some(known) if known == change.revision => None,
                    Some(_) => Some(ResultChange::Changed(document)),
                    None => Some(ResultChange::Entered(document)),
                }
            }
            _ => (self.0.remove(id).is_some() || is_partial).then_some(ResultChange::Left),
        })
    }
}
