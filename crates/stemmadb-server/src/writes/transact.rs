//! Atomic writes of several documents, with optional checks of what the client read before (optimistic concurrency
//! control).

use std::collections::BTreeMap;

use hyper::StatusCode;
use stemmadb::{Attempt, Document, Error, ErrorKind, Query, Revision, Selector};

use super::departures::edit_in;
use super::write::{WriteOptions, to_edit, validate_documents, write_failure};
use crate::auth::{narrowed, readable};
use crate::design::{Validators, WriteValidator};
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result, library_error};

/// A precondition of a transaction.
#[derive(Debug)]
pub(crate) enum TransactionCheck {
    /// The winning revision of a document; `None` if the document must not exist.
    Revision(String, Option<Revision>),
    /// Exactly these documents match the selector, at these revisions.
    Rows(Selector, BTreeMap<String, Revision>),
    /// The number of documents that match the selector.
    Count(Selector, u64),
}

/// One of the reasons why a transaction was rejected.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) cause: RefusalCause,
    pub(crate) failure: Failure,
    /// The current winning revision of the document.
    pub(crate) current: Option<Revision>,
}

/// The part of a transaction that was rejected.
#[derive(Debug)]
pub(crate) enum RefusalCause {
    /// The document with this id.
    Document(String),
    /// The check at this index of the request.
    Check(usize),
}

/// The result of a transaction.
pub(crate) enum TransactOutcome {
    /// Ids and new revisions, in the order of the documents.
    Written(Vec<(String, String)>),
    /// Nothing was written; all reasons.
    Refused(Vec<Refusal>),
}

/// Writes all documents or none. Checks and writes use one snapshot; if another writer commits in between, they are
/// retried. Blocks, but holds the writer lock only for the commit.
///
/// # Errors
/// 503 if the database can't be written; 409 if other writers interfere repeatedly.
pub(crate) fn transact(
    served: &ServedDatabase,
    documents: Vec<IncomingDocument>,
    checks: &[TransactionCheck],
    options: &WriteOptions,
) -> Result<TransactOutcome> {
    let (mut edits, mut refused) = (Vec::with_capacity(documents.len()), Vec::new());
    for (id, document, verdict) in validate_documents(served, documents, options)? {
        match verdict.and_then(|()| to_edit(served, &id, document, true)) {
            Ok(edit) => edits.push(edit),
            Err(failure) => refused.push(Refusal { cause: RefusalCause::Document(id), failure, current: None }),
        }
    }
    // Documents that fail validation reject the transaction before it starts.
    if !refused.is_empty() {
        return Ok(TransactOutcome::Refused(refused));
    }
    let database = served.database().with_durability(options.durability);
    let attempt = |attempt: &mut Attempt<'_>| {
        refused.clear();
        for (index, check) in checks.iter().enumerate() {
            refused.extend(check.evaluate(index, attempt, &options.validator)?);
        }
        let mut written = Vec::with_capacity(edits.len());
        for edit in &edits {
            let id = edit.id().as_str();
            match edit_in(served, attempt, edit.clone()) {
                Ok(revision) => written.push((id.to_owned(), revision.to_string())),
                Err(error) if concerns_one_document(error.kind()) => {
                    let current = read(attempt, id, &options.validator)?.map(|document| *document.revision());
                    refused.push(Refusal {
                        cause: RefusalCause::Document(id.to_owned()),
                        failure: write_failure(error),
                        current,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        if refused.is_empty() { Ok(written) } else { Err(Error::conflict("a document or a check was rejected")) }
    };
    let written = options.validator.user.writing(|| database.optimistic(attempt));
    match written {
        Err(_) if !refused.is_empty() => Ok(TransactOutcome::Refused(refused)),
        Err(error) => Err(write_failure(error)),
        Ok(written) => {
            if written.iter().any(|(id, _)| id.starts_with("_design/")) {
                served.extension::<Validators>().invalidate();
            }
            Ok(TransactOutcome::Written(written))
        }
    }
}

/// Reads a document, if the user may read it.
fn read(attempt: &mut Attempt<'_>, id: &str, validator: &WriteValidator) -> stemmadb::Result<Option<Document>> {
    readable(validator.restriction.as_ref(), attempt.get(id)?).map_err(|failure| library_error(&failure))
}

/// Whether an error concerns only one document, so that the remaining documents are still checked.
fn concerns_one_document(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound | ErrorKind::Invalid)
}

impl TransactionCheck {
    /// Evaluates the check; returns the refusal if it does not hold.
    fn evaluate(
        &self,
        index: usize,
        attempt: &mut Attempt<'_>,
        validator: &WriteValidator,
    ) -> stemmadb::Result<Option<Refusal>> {
        let query = |selector: &Selector| narrowed(validator.restriction.as_ref(), Query::new(selector.clone()));
        let mut current = None;
        let reason = match self {
            TransactionCheck::Revision(id, expected) => {
                current = read(attempt, id, validator)?.map(|document| *document.revision());
                match (current, expected) {
                    (current, expected) if current == *expected => None,
                    (Some(current), None) => Some(format!("{id} exists, at {current}")),
                    (Some(current), Some(expected)) => Some(format!("{id} is at {current}, not at {expected}")),
                    (None, _) => Some(format!("{id} does not exist")),
                }
            }
            TransactionCheck::Rows(selector, rows) => {
                let query = query(selector).limit(rows.len() as u64 + 1);
                let row = |document: stemmadb::Document| (document.id().to_string(), *document.revision());
                let found = attempt.find(query)?.run()?.map(|document| document.map(row));
                let found = found.collect::<stemmadb::Result<BTreeMap<_, _>>>()?;
                (found != *rows).then(|| "the matching documents or their revisions differ".to_owned())
            }
            TransactionCheck::Count(selector, expected) => {
                let count = attempt.find(query(selector))?.count()?;
                (count != *expected).then(|| format!("{count} documents match, not {expected}"))
            }
        };
        let failed = |reason| Failure::new(StatusCode::CONFLICT, "check_failed", reason);
        Ok(reason.map(|reason: String| Refusal { cause: RefusalCause::Check(index), failure: failed(reason), current }))
    }
}
