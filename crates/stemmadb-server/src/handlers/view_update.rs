//! Updates of views before they are queried.
//!
//! An update concerns all later queries, so it goes on when the client that caused it has left, or its time limit has
//! passed. Each view is updated by one task at a time; other requests wait for it without a thread.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::view::{OpenedView, open_view};
use super::view_query::ViewQuery;
use crate::design::view_failure;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{TimeLimit, blocking, spawn_blocking};
use crate::script::Scripts;

/// The views of a database that are being updated, by signature.
#[derive(Default)]
struct ViewUpdates(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl ViewUpdates {
    /// The lock of a view's update.
    fn lock_of(&self, signature: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(signature).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(signature.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// Updates a view. An update that has begun is completed even if the returned future is dropped.
///
/// # Errors
/// Those of the view's functions and of the library.
pub(super) async fn update(opened: &OpenedView) -> Result<()> {
    let (served, view) = (opened.served.clone(), opened.view.clone());
    let updating = served.extension::<ViewUpdates>().lock_of(opened.program.signature()).lock_owned().await;
    // Not by `blocking`: the request must not cancel it.
    let update = spawn_blocking(move || {
        let _held = (updating, served);
        view.update()
    });
    match update.await {
        Ok(updated) => updated.map_err(view_failure),
        Err(error) => Err(Failure::internal(format!("an update of a view failed: {error}"))),
    }
}

/// Updates a view before a list reads it, if the query asks for that.
///
/// # Errors
/// 404 if there is none; 408 at the time limit.
pub(super) async fn update_for_list(
    served: Arc<ServedDatabase>,
    scripts: Arc<Scripts>,
    (design, view): (String, String),
    query: ViewQuery,
    limit: &TimeLimit,
) -> Result<()> {
    let begun = blocking(move || {
        let opened = open_view(served, &scripts, &design, &view)?;
        query.check(&opened)?;
        let is_behind = opened.is_behind(&query)?;
        Ok((opened, is_behind))
    });
    let (opened, is_behind) = limit.check(begun.await)?;
    if is_behind {
        limit.wait(update(&opened)).await?;
    }
    Ok(())
}
