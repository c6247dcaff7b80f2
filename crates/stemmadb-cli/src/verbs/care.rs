//! How the database is: what it holds, whether it is sound, and how to mend it.

use stemmadb::{Object, Value};

use super::{Session, refuse_url};
use crate::arguments::{Check, Compact, Form, Info, Paths, Rebuild};
use crate::face::Database;
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;
use crate::show::{Look, Show};

/// Shows what the database holds and how it is set.
pub(super) fn info(info: &Info, session: Session<'_>) -> Result<()> {
    let record = session.with(&info.database, |db| db.info())?;
    report(info.form, record)
}

/// Shows each path that documents have.
pub(super) fn paths(paths: &Paths, session: Session<'_>) -> Result<()> {
    let mut show = Show::new(Look::of(paths.form, Look::Table));
    session.with(&paths.database, |db| db.paths()?.try_for_each(|path| show.row(path)))?;
    show.flush()
}

/// Verifies everything; damage is an exit status of its own.
pub(super) fn check(check: &Check, session: Session<'_>) -> Result<()> {
    let checked = session.with(&check.database, |db| db.check(&Progress::of_work("check")))?;
    report(check.form, checked.record)?;
    let failure = match checked.damages.as_slice() {
        [] => return Ok(()),
        [only] => Failure::new(Exit::Corrupt, only),
        [first, rest @ ..] => Failure::new(Exit::Corrupt, format!("{first}, and {} more", rest.len())),
    };
    Err(failure.with_hint(match checked.rebuild_helps {
        true => "`stemma rebuild` makes the index anew from the log, which is sound",
        false => "the log itself is damaged: restore from a copy; `stemma salvage` saves what can still be read",
    }))
}

/// Builds everything anew that is made from the log.
pub(super) fn rebuild(rebuild: &Rebuild, session: Session<'_>) -> Result<()> {
    refuse_url(&rebuild.database)?;
    if session.open.is_some() {
        return Err(
            Failure::usage("the shell has the database open").with_hint("leave the shell, then `stemma rebuild`")
        );
    }
    let progress = Progress::of_work("rebuild");
    let database = Database::rebuild(&rebuild.database, &progress)?;
    drop(progress);
    let record = database.info();
    database.close()?;
    report(rebuild.form, record?)
}

/// Gives back space.
pub(super) fn compact(compact: &Compact, session: Session<'_>) -> Result<()> {
    let record = session.with(&compact.database, |db| {
        let freed_bytes = db.compact(&Progress::of_work("compact"))?;
        let freed: Object = [("freed_bytes", Value::from(freed_bytes))].into_iter().collect();
        Ok(freed)
    })?;
    report(compact.form, record)
}

fn report(form: Form, record: Object) -> Result<()> {
    let mut show = Show::new(Look::of(form, Look::Table));
    show.record(record)?;
    show.flush()
}
