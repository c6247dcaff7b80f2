//! Documents as they are read: id, revision and body.

pub(crate) mod attachment;
mod record;

use std::sync::Arc;

use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::revision::{DocumentId, Revision, Sequence};
use crate::value::{Body, Object, PackedValue, Path, Shapes, Value};
use crate::{Error, Result};
pub use attachment::{Attachment, File, FileContent};
pub use record::{RecordReader, RecordWriter};

/// The fields that CouchDB's replicator writes into documents of `_replicator`. Such a document may be copied into any
/// database, so these are the only names beginning with `_` that a body can have.
pub const REPLICATION_FIELDS: [&str; 5] = [
    "_replication_state",
    "_replication_state_time",
    "_replication_state_reason",
    "_replication_id",
    "_replication_stats",
];

/// A document as it was read: its id, revision and body. Cheap to clone; the body stays packed until it is used.
///
/// ```
/// # fn main() -> stemmadb::Result<()> {
/// # let db = stemmadb::Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let document = db.get("solaris")?.unwrap();
/// assert_eq!(document.to_json()?, r#"{"year":1961}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Document {
    id: DocumentId,
    revision: Revision,
    sequence: Sequence,
    deleted: bool,
    body: Body,
    shapes: Arc<Shapes>,
}

impl Document {
    pub(crate) fn new(
        id: DocumentId,
        revision: Revision,
        sequence: Sequence,
        deleted: bool,
        body: Body,
        shapes: Arc<Shapes>,
    ) -> Self {
        Document { id, revision, sequence, deleted, body, shapes }
    }

    /// The document's id.
    pub fn id(&self) -> &DocumentId {
        &self.id
    }

    /// The revision that was read, which a replacement or deletion has to name.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// The sequence of the document's latest write.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Whether this revision is a deletion.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Decodes the whole body. Costs one pass over it.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn value(&self) -> Result<Value> {
        let mut value = self.packed()?.to_value()?;
        if let Some(object) = value.as_object_mut() {
            object.remove(attachment::FIELD);
        }
        Ok(value)
    }

    /// Describes the document's attachments, without their contents.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn attachments(&self) -> Result<Vec<Attachment>> {
        attachment::from_packed(self.packed()?)
    }

    fn has_attachments(&self) -> Result<bool> {
        Ok(self.packed()?.child(attachment::FIELD)?.is_some())
    }

    /// Reads the value at `path` (names separated by dots; `\.` for a dot in a name) without decoding the rest of the
    /// body.
    ///
    /// # Errors
    /// `Invalid` for a bad path; `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        let path = Path::parse_single(path)?;
        self.packed()?.get(&path)?.map(|value| value.to_value()).transpose()
    }

    /// Deserializes the body into a Rust type.
    ///
    /// # Errors
    /// `Invalid` if the body does not fit the type; `Corrupt` if the stored bytes are damaged.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T> {
        match self.has_attachments()? {
            true => self.value()?.deserialize_into(),
            false => self.packed()?.deserialize_into(),
        }
    }

    /// Deserializes the body with a seed, which can have state, such as the interpreter of another language that the
    /// body's values are made in.
    ///
    /// # Errors
    /// Those of the seed; `Corrupt` if the stored bytes are damaged.
    pub fn deserialize_with<T>(&self, seed: impl for<'de> DeserializeSeed<'de, Value = T>) -> Result<T> {
        match self.has_attachments()? {
            true => self.value()?.deserialize_with(seed),
            false => self.packed()?.deserialize_with(seed),
        }
    }

    /// Encodes the body as compact JSON text.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn to_json(&self) -> Result<String> {
        match self.has_attachments()? {
            true => Ok(self.value()?.to_json()),
            false => self.packed()?.to_json(),
        }
    }

    /// Appends the body's fields to `out` as compact JSON in stored order and without braces: `"a":1,"b":2`. Returns
    /// whether there are any.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn write_json_fields(&self, out: &mut Vec<u8>) -> Result<bool> {
        self.packed()?.write_json_fields(attachment::FIELD, out)
    }

    pub(crate) fn packed(&self) -> Result<PackedValue<'_>> {
        PackedValue::new(self.body.packed(), &self.shapes)
    }

    pub(crate) fn packed_bytes(&self) -> &[u8] {
        self.body.packed()
    }

    /// The number of bytes of memory that the document keeps alive.
    pub(crate) fn byte_count(&self) -> usize {
        self.body.byte_count()
    }
}

/// Makes documents of values that come from elsewhere, such as a database in another process.
///
/// The documents of one factory share the names of their fields.
#[derive(Debug, Clone, Default)]
pub struct DocumentFactory {
    shapes: Arc<Shapes>,
}

impl DocumentFactory {
    /// Returns a factory without known names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a document. Costs one pass over the body.
    ///
    /// # Errors
    /// `Invalid` if the body is not an object or too deep.
    pub fn document(
        &self,
        id: DocumentId,
        revision: Revision,
        sequence: Sequence,
        deleted: bool,
        body: &Value,
        attachments: &[Attachment],
    ) -> Result<Document> {
        if body.as_object().is_none() {
            return Err(Error::invalid(format!("the body of document `{id}` is not an object")));
        }
        let mut packed = Vec::with_capacity(256);
        match attachments.is_empty() {
            true => crate::value::pack(body, &self.shapes, &mut packed)?,
            false => {
                let body = attachment::body_with_attachments(body, attachments)?;
                crate::value::pack(&body, &self.shapes, &mut packed)?;
            }
        }
        Ok(Document::new(id, revision, sequence, deleted, Body::new(packed), self.shapes.clone()))
    }
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = self.to_json().unwrap_or_else(|error| format!("<{error}>"));
        write!(f, "{} {} {body}", self.id, self.revision)
    }
}

impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.revision == other.revision && self.value().ok() == other.value().ok()
    }
}

/// Serializes a document as CouchDB does: `_id` and `_rev` first, then attachment stubs, then the body's fields.
impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.value().map_err(serde::ser::Error::custom)?;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("_id", self.id.as_str())?;
        map.serialize_entry("_rev", &self.revision.to_string())?;
        if self.deleted {
            map.serialize_entry("_deleted", &true)?;
        }
        let attachments = self.attachments().map_err(serde::ser::Error::custom)?;
        if !attachments.is_empty() {
            map.serialize_entry(attachment::FIELD, &Stubs(&attachments))?;
        }
        if let Value::Object(object) = &value {
            for (name, value) in object.iter() {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

/// Attachments by name, as CouchDB describes them without their contents.
struct Stubs<'a>(&'a [Attachment]);

impl Serialize for Stubs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stub = |file: &Attachment| {
            let mut stub = Object::new();
            stub.insert("content_type", Value::String(file.content_type.clone()));
            stub.insert("revpos", Value::from(u64::from(file.generation)));
            stub.insert("digest", Value::String(format!("sha256-{}", file.digest)));
            stub.insert("length", Value::from(file.length));
            stub.insert("stub", Value::Bool(true));
            Value::Object(stub)
        };
        serializer.collect_map(self.0.iter().map(|file| (&file.name, stub(file))))
    }
}
