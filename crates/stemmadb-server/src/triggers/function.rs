//! Trigger functions: JavaScript functions of a design document, which return documents to write.

use std::sync::Arc;

use serde_json::Value as Json;
use stemmadb::Value;

use super::TriggerContext;
use super::definition::split_function;
use crate::auth::{ADMIN_ROLE, User};
use crate::design::{self, DesignFunctions, WriteValidator};
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};
use crate::script::CallKind;
use crate::writes::{RefusalCause, TransactOutcome, WriteOptions, transact};

/// A trigger function: `design document/name`.
pub(super) struct TriggerFunction {
    pub(super) name: String,
}

impl TriggerFunction {
    /// Calls the function with a document and the event, and writes the documents that it returns, all or none. What
    /// is stored already is not written again, so a repeated call changes nothing. Blocks.
    ///
    /// # Errors
    /// Those of the function and of the write.
    pub(super) fn call(
        &self,
        context: &TriggerContext,
        served: &Arc<ServedDatabase>,
        author: &str,
        event: &Json,
    ) -> Result<()> {
        let (design, function) = split_function(&self.name)?;
        let design = design::open(&served.database().snapshot()?, design)?;
        let functions = DesignFunctions::new(served, &context.scripts, &design)?;
        let arguments = [event["doc"].to_string(), event.to_string()];
        let answers = functions.call(CallKind::Trigger, &["triggers", function], &[arguments])?;
        let answer = answers.into_iter().next().ok_or_else(|| Failure::internal("a function returned nothing"))?;
        let answer = answer.map_err(design::thrown_failure)?;
        let documents = match Value::parse(answer.as_bytes())? {
            Value::Null => return Ok(()),
            Value::Array(documents) => documents,
            document @ Value::Object(_) => vec![document],
            _ => return Err(Failure::bad_request("a trigger function returns a document, an array of them, or null")),
        };
        let mut changed = Vec::with_capacity(documents.len());
        for document in documents {
            changed.extend(with_revision(served, IncomingDocument::parse(document)?)?);
        }
        if changed.is_empty() {
            return Ok(());
        }
        // A function was written by an administrator of the database, and writes as one.
        let user = User { name: Some(author.to_owned()), roles: vec![ADMIN_ROLE.to_owned()], how: None };
        let validator =
            WriteValidator { user, scripts: context.scripts.clone(), restriction: None, is_of_whole: false };
        let options = WriteOptions { validator, new_edits: true, durability: context.durability };
        let TransactOutcome::Refused(refused) = transact(served, changed, &[], &options)? else { return Ok(()) };
        let first =
            refused.into_iter().next().ok_or_else(|| Failure::internal("a write was refused without a reason"))?;
        Err(match first.cause {
            RefusalCause::Document(id) => first.failure.within(&id),
            RefusalCause::Check(_) => first.failure,
        })
    }
}

/// The document as a replacement of the stored one, unless it names a revision; `None` if it is stored already.
fn with_revision(served: &ServedDatabase, mut document: IncomingDocument) -> Result<Option<IncomingDocument>> {
    let Some(id) = document.id.clone() else {
        // A repeated call would write another document.
        return Err(Failure::bad_request("a document that a trigger function returns needs an `_id`"));
    };
    if document.revision.is_some() {
        return Ok(Some(document));
    }
    match served.database().get(&id)? {
        Some(current) => {
            if !document.deleted && document.files.is_empty() && current.value()? == document.body {
                return Ok(None);
            }
            document.revision = Some(*current.revision());
            Ok(Some(document))
        }
        None if document.deleted => Ok(None),
        None => Ok(Some(document)),
    }
}
