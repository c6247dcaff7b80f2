//! Writing documents: one edit, or several independent ones.

use std::collections::BTreeMap;

use stemmadb::{DocumentId, Edit, Error, Patch, Value};
use stemmadb_wire::error_to_value;

use super::super::call::{Call, revision};
use super::super::failure::{Result, WireError};
use super::super::lanes::{self, Lanes};
use super::super::opened::OpenedDatabase;
use super::super::rights::RightsOf;
use crate::directory::ServedDatabase;
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
    if call.delegated.is_some() {
        let positions = call.list("positions")?.iter().map(position).collect::<Option<Vec<_>>>().unwrap_or_default();
        if positions.len() != edits.len() {
            return Err(Error::invalid("`positions` is an array of the edits' positions in the whole request").into());
        }
        let lanes = served.own().extension::<Lanes>();
        let _lane = call.request.key.as_ref().map(|key| lanes.lock(key));
        let results = apply_part(call, &served, positions.into_iter().zip(edits).collect(), &options)?;
        return Ok(call.reply(&results.into_iter().map(|(_, result)| result).collect()));
    }
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
fn result_of(outcome: &EditOutcome) -> Value {
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
        if let Some(result) = lanes.earlier_result(call, served, &key)? {
            return Ok(Applied::Before(result));
        }
        let record = |outcomes: &[EditOutcome]| Some(lanes::record(&key, &result(outcomes)?));
        apply_edits(served, edits, options, Some(&lanes::record_id(&key)), record)?
    };
    lanes.note(served, &key);
    Ok(Applied::Now(outcomes))
}

fn position(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Applies the edits of a bulk that one shard of a virtual database has; returns their positions in the request and
/// their results. With a key, each is applied at most once: its record has the results by position. The lane is locked.
pub(super) fn apply_part(
    call: &Call<'_>,
    served: &ServedDatabase,
    part: Vec<(usize, Edit)>,
    options: &WriteOptions,
) -> Result<Vec<(usize, Value)>> {
    let (key, mut known) = (call.request.key, KnownResults::default());
    let record_id = key.as_ref().map(lanes::record_id);
    if let (Some(key), Some(id)) = (&key, &record_id) {
        let stored = lanes::stored_record(served.database(), id)?.into_iter().collect();
        lanes::of_write(stored, key)?.iter().for_each(|record| known.add(record));
    }
    let all: Vec<usize> = part.iter().map(|(at, _)| *at).collect();
    let (positions, edits): (Vec<usize>, Vec<Edit>) =
        part.into_iter().filter(|(at, _)| !known.0.contains_key(at)).unzip();
    if !edits.is_empty() {
        let record = |outcomes: &[EditOutcome]| {
            let key = key.as_ref().filter(|_| outcomes.iter().any(Result::is_ok))?;
            Some(lanes::record(key, &known.with(&positions, outcomes).to_value()))
        };
        let outcomes = apply_edits(served, edits, options, record_id.as_deref(), record)?;
        known = known.with(&positions, &outcomes);
    }
    Ok(all.into_iter().filter_map(|at| Some((at, known.0.get(&at)?.clone()))).collect())
}

/// The results of edits of a bulk that are known, by their positions in the request.
#[derive(Default)]
pub(super) struct KnownResults(pub(super) BTreeMap<usize, Value>);

impl KnownResults {
    /// Adds those of a record: pairs of a position and a result.
    pub(super) fn add(&mut self, record: &Value) {
        let pairs = record.get("result").and_then(Value::as_array).unwrap_or_default().iter();
        self.0.extend(pairs.filter_map(|pair| match pair.as_array()? {
            [at, result] => Some((position(at)?, result.clone())),
            _ => None,
        }));
    }

    /// With the results of the edits at these positions.
    fn with(&self, positions: &[usize], outcomes: &[EditOutcome]) -> Self {
        let new = positions.iter().copied().zip(outcomes.iter().map(result_of));
        KnownResults(self.0.clone().into_iter().chain(new).collect())
    }

    /// As it is recorded.
    fn to_value(&self) -> Value {
        let pair = |(at, result): (&usize, &Value)| Value::Array(vec![(*at as u64).into(), result.clone()]);
        self.0.iter().map(pair).collect()
    }
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
