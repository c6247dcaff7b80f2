//! What changed, in order, and what changes next.

use super::follow::{follow, refuse_in_shell};
use super::{Session, selector};
use crate::arguments::Changes;
use crate::face::{Database, Feed};
use crate::failure::Result;
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// Shows changes, and with `--follow` waits for more.
pub(super) fn run(changes: &Changes, session: Session<'_>) -> Result<()> {
    let mut feed = Feed {
        since: changes.since,
        documents: changes.docs,
        ids: changes.ids.clone(),
        selector: changes.selector.as_deref().map(selector).transpose()?,
        limit: changes.limit,
    };
    let on_terminal = if changes.follow || changes.docs { Look::Lines } else { Look::Table };
    let mut show = Show::new(Look::of(changes.form, on_terminal));
    if !changes.follow {
        return session.with(&changes.database, |db| read(db, &mut feed, &mut show));
    }
    refuse_in_shell(session, "--follow", "changes DATABASE --follow")?;
    session.with(&changes.database, |db| read(db, &mut feed, &mut show))?;
    follow(&changes.database, |db| {
        read(db, &mut feed, &mut show)?;
        Ok(feed.limit != Some(0))
    })
}

/// Shows what there is; the feed then stands behind it.
fn read(db: &Database, feed: &mut Feed, show: &mut Show) -> Result<()> {
    let newest = db.sequence();
    for change in db.changes(feed)? {
        let change = change?;
        feed.since = change.sequence;
        feed.limit = feed.limit.map(|limit| limit.saturating_sub(1));
        show.row(change.object)?;
        interrupt::check()?;
    }
    if feed.limit != Some(0) {
        feed.since = feed.since.max(newest);
    }
    show.flush()
}
