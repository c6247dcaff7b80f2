//! Reading and writing several documents of all shards, and those of the past.

use std::collections::BTreeMap;

use stemmadb::{Edit, Error, Value};

use super::super::super::call::Call;
use super::super::super::failure::Result;
use super::super::super::lanes::{self, Lanes};
use super::super::super::opened::OpenedDatabase;
use super::super::super::rights::RightsOf;
use super::super::super::rows::{DocumentWriter, RowStream};
use super::super::documents::reply;
use super::super::edits::{parse_edit, result_of};
use super::super::past;
use super::divide;
use crate::auth::readable;
use crate::virtual_databases::Shard;
use crate::writes::{EditOutcome, apply_edits};

/// One row for each id, null if there is no such document; those of each shard as of one sequence.
pub(super) fn get_many(call: &Call<'_>) -> Result<Vec<u8>> {
    let (entered, restriction) = call.enter_restricted(RightsOf::BulkGet)?;
    let (ids, layout) = (call.texts("ids")?, entered.layout());
    let (mut rows, mut documents) = (RowStream::new(call), DocumentWriter::new(call));
    if entered.is_spread() {
        if entered.past().is_some() {
            return Err(call.unsupported_there());
        }
        let found = entered.open.database.get_many(&ids)?;
        drop(entered);
        for document in found {
            let document = readable(restriction.as_ref(), document)?;
            rows.add(|_, out| documents.write(document.as_ref(), out))?;
        }
        return Ok(rows.finish(&[]));
    }
    let mut snapshots = BTreeMap::new();
    for (index, _) in divide(&layout, &ids, |id| id) {
        let served = &layout.shards()[index];
        let snapshot = match entered.state_of(&Shard::Here(served.clone()))? {
            Some(state) => served.database().as_of(state)?,
            None => served.database().snapshot()?,
        };
        snapshots.insert(index, snapshot);
    }
    // Documents may change their shards from now on.
    drop(entered);
    for id in &ids {
        let snapshot = snapshots.get(&layout.index_of(id)).ok_or_else(|| Error::internal("a shard was not read"))?;
        let document = readable(restriction.as_ref(), snapshot.get(id)?)?;
        rows.add(|_, out| documents.write(document.as_ref(), out))?;
    }
    Ok(rows.finish(&[]))
}

/// Applies edits independently; the result has a revision or an error for each. With a key, each edit is applied at
/// most once: the record of a shard has the results of the edits that it got.
pub(super) fn bulk(call: &Call<'_>) -> Result<Vec<u8>> {
    let edits = call.list("edits")?.iter().map(parse_edit).collect::<Result<Vec<_>>>()?;
    let (entered, restriction) = call.enter_restricted(RightsOf::BulkDocs)?;
    if entered.is_spread() {
        return Err(call.unsupported_there());
    }
    let (layout, options) = (entered.layout(), call.write_options(restriction, true));
    let opened = OpenedDatabase::own_of(entered);
    let (lanes, key) = (opened.own().extension::<Lanes>(), call.request.key);
    let _lane = key.as_ref().map(|key| lanes.lock(key));
    let mut known = Known::default();
    if let Some(key) = &key {
        lanes.earlier_records(&opened, key)?.iter().for_each(|record| known.add(record));
    }
    let mut results: Vec<Option<Value>> = (0..edits.len()).map(|at| known.0.get(&at).cloned()).collect();
    let new = edits.into_iter().enumerate().filter(|(at, _)| !known.0.contains_key(at));
    for (index, part) in divide(&layout, new, |(_, edit)| edit.id().as_str()) {
        let (positions, edits): (Vec<usize>, Vec<Edit>) = part.into_iter().unzip();
        let served = &layout.shards()[index];
        let record = |outcomes: &[EditOutcome]| {
            let key = key.as_ref().filter(|_| outcomes.iter().any(Result::is_ok))?;
            Some(lanes::record(key, &known.with(&positions, outcomes)))
        };
        let record_id = key.as_ref().map(lanes::record_id);
        let outcomes = apply_edits(served, edits, &options, record_id.as_deref(), record)?;
        positions.iter().zip(&outcomes).for_each(|(at, outcome)| results[*at] = Some(result_of(outcome)));
    }
    if let Some(key) = &key {
        lanes.note(&opened, key);
    }
    Ok(call.reply(&Value::Array(results.into_iter().flatten().collect())))
}

/// The results of edits that earlier requests with the same key applied, by their positions in the request.
#[derive(Default)]
struct Known(BTreeMap<usize, Value>);

impl Known {
    /// Adds those of a record: pairs of a position and a result.
    fn add(&mut self, record: &Value) {
        let pairs = record.get("result").and_then(Value::as_array).unwrap_or_default().iter();
        self.0.extend(pairs.filter_map(|pair| match pair.as_array()? {
            [at, result] => Some((usize::try_from(at.as_u64()?).ok()?, result.clone())),
            _ => None,
        }));
    }

    /// What is recorded with the edits at these positions: a record replaces the one of an earlier request.
    fn with(&self, positions: &[usize], outcomes: &[EditOutcome]) -> Value {
        let pair = |at: usize, result: Value| Value::Array(vec![(at as u64).into(), result]);
        let new = positions.iter().zip(outcomes).map(|(at, outcome)| pair(*at, result_of(outcome)));
        self.0.iter().map(|(at, result)| pair(*at, result.clone())).chain(new).collect()
    }
}

/// A document as it was at a time, in the shard of then.
pub(super) fn document_at(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let restriction = call.restriction(RightsOf::History, Some(id))?;
    let opened = call.open_past_of(id, "at")?;
    let document = match call.past(&opened)? {
        Some(snapshot) => snapshot.get(id)?,
        None => return Err(Error::invalid("the argument `at` is missing").into()),
    };
    let newest = call.open_shard_of(id)?;
    let is_readable = past::may_read(&newest, id, restriction.as_ref())?;
    reply(call, readable(restriction.as_ref(), document.filter(|_| is_readable))?)
}

/// Writes the last revision of a deleted document again, in its shard.
pub(super) fn undelete(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateIndex, None)?;
    let opened = call.open_shard_of(call.text("id")?)?;
    past::undelete_in(call, &opened)
}
