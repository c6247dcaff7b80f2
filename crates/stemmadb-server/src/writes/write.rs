//! Writing what clients send: each document on its own merits, all of them with one flush.

use std::sync::Arc;

use stemmadb::{DocumentId, Durability, Edit, ErrorKind, File, FileContent};
use uuid::Uuid;

use super::users::prepare_user;
use crate::auth::USERS_DATABASE;
use crate::design::{Validators, WriteValidator};
use crate::directory::Served;
use crate::documents::{Content, Incoming, IncomingFile};
use crate::error::{Failure, Result};

/// What became of one document.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) id: String,
    /// Its new revision.
    pub(crate) outcome: Result<String>,
}

/// How documents are written.
#[derive(Clone)]
pub(crate) struct WriteOptions {
    /// What must agree.
    pub(crate) validator: WriteValidator,
    /// Whether they are edits made now, which may conflict; else they were written elsewhere, and are taken as they are.
    pub(crate) new_edits: bool,
    pub(crate) durability: Durability,
}

/// Writes documents; what became of each, in their order. Blocks.
///
/// # Errors
/// Of the whole: 503 if the database can't be written. Of each: 409, 412, 400.
pub(crate) fn write(served: &Served, documents: Vec<Incoming>, options: &WriteOptions) -> Result<Vec<Written>> {
    let mut written = Vec::with_capacity(documents.len());
    let mut edits = Vec::with_capacity(documents.len());
    let mut places = Vec::with_capacity(documents.len());
    for (id, document, verdict) in admitted(served, documents, options)? {
        if let Err(refused) = verdict {
            written.push(Written { id, outcome: Err(refused) });
            continue;
        }
        let outcome = match id.starts_with("_local/") {
            true => write_local(served, &id, document),
            false => edit_of(served, &id, document, options.new_edits).map(|edit| {
                places.push(written.len());
                edits.push(edit);
                String::new()
            }),
        };
        written.push(Written { id, outcome });
    }
    let outcomes = served.database().with_durability(options.durability).bulk(edits)?;
    if written.iter().any(|written| written.id.starts_with("_design/")) {
        served.extension::<Validators>().design_changed();
    }
    for (place, outcome) in places.into_iter().zip(outcomes) {
        written[place].outcome = outcome.map(|revision| revision.to_string()).map_err(refusal);
    }
    Ok(written)
}

/// Documents with their ids, ready to be written, each with why it may not be, if so. Blocks for what validations take.
///
/// # Errors
/// 500 if a validation can't be called.
pub(super) fn admitted(
    served: &Served,
    documents: Vec<Incoming>,
    options: &WriteOptions,
) -> Result<Vec<(String, Incoming, Result<()>)>> {
    let mut named = Vec::with_capacity(documents.len());
    let mut ready = Vec::with_capacity(documents.len());
    for mut document in documents {
        let id = document.id.take().unwrap_or_else(|| Uuid::now_v7().simple().to_string());
        ready.push(match served.name() == USERS_DATABASE {
            true => prepare_user(served, &id, &mut document, &options.validator.user),
            false => Ok(()),
        });
        named.push((id, document));
    }
    let judged: Vec<_> = named.iter().map(|(id, document)| (id.as_str(), document)).collect();
    let verdicts = options.validator.validate(served, &judged)?;
    let verdicts = ready.into_iter().zip(verdicts).map(|(ready, verdict)| ready.and(verdict));
    Ok(named.into_iter().zip(verdicts).map(|((id, document), verdict)| (id, document, verdict)).collect())
}

/// Runs a short write, as [`Served::writing`]; off this thread where validation functions may have to run.
pub(crate) async fn run_write<T: Send + 'static>(
    served: &Arc<Served>,
    work: impl FnOnce(&Served) -> Result<T> + Send + 'static,
) -> Result<T> {
    let may_call_functions = served.extension::<Validators>().may_be_any();
    served.writing(may_call_functions, work).await
}

/// Writes one document; returns its id and its revision. Blocks.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_one(served: &Served, document: Incoming, options: &WriteOptions) -> Result<(String, String)> {
    let mut written = write(served, vec![document], options)?;
    let written = written.pop().ok_or_else(|| Failure::internal("nothing was written"))?;
    written.outcome.map(|revision| (written.id, revision))
}

pub(super) fn edit_of(served: &Served, id: &str, document: Incoming, new_edits: bool) -> Result<Edit> {
    let revisions = if new_edits { Vec::new() } else { document.history()? };
    let Incoming { revision, ancestry, deleted, body, files, .. } = document;
    let files = files.into_iter().map(|file| file_of(served, file, new_edits)).collect::<Result<_>>()?;
    let id = DocumentId::new(id)?;
    Ok(match new_edits {
        true => {
            let parent = revision.or_else(|| ancestry.and_then(|ancestry| ancestry.first().copied()));
            Edit::Put { id, parent, deleted, body, files }
        }
        false => Edit::Foreign { id, revisions, deleted, body, files },
    })
}

fn file_of(served: &Served, file: IncomingFile, new_edits: bool) -> Result<File> {
    let IncomingFile { name, content_type, revpos, content } = file;
    let (blob, md5) = match content {
        Content::Stub => return Ok(File { name, content: FileContent::Existing }),
        Content::Inline(bytes) => served.store(&bytes[..])?,
        Content::Stored { blob, md5 } => (blob, md5),
        Content::Follows { .. } => {
            return Err(Failure::bad_request(format!("The content of `{name}` does not follow")));
        }
    };
    let generation = revpos.filter(|_| !new_edits);
    Ok(File { name, content: FileContent::Stored { content_type, blob, md5: Some(md5), generation } })
}

/// `_local` documents take whatever is written last, as in CouchDB: they belong to one replicator each.
fn write_local(served: &Served, id: &str, document: Incoming) -> Result<String> {
    if document.deleted {
        served.database().local_documents().delete(id, None)?;
        return Ok("0-0".to_owned());
    }
    let number = served.database().local_documents().put(id, None, &document.body)?;
    Ok(format!("0-{number}"))
}

pub(super) fn refusal(error: stemmadb::Error) -> Failure {
    match error.kind() {
        // The only thing an edit may miss.
        ErrorKind::NotFound => {
            Failure::new(hyper::StatusCode::PRECONDITION_FAILED, "missing_stub", error.message().to_owned())
        }
        _ => error.into(),
    }
}
