//! The route `_transact`: atomic writes of several documents.

use std::collections::BTreeSet;

use hyper::StatusCode;
use serde_json::{Value as Json, json};
use stemmadb::{Object, Selector, Value};

use super::document::{write_options, written_status};
use super::spread;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::{COUNT_MAX, IncomingDocument, check_count, parse_revision};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::exclude_design_documents;
use crate::virtual_databases::{EnteredVirtual, Shard};
use crate::writes::{Refusal, RefusalCause, TransactOutcome, TransactionCheck, run_write, transact};

/// The most checks of one transaction; each may run a query.
const CHECKS_MAX: usize = 1_000;
/// Transactions without checks and with at most this many documents are short writes, like single documents.
const SHORT_COUNT: usize = 16;

/// Why a transaction of a virtual database is refused.
const NO_IDS: &str = "A transaction of a virtual database names the id of each document, and has no checks of \
                      selectors: they are about documents of all shards";

/// `POST /{db}/_transact`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let opened = match &call.virtual_database {
        Some(_) => None,
        None => Some(call.open_database().await?),
    };
    let options = write_options(&call)?;
    if !options.new_edits {
        return Err(Failure::bad_request(
            "A transaction can't store replicated revisions (`new_edits=false`): use `_bulk_docs`",
        ));
    }
    let Value::Object(mut body) = call.document().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    let served = match opened {
        Some(served) => served,
        None => match shard_of(call.entered()?, &body)? {
            Shard::Here(served) => served,
            Shard::There(remote) => {
                let body = Value::Object(body);
                let documents = body.get("docs").and_then(Value::as_array).unwrap_or_default().iter();
                let ids = documents.filter_map(|document| document.get("_id")?.as_str());
                return spread::forward_body(call, &remote, &body, ids).await;
            }
        },
    };
    let documents = take_array(&mut body, "docs")?;
    check_count(documents.len(), COUNT_MAX)?;
    let checks = take_array(&mut body, "checks")?;
    if checks.len() > CHECKS_MAX {
        return Err(Failure::bad_request(format!("A transaction can have at most {CHECKS_MAX} checks")));
    }
    if let Some(name) = body.names().next() {
        return Err(Failure::bad_request(format!("A transaction has `docs` and `checks`, not `{name}`")));
    }
    let status = written_status(&call);
    let is_short = checks.is_empty() && documents.len() <= SHORT_COUNT;
    let work = move |served: &ServedDatabase| {
        let documents = documents.into_iter().map(IncomingDocument::parse).collect::<Result<Vec<_>>>()?;
        check_documents(&documents)?;
        let checks = checks.iter().map(parse_check).collect::<Result<Vec<_>>>()?;
        match transact(served, documents, &checks, &options)? {
            TransactOutcome::Written(written) => {
                let row = |(id, rev): &(String, String)| json!({"ok": true, "id": id, "rev": rev});
                let rows: Vec<_> = written.iter().map(row).collect();
                HttpResponse::json(status, &json!({"ok": true, "docs": rows}))
            }
            TransactOutcome::Refused(refused) => refused_response(&refused),
        }
    };
    if is_short { run_write(&served, work).await } else { blocking(move || work(&served)).await }
}

/// The shard that has all documents of a transaction, which are in one bucket.
///
/// # Errors
/// 400 if they are not, or the transaction depends on others.
fn shard_of(entered: &EnteredVirtual, body: &Object) -> Result<Shard> {
    let listed = |name: &str| body.get(name).and_then(Value::as_array).unwrap_or_default();
    let documents = listed("docs").iter().map(|document| (document, "_id"));
    let ids = documents.chain(listed("checks").iter().map(|check| (check, "id")));
    let ids = ids.map(|(value, name)| value.get(name).and_then(Value::as_str)).collect::<Option<Vec<_>>>();
    let ids = ids.ok_or_else(|| Failure::bad_request(NO_IDS))?;
    entered.check_one_bucket(ids.iter().copied())?;
    Ok(entered.shard_of(ids.first().copied().unwrap_or_default()))
}

fn take_array(body: &mut Object, name: &str) -> Result<Vec<Value>> {
    match body.remove(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(Failure::bad_request(format!("`{name}` must be an array"))),
    }
}

fn check_documents(documents: &[IncomingDocument]) -> Result<()> {
    let mut written = BTreeSet::new();
    for document in documents {
        let Some(id) = document.id.as_deref() else { continue };
        if id.starts_with("_local/") {
            return Err(Failure::bad_request(format!(
                "{id} is a local document, which can't be part of a transaction"
            )));
        }
        // Several branches of a document may be written together, which resolves a conflict.
        if !written.insert((id, document.revision)) {
            return Err(Failure::bad_request(format!("{id} is in `docs` twice, with the same revision")));
        }
    }
    Ok(())
}

fn parse_check(value: &Value) -> Result<TransactionCheck> {
    let invalid = || {
        Failure::bad_request(
            "A check is {\"id\", \"rev\"}, {\"id\", \"if_absent\": true}, {\"selector\", \"rows\": {id: rev}} or \
             {\"selector\", \"count\"}",
        )
    };
    let object = value.as_object().filter(|object| object.len() == 2).ok_or_else(invalid)?;
    let get = |name: &str| object.get(name);
    match (get("id"), get("rev"), get("if_absent"), get("selector"), get("rows"), get("count")) {
        (Some(Value::String(id)), Some(Value::String(rev)), None, None, None, None) => {
            Ok(TransactionCheck::Revision(id.clone(), Some(parse_revision(rev)?)))
        }
        (Some(Value::String(id)), None, Some(Value::Bool(true)), ..) => {
            Ok(TransactionCheck::Revision(id.clone(), None))
        }
        (None, None, None, Some(selector), Some(Value::Object(rows)), None) => {
            let row =
                |(id, rev): (&str, &Value)| Ok((id.to_owned(), parse_revision(rev.as_str().ok_or_else(invalid)?)?));
            Ok(TransactionCheck::Rows(
                exclude_design_documents(Selector::parse(selector)?),
                rows.iter().map(row).collect::<Result<_>>()?,
            ))
        }
        (None, None, None, Some(selector), None, Some(count)) => Ok(TransactionCheck::Count(
            exclude_design_documents(Selector::parse(selector)?),
            count.as_u64().ok_or_else(invalid)?,
        )),
        _ => Err(invalid()),
    }
}

/// The response to a rejected transaction: lists each rejected document and check.
fn refused_response(refused: &[Refusal]) -> Result<HttpResponse> {
    let row = |refusal: &Refusal| {
        let mut row = json!({"error": refusal.failure.error(), "reason": refusal.failure.reason()});
        match &refusal.cause {
            RefusalCause::Document(id) => row["id"] = id.as_str().into(),
            RefusalCause::Check(index) => row["check"] = (*index).into(),
        }
        if refusal.failure.status() == StatusCode::CONFLICT {
            row["rev"] = refusal.current.map_or(Json::Null, |revision| revision.to_string().into());
        }
        row
    };
    let first = refused.first().ok_or_else(|| Failure::internal("a transaction was rejected without a reason"))?;
    let reason = match refused.len() {
        1 => "Nothing was written: a document or a check was rejected.".to_owned(),
        count => format!("Nothing was written: {count} documents or checks were rejected."),
    };
    let rows: Vec<_> = refused.iter().map(row).collect();
    let body = json!({"error": first.failure.error(), "reason": reason, "refused": rows});
    HttpResponse::json(first.failure.status(), &body)
}
