//! Summaries that are kept: define, list, ask and drop views.

use stemmadb::{Object, Value};

use super::{Session, argument};
use crate::arguments::{Rows, View};
use crate::face::{Database, Keys, Summary, SummaryQuestion};
use crate::failure::Result;
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// Does what is asked with a view, or lists all.
pub(super) fn run(view: &View, session: Session<'_>) -> Result<()> {
    let mut show = Show::new(Look::of(view.form, Look::Table));
    let Some(name) = view.name.as_deref() else {
        session.with(&view.database, |db| db.views()?.into_iter().try_for_each(|view| show.row(view)))?;
        return show.flush();
    };
    if let Some(definition) = &view.define {
        let definition = argument("definition", definition)?;
        return session.with_new(&view.database, |db| db.define_view(name, &definition));
    }
    if view.drop {
        return session.with(&view.database, |db| db.drop_view(name));
    }
    let question = question(&view.question)?;
    session.with(&view.database, |db| ask(db, name, &question, &mut show))?;
    show.flush()
}

fn ask(db: &Database, name: &str, question: &SummaryQuestion, show: &mut Show) -> Result<()> {
    let mut show_row = |row: Object| {
        show.row(row)?;
        interrupt::check()
    };
    db.ask_view(name, question, &mut show_row)
}

fn question(rows: &Rows) -> Result<SummaryQuestion> {
    let json = |what: &str, text: &Option<String>| text.as_ref().map(|text| argument(what, text)).transpose();
    let keys = match (rows.key.as_slice(), json("--prefix", &rows.prefix)?) {
        ([], Some(prefix)) => Keys::Prefix(prefix),
        ([], None) => Keys::Between(json("--from", &rows.from)?, json("--to", &rows.to)?),
        (keys, _) => Keys::Of(keys.iter().map(|key| argument("--key", key)).collect::<Result<Vec<Value>>>()?),
    };
    let wanted = match (rows.reduce, rows.group, rows.group_level) {
        (true, ..) => Summary::Whole,
        (_, true, _) => Summary::Groups(None),
        (.., Some(level)) => Summary::Groups(Some(level)),
        _ => Summary::Rows { documents: rows.documents },
    };
    Ok(SummaryQuestion { keys, descending: rows.descending, limit: rows.limit, skip: rows.skip.unwrap_or(0), wanted })
}
