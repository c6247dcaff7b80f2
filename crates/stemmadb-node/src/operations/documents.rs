//! Reading and writing documents and their files.

use std::io::Read;

use stemmadb::{Document, DocumentId, Edit, Error, ErrorKind, Object, Result, Revision, Value};
use stemmadb_client::AnyDatabase;
use stemmadb_client::bindings::Reader;

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::text::{self, into_text, write_array, write_document};

/// The error for an id that no document has.
fn missing(id: &str) -> Error {
    Error::not_found(format!("there is no document `{id}`"))
}

fn document_answer(document: Option<Document>) -> Result<Answer> {
    match document {
        Some(document) => text::document(&document).map(Answer::Text),
        None => Ok(Answer::Nothing),
    }
}

pub(crate) fn get(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    document_answer(reader.get(&arguments.text("id")?)?)
}

/// Documents as of one moment, `null` for those that don't exist.
pub(crate) fn get_many(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let ids = arguments.texts("ids")?.unwrap_or_default();
    let documents = match reader {
        Reader::Database(database) => database.get_many(&ids)?,
        other => ids.iter().map(|id| other.get(id)).collect::<Result<_>>()?,
    };
    let mut json = Vec::with_capacity(256 * documents.len());
    write_array(&documents, &mut json, |document, out| match document {
        Some(document) => write_document(document, out),
        None => {
            out.extend_from_slice(b"null");
            Ok(())
        }
    })?;
    into_text(json).map(Answer::Text)
}

pub(crate) fn get_revision(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let revision = arguments.text("revision")?.parse()?;
    document_answer(database.get_revision(&arguments.text("id")?, &revision)?)
}

/// A new id: a UUID of version 7, so that documents that are inserted together are stored together.
fn new_id() -> Result<DocumentId> {
    DocumentId::new(uuid::Uuid::now_v7().to_string())
}

/// A document that a program gives. `_id` and `_rev` are its id and revision, and not part of the body.
struct Given {
    id: Option<DocumentId>,
    revision: Option<Revision>,
    body: Value,
}

fn given(document: Value) -> Result<Given> {
    let Value::Object(mut body) = document else { return Err(Error::invalid("a document is an object")) };
    let mut text = |name: &str| match body.contains(name).then(|| body.remove(name)).flatten() {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::invalid(format!("`{name}` is not a string"))),
    };
    let id = text("_id")?.map(DocumentId::new).transpose()?;
    let revision = text("_rev")?.map(|revision| revision.parse()).transpose()?;
    // A document that was read has stubs of its files, which a replacement keeps.
    if let Some(Value::Object(files)) = body.get("_attachments") {
        let is_stub = |file: &Value| file.as_object().is_some_and(|file| file.get("stub") == Some(&Value::Bool(true)));
        if !files.values().all(is_stub) {
            return Err(Error::invalid("a document can't be written together with the content of files")
                .with_hint("write the document, then `attach(id, name, content)`"));
        }
        body.remove("_attachments");
    }
    Ok(Given { id, revision, body: Value::Object(body) })
}

/// The argument `document`, under the id of the argument `id` if there is one.
fn given_document(arguments: &mut Arguments) -> Result<Given> {
    let given = given(arguments.required("document")?)?;
    Ok(match arguments.optional_text("id")? {
        None => given,
        Some(id) => {
            // Under another id it is another document, whatever revision was read.
            let id = DocumentId::new(id)?;
            let revision = given.revision.filter(|_| given.id.as_ref().is_none_or(|own| *own == id));
            Given { id: Some(id), revision, body: given.body }
        }
    })
}

/// Applies edits to a database or in a transaction.
fn edits(reader: &Reader, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
    match reader {
        Reader::Transaction(transaction) => transaction.edits(edits),
        other => Ok(other.database()?.bulk(edits)?.into_iter().map(|result| result.map(Some)).collect()),
    }
}

fn edit(reader: &Reader, edit: Edit) -> Result<Option<Revision>> {
    match reader {
        Reader::Transaction(transaction) => {
            let results = transaction.edits(vec![edit])?;
            results.into_iter().next().unwrap_or_else(|| Err(Error::internal("an edit has no result")))
        }
        other => other.database()?.edit(edit).map(Some),
    }
}

/// `{"id": …, "revision": …}`. A transaction on a server has no revisions before its end.
fn written(id: &DocumentId, revision: Option<Revision>) -> Answer {
    let mut written = Object::new();
    written.insert("id", id.as_str());
    if let Some(revision) = revision {
        written.insert("revision", revision.to_string());
    }
    Answer::Text(Value::Object(written).to_json())
}

fn apply(reader: &Reader, change: Edit) -> Result<Answer> {
    let id = change.id().clone();
    edit(reader, change).map(|revision| written(&id, revision))
}

pub(crate) fn insert(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let Given { id, body, .. } = given_document(arguments)?;
    apply(reader, Edit::Insert { id: id.map_or_else(new_id, Ok)?, body })
}

pub(crate) fn upsert(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let Given { id, body, .. } = given_document(arguments)?;
    apply(reader, Edit::Upsert { id: id.map_or_else(new_id, Ok)?, body })
}

/// Replaces the revision that was read.
pub(crate) fn replace(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let named = arguments.revision()?;
    let Given { id, revision, body } = given_document(arguments)?;
    let id = id.ok_or_else(|| {
        Error::invalid("the document has no `_id`").with_hint("give a document that was read, or its id")
    })?;
    let revision = named.or(revision).ok_or_else(|| {
        Error::invalid("the document has no `_rev`")
            .with_hint("give a document that was read; `upsert` replaces whatever there is")
    })?;
    apply(reader, Edit::Replace { id, revision, body })
}

pub(crate) fn update(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let (id, revision, patch) = (arguments.id()?, arguments.revision()?, arguments.patch()?);
    apply(reader, Edit::Update { id, revision, patch })
}

/// Edits a revision: the one that is named, or whatever is current.
fn with_current(
    reader: &Reader,
    id: &DocumentId,
    named: Option<Revision>,
    change: impl Fn(Revision) -> Result<Option<Revision>>,
) -> Result<Option<Revision>> {
    loop {
        let revision = match named {
            Some(revision) => revision,
            None => *reader.get(id.as_str())?.ok_or_else(|| missing(id.as_str()))?.revision(),
        };
        match change(revision) {
            // It was written between the read and the edit.
            Err(error) if error.kind() == ErrorKind::Conflict && named.is_none() => {}
            result => return result,
        }
    }
}

pub(crate) fn delete(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let (id, named) = (arguments.id()?, arguments.revision()?);
    let deleted = with_current(reader, &id, named, |revision| edit(reader, Edit::Delete { id: id.clone(), revision }))?;
    Ok(written(&id, deleted))
}

/// Creates the documents of an array; the answer is how many were written.
///
/// # Errors
/// The first one of a document, after the others were written.
pub(crate) fn insert_many(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let existing = arguments.optional_text("existing")?.unwrap_or_else(|| "error".to_owned());
    if !["error", "replace", "skip"].contains(&existing.as_str()) {
        return Err(Error::invalid("`existing` is none of \"error\", \"replace\" and \"skip\""));
    }
    let Value::Array(documents) = arguments.required("documents")? else {
        return Err(Error::internal("the documents are no array"));
    };
    let mut changes = Vec::with_capacity(documents.len());
    let mut failure = None;
    for document in documents {
        let change = given(document).and_then(|Given { id, body, .. }| {
            let id = id.map_or_else(new_id, Ok)?;
            Ok(if existing == "replace" { Edit::Upsert { id, body } } else { Edit::Insert { id, body } })
        });
        match change {
            Ok(change) => changes.push(change),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let mut written: u64 = 0;
    for result in edits(reader, changes)? {
        match result {
            Ok(_) => written += 1,
            Err(error) if existing == "skip" && error.kind() == ErrorKind::Conflict => {}
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(Answer::Text(written.to_string())),
    }
}

/// Attaches a file.
pub(crate) fn attach(database: &AnyDatabase, mut arguments: Arguments, content: Vec<u8>) -> Result<Answer> {
    let (id, named, name) = (arguments.id()?, arguments.revision()?, arguments.text("name")?);
    let content_type = arguments.optional_text("contentType")?;
    let content_type = content_type.as_deref().unwrap_or("application/octet-stream");
    let reader = Reader::Database(database.clone());
    let revision = with_current(&reader, &id, named, |revision| {
        database.files().attach(id.as_str(), &revision, &name, content_type, content.as_slice()).map(Some)
    })?;
    Ok(written(&id, revision))
}

pub(crate) fn detach(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let (id, named, name) = (arguments.id()?, arguments.revision()?, arguments.text("name")?);
    let revision = with_current(reader, &id, named, |revision| {
        edit(reader, Edit::Detach { id: id.clone(), revision, name: name.clone() })
    })?;
    Ok(written(&id, revision))
}

pub(crate) fn read_file(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let Some(mut file) = database.files().open(&arguments.text("id")?, &arguments.text("name")?)? else {
        return Ok(Answer::Nothing);
    };
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(Error::from)?;
    Ok(Answer::Bytes(content))
}
