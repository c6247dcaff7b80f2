//! Salvage: reads the revisions left in a damaged database, and imports them into a new one with their histories.

use std::fs::File;
use std::path::{Path, PathBuf};

use stemmadb::salvage::{SalvageReport, Salvaged, SalvagedRevision};
use stemmadb::{Attachment, BlobReader, Digest, DocumentId, Edit, ErrorKind, FileContent, Object, Value};

use super::{Database, DocumentWrite, WriteMode, encryption};
use crate::failure::{Exit, Failure, Result};

/// One item read from a damaged database.
pub(crate) enum SalvagedItem {
    /// A revision of a document.
    Document(Value),
    /// The database's settings and declarations; the last one read is the newest.
    Settings(Value),
    /// The SHA-256 of an attachment's content, and the content.
    Content(String, Box<BlobReader>),
}

/// Calls `visit` with each readable item of the database at `path`, or of the newest backup there.
pub(crate) fn salvage(path: &Path, visit: &mut dyn FnMut(SalvagedItem) -> Result<()>) -> Result<SalvageReport> {
    let mut stopped = None;
    let take = |salvaged| {
        let item = match salvaged {
            Salvaged::Revision(revision) => SalvagedItem::Document(revision_object(revision)),
            Salvaged::Local { id, deleted, body, .. } => SalvagedItem::Document(object(&id, deleted, [], body)),
            Salvaged::Settings(settings) => {
                SalvagedItem::Settings(Value::Object([("_settings", settings)].into_iter().collect()))
            }
            Salvaged::Content { digest, content } => SalvagedItem::Content(digest.to_string(), Box::new(content)),
            _ => return Ok(()),
        };
        visit(item).map_err(|failure| {
            stopped = Some(failure);
            stemmadb::Error::from(std::io::Error::from(std::io::ErrorKind::Interrupted))
        })
    };
    let outcome = match (has_backups(path), encryption::key()) {
        (true, key) => {
            let target = stemmadb_server::backup_target(path, false)?;
            stemmadb::backup::salvage(&*target, None, std::env::temp_dir(), key, take)
        }
        (false, Some(key)) => stemmadb::salvage::salvage_encrypted_database(path, key, take),
        (false, None) => stemmadb::salvage::salvage_database(path, take),
    };
    match stopped {
        Some(failure) => Err(failure),
        None => Ok(outcome.map_err(super::open_failure)?),
    }
}

/// Whether a path is a place of backups, not a database.
fn has_backups(path: &Path) -> bool {
    let is_manifest = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("manifest-");
    let has_manifest = || path.read_dir().is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_manifest)));
    path.to_string_lossy().starts_with("s3://") || !path.join("log").is_dir() && has_manifest()
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

/// Ancestors, deletion flag and attachments of a revision to import.
pub(crate) struct RevisionHistory {
    /// The revision, then its ancestors, newest first.
    revisions: Vec<String>,
    deleted: bool,
    /// Name, stub and content path of each attachment.
    files: Vec<(String, Value, PathBuf)>,
}

const LOCAL: &str = "_local/";

/// Converts one line that `stemma salvage` wrote to a write; `None` for settings.
///
/// The directory `files` has the attachments' content. `missing_count` is incremented for each attachment without
/// content.
///
/// # Errors
/// `Usage` if `_id` or `_rev` is missing or `_revisions` is not an array of strings.
pub(crate) fn parse_salvaged_line(
    mut object: Object,
    files: Option<&Path>,
    missing_count: &mut u64,
) -> Result<Option<DocumentWrite>> {
    if object.remove("_settings").is_some() {
        return Ok(None);
    }
    let Some(Value::String(id)) = object.remove("_id") else {
        return Err(Failure::usage("the document has no `_id`"));
    };
    let revision = object.remove("_rev");
    let history = match object.remove("_revisions") {
        Some(Value::Array(history)) => history,
        _ => revision.into_iter().collect(),
    };
    let revisions: Option<Vec<String>> = history.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    let revisions = revisions.ok_or_else(|| Failure::usage("`_revisions` must be an array of revisions"))?;
    if revisions.is_empty() && !id.starts_with(LOCAL) {
        return Err(Failure::usage("the document has no `_rev`"));
    }
    let deleted = object.remove("_deleted") == Some(Value::Bool(true));
    let mut found = Vec::new();
    if let Some(Value::Object(named)) = object.remove("_attachments") {
        for (name, file) in named {
            // Only a valid digest is used as a file name: anything else could leave the directory.
            let digest = file.get("digest").and_then(Value::as_str).filter(|text| text.parse::<Digest>().is_ok());
            let path = files.and_then(|directory| Some(directory.join(digest?)));
            match path.filter(|path| path.is_file()) {
                Some(path) => found.push((name, file, path)),
                None => *missing_count += 1,
            }
        }
    }
    let mode = WriteMode::WithHistory(RevisionHistory { revisions, deleted, files: found });
    Ok(Some(DocumentWrite { id, body: object, mode }))
}

impl Database {
    /// Returns the edit that stores a revision with its history. `_local` documents are written immediately: `None`.
    pub(super) fn edit_with_history(&self, id: &str, body: Object, history: RevisionHistory) -> Result<Option<Edit>> {
        let RevisionHistory { revisions, deleted, files } = history;
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
            let content = self.store_content(&file, &path)?;
            Ok(stemmadb::File { name, content })
        });
        let files = files.collect::<Result<_>>()?;
        let revisions = revisions.iter().map(|revision| revision.parse()).collect::<stemmadb::Result<_>>()?;
        Ok(Some(Edit::Foreign { id: DocumentId::new(id)?, revisions, deleted, body, files }))
    }

    /// Stores the file at `path`, after verifying that its SHA-256 is the digest in the stub `file`.
    fn store_content(&self, file: &Value, path: &Path) -> Result<FileContent> {
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
