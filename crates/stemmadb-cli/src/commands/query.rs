//! `stemma find`, `explain` and `count`: queries.

use stemmadb::{Object, Path, Value};

use super::{Session, selector};
use crate::arguments::{Count, Explain, Find, Query};
use crate::database::{FindRequest, SortKey};
use crate::failure::{self, Failure, Result};
use crate::output::{OutputFormat, Printable, Printer};
use crate::shell::interrupt;

/// Number of hidden columns named in the hint.
const HIDDEN_NAMES_MAX: usize = 8;

/// Prints the documents that match.
pub(super) fn find(find: &Find, session: Session<'_>) -> Result<()> {
    let request = request(&find.query)?;
    let format = OutputFormat::choose(find.output, OutputFormat::Table);
    let mut printer = Printer::new(format);
    session.with(&find.database, |db| {
        let mut rows = db.find(&request)?;
        let mut is_empty = true;
        while let Some(row) = rows.next()? {
            match format {
                OutputFormat::Table => printer.row(columns(row.into_object()?, &request.fields))?,
                _ => printer.row(row)?,
            }
            is_empty = false;
            interrupt::check()?;
        }
        printer.flush()?;
        if is_empty {
            db.query_hints(&request)?.into_iter().for_each(failure::hint);
        }
        let hidden = printer.hidden();
        if !hidden.is_empty() {
            let (shown, more) = hidden.split_at(hidden.len().min(HIDDEN_NAMES_MAX));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more fields", more.len()) };
            failure::hint(format!("columns hidden: {}{more}; show them with --fields or --pretty", shown.join(", ")));
        }
        if let Some(token) = rows.next_page_token()? {
            failure::hint(format!("more with --page {token}"));
        }
        Ok(())
    })
}

/// Prints the query plan: as text, also to a pipe, unless JSON is requested.
pub(super) fn explain(explain: &Explain, session: Session<'_>) -> Result<()> {
    let request = request(&explain.query)?;
    let explanation = session.with(&explain.database, |db| db.explain(&request, explain.analyze))?;
    let format = OutputFormat::choose(explain.output, OutputFormat::Table);
    let mut printer = Printer::new(format);
    match explanation.to_value() {
        Value::Object(object) if explain.output.json || explain.output.pretty => printer.record(object)?,
        _ => printer.text(&explanation.to_string())?,
    }
    printer.flush()
}

/// Prints the number of documents that match.
pub(super) fn count(count: &Count, session: Session<'_>) -> Result<()> {
    let selector = selector(&count.selector)?;
    let number = session.with(&count.database, |db| db.count(&selector, count.timeout.timeout))?;
    let mut printer = Printer::new(OutputFormat::JsonLines);
    printer.text(&number.to_string())?;
    printer.flush()
}

fn request(query: &Query) -> Result<FindRequest> {
    Ok(FindRequest {
        selector: selector(&query.selector)?,
        sort: query.sort.iter().map(|key| sort_key(key)).collect::<Result<_>>()?,
        collation: query.collation.clone(),
        limit: query.limit,
        skip: query.skip.unwrap_or(0),
        fields: query.fields.clone(),
        ids: query.ids,
        page: query.page.clone(),
        timeout: query.timeout.timeout,
    })
}

fn sort_key(key: &str) -> Result<SortKey> {
    let (path, descending) = match key.strip_prefix('-') {
        Some(path) => (path, true),
        None => (key.strip_prefix('+').unwrap_or(key), false),
    };
    if path.is_empty() {
        return Err(Failure::usage("--sort names no field").with_hint("--sort year, or --sort -year for descending"));
    }
    Ok(SortKey { path: path.to_owned(), descending })
}

/// The columns of a table row: each requested field, however deeply nested; without `--fields`, all top-level fields
/// except `_rev`, which is too long to be useful.
fn columns(mut row: Object, fields: &[String]) -> Object {
    if fields.is_empty() {
        row.remove("_rev");
        return row;
    }
    let row = Value::Object(row);
    let value = |field: &String| Path::parse(field).ok().and_then(|path| path.get(&row).cloned());
    fields.iter().filter_map(|field| Some((field.as_str(), value(field)?))).collect()
}
