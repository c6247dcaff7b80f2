//! The library's types from and to the values of frames.

use std::time::{Duration, UNIX_EPOCH};

use stemmadb::past::At;
use stemmadb::remote::DocumentFactory;
use stemmadb::{
    Attachment, Change, DeltaEvent, Document, DocumentId, Edit, Error, Object, Patch, PathChange, PathEvent, Progress,
    Result, Revision, Sequence, Summary, Value,
};
use stemmadb_wire::{Item, error_from_value};

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

/// A row of two elements.
pub(crate) fn pair(row: Value) -> Result<(Value, Value)> {
    match row {
        Value::Array(row) => match <[Value; 2]>::try_from(row) {
            Ok([first, second]) => Ok((first, second)),
            Err(_) => Err(missing_field("row")),
        },
        _ => Err(missing_field("row")),
    }
}

/// The text of a row's element.
pub(crate) fn into_text(value: Value) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| missing_field("text"))
}

/// A summary of numbers.
pub(crate) fn summary(value: &Value) -> Result<Summary> {
    let figure = |name| value.get(name).and_then(Value::as_number);
    Ok(Summary::new(number(value, "count")?, figure("sum"), figure("min"), figure("max")))
}

/// A point in the past as an argument.
pub(crate) fn at_value(at: At) -> Value {
    let micros = |time: Duration| Value::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    match at {
        At::Sequence(sequence) => sequence.get().into(),
        At::Time(time) => object([("time_us", micros(time.duration_since(UNIX_EPOCH).unwrap_or_default()))]),
        At::Ago(ago) => object([("ago_us", micros(ago))]),
        // Refused by the server.
        _ => Value::Null,
    }
}

/// Progress as `[done, total]`.
pub(crate) fn progress(value: &Value) -> Option<Progress> {
    match value.as_array()? {
        [done, total] => Some(Progress { done: done.as_u64()?, total: total.as_u64()? }),
        _ => None,
    }
}

/// A document, or none for null.
pub(crate) fn optional_document(factory: &DocumentFactory, item: Item) -> Result<Option<Document>> {
    match item {
        Item::Document(document) => Ok(Some(document)),
        Item::Value(value) => document_or_null(factory, &value),
    }
}

/// A document as a value, or none for null.
pub(crate) fn document_or_null(factory: &DocumentFactory, value: &Value) -> Result<Option<Document>> {
    if value.is_null() { Ok(None) } else { document(factory, value).map(Some) }
}

/// A document that is a row.
pub(crate) fn document_of(factory: &DocumentFactory, row: Item) -> Result<Document> {
    match row {
        Item::Document(document) => Ok(document),
        Item::Value(value) => document(factory, &value),
    }
}

/// A document as a value.
pub(crate) fn document(factory: &DocumentFactory, value: &Value) -> Result<Document> {
    let id = DocumentId::new(text(value, "id")?)?;
    let revision = text(value, "rev")?.parse()?;
    let sequence = Sequence::new(number(value, "seq")?);
    let body = value.get("body").ok_or_else(|| missing_field("body"))?;
    let files = value.get("files").and_then(Value::as_array).unwrap_or_default();
    let files = files.iter().map(attachment).collect::<Result<Vec<_>>>()?;
    factory.document(id, revision, sequence, flag(value, "deleted"), body, &files)
}

pub(crate) fn attachment(value: &Value) -> Result<Attachment> {
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

/// A document whose values at matching paths changed.
pub(crate) fn path_change(factory: &DocumentFactory, value: &Value) -> Result<PathChange> {
    let event = |event: &Value| {
        let [kind, path] = event.as_array()? else { return None };
        let path = path.as_str()?.to_owned();
        match kind.as_str()? {
            "added" => Some(PathEvent::Added(path)),
            "changed" => Some(PathEvent::Changed(path)),
            "removed" => Some(PathEvent::Removed(path)),
            _ => None,
        }
    };
    let paths = value.get("paths").and_then(Value::as_array).unwrap_or_default().iter().map(event);
    Ok(PathChange {
        sequence: Sequence::new(number(value, "seq")?),
        id: DocumentId::new(text(value, "id")?)?,
        document: value.get("document").map(|value| document(factory, value)).transpose()?,
        paths: paths.collect::<Option<_>>().ok_or_else(|| missing_field("paths"))?,
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
        Edit::Detach { revision, name, .. } => {
            object([("op", "detach".into()), ("id", id), ("rev", rev(revision)), ("name", name.into())])
        }
        Edit::Update { revision, patch, .. } => {
            let mut edit = Object::new();
            edit.insert("op", "update");
            edit.insert("id", id);
            if let Some(revision) = revision {
                edit.insert("rev", rev(revision));
            }
            insert_patch(&mut edit, &patch)?;
            Value::Object(edit)
        }
        _ => {
            return Err(Error::invalid("this kind of edit can't be sent to a server")
                .with_hint("replicate over HTTP, with Database::replicate_to"));
        }
    })
}

/// Adds a patch to the arguments of a write.
pub(crate) fn insert_patch(arguments: &mut Object, patch: &Patch) -> Result<()> {
    let (merge, operators) = patch.to_parts()?;
    arguments.insert("patch", operators);
    arguments.insert("merge", merge);
    Ok(())
}

/// The result of one edit of several.
pub(crate) fn edit_result(value: &Value) -> Result<Revision> {
    match error_from_value(value) {
        Some(error) => Err(error),
        None => revision_of(value),
    }
}

/// The key and the figures of a group.
pub(crate) fn group_of(mut row: Value) -> Result<(Value, Object)> {
    let mut take = |name| row.as_object_mut().and_then(|fields| fields.remove(name));
    match (take("key"), take("figures")) {
        (Some(key), Some(Value::Object(figures))) => Ok((key, figures)),
        _ => Err(missing_field("figures")),
    }
}
