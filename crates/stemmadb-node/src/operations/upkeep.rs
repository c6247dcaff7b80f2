//! Figures of a database, and its upkeep.

use stemmadb::{Object, Result, Value};
use stemmadb_client::AnyDatabase;
use stemmadb_client::bindings::Reader;

use crate::arguments::Arguments;
use crate::calls::Answer;

/// The sequence of the newest write that is visible; `null` in the past of a remote database.
pub(crate) fn sequence(reader: &Reader) -> Result<Value> {
    Ok(match reader {
        Reader::Database(database) => Value::from(database.sequence()?.get()),
        Reader::Snapshot(snapshot) => Value::from(snapshot.sequence().get()),
        Reader::RemotePast(_) | Reader::Transaction(_) => Value::Null,
    })
}

/// The paths that documents have, with the number of documents and of distinct values at each.
pub(crate) fn paths(reader: &Reader) -> Result<Value> {
    let path = |path: stemmadb::PathInfo| {
        let mut object = Object::new();
        object.insert("path", path.path);
        object.insert("documents", path.document_count);
        object.insert("values", path.value_count);
        let kinds: Object = path.kinds.into_iter().map(|(kind, count)| (kind.name(), Value::from(count))).collect();
        object.insert("types", Value::Object(kinds));
        Value::Object(object)
    };
    Ok(reader.embedded()?.indexes().paths()?.into_iter().map(path).collect())
}

/// Counts and sizes.
pub(crate) fn info(reader: &Reader) -> Result<Value> {
    let info = reader.embedded()?.info()?;
    let mut object = Object::new();
    object.insert("documents", info.document_count);
    object.insert("deleted", info.deleted_count);
    object.insert("sequence", info.sequence.get());
    object.insert("logBytes", info.log_bytes);
    object.insert("treeBytes", info.tree_bytes);
    object.insert("historyBytes", info.history_bytes);
    object.insert("cacheBytes", info.cache_bytes);
    Ok(Value::Object(object))
}

/// Flushes every earlier write to disk.
pub(crate) fn flush(database: &AnyDatabase) -> Result<Answer> {
    match database {
        AnyDatabase::Embedded(database) => database.flush()?,
        AnyDatabase::Remote(database) => database.flush()?,
    }
    Ok(Answer::Nothing)
}

pub(crate) fn backup(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    reader.embedded()?.maintenance().backup(arguments.text("directory")?)?;
    Ok(Answer::Nothing)
}

/// The problems that a check of all stored bytes and indexes finds.
pub(crate) fn check(reader: &Reader) -> Result<Value> {
    let report = reader.embedded()?.maintenance().check()?;
    Ok(report.damages.into_iter().map(|damage| Value::from(damage.what)).collect())
}

/// The bytes that compaction freed.
pub(crate) fn compact(reader: &Reader) -> Result<Value> {
    reader.embedded()?.maintenance().compact().map(Value::from)
}
