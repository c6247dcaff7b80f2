//! Databases of other servers of a cluster that every server has to read, such as `_users`: a replica follows each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb::ErrorKind;
use stemmadb::replica::Replica;

use super::shared::SharedDirectory;
use super::{DatabaseSlot, Directory, ServedDatabase, shared};
use crate::error::Result;
use crate::http::blocking;

/// How often a replica looks for new writes.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// The replicas, by the logs that they follow.
#[derive(Default)]
pub(super) struct Followed(Mutex<HashMap<String, Following>>);

struct Following {
    replica: Arc<Replica>,
    served: Arc<ServedDatabase>,
    /// How often the replica was opened again when `served` was made.
    reopen_count: u64,
}

impl Directory {
    /// Opens the database `name` for reading what must be known to every server. If another server of the cluster owns
    /// it, this is a replica, which may lack the writes of the last half a second; after [`Directory::catch_up`], it
    /// has all. None if there is no such database.
    ///
    /// # Errors
    /// 503 if the cluster does not answer; those of opening it.
    pub(crate) async fn open_to_read(self: &Arc<Self>, name: &str) -> Result<Option<Arc<ServedDatabase>>> {
        if !self.is_in_cluster() {
            return if self.contains(name) { self.open_database(name).await.map(Some) } else { Ok(None) };
        }
        let slot = match self.find(name).await {
            Err(failure) if failure.status() == StatusCode::NOT_FOUND => return Ok(None),
            found => found?,
        };
        let opened = slot.opened.try_lock().and_then(|opened| opened.clone());
        if let Some(served) = opened.filter(|served| served.is_owned()) {
            return Ok(Some(served));
        }
        let this = self.clone();
        blocking(move || this.cluster.as_ref().map_or(Ok(None), |cluster| this.follow(cluster, &slot))).await
    }

    /// Has the replica of a database read everything that was written before. Returns whether there is one.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) async fn catch_up(self: &Arc<Self>, name: &str) -> Result<bool> {
        let (Some(cluster), Ok(slot)) = (&self.cluster, self.slot(name)) else { return Ok(false) };
        let replica = cluster.followed.0.lock().get(&slot.entry.log()).map(|following| following.replica.clone());
        let Some(replica) = replica else { return Ok(false) };
        blocking(move || Ok(replica.refresh()?)).await?;
        Ok(true)
    }

    /// The replica of the database of a slot; none if it was never opened by a server.
    fn follow(&self, cluster: &SharedDirectory, slot: &DatabaseSlot) -> Result<Option<Arc<ServedDatabase>>> {
        let log = slot.entry.log();
        let mut followed = cluster.followed.0.lock();
        if let Some(following) = followed.get_mut(&log) {
            let reopen_count = following.replica.status().reopen_count;
            if following.reopen_count != reopen_count {
                (following.served, following.reopen_count) =
                    (self.served_replica(slot, &following.replica), reopen_count);
            }
            return Ok(Some(following.served.clone()));
        }
        let path = self.path.join(shared::COPIES).join(format!("replica-{}", slot.entry.directory));
        let options = self.options.clone().log_storage(cluster.log(&log));
        let replica = match Replica::open(&path, options, FOLLOW_INTERVAL) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => Arc::new(opened?),
        };
        let (served, reopen_count) = (self.served_replica(slot, &replica), replica.status().reopen_count);
        // Replicas of databases of the name that were deleted.
        let prefix = format!("{}/", slot.entry.name);
        followed.retain(|other, _| !other.starts_with(&prefix));
        followed.insert(log, Following { replica, served: served.clone(), reopen_count });
        Ok(Some(served))
    }

    fn served_replica(&self, slot: &DatabaseSlot, replica: &Replica) -> Arc<ServedDatabase> {
        Arc::new(ServedDatabase::from_database(&slot.current_entry(), replica.database(), &self.updates))
    }
}

impl Followed {
    /// Ends all replicas.
    pub(super) fn close(&self) {
        self.0.lock().clear();
    }
}
