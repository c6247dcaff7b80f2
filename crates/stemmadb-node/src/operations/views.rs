//! Materialized views that are declared as JSON.

use std::ops::Bound;

use stemmadb::{Error, Object, Result, Value};
use stemmadb_client::{AnyDatabase, AnyViewQuery};

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::text::{into_text, write_array, write_document};

/// Defines a view, or opens it if it has this definition.
pub(crate) fn define(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    database.views().define(&arguments.text("name")?, &arguments.required("definition")?)?;
    Ok(Answer::Nothing)
}

/// Definitions by name.
pub(crate) fn definitions(database: &AnyDatabase) -> Result<Value> {
    Ok(Value::Object(database.views().definitions()?.into_iter().collect::<Object>()))
}

pub(crate) fn remove(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    database.views().remove(&arguments.text("name")?)?;
    Ok(Answer::Nothing)
}

/// Chooses rows by `key`, `keys`, `prefix`, or from `start` up to, but without, `end`.
fn query(database: &AnyDatabase, arguments: &mut Arguments) -> Result<AnyViewQuery> {
    let mut query = database.views().open(&arguments.text("name")?)?.query();
    let mut options = arguments.object("options")?;
    // A key may be `null`, which is not the same as none.
    let (key, keys, prefix) = (options.remove("key"), options.remove("keys"), options.remove("prefix"));
    let (start, end) = (options.remove("start"), options.remove("end"));
    let is_range = start.is_some() || end.is_some();
    if [key.is_some(), keys.is_some(), prefix.is_some(), is_range].into_iter().filter(|chosen| *chosen).count() > 1 {
        return Err(Error::invalid("rows of a view are chosen in several ways")
            .with_hint("give one of key, keys, prefix, or start and end"));
    }
    if let Some(key) = key {
        query = query.key(key);
    }
    match keys {
        None => {}
        Some(Value::Array(keys)) => query = query.keys(keys),
        Some(_) => return Err(Error::invalid("`keys` is not an array")),
    }
    if let Some(prefix) = prefix {
        query = query.prefix(prefix);
    }
    if is_range {
        let start = start.map_or(Bound::Unbounded, Bound::Included);
        query = query.range((start, end.map_or(Bound::Unbounded, Bound::Excluded)));
    }
    if options.get("descending") == Some(&Value::Bool(true)) {
        query = query.descending();
    }
    let count = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) if number.as_u64().is_some() => Ok(number.as_u64()),
        Some(_) => Err(Error::invalid(format!("`{name}` is not a whole number from 0"))),
    };
    if let Some(limit) = count("limit")? {
        query = query.limit(limit);
    }
    if let Some(skip) = count("skip")? {
        query = query.skip(skip);
    }
    Ok(query)
}

/// Rows in the order of their keys: id, key, value, and the document if it is asked for.
pub(crate) fn rows(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let documents = arguments.flag("documents")?;
    let query = query(database, arguments)?;
    let query = if documents { query.with_documents() } else { query };
    let mut json = Vec::with_capacity(1024);
    write_array(query.rows()?, &mut json, |row, out| {
        out.extend_from_slice(b"{\"id\":");
        Value::from(row.id.as_str()).write_json(out);
        out.extend_from_slice(b",\"key\":");
        row.key.write_json(out);
        out.extend_from_slice(b",\"value\":");
        row.value.write_json(out);
        if let Some(document) = &row.document {
            out.extend_from_slice(b",\"document\":");
            write_document(document, out)?;
        }
        out.push(b'}');
        Ok(())
    })?;
    into_text(json).map(Answer::Text)
}

/// The reduction of the chosen rows; `null` if there are none.
pub(crate) fn reduce(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Value> {
    Ok(query(database, arguments)?.reduce()?.unwrap_or_default())
}

/// `[key, value]` for each key, or with `level`, for the first elements of keys that are arrays.
pub(crate) fn groups(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Value> {
    let level = arguments.count("level")?;
    let query = query(database, arguments)?;
    let groups = match level {
        Some(level) => query.group_level(usize::try_from(level).unwrap_or(usize::MAX))?,
        None => query.group()?,
    };
    Ok(groups.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect())
}
