//! Declared indexes, schemas, expiration.

use stemmadb::{Expiry, Index, Object, Result, Schema, Value};
use stemmadb_client::AnyDatabase;
use stemmadb_client::bindings::Reader;

use crate::arguments::Arguments;
use crate::calls::Answer;

/// Declares an index; a path that begins with `-` is descending.
pub(crate) fn create_index(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let language = arguments.optional_text("language")?;
    let path = |path: &String| {
        let (name, descending) = path.strip_prefix('-').map_or((path.as_str(), false), |path| (path, true));
        let mut path: Object = [("path", Value::from(name)), ("descending", descending.into())].into_iter().collect();
        if let Some(language) = &language {
            path.insert("collation", language.as_str());
        }
        Value::Object(path)
    };
    let mut definition = Object::new();
    definition.insert("on", arguments.texts("paths")?.unwrap_or_default().iter().map(path).collect::<Vec<_>>());
    definition.insert("unique", arguments.flag("unique")?);
    if let Some(name) = arguments.optional_text("name")? {
        definition.insert("name", name);
    }
    database.indexes().create(Index::parse(&Value::Object(definition))?)?;
    Ok(Answer::Nothing)
}

pub(crate) fn indexes(database: &AnyDatabase) -> Result<Value> {
    let index = |index: stemmadb::IndexInfo| {
        let mut object = Object::new();
        object.insert("name", index.name);
        object.insert("paths", index.paths.iter().map(|path| path.path().to_string()).collect::<Value>());
        object.insert("unique", index.unique);
        Value::Object(object)
    };
    Ok(database.indexes().list()?.into_iter().map(index).collect())
}

pub(crate) fn drop_index(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    database.indexes().remove(&arguments.text("name")?)?;
    Ok(Answer::Nothing)
}

/// Requires the documents of a collection to match a JSON Schema, or removes it.
pub(crate) fn require_schema(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let collection = arguments.text("collection")?;
    match arguments.take("schema") {
        Some(schema) => database.schemas().require(&collection, Schema::new(&schema)?)?,
        None => database.schemas().remove(&collection)?,
    }
    Ok(Answer::Nothing)
}

pub(crate) fn add_expiration(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let rule = Expiry::at(arguments.text("path")?);
    let rule = match arguments.optional_text("collection")? {
        Some(collection) => rule.of_collection(collection),
        None => rule,
    };
    reader.embedded()?.expiration().add_rule(rule)?;
    Ok(Answer::Nothing)
}

/// Has a document expire after a time, or never.
pub(crate) fn expire(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let (id, time) = (arguments.text("id")?, arguments.milliseconds("after")?);
    reader.embedded()?.expiration().expire(&id, time)?;
    Ok(Answer::Nothing)
}
