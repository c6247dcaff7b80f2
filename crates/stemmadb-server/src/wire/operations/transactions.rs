//! Transactions: checks and edits, updates of all documents that match, and batches whose steps use earlier results.

use std::borrow::Cow;

use stemmadb::{
    Aggregation, Document, DocumentId, Edit, Error, Object, Patch, Query, Revision, Selector, Snapshot, Value, all_of,
    field,
};

use super::super::call::{Call, revision};
use super::super::failure::{Result, WireError};
use super::super::lanes::{self, Lanes};
use super::super::opened::OpenedDatabase;
use super::super::rights::RightsOf;
use super::super::rows::{document_value, group_value};
use super::edits::{open, parse_edit, parse_patch};
use crate::auth::{Restriction, narrowed, readable};
use crate::documents::COUNT_MAX;
use crate::error::library_error;
use crate::virtual_databases::{EnteredVirtual, FencedVirtual};
use crate::writes::{Editing, WriteOptions, edit_optimistically};

/// The most documents that the steps of a batch return: they are stored with the batch's write key.
const BATCH_ROWS_MAX: u64 = 1000;
/// The most steps of a batch.
const STEPS_MAX: usize = 1000;

type LibraryResult<T> = stemmadb::Result<T>;

/// Runs an optimistic transaction, at most once if the request has a write key; `work` returns the result. It reads
/// the documents of `readable`.
fn once(
    call: &Call<'_>,
    served: &OpenedDatabase,
    options: &WriteOptions,
    readable: Option<&Restriction>,
    mut work: impl FnMut(&mut Editing<'_, '_>) -> LibraryResult<Value>,
) -> Result<Vec<u8>> {
    let lanes = served.own().extension::<Lanes>();
    let key = call.request.key;
    let lane = key.as_ref().map(|key| lanes.lock(key));
    if let Some(key) = &key
        && let Some(result) = lanes.earlier_result(call, served, key)?
    {
        return Ok(call.reply(&result));
    }
    let result = edit_optimistically(served, options, readable, |editing| {
        let result = work(editing)?;
        if let Some(key) = &key {
            editing.put_local(&lanes::record_id(key), &lanes::record(key, &result))?;
        }
        Ok(result)
    })?;
    drop(lane);
    if let Some(key) = &key {
        lanes.note(served, key);
    }
    Ok(call.reply(&result))
}

/// Applies all edits or none, if all checks hold; the result is the revisions.
pub(super) fn transact(call: &Call<'_>) -> Result<Vec<u8>> {
    let edits = call.list("edits")?.iter().map(parse_edit).collect::<Result<Vec<_>>>()?;
    let (served, options) = open(call, RightsOf::Transact, None, &edits)?;
    let checks = call.list("checks")?.iter().map(Check::parse).collect::<Result<Vec<_>>>()?;
    commit(call, &served, &options, &checks, &edits)
}

/// Applies all edits or none, if all checks hold; the result is the revisions.
pub(super) fn commit(
    call: &Call<'_>,
    served: &OpenedDatabase,
    options: &WriteOptions,
    checks: &[Check],
    edits: &[Edit],
) -> Result<Vec<u8>> {
    once(call, served, options, options.validator.restriction.as_ref(), |editing| {
        checks.iter().try_for_each(|check| check.evaluate(&mut Ground::Transaction(editing, None)))?;
        let revision = |edit: &Edit| Ok(Value::from(editing.edit(edit.clone())?.to_string()));
        edits.iter().map(revision).collect()
    })
}

/// What an update of all matching documents does to each of them.
pub(super) struct UpdateOfMatching {
    pub(super) query: Query,
    /// `None`: it is deleted.
    patch: Option<Patch>,
}

impl UpdateOfMatching {
    /// Parses the arguments of a request.
    ///
    /// # Errors
    /// `Invalid` if they are malformed.
    pub(super) fn parse(call: &Call<'_>) -> Result<Self> {
        let query = call.arguments.get("query").ok_or_else(|| Error::invalid("the argument `query` is missing"))?;
        let query = Query::parse(query)?.cancelled_by(&call.running.cancellation);
        let patch = if call.flag("delete") { None } else { Some(parse_patch(&call.arguments)?) };
        Ok(UpdateOfMatching { query, patch })
    }

    /// Checks the patch, after rights were checked.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub(super) fn check(&self) -> Result<()> {
        Ok(self.patch.as_ref().map_or(Ok(()), Patch::check)?)
    }

    /// Changes the documents that match a query in a transaction; returns how many.
    ///
    /// # Errors
    /// Those of the query and of the edits; `Invalid` if too many documents would change.
    pub(super) fn apply(&self, query: Query, editing: &mut Editing<'_, '_>) -> LibraryResult<u64> {
        let mut edits = Vec::new();
        for document in editing.find(query)?.run()? {
            edits.extend(edit_of(&document?, self.patch.as_ref())?);
            if edits.len() > COUNT_MAX {
                let message = format!("more than {COUNT_MAX} documents would change");
                return Err(Error::invalid(message).with_hint("set a limit, and repeat the call"));
            }
        }
        let count = edits.len() as u64;
        edits.into_iter().try_for_each(|edit| editing.edit(edit).map(drop))?;
        Ok(count)
    }
}

/// Updates or deletes all documents that match a query, or none; the result is how many changed.
pub(super) fn update_where(call: &Call<'_>) -> Result<Vec<u8>> {
    let update = UpdateOfMatching::parse(call)?;
    let (served, options) = open(call, RightsOf::UpdateWhere, None, &[])?;
    update.check()?;
    once(call, &served, &options, options.validator.restriction.as_ref(), |editing| {
        Ok(update.apply(update.query.clone(), editing)?.into())
    })
}

/// The edit of a document that matches; `None` if the patch changes nothing.
fn edit_of(document: &Document, patch: Option<&Patch>) -> LibraryResult<Option<Edit>> {
    let (id, revision) = (document.id().clone(), *document.revision());
    let Some(patch) = patch else { return Ok(Some(Edit::Delete { id, revision })) };
    let body = document.value()?;
    let changes = patch.apply(&body).map_err(|error| error.within(format!("document `{id}`")))? != body;
    Ok(changes.then(|| Edit::Update { id, revision: Some(revision), patch: patch.clone() }))
}

/// Runs steps in one transaction; the result has one element for each.
pub(super) fn batch(call: &Call<'_>) -> Result<Vec<u8>> {
    let steps = Step::parse_all(call)?;
    let (served, readable) = call.open_restricted(RightsOf::Find, None)?;
    let readable = readable.as_ref();
    if steps.iter().any(Step::writes) {
        // The user may be allowed to write fewer documents than to read.
        let options = call.write_options(call.restriction(RightsOf::Transact, None)?, false);
        return write_batch(call, &served, &options, readable, &steps, None);
    }
    let mut ground = Ground::Snapshot(served.database().snapshot()?, readable);
    Ok(call.reply(&run_steps(call, &mut ground, &steps)?))
}

/// Runs steps of which some write in one transaction; of a virtual database, one of documents of a bucket.
pub(super) fn write_batch(
    call: &Call<'_>,
    served: &OpenedDatabase,
    options: &WriteOptions,
    readable: Option<&Restriction>,
    steps: &[Step<'_>],
    bucket: Option<&BucketOf<'_>>,
) -> Result<Vec<u8>> {
    once(call, served, options, readable, |editing| run_steps(call, &mut Ground::Transaction(editing, bucket), steps))
}

/// What the steps of a batch read, and perhaps write.
pub(super) enum Ground<'e, 'a, 'b> {
    /// In a virtual database, only of the documents of a bucket.
    Transaction(&'e mut Editing<'a, 'b>, Option<&'e BucketOf<'e>>),
    /// For steps that only read: nothing has to be remembered of what they read. With the documents that the user may
    /// read.
    Snapshot(Snapshot, Option<&'e Restriction>),
    /// As a snapshot, of all shards of a virtual database.
    Shards(FencedVirtual, Option<&'e Restriction>),
}

/// The bucket of a document of a virtual database.
pub(super) struct BucketOf<'a> {
    pub(super) entered: &'a EnteredVirtual,
    pub(super) id: &'a str,
}

impl BucketOf<'_> {
    /// Checks that a document is in the bucket.
    fn check(&self, id: &str) -> LibraryResult<()> {
        self.entered.check_one_bucket([self.id, id]).map_err(|failure| library_error(&failure))
    }
}

/// The error for a step that reads documents of all shards in a transaction.
pub(super) fn not_in_one_bucket() -> Error {
    Error::invalid("a batch that writes to a virtual database reads documents of one bucket, by their ids")
        .with_hint("find documents before, in a batch that only reads, and check their revisions in this one")
}

/// The documents that a query finds.
type FoundDocuments = Box<dyn Iterator<Item = LibraryResult<Document>>>;

impl Ground<'_, '_, '_> {
    fn get(&mut self, id: &str) -> LibraryResult<Option<Document>> {
        let (document, restriction) = match self {
            Ground::Transaction(editing, bucket) => {
                bucket.map_or(Ok(()), |bucket| bucket.check(id))?;
                return editing.get(id);
            }
            Ground::Snapshot(snapshot, restriction) => (snapshot.get(id)?, restriction),
            Ground::Shards(database, restriction) => (database.open.database.get(id)?, restriction),
        };
        readable(*restriction, document).map_err(|failure| library_error(&failure))
    }

    fn documents(&mut self, query: Query) -> LibraryResult<FoundDocuments> {
        Ok(match self {
            Ground::Transaction(_, Some(_)) => return Err(not_in_one_bucket()),
            Ground::Transaction(editing, None) => Box::new(editing.find(query)?.run()?),
            Ground::Snapshot(snapshot, restriction) => Box::new(snapshot.find(narrowed(*restriction, query)).run()?),
            Ground::Shards(database, restriction) => Box::new(database.find(narrowed(*restriction, query)).run()?),
        })
    }

    fn count(&mut self, query: Query) -> LibraryResult<u64> {
        match self {
            Ground::Transaction(_, Some(_)) => Err(not_in_one_bucket()),
            Ground::Transaction(editing, None) => editing.find(query)?.count(),
            Ground::Snapshot(snapshot, restriction) => snapshot.find(narrowed(*restriction, query)).count(),
            Ground::Shards(database, restriction) => database.find(narrowed(*restriction, query)).count(),
        }
    }

    fn aggregate(&mut self, call: &Call<'_>, aggregation: &Value) -> LibraryResult<Vec<(Value, Object)>> {
        let parsed = || Ok::<_, Error>(Aggregation::parse(aggregation)?.cancelled_by(&call.running.cancellation));
        match self {
            Ground::Transaction(_, Some(_)) => Err(not_in_one_bucket()),
            Ground::Transaction(editing, None) => editing.aggregate(parsed()?),
            Ground::Snapshot(snapshot, None) => parsed()?.rows(snapshot),
            Ground::Snapshot(snapshot, Some(restriction)) => parsed()?.narrowed(restriction.selector()).rows(snapshot),
            Ground::Shards(database, None) => database.aggregation(aggregation).rows(),
            Ground::Shards(database, Some(restriction)) => {
                database.aggregation(aggregation).within(restriction.selector()).rows()
            }
        }
    }

    fn edit(&mut self, edit: Edit) -> LibraryResult<Revision> {
        match self {
            Ground::Transaction(editing, bucket) => {
                bucket.map_or(Ok(()), |bucket| bucket.check(edit.id().as_str()))?;
                editing.edit(edit)
            }
            Ground::Snapshot(..) | Ground::Shards(..) => {
                Err(Error::internal("a batch that only reads has a step that writes"))
            }
        }
    }
}

pub(super) fn run_steps(call: &Call<'_>, ground: &mut Ground<'_, '_, '_>, steps: &[Step<'_>]) -> LibraryResult<Value> {
    let (mut results, mut rows_left) = (Vec::with_capacity(steps.len()), BATCH_ROWS_MAX);
    for (at, step) in steps.iter().enumerate() {
        let result = step.run(call, ground, &results, &mut rows_left);
        results.push(result.map_err(|error| error.within(format!("step {at}")))?);
    }
    Ok(Value::Array(results))
}

/// A step of a batch: its arguments, and which of them are results of earlier steps.
pub(super) struct Step<'a> {
    arguments: &'a Value,
    op: &'a str,
    /// Where to put the value, the step that has it, and where it is in that step's result.
    from: Vec<(&'a str, usize, &'a str)>,
}

impl<'a> Step<'a> {
    /// Parses the steps of a request.
    ///
    /// # Errors
    /// `Invalid` if they are malformed, or too many.
    pub(super) fn parse_all(call: &'a Call<'_>) -> Result<Vec<Step<'a>>> {
        let steps = call.list("steps")?.iter().map(Step::parse).collect::<Result<Vec<_>>>()?;
        match steps.len() > STEPS_MAX {
            true => Err(Error::invalid(format!("a batch has at most {STEPS_MAX} steps")).into()),
            false => Ok(steps),
        }
    }

    /// The id of its document, if it does not depend on earlier results.
    pub(super) fn id(&self) -> Option<&'a str> {
        self.arguments.get("id").and_then(Value::as_str).filter(|_| self.from.iter().all(|(to, ..)| *to != "id"))
    }

    fn parse(arguments: &'a Value) -> Result<Step<'a>> {
        let malformed = || Error::invalid("a step has an `op`, arguments, and `from`: {\"path\": [step, \"path\"]}");
        let op = arguments.get("op").and_then(Value::as_str).ok_or_else(malformed)?;
        let mut from = Vec::new();
        for (to, reference) in arguments.get("from").and_then(Value::as_object).into_iter().flat_map(Object::iter) {
            let [step, path] = reference.as_array().ok_or_else(malformed)? else { return Err(malformed().into()) };
            let step = step.as_u64().and_then(|step| usize::try_from(step).ok()).ok_or_else(malformed)?;
            Patch::new().set(to, Value::Null).check()?;
            from.push((to, step, path.as_str().ok_or_else(malformed)?));
        }
        Ok(Step { arguments, op, from })
    }

    /// The ids of its documents; `None` if they are not all known before it runs.
    pub(super) fn ids(&self) -> Option<Vec<&'a str>> {
        match self.op {
            "find" | "count" | "aggregate" => None,
            "require" => Some(Vec::new()),
            "get_many" if self.from.is_empty() => {
                self.arguments.get("ids")?.as_array()?.iter().map(Value::as_str).collect()
            }
            "get_many" => None,
            _ => self.id().map(|id| vec![id]),
        }
    }

    pub(super) fn writes(&self) -> bool {
        !matches!(self.op, "get" | "get_many" | "find" | "count" | "aggregate" | "check" | "require")
    }

    /// The arguments, with results of earlier steps in their places.
    fn resolved(&self, results: &[Value]) -> LibraryResult<Cow<'a, Value>> {
        if self.from.is_empty() {
            return Ok(Cow::Borrowed(self.arguments));
        }
        let mut arguments = self.arguments.clone();
        arguments.as_object_mut().map(|arguments| arguments.remove("from"));
        for (to, step, path) in &self.from {
            let result =
                results.get(*step).ok_or_else(|| Error::invalid(format!("step {step} is not an earlier one")))?;
            let value = value_at(result, path)
                .ok_or_else(|| Error::not_found(format!("the result of step {step} has no `{path}`")))?;
            arguments = Patch::new().set(to, value).apply(&arguments)?;
        }
        Ok(Cow::Owned(arguments))
    }

    fn run(
        &self,
        call: &Call<'_>,
        ground: &mut Ground<'_, '_, '_>,
        results: &[Value],
        rows_left: &mut u64,
    ) -> LibraryResult<Value> {
        let arguments = self.resolved(results)?;
        let wire = |error: WireError| error.error;
        let document = |document: Option<Document>| match document {
            Some(document) => document_value(&document, &document.attachments()?).map_err(wire),
            None => Ok(Value::Null),
        };
        let query = || {
            let query = arguments.get("query").ok_or_else(|| Error::invalid("the argument `query` is missing"))?;
            Ok::<_, Error>(Query::parse(query)?.cancelled_by(&call.running.cancellation))
        };
        let mut take_row = || {
            *rows_left = rows_left.checked_sub(1).ok_or_else(|| {
                Error::stopped(format!("the steps return more than {BATCH_ROWS_MAX} documents"))
                    .with_hint("limit the queries, or send several requests")
            })?;
            Ok::<_, Error>(())
        };
        match self.op {
            "get" => {
                let id = arguments.get("id").and_then(Value::as_str);
                document(ground.get(id.ok_or_else(|| Error::invalid("the argument `id` is no string"))?)?)
            }
            "get_many" => {
                let ids = arguments.get("ids").and_then(Value::as_array);
                let ids = ids.ok_or_else(|| Error::invalid("the argument `ids` is no array"))?;
                let mut rows = Vec::with_capacity(ids.len().min(BATCH_ROWS_MAX as usize));
                for id in ids {
                    take_row()?;
                    let id = id.as_str().ok_or_else(|| Error::invalid("`ids` is an array of strings"))?;
                    rows.push(document(ground.get(id)?)?);
                }
                Ok(Value::Array(rows))
            }
            "find" => {
                let mut rows = Vec::new();
                for found in ground.documents(query()?)? {
                    take_row()?;
                    rows.push(document(Some(found?))?);
                }
                Ok(Value::Array(rows))
            }
            "count" => Ok(ground.count(query()?)?.into()),
            "aggregate" => {
                let aggregation = arguments.get("aggregation");
                let aggregation = aggregation.ok_or_else(|| Error::invalid("the argument `aggregation` is missing"))?;
                let groups = ground.aggregate(call, aggregation)?;
                let rows = groups.into_iter().map(|group| take_row().map(|()| group_value(group)));
                rows.collect()
            }
            "check" => Check::parse(&arguments).map_err(wire)?.evaluate(ground).map(|()| Value::Null),
            "require" => self.require(ground, &arguments, results).map(|()| Value::Null),
            _ => Ok(ground.edit(parse_edit(&arguments).map_err(wire)?)?.to_string().into()),
        }
    }

    /// Requires that the document that an earlier step read matches a selector.
    fn require(&self, ground: &mut Ground<'_, '_, '_>, arguments: &Value, results: &[Value]) -> LibraryResult<()> {
        let malformed = || Error::invalid("`require` has `of`, the number of an earlier step, and a `selector`");
        let of = arguments.get("of").and_then(Value::as_u64).and_then(|of| usize::try_from(of).ok());
        let read = of.and_then(|of| results.get(of)).ok_or_else(malformed)?;
        let selector = Selector::parse(arguments.get("selector").ok_or_else(malformed)?)?;
        let Some(id) = read.get("id").and_then(Value::as_str) else {
            return Err(Error::conflict("there is no document that could meet the requirement"));
        };
        let matches = match ground {
            // In a virtual database, documents are read by their ids.
            Ground::Transaction(_, Some(_)) => {
                let document = ground.get(id)?;
                document.map_or(Ok(false), |document| selector.matches_document(&document))?
            }
            _ => ground.count(Query::new(all_of([field("_id").eq(id), selector])))? > 0,
        };
        match matches {
            false => Err(Error::conflict(format!("document `{id}` does not meet the requirement"))),
            true => Ok(()),
        }
    }
}

/// The value at a path of a step's result: the names of fields with dots between them; `[]` after one stands for each
/// element of an array, of which an array is made. The empty path is the whole result.
fn value_at(value: &Value, path: &str) -> Option<Value> {
    let Some((name, rest)) = path.split_once('.').or((!path.is_empty()).then_some((path, ""))) else {
        return Some(value.clone());
    };
    match name.strip_suffix("[]") {
        Some(name) => {
            let elements = if name.is_empty() { value } else { value.get(name)? };
            let elements = elements.as_array()?.iter();
            Some(Value::Array(elements.filter_map(|element| value_at(element, rest)).collect()))
        }
        None => value_at(value.get(name)?, rest),
    }
}

/// A condition of a transaction.
pub(super) enum Check {
    /// The document has this revision; `None`: it does not exist.
    Revision(DocumentId, Option<Revision>),
    /// So many documents match the query.
    Count(Object, u64),
    /// These documents match the query, at these revisions.
    Rows(Object, Vec<(String, String)>),
}

impl Check {
    /// The id of its document, if it is about one.
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Check::Revision(id, _) => Some(id.as_str()),
            Check::Count(..) | Check::Rows(..) => None,
        }
    }

    pub(super) fn parse(value: &Value) -> Result<Check> {
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

    fn evaluate(&self, ground: &mut Ground<'_, '_, '_>) -> LibraryResult<()> {
        let failed = |message: String| Error::conflict(message).with_hint("read again, then decide again");
        match self {
            Check::Revision(id, expected) => {
                let current = ground.get(id.as_str())?.map(|document| *document.revision());
                match current == *expected {
                    true => Ok(()),
                    false => Err(failed(format!("document `{id}` changed since it was read"))),
                }
            }
            Check::Count(query, expected) => {
                let query = stemmadb::Query::parse(&Value::Object(query.clone()))?;
                let count = ground.count(query)?;
                match count == *expected {
                    true => Ok(()),
                    false => Err(failed(format!("{count} documents match, not {expected}"))),
                }
            }
            Check::Rows(query, expected) => {
                let query = stemmadb::Query::parse(&Value::Object(query.clone()))?;
                let row = |document: stemmadb::Document| (document.id().to_string(), document.revision().to_string());
                let found = ground.documents(query.limit(expected.len() as u64 + 1))?;
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
    fn malformed_checks_and_steps_are_refused() {
        let check = object([("id", "a".into())]);
        assert!(matches!(Check::parse(&check), Ok(Check::Revision(_, None))));
        assert!(Check::parse(&object([("query", "a".into())])).is_err());
        for text in
            ["1", "{}", r#"{"op": 1}"#, r#"{"op": "get", "from": {"id": 1}}"#, r#"{"op": "get", "from": {"id": [0]}}"#]
        {
            assert!(Step::parse(&text.parse().unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_taken_from_results() {
        let result: Value =
            r#"{"body": {"ids": ["a", "b"], "lines": [{"n": 1}, {"m": 2}, {"n": 3}]}}"#.parse().unwrap();
        let at = |path: &str| value_at(&result, path).map(|value| value.to_json());
        assert_eq!(at("body.ids").unwrap(), r#"["a","b"]"#);
        assert_eq!(at("body.lines[].n").unwrap(), "[1,3]");
        assert_eq!(at("").unwrap(), result.to_json());
        assert!(at("body.x").is_none() && at("body.ids.a").is_none());
        let rows: Value = r#"[{"id": "a"}, null, {"id": "b"}]"#.parse().unwrap();
        assert_eq!(value_at(&rows, "[].id").unwrap().to_json(), r#"["a","b"]"#);
    }
}
