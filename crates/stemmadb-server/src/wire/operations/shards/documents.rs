//! Reading and writing several documents of all shards, and those of the past.

use std::collections::BTreeMap;

use stemmadb::{Error, Value};

use super::super::super::call::Call;
use super::super::super::failure::Result;
use super::super::super::lanes::Lanes;
use super::super::super::opened::OpenedDatabase;
use super::super::super::rights::RightsOf;
use super::super::super::rows::{DocumentWriter, RowStream};
use super::super::documents::reply;
use super::super::edits::{KnownResults, apply_part, parse_edit};
use super::super::past;
use super::divide;
use super::elsewhere::apply_there;
use crate::auth::readable;
use crate::virtual_databases::Shard;

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
    let (open, layout) = (entered.open.clone(), entered.layout());
    let options = call.write_options(restriction.clone(), true);
    let opened = OpenedDatabase::own_of(entered);
    let (lanes, key) = (opened.own().extension::<Lanes>(), call.request.key);
    let _lane = key.as_ref().map(|key| lanes.lock(key));
    let mut known = KnownResults::default();
    if let Some(key) = &key {
        lanes.earlier_records(call, &opened, key)?.iter().for_each(|record| known.add(record));
    }
    let count = edits.len();
    let new: Vec<_> = edits.into_iter().enumerate().filter(|(at, _)| !known.0.contains_key(at)).collect();
    for (index, part) in divide(&layout, new, |(_, edit)| edit.id().as_str()) {
        let results = match &layout.all()[index] {
            Shard::Here(served) => apply_part(call, served, part, &options)?,
            Shard::There(remote) => {
                let positions: Vec<usize> = part.iter().map(|(at, _)| *at).collect();
                apply_there(call, &open, remote, restriction.as_ref(), positions)?
            }
        };
        known.0.extend(results);
    }
    if let Some(key) = &key {
        lanes.note(&opened, key);
    }
    let results: Vec<Value> = known.0.into_values().collect();
    match results.len() == count {
        true => Ok(call.reply(&Value::Array(results))),
        false => Err(Error::internal("a shard returned no result of an edit").into()),
    }
}

/// A document as it was at a time, in the shard of then.
pub(super) fn document_at(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let restriction = call.restriction(RightsOf::History, Some(id))?;
    let opened = call.open_past_of(id, "at", restriction.as_ref())?;
    let document = match call.past(&opened)? {
        Some(snapshot) => snapshot.get(id)?,
        None => return Err(Error::invalid("the argument `at` is missing").into()),
    };
    let newest = call.open_shard_of(id, None)?;
    let is_readable = past::may_read(&newest, id, restriction.as_ref())?;
    reply(call, readable(restriction.as_ref(), document.filter(|_| is_readable))?)
}

/// Writes the last revision of a deleted document again, in its shard.
pub(super) fn undelete(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateIndex, None)?;
    let opened = call.open_shard_of(call.text("id")?, None)?;
    past::undelete_in(call, &opened)
}
