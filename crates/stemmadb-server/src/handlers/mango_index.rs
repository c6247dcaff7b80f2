//! Routes of Mango indexes: `_index`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Document, ErrorKind, Index, Object, Value};

use super::mango::indexes;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::{IndexDefinition, LIBRARY_PREFIX, ListedIndex, add_to_design_document, indexes_of};
use crate::writes::{WriteOptions, write_one};

/// `GET /{db}/_index`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    blocking(move || {
        let known = indexes(&served, &served.database().snapshot()?)?;
        let total = known.len() + 1;
        let all = std::iter::once(ListedIndex::special()).chain(known.iter().map(ListedIndex::to_value));
        let mut object = Object::new();
        object.insert("total_rows", total);
        object.insert("indexes", Value::Array(all.skip(skip).take(limit).collect()));
        let text = Value::Object(object).to_json().into_bytes();
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// `POST /{db}/_index`
pub(crate) async fn create(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let definition = IndexDefinition::parse(&call.json().await?)?;
    let options = super::document::write_options(&call)?;
    blocking(move || {
        let (id, name) = (definition.design_id(), definition.name.clone());
        let current = served.database().get(&id)?;
        let body = current.as_ref().map(Document::value).transpose()?;
        let result = match add_to_design_document(body, &definition, served.is_partitioned())? {
            None => "exists",
            Some(body) => {
                let revision = current.map(|document| *document.revision());
                let document = IncomingDocument { id: Some(id.clone()), revision, body, ..IncomingDocument::default() };
                write_one(&served, document, &options)?;
                "created"
            }
        };
        sync_indexes(&served)?;
        HttpResponse::ok(&json!({"result": result, "id": id, "name": name}))
    })
    .await
}

/// `DELETE /{db}/_index/{ddoc}/json/{name}`, with or without `_design/`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = format!("_design/{}", call.parameter("ddoc")?.trim_start_matches("_design/"));
    let name = call.parameter("name")?.to_owned();
    let options = super::document::write_options(&call)?;
    blocking(move || {
        remove(&served, &id, Some(&name), &options)?;
        sync_indexes(&served)?;
        Ok(HttpResponse::done(StatusCode::OK))
    })
    .await
}

/// Removes one index, or all indexes, from a design document; deletes the document if none is left.
fn remove(served: &ServedDatabase, id: &str, name: Option<&str>, options: &WriteOptions) -> Result<()> {
    let document = served.database().get(id)?.ok_or_else(Failure::missing)?;
    let mut known = indexes_of(&document, served.is_partitioned())?;
    let before = known.len();
    known.retain(|index| name.is_some_and(|name| index.name != name));
    if known.len() == before {
        return Err(Failure::missing());
    }
    let mut body = document.value()?;
    if let (Some(object), Some(name)) = (body.as_object_mut(), name)
        && let Some(views) = object.get_mut("views").and_then(Value::as_object_mut)
    {
        views.remove(name);
    }
    let deleted = known.is_empty();
    let body = if deleted { Object::new().into() } else { body };
    let revision = Some(*document.revision());
    let document = IncomingDocument { id: Some(id.to_owned()), revision, deleted, body, ..IncomingDocument::default() };
    write_one(served, document, options)?;
    Ok(())
}

/// `POST /{db}/_index/_bulk_delete`
pub(crate) async fn bulk_delete(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let body = call.json().await?;
    let ids = body.get("docids").and_then(Value::as_array);
    let ids = ids.ok_or_else(|| Failure::bad_request("`docids` should be an array"))?;
    let ids: Vec<String> = ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    let options = super::document::write_options(&call)?;
    blocking(move || {
        let (mut success, mut fail) = (Vec::new(), Vec::new());
        for id in ids {
            let id = format!("_design/{}", id.trim_start_matches("_design/"));
            match remove(&served, &id, None, &options) {
                Ok(()) => success.push(json!({"id": id, "ok": true})),
                Err(failure) => fail.push(json!({"id": id, "error": failure.error()})),
            }
        }
        sync_indexes(&served)?;
        HttpResponse::ok(&json!({"success": success, "fail": fail}))
    })
    .await
}
/// Creates the library indexes for all Mango indexes, and drops those that no Mango index needs any more. An index that
/// arrives by replication is created at the next call; until then, queries run without it.
pub(super) fn sync_indexes(served: &ServedDatabase) -> Result<()> {
    let database = served.database();
    let mut missing: BTreeMap<String, Index> = BTreeMap::new();
    for index in indexes(served, &database.snapshot()?)?.iter().filter_map(ListedIndex::library_index) {
        missing.insert(index.name(), index);
    }
    for existing in database.indexes().list().into_iter().filter(|index| index.name.starts_with(LIBRARY_PREFIX)) {
        if missing.remove(&existing.name).is_none() {
            database.indexes().remove(&existing.name)?;
        }
    }
    for (name, index) in missing {
        match database.indexes().create(index) {
            Ok(()) => {}
            // The library has no indexes on paths such as `_id`, or on very many paths.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                tracing::debug!("index `{name}` was not created: {error}")
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
