//! What changed, in order, and what changes next.

use std::time::Duration;

use super::{Session, selector};
use crate::arguments::Changes;
use crate::face::{Feed, Following};
use crate::failure::Result;
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// How often a follower looks whether it was interrupted.
const PATIENCE: Duration = Duration::from_millis(200);

/// Shows changes, and with `--follow` waits for more.
pub(super) fn run(changes: &Changes, session: Session<'_>) -> Result<()> {
    let feed = Feed {
        since: changes.since,
        documents: changes.docs,
        ids: changes.ids.clone(),
        selector: changes.selector.as_deref().map(selector).transpose()?,
    };
    let on_terminal = if changes.follow || changes.docs { Look::Lines } else { Look::Table };
    let mut show = Show::new(Look::of(changes.form, on_terminal));
    let mut left = changes.limit.unwrap_or(u64::MAX);
    session.with(&changes.database, |db| {
        let mut following = db.changes(&feed)?;
        while left > 0 {
            match following.next(Duration::ZERO)? {
                Following::Change(change) => {
                    show.row(change)?;
                    left -= 1;
                }
                Following::Nothing if !changes.follow => break,
                Following::Nothing => {
                    show.flush()?;
                    if let Following::Change(change) = following.next(PATIENCE)? {
                        show.row(change)?;
                        left -= 1;
                    }
                }
            }
            interrupt::check()?;
        }
        show.flush()
    })
}
