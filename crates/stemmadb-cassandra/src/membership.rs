//! Which process owns which database.
//!
//! A process that joins is a *member*. It shows that it is alive by increasing a number, its *beat*. Others take it for
//! dead when they have seen the same beat for the time of a *lease*, by their own clocks; then they may claim what it
//! owned. A member whose last beat is older than four fifths of a lease does not trust its own claims any more, and
//! once that has happened it goes on as another member: what it had claimed is lost. So no two members are both sure
//! that they own a database, as long as their clocks run about equally fast. The clocks may show different times.
//!
//! That is for reads. Writes don't depend on clocks: opening the log takes it over, and the process that had it
//! before can't append.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use stemmadb::log_storage::{ClusterRecords, ClusterStore, LogClaim, LogOwnership, LogStorage, RecordChange};
use uuid::Uuid;

use crate::cluster::{Cluster, Shared};
use crate::log::CassandraLog;
use crate::requests::Requests;

/// How often a member beats, and looks for the beats of others, in the time of a lease.
const BEATS_PER_LEASE: u32 = 5;

/// The part of a lease for which a member trusts its claims after a beat.
const TRUST: f64 = 0.8;

/// A member that was silent for so many leases is forgotten.
const FORGOTTEN_AFTER: u32 = 3;

/// A process that may own databases of a cluster. Dropping it gives them up, like [`Member::leave`].
pub struct Member(Arc<State>);

struct State {
    cluster: Arc<Shared>,
    address: String,
    lease: Duration,
    beating: Mutex<Beating>,
    /// The members that were seen.
    seen: Mutex<HashMap<Uuid, Seen>>,
    ending: tokio::sync::watch::Sender<bool>,
}

/// The own beats.
struct Beating {
    id: Uuid,
    beat: i64,
    /// When the last beat that was stored was sent; none after the end.
    sent: Option<Instant>,
}

/// What is known of a member.
struct Seen {
    beat: i64,
    /// When this beat was first seen.
    since: Instant,
    /// The lease that the member has chosen.
    lease: Duration,
}

impl Seen {
    /// Whether the member was silent for so many leases.
    fn is_silent(&self, leases: u32) -> bool {
        self.since.elapsed() >= self.lease * leases
    }
}

/// Who owns a database.
pub enum Claim {
    /// This process does, from now on.
    Owned(Ownership),
    /// Another member does, and is alive: the address that it joined with.
    Elsewhere(String),
}

/// The right to open the log of a database, and to answer reads of it.
#[derive(Clone)]
pub struct Ownership {
    member: Arc<State>,
    id: Uuid,
    database: String,
}

impl Cluster {
    /// Joins as a member that others reach at `address`. `lease` is how long others wait until they claim the databases
    /// of a member that does not respond: 10 s suit most clusters.
    ///
    /// # Errors
    /// `InvalidInput` for a lease below 100 ms; errors of the cluster.
    pub fn join(&self, address: &str, lease: Duration) -> io::Result<Member> {
        if lease < Duration::from_millis(100) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a lease takes at least 100 ms"));
        }
        let beating = Beating { id: Uuid::new_v4(), beat: 0, sent: None };
        let state = Arc::new(State {
            cluster: self.shared().clone(),
            address: address.to_owned(),
            lease,
            beating: Mutex::new(beating),
            seen: Mutex::default(),
            ending: tokio::sync::watch::channel(false).0,
        });
        let first = state.clone();
        state.cluster.wait(async move {
            first.beat().await?;
            first.look().await
        })?;
        let (ends, weak) = (state.ending.subscribe(), Arc::downgrade(&state));
        self.shared().spawn(keep_beating(weak, ends, lease / BEATS_PER_LEASE));
        Ok(Member(state))
    }
}

impl Member {
    /// Claims a database: this process owns it from now on, unless another one does that is alive. Claiming it again is
    /// no error.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn claim(&self, database: &str) -> io::Result<Claim> {
        let (state, name) = (self.0.clone(), database.to_owned());
        self.0.cluster.wait(async move { state.claim(&name).await })
    }

    /// Gives a database up, after it was closed: another process may claim it at once.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn release(&self, ownership: &Ownership) -> io::Result<()> {
        self.0.release(&ownership.database, ownership.id)
    }

    /// The address of the member that owns a database and is alive.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn owner(&self, database: &str) -> io::Result<Option<String>> {
        let (state, name) = (self.0.clone(), database.to_owned());
        self.0.cluster.wait(async move { state.owner(&name).await })
    }

    /// The addresses of the members that are alive as far as this one knows, itself included, in order.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn addresses(&self) -> io::Result<Vec<String>> {
        let state = self.0.clone();
        let members = self.0.cluster.wait(async move {
            let members = state.requests().members().await?;
            state.note(&members);
            Ok(members.into_iter().filter(|member| !state.is_dead(member.id)).collect::<Vec<_>>())
        })?;
        let mut addresses: Vec<String> = members.into_iter().map(|member| member.address).collect();
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// Ends the membership: what it owns can be claimed at once. Databases have to be closed before.
    ///
    /// # Errors
    /// Errors of the cluster: then others wait for a lease.
    pub fn leave(self) -> io::Result<()> {
        self.0.leave()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // If it fails, others wait for a lease.
        self.0.leave().ok();
    }
}

impl Ownership {
    /// Whether the database still belongs to this process. A read is as of now if this is true after it.
    ///
    /// No I/O.
    pub fn is_current(&self) -> bool {
        let beating = self.member.beating();
        beating.id == self.id && self.member.trusts(&beating)
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The log of the database, for [`Options::log_storage`](stemmadb::Options::log_storage).
    pub fn log(&self) -> Arc<CassandraLog> {
        Arc::new(CassandraLog::new(self.member.cluster.clone(), &self.database))
    }
}

/// A row of the table of members.
pub(crate) struct MemberRow {
    pub(crate) id: Uuid,
    pub(crate) address: String,
    pub(crate) beat: i64,
    pub(crate) lease: Duration,
}

impl State {
    fn beating(&self) -> MutexGuard<'_, Beating> {
        self.beating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Uuid, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> Requests {
        Requests::new(&self.cluster, "", 0)
    }

    fn trusts(&self, beating: &Beating) -> bool {
        beating.sent.is_some_and(|sent| sent.elapsed() < self.lease.mul_f64(TRUST))
    }

    /// Stores the next beat. A member that was silent for too long goes on as another one.
    async fn beat(&self) -> io::Result<()> {
        let (id, beat, lapsed) = {
            let mut beating = self.beating();
            let lapsed = (beating.beat > 0 && !self.trusts(&beating)).then_some(beating.id);
            if lapsed.is_some() {
                *beating = Beating { id: Uuid::new_v4(), beat: 0, sent: None };
            }
            (beating.id, beating.beat + 1, lapsed)
        };
        let sent = Instant::now();
        let requests = self.requests();
        requests.beat(id, &self.address, beat, self.lease).await?;
        {
            let mut beating = self.beating();
            if beating.id == id {
                (beating.beat, beating.sent) = (beat, Some(sent));
            }
        }
        match lapsed {
            Some(lapsed) => requests.forget_member(lapsed).await,
            None => Ok(()),
        }
    }

    /// Looks at the beats of all members, and forgets those that died long ago.
    async fn look(&self) -> io::Result<()> {
        let requests = self.requests();
        let members = requests.members().await?;
        self.note(&members);
        let forgotten: Vec<Uuid> =
            self.seen().iter().filter(|(_, seen)| seen.is_silent(FORGOTTEN_AFTER)).map(|(id, _)| *id).collect();
        for id in forgotten {
            requests.forget_member(id).await?;
        }
        Ok(())
    }

    fn note(&self, members: &[MemberRow]) {
        let now = Instant::now();
        let mut seen = self.seen();
        seen.retain(|id, _| members.iter().any(|member| member.id == *id));
        for member in members {
            let MemberRow { beat, lease, .. } = *member;
            let known = seen.entry(member.id).or_insert(Seen { beat, since: now, lease });
            if known.beat != beat {
                *known = Seen { beat, since: now, lease };
            }
        }
    }

    /// Whether a member has left, or was silent for the time of a lease.
    fn is_dead(&self, id: Uuid) -> bool {
        self.seen().get(&id).is_none_or(|seen| seen.is_silent(1))
    }

    fn release(&self, database: &str, id: Uuid) -> io::Result<()> {
        let (requests, database) = (self.requests(), database.to_owned());
        self.cluster.wait(async move { requests.release(&database, id).await })
    }

    async fn owner(&self, database: &str) -> io::Result<Option<String>> {
        let Some((owner, address)) = self.requests().owner(database).await? else { return Ok(None) };
        if self.is_dead(owner) {
            // Or it has joined just now.
            self.look().await?;
        }
        Ok(Some(address).filter(|_| !self.is_dead(owner)))
    }

    async fn claim(self: &Arc<Self>, database: &str) -> io::Result<Claim> {
        let requests = self.requests();
        loop {
            let id = {
                let beating = self.beating();
                if !self.trusts(&beating) {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the cluster was not reached for too long"));
                }
                beating.id
            };
            let owned = || Claim::Owned(Ownership { member: self.clone(), id, database: database.to_owned() });
            let owner = requests.owner(database).await?;
            match owner {
                Some((owner, _)) if owner == id => return Ok(owned()),
                Some((owner, address)) => {
                    self.look().await?;
                    if !self.is_dead(owner) {
                        return Ok(Claim::Elsewhere(address));
                    }
                    requests.replace_owner(database, Some(owner), id, &self.address).await?;
                }
                None => requests.replace_owner(database, None, id, &self.address).await?,
            }
        }
    }

    fn leave(&self) -> io::Result<()> {
        let id = {
            let mut beating = self.beating();
            if beating.sent.take().is_none() {
                return Ok(());
            }
            beating.id
        };
        self.ending.send_replace(true);
        let requests = self.requests();
        self.cluster.wait(async move { requests.forget_member(id).await })
    }
}

impl LogOwnership for Ownership {
    fn is_current(&self) -> bool {
        Ownership::is_current(self)
    }

    fn log(&self) -> Arc<dyn LogStorage> {
        Ownership::log(self)
    }
}

/// A member as a server of a cluster, see `ServerBuilder::cluster` of the crate `stemmadb-server`.
impl ClusterStore for Member {
    fn address(&self) -> &str {
        &self.0.address
    }

    fn lease(&self) -> Duration {
        self.0.lease
    }

    fn members(&self) -> io::Result<Vec<String>> {
        self.addresses()
    }

    fn owner(&self, log: &str) -> io::Result<Option<String>> {
        Member::owner(self, log)
    }

    fn claim(&self, log: &str) -> io::Result<LogClaim> {
        Ok(match Member::claim(self, log)? {
            Claim::Owned(ownership) => LogClaim::Owned(Arc::new(ownership)),
            Claim::Elsewhere(address) => LogClaim::Elsewhere(address),
        })
    }

    fn release(&self, log: &str) -> io::Result<()> {
        let id = self.0.beating().id;
        self.0.release(log, id)
    }

    fn delete_log(&self, log: &str) -> io::Result<()> {
        Cluster::of(self.0.cluster.clone()).delete_log(log)
    }

    fn log(&self, log: &str) -> Arc<dyn LogStorage> {
        Arc::new(CassandraLog::new(self.0.cluster.clone(), log))
    }

    fn records(&self, known: Option<Uuid>) -> io::Result<Option<ClusterRecords>> {
        let requests = self.0.requests();
        self.0.cluster.wait(async move {
            if known.is_some() && requests.records_version().await? == known {
                return Ok(None);
            }
            requests.records().await.map(Some)
        })
    }

    fn change_records(&self, before: Option<Uuid>, changes: &[RecordChange]) -> io::Result<Option<Uuid>> {
        let (requests, changes) = (self.0.requests(), changes.to_vec());
        self.0.cluster.wait(async move { requests.change_records(before, &changes).await })
    }

    fn leave(&self) {
        // If it fails, others wait for a lease.
        self.0.leave().ok();
    }
}

/// Beats until the member leaves.
async fn keep_beating(state: Weak<State>, mut ends: tokio::sync::watch::Receiver<bool>, interval: Duration) {
    loop {
        tokio::select! {
            _ = ends.changed() => return,
            () = tokio::time::sleep(interval) => {}
        }
        let Some(state) = state.upgrade() else { return };
        // A beat that fails is made up for by the next one, unless the lease ends before.
        let beats = async {
            state.beat().await.ok();
            state.look().await.ok();
        };
        tokio::select! {
            _ = ends.changed() => return,
            () = beats => {}
        }
    }
}
