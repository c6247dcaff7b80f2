//! Routes of Mango indexes: `_index`.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Document, Object, Value};

use super::spread::write_document;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::{IndexDefinition, ListedIndex, add_to_design_document, indexes, sync_indexes, without_index};
use crate::writes::{WriteOptions, write_one};

/// `GET /{db}/_index`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    let (of_whole, served) = match &call.virtual_database {
        Some(entered) => (Some(entered.open.indexes()), None),
        None => (None, Some(call.open_database().await?)),
    };
    blocking(move || {
        let known = match (of_whole, served) {
            (None, Some(served)) => indexes(&served, &served.database().snapshot()?)?,
            (known, _) => known.unwrap_or_default(),
        };
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
    if call.virtual_database.is_some() {
        let definition = IndexDefinition::parse(&call.json().await?)?;
        return create_in_whole(call, definition).await;
    }
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

/// A design document of a virtual database, with its id and revision.
async fn design_of_whole(call: &Call, id: &str) -> Result<Option<Value>> {
    match call.entered()?.design(id.trim_start_matches("_design/")).await {
        Err(failure) if failure.status() == StatusCode::NOT_FOUND => Ok(None),
        found => found.map(Some),
    }
}

/// Declares an index in all shards of a virtual database.
async fn create_in_whole(call: Call, definition: IndexDefinition) -> Result<HttpResponse> {
    let (id, name) = (definition.design_id(), &definition.name);
    let current = design_of_whole(&call, &id).await?;
    let result = match add_to_design_document(current, &definition, false)? {
        None => "exists",
        Some(changed) => {
            write_document(&call, &id, &changed).await?;
            "created"
        }
    };
    call.entered()?.open.sync_indexes().await?;
    HttpResponse::ok(&json!({"result": result, "id": id, "name": name}))
}

/// Removes one index of a virtual database, or all indexes of a design document.
async fn remove_of_whole(call: &Call, id: &str, name: Option<&str>) -> Result<()> {
    let design = design_of_whole(call, id).await?.ok_or_else(Failure::missing)?;
    let member = |name: &str| design.get(name).cloned().unwrap_or_default();
    let (id_of, revision) = (member("_id"), member("_rev"));
    let changed = without_index(design, false, name)?.unwrap_or_else(|| {
        let deleted = [("_id", id_of), ("_rev", revision), ("_deleted", true.into())];
        Value::Object(deleted.into_iter().collect())
    });
    write_document(call, id, &changed).await.map(drop)
}

/// `DELETE /{db}/_index/{ddoc}/json/{name}`, with or without `_design/`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let id = format!("_design/{}", call.parameter("ddoc")?.trim_start_matches("_design/"));
    let name = call.parameter("name")?.to_owned();
    if let Some(entered) = &call.virtual_database {
        remove_of_whole(&call, &id, Some(&name)).await?;
        entered.open.sync_indexes().await?;
        return Ok(HttpResponse::done(StatusCode::OK));
    }
    let served = call.open_database().await?;
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
    let changed = without_index(document.value()?, served.is_partitioned(), name)?;
    let (deleted, body) = (changed.is_none(), changed.unwrap_or_else(|| Object::new().into()));
    let revision = Some(*document.revision());
    let document = IncomingDocument { id: Some(id.to_owned()), revision, deleted, body, ..IncomingDocument::default() };
    write_one(served, document, options)?;
    Ok(())
}

/// `POST /{db}/_index/_bulk_delete`
pub(crate) async fn bulk_delete(mut call: Call) -> Result<HttpResponse> {
    let served = match &call.virtual_database {
        Some(_) => None,
        None => Some(call.open_database().await?),
    };
    let body = call.json().await?;
    let ids = body.get("docids").and_then(Value::as_array);
    let ids = ids.ok_or_else(|| Failure::bad_request("`docids` should be an array"))?;
    let ids = ids.iter().filter_map(Value::as_str);
    let ids: Vec<String> = ids.map(|id| format!("_design/{}", id.trim_start_matches("_design/"))).collect();
    let options = super::document::write_options(&call)?;
    let removed = match served {
        None => {
            let mut removed = Vec::with_capacity(ids.len());
            for id in ids {
                let outcome = remove_of_whole(&call, &id, None).await;
                removed.push((id, outcome));
            }
            call.entered()?.open.sync_indexes().await?;
            removed
        }
        Some(served) => {
            blocking(move || {
                let remove = |id: String| {
                    let outcome = remove(&served, &id, None, &options);
                    (id, outcome)
                };
                let removed: Vec<_> = ids.into_iter().map(remove).collect();
                sync_indexes(&served)?;
                Ok(removed)
            })
            .await?
        }
    };
    let (mut success, mut fail) = (Vec::new(), Vec::new());
    for (id, outcome) in removed {
        match outcome {
            Ok(()) => success.push(json!({"id": id, "ok": true})),
            Err(failure) => fail.push(json!({"id": id, "error": failure.error()})),
        }
    }
    HttpResponse::ok(&json!({"success": success, "fail": fail}))
}
