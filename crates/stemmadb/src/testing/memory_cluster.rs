//! A cluster in memory, with members that stop to respond.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::MemoryLogStorage;
use crate::vfs::{ClusterRecords, ClusterStore, LogClaim, LogOwnership, LogStorage, RecordChange};

/// What the servers of a cluster share, in memory.
#[derive(Clone)]
pub struct MemoryCluster {
    shared: Arc<Mutex<Shared>>,
    lease: Duration,
    /// Makes logs that are not in memory.
    make_log: Option<Arc<MakeLog>>,
}

/// Makes the log of a name, for another owner each time.
pub type MakeLog = dyn Fn(&str) -> Arc<dyn LogStorage> + Send + Sync;

#[derive(Default)]
struct Shared {
    logs: BTreeMap<String, MemoryLogStorage>,
    /// The members that own logs.
    owners: BTreeMap<String, Uuid>,
    members: BTreeMap<Uuid, Membership>,
    records: ClusterRecords,
}

struct Membership {
    address: String,
    silent_since: Option<Instant>,
}

impl MemoryCluster {
    /// A cluster without members. They may be silent for the time of a lease.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        MemoryCluster { shared: Arc::default(), lease, make_log: None }
    }

    /// Puts the logs elsewhere. They are never deleted.
    #[must_use]
    pub fn logs_from(mut self, make_log: impl Fn(&str) -> Arc<dyn LogStorage> + Send + Sync + 'static) -> Self {
        self.make_log = Some(Arc::new(make_log));
        self
    }

    /// Joins as a member that others reach at `address`.
    #[must_use]
    pub fn join(&self, address: &str) -> Arc<MemoryMember> {
        let (id, address) = (Uuid::new_v4(), address.to_owned());
        self.lock().members.insert(id, Membership { address: address.clone(), silent_since: None });
        Arc::new(MemoryMember { cluster: self.clone(), id, address })
    }

    /// The names of the logs.
    #[must_use]
    pub fn logs(&self) -> Vec<String> {
        self.lock().logs.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, log: &str) -> Arc<dyn LogStorage> {
        match &self.make_log {
            Some(make_log) => make_log(log),
            None => Arc::new(self.lock().logs.entry(log.to_owned()).or_default().another_owner()),
        }
    }

    fn is_alive(&self, shared: &Shared, member: Uuid) -> bool {
        let known = shared.members.get(&member);
        known.is_some_and(|known| known.silent_since.is_none_or(|since| since.elapsed() < self.lease))
    }
}

/// A member of a cluster in memory.
pub struct MemoryMember {
    cluster: MemoryCluster,
    id: Uuid,
    address: String,
}

impl MemoryMember {
    /// The member stops to respond, and does not trust its claims any more. Nothing that it asks is answered.
    pub fn fall_silent(&self) {
        if let Some(member) = self.cluster.lock().members.get_mut(&self.id) {
            member.silent_since = Some(Instant::now());
        }
    }

    /// The shared state, as long as the member responds.
    fn shared(&self) -> io::Result<MutexGuard<'_, Shared>> {
        let shared = self.cluster.lock();
        match shared.members.get(&self.id) {
            Some(Membership { silent_since: None, .. }) => Ok(shared),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl ClusterStore for MemoryMember {
    fn address(&self) -> &str {
        &self.address
    }

    fn lease(&self) -> Duration {
        self.cluster.lease
    }

    fn members(&self) -> io::Result<Vec<String>> {
        let shared = self.shared()?;
        let alive = shared.members.iter().filter(|(id, _)| self.cluster.is_alive(&shared, **id));
        let mut addresses: Vec<String> = alive.map(|(_, member)| member.address.clone()).collect();
        addresses.sort();
        Ok(addresses)
    }

    fn owner(&self, log: &str) -> io::Result<Option<String>> {
        let shared = self.shared()?;
        let owner = shared.owners.get(log).filter(|owner| self.cluster.is_alive(&shared, **owner));
        Ok(owner.and_then(|owner| Some(shared.members.get(owner)?.address.clone())))
    }

    fn claim(&self, log: &str) -> io::Result<LogClaim> {
        let mut shared = self.shared()?;
        let owner = shared.owners.get(log).copied();
        if let Some(owner) = owner.filter(|owner| *owner != self.id && self.cluster.is_alive(&shared, *owner)) {
            return Ok(LogClaim::Elsewhere(shared.members[&owner].address.clone()));
        }
        shared.owners.insert(log.to_owned(), self.id);
        drop(shared);
        let claimed = Claimed { cluster: self.cluster.clone(), member: self.id, log: log.to_owned() };
        Ok(LogClaim::Owned(Arc::new(claimed)))
    }

    fn release(&self, log: &str) -> io::Result<()> {
        let mut shared = self.shared()?;
        if shared.owners.get(log) == Some(&self.id) {
            shared.owners.remove(log);
        }
        Ok(())
    }

    fn delete_log(&self, log: &str) -> io::Result<()> {
        let deleted = self.shared()?.logs.remove(log);
        // Its former owner can't append any more.
        deleted.map_or(Ok(()), |deleted| deleted.take_over().map(drop))
    }

    fn log(&self, log: &str) -> Arc<dyn LogStorage> {
        self.cluster.log(log)
    }

    fn records(&self, known: Option<Uuid>) -> io::Result<Option<ClusterRecords>> {
        let shared = self.shared()?;
        Ok(Some(shared.records.clone()).filter(|records| records.version != known))
    }

    fn change_records(&self, before: Option<Uuid>, changes: &[RecordChange]) -> io::Result<Option<Uuid>> {
        let mut shared = self.shared()?;
        let records = &mut shared.records;
        if records.version != before {
            return Ok(None);
        }
        records.version = Some(Uuid::new_v4());
        for (name, value) in changes {
            match value {
                Some(value) => records.values.insert(name.clone(), value.clone()),
                None => records.values.remove(name),
            };
        }
        Ok(records.version)
    }

    fn leave(&self) {
        self.cluster.lock().members.remove(&self.id);
    }
}

struct Claimed {
    cluster: MemoryCluster,
    member: Uuid,
    log: String,
}

impl LogOwnership for Claimed {
    fn is_current(&self) -> bool {
        let shared = self.cluster.lock();
        matches!(shared.members.get(&self.member), Some(Membership { silent_since: None, .. }))
    }

    fn log(&self) -> Arc<dyn LogStorage> {
        self.cluster.log(&self.log)
    }
}
