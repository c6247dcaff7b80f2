//! What matches, and then what changes in that.

use super::follow::{follow, refuse_in_shell};
use super::{Session, selector};
use crate::arguments::Watch;
use crate::face::{Database, Watched};
use crate::failure::Result;
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// Shows a live query until interrupted.
pub(super) fn run(watch: &Watch, session: Session<'_>) -> Result<()> {
    refuse_in_shell(session, "watch", "watch DATABASE SELECTOR")?;
    let mut watched = Watched::new(selector(&watch.selector)?, watch.docs);
    let mut show = Show::new(Look::of(watch.form, Look::Lines));
    let mut left = watch.limit.unwrap_or(u64::MAX);
    let mut read = |db: &Database| {
        watched.read(db, |event| {
            if left > 0 {
                left -= 1;
                show.row(event)?;
            }
            interrupt::check()
        })?;
        show.flush()?;
        Ok(left > 0)
    };
    match session.with(&watch.database, &mut read)? {
        true => follow(&watch.database, read),
        false => Ok(()),
    }
}
