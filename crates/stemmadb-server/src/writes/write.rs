//! Independent writes of several documents: each succeeds or fails separately, and all share one flush.

use std::sync::Arc;

use stemmadb::{DocumentId, Durability, Edit, ErrorKind, File, FileContent};
use uuid::Uuid;

use super::departures::departures;
use super::users::prepare_user;
use crate::auth::{USERS_DATABASE, User};
use crate::design::{Validators, WriteValidator, compile_views, keep_rule_fields, may_validate};
use crate::directory::{ServedDatabase, WHOLE_DOCUMENT, WRITE_RECORDS};
use crate::documents::{IncomingContent, IncomingDocument, IncomingFile, check_partitioned_id};
use crate::error::{Failure, Result};
use crate::virtual_databases::Databases;

/// An id for a document without one.
pub(crate) fn new_document_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Writes documents to the databases that have them; returns a result for each, in order. Blocks.
///
/// # Errors
/// As [`write`]. Documents in other databases may have been written.
pub(crate) fn write_divided(
    databases: &Databases,
    mut documents: Vec<IncomingDocument>,
    options: &WriteOptions,
) -> Result<Vec<WriteResult>> {
    if let Some(served) = databases.only() {
        return write(served, documents, options);
    }
    for document in &mut documents {
        document.id.get_or_insert_with(new_document_id);
    }
    let mut written: Vec<Option<WriteResult>> = documents.iter().map(|_| None).collect();
    for (served, part) in databases.divide(documents, |document| document.id.as_deref().unwrap_or_default()) {
        let (positions, documents): (Vec<_>, Vec<_>) = part.into_iter().unzip();
        let results = write(&served, documents, options)?;
        positions.into_iter().zip(results).for_each(|(position, result)| written[position] = Some(result));
    }
    Ok(written.into_iter().flatten().collect())
}

/// The result of writing one document.
#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(crate) id: String,
    /// The new revision.
    pub(crate) outcome: Result<String>,
}

/// How documents are written.
#[derive(Clone)]
pub(crate) struct WriteOptions {
    /// Runs the validation functions of the database.
    pub(crate) validator: WriteValidator,
    /// Whether the documents are new edits, which may conflict. Otherwise they are replicated revisions, which are
    /// stored as they are.
    pub(crate) new_edits: bool,
    pub(crate) durability: Durability,
}

/// Writes documents; returns a result for each, in order. Blocks.
///
/// # Errors
/// 503 if the database can't be written; as [`validate_documents`]. The result of each document may be 400, 409 or 412.
pub(crate) fn write(
    served: &ServedDatabase,
    documents: Vec<IncomingDocument>,
    options: &WriteOptions,
) -> Result<Vec<WriteResult>> {
    let mut written = Vec::with_capacity(documents.len());
    let mut edits = Vec::with_capacity(documents.len());
    let mut positions = Vec::with_capacity(documents.len());
    for (id, document, verdict) in validate_documents(served, documents, options)? {
        if let Err(refused) = verdict {
            written.push(WriteResult { id, outcome: Err(refused) });
            continue;
        }
        let outcome = match id.starts_with("_local/") {
            true => write_local(served, &id, document, options),
            false => to_edit(served, &id, document, options.new_edits).map(|edit| {
                positions.push(written.len());
                edits.push(edit);
                String::new()
            }),
        };
        written.push(WriteResult { id, outcome });
    }
    let database = served.database().with_durability(options.durability);
    // After the edits, whose results are the first ones.
    edits.extend(departures(served, &options.validator, &edits)?);
    let outcomes = options.validator.user.writing(|| database.bulk(edits))?;
    if written.iter().any(|written| written.id.starts_with("_design/")) {
        served.extension::<Validators>().invalidate();
    }
    for (position, outcome) in positions.into_iter().zip(outcomes) {
        written[position].outcome = outcome.map(|revision| revision.to_string()).map_err(write_failure);
    }
    Ok(written)
}

/// Assigns missing ids and validates documents: the result of each says whether it may be written. Blocks while
/// validation functions run.
///
/// # Errors
/// 500 if a validation function can't be called. 400, as in CouchDB for the whole request, if an id names no partition
/// of a partitioned database.
pub(super) fn validate_documents(
    served: &ServedDatabase,
    documents: Vec<IncomingDocument>,
    options: &WriteOptions,
) -> Result<Vec<(String, IncomingDocument, Result<()>)>> {
    let mut named = Vec::with_capacity(documents.len());
    let mut ready = Vec::with_capacity(documents.len());
    for mut document in documents {
        let id = document.id.take().unwrap_or_else(new_document_id);
        if served.is_partitioned() {
            check_partitioned_id(&id)?;
        }
        ready.push(match (document.prepare_for(served.name()), served.name() == USERS_DATABASE) {
            (Ok(()), true) => prepare_user(served, &id, &mut document, &options.validator.user),
            (checked, _) => checked,
        });
        named.push((id, document));
    }
    if options.validator.copies(served) {
        let copied = named.into_iter().zip(ready).map(|((id, document), ready)| (id, document, ready));
        return Ok(copied.collect());
    }
    if served.security().has_rule() {
        for (id, document) in named.iter_mut().filter(|(_, document)| document.deleted) {
            keep_rule_fields(served, id, document)?;
        }
    }
    let candidates: Vec<_> = named.iter().map(|(id, document)| (id.as_str(), document)).collect();
    let verdicts = options.validator.validate(served, &candidates)?;
    let mut validated = Vec::with_capacity(named.len());
    for ((id, document), (ready, verdict)) in named.into_iter().zip(ready.into_iter().zip(verdicts)) {
        let mut verdict = ready.and(verdict);
        // Replicated revisions are accepted as they are.
        if verdict.is_ok() && options.new_edits && id.starts_with("_design/") && !document.deleted {
            verdict = compile_views(served, &options.validator.scripts, &document.body);
        }
        validated.push((id, document, verdict));
    }
    Ok(validated)
}

/// Runs a short write as [`ServedDatabase::writing`] does, but on the blocking pool if validation functions may have to
/// run.
pub(crate) async fn run_write<T: Send + 'static>(
    served: &Arc<ServedDatabase>,
    work: impl FnOnce(&ServedDatabase) -> Result<T> + Send + 'static,
) -> Result<T> {
    served.writing(may_validate(served), work).await
}

/// Writes one document; returns its id and its revision. Blocks.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_one(
    served: &ServedDatabase,
    document: IncomingDocument,
    options: &WriteOptions,
) -> Result<(String, String)> {
    let mut written = write(served, vec![document], options)?;
    let written = written.pop().ok_or_else(|| Failure::internal("nothing was written"))?;
    written.outcome.map(|revision| (written.id, revision))
}

pub(super) fn to_edit(served: &ServedDatabase, id: &str, document: IncomingDocument, new_edits: bool) -> Result<Edit> {
    let revisions = if new_edits { Vec::new() } else { document.history()? };
    let IncomingDocument { revision, ancestry, deleted, body, files, .. } = document;
    let files = files.into_iter().map(|file| to_file(served, file, new_edits)).collect::<Result<_>>()?;
    let id = DocumentId::new(id)?;
    Ok(match new_edits {
        true => {
            let parent = revision.or_else(|| ancestry.and_then(|ancestry| ancestry.first().copied()));
            Edit::Put { id, parent, deleted, body, files }
        }
        false => Edit::Foreign { id, revisions, deleted, body, files },
    })
}

fn to_file(served: &ServedDatabase, file: IncomingFile, new_edits: bool) -> Result<File> {
    file.check_content_type()?;
    let IncomingFile { name, content_type, revpos, content } = file;
    let (blob, md5) = match content {
        IncomingContent::Stub => return Ok(File { name, content: FileContent::Existing }),
        IncomingContent::Inline(bytes) => served.store(&bytes[..])?,
        IncomingContent::Stored { blob, md5 } => (blob, md5),
        IncomingContent::Follows { .. } => {
            return Err(Failure::bad_request(format!("The content of attachment `{name}` is missing")));
        }
    };
    let generation = revpos.filter(|_| !new_edits);
    Ok(File { name, content: FileContent::Stored { content_type, blob, md5: Some(md5), generation } })
}

/// Local documents in which the server keeps the positions of triggers, and the results of repeatable requests.
const SERVER_LOCALS: [&str; 3] = ["_local/trigger-", WRITE_RECORDS, WHOLE_DOCUMENT];

/// Checks that a user may write the local document `id`.
///
/// # Errors
/// 403 for a document of the server, unless the user is an administrator of the database.
pub(crate) fn check_local_writer(served: &ServedDatabase, user: &User, id: &str) -> Result<()> {
    match SERVER_LOCALS.iter().any(|prefix| id.starts_with(prefix)) && !served.security().is_admin(user) {
        true => Err(Failure::forbidden(format!(
            "`{id}` is state of the server, which only administrators of the database may change. Choose another id."
        ))),
        false => Ok(()),
    }
}

/// Writes a local document without a conflict check, as CouchDB does: each belongs to one replicator.
fn write_local(
    served: &ServedDatabase,
    id: &str,
    document: IncomingDocument,
    options: &WriteOptions,
) -> Result<String> {
    let stored = options.validator.restriction.as_ref().map(|restriction| restriction.local_id(id));
    let id = stored.as_deref().unwrap_or(id);
    check_local_writer(served, &options.validator.user, id)?;
    let number = match document.deleted {
        true => {
            served.database().local_documents().delete(id, None)?;
            0
        }
        false => served.database().local_documents().put(id, None, &document.body)?,
    };
    if id == WHOLE_DOCUMENT {
        served.read_whole()?;
    }
    Ok(format!("0-{number}"))
}

pub(super) fn write_failure(error: stemmadb::Error) -> Failure {
    match error.kind() {
        // The only thing that an edit refers to is the content of an attachment stub.
        ErrorKind::NotFound => {
            Failure::new(hyper::StatusCode::PRECONDITION_FAILED, "missing_stub", error.message().to_owned())
        }
        _ => error.into(),
    }
}
