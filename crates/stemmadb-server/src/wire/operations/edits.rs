//! Writing documents: one edit, several independent ones, or a transaction.

use std::sync::Arc;

use stemmadb::{DocumentId, Edit, Error, Object, Patch, Revision, Value};
use stemmadb_wire::error_to_value;

use super::super::call::{Call, revision};
use super::super::failure::{Result, WireError};
use super::super::lanes::{self, Lanes};
use super::super::rights::RightsOf;
use crate::directory::ServedDatabase;
use crate::writes::{EditError, EditOutcome, apply_edits};

impl From<EditError> for WireError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Library(error) => error.into(),
            EditError::Refused(failure) => failure.into(),
        }
    }
}

/// Parses an edit.
///
/// # Errors
/// `Invalid` if it is malformed.
fn parse_edit(value: &Value) -> Result<Edit> {
    let text = |name: &str| {
        let missing = || Error::invalid(format!("an edit needs the string `{name}`"));
        value.get(name).and_then(Value::as_str).ok_or_else(missing)
    };
    let body = || value.get("body").cloned().ok_or_else(|| Error::invalid("an edit needs a `body`"));
    let id = DocumentId::new(text("id")?)?;
    Ok(match text("op")? {
        "insert" => Edit::Insert { id, body: body()? },
        "replace" => Edit::Replace { id, revision: revision(text("rev")?)?, body: body()? },
        "upsert" => Edit::Upsert { id, body: body()? },
        "delete" => Edit::Delete { id, revision: revision(text("rev")?)? },
        "update" => {
            let patch = match value.get("patch") {
                Some(operators) => Patch::parse(operators)?,
                None => Patch::new(),
            };
            let patch = match value.get("merge") {
                Some(Value::Object(fields)) => patch.merge(fields.clone()),
                _ => patch,
            };
            let revision = value.get("rev").and_then(Value::as_str).map(revision).transpose()?;
            Edit::Update { id, revision, patch }
        }
        other => return Err(Error::invalid(format!("there is no edit `{other}`")).into()),
    })
}

/// The rights that an edit needs if it is sent alone.
fn rights_of(edit: &Edit) -> RightsOf {
    match (edit, edit.id().is_design()) {
        (Edit::Delete { .. }, true) => RightsOf::DeleteDesign,
        (Edit::Delete { .. }, false) => RightsOf::DeleteDocument,
        (_, true) => RightsOf::PutDesign,
        (Edit::Update { .. }, false) => RightsOf::PatchDocument,
        (_, false) => RightsOf::PutDocument,
    }
}

fn open(call: &Call<'_>, rights: RightsOf, document: Option<&str>, edits: &[Edit]) -> Result<Arc<ServedDatabase>> {
    let served = call.open(rights, document)?;
    let is_deletion = |edit: &Edit| matches!(edit, Edit::Delete { .. });
    if !served.takes_writes() && edits.iter().all(is_deletion) {
        return Ok(call.server.wait(call.server.state.directory.open_to_free_space(call.request.database))?);
    }
    Ok(served)
}

/// Applies one edit; the result is its revision.
pub(super) fn edit(call: &Call<'_>) -> Result<Vec<u8>> {
    let edit = parse_edit(&call.arguments)?;
    let id = edit.id().as_str().to_owned();
    let served = open(call, rights_of(&edit), Some(&id), std::slice::from_ref(&edit))?;
    let record = |outcomes: &[EditOutcome]| match outcomes {
        [Ok(revision)] => Some(Value::from(revision.to_string())),
        _ => None,
    };
    match apply_once(call, &served, vec![edit], record)? {
        Applied::Before(value) => Ok(call.reply(&value)),
        Applied::Now(mut outcomes) => {
            let outcome = outcomes.pop().ok_or_else(|| Error::internal("an edit has no result"))?;
            Ok(call.reply(&Value::from(outcome?.to_string())))
        }
    }
}

/// Applies edits independently; the result has a revision or an error for each.
pub(super) fn bulk(call: &Call<'_>) -> Result<Vec<u8>> {
    let edits = call.list("edits")?.iter().map(parse_edit).collect::<Result<Vec<_>>>()?;
    let served = open(call, RightsOf::BulkDocs, None, &edits)?;
    let record = |outcomes: &[EditOutcome]| outcomes.iter().any(Result::is_ok).then(|| results(outcomes));
    Ok(call.reply(&match apply_once(call, &served, edits, record)? {
        Applied::Before(value) => value,
        Applied::Now(outcomes) => results(&outcomes),
    }))
}

/// The results of edits: a revision or an error for each.
fn results(outcomes: &[EditOutcome]) -> Value {
    let result = |outcome: &EditOutcome| match outcome {
        Ok(revision) => Value::from(revision.to_string()),
        Err(EditError::Library(error)) => error_to_value(error),
        Err(EditError::Refused(failure)) => error_to_value(&WireError::from(failure.clone()).0),
    };
    Value::Array(outcomes.iter().map(result).collect())
}

/// What became of the edits of a request.
enum Applied {
    Now(Vec<EditOutcome>),
    /// They were applied by an earlier request with the same key, with this result.
    Before(Value),
}

/// Applies edits, at most once if the request has a key. `result` is kept for later requests with the same key,
/// unless it is none.
fn apply_once(
    call: &Call<'_>,
    served: &ServedDatabase,
    edits: Vec<Edit>,
    result: impl Fn(&[EditOutcome]) -> Option<Value>,
) -> Result<Applied> {
    let options = call.write_options();
    let Some(key) = call.request.key else {
        return Ok(Applied::Now(apply_edits(served, edits, &options, None, |_| None)?));
    };
    let lanes = served.extension::<Lanes>();
    let outcomes = {
        let _lane = lanes.lock(&key);
        if let Some(result) = lanes.earlier_result(served.database(), &key)? {
            return Ok(Applied::Before(result));
        }
        let record = |outcomes: &[EditOutcome]| Some(lanes::record(&key, &result(outcomes)?));
        apply_edits(served, edits, &options, Some(&lanes::record_id(&key)), record)?
    };
    lanes.note(served.database(), &key);
    Ok(Applied::Now(outcomes))
}

/// Applies all edits or none, if all checks hold; the result is the revisions.
pub(super) fn transact(call: &Call<'_>) -> Result<Vec<u8>> {
    let edits = call.list("edits")?.iter().map(parse_edit).collect::<Result<Vec<_>>>()?;
    let served = open(call, RightsOf::Transact, None, &edits)?;
    let checks = call.list("checks")?.iter().map(Check::parse).collect::<Result<Vec<_>>>()?;
    let lanes = served.extension::<Lanes>();
    let key = call.request.key;
    let lane = key.as_ref().map(|key| lanes.lock(key));
    if let Some(key) = &key
        && let Some(result) = lanes.earlier_result(served.database(), key)?
    {
        return Ok(call.reply(&result));
    }
    let options = call.write_options();
    let prepared = crate::writes::prepare_edits(&served, edits, &options)?;
    let prepared = prepared.into_iter().collect::<Result<Vec<_>, _>>()?;
    let writes_design = prepared.iter().any(|edit| edit.id().is_design());
    let database = served.database().with_durability(options.durability);
    let written = options.validator.user.writing(|| {
        database.optimistic(|attempt| {
            checks.iter().try_for_each(|check| check.evaluate(attempt))?;
            let mut revisions = Vec::with_capacity(prepared.len());
            for edit in &prepared {
                revisions.push(Value::from(attempt.edit(edit.clone())?.to_string()));
            }
            let result = Value::Array(revisions);
            if let Some(key) = &key {
                attempt.put_local(&lanes::record_id(key), &lanes::record(key, &result))?;
            }
            Ok(result)
        })
    })?;
    drop(lane);
    if writes_design {
        served.extension::<crate::design::Validators>().invalidate();
    }
    if let Some(key) = &key {
        lanes.note(served.database(), key);
    }
    Ok(call.reply(&written))
}

/// A condition of a transaction.
enum Check {
    /// The document has this revision; `None`: it does not exist.
    Revision(DocumentId, Option<Revision>),
    /// So many documents match the query.
    Count(Object, u64),
    /// These documents match the query, at these revisions.
    Rows(Object, Vec<(String, String)>),
}

impl Check {
    fn parse(value: &Value) -> Result<Check> {
        let malformed = || Error::invalid("a check is {id, rev}, {id, absent}, {query, count} or {query, rows}");
        if let Some(id) = value.get("id").and_then(Value::as_str) {
            let expected = value.get("rev").and_then(Value::as_str).map(revision).transpose()?;
            return Ok(Check::Revision(DocumentId::new(id)?, expected));
        }
        let query = value.get("query").and_then(Value::as_object).ok_or_else(malformed)?.clone();
        if let Some(count) = value.get("count").and_then(Value::as_u64) {
            return Ok(Check::Count(query, count));
        }
        let rows = value.get("rows").and_then(Value::as_object).ok_or_else(malformed)?;
        let row = |(id, rev): (&str, &Value)| Some((id.to_owned(), rev.as_str()?.to_owned()));
        let mut rows = rows.iter().map(row).collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
        rows.sort_unstable();
        Ok(Check::Rows(query, rows))
    }

    fn evaluate(&self, attempt: &mut stemmadb::Attempt<'_>) -> stemmadb::Result<()> {
        let failed = |message: String| Error::conflict(message).with_hint("read again, then decide again");
        match self {
            Check::Revision(id, expected) => {
                let current = attempt.get(id.as_str())?.map(|document| *document.revision());
                match current == *expected {
                    true => Ok(()),
                    false => Err(failed(format!("document `{id}` changed since it was read"))),
                }
            }
            Check::Count(query, expected) => {
                let query = stemmadb::Query::parse(&Value::Object(query.clone()))?;
                let count = attempt.find(query)?.count()?;
                match count == *expected {
                    true => Ok(()),
                    false => Err(failed(format!("{count} documents match, not {expected}"))),
                }
            }
            Check::Rows(query, expected) => {
                let query = stemmadb::Query::parse(&Value::Object(query.clone()))?;
                let row = |document: stemmadb::Document| (document.id().to_string(), document.revision().to_string());
                let found = attempt.find(query.limit(expected.len() as u64 + 1))?.run()?;
                let mut found = found.map(|document| document.map(row)).collect::<stemmadb::Result<Vec<_>>>()?;
                found.sort_unstable();
                match found == *expected {
                    true => Ok(()),
                    false => Err(failed("the documents that match a query changed since it was read".to_owned())),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::call::object;
    use super::*;

    #[test]
    fn malformed_edits_are_refused() {
        for text in [
            "1",
            "{}",
            r#"{"op": "insert", "id": "a"}"#,
            r#"{"op": "replace", "id": "a", "body": {}}"#,
            r#"{"op": "delete", "id": "a", "rev": "x"}"#,
            r#"{"op": "steal", "id": "a"}"#,
            r#"{"op": "insert", "id": "_bad", "body": {}}"#,
        ] {
            assert!(parse_edit(&text.parse().unwrap()).is_err(), "{text}");
        }
        let check = object([("id", "a".into())]);
        assert!(matches!(Check::parse(&check), Ok(Check::Revision(_, None))));
        assert!(Check::parse(&object([("query", "a".into())])).is_err());
    }
}
