//! What happened to the databases: made, written, deleted. Kept in memory, the latest of each, since the server started.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

/// What happened to databases, the latest of each.
pub(crate) struct Updates {
    inner: Mutex<Inner>,
    newest: watch::Sender<u64>,
    /// What tells the numbers of this run from those of others.
    mark: String,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, u64>,
    by_number: BTreeMap<u64, Update>,
}

/// What happened to a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) name: String,
    /// `created`, `updated` or `deleted`.
    pub(crate) what: &'static str,
}

/// Names that are remembered; of more, the oldest are forgotten.
const NAMES_MAX: usize = 100_000;

impl Updates {
    pub(super) fn new() -> Self {
        let mark = Uuid::new_v4().simple().to_string()[..8].to_owned();
        Updates { inner: Mutex::default(), newest: watch::channel(0).0, mark }
    }

    /// Notes what happened. Waits for nothing: it is called where documents are written.
    pub(super) fn note(&self, name: &str, what: &'static str) {
        let mut inner = self.inner.lock();
        let number = *self.newest.borrow() + 1;
        let before = inner.by_name.insert(name.to_owned(), number);
        let was = before.and_then(|before| inner.by_number.remove(&before));
        // Only the latest is kept: whoever asks later still learns that the database is new.
        let what = if what == "updated" && was.is_some_and(|was| was.what == "created") { "created" } else { what };
        inner.by_number.insert(number, Update { name: name.to_owned(), what });
        if inner.by_number.len() > NAMES_MAX
            && let Some((_, oldest)) = inner.by_number.pop_first()
        {
            inner.by_name.remove(&oldest.name);
        }
        self.newest.send_replace(number);
    }

    /// Up to `limit` of what happened after `since`, in order.
    pub(crate) fn after(&self, since: u64, limit: usize) -> Vec<(u64, Update)> {
        let inner = self.inner.lock();
        inner.by_number.range(since + 1..).take(limit).map(|(number, update)| (*number, update.clone())).collect()
    }

    /// Tells of each new number.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// A number as clients are told it.
    pub(crate) fn text(&self, number: u64) -> String {
        format!("{number}-{}", self.mark)
    }

    /// The number that a client names; of another run it is the beginning.
    pub(crate) fn parse(&self, text: &str) -> u64 {
        match text.split_once('-') {
            Some((number, mark)) if mark == self.mark => number.parse().unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_is_told_in_order() {
        let updates = Updates::new();
        updates.note("a", "created");
        updates.note("b", "created");
        updates.note("a", "updated");
        let told = |since| updates.after(since, 10).into_iter().map(|(n, update)| (n, update.name, update.what));
        assert_eq!(told(0).collect::<Vec<_>>(), [(2, "b".to_owned(), "created"), (3, "a".to_owned(), "created")]);
        updates.note("b", "deleted");
        assert_eq!(told(3).collect::<Vec<_>>(), [(4, "b".to_owned(), "deleted")]);
        assert_eq!(updates.parse(&updates.text(3)), 3);
        assert_eq!(updates.parse("3-other"), 0);
    }
}
