//! Revisions as they are: out of a damaged database, and into a new one.

use std::fs::File;
use std::path::{Path, PathBuf};

use stemmadb::{
    Attachment, BlobReader, Digest, DocumentId, Edit, ErrorKind, FileContent, Object, SalvageReport, Salvaged,
    SalvagedRevision, Value,
};

use super::{Database, Over, Write};
use crate::failure::{Exit, Failure, Result};

/// What is left of a database, one thing at a time.
pub(crate) enum Rescued {
    /// A revision of a document.
    Document(Value),
    /// What was declared; the last is the newest.
    Settings(Value),
    /// The content of a file, and its SHA-256.
    Content(String, Box<BlobReader>),
}

/// Shows what is left of the database at `path`.
pub(crate) fn salvage(path: &Path, visit: &mut dyn FnMut(Rescued) -> Result<()>) -> Result<SalvageReport> {
    let mut stopped = None;
    let outcome = stemmadb::Database::salvage(path, |salvaged| {
        let rescued = match salvaged {
            Salvaged::Revision(revision) => Rescued::Document(revision_object(revision)),
            Salvaged::Local { id, deleted, body, .. } => Rescued::Document(object(&id, deleted, [], body)),
            Salvaged::Settings(settings) => {
                Rescued::Settings(Value::Object([("_settings", settings)].into_iter().collect()))
            }
            Salvaged::Content { digest, content } => Rescued::Content(digest.to_string(), Box::new(content)),
            _ => return Ok(()),
        };
        visit(rescued).map_err(|failure| {
            stopped = Some(failure);
            stemmadb::Error::from(std::io::Error::from(std::io::ErrorKind::Interrupted))
        })
    });
    match stopped {
        Some(failure) => Err(failure),
        None => Ok(outcome.map_err(super::unopened)?),
    }
}

fn revision_object(revision: SalvagedRevision) -> Value {
    let names: Vec<Value> = revision.revisions.iter().map(|revision| revision.to_string().into()).collect();
    let first = names.first().cloned().unwrap_or(Value::Null);
    let files: Object = revision.files.into_iter().map(|file| (file.name.clone(), file_object(file))).collect();
    let mut fields = vec![("_rev", first), ("_revisions", Value::Array(names))];
    if !files.is_empty() {
        fields.push(("_attachments", Value::Object(files)));
    }
    object(&revision.id, revision.deleted, fields, revision.body)
}

fn object(
    id: &DocumentId,
    deleted: bool,
    fields: impl IntoIterator<Item = (&'static str, Value)>,
    body: Value,
) -> Value {
    let mut object = Object::with_capacity(16);
    object.insert("_id", id.as_str());
    object.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
    if deleted {
        object.insert("_deleted", true);
    }
    if let Value::Object(body) = body {
        object.extend(body);
    }
    Value::Object(object)
}

fn file_object(file: Attachment) -> Value {
    let mut object = Object::new();
    object.insert("content_type", file.content_type);
    object.insert("length", file.length);
    object.insert("digest", file.digest.to_string());
    object.insert("revpos", u64::from(file.generation));
    if let Some(md5) = file.md5 {
        object.insert("md5", md5.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    Value::Object(object)
}

/// What a revision is to have besides its body.
pub(crate) struct Ancestry {
    /// The revision, then its ancestors, newest first.
    revisions: Vec<String>,
    deleted: bool,
    /// By name, with where their content is.
    files: Vec<(String, Value, PathBuf)>,
}

const LOCAL: &str = "_local/";

/// What writes the revision that an object of [`salvage`] stands for, with the files whose content is in the directory `files`; none
/// for settings. Counts the files that have to be left out.
///
/// # Errors
/// What is missing in it.
pub(crate) fn write_of(mut object: Object, files: Option<&Path>, lost_files: &mut u64) -> Result<Option<Write>> {
    if object.remove("_settings").is_some() {
        return Ok(None);
    }
    let Some(Value::String(id)) = object.remove("_id") else {
        return Err(Failure::usage("the document has no `_id`"));
    };
    let own = object.remove("_rev");
    let line = match object.remove("_revisions") {
        Some(Value::Array(line)) => line,
        _ => own.into_iter().collect(),
    };
    let revisions: Option<Vec<String>> = line.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    let revisions = revisions.ok_or_else(|| Failure::usage("`_revisions` is a list of revisions"))?;
    if revisions.is_empty() && !id.starts_with(LOCAL) {
        return Err(Failure::usage("the document has no `_rev`"));
    }
    let deleted = object.remove("_deleted") == Some(Value::Bool(true));
    let mut found = Vec::new();
    if let Some(Value::Object(named)) = object.remove("_attachments") {
        for (name, file) in named {
            // A name that is no digest leads nowhere.
            let digest = file.get("digest").and_then(Value::as_str).filter(|text| text.parse::<Digest>().is_ok());
            let path = files.and_then(|directory| Some(directory.join(digest?)));
            match path.filter(|path| path.is_file()) {
                Some(path) => found.push((name, file, path)),
                None => *lost_files += 1,
            }
        }
    }
    let over = Over::Ancestors(Ancestry { revisions, deleted, files: found });
    Ok(Some(Write { id, body: object, over }))
}

impl Database {
    /// Takes a revision as it is: what writes it, or nothing for a `_local` document, which is written already.
    pub(super) fn foreign(&self, id: &str, body: Object, ancestry: Ancestry) -> Result<Option<Edit>> {
        let Ancestry { revisions, deleted, files } = ancestry;
        let body = Value::Object(body);
        if id.starts_with(LOCAL) {
            let written = match deleted {
                true => self.inner.local_documents().delete(id, None),
                false => self.inner.local_documents().put(id, None, &body).map(|_| ()),
            };
            return match written {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
                _ => Ok(None),
            };
        }
        let files = files.into_iter().map(|(name, file, path)| {
            let content = self.content(&file, &path)?;
            Ok(stemmadb::File { name, content })
        });
        let files = files.collect::<Result<_>>()?;
        let revisions = revisions.iter().map(|revision| revision.parse()).collect::<stemmadb::Result<_>>()?;
        Ok(Some(Edit::Foreign { id: DocumentId::new(id)?, revisions, deleted, body, files }))
    }

    fn content(&self, file: &Value, path: &Path) -> Result<FileContent> {
        let name = path.display();
        let fault = |error| Failure::new(Exit::Unavailable, format!("cannot read {name}: {error}"));
        let blob = self.inner.files().store(File::open(path).map_err(fault)?)?;
        let text = |field: &str| file.get(field).and_then(Value::as_str);
        if text("digest") != Some(blob.digest().to_string().as_str()) {
            return Err(Failure::usage(format!("the SHA-256 of {name} is not its name")));
        }
        let content_type = text("content_type").unwrap_or("application/octet-stream").to_owned();
        let generation = file.get("revpos").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        Ok(FileContent::Stored { content_type, blob, md5: text("md5").and_then(md5_of), generation })
    }
}

fn md5_of(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}
