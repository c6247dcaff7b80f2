//! `stemma mirror`: keeps a copy of a database in plain files, once or continuously.

use std::time::Duration;

use tokio::sync::watch;

use super::Session;
use super::follow::{follow, refuse_in_shell};
use super::serve::ShutdownSignal;
use crate::arguments::Mirror;
use crate::database::{Database, MirrorProgress, MirrorTarget, RemoteDatabase};
use crate::failure::{self, Exit, Result};
use crate::progress::Progress;
use crate::shell::interrupt;

/// Delay before reconnecting to a server that could not be reached.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Mirrors a local or remote database.
pub(super) fn run(mirror: &Mirror, session: Session<'_>) -> Result<()> {
    let mut target = MirrorTarget {
        directory: mirror.directory.clone(),
        by: mirror.by.clone(),
        files: mirror.files,
        flush: !mirror.no_flush,
        rebuild: mirror.rebuild,
    };
    let database = mirror.database.to_string_lossy();
    if database.contains("://") && session.open.is_none() {
        return mirror_remote(&database, target, !mirror.once);
    }
    if mirror.once {
        return session.with(&mirror.database, |db| mirror_once(db, &target));
    }
    refuse_in_shell(session, "mirror", "mirror DATABASE DIRECTORY")?;
    interrupt::catch();
    session.with(&mirror.database, |db| mirror_once(db, &target))?;
    target.rebuild = false;
    follow(&mirror.database, |db| {
        db.mirror(&target, |_| !interrupt::happened())?;
        Ok(true)
    })
}

/// Brings the mirror up to date and prints a summary.
fn mirror_once(db: &Database, target: &MirrorTarget) -> Result<()> {
    let progress = Progress::for_documents("mirror", db.document_count().ok());
    let done = db.mirror(target, |done| {
        progress.set_position(done.count());
        !interrupt::happened()
    })?;
    print_summary(&done, target, &progress);
    Ok(())
}

fn print_summary(done: &MirrorProgress, target: &MirrorTarget, progress: &Progress) {
    let removed = match done.removed_count {
        0 => String::new(),
        count => format!(", {count} removed"),
    };
    let summary = progress.summary("mirrored", done.written_count);
    failure::notice(format_args!("{summary}{removed}: {}", target.directory.display()));
}

/// Mirrors a database on a server. With `follow`, reconnects after the server was unreachable.
fn mirror_remote(url: &str, mut target: MirrorTarget, follow: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(stemmadb::Error::no_thread)?;
    let (cancel, cancelled) = watch::channel(false);
    let shutdown = {
        let _context = runtime.enter();
        ShutdownSignal::install()
    };
    runtime.spawn(async move {
        // Without a signal handler, a signal ends the process; the next run repairs the mirror.
        if let Ok(shutdown) = shutdown
            && shutdown.wait().await.is_ok()
        {
            cancel.send_replace(true);
        }
        std::future::pending::<()>().await;
    });
    let remote = RemoteDatabase::new(url, runtime.handle(), cancelled.clone())?;
    let mut was_reached = false;
    loop {
        let progress = Progress::for_documents("mirror", None);
        let on_progress = |done: &MirrorProgress| {
            progress.set_position(done.count());
            true
        };
        let outcome = remote.mirror(&target, follow, on_progress, |done| {
            if !std::mem::replace(&mut was_reached, true) {
                print_summary(done, &target, &progress);
            }
        });
        match outcome {
            Err(failure) if follow && was_reached && failure.exit() == Exit::Unavailable => {
                failure::notice(format_args!("{failure}; trying again"));
            }
            outcome => return outcome,
        }
        target.rebuild = false;
        if is_cancelled_within(&runtime, cancelled.clone(), RETRY_INTERVAL) {
            return Ok(());
        }
    }
}

/// Waits for `time`; returns true as soon as `cancelled` becomes true.
fn is_cancelled_within(
    runtime: &tokio::runtime::Runtime,
    mut cancelled: watch::Receiver<bool>,
    time: Duration,
) -> bool {
    runtime.block_on(async { tokio::time::timeout(time, cancelled.wait_for(|cancelled| *cancelled)).await.is_ok() })
}
