//! Views: definitions, state, and queries of rows, counts, reductions and groups.
//!
//! A view that is defined by paths is the library's own. One of JavaScript functions is queried as over HTTP.

use std::ops::Bound;

use stemmadb::views::{ProgramQuery, RowBound, RowChoice};
use stemmadb::{Access, DeclaredView, Error, Value, ViewQuery};

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::opened::OpenedDatabase;
use super::super::rights::RightsOf;
use super::super::rows::{RowStream, document_value};
use crate::design::{self, DesignView, Validators};

/// The id of the design document that holds a view, and the view's name there.
pub(super) fn design_of(name: &str) -> (String, &str) {
    let (design, view) = name.split_once('/').unwrap_or((name, name));
    (format!("_design/{design}"), view)
}

/// Stores the definition of a view, and opens it.
pub(super) fn define(call: &Call<'_>) -> Result<Vec<u8>> {
    let name = call.text("name")?;
    let served = call.open(RightsOf::PutDesign, Some(&design_of(name).0))?;
    let definition = call.arguments.get("definition").ok_or_else(|| Error::invalid("`definition` is missing"))?;
    call.user().writing(|| served.database().views().define(name, definition))?;
    served.extension::<Validators>().invalidate();
    Ok(call.reply(&Value::Null))
}

pub(super) fn remove(call: &Call<'_>) -> Result<Vec<u8>> {
    let name = call.text("name")?;
    let served = call.open(RightsOf::DeleteDesign, Some(&design_of(name).0))?;
    call.user().writing(|| served.database().views().remove(name))?;
    Ok(call.reply(&Value::Null))
}

/// Lists the names and definitions of views that are defined by paths.
pub(super) fn list(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Find, None)?;
    let mut rows = RowStream::new(call);
    for (name, definition) in served.database().views().definitions()? {
        rows.add_value(&[name.into(), definition].into())?;
    }
    Ok(rows.finish(&[]))
}

/// The state of a view; with `update`, after it was updated.
pub(super) fn info(call: &Call<'_>) -> Result<Vec<u8>> {
    let name = call.text("name")?;
    let served = call.open(RightsOf::View, Some(&design_of(name).0))?;
    let view = served.database().views().open(name)?;
    if call.flag("update") {
        view.update()?;
    }
    let info = view.info()?;
    let failure = |(id, error): &(stemmadb::DocumentId, String)| Value::from_iter([id.to_string(), error.clone()]);
    Ok(call.reply(&object([
        ("rows", info.row_count.into()),
        ("failed", info.failed_count.into()),
        ("failures", info.failures.iter().map(failure).collect::<Vec<_>>().into()),
        ("seq", info.sequence.get().into()),
        ("progress", info.progress.map_or(Value::Null, |at| [at.done, at.total].into_iter().collect())),
    ])))
}

/// Streams rows or groups, counts or reduces.
pub(super) fn query(call: &Call<'_>) -> Result<Vec<u8>> {
    let name = call.text("name")?;
    let (design, view) = design_of(name);
    let served = call.open(RightsOf::View, Some(&design))?;
    let snapshot = served.database().snapshot()?;
    let document = snapshot.get(&design)?.map(|document| document.value()).transpose()?;
    match document {
        Some(design) if design::is_javascript(&design) => query_functions(call, &served, &design, view),
        _ => query_paths(call, &served, name),
    }
}

pub(super) fn access(call: &Call<'_>) -> Result<Access> {
    match call.optional_text("access") {
        None | Some("update_before") => Ok(Access::UpdateBefore),
        Some("update_after") => Ok(Access::UpdateAfter),
        Some("no_update") => Ok(Access::NoUpdate),
        Some(other) => Err(Error::invalid(format!("there is no access `{other}`")).into()),
    }
}

/// The bounds of the keys: `start` and `end`, each a key, and whether the bound itself is left out.
fn bounds<'a>(call: &'a Call<'_>) -> (Bound<&'a Value>, Bound<&'a Value>) {
    let bound = |name: &str, is_excluded: bool| match (call.arguments.get(name), is_excluded) {
        (None, _) => Bound::Unbounded,
        (Some(key), false) => Bound::Included(key),
        (Some(key), true) => Bound::Excluded(key),
    };
    (bound("start", call.flag("start_excluded")), bound("end", call.flag("end_excluded")))
}

pub(super) fn level(call: &Call<'_>) -> Result<Option<usize>> {
    Ok(call.optional_number("level")?.map(|level| usize::try_from(level).unwrap_or(usize::MAX)))
}

fn query_paths(call: &Call<'_>, served: &OpenedDatabase, name: &str) -> Result<Vec<u8>> {
    let mut query = served.database().views().open(name)?.query().access(access(call)?);
    let argument = |name: &str| call.arguments.get(name);
    if let Some(key) = argument("key") {
        query = query.key(key);
    } else if argument("keys").is_some() {
        query = query.keys(call.list("keys")?);
    } else if let Some(prefix) = argument("prefix") {
        query = query.prefix(prefix);
    } else if argument("start").is_some() || argument("end").is_some() {
        query = query.range::<Value>(bounds(call));
    }
    if call.flag("descending") {
        query = query.descending();
    }
    if let Some(limit) = call.optional_number("limit")? {
        query = query.limit(limit);
    }
    if let Some(skip) = call.optional_number("skip")? {
        query = query.skip(skip);
    }
    if call.flag("documents") {
        query = query.with_documents();
    }
    if let Some(snapshot) = call.past(served)? {
        query = query.as_of(&snapshot);
    }
    let mut rows = RowStream::new(call);
    match call.optional_text("shape").unwrap_or("rows") {
        "rows" => send_rows(query, rows),
        "count" => Ok(call.reply(&query.count()?.into())),
        "reduce" => Ok(call.reply(&Value::Array(query.reduce()?.into_iter().collect()))),
        "groups" => {
            match level(call)? {
                Some(level) => query.group_level(level)?.try_for_each(|group| {
                    let (key, reduced) = group?;
                    rows.add_value(&[key, reduced].into())
                })?,
                None => query.group()?.try_for_each(|group| {
                    let (key, reduced) = group?;
                    rows.add_value(&[key, reduced].into())
                })?,
            }
            Ok(rows.finish(&[]))
        }
        other => Err(Error::invalid(format!("there are no rows of shape `{other}`")).into()),
    }
}

fn send_rows(query: ViewQuery<DeclaredView>, mut rows: RowStream<'_>) -> Result<Vec<u8>> {
    let mut found = query.rows()?;
    for row in found.by_ref() {
        let row = row?;
        let mut value = object([("id", row.id.as_str().into()), ("key", row.key), ("value", row.value)]);
        if let (Some(document), Some(fields)) = (&row.document, value.as_object_mut()) {
            fields.insert("document", document_value(document, &document.attachments()?)?);
        }
        rows.add_value(&value)?;
    }
    Ok(rows.finish(&[("stale", found.is_stale().into())]))
}

/// Queries a view of JavaScript functions.
fn query_functions(call: &Call<'_>, served: &OpenedDatabase, design: &Value, view: &str) -> Result<Vec<u8>> {
    let program = DesignView::new(served, &call.server.state.scripts, design, view)?;
    let opened = served.database().views().open_program(std::sync::Arc::new(program))?;
    let query = opened.query().access(access(call)?).descending(call.flag("descending")).among(choice(call)?);
    let query = with_range(call, query)?;
    let query = match call.past(served)? {
        Some(snapshot) => query.as_of(&snapshot),
        None => query,
    };
    let mut rows = RowStream::new(call);
    match call.optional_text("shape").unwrap_or("rows") {
        "rows" => send_function_rows(call, query, rows),
        "count" => Ok(call.reply(&query.rows()?.try_fold(0u64, |count, row| row.map(|_| count + 1))?.into())),
        "reduce" => Ok(call.reply(&Value::Array(query.reduce()?.into_iter().collect()))),
        "groups" => {
            for group in query.groups(level(call)?)? {
                let (key, reduced) = group?;
                rows.add_value(&[key, reduced].into())?;
            }
            Ok(rows.finish(&[]))
        }
        other => Err(Error::invalid(format!("there are no rows of shape `{other}`")).into()),
    }
}

/// The query with the limit and the skip of the request.
pub(super) fn with_range(call: &Call<'_>, query: ProgramQuery) -> Result<ProgramQuery> {
    let query = query.skip(call.optional_number("skip")?.unwrap_or(0));
    Ok(match call.optional_number("limit")? {
        Some(limit) => query.limit(limit),
        None => query,
    })
}

pub(super) fn choice(call: &Call<'_>) -> Result<RowChoice> {
    if call.arguments.get("keys").is_some() {
        return Ok(RowChoice::Keys(call.list("keys")?.to_vec()));
    }
    if let Some(key) = call.arguments.get("key") {
        return Ok(RowChoice::Keys(vec![key.clone()]));
    }
    if call.arguments.get("prefix").is_some() {
        return Err(Error::invalid("this view has no prefixes").with_hint("give a range").into());
    }
    let bound = |bound: Bound<&Value>| match bound {
        Bound::Included(key) => Some(RowBound { key: key.clone(), id: None, is_inclusive: true }),
        Bound::Excluded(key) => Some(RowBound { key: key.clone(), id: None, is_inclusive: false }),
        Bound::Unbounded => None,
    };
    let (start, end) = bounds(call);
    Ok(RowChoice::Range(bound(start), bound(end)))
}

fn send_function_rows(call: &Call<'_>, query: ProgramQuery, mut rows: RowStream<'_>) -> Result<Vec<u8>> {
    let mut found = query.rows()?;
    while let Some(row) = found.next().transpose()? {
        let document = match call.flag("documents") {
            true => found.snapshot().get(row.value.get("_id").and_then(Value::as_str).unwrap_or(&row.id))?,
            false => None,
        };
        let mut value = object([("id", row.id.into()), ("key", row.key), ("value", row.value)]);
        if let (Some(document), Some(fields)) = (document, value.as_object_mut()) {
            fields.insert("document", document_value(&document, &document.attachments()?)?);
        }
        rows.add_value(&value)?;
    }
    Ok(rows.finish(&[("stale", found.is_stale().into())]))
}
