//! Documents by what they say: find them, count them, or show how they would be found.

use stemmadb::{Object, Path, Value};

use super::{Session, selector};
use crate::arguments::{Count, Explain, Find, Query};
use crate::face::{Question, SortKey};
use crate::failure::{self, Failure, Result};
use crate::shell::interrupt;
use crate::show::{Look, Show, Shown};

/// So many of the fields that a table has no room for are named.
const HIDDEN_NAMES_MAX: usize = 8;

/// Shows the documents that match.
pub(super) fn find(find: &Find, session: Session<'_>) -> Result<()> {
    let question = question(&find.query)?;
    let look = Look::of(find.form, Look::Table);
    let mut show = Show::new(look);
    session.with(&find.database, |db| {
        let mut rows = db.find(&question)?;
        while let Some(row) = rows.next()? {
            match look {
                Look::Table => show.row(columns(row.into_object()?, &question.fields))?,
                _ => show.row(row)?,
            }
            interrupt::check()?;
        }
        show.flush()?;
        let hidden = show.hidden();
        if !hidden.is_empty() {
            let (shown, more) = hidden.split_at(hidden.len().min(HIDDEN_NAMES_MAX));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more fields", more.len()) };
            failure::hint(format!("no room for {}{more}: --fields or --pretty shows them", shown.join(", ")));
        }
        if let Some(token) = rows.more()? {
            failure::hint(format!("more with --page {token}"));
        }
        Ok(())
    })
}

/// Shows how a query would be answered: as text for people, also in a pipe; as JSON when asked for.
pub(super) fn explain(explain: &Explain, session: Session<'_>) -> Result<()> {
    let question = question(&explain.query)?;
    let explanation = session.with(&explain.database, |db| db.explain(&question, explain.analyze))?;
    let look = Look::of(explain.form, Look::Table);
    let mut show = Show::new(look);
    match explanation.to_value() {
        Value::Object(object) if explain.form.json || explain.form.pretty => show.record(object)?,
        _ => show.text(&explanation.to_string())?,
    }
    show.flush()
}

/// Shows how many documents match.
pub(super) fn count(count: &Count, session: Session<'_>) -> Result<()> {
    let selector = selector(&count.selector)?;
    let number = session.with(&count.database, |db| db.count(&selector))?;
    let mut show = Show::new(Look::Lines);
    show.text(&number.to_string())?;
    show.flush()
}

fn question(query: &Query) -> Result<Question> {
    Ok(Question {
        selector: selector(&query.selector)?,
        sort: query.sort.iter().map(|key| sort_key(key)).collect::<Result<_>>()?,
        collation: query.collation.clone(),
        limit: query.limit,
        skip: query.skip.unwrap_or(0),
        fields: query.fields.clone(),
        ids: query.ids,
        page: query.page.clone(),
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

/// What a table shows of a row: the fields asked for, each as a column of its own however deep it lies; else all of them
/// but the revision, which is too long and of no use there.
fn columns(mut row: Object, fields: &[String]) -> Object {
    if fields.is_empty() {
        row.remove("_rev");
        return row;
    }
    let row = Value::Object(row);
    let value = |field: &String| Path::parse(field).ok().and_then(|path| path.get(&row).cloned());
    fields.iter().filter_map(|field| Some((field.as_str(), value(field)?))).collect()
}
