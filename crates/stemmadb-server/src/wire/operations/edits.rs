//! Writing documents: one edit, or several independent ones.

use stemmadb::{DocumentId, Edit, Error, Patch, Value};
use stemmadb_wire::error_to_value;

use super::super::call::{Call, revision};
use super::super::failure::{Result, WireError};
use super::super::lanes::{self, Lanes};
use super::super::opened::OpenedDatabase;
use super::super::rights::RightsOf;
use crate::writes::{EditError, EditOutcome, WriteOptions, apply_edits};

impl From<EditError> for WireError {
    fn from(error: EditError) -> Self {
        Error::from(error).into()
    }
}

/// Parses an edit.
///
/// # Errors
/// `Invalid` if it is malformed.
pub(super) fn parse_edit(value: &Value) -> Result<Edit> {
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
        "detach" => Edit::Detach { id, revision: revision(text("rev")?)?, name: text("name")?.to_owned() },
        "update" => {
            let revision = value.get("rev").and_then(Value::as_str).map(revision).transpose()?;
            Edit::Update { id, revision, patch: parse_patch(value)? }
        }
        other => return Err(Error::invalid(format!("there is no edit `{other}`")).into()),
    })
}

/// Parses the fields `patch` and `merge`.
///
/// # Errors
/// `Invalid` if they are malformed.
pub(super) fn parse_patch(value: &Value) -> Result<Patch> {
    let patch = match value.get("patch") {
        Some(operators) => Patch::parse(operators)?,
        None => Patch::new(),
    };
    Ok(match value.get("merge") {
        Some(Value::Object(fields)) => patch.merge(fields.clone()),
        _ => patch,
    })
}

/// The rights that an edit needs if it is sent alone.
fn rights_of(edit: &Edit) -> RightsOf {
    match (edit, edit.id().is_design()) {
        (Edit::Delete { .. }, true) => RightsOf::DeleteDesign,
        (Edit::Delete { .. }, false) => RightsOf::DeleteDocument,
        (_, true) => RightsOf::PutDesign,
        (Edit::Update { .. }, false) => RightsOf::PatchDocument,
        (Edit::Detach { .. }, false) => RightsOf::DeleteFile,
        (_, false) => RightsOf::PutDocument,
    }
}

/// Checks rights, and opens the database for edits, which are limited to the documents that the user may write.
pub(super) fn open(
    call: &Call<'_>,
    rights: RightsOf,
    document: Option<&str>,
    edits: &[Edit],
) -> Result<(OpenedDatabase, WriteOptions)> {
    let (opened, restriction) = call.open_restricted(rights, document)?;
    let options = call.write_options(restriction, opened.entered().is_some());
    let is_deletion = |edit: &Edit| matches!(edit, Edit::Delete { .. });
    let may_free_space = opened.entered().is_none() && !edits.is_empty() && edits.iter().all(is_deletion);
    if may_free_space && !opened.takes_writes() {
        let directory = &call.server.state.directory;
        let served = call.server.wait(directory.open_to_free_space(call.request.database))?;
        return Ok((OpenedDatabase::new(served, None), options));
    }
    Ok((opened, options))
}

/// Applies one edit; the result is its revision.
pub(super) fn edit(call: &Call<'_>) -> Result<Vec<u8>> {
    let edit = parse_edit(&call.arguments)?;
    let id = edit.id().as_str().to_owned();
    let (served, options) = open(call, rights_of(&edit), Some(&id), std::slice::from_ref(&edit))?;
    apply(call, &served, edit, &options)
}

/// Applies one edit to an open database; the result is its revision.
pub(super) fn apply(call: &Call<'_>, served: &OpenedDatabase, edit: Edit, options: &WriteOptions) -> Result<Vec<u8>> {
    let record = |outcomes: &[EditOutcome]| match outcomes {
        [Ok(revision)] => Some(Value::from(revision.to_string())),
        _ => None,
    };
    match apply_once(call, served, vec![edit], options, record)? {
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
    let (served, options) = open(call, RightsOf::BulkDocs, None, &edits)?;
    let record = |outcomes: &[EditOutcome]| outcomes.iter().any(Result::is_ok).then(|| results(outcomes));
    Ok(call.reply(&match apply_once(call, &served, edits, &options, record)? {
        Applied::Before(value) => value,
        Applied::Now(outcomes) => results(&outcomes),
    }))
}

/// The results of edits: a revision or an error for each.
fn results(outcomes: &[EditOutcome]) -> Value {
    Value::Array(outcomes.iter().map(result_of).collect())
}

/// The result of an edit: a revision or an error.
pub(super) fn result_of(outcome: &EditOutcome) -> Value {
    match outcome {
        Ok(revision) => Value::from(revision.to_string()),
        Err(EditError::Library(error)) => error_to_value(error),
        Err(EditError::Refused(failure)) => error_to_value(&WireError::from(failure.clone()).error),
    }
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
    served: &OpenedDatabase,
    edits: Vec<Edit>,
    options: &WriteOptions,
    result: impl Fn(&[EditOutcome]) -> Option<Value>,
) -> Result<Applied> {
    let Some(key) = call.request.key else {
        return Ok(Applied::Now(apply_edits(served, edits, options, None, |_| None)?));
    };
    let lanes = served.own().extension::<Lanes>();
    let outcomes = {
        let _lane = lanes.lock(&key);
        if let Some(result) = lanes.earlier_result(served, &key)? {
            return Ok(Applied::Before(result));
        }
        let record = |outcomes: &[EditOutcome]| Some(lanes::record(&key, &result(outcomes)?));
        apply_edits(served, edits, options, Some(&lanes::record_id(&key)), record)?
    };
    lanes.note(served, &key);
    Ok(Applied::Now(outcomes))
}

#[cfg(test)]
mod tests {
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
    }
}
