//! Parsing of documents that clients send: CouchDB's special fields, which start with `_`, and the body.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use stemmadb::replication::REPLICATION_FIELDS;
use stemmadb::{Blob, DocumentId, Object, Revision, Value};

use super::error::{Failure, Result};

/// The database whose documents describe replications.
pub const REPLICATOR_DATABASE: &str = "_replicator";

/// Parses a revision.
///
/// # Errors
/// 400 if it is not a revision.
pub fn parse_revision(text: &str) -> Result<Revision> {
    text.parse().map_err(|_| Failure::bad_request("Invalid rev format"))
}

/// The most attachments of a document. The library has the same limit, but checks it only after their content was
/// stored.
const FILES_MAX: usize = 10_000;
/// The most ancestors in `_revisions`. The database drops those beyond its `_revs_limit` (default 1,000) anyway.
const ANCESTORS_MAX: usize = 100_000;

/// A document sent by a client or a replication peer.
#[derive(Debug, Clone, Default)]
pub struct IncomingDocument {
    pub id: Option<String>,
    /// `_rev`.
    pub revision: Option<Revision>,
    /// `_revisions`: the revision and its ancestors, newest first.
    pub ancestry: Option<Vec<Revision>>,
    pub deleted: bool,
    /// All fields that do not start with `_`.
    pub body: Value,
    pub files: Vec<IncomingFile>,
    /// The fields that CouchDB's replicator writes into documents of `_replicator`.
    pub replication_state: Vec<(String, Value)>,
    /// Why this document of several must not be written.
    pub refusal: Option<Failure>,
}

/// An attachment in a document from a client.
#[derive(Debug, Clone)]
pub struct IncomingFile {
    pub name: String,
    pub content_type: String,
    /// The generation of the revision that added the attachment.
    pub revpos: Option<u32>,
    pub content: IncomingContent,
}

/// The longest content type of an attachment, in bytes. It is returned as a header.
const CONTENT_TYPE_BYTES_MAX: usize = 1024;

impl IncomingFile {
    /// Checks the length of the content type.
    ///
    /// # Errors
    /// 400 if it is too long.
    pub fn check_content_type(&self) -> Result<()> {
        match self.content_type.len() <= CONTENT_TYPE_BYTES_MAX {
            true => Ok(()),
            false => Err(Failure::bad_request(format!(
                "The content type of an attachment can have at most {CONTENT_TYPE_BYTES_MAX} bytes."
            ))),
        }
    }
}

/// Where the content of an attachment comes from.
#[derive(Debug, Clone)]
pub enum IncomingContent {
    /// `data`: base64 in the document.
    Inline(Bytes),
    /// Already stored as a blob.
    Stored {
        /// The stored content.
        blob: Arc<Blob>,
        /// The MD5 of the content.
        md5: [u8; 16],
    },
    /// `stub`: unchanged, the database has the content.
    Stub,
    /// `follows`: in a later part of the multipart message.
    Follows {
        /// The declared length in bytes.
        length: Option<u64>,
        /// Whether the part is gzip-compressed.
        gzip: bool,
    },
}

impl IncomingDocument {
    /// Parses a document.
    ///
    /// # Errors
    /// 400, with CouchDB's error and reason.
    pub fn parse(value: Value) -> Result<Self> {
        Self::parse_as(None, value)
    }

    /// Parses a document with the given id, ignoring its `_id` field.
    ///
    /// # Errors
    /// 400, with CouchDB's error and reason.
    pub fn parse_as(id: Option<&str>, value: Value) -> Result<Self> {
        Self::parse_members(id, value, false)
    }

    fn parse_members(id: Option<&str>, value: Value, is_row: bool) -> Result<Self> {
        let Value::Object(mut object) = value else {
            return Err(Failure::bad_request("Document must be a JSON object"));
        };
        let mut special = extract_special(&mut object);
        if let Some(id) = id {
            check_id(id)?;
            special.retain(|(name, _)| name != "_id");
            special.push(("_id".to_owned(), Value::from(id)));
        }
        let is_local_id = |value: &Value| value.as_str().is_some_and(|id| id.starts_with("_local/"));
        if special.iter().any(|(name, value)| name == "_id" && is_local_id(value)) {
            // Revisions of local documents, `0-N`, are counters and never checked.
            special.retain(|(name, _)| name != "_rev" && name != "_revisions");
        }
        let mut document = IncomingDocument::default();
        for (name, value) in special {
            match document.set_special(&name, value) {
                Err(failure) if is_row && matches!(name.as_str(), "_rev" | "_revisions") => {
                    document.refusal.get_or_insert(failure);
                }
                set => set?,
            }
        }
        if let (Some(ancestry), Some(revision)) = (&document.ancestry, &document.revision)
            && ancestry.first() != Some(revision)
        {
            return Err(doc_validation("_rev and _revisions name different revisions".to_owned()));
        }
        document.body = Value::Object(object);
        Ok(document)
    }

    fn set_special(&mut self, name: &str, value: Value) -> Result<()> {
        match (name, value) {
            ("_id", Value::String(id)) => {
                check_id(&id)?;
                self.id = Some(id);
            }
            ("_id", _) => return Err(illegal_id("Document id must be a string")),
            ("_rev", Value::String(revision)) => self.revision = Some(parse_revision(&revision)?),
            ("_rev", Value::Null) => {}
            ("_rev", _) => return Err(Failure::bad_request("Invalid rev format")),
            ("_deleted", value) => self.deleted = value == Value::Bool(true),
            ("_revisions", value) => self.ancestry = Some(ancestry(&value)?),
            ("_attachments", Value::Object(files)) if files.len() > FILES_MAX => {
                return Err(Failure::bad_request(format!("a document can have at most {FILES_MAX} attachments")));
            }
            ("_attachments", Value::Object(files)) => {
                self.files = files.into_iter().map(|(name, file)| incoming_file(name, &file)).collect::<Result<_>>()?;
            }
            ("_attachments", _) => return Err(Failure::bad_request("Attachments must be an object")),
            // Metadata that reads return; some clients send it back.
            ("_revs_info" | "_conflicts" | "_deleted_conflicts" | "_local_seq", _) => {}
            (name, value) if REPLICATION_FIELDS.contains(&name) => {
                self.replication_state.push((name.to_owned(), value));
            }
            (name, _) => return Err(doc_validation(format!("Bad special document member: {name}"))),
        }
        Ok(())
    }

    /// Parses a document of several: an invalid revision concerns only this document, which gets a
    /// [`IncomingDocument::refusal`].
    ///
    /// # Errors
    /// 400, with CouchDB's error and reason.
    pub fn parse_row(value: Value) -> Result<Self> {
        Self::parse_members(None, value, true)
    }

    /// Prepares the document for a database: a replication state becomes a part of the body, except in `_replicator`,
    /// where the server's own state is stored beside the document and replaces the client's.
    ///
    /// # Errors
    /// The [`IncomingDocument::refusal`].
    pub fn prepare_for(&mut self, database: &str) -> Result<()> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let replication_state = std::mem::take(&mut self.replication_state);
        if let Some(body) = self.body.as_object_mut().filter(|_| database != REPLICATOR_DATABASE) {
            body.extend(replication_state);
        }
        Ok(())
    }

    /// Moves the replication state out of a replicated body.
    pub fn extract_replication_state(body: &mut Value) -> Vec<(String, Value)> {
        let Some(object) = body.as_object_mut() else { return Vec::new() };
        if !object.names().any(|name| name.starts_with('_')) {
            return Vec::new();
        }
        extract_special(object)
    }

    /// The revision and its ancestors, newest first, of a replicated document.
    ///
    /// # Errors
    /// 400 if it has neither `_rev` nor `_revisions`.
    pub fn history(&self) -> Result<Vec<Revision>> {
        match (&self.ancestry, &self.revision) {
            (Some(ancestry), _) => Ok(ancestry.clone()),
            (None, Some(revision)) => Ok(vec![*revision]),
            (None, None) => Err(Failure::bad_request(
                "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
            )),
        }
    }
}

/// Removes the fields that start with `_` in one pass. Removing them one by one would be quadratic, because each
/// removal shifts all later fields.
fn extract_special(object: &mut Object) -> Vec<(String, Value)> {
    let mut special = Vec::new();
    if object.names().any(|name| name.starts_with('_')) {
        object.retain(|name, value| {
            let is_special = name.starts_with('_');
            if is_special {
                special.push((name.to_owned(), std::mem::take(value)));
            }
            !is_special
        });
    }
    special
}

/// Checks that `id` is a valid document id.
///
/// # Errors
/// 400 with CouchDB's error `illegal_docid`.
pub fn check_id(id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(illegal_id("Document id must not be empty"));
    }
    match DocumentId::new(id) {
        Ok(_) => Ok(()),
        Err(_) if id.len() > DocumentId::BYTES_MAX => Err(illegal_id("Document id is too long")),
        Err(_) if matches!(id, "_design/" | "_local/") => Err(illegal_id("Illegal document id `_design/`")),
        Err(_) => Err(illegal_id("Only reserved document ids may start with underscore.")),
    }
}

fn illegal_id(reason: &'static str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "illegal_docid", reason)
}

fn doc_validation(reason: String) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "doc_validation", reason)
}

/// Parses `_revisions`: `{"start": 3, "ids": [...]}`.
fn ancestry(value: &Value) -> Result<Vec<Revision>> {
    let invalid = || doc_validation("_revisions must be {\"start\": number, \"ids\": [hashes]}".to_owned());
    let start = value.get("start").and_then(Value::as_u64).ok_or_else(invalid)?;
    let ids = value.get("ids").and_then(Value::as_array).ok_or_else(invalid)?;
    if ids.is_empty() || ids.len() as u64 > start {
        return Err(invalid());
    }
    if ids.len() > ANCESTORS_MAX {
        return Err(doc_validation(format!("_revisions can have at most {ANCESTORS_MAX} ids")));
    }
    let revision = |(back, id): (usize, &Value)| {
        let id = id.as_str().ok_or_else(invalid)?;
        parse_revision(&format!("{}-{id}", start - back as u64))
    };
    ids.iter().enumerate().map(revision).collect()
}

fn incoming_file(name: String, value: &Value) -> Result<IncomingFile> {
    if name.starts_with('_') {
        let reason = "Attachment name starts with prohibited character '_'";
        return Err(Failure::bad_request(reason));
    }
    let object = value.as_object().ok_or_else(|| Failure::bad_request("An attachment must be an object"))?;
    let is_set = |field: &str| object.get(field) == Some(&Value::Bool(true));
    let content = if is_set("stub") {
        IncomingContent::Stub
    } else if is_set("follows") {
        let gzip = object.get("encoding").and_then(Value::as_str) == Some("gzip");
        IncomingContent::Follows { length: object.get("length").and_then(Value::as_u64), gzip }
    } else {
        IncomingContent::Inline(inline_content(object)?)
    };
    let content_type = object.get("content_type").and_then(Value::as_str).unwrap_or("application/octet-stream");
    let revpos = object.get("revpos").and_then(Value::as_u64).and_then(|revpos| u32::try_from(revpos).ok());
    Ok(IncomingFile {
        name,
        content_type: content_type.to_owned(),
        revpos: revpos.filter(|revpos| *revpos > 0),
        content,
    })
}

fn inline_content(object: &Object) -> Result<Bytes> {
    let invalid = || Failure::bad_request("Invalid attachment data: it must be base64");
    let data = object.get("data").and_then(Value::as_str).ok_or_else(invalid)?;
    // MIME encoders insert line breaks, which the decoder rejects.
    let joined;
    let data = match data.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => {
            joined = data.split_ascii_whitespace().collect::<String>();
            &joined
        }
        false => data,
    };
    BASE64_STANDARD.decode(data).map(Bytes::from).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<IncomingDocument> {
        IncomingDocument::parse(Value::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn special_fields_are_separated_from_the_body() {
        let document = parse(
            r#"{"_id":"a","_rev":"2-b","n":1,"_revisions":{"start":2,"ids":["b","a"]},"_deleted":true,
                "_attachments":{"x":{"data":"aGk=","content_type":"text/plain"},"y":{"stub":true,"revpos":1},
                "z":{"follows":true,"length":3}}}"#,
        );
        let document = document.unwrap();
        assert_eq!((document.id.as_deref(), document.deleted), (Some("a"), true));
        assert_eq!(document.body.to_json(), r#"{"n":1}"#);
        let history: Vec<_> = document.history().unwrap().iter().map(Revision::to_string).collect();
        assert_eq!(history, ["2-b", "1-a"]);
        let [x, y, z] = &document.files[..] else { panic!("expected three attachments") };
        assert!(
            matches!(&x.content, IncomingContent::Inline(bytes) if &bytes[..] == b"hi")
                && x.content_type == "text/plain"
        );
        assert!(matches!(y.content, IncomingContent::Stub) && y.revpos == Some(1));
        assert!(matches!(z.content, IncomingContent::Follows { length: Some(3), gzip: false }));
    }

    #[test]
    fn path_id_overrides_body_id_and_body_keeps_its_order() {
        let value = |json: &str| Value::parse(json.as_bytes()).unwrap();
        let many: String = (0..20_000).map(|n| format!(r#""{n}":{n},"#)).collect();
        let document =
            IncomingDocument::parse_as(Some("a"), value(&format!(r#"{{{many}"_id":7,"_rev":"1-a","z":0}}"#))).unwrap();
        assert_eq!((document.id.as_deref(), document.revision.is_some()), (Some("a"), true));
        let body = document.body.as_object().unwrap();
        assert!(body.names().take(20_000).eq((0..20_000).map(|n| n.to_string())) && body.len() == 20_001);
        assert_eq!(body.get("z"), Some(&Value::from(0)));
        let local = IncomingDocument::parse_as(Some("_local/a"), value(r#"{"_rev":"0-1","n":1}"#)).unwrap();
        assert!(local.revision.is_none());
    }

    #[test]
    fn errors_use_couchdb_names() {
        for (json, error) in [
            ("[]", "bad_request"),
            (r#"{"_foo":1}"#, "doc_validation"),
            (r#"{"_replication_foo":1}"#, "doc_validation"),
            (r#"{"_id":"_x"}"#, "illegal_docid"),
            (r#"{"_id":3}"#, "illegal_docid"),
            (r#"{"_rev":"x"}"#, "bad_request"),
            (r#"{"_rev":"2-c","_revisions":{"start":2,"ids":["b","a"]}}"#, "doc_validation"),
            (r#"{"_revisions":{"start":1,"ids":["b","a"]}}"#, "doc_validation"),
            (r#"{"_attachments":{"_x":{"data":""}}}"#, "bad_request"),
            (r#"{"_attachments":{"x":{"data":"%"}}}"#, "bad_request"),
        ] {
            let failure = parse(json).unwrap_err();
            assert_eq!((failure.status(), failure.error()), (StatusCode::BAD_REQUEST, error), "{json}");
        }
    }
}
