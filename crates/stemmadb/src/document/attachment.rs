//! The files of a document: named content beside its body.
//!
//! What a document says of its files is a field of its packed body, the last one, `_attachments`: an array of objects. So it is part of
//! the revision, of the log's record and of the index, where `_attachments[].digest` tells whether anything names a blob. Readers of
//! the body don't see it.

use std::sync::Arc;

use serde::Serialize;

use crate::log::{Blob, Digest};
use crate::value::{Object, PackedValue, Value};
use crate::{Error, Result};

/// The field of a packed body that has them.
pub(crate) const FIELD: &str = "_attachments";
const NAME: &str = "name";
const TYPE: &str = "content_type";
pub(crate) const DIGEST: &str = "digest";
const LENGTH: &str = "length";
const GENERATION: &str = "revpos";
const MD5: &str = "md5";

const NAME_BYTES_MAX: usize = 1024;
const COUNT_MAX: usize = 10_000;

/// A file of a document, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Its name, unique in the document.
    pub name: String,
    /// What it is, such as `image/png`.
    pub content_type: String,
    /// How many bytes it has.
    pub length: u64,
    /// The SHA-256 of its content.
    #[serde(serialize_with = "as_text")]
    pub digest: Digest,
    /// The generation of the revision that brought it.
    pub generation: u32,
    /// The MD5 of its content, by which CouchDB's protocol tells files from each other, if whoever brought it said so.
    #[serde(skip)]
    pub md5: Option<[u8; 16]>,
}

/// A file that a revision is to have: see [`Edit::Put`](crate::Edit::Put).
#[derive(Debug, Clone)]
pub struct File {
    /// Its name, unique in the document.
    pub name: String,
    /// Where its content comes from.
    pub content: FileContent,
}

/// Where the content of a file comes from.
#[derive(Debug, Clone)]
pub enum FileContent {
    /// It was stored already.
    Stored {
        /// What it is, such as `image/png`.
        content_type: String,
        /// The content.
        blob: Arc<Blob>,
        /// The MD5 of it, if that is known.
        md5: Option<[u8; 16]>,
        /// The generation of the revision that brought it; none for the one that is written.
        generation: Option<u32>,
    },
    /// It stays as a leaf has it: the one that is succeeded, or, of a revision from elsewhere, any that is its ancestor.
    Kept,
}

fn as_text<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

impl Attachment {
    /// A file made of stored content.
    pub(crate) fn new(name: &str, content_type: &str, blob: &Blob, generation: u32) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('_') {
            return Err(Error::invalid(format!("`{}` can't be the name of a file", name.escape_debug()))
                .with_hint("1 to 1024 bytes, not beginning with `_`"));
        }
        let (name, content_type) = (name.to_owned(), content_type.to_owned());
        Ok(Attachment { name, content_type, length: blob.length(), digest: blob.digest(), generation, md5: None })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert(NAME, Value::String(self.name.clone()));
        object.insert(TYPE, Value::String(self.content_type.clone()));
        object.insert(DIGEST, Value::String(self.digest.to_string()));
        object.insert(LENGTH, Value::from(self.length));
        object.insert(GENERATION, Value::from(u64::from(self.generation)));
        if let Some(md5) = &self.md5 {
            object.insert(MD5, Value::String(md5.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        Value::Object(object)
    }

    fn of_value(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        Some(Attachment {
            name: object.get(NAME)?.as_str()?.to_owned(),
            content_type: object.get(TYPE)?.as_str()?.to_owned(),
            digest: object.get(DIGEST)?.as_str()?.parse().ok()?,
            length: object.get(LENGTH)?.as_u64()?,
            generation: u32::try_from(object.get(GENERATION)?.as_u64()?).ok()?,
            md5: object.get(MD5).and_then(|md5| parse_md5(md5.as_str()?)),
        })
    }
}

fn parse_md5(text: &str) -> Option<[u8; 16]> {
    let mut md5 = [0; 16];
    let digits = text.as_bytes().as_chunks::<2>().0;
    for (byte, pair) in md5.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    (text.len() == 32).then_some(md5)
}

/// The files that a packed body names.
pub(crate) fn of_packed(body: PackedValue<'_>) -> Result<Vec<Attachment>> {
    let Some(list) = body.child(FIELD)? else { return Ok(Vec::new()) };
    let damaged = || Error::corrupt("the files of a document are damaged");
    let list = list.to_value()?;
    let list = list.as_array().ok_or_else(damaged)?;
    list.iter().map(|value| Attachment::of_value(value).ok_or_else(damaged)).collect()
}

/// The body with its files, as it is packed. Empty lists leave no trace.
pub(crate) fn joined(body: &Value, attachments: &[Attachment]) -> Result<Value> {
    if attachments.len() > COUNT_MAX {
        return Err(Error::invalid(format!("a document has {COUNT_MAX} files at most")));
    }
    let mut body = body.clone();
    if let (Some(object), false) = (body.as_object_mut(), attachments.is_empty()) {
        object.insert(FIELD, Value::Array(attachments.iter().map(Attachment::to_value).collect()));
    }
    Ok(body)
}
