//! Snapshots that the server keeps for transactions of clients, until they are closed or their time is over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::{Error, Snapshot};

use super::failure::Result;

/// The open snapshots of all clients.
#[derive(Default)]
pub(super) struct Snapshots(Mutex<OpenSnapshots>);

#[derive(Default)]
struct OpenSnapshots {
    by_number: HashMap<u64, OpenSnapshot>,
}

struct OpenSnapshot {
    snapshot: Snapshot,
    database: String,
    /// The user who opened it; nobody else may read it.
    user: Option<String>,
    expires_at: Instant,
}

impl Snapshots {
    /// Keeps a snapshot for `time`; returns its number, which can't be guessed.
    ///
    /// # Errors
    /// `Unavailable` if there are `count_max` already.
    pub(super) fn open(
        &self,
        snapshot: Snapshot,
        database: &str,
        user: Option<&str>,
        time: Duration,
        count_max: usize,
    ) -> Result<u64> {
        let now = Instant::now();
        let mut open = self.0.lock();
        open.by_number.retain(|_, open| open.expires_at > now);
        if open.by_number.len() >= count_max {
            return Err(Error::unavailable(format!("the server has {count_max} open transactions"))
                .with_hint("try again; an administrator can raise wire.snapshot_count")
                .into());
        }
        // JSON numbers of other languages hold 53 bits.
        let number = uuid::Uuid::new_v4().as_u64_pair().0 >> 11;
        let (database, user) = (database.to_owned(), user.map(str::to_owned));
        open.by_number.insert(number, OpenSnapshot { snapshot, database, user, expires_at: now + time });
        Ok(number)
    }

    /// The snapshot with this number.
    ///
    /// # Errors
    /// `Stopped` if it was closed, or its time is over.
    pub(super) fn get(&self, number: u64, database: &str, user: Option<&str>) -> Result<Snapshot> {
        let open = self.0.lock();
        let found = open.by_number.get(&number).filter(|open| {
            open.database == database && open.user.as_deref() == user && open.expires_at > Instant::now()
        });
        match found {
            Some(found) => Ok(found.snapshot.clone()),
            None => Err(Error::stopped("the transaction lasted too long, or was closed")
                .with_hint("begin it again; an administrator can raise wire.snapshot_time")
                .into()),
        }
    }

    /// Closes a snapshot.
    pub(super) fn close(&self, number: u64, user: Option<&str>) {
        let mut open = self.0.lock();
        if open.by_number.get(&number).is_some_and(|open| open.user.as_deref() == user) {
            open.by_number.remove(&number);
        }
    }

    /// Closes those whose time is over. Returns whether any is left.
    pub(super) fn close_expired(&self) -> bool {
        let now = Instant::now();
        let mut open = self.0.lock();
        open.by_number.retain(|_, open| open.expires_at > now);
        !open.by_number.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use stemmadb::{Database, ErrorKind};

    use super::*;

    #[test]
    fn snapshots_end_and_belong_to_a_user() {
        let (snapshots, database) = (Snapshots::default(), Database::in_memory());
        let open = |time| snapshots.open(database.snapshot().unwrap(), "shop", Some("ada"), time, 2);
        let long = open(Duration::from_secs(3600)).unwrap();
        assert!(snapshots.get(long, "shop", Some("ada")).is_ok());
        for (number, name, user) in
            [(long + 1, "shop", Some("ada")), (long, "other", Some("ada")), (long, "shop", None)]
        {
            let refused = snapshots.get(number, name, user).map(drop).unwrap_err();
            assert_eq!(refused.error.kind(), ErrorKind::Stopped);
        }
        let short = open(Duration::ZERO).unwrap();
        assert!(snapshots.get(short, "shop", Some("ada")).is_err());
        open(Duration::from_secs(3600)).unwrap();
        assert_eq!(open(Duration::ZERO).unwrap_err().error.kind(), ErrorKind::Unavailable);
        snapshots.close(long, None);
        assert!(snapshots.get(long, "shop", Some("ada")).is_ok());
        snapshots.close(long, Some("ada"));
        assert!(snapshots.get(long, "shop", Some("ada")).is_err());
        assert!(snapshots.close_expired());
    }
}
