//! `_transact`: several documents at once, all or none.

use std::collections::BTreeSet;

use hyper::StatusCode;
use serde_json::{Value as Json, json};
use stemmadb::{Object, Selector, Value};

use super::document::{write_options, written_status};
use crate::app::Call;
use crate::directory::Served;
use crate::documents::{COUNT_MAX, Incoming, check_count, parse_revision};
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};
use crate::mango::plain;
use crate::writes::{Cause, Check, Outcome, Refusal, run_write, transact};

/// The most checks of one transaction: each may be a query.
const CHECKS_MAX: usize = 1_000;
/// Up to so many documents a transaction is as short as a write of one.
const SHORT_COUNT: usize = 16;

/// `POST /{db}/_transact`
pub(crate) async fn post(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let options = write_options(&call)?;
    if !options.new_edits {
        return Err(Failure::bad_request("A transaction has no revisions from elsewhere: use `_bulk_docs`"));
    }
    let Value::Object(mut body) = call.document().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    let documents = list(&mut body, "docs")?;
    check_count(documents.len(), COUNT_MAX)?;
    let checks = list(&mut body, "checks")?;
    if checks.len() > CHECKS_MAX {
        return Err(Failure::bad_request(format!("A transaction has at most {CHECKS_MAX} checks")));
    }
    if let Some(name) = body.names().next() {
        return Err(Failure::bad_request(format!("A transaction has `docs` and `checks`, not `{name}`")));
    }
    let status = written_status(&call);
    let is_short = checks.is_empty() && documents.len() <= SHORT_COUNT;
    let work = move |served: &Served| {
        let documents = documents.into_iter().map(Incoming::parse).collect::<Result<Vec<_>>>()?;
        refuse_unfit(&documents)?;
        let checks = checks.iter().map(check).collect::<Result<Vec<_>>>()?;
        match transact(served, documents, &checks, &options)? {
            Outcome::Written(written) => {
                let row = |(id, rev): &(String, String)| json!({"ok": true, "id": id, "rev": rev});
                let rows: Vec<_> = written.iter().map(row).collect();
                Answer::json(status, &json!({"ok": true, "docs": rows}))
            }
            Outcome::Refused(refused) => refusal(&refused),
        }
    };
    if is_short { run_write(&served, work).await } else { blocking(move || work(&served)).await }
}

fn list(body: &mut Object, name: &str) -> Result<Vec<Value>> {
    match body.remove(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(Failure::bad_request(format!("`{name}` must be an array"))),
    }
}

fn refuse_unfit(documents: &[Incoming]) -> Result<()> {
    let mut ids = BTreeSet::new();
    for id in documents.iter().filter_map(|document| document.id.as_deref()) {
        if id.starts_with("_local/") {
            return Err(Failure::bad_request(format!(
                "{id} is not part of transactions: it is nobody's but one client's"
            )));
        }
        if !ids.insert(id) {
            return Err(Failure::bad_request(format!("{id} is in `docs` twice")));
        }
    }
    Ok(())
}

fn check(value: &Value) -> Result<Check> {
    let wrong = || {
        Failure::bad_request(
            "A check is {\"id\", \"rev\"}, {\"id\", \"if_absent\": true}, {\"selector\", \"rows\": {id: rev}} or {\"selector\", \"count\"}",
        )
    };
    let object = value.as_object().filter(|object| object.len() == 2).ok_or_else(wrong)?;
    let get = |name: &str| object.get(name);
    match (get("id"), get("rev"), get("if_absent"), get("selector"), get("rows"), get("count")) {
        (Some(Value::String(id)), Some(Value::String(rev)), None, None, None, None) => {
            Ok(Check::Revision(id.clone(), Some(parse_revision(rev)?)))
        }
        (Some(Value::String(id)), None, Some(Value::Bool(true)), ..) => Ok(Check::Revision(id.clone(), None)),
        (None, None, None, Some(selector), Some(Value::Object(rows)), None) => {
            let row = |(id, rev): (&str, &Value)| Ok((id.to_owned(), parse_revision(rev.as_str().ok_or_else(wrong)?)?));
            Ok(Check::Rows(plain(Selector::parse(selector)?), rows.iter().map(row).collect::<Result<_>>()?))
        }
        (None, None, None, Some(selector), None, Some(count)) => {
            Ok(Check::Count(plain(Selector::parse(selector)?), count.as_u64().ok_or_else(wrong)?))
        }
        _ => Err(wrong()),
    }
}

/// Nothing was written, and why: each document and check that is in the way.
fn refusal(refused: &[Refusal]) -> Result<Answer> {
    let row = |refusal: &Refusal| {
        let mut row = json!({"error": refusal.failure.error(), "reason": refusal.failure.reason()});
        match &refusal.cause {
            Cause::Document(id) => row["id"] = id.as_str().into(),
            Cause::Check(at) => row["check"] = (*at).into(),
        }
        if refusal.failure.status() == StatusCode::CONFLICT {
            row["rev"] = refusal.current.map_or(Json::Null, |revision| revision.to_string().into());
        }
        row
    };
    let first = refused.first().ok_or_else(|| Failure::internal("refused for no reason"))?;
    let reason = match refused.len() {
        1 => "Nothing was written: something is in the way.".to_owned(),
        count => format!("Nothing was written: {count} things are in the way."),
    };
    let rows: Vec<_> = refused.iter().map(row).collect();
    let told = json!({"error": first.failure.error(), "reason": reason, "refused": rows});
    Answer::json(first.failure.status(), &told)
}
