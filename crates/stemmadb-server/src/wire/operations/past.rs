//! The past of a database: revisions, differences, taking changes back, and how much is kept.

use std::time::UNIX_EPOCH;

use stemmadb::past::{Difference, Retention};
use stemmadb::{Document, Error, Object, Query, Selector, Value};

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::{RowStream, document_value};
use super::documents::reply;
use crate::auth::{Restriction, readable};
use crate::directory::ServedDatabase;
use crate::documents::is_readable;

fn document(document: &Document) -> Result<Value> {
    document_value(document, &document.attachments()?)
}

/// Whether the user may read the winning revision of a document.
pub(super) fn may_read(served: &ServedDatabase, id: &str, restriction: Option<&Restriction>) -> Result<bool> {
    let snapshot = served.database().snapshot()?;
    Ok(restriction.is_none() || is_readable(&snapshot, id, &snapshot.revisions(id)?, restriction)?)
}

/// Streams the stored revisions of a document, the newest first.
pub(super) fn revisions(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let (served, restriction) = call.open_restricted(RightsOf::History, Some(id))?;
    let mut rows = RowStream::new(call);
    if !may_read(&served, id, restriction.as_ref())? {
        return Err(Error::not_found(format!("there is no document `{id}`, and there was none")).into());
    }
    for revision in served.database().history().revisions(id)? {
        // Revisions that the user may not read are left out.
        if restriction.as_ref().map_or(Ok(false), |restriction| restriction.allows(&revision.document).map(|is| !is))? {
            continue;
        }
        let mut row = Object::new();
        row.insert("document", document(&revision.document)?);
        row.insert("seq", revision.sequence.get());
        if let Some(time) = revision.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
            row.insert("time_us", u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
        if let Some(author) = &revision.author {
            row.insert("author", author.as_str());
        }
        rows.add_value(&Value::Object(row))?;
    }
    Ok(rows.finish(&[]))
}

pub(super) fn document_at(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let (served, restriction) = call.open_restricted(RightsOf::History, Some(id))?;
    let document = served.database().history().document_at(id, call.point("at")?)?;
    let is_readable = may_read(&served, id, restriction.as_ref())?;
    reply(call, readable(restriction.as_ref(), document.filter(|_| is_readable))?)
}

/// Streams the documents that differ between two states.
pub(super) fn differences(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Changes, None)?;
    let selector = call.arguments.get("selector").map(Selector::parse).transpose()?;
    let history = served.database().history();
    let mut rows = RowStream::new(call);
    for difference in history.differences(call.point("start")?, call.point("end")?, selector.as_ref())? {
        call.running.refuse_if_cancelled()?;
        rows.add_value(&match difference? {
            Difference::Added(after) => object([("after", document(&after)?)]),
            Difference::Removed(before) => object([("before", document(&before)?)]),
            Difference::Changed { before, after, paths } => {
                object([("before", document(&before)?), ("after", document(&after)?), ("paths", paths.into())])
            }
            _ => return Err(Error::internal("a difference of an unknown kind").into()),
        })?;
    }
    Ok(rows.finish(&[]))
}

/// Writes the last revision of a deleted document again. Validation functions don't see it, so it takes an
/// administrator of the database.
pub(super) fn undelete(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    undelete_in(call, &served)
}

/// As [`undelete`], in the database that has the document.
pub(super) fn undelete_in(call: &Call<'_>, served: &ServedDatabase) -> Result<Vec<u8>> {
    let database = served.database().with_durability(call.durability());
    let revision = call.user().writing(|| database.history().undelete(call.text("id")?).map_err(Into::into));
    revision.map(|revision| call.reply(&revision.to_string().into()))
}

/// Sets the documents that match a query to an earlier state; with `count_only`, counts those that would change. Takes
/// an administrator of the database, as [`undelete`].
pub(super) fn revert(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::CreateIndex, None)?;
    let query = call.arguments.get("query").ok_or_else(|| Error::invalid("the argument `query` is missing"))?;
    let (query, to) = (Query::parse(query)?, call.point("to")?);
    let database = served.database().with_durability(call.durability());
    let count = match call.flag("count_only") {
        true => database.history().count_reverts(query, to)?,
        false => call.user().writing(|| database.history().revert(query, to))?,
    };
    if !call.flag("count_only") {
        served.extension::<crate::design::Validators>().invalidate();
    }
    Ok(call.reply(&count.into()))
}

/// Keeps a state readable; the result is its sequence.
pub(super) fn pin(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::PutRetention, None)?;
    let sequence = served.database().history().pin(call.text("name")?, call.point("at")?)?;
    Ok(call.reply(&sequence.get().into()))
}

pub(super) fn release(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::PutRetention, None)?;
    served.database().history().release(call.text("name")?)?;
    Ok(call.reply(&Value::Null))
}

/// Sets how much of the past is kept, of the database or of the documents whose ids have a prefix.
pub(super) fn keep(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::PutRetention, None)?;
    set_retention(call, &served)?;
    Ok(call.reply(&Value::Null))
}

/// Sets how much of the past a database keeps, as the request says.
pub(super) fn set_retention(call: &Call<'_>, served: &ServedDatabase) -> Result<()> {
    let retention = match call.arguments.get("retention") {
        None | Some(Value::Null) => None,
        Some(retention) => Some(Retention::parse(retention)?),
    };
    let history = served.database().history();
    match (call.optional_text("prefix"), retention) {
        (Some(prefix), retention) => history.keep_of_prefix(prefix, retention)?,
        (None, Some(retention)) => history.keep(retention)?,
        (None, None) => return Err(Error::invalid("the argument `retention` is missing").into()),
    }
    Ok(())
}

/// The retention, the pins, the oldest readable state and the size of the history files.
pub(super) fn retention(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Info, None)?;
    let history = served.database().history();
    let prefixes = history.prefixes().into_iter().map(|(prefix, retention)| (prefix, retention.to_value()));
    let pins = history.pins().into_iter().map(|(name, at)| (name, Value::from(at.get())));
    Ok(call.reply(&object([
        ("retention", history.retention().to_value()),
        ("prefixes", Value::Object(prefixes.collect())),
        ("pins", Value::Object(pins.collect())),
        ("oldest", history.oldest().get().into()),
        ("bytes", history.byte_count().into()),
    ])))
}

pub(super) fn sequence_at(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Info, None)?;
    Ok(call.reply(&served.database().history().sequence_at(call.point("at")?)?.get().into()))
}
