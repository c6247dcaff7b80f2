//! Attachments: named contents that belong to a document in addition to its body.
//!
//! A document's attachments are described by the last field of its packed body, `_attachments`, an array of objects.
//! They are therefore part of the revision, of the log record and of the index, where `_attachments[].digest` shows
//! whether a blob is referenced. The field is hidden from readers of the body.

use std::sync::Arc;

use serde::Serialize;

use crate::log::{Blob, Digest};
use crate::value::{Object, PackedValue, Value};
use crate::{Error, Result};

/// The field of a packed body that describes the attachments.
pub(crate) const FIELD: &str = "_attachments";
const NAME: &str = "name";
const TYPE: &str = "content_type";
pub(crate) const DIGEST: &str = "digest";
const LENGTH: &str = "length";
const GENERATION: &str = "revpos";
const MD5: &str = "md5";

const NAME_BYTES_MAX: usize = 1024;
const CONTENT_TYPE_BYTES_MAX: usize = 1024;
const COUNT_MAX: usize = 10_000;

/// The description of a document's attachment, without its content.
///
/// Returned by [`Document::attachments`](crate::Document::attachments); [`Files`](crate::handles::Files) stores and
/// opens contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The attachment's name, unique in the document.
    pub name: String,
    /// The content's media type, such as `image/png`.
    pub content_type: String,
    /// The length of the content, in bytes.
    pub length: u64,
    /// The SHA-256 digest of the content.
    #[serde(serialize_with = "as_text")]
    pub digest: Digest,
    /// The generation of the revision that added the content.
    pub generation: u32,
    /// The MD5 digest of the content, which identifies contents in the CouchDB protocol; none if the writer did not
    /// supply it.
    #[serde(skip)]
    pub md5: Option<[u8; 16]>,
}

/// An attachment of a revision to be written, for [`Edit::Put`](crate::Edit::Put) and
/// [`Edit::Foreign`](crate::Edit::Foreign).
#[derive(Debug, Clone)]
pub struct File {
    /// The attachment's name, unique in the document.
    pub name: String,
    /// The source of the content.
    pub content: FileContent,
}

/// The source of an attachment's content, for [`File`].
#[derive(Debug, Clone)]
pub enum FileContent {
    /// Content that is already stored.
    Stored {
        /// The content's media type, such as `image/png`.
        content_type: String,
        /// The content.
        blob: Arc<Blob>,
        /// The MD5 digest of the content, if it is known.
        md5: Option<[u8; 16]>,
        /// The generation of the revision that added the content; none for the revision being written.
        generation: Option<u32>,
    },
    /// The content that a leaf has under the same name: the leaf being succeeded or, for a revision from another
    /// database, any leaf that is its ancestor.
    Existing,
}

fn as_text<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

impl Attachment {
    /// Describes stored content.
    ///
    /// # Errors
    /// `Invalid` for a bad name, or a content type of more than [`CONTENT_TYPE_BYTES_MAX`].
    pub(crate) fn new(name: &str, content_type: &str, blob: &Blob, generation: u32) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('_') {
            return Err(Error::invalid(format!("`{}` can't be the name of a file", name.escape_debug()))
                .with_hint("1 to 1024 bytes, not beginning with `_`"));
        }
        if content_type.len() > CONTENT_TYPE_BYTES_MAX {
            return Err(Error::invalid(format!("the content type of `{name}` has {} bytes", content_type.len()))
                .with_hint(format!("at most {CONTENT_TYPE_BYTES_MAX} bytes, such as `image/png`")));
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

    fn from_value(value: &Value) -> Option<Self> {
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

/// The attachments that a packed body describes.
pub(crate) fn from_packed(body: PackedValue<'_>) -> Result<Vec<Attachment>> {
    let Some(list) = body.child(FIELD)? else { return Ok(Vec::new()) };
    let damaged = || Error::corrupt("the files of a document are damaged");
    let list = list.to_value()?;
    let list = list.as_array().ok_or_else(damaged)?;
    list.iter().map(|value| Attachment::from_value(value).ok_or_else(damaged)).collect()
}

/// The body with its attachments, ready to be packed. Without attachments, the body is unchanged.
pub(crate) fn body_with_attachments(body: &Value, attachments: &[Attachment]) -> Result<Value> {
    if attachments.len() > COUNT_MAX {
        return Err(Error::invalid(format!("a document has {COUNT_MAX} files at most")));
    }
    let mut body = body.clone();
    if let (Some(object), false) = (body.as_object_mut(), attachments.is_empty()) {
        object.insert(FIELD, Value::Array(attachments.iter().map(Attachment::to_value).collect()));
    }
    Ok(body)
}
