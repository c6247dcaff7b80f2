//! The latest update of each database since the server started: created, updated or deleted. Kept in memory, for
//! `_db_updates`.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

/// The latest update of each database, in order.
pub(crate) struct DatabaseUpdates {
    inner: Mutex<UpdateLog>,
    newest: watch::Sender<u64>,
    /// Distinguishes numbers of this run of the server from those of other runs.
    run_id: String,
}

#[derive(Default)]
struct UpdateLog {
    by_name: HashMap<String, u64>,
    by_number: BTreeMap<u64, DatabaseUpdate>,
}

/// An update of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseUpdate {
    pub(crate) name: String,
    /// `created`, `updated` or `deleted`.
    pub(crate) what: &'static str,
}

/// The maximum number of updates; beyond it, the oldest are removed.
const NAMES_MAX: usize = 100_000;

impl DatabaseUpdates {
    pub(super) fn new() -> Self {
        let run_id = Uuid::new_v4().simple().to_string()[..8].to_owned();
        DatabaseUpdates { inner: Mutex::default(), newest: watch::channel(0).0, run_id }
    }

    /// Records an update. Never blocks for long: it is called on every write.
    pub(super) fn record(&self, name: &str, what: &'static str) {
        let mut inner = self.inner.lock();
        let number = *self.newest.borrow() + 1;
        let before = inner.by_name.insert(name.to_owned(), number);
        let was = before.and_then(|before| inner.by_number.remove(&before));
        // Only the latest update is kept, so an update of a new database stays `created` for later readers.
        let what = if what == "updated" && was.is_some_and(|was| was.what == "created") { "created" } else { what };
        inner.by_number.insert(number, DatabaseUpdate { name: name.to_owned(), what });
        if inner.by_number.len() > NAMES_MAX
            && let Some((_, oldest)) = inner.by_number.pop_first()
        {
            inner.by_name.remove(&oldest.name);
        }
        self.newest.send_replace(number);
    }

    /// Returns up to `limit` updates after the number `since`, in order.
    pub(crate) fn after(&self, since: u64, limit: usize) -> Vec<(u64, DatabaseUpdate)> {
        let inner = self.inner.lock();
        inner.by_number.range(since + 1..).take(limit).map(|(number, update)| (*number, update.clone())).collect()
    }

    /// A receiver of the newest number.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// A number as text for clients.
    pub(crate) fn text(&self, number: u64) -> String {
        format!("{number}-{}", self.run_id)
    }

    /// Parses a client's number. A number of another run counts as zero.
    pub(crate) fn parse(&self, text: &str) -> u64 {
        match text.split_once('-') {
            Some((number, run_id)) if run_id == self.run_id => number.parse().unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_update_of_each_database_is_returned_in_order() {
        let updates = DatabaseUpdates::new();
        updates.record("a", "created");
        updates.record("b", "created");
        updates.record("a", "updated");
        let after = |since| updates.after(since, 10).into_iter().map(|(n, update)| (n, update.name, update.what));
        assert_eq!(after(0).collect::<Vec<_>>(), [(2, "b".to_owned(), "created"), (3, "a".to_owned(), "created")]);
        updates.record("b", "deleted");
        assert_eq!(after(3).collect::<Vec<_>>(), [(4, "b".to_owned(), "deleted")]);
        assert_eq!(updates.parse(&updates.text(3)), 3);
        assert_eq!(updates.parse("3-other"), 0);
    }
}
