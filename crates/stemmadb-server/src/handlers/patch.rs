//! Routes that change parts of documents: `PATCH /{db}/{doc}` and `POST /{db}/_update_where`.

use hyper::StatusCode;
use stemmadb::{Patch, Query, Selector, Value};

use super::document::{document_id, parent_revision, write_options, written_response, written_status};
use super::tiers;
use crate::app::Call;
use crate::auth::narrowed;
use crate::documents::{check_id, parse_revision};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::exclude_design_documents;
use crate::writes::{Change, WriteOptions, change_where, patch, run_write};

/// `PATCH /{db}/{doc}`
pub(crate) async fn patch_document(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = document_id(&call)?;
    check_id(&id)?;
    let mut change = call.document().await?;
    // A client may send the id and the revision that it has read with the new fields.
    let (mut own_id, mut own_revision) = (None, None);
    if let Some(fields) = change.as_object_mut() {
        (own_id, own_revision) = (fields.remove("_id"), fields.remove("_rev"));
    }
    if own_id.is_some_and(|own| own.as_str() != Some(&id)) {
        return Err(Failure::bad_request("Document ID must match the ID of the path"));
    }
    let own_revision = match own_revision {
        Some(Value::String(revision)) => Some(parse_revision(&revision)?),
        Some(_) => return Err(Failure::bad_request("Invalid rev format")),
        None => None,
    };
    let revision = tiers::bring_back(&call, &id, parent_revision(&call, own_revision)?).await?;
    let (change, options) = (Patch::parse(&change)?, new_edit_options(&call)?);
    let database = served.name().to_owned();
    let written = run_write(&served, move |served| {
        let revision = patch(served, &id, revision, &change, &options)?;
        Ok((id, revision))
    });
    let (id, revision) = written.await?;
    written_response(&call, written_status(&call), &database, &id, &revision)
}

/// The write options of an update, which always creates a new revision.
fn new_edit_options(call: &Call) -> Result<WriteOptions> {
    match write_options(call)? {
        options if options.new_edits => Ok(options),
        _ => Err(Failure::bad_request("An update can't store replicated revisions (`new_edits=false`)")),
    }
}

/// `POST /{db}/_update_where`
pub(crate) async fn update_where(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let options = new_edit_options(&call)?;
    let (mut selector, mut change, mut limit) = (None, None, None);
    let Value::Object(body) = call.document().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    for (name, value) in body {
        match (name.as_str(), &value) {
            ("selector", _) => selector = Some(Selector::parse(&value)?),
            ("patch", _) if change.is_none() => change = Some(Change::Update(Patch::parse(&value)?)),
            ("delete", Value::Bool(true)) if change.is_none() => change = Some(Change::Delete),
            ("limit", _) => limit = Some(value.as_u64().ok_or_else(|| Failure::bad_request("limit is a number"))?),
            _ => {
                return Err(Failure::bad_request(format!(
                    "An update has `selector`, `limit`, and either `patch` or `\"delete\": true`, not `{name}`"
                )));
            }
        }
    }
    let (Some(selector), Some(change)) = (selector, change) else {
        return Err(Failure::bad_request("An update has a `selector`, and a `patch` or `\"delete\": true`"));
    };
    let mut query = narrowed(call.restriction.as_ref(), Query::new(exclude_design_documents(selector)));
    if let Some(limit) = limit {
        query = query.limit(limit);
    }
    let count = blocking(move || change_where(&served, &query, &change, &options)).await?;
    HttpResponse::json(StatusCode::OK, &serde_json::json!({"ok": true, "changed": count}))
}
