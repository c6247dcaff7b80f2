//! What an adapter of PouchDB needs: revision trees, and writes and reads of particular revisions, as in CouchDB's
//! protocol. Only for databases of this process.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use stemmadb::replication::Peer;
use stemmadb::{
    Attachment, Branch, Change, Database, Document, DocumentId, Edit, Error, File, FileContent, Object, Result,
    Revision, Sequence, Snapshot, Value,
};
use stemmadb_client::bindings::error_name;

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::text::{self, into_text, write_array};

fn branch(branch: &Branch) -> Value {
    let mut object = Object::new();
    object.insert("deleted", branch.deleted);
    object.insert(
        "revisions",
        branch.revisions.iter().map(|revision| Value::from(revision.to_string())).collect::<Value>(),
    );
    Value::Object(object)
}

/// The branches of a document, the winner first.
fn write_branches(snapshot: &Snapshot, id: &str, out: &mut Vec<u8>) -> Result<()> {
    snapshot.revisions(id)?.iter().map(branch).collect::<Value>().write_json(out);
    Ok(())
}

/// The digest by which PouchDB knows an attachment: the MD5 hash, if there is one.
fn digest(file: &Attachment) -> String {
    match &file.md5 {
        Some(md5) => format!("md5-{}", BASE64.encode(md5)),
        None => text::sha256(file),
    }
}

/// A revision as CouchDB has it, deleted or not.
fn write_revision(document: &Document, out: &mut Vec<u8>) -> Result<()> {
    text::write_document_with(document, digest, out)
}

fn write_optional(document: Option<&Document>, out: &mut Vec<u8>) -> Result<()> {
    match document {
        Some(document) => write_revision(document, out),
        None => {
            out.extend_from_slice(b"null");
            Ok(())
        }
    }
}

/// The winning revision, also if it is a deletion.
fn winner(snapshot: &Snapshot, id: &str, branches: &[Branch]) -> Result<Option<Document>> {
    let Some(leaf) = branches.first().and_then(|branch| branch.revisions.first()) else { return Ok(None) };
    snapshot.get_leaf(id, leaf)
}

/// A revision, by default the winner, and the branches of its document. With `stored`, also the replaced revisions that
/// can still be read.
pub(super) fn get(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let (id, named, stored) = (arguments.text("id")?, arguments.revision()?, arguments.flag("stored")?);
    let snapshot = database.snapshot()?;
    let branches = snapshot.revisions(&id)?;
    let document = match &named {
        Some(revision) => snapshot.get_revision(&id, revision)?,
        None => winner(&snapshot, &id, &branches)?,
    };
    let mut json = b"{\"branches\":".to_vec();
    branches.iter().map(branch).collect::<Value>().write_json(&mut json);
    if stored {
        let mut readable = Vec::new();
        for leaf in branches.iter().filter_map(|branch| branch.revisions.first()) {
            let ancestors = snapshot.stored_ancestors(&id, leaf)?;
            readable.extend(ancestors.into_iter().map(|(revision, _)| Value::from(revision.to_string())));
        }
        json.extend_from_slice(b",\"stored\":");
        Value::Array(readable).write_json(&mut json);
    }
    json.extend_from_slice(b",\"document\":");
    write_optional(document.as_ref(), &mut json)?;
    json.push(b'}');
    into_text(json).map(Answer::Text)
}

/// The content of a file of a revision.
pub(super) fn file(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let (id, name) = (arguments.text("id")?, arguments.text("name")?);
    let revision: Revision = arguments.text("revision")?.parse()?;
    let snapshot = database.snapshot()?;
    let Some(document) = snapshot.get_revision(&id, &revision)? else { return Ok(Answer::Nothing) };
    let Some(mut file) = snapshot.open_attachment(&document, &name)? else { return Ok(Answer::Nothing) };
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(Error::from)?;
    Ok(Answer::Bytes(content))
}

fn optional_text(object: &mut Object, name: &str) -> Option<String> {
    match object.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn file_to_write(database: &Database, file: Value) -> Result<File> {
    let Value::Object(mut file) = file else { return Err(Error::invalid("an attachment is an object")) };
    let name = optional_text(&mut file, "name").ok_or_else(|| Error::invalid("an attachment has no name"))?;
    let Some(data) = optional_text(&mut file, "data") else { return Ok(File { name, content: FileContent::Existing }) };
    let data = BASE64.decode(data).map_err(|error| Error::invalid(format!("`{name}` is not base64: {error}")))?;
    let md5 = optional_text(&mut file, "md5").and_then(|md5| BASE64.decode(md5).ok());
    let generation = match file.get("revpos") {
        Some(Value::Number(generation)) => generation.as_u64().and_then(|generation| u32::try_from(generation).ok()),
        _ => None,
    };
    let content = FileContent::Stored {
        content_type: optional_text(&mut file, "contentType").unwrap_or_default(),
        blob: database.files().store(data.as_slice())?,
        md5: md5.and_then(|md5| <[u8; 16]>::try_from(md5).ok()),
        generation,
    };
    Ok(File { name, content })
}

fn edit(database: &Database, edit: Value) -> Result<Edit> {
    let Value::Object(mut edit) = edit else { return Err(Error::internal("an edit is an object")) };
    let id = DocumentId::new(optional_text(&mut edit, "id").unwrap_or_default())?;
    let deleted = edit.get("deleted") == Some(&Value::Bool(true));
    let files = match edit.remove("files") {
        Some(Value::Array(files)) => {
            files.into_iter().map(|file| file_to_write(database, file)).collect::<Result<Vec<_>>>()?
        }
        _ => Vec::new(),
    };
    let body = edit.remove("body").unwrap_or_else(|| Value::Object(Object::new()));
    match edit.remove("revisions") {
        Some(Value::Array(revisions)) => {
            let revision = |revision: &Value| revision.as_str().unwrap_or_default().parse();
            let revisions = revisions.iter().map(revision).collect::<Result<Vec<Revision>>>()?;
            Ok(Edit::Foreign { id, revisions, deleted, body, files })
        }
        _ => {
            let parent = optional_text(&mut edit, "parent").map(|parent| parent.parse()).transpose()?;
            Ok(Edit::Put { id, parent, deleted, body, files })
        }
    }
}

/// Applies edits, each of which may fail; the answer has a revision or an error for each.
pub(super) fn write(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let Value::Array(given) = arguments.required("edits")? else { return Err(Error::internal("edits are an array")) };
    let (mut edits, mut refused) = (Vec::with_capacity(given.len()), BTreeMap::new());
    let count = given.len();
    for (at, given) in given.into_iter().enumerate() {
        match edit(database, given) {
            Ok(edit) => edits.push(edit),
            Err(error) => drop(refused.insert(at, error)),
        }
    }
    let mut applied = database.bulk(edits)?.into_iter();
    let result = |at| {
        let outcome = match refused.remove(&at) {
            Some(error) => Err(error),
            None => applied.next().unwrap_or_else(|| Err(Error::internal("an edit has no result"))),
        };
        let mut object = Object::new();
        match outcome {
            Ok(revision) => drop(object.insert("revision", revision.to_string())),
            Err(error) => {
                object.insert("code", error_name(error.kind()));
                object.insert("message", error.message());
            }
        }
        Value::Object(object)
    };
    Ok(Answer::Text((0..count).map(result).collect::<Value>().to_json()))
}

/// Live documents in the order of their ids, with the number of all.
pub(super) fn list(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let (start, end) = (arguments.optional_text("start")?, arguments.optional_text("end")?);
    let (excludes_end, descending) = (arguments.flag("excludesEnd")?, arguments.flag("descending")?);
    let (documents, conflicts) = (arguments.flag("documents")?, arguments.flag("conflicts")?);
    let skip = arguments.count("skip")?.unwrap_or(0);
    let limit = arguments.count("limit")?.unwrap_or(u64::MAX);
    let snapshot = database.snapshot()?;
    let first = start.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let last = match end.as_deref() {
        None => Bound::Unbounded,
        Some(end) if excludes_end => Bound::Excluded(end),
        Some(end) => Bound::Included(end),
    };
    let (lower, upper) = if descending { (last, first) } else { (first, last) };
    let listing = snapshot.list().from(lower).to(upper).descending(descending).documents(documents).run();
    let as_usize = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let mut json = format!("{{\"total\":{},\"rows\":", database.info()?.document_count).into_bytes();
    write_array(listing.skip(as_usize(skip)).take(as_usize(limit)), &mut json, |listed, out| {
        let listed = listed?;
        out.extend_from_slice(b"{\"id\":");
        Value::from(listed.id.as_str()).write_json(out);
        out.extend_from_slice(format!(",\"revision\":\"{}\"", listed.revision).as_bytes());
        if conflicts {
            out.extend_from_slice(b",\"branches\":");
            write_branches(&snapshot, listed.id.as_str(), out)?;
        }
        if let Some(document) = &listed.document {
            out.extend_from_slice(b",\"document\":");
            write_revision(document, out)?;
        }
        out.push(b'}');
        Ok(())
    })?;
    json.push(b'}');
    into_text(json).map(Answer::Text)
}

fn write_change(snapshot: &Snapshot, change: &Change, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(format!("{{\"sequence\":{},\"branches\":", change.sequence.get()).as_bytes());
    write_branches(snapshot, change.id.as_str(), out)?;
    out.extend_from_slice(b",\"document\":");
    write_optional(change.document.as_ref(), out)?;
    out.push(b'}');
    Ok(())
}

/// Changes after a sequence with their documents and branches, and the sequence up to which there are no others.
pub(super) fn changes(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let since = Sequence::new(arguments.count("since")?.unwrap_or(0));
    let limit = usize::try_from(arguments.count("limit")?.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let snapshot = database.snapshot()?;
    let feed = snapshot.changes(since).documents(true).descending(arguments.flag("descending")?).limit(limit);
    let feed = match arguments.texts("ids")? {
        Some(ids) => feed.ids(ids),
        None => feed,
    };
    let last = feed.last_sequence().get().max(since.get());
    let mut json = format!("{{\"last\":{last},\"rows\":").into_bytes();
    write_array(feed.run(), &mut json, |change, out| write_change(&snapshot, &change?, out))?;
    json.push(b'}');
    into_text(json).map(Answer::Text)
}

/// An id of the database, the number of its documents, and its newest sequence.
pub(super) fn info(database: &Database) -> Result<Value> {
    let info = database.info()?;
    let mut object = Object::new();
    object.insert("id", database.identity()?);
    object.insert("documents", info.document_count);
    object.insert("sequence", info.sequence.get());
    Ok(Value::Object(object))
}

/// A `_local` document: its generation and body.
pub(super) fn local_get(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let Some((generation, body)) = database.local_documents().get(&arguments.text("id")?)? else {
        return Ok(Answer::Nothing);
    };
    let mut object = Object::new();
    object.insert("generation", generation);
    object.insert("body", body);
    Ok(Answer::Text(Value::Object(object).to_json()))
}

/// Keeps writes of new `_local` documents apart.
static CREATION: Mutex<()> = Mutex::new(());

/// Writes a `_local` document whose current generation is known, 0 for a new one; the answer is the new generation.
pub(super) fn local_put(database: &Database, arguments: &mut Arguments) -> Result<Value> {
    let (id, expected, body) = (arguments.text("id")?, arguments.count("expected")?, arguments.required("body")?);
    let documents = database.local_documents();
    let _creating = CREATION.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = match expected {
        Some(0) if documents.get(&id)?.is_some() => return Err(Error::conflict(format!("`{id}` exists already"))),
        Some(0) => None,
        other => other,
    };
    documents.put(&id, expected, &body).map(Value::from)
}

pub(super) fn local_delete(database: &Database, arguments: &mut Arguments) -> Result<Answer> {
    let (id, expected) = (arguments.text("id")?, arguments.count("expected")?);
    database.local_documents().delete(&id, expected)?;
    Ok(Answer::Nothing)
}
