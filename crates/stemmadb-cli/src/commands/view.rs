//! `stemma view`: defines, lists, queries and drops views.

use stemmadb::{Access, Object, Value};

use super::{Session, argument, on};
use crate::arguments::{View, ViewQuery, ViewUpdate};
use crate::database::{ViewKeys, ViewOutput, ViewRequest};
use crate::failure::{self, Failure, Result};
use crate::output::{OutputFormat, Printer};
use crate::shell::interrupt;

/// Defines, queries or drops a view; without a name, lists the views.
pub(super) fn run(view: &View, session: Session<'_>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(view.output, OutputFormat::Table));
    let Some(name) = view.name.as_deref() else {
        if view.past.as_of.is_some() {
            let hint = format!("name a view: `stemma view {} NAME --as-of WHEN`", view.database.display());
            return Err(Failure::usage("the list of views has no past").with_hint(hint));
        }
        on!(session, with, &view.database, |db| db.views()?.into_iter().try_for_each(|view| printer.row(view)))?;
        return printer.flush();
    };
    if let Some(definition) = &view.define {
        let definition = argument("definition", definition)?;
        let hints = on!(session, with_new, &view.database, |db| db.define_view(name, &definition))?;
        hints.into_iter().for_each(failure::hint);
        return Ok(());
    }
    if view.drop {
        return on!(session, with, &view.database, |db| db.drop_view(name));
    }
    let request = request(&view.query)?;
    on!(session, past view.past, &view.database, |db| {
        let mut row_count = 0_u64;
        let mut print_row = |row: Object| {
            row_count += 1;
            printer.row(row)?;
            interrupt::check()
        };
        db.query_view(name, &request, &mut print_row)?;
        if row_count == 0 {
            db.view_hints(name)?.into_iter().for_each(failure::hint);
        }
        Ok(())
    })?;
    printer.flush()
}

fn request(query: &ViewQuery) -> Result<ViewRequest> {
    let json = |what: &str, text: &Option<String>| text.as_ref().map(|text| argument(what, text)).transpose();
    let keys = match (query.key.as_slice(), json("--prefix", &query.prefix)?) {
        ([], Some(prefix)) => ViewKeys::Prefix(prefix),
        ([], None) => ViewKeys::Range(json("--from", &query.from)?, json("--to", &query.to)?),
        (keys, _) => ViewKeys::Exact(keys.iter().map(|key| argument("--key", key)).collect::<Result<Vec<Value>>>()?),
    };
    let output = match (query.reduce, query.group, query.group_level) {
        (true, ..) => ViewOutput::Reduced,
        (_, true, _) => ViewOutput::Groups(None),
        (.., Some(level)) => ViewOutput::Groups(Some(level)),
        _ => ViewOutput::Rows { documents: query.documents },
    };
    let access = match query.update {
        _ if query.stale => Access::NoUpdate,
        ViewUpdate::True => Access::UpdateBefore,
        ViewUpdate::False => Access::NoUpdate,
        ViewUpdate::Lazy => Access::UpdateAfter,
    };
    let (descending, limit, skip) = (query.descending, query.limit, query.skip.unwrap_or(0));
    Ok(ViewRequest { keys, descending, limit, skip, output, access })
}
