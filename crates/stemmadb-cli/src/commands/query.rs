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
    let mut request = request(&find.query)?;
    let format = OutputFormat::choose(find.output, OutputFormat::Table);
    if format == OutputFormat::Table && !request.ids {
        // Columns are looked up by their whole paths, in documents with all their elements.
        stemmadb::Query::new(stemmadb::Selector::everything()).fields(&request.fields).check()?;
        request.fields.clear();
    }
    let mut printer = Printer::new(format);
    session.with_past(&find.database, find.query.past, |db| {
        let mut rows = db.find(&request)?;
        let mut is_empty = true;
        while let Some(row) = rows.next()? {
            match format {
                OutputFormat::Table => printer.row(columns(row.into_object()?, &find.query.fields))?,
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
    let explanation =
        session.with_past(&explain.database, explain.query.past, |db| db.explain(&request, explain.analyze))?;
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
    session.with_past(&count.database, count.past, |db| {
        let number = db.count(&selector, count.timeout.timeout)?;
        let mut printer = Printer::new(OutputFormat::JsonLines);
        printer.text(&number.to_string())?;
        printer.flush()?;
        if number == 0 {
            db.selector_hints(&selector)?.into_iter().for_each(failure::hint);
        }
        Ok(())
    })
}

pub(super) fn request(query: &Query) -> Result<FindRequest> {
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
pub(super) fn columns(mut row: Object, fields: &[String]) -> Object {
    if fields.is_empty() {
        row.remove("_rev");
        return row;
    }
    let row = Value::Object(row);
    fields.iter().filter_map(|field| Some((field.as_str(), column(&row, field)?))).collect()
}

/// The value at a path; with `[]`, an array of the values in the elements.
fn column(value: &Value, path: &str) -> Option<Value> {
    let brackets = path.match_indices("[]").map(|(at, _)| at).find(|at| !path[..*at].ends_with('\\'));
    let Some(at) = brackets else { return Path::parse(path).ok()?.get(value).cloned() };
    let array = if at == 0 { Some(value) } else { Path::parse(&path[..at]).ok()?.get(value) };
    let (elements, rest) = (array?.as_array()?, path[at + 2..].trim_start_matches('.'));
    let inner = |element: &Value| if rest.is_empty() { Some(element.clone()) } else { column(element, rest) };
    Some(Value::Array(elements.iter().filter_map(inner).collect()))
}
