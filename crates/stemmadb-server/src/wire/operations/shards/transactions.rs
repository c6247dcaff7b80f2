//! Transactions on documents of one bucket, updates of all documents that match, and batches.

use std::collections::BTreeMap;

use stemmadb::{Error, Object, Query, Value, field};

use super::super::super::call::Call;
use super::super::super::failure::Result;
use super::super::super::lanes::{self, Lanes};
use super::super::super::opened::OpenedDatabase;
use super::super::super::rights::RightsOf;
use super::super::edits::parse_edit;
use super::super::transactions::{
    BucketOf, Check, Ground, Step, UpdateOfMatching, commit, not_in_one_bucket, run_steps, write_batch,
};
use crate::auth::{Restriction, narrowed};
use crate::virtual_databases::{EnteredVirtual, Layout, Shard};
use crate::writes::edit_optimistically;

/// Applies all edits or none, if all checks hold; the result is the revisions. All documents are in one bucket.
pub(super) fn transact(call: &Call<'_>) -> Result<Vec<u8>> {
    let edits = call.list("edits")?.iter().map(parse_edit).collect::<Result<Vec<_>>>()?;
    let checks = call.list("checks")?.iter().map(Check::parse).collect::<Result<Vec<_>>>()?;
    let (entered, restriction) = call.enter_restricted(RightsOf::Transact)?;
    let ids = checks.iter().map(Check::id).chain(edits.iter().map(|edit| Some(edit.id().as_str())));
    let ids = ids.collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::invalid("a transaction of a virtual database has no checks of queries: they are about all shards")
            .with_hint("check the revisions of documents of the bucket that is written")
    })?;
    entered.check_one_bucket(ids.iter().copied())?;
    let first = ids.first().ok_or_else(|| Error::invalid("the transaction has neither checks nor edits"))?;
    let opened = call.part_of(entered, first, restriction.as_ref())?;
    commit(call, &opened, &call.write_options(restriction, true), &checks, &edits)
}

/// Runs steps: those that only read, in all shards; if some write, in one transaction on documents of one bucket.
pub(super) fn batch(call: &Call<'_>) -> Result<Vec<u8>> {
    let steps = Step::parse_all(call)?;
    let (entered, readable) = call.enter_restricted(RightsOf::Find)?;
    let readable = readable.as_ref();
    if !steps.iter().any(Step::writes) {
        let mut ground = Ground::Shards(entered.into_reading(), readable);
        return Ok(call.reply(&run_steps(call, &mut ground, &steps)?));
    }
    // The user may be allowed to write fewer documents than to read.
    let options = call.write_options(call.restriction(RightsOf::Transact, None)?, true);
    let id = steps.iter().find_map(Step::id).ok_or_else(|| {
        Error::invalid("a batch that writes to a virtual database names a document by its id, which tells the bucket")
    })?;
    check_bucket(&entered, id, &steps)?;
    let opened = call.part_of(entered, id, options.validator.restriction.as_ref())?;
    let bucket = opened.entered().map(|entered| BucketOf { entered, id });
    write_batch(call, &opened, &options, readable, &steps, bucket.as_ref())
}

/// Checks, of a batch whose shard is on another server, that its steps are about one bucket, which that server does not
/// know. One that is here is checked while it runs, when all ids are known.
fn check_bucket(entered: &EnteredVirtual, id: &str, steps: &[Step<'_>]) -> Result<()> {
    if let Shard::Here(_) = entered.shard_of(id) {
        return Ok(());
    }
    for step in steps {
        entered.check_one_bucket([id].into_iter().chain(step.ids().ok_or_else(not_in_one_bucket)?))?;
    }
    Ok(())
}

/// Updates or deletes all documents of a shard that match a query, or none, and then those of the next; the result is
/// how many changed. With a key, the record of a shard has their number, and says at which placement of the documents
/// it was written.
pub(super) fn update_where(call: &Call<'_>) -> Result<Vec<u8>> {
    let update = UpdateOfMatching::parse(call)?;
    let (entered, restriction) = call.enter_restricted(RightsOf::UpdateWhere)?;
    update.check()?;
    if entered.is_spread() {
        return Err(call.unsupported_there());
    }
    let (layout, options) = (entered.layout(), call.write_options(restriction, true));
    let opened = OpenedDatabase::own_of(entered);
    let (lanes, key) = (opened.own().extension::<Lanes>(), call.request.key);
    let _lane = key.as_ref().map(|key| lanes.lock(key));
    let records = key.as_ref().map_or(Ok(Vec::new()), |key| lanes.earlier_records(call, &opened, key))?;
    let mut done = Done::of(&records, &layout);
    if done.is_complete {
        return Ok(call.reply(&done.count.into()));
    }
    let readable = options.validator.restriction.as_ref();
    let queries = queries_of_shards(&opened, &layout, &update.query, readable)?;
    if !records.is_empty() && (!done.is_of_layout || queries.is_chosen) {
        return Err(done.interrupted().into());
    }
    let shard_count = queries.by_shard.len();
    for (index, query) in queries.by_shard {
        let name = &layout.names()[index];
        if done.shards.contains(name) {
            continue;
        }
        let served = &layout.shards()[index];
        let changed = edit_optimistically(served, &options, readable, |editing| {
            let count = update.apply(query.clone(), editing)?;
            if let Some(key) = &key {
                let result = done_in(name, count, shard_count, &layout);
                editing.put_local(&lanes::record_id(key), &lanes::record(key, &result))?;
            }
            Ok(count)
        });
        match changed {
            Ok(count) => done.count += count,
            Err(error) if done.count == 0 => return Err(error.into()),
            Err(error) => {
                let message = format!(
                    "{} documents were changed in other shards, but in one, none was: {}",
                    done.count,
                    error.message()
                );
                return Err(Error::new(error.kind(), message).into());
            }
        }
    }
    if let Some(key) = &key {
        lanes.note(&opened, key);
    }
    Ok(call.reply(&done.count.into()))
}

/// What is recorded in a shard whose documents were changed.
fn done_in(shard: &str, count: u64, shard_count: usize, layout: &Layout) -> Value {
    let mut done = Object::new();
    done.insert("shard", shard);
    done.insert("count", count);
    done.insert("shards", shard_count as u64);
    done.insert("epoch", layout.epoch().unwrap_or_default());
    Value::Object(done)
}

/// What earlier requests with the same key did.
struct Done {
    count: u64,
    shards: Vec<String>,
    /// Whether they changed the documents of all shards.
    is_complete: bool,
    /// Whether the shards had the same documents then.
    is_of_layout: bool,
}

impl Done {
    fn of(records: &[Value], layout: &Layout) -> Self {
        let results = || records.iter().filter_map(|record| record.get("result"));
        let number = |result: &Value, name: &str| result.get(name).and_then(Value::as_u64).unwrap_or(0);
        let shard = |result: &Value| result.get("shard").and_then(Value::as_str).map(str::to_owned);
        let shard_count = results().map(|result| number(result, "shards")).max().unwrap_or(u64::MAX);
        Done {
            count: results().map(|result| number(result, "count")).sum(),
            shards: results().filter_map(shard).collect(),
            is_complete: records.len() as u64 >= shard_count,
            is_of_layout: results().all(|result| Some(number(result, "epoch")) == layout.epoch()),
        }
    }

    /// The error for an update that can't be continued: it would change some documents twice.
    fn interrupted(&self) -> Error {
        let count = self.count;
        Error::conflict(format!("the update was interrupted after it had changed {count} documents of some shards"))
            .with_hint("send it as a new one, which may change these documents again")
    }
}

/// The query of each shard.
struct ShardQueries {
    by_shard: BTreeMap<usize, Query>,
    /// Whether they name documents that were chosen from all shards.
    is_chosen: bool,
}

/// The queries for the documents of each shard that match, as one query of all shards. With a limit, and while a shard
/// may have copies that another one owns, they name the documents.
fn queries_of_shards(
    opened: &OpenedDatabase,
    layout: &Layout,
    query: &Query,
    readable: Option<&Restriction>,
) -> Result<ShardQueries> {
    let is_chosen = query.row_range() != (None, 0);
    if !is_chosen && !layout.is_moving() {
        let all = (0..layout.shards().len()).map(|index| (index, query.clone()));
        return Ok(ShardQueries { by_shard: all.collect(), is_chosen });
    }
    let entered: &EnteredVirtual = opened.entered().ok_or_else(|| Error::internal("the database is not virtual"))?;
    let mut ids: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for document in entered.open.database.find(narrowed(readable, query.clone())).run()? {
        let id = document?.id().as_str().to_owned();
        ids.entry(layout.index_of(&id)).or_default().push(id);
    }
    let named = |(index, ids): (usize, Vec<String>)| {
        let ids = field("_id").one_of(ids.iter().map(String::as_str));
        (index, Query::new(query.selector().clone().and(ids)))
    };
    Ok(ShardQueries { by_shard: ids.into_iter().map(named).collect(), is_chosen })
}
