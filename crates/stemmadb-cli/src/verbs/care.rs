//! How the database is: what it holds, whether it is sound, and how to mend it.

use super::Session;
use crate::arguments::{Check, Compact, Form, Info, Rebuild};
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;
use crate::show::{Look, Show};

/// Shows what the database holds and how it is set.
pub(super) fn info(info: &Info, session: Session<'_>) -> Result<()> {
    let record = session.with(&info.database, |db| db.info())?;
    report(info.form, record)
}

/// Verifies everything; damage is an exit status of its own.
pub(super) fn check(check: &Check, session: Session<'_>) -> Result<()> {
    let (record, damage) = session.with(&check.database, |db| {
        let progress = Progress::of_documents("check", None);
        db.check(&progress)
    })?;
    report(check.form, record)?;
    match damage.as_slice() {
        [] => Ok(()),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
            Err(Failure::new(Exit::Corrupt, format!("{first}{more}"))
                .with_hint("`stemma rebuild` makes the index anew from the log"))
        }
    }
}

/// Builds everything anew that is made from the log.
pub(super) fn rebuild(rebuild: &Rebuild, session: Session<'_>) -> Result<()> {
    let record = session.with(&rebuild.database, |db| {
        let progress = Progress::of_documents("rebuild", None);
        db.rebuild(&progress)
    })?;
    report(rebuild.form, record)
}

/// Gives back space.
pub(super) fn compact(compact: &Compact, session: Session<'_>) -> Result<()> {
    let record = session.with(&compact.database, |db| {
        let progress = Progress::of_documents("compact", None);
        db.compact(&progress)
    })?;
    report(compact.form, record)
}

fn report(form: Form, record: stemmadb::Object) -> Result<()> {
    let mut show = Show::new(Look::of(form, Look::Table));
    show.record(record)?;
    show.flush()
}
