//! Queries: rows, counts, figures, plans.

use std::time::Duration;

use stemmadb::aggregation::GroupPaths;
use stemmadb::merging::RowKey;
use stemmadb::{Aggregation, Error, Find, Number, Query, Summary, Value};
use stemmadb_federation::FederatedFind;

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::opened::{NO_SNAPSHOT, OpenedDatabase};
use super::super::rights::RightsOf;
use super::super::rows::{DocumentWriter, RowStream, group_value};
use crate::auth::{Restriction, narrowed, refused};
use crate::virtual_databases::{FencedVirtual, Shard};

/// The number of row keys that are read at first.
const KEYS_FIRST: usize = 16;

/// The query of the request, with its limits and the server's, for documents that the user may read.
pub(super) fn query(call: &Call<'_>, restriction: Option<&Restriction>) -> Result<Query> {
    let query = call.arguments.get("query").ok_or_else(|| Error::invalid("the argument `query` is missing"))?;
    let mut query = Query::parse(query)?.cancelled_by(&call.running.cancellation);
    if let Some(time) = time_limit(call)? {
        query = query.time_limit(time);
    }
    if let Some(key) = call.arguments.get("after_key") {
        query = query.after_key(RowKey::from_value(key)?);
    }
    if let Some(count) = call.optional_number("rows_max")? {
        query = query.rows_max(count);
    }
    if let Some(bytes) = call.optional_number("memory_max")? {
        if restriction.is_some() {
            // The sets of documents that a query needs contain hidden ones.
            return Err(refused("a limit of a query's memory (`memory_max`)").into());
        }
        query = query.memory_max(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    Ok(narrowed(restriction, query))
}

/// The shorter of the client's time limit and the server's.
fn time_limit(call: &Call<'_>) -> Result<Option<Duration>> {
    let requested = call.optional_number("time_ms")?.map(Duration::from_millis);
    let configured = call.server.state.config.limits.query_time;
    Ok(requested.into_iter().chain(configured).min())
}

/// A query of one database, or of all shards of a virtual one.
enum CallFind {
    One(Box<Find>),
    Shards(Box<FederatedFind>, FencedVirtual),
}

/// Calls a method that both kinds of queries have.
macro_rules! either {
    ($find:ident, $query:ident => $call:expr) => {
        match $find {
            CallFind::One($query) => $call,
            CallFind::Shards($query, _fence) => $call,
        }
    };
}

impl CallFind {
    /// Opens the database of the request, and builds its query for documents that the user may read.
    fn open(call: &Call<'_>, rights: RightsOf) -> Result<(Self, Option<Restriction>)> {
        if call.is_virtual() {
            let (entered, restriction) = call.enter_restricted(rights)?;
            let database = entered.into_reading();
            let find = Self::in_shards(call, database, query(call, restriction.as_ref())?)?;
            return Ok((find, restriction));
        }
        let (served, restriction) = call.open_restricted(rights, None)?;
        let find = find_on(call, &served, restriction.as_ref())?;
        Ok((CallFind::One(Box::new(find)), restriction))
    }

    fn in_shards(call: &Call<'_>, database: FencedVirtual, query: Query) -> Result<Self> {
        match query.first_after() {
            None => Ok(CallFind::Shards(Box::new(database.find(query)), database)),
            Some(_) => Err(call.unsupported("leave `after_key` out, and continue with the token")),
        }
    }
}

fn find_on(call: &Call<'_>, served: &OpenedDatabase, restriction: Option<&Restriction>) -> Result<Find> {
    let query = query(call, restriction)?;
    Ok(match call.past(served)? {
        Some(snapshot) => snapshot.find(query),
        // A page of a restricted user is never one of the past, as its token may be forged.
        None if restriction.is_some() => served.database().snapshot()?.find(query),
        None => served.database().find(query),
    })
}

/// Keeps a snapshot for further reads of this user, each of which applies the user's restriction.
pub(super) fn open_snapshot(call: &Call<'_>) -> Result<Vec<u8>> {
    if call.is_virtual() {
        call.restriction(RightsOf::Transact, None)?;
        return Err(call.unsupported(NO_SNAPSHOT));
    }
    let (served, _) = call.open_restricted(RightsOf::Transact, None)?;
    let wire = &call.server.state.config.wire;
    let snapshot = served.database().snapshot()?;
    let sequence = snapshot.sequence().get();
    let (user, name) = (call.identity.user.name.as_deref(), call.request.database);
    let number = call.server.snapshots.open(snapshot, name, user, wire.snapshot_time, wire.snapshot_count)?;
    Ok(call.reply(&object([("snapshot", number.into()), ("sequence", sequence.into())])))
}

pub(super) fn close_snapshot(call: &Call<'_>) -> Result<Vec<u8>> {
    call.restriction(RightsOf::Transact, None)?;
    if let Some(number) = call.optional_number("snapshot")? {
        call.server.snapshots.close(number, call.identity.user.name.as_deref());
    }
    Ok(call.reply(&Value::Null))
}

/// Streams the rows of a query: documents, ids or values.
pub(super) fn find(call: &Call<'_>) -> Result<Vec<u8>> {
    let (find, restriction) = match CallFind::open(call, RightsOf::Find)? {
        (CallFind::One(find), restriction) => (*find, restriction),
        (CallFind::Shards(find, _fence), restriction) => return find_in_shards(call, *find, restriction.as_ref()),
    };
    let mut rows = RowStream::new(call);
    let (token, documents_read) = match call.optional_text("shape").unwrap_or("documents") {
        "documents" => {
            let (mut found, mut documents) = (find.run()?, DocumentWriter::new(call));
            for document in found.by_ref() {
                let document = document?;
                rows.add(|_, out| documents.write(Some(&document), out))?;
            }
            (found.token()?, found.documents_read())
        }
        "ids" => {
            let mut found = find.ids()?;
            for id in found.by_ref() {
                let id = Value::from(id?.as_str());
                rows.add_value(&id)?;
            }
            (found.token()?, found.documents_read())
        }
        "values" => {
            let mut found = find.values()?;
            for value in found.by_ref() {
                rows.add_value(&value?)?;
            }
            (found.token()?, found.documents_read())
        }
        "keys" => return keys(find, rows, restriction.is_some()),
        other => return Err(Error::invalid(format!("there are no rows of shape `{other}`")).into()),
    };
    let token = token.map_or(Value::Null, Value::from);
    // The number of documents read would reveal how many hidden ones there are.
    let documents_read = if restriction.is_some() { 0 } else { documents_read };
    Ok(rows.finish(&[("token", token), ("read", documents_read.into())]))
}

/// Streams the rows of a query of all shards.
fn find_in_shards(call: &Call<'_>, find: FederatedFind, restriction: Option<&Restriction>) -> Result<Vec<u8>> {
    let query = query(call, restriction)?;
    let (mut rows, mut documents) = (RowStream::new(call), DocumentWriter::new(call));
    let shape = call.optional_text("shape").unwrap_or("documents");
    if !matches!(shape, "documents" | "ids" | "values") {
        return Err(call.unsupported("find documents, ids or values"));
    }
    let mut found = find.run()?;
    for document in found.by_ref() {
        let document = document?;
        match shape {
            "ids" => rows.add_value(&document.id().as_str().into())?,
            "values" => rows.add_value(&query.project(&document)?)?,
            _ => rows.add(|_, out| documents.write(Some(&document), out))?,
        }
    }
    let token = found.token()?.map_or(Value::Null, Value::from);
    Ok(rows.finish(&[("token", token), ("read", 0.into())]))
}

/// Streams the keys of rows, and the sequence as of which further pages can be read.
fn keys(find: Find, mut rows: RowStream<'_>, is_restricted: bool) -> Result<Vec<u8>> {
    let mut found = find.keys(KEYS_FIRST)?;
    for row in found.by_ref() {
        rows.add_value(&row?.key.to_value())?;
    }
    // A page of a restricted user is never one of the past.
    let at = found.page_sequence().filter(|_| !is_restricted);
    Ok(rows.finish(&[("at", at.map_or(Value::Null, |at| at.get().into()))]))
}

pub(super) fn count(call: &Call<'_>) -> Result<Vec<u8>> {
    let (find, _) = CallFind::open(call, RightsOf::Find)?;
    Ok(call.reply(&Value::from(either!(find, find => find.count()?))))
}

/// The distinct values of a path.
pub(super) fn distinct(call: &Call<'_>) -> Result<Vec<u8>> {
    let ((find, _), path) = (CallFind::open(call, RightsOf::Aggregate)?, call.text("path")?);
    Ok(call.reply(&Value::Array(either!(find, find => find.distinct(path)?))))
}

/// Count, sum, minimum and maximum of the numbers at a path.
pub(super) fn summary(call: &Call<'_>) -> Result<Vec<u8>> {
    let ((find, _), path) = (CallFind::open(call, RightsOf::Aggregate)?, call.text("path")?);
    Ok(call.reply(&summary_value(&either!(find, find => find.summary(path)?))))
}

fn summary_value(summary: &Summary) -> Value {
    let number = |number: Option<Number>| number.map_or(Value::Null, Value::Number);
    object([
        ("count", summary.count.into()),
        ("sum", number(summary.sum)),
        ("min", number(summary.min)),
        ("max", number(summary.max)),
    ])
}

/// The smallest or largest value at a path: an array with it, empty if there is none.
pub(super) fn extreme(call: &Call<'_>) -> Result<Vec<u8>> {
    let ((find, _), path) = (CallFind::open(call, RightsOf::Aggregate)?, call.text("path")?);
    let largest = call.flag("largest");
    let value = either!(find, find => if largest { find.max(path)? } else { find.min(path)? });
    Ok(call.reply(&Value::Array(value.into_iter().collect())))
}

/// The values at paths: rows of a value and its number of documents, or a summary of the numbers at another path.
pub(super) fn group_by(call: &Call<'_>) -> Result<Vec<u8>> {
    let ((find, _), paths) = (CallFind::open(call, RightsOf::Aggregate)?, GroupPaths::from(call.texts("paths")?));
    let mut rows = RowStream::new(call);
    match call.optional_text("summary") {
        None => {
            let counts = either!(find, find => find.group_by(paths).counts()?);
            counts.into_iter().try_for_each(|(key, count)| rows.add_value(&[key, count.into()].into()))?
        }
        Some(path) => {
            for (key, summary) in either!(find, find => find.group_by(paths).summaries(path)?) {
                rows.add_value(&[key, summary_value(&summary)].into())?;
            }
        }
    }
    Ok(rows.finish(&[]))
}

/// The rows of an aggregation: an array of groups, each its key and its figures.
pub(super) fn aggregate(call: &Call<'_>) -> Result<Vec<u8>> {
    if call.is_virtual() {
        return aggregate_shards(call);
    }
    let (served, restriction) = call.open_restricted(RightsOf::Aggregate, None)?;
    let request = call.arguments.get("aggregation").ok_or_else(|| Error::invalid("`aggregation` is missing"))?;
    let mut aggregation = Aggregation::parse(request)?.cancelled_by(&call.running.cancellation);
    if let Some(time) = time_limit(call)? {
        aggregation = aggregation.time_limit(time);
    }
    if let Some(restriction) = restriction {
        aggregation = aggregation.narrowed(restriction.selector());
    }
    let snapshot = match call.past(&served)? {
        Some(snapshot) => snapshot,
        None => served.database().snapshot()?,
    };
    if call.flag("partial") {
        return Ok(call.reply(&aggregation.partial(&snapshot)?.to_value()));
    }
    let mut rows = RowStream::new(call);
    for group in aggregation.rows(&snapshot)? {
        rows.add_value(&group_value(group))?;
    }
    Ok(rows.finish(&[]))
}

/// The rows of an aggregation over all shards.
fn aggregate_shards(call: &Call<'_>) -> Result<Vec<u8>> {
    let (entered, restriction) = call.enter_restricted(RightsOf::Aggregate)?;
    if call.flag("partial") {
        return Err(call.unsupported("leave `partial` out"));
    }
    let request = call.arguments.get("aggregation").ok_or_else(|| Error::invalid("`aggregation` is missing"))?;
    let database = entered.into_reading();
    let mut aggregation = database.aggregation(request);
    if let Some(time) = time_limit(call)? {
        aggregation = aggregation.deadline(time);
    }
    if let Some(restriction) = restriction {
        aggregation = aggregation.within(restriction.selector());
    }
    let mut rows = RowStream::new(call);
    for group in aggregation.rows()? {
        rows.add_value(&group_value(group))?;
    }
    Ok(rows.finish(&[]))
}

/// The plans of a query in all shards, as text.
fn explain_in_shards(call: &Call<'_>) -> Result<Vec<u8>> {
    let entered = call.enter_all(RightsOf::Explain)?;
    let (query, layout) = (query(call, None)?, entered.layout());
    let mut plans = String::new();
    for (name, shard) in layout.names().iter().zip(layout.all()) {
        let Shard::Here(served) = shard else { return Err(call.unsupported_there()) };
        let find = served.database().find(query.clone());
        let explanation = if call.flag("analyze") { find.explain_analyze()? } else { find.explain()? };
        plans.push_str(&format!("{name}:\n{explanation}\n"));
    }
    Ok(call.reply(&Value::from(plans)))
}

/// The plan of a query, as text.
pub(super) fn explain(call: &Call<'_>) -> Result<Vec<u8>> {
    if call.is_virtual() {
        return explain_in_shards(call);
    }
    let served = call.open(RightsOf::Explain, None)?;
    let find = find_on(call, &served, None)?;
    let explanation = if call.flag("analyze") { find.explain_analyze()? } else { find.explain()? };
    Ok(call.reply(&Value::from(explanation.to_string())))
}
