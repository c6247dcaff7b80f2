//! What is declared for a database: secondary indexes and the schemas of collections.

use std::time::{Duration, Instant};

use stemmadb::{Error, ForeignPolicy, Index, IndexInfo, IndexPath, IndexState, Object, Progress, Schema, Value};

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::RowStream;

/// How often the progress of a build is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Declares an index and builds it. Rows are the progress: documents done, and in total.
pub(super) fn create_index(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    let index = Index::parse(call.arguments.get("index").ok_or_else(|| Error::invalid("`index` is missing"))?)?;
    let mut reported = Instant::now();
    let report = |progress: Progress| {
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            let mut rows = RowStream::new(call);
            // A client that is gone does not stop the build.
            rows.add_value(&[progress.done, progress.total].into_iter().collect()).and_then(|()| rows.send()).ok();
        }
    };
    served.database().indexes().create_with_progress(index, report)?;
    Ok(call.reply(&object([("rows", Value::Array(Vec::new()))])))
}

pub(super) fn remove_index(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    served.database().indexes().remove(call.text("name")?)?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn list_indexes(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::ListIndexes, None)?;
    let mut rows = RowStream::new(call);
    served.database().indexes().list().iter().try_for_each(|index| rows.add_value(&index_value(index)))?;
    Ok(rows.finish(&[]))
}

fn index_value(index: &IndexInfo) -> Value {
    let path = |path: &IndexPath| {
        let mut object = Object::new();
        object.insert("path", path.path().to_string());
        object.insert("descending", path.is_descending());
        if let Some(language) = path.language() {
            object.insert("collation", language);
        }
        Value::Object(object)
    };
    let (state, detail) = match &index.state {
        IndexState::Building(progress) => ("building", [progress.done, progress.total].into_iter().collect()),
        IndexState::Ready => ("ready", Value::Null),
        IndexState::Failed { why } => ("failed", why.as_str().into()),
    };
    object([
        ("name", index.name.as_str().into()),
        ("on", index.paths.iter().map(path).collect::<Vec<_>>().into()),
        ("unique", index.unique.into()),
        ("state", state.into()),
        ("detail", detail),
    ])
}

/// Requires the documents of a collection to match a schema.
pub(super) fn require_schema(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    let schema = call.arguments.get("schema").ok_or_else(|| Error::invalid("the argument `schema` is missing"))?;
    let mut schema = Schema::new(schema)?;
    if call.flag("accepts_foreign") {
        schema = schema.foreign(ForeignPolicy::Accept);
    }
    if call.flag("for_new_writes") {
        schema = schema.for_new_writes();
    }
    served.database().schemas().require(call.text("collection")?, schema)?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn remove_schema(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    served.database().schemas().remove(call.text("collection")?)?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn list_schemas(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::ListIndexes, None)?;
    let mut rows = RowStream::new(call);
    for (collection, schema) in served.database().schemas().list() {
        rows.add_value(&object([
            ("collection", collection.into()),
            ("schema", schema.json().clone()),
            ("accepts_foreign", (schema.foreign_policy() == ForeignPolicy::Accept).into()),
            ("for_new_writes", schema.is_for_new_writes().into()),
        ]))?;
    }
    Ok(rows.finish(&[]))
}

/// The first documents that violate the schema of their collection: rows of an id and the violation.
pub(super) fn schema_violations(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::ListIndexes, None)?;
    let limit = call.optional_number("limit")?.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut rows = RowStream::new(call);
    for (id, violation) in served.database().schemas().violations(call.text("collection")?, limit)? {
        rows.add_value(&Value::from_iter([id.to_string(), violation]))?;
    }
    Ok(rows.finish(&[]))
}
