//! Documents by what they say: find them, count them, or show how they would be found.

use super::{Session, selector};
use crate::arguments::{Count, Explain, Find, Query};
use crate::face::{Question, SortKey};
use crate::failure::{self, Failure, Result};
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// Shows the documents that match.
pub(super) fn find(find: &Find, session: Session<'_>) -> Result<()> {
    let question = question(&find.query)?;
    let look = Look::of(find.form, Look::Table);
    let mut show = Show::new(look);
    session.with(&find.database, |db| {
        let mut rows = db.find(&question)?;
        while let Some(row) = rows.next()? {
            // A table has no room for revisions; whoever wants them asks for the field or another form.
            show.row(if look == Look::Table && question.fields.is_empty() { without_revision(row) } else { row })?;
            interrupt::check()?;
        }
        show.flush()?;
        let hidden = show.hidden();
        if !hidden.is_empty() {
            failure::hint(format!("no room for {}: --fields or --pretty shows them", hidden.join(", ")));
        }
        if let Some(token) = rows.more()? {
            failure::hint(format!("more with --page {token}"));
        }
        Ok(())
    })
}

/// Shows how a query would be answered.
pub(super) fn explain(explain: &Explain, session: Session<'_>) -> Result<()> {
    let question = question(&explain.query)?;
    let text = session.with(&explain.database, |db| db.explain(&question, explain.analyze))?;
    let mut show = Show::new(Look::Lines);
    show.text(&text)?;
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

fn without_revision(mut row: stemmadb::Object) -> stemmadb::Object {
    row.remove("_rev");
    row
}
