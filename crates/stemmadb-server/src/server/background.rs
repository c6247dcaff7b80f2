//! Tasks that run as long as the server.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::http::request::Parts;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::{ServerState, ask_others};
use crate::auth::Route;
use crate::directory::Directory;
use crate::error::Result;
use crate::http::blocking;
use crate::virtual_databases::{TEND_INTERVAL, VirtualDatabases};

/// The interval that keeps one thread of the blocking pool alive. Idle threads end after 10 seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(4);

/// Keeps one thread of the blocking pool alive. If the system refuses another thread, blocking work waits for this one;
/// without any, the pool would panic.
pub(super) async fn keep_blocking_thread(mut stopped: watch::Receiver<bool>) {
    while timeout(KEEP_ALIVE_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        blocking(|| Ok(())).await.ok();
    }
}

/// The interval at which memory is divided among the databases in use.
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn divide_memory(directory: Arc<Directory>, mut stopped: watch::Receiver<bool>) {
    while timeout(MEMORY_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        let directory = directory.clone();
        blocking(move || {
            directory.redivide_memory();
            Ok(())
        })
        .await
        .ok();
    }
}

/// Splits shards of virtual databases that are too large, and continues moves of other servers of the cluster.
pub(super) async fn tend_virtual_databases(databases: Arc<VirtualDatabases>, mut stopped: watch::Receiver<bool>) {
    while timeout(TEND_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        databases.tend().await;
    }
}

/// Whether a request is about definitions or accounts that other servers of the cluster may just have changed.
pub(super) fn concerns_definitions(route: &Route) -> bool {
    let paths = ["/_federation", "/_roles", "/_servers", "/_tokens", "/_topology"];
    let is_of_server = paths.iter().any(|path| route.path.starts_with(path));
    // The servers of a virtual database's shards.
    is_of_server || route.method != Method::GET && matches!(route.path, "/{db}" | "/{db}/_shards")
}

/// Reads what other servers of the cluster have changed, and applies it.
///
/// # Errors
/// 503 if the cluster does not answer.
pub(super) async fn catch_up(state: &Arc<ServerState>) -> Result<()> {
    let state = state.clone();
    blocking(move || {
        state.authenticator.newest(&state.directory)?;
        state.catch_up()
    })
    .await
}

/// Lets the other servers of the cluster read what a request has changed, before it is answered. Those that don't
/// answer read it within a second.
pub(super) async fn announce(state: &Arc<ServerState>, parts: &Parts) {
    let directory = state.directory.clone();
    // One that has just come may already run what is to end.
    blocking(move || directory.refresh_members()).await.ok();
    ask_others(state, parts, "/_servers").await;
}

/// Reads the accounts and definitions again when another server of the cluster has changed them.
pub(super) async fn reload_changed(state: Arc<ServerState>) {
    let Some(mut changed) = state.directory.records_changed() else { return };
    let (state, mut stopped) = (Arc::downgrade(&state), state.stopping.clone());
    loop {
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
        let Some(state) = state.upgrade() else { return };
        if let Err(failure) = catch_up(&state).await {
            tracing::error!(target: "stemma::database", "reading records of the cluster: {}", failure.reason());
        }
    }
}
