//! The library's types from and to the values of frames.

use stemmadb::remote::DocumentFactory;
use stemmadb::{
    Attachment, Change, DeltaEvent, Document, DocumentId, Edit, Error, Object, Result, Revision, Sequence, Value,
};
use stemmadb_wire::error_from_value;

/// The error for a result that lacks something.
pub(crate) fn missing_field(name: &str) -> Error {
    Error::invalid(format!("malformed frame: the result has no valid `{name}`"))
}

/// An object of these fields.
pub(crate) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().collect::<Object>())
}

pub(crate) fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value.get(name).and_then(Value::as_str).ok_or_else(|| missing_field(name))
}

pub(crate) fn number(value: &Value, name: &str) -> Result<u64> {
    value.get(name).and_then(Value::as_u64).ok_or_else(|| missing_field(name))
}

/// A revision that is the whole result.
pub(crate) fn revision_of(value: &Value) -> Result<Revision> {
    value.as_str().ok_or_else(|| missing_field("revision"))?.parse()
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// A document, or none for null.
pub(crate) fn optional_document(factory: &DocumentFactory, value: &Value) -> Result<Option<Document>> {
    if value.is_null() { Ok(None) } else { document(factory, value).map(Some) }
}

/// A document.
pub(crate) fn document(factory: &DocumentFactory, value: &Value) -> Result<Document> {
    let id = DocumentId::new(text(value, "id")?)?;
    let revision = text(value, "rev")?.parse()?;
    let sequence = Sequence::new(number(value, "seq")?);
    let body = value.get("body").ok_or_else(|| missing_field("body"))?;
    let files = value.get("files").and_then(Value::as_array).unwrap_or_default();
    let files = files.iter().map(attachment).collect::<Result<Vec<_>>>()?;
    factory.document(id, revision, sequence, flag(value, "deleted"), body, &files)
}

fn attachment(value: &Value) -> Result<Attachment> {
    Ok(Attachment {
        name: text(value, "name")?.to_owned(),
        content_type: text(value, "content_type")?.to_owned(),
        length: number(value, "length")?,
        digest: text(value, "digest")?.parse()?,
        generation: u32::try_from(number(value, "generation")?).map_err(|_| missing_field("generation"))?,
        md5: None,
    })
}

/// A row of the changes feed.
pub(crate) fn change(factory: &DocumentFactory, value: &Value) -> Result<Change> {
    let revision: Revision = text(value, "rev")?.parse()?;
    let leaves = match value.get("leaves").and_then(Value::as_array) {
        Some(leaves) => leaves.iter().map(revision_of).collect::<Result<_>>()?,
        None => vec![revision],
    };
    Ok(Change {
        sequence: Sequence::new(number(value, "seq")?),
        id: DocumentId::new(text(value, "id")?)?,
        revision,
        deleted: flag(value, "deleted"),
        leaves,
        document: value.get("document").map(|value| document(factory, value)).transpose()?,
    })
}

/// An event of a live query; `None` for the row that ends a transaction.
pub(crate) fn delta_event(factory: &DocumentFactory, value: &Value) -> Result<Option<DeltaEvent>> {
    if let Some(added) = value.get("added") {
        return Ok(Some(DeltaEvent::Added(document(factory, added)?)));
    }
    if let Some(changed) = value.get("changed") {
        return Ok(Some(DeltaEvent::Changed(document(factory, changed)?)));
    }
    match value.get("removed").and_then(Value::as_str) {
        Some(id) => Ok(Some(DeltaEvent::Removed { id: DocumentId::new(id)?, deleted: flag(value, "deleted") })),
        None => Ok(None),
    }
}

/// An edit as an argument.
///
/// # Errors
/// `Invalid` for an edit that can't be sent: one with files, or of a replication.
pub(crate) fn edit_value(edit: Edit) -> Result<Value> {
    let id = Value::from(edit.id().as_str());
    let rev = |revision: Revision| Value::from(revision.to_string());
    Ok(match edit {
        Edit::Insert { body, .. } => object([("op", "insert".into()), ("id", id), ("body", body)]),
        Edit::Upsert { body, .. } => object([("op", "upsert".into()), ("id", id), ("body", body)]),
        Edit::Replace { revision, body, .. } => {
            object([("op", "replace".into()), ("id", id), ("rev", rev(revision)), ("body", body)])
        }
        Edit::Delete { revision, .. } => object([("op", "delete".into()), ("id", id), ("rev", rev(revision))]),
        Edit::Update { revision, patch, .. } => {
            let (merge, operators) = patch.to_parts()?;
            let mut edit = Object::new();
            edit.insert("op", "update");
            edit.insert("id", id);
            if let Some(revision) = revision {
                edit.insert("rev", rev(revision));
            }
            edit.insert("patch", operators);
            edit.insert("merge", merge);
            Value::Object(edit)
        }
        _ => {
            return Err(Error::invalid("this kind of edit can't be sent to a server")
                .with_hint("replicate over HTTP, with Database::replicate_to"));
        }
    })
}

/// The result of one edit of several.
pub(crate) fn edit_result(value: &Value) -> Result<Revision> {
    match error_from_value(value) {
        Some(error) => Err(error),
        None => revision_of(value),
    }
}
