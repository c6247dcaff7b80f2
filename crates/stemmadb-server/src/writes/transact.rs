//! Several documents at once: all of them are written or none, and only if what was read before is still so.

use std::collections::BTreeMap;

use hyper::StatusCode;
use stemmadb::{Attempt, Error, ErrorKind, Query, Revision, Selector};

use super::write::{WriteOptions, admitted, edit_of, refusal};
use crate::design::Validators;
use crate::directory::Served;
use crate::documents::Incoming;
use crate::error::{Failure, Result};

/// What must be so for a transaction to take place.
#[derive(Debug)]
pub(crate) enum Check {
    /// A document's winning revision is this one; none: there is no such document.
    Revision(String, Option<Revision>),
    /// What matches is exactly these documents, at these revisions.
    Rows(Selector, BTreeMap<String, Revision>),
    /// So many documents match.
    Count(Selector, u64),
}

/// Why nothing was written: one of the reasons.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    pub(crate) failure: Failure,
    /// The winning revision of the document that it is about.
    pub(crate) current: Option<Revision>,
}

/// What is in the way of a transaction.
#[derive(Debug)]
pub(crate) enum Cause {
    /// The document with this id.
    Document(String),
    /// The check at this place.
    Check(usize),
}

/// What became of a transaction.
pub(crate) enum Outcome {
    /// Ids and new revisions, in the order of the documents.
    Written(Vec<(String, String)>),
    /// All that is in the way.
    Refused(Vec<Refusal>),
}

/// Writes all documents, or none. Reads, checks and writes are of one state: if somebody comes between, they are done again. Blocks, holding
/// no lock but for the writing itself.
///
/// # Errors
/// 503 if the database can't be written; 409 if others interfere again and again.
pub(crate) fn transact(
    served: &Served,
    documents: Vec<Incoming>,
    checks: &[Check],
    options: &WriteOptions,
) -> Result<Outcome> {
    let (mut edits, mut refused) = (Vec::with_capacity(documents.len()), Vec::new());
    for (id, document, verdict) in admitted(served, documents, options)? {
        match verdict.and_then(|()| edit_of(served, &id, document, true)) {
            Ok(edit) => edits.push(edit),
            Err(failure) => refused.push(Refusal { cause: Cause::Document(id), failure, current: None }),
        }
    }
    // What may not be written at all needs no transaction.
    if !refused.is_empty() {
        return Ok(Outcome::Refused(refused));
    }
    let written = served.database().with_durability(options.durability).optimistic(|attempt| {
        refused.clear();
        for (at, check) in checks.iter().enumerate() {
            refused.extend(check.refusal(at, attempt)?);
        }
        let mut written = Vec::with_capacity(edits.len());
        for edit in &edits {
            let id = edit.id().as_str();
            match attempt.edit(edit.clone()) {
                Ok(revision) => written.push((id.to_owned(), revision.to_string())),
                Err(error) if is_its_own(error.kind()) => {
                    let current = attempt.get(id)?.map(|document| *document.revision());
                    refused.push(Refusal { cause: Cause::Document(id.to_owned()), failure: refusal(error), current });
                }
                Err(error) => return Err(error),
            }
        }
        if refused.is_empty() { Ok(written) } else { Err(Error::conflict("something is in the way")) }
    });
    match written {
        Err(_) if !refused.is_empty() => Ok(Outcome::Refused(refused)),
        Err(error) => Err(refusal(error)),
        Ok(written) => {
            if written.iter().any(|(id, _)| id.starts_with("_design/")) {
                served.extension::<Validators>().design_changed();
            }
            Ok(Outcome::Written(written))
        }
    }
}

/// Whether an error is about one document, so that others are looked at too.
fn is_its_own(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound | ErrorKind::Invalid)
}

impl Check {
    /// Why it does not hold, if so.
    fn refusal(&self, at: usize, attempt: &mut Attempt<'_>) -> stemmadb::Result<Option<Refusal>> {
        let mut current = None;
        let reason = match self {
            Check::Revision(id, expected) => {
                current = attempt.get(id)?.map(|document| *document.revision());
                match (current, expected) {
                    (current, expected) if current == *expected => None,
                    (Some(current), None) => Some(format!("{id} exists, at {current}")),
                    (Some(current), Some(expected)) => Some(format!("{id} is at {current}, not at {expected}")),
                    (None, _) => Some(format!("{id} does not exist")),
                }
            }
            Check::Rows(selector, rows) => {
                let query = Query::new(selector.clone()).limit(rows.len() as u64 + 1);
                let row = |document: stemmadb::Document| (document.id().to_string(), *document.revision());
                let found = attempt.find(query)?.run()?.map(|document| document.map(row));
                let found = found.collect::<stemmadb::Result<BTreeMap<_, _>>>()?;
                (found != *rows).then(|| "other documents match, or at other revisions".to_owned())
            }
            Check::Count(selector, expected) => {
                let count = attempt.find(selector.clone())?.count()?;
                (count != *expected).then(|| format!("{count} documents match, not {expected}"))
            }
        };
        let failed = |reason| Failure::new(StatusCode::CONFLICT, "check_failed", reason);
        Ok(reason.map(|reason: String| Refusal { cause: Cause::Check(at), failure: failed(reason), current }))
    }
}
