//! A copy in plain files, brought up to date once or kept in step.

use std::time::Duration;

use tokio::sync::watch;

use super::Session;
use super::follow::{follow, refuse_in_shell};
use super::serve::told_to_stop;
use crate::arguments::Mirror;
use crate::face::{Copied, Copy, Database, Origin};
use crate::failure::{self, Exit, Result};
use crate::progress::Progress;
use crate::shell::interrupt;

/// How long after a server was out of reach it is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Mirrors a database in a directory or on a server.
pub(super) fn run(mirror: &Mirror, session: Session<'_>) -> Result<()> {
    let mut copy = Copy {
        directory: mirror.directory.clone(),
        by: mirror.by.clone(),
        files: mirror.files,
        flush: !mirror.no_flush,
        rebuild: mirror.rebuild,
    };
    let database = mirror.database.to_string_lossy();
    if database.contains("://") && session.open.is_none() {
        return of_server(&database, copy, !mirror.once);
    }
    if mirror.once {
        return session.with(&mirror.database, |db| first(db, &copy));
    }
    refuse_in_shell(session, "mirror", "mirror DATABASE DIRECTORY")?;
    interrupt::catch();
    session.with(&mirror.database, |db| first(db, &copy))?;
    copy.rebuild = false;
    follow(&mirror.database, |db| {
        db.mirror(&copy, |_| !interrupt::happened())?;
        Ok(true)
    })
}

/// Brings the copy up to date, and says what that was.
fn first(db: &Database, copy: &Copy) -> Result<()> {
    let progress = Progress::of_documents("mirror", db.documents_count().ok());
    let done = db.mirror(copy, |done| {
        progress.reached(done.count());
        !interrupt::happened()
    })?;
    told(&done, copy, &progress);
    Ok(())
}

fn told(done: &Copied, copy: &Copy, progress: &Progress) {
    let removed = match done.removed_count {
        0 => String::new(),
        count => format!(", {count} removed"),
    };
    let summary = progress.summary("mirrored", done.written_count);
    failure::remark(format_args!("{summary}{removed}: {}", copy.directory.display()));
}

/// Mirrors a database that a server has; a follower waits for a server that is out of reach for a while.
fn of_server(url: &str, mut copy: Copy, is_follower: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(stemmadb::Error::no_thread)?;
    let (cancel, cancelled) = watch::channel(false);
    runtime.spawn(async move {
        // Where no signal can be waited for, it ends the process as it does everywhere; the copy is mended by the next run.
        if told_to_stop().await.is_ok() {
            cancel.send_replace(true);
        }
        std::future::pending::<()>().await;
    });
    let origin = Origin::reach(url, runtime.handle(), cancelled.clone())?;
    let mut was_reached = false;
    loop {
        let progress = Progress::of_documents("mirror", None);
        let go_on = |done: &Copied| {
            progress.reached(done.count());
            true
        };
        let outcome = origin.mirror(&copy, is_follower, go_on, |done| {
            if !std::mem::replace(&mut was_reached, true) {
                told(done, &copy, &progress);
            }
        });
        match outcome {
            Err(failure) if is_follower && was_reached && failure.exit() == Exit::Unavailable => {
                failure::remark(format_args!("{failure}; trying again"));
            }
            outcome => return outcome,
        }
        copy.rebuild = false;
        if is_stopped_within(&runtime, cancelled.clone(), RETRY_INTERVAL) {
            return Ok(());
        }
    }
}

fn is_stopped_within(runtime: &tokio::runtime::Runtime, mut cancelled: watch::Receiver<bool>, time: Duration) -> bool {
    runtime.block_on(async { tokio::time::timeout(time, cancelled.wait_for(|cancelled| *cancelled)).await.is_ok() })
}
