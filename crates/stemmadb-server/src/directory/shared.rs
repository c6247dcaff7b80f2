//! A directory as a member of a cluster: its databases are those of the cluster, each served by the member that owns
//! its log.
//!
//! The catalog is shared, and read again when it has changed. A database is claimed when it is opened here; which
//! member should do that is a function of the members and its name ([`preferred`]). So members agree without talking
//! about it, and when they come or go, few databases move. All files on this machine are derived, in [`COPIES`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use stemmadb::Database;
use stemmadb::backup::At;
use stemmadb::log_storage::{ClusterStore, LogClaim, LogOwnership, LogStorage};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::catalog::CatalogEntry;
use super::file_name::unique_directory;
use super::followed::Followed;
use super::records::unreachable_cluster;
use super::{
    DatabaseSlot, Directory, NewDatabase, Purpose, ServedDatabase, already_exists, io_failure, is_listed,
    name as database_name, remove,
};
use crate::error::{Failure, Result};
use crate::http::blocking;

/// The directory, within that of the server, with what is derived from the logs of the cluster.
pub(super) const COPIES: &str = "cluster";

/// How long requests may take when their database moves to another server. What takes longer is ended.
const MOVING_GRACE: Duration = Duration::from_secs(2);
/// How long a request waits for a database that moves.
const MOVING_TIMEOUT: Duration = Duration::from_secs(10);
/// How many databases are given up after a look at the cluster.
const MOVES_PER_LOOK: usize = 16;
/// How often such a request looks.
const MOVING_POLL: Duration = Duration::from_millis(20);
/// How often the members of a lease look at the cluster.
const LOOKS_PER_LEASE: u32 = 5;
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The part of a directory that belongs to its cluster.
pub(super) struct SharedDirectory {
    store: Arc<dyn ClusterStore>,
    /// The version of the shared catalog that the slots show.
    shown: Mutex<Option<Uuid>>,
    /// Notifies of new versions.
    changed: watch::Sender<()>,
    /// The members that are alive, as last seen. Without this one, if it is leaving.
    members: RwLock<Vec<String>>,
    /// Whether this member takes no databases any more.
    is_leaving: AtomicBool,
    /// The slots of databases that were deleted by other members, which may still be open.
    deleted: Mutex<Vec<Arc<DatabaseSlot>>>,
    /// The databases that are owned by the server of another one, and the names of those.
    placed_with: RwLock<HashMap<String, String>>,
    /// The databases of other members that are read here.
    pub(super) followed: Followed,
    /// The logs of deleted databases, and when they were first seen.
    removals: Mutex<HashMap<String, Instant>>,
}

/// Where the database of a slot is.
#[derive(Default)]
pub(super) struct SlotPlace {
    /// The member that owned it when it was last asked for.
    elsewhere: Mutex<Option<String>>,
    /// Whether this server has claimed it.
    is_claimed: AtomicBool,
    /// Whether it is about to move to another server: requests wait meanwhile.
    is_moving: AtomicBool,
}

/// Which server a request is for.
pub(crate) enum Place {
    /// This one. The database is open if the server is in a cluster and it exists.
    Here(Option<Arc<ServedDatabase>>),
    /// The URL of another one.
    There(String),
}

/// The error for a database that another server owns.
fn misdirected(name: &str, owner: &str) -> Failure {
    let reason = format!("`{name}` is served by {owner}: ask there.");
    Failure::new(StatusCode::MISDIRECTED_REQUEST, "misdirected_request", reason)
}

impl SharedDirectory {
    pub(super) fn new(store: Arc<dyn ClusterStore>) -> Self {
        SharedDirectory {
            shown: Mutex::default(),
            changed: watch::channel(()).0,
            // A failure is repeated soon.
            members: RwLock::new(store.members().unwrap_or_else(|_| vec![store.address().to_owned()])),
            is_leaving: AtomicBool::new(false),
            deleted: Mutex::default(),
            placed_with: RwLock::default(),
            followed: Followed::default(),
            removals: Mutex::default(),
            store,
        }
    }

    /// Claims the database of a slot. `preferred`: another member that should own it, unless one owns it already.
    ///
    /// # Errors
    /// 421 if another member owns it, or should.
    pub(super) fn claim(&self, slot: &DatabaseSlot, preferred: Option<String>) -> Result<Arc<dyn LogOwnership>> {
        let name = &slot.entry.name;
        if self.is_leaving.load(Ordering::Acquire) {
            return Err(misdirected(name, &self.preferred_other(name, &[]).unwrap_or_default()));
        }
        if let Some(other) = preferred {
            let owner = self.store.owner(&slot.entry.log()).map_err(|error| unreachable_cluster(&error))?;
            let other = owner.unwrap_or(other);
            if other != self.store.address() {
                return Err(misdirected(name, &other));
            }
        }
        match self.store.claim(&slot.entry.log()).map_err(|error| unreachable_cluster(&error))? {
            LogClaim::Owned(ownership) => {
                slot.place.is_claimed.store(true, Ordering::Release);
                *slot.place.elsewhere.lock() = None;
                Ok(ownership)
            }
            LogClaim::Elsewhere(owner) => {
                let failure = misdirected(name, &owner);
                slot.place.is_claimed.store(false, Ordering::Release);
                *slot.place.elsewhere.lock() = Some(owner);
                Err(failure)
            }
        }
    }

    /// Gives up what was claimed for a database that does not exist any more.
    pub(super) fn give_up(&self, slot: &DatabaseSlot) {
        slot.place.is_claimed.store(false, Ordering::Release);
        if let Err(error) = self.store.release(&slot.entry.log()) {
            tracing::warn!(target: "stemma::database", "giving up {}: {error}", slot.entry.name);
        }
    }

    /// Deletes a log, and gives it up.
    pub(super) fn remove_log(&self, log: &str) -> Result<()> {
        let removed = self.store.delete_log(log).and_then(|()| self.store.release(log));
        removed.map_err(|error| unreachable_cluster(&error))
    }

    /// A log, to follow it.
    pub(super) fn log(&self, log: &str) -> Arc<dyn LogStorage> {
        self.store.log(log)
    }

    pub(super) fn leave(&self) {
        self.followed.close();
        self.store.leave();
    }

    /// The member that should own the database `name`; none if that is this one. `all` are the databases that are
    /// divided evenly among the members with it, if there are any.
    fn preferred_other(&self, name: &str, all: &[String]) -> Option<String> {
        let members = self.members.read();
        preferred_of(&members, name, all).filter(|member| *member != self.store.address()).map(str::to_owned)
    }

    fn look_interval(&self) -> Duration {
        (self.store.lease() / LOOKS_PER_LEASE).min(LOOK_INTERVAL_MAX)
    }
}

impl Directory {
    /// Whether the server is in a cluster.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether the server is about to stop, and has given its databases to other members of the cluster.
    pub(crate) fn is_leaving(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.is_leaving.load(Ordering::Acquire))
    }

    /// A receiver that is notified when records of the cluster have changed; none without a cluster.
    pub(crate) fn records_changed(&self) -> Option<watch::Receiver<()>> {
        self.cluster.as_ref().map(|cluster| cluster.changed.subscribe())
    }

    /// The version of the records that the servers of a cluster share, as last seen; none without a cluster.
    pub(crate) fn records_version(&self) -> Option<Uuid> {
        self.cluster.as_ref().and_then(|cluster| *cluster.shown.lock())
    }

    /// Whether there is a database `name`, which another server of the cluster may just have created. Blocks.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) fn exists(&self, name: &str) -> Result<bool> {
        if !self.contains(name) {
            self.refresh()?;
        }
        Ok(self.contains(name))
    }

    /// The server of the cluster that should do what has a name; none if that is this one.
    pub(crate) fn other_member_for(&self, task: &str) -> Option<String> {
        self.cluster.as_ref()?.preferred_other(task, &[])
    }

    /// From now on, the server that should own a database is that of another one: `with` maps names to theirs.
    pub(crate) fn place_with(&self, with: HashMap<String, String>) {
        if let Some(cluster) = &self.cluster {
            *cluster.placed_with.write() = with;
        }
    }

    /// The member that should own the database of an entry; none if that is this one.
    pub(super) fn preferred_other(&self, entry: &CatalogEntry) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        if let Some(other) = cluster.placed_with.read().get(&entry.name) {
            return cluster.preferred_other(other, &[]);
        }
        let all = entry.kind.shard_of().map_or_else(Vec::new, |of| self.shards_of(of));
        cluster.preferred_other(&entry.name, &all)
    }

    /// The URL of the server that has the database `name`, or will have it when it is asked for; none without a
    /// cluster. Blocks.
    ///
    /// # Errors
    /// 404 if there is no such database; 503 if the cluster does not answer.
    pub(crate) fn owner(&self, name: &str) -> Result<Option<String>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let slot = self.slot(name)?;
        let owner = cluster.store.owner(&slot.entry.log()).map_err(|error| unreachable_cluster(&error))?;
        let next = || self.preferred_other(&slot.entry).unwrap_or_else(|| cluster.store.address().to_owned());
        Ok(Some(owner.unwrap_or_else(next)))
    }

    /// The URL of this server, if it is in a cluster.
    pub(crate) fn own_address(&self) -> Option<&str> {
        self.cluster.as_ref().map(|cluster| cluster.store.address())
    }

    /// How long a member of the cluster may be silent before others take its databases.
    pub(crate) fn lease(&self) -> Duration {
        self.cluster.as_ref().map_or(Duration::ZERO, |cluster| cluster.store.lease())
    }

    /// The members of the cluster that are alive, as last seen, by their URLs; none without a cluster.
    pub(crate) fn members(&self) -> Vec<String> {
        self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.members.read().clone())
    }

    /// Where a request for the database `name` is answered. If here, the database is open. `is_passed_on`: whether
    /// another server thinks that it is here. `creates`: whether the request creates it.
    ///
    /// # Errors
    /// 503 if the cluster does not answer; those of opening it.
    pub(crate) async fn place(self: &Arc<Self>, name: &str, is_passed_on: bool, creates: bool) -> Result<Place> {
        if self.cluster.is_none() || database_name::check(name).is_err() {
            return Ok(Place::Here(None));
        }
        if let Ok(slot) = self.slot(name) {
            let waits = async {
                while slot.place.is_moving.load(Ordering::Acquire) {
                    sleep(MOVING_POLL).await;
                }
            };
            timeout(MOVING_TIMEOUT, waits).await.ok();
            let opened = slot.opened.try_lock().and_then(|opened| opened.clone());
            if let Some(served) = opened.filter(|served| served.is_owned()) {
                return Ok(Place::Here(Some(served)));
            }
            if let Some(owner) = slot.place.elsewhere.lock().clone().filter(|_| !is_passed_on) {
                return Ok(Place::There(owner));
            }
        }
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || this.find_place(&name, is_passed_on, creates)).await
    }

    /// Opens the database `name` for what this server does by itself; `None` if another server of the cluster owns it,
    /// or should.
    ///
    /// # Errors
    /// 404 if there is none; 503 if the cluster does not answer.
    pub(crate) async fn open_own_database(self: &Arc<Self>, name: &str) -> Result<Option<Arc<ServedDatabase>>> {
        match self.current_place(name).await? {
            Place::Here(Some(served)) => Ok(Some(served)),
            Place::Here(None) => self.open_database(name).await.map(Some),
            Place::There(_) => Ok(None),
        }
    }

    /// The server of the cluster that does what concerns the database `name`, even if there is none; none if that is
    /// this one.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) async fn other_owner(self: &Arc<Self>, name: &str) -> Result<Option<String>> {
        Ok(match self.current_place(name).await? {
            Place::Here(Some(_)) => None,
            Place::Here(None) => self.other_member_for(name),
            Place::There(owner) => Some(owner),
        })
    }

    /// As [`Directory::place`], but a former owner may have given it up to this server.
    async fn current_place(self: &Arc<Self>, name: &str) -> Result<Place> {
        if self.slot(name).is_ok_and(|slot| self.preferred_other(&slot.entry).is_none()) {
            self.forget_place(name);
        }
        self.place(name, false, false).await
    }

    /// Forgets where the database `name` is: its owner did not answer, or is no longer the owner.
    pub(crate) fn forget_place(&self, name: &str) {
        if let Ok(slot) = self.slot(name) {
            *slot.place.elsewhere.lock() = None;
        }
    }

    fn find_place(&self, name: &str, is_passed_on: bool, creates: bool) -> Result<Place> {
        let Some(cluster) = &self.cluster else { return Ok(Place::Here(None)) };
        if self.slot(name).is_err() {
            self.refresh()?;
        }
        let Ok(slot) = self.slot(name) else {
            let other = cluster.preferred_other(name, &[]).filter(|_| creates && !is_passed_on);
            return Ok(other.map_or(Place::Here(None), Place::There));
        };
        let owner = cluster.store.owner(&slot.entry.log()).map_err(|error| unreachable_cluster(&error))?;
        let other = match owner {
            Some(owner) => Some(owner).filter(|owner| owner != cluster.store.address()),
            None => self.preferred_other(&slot.entry).filter(|_| !is_passed_on),
        };
        if let Some(other) = other {
            *slot.place.elsewhere.lock() = Some(other.clone());
            return Ok(Place::There(other));
        }
        let opened = self.open_blocking(&slot, Purpose::Claim);
        let is_replaced = !is_listed(&self.slots.read(), &slot);
        match opened {
            // The database was deleted by another member, and perhaps created again: the slot is a newer one then.
            Err(_) if is_replaced => self.find_place(name, is_passed_on, creates),
            Err(failure) if failure.status() == StatusCode::MISDIRECTED_REQUEST => {
                let owner = slot.place.elsewhere.lock().clone();
                owner.map(Place::There).ok_or(failure)
            }
            opened => opened.map(|served| Place::Here(Some(served))),
        }
    }

    /// Looks which members there are, also those that have just come. Blocks.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) fn refresh_members(&self) -> Result<()> {
        self.cluster.as_ref().map_or(Ok(()), |cluster| self.look_at_members(cluster))
    }

    /// Reads what other members have changed in the catalog. Returns its version; none without a cluster. Blocks.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) fn refresh(&self) -> Result<Option<Uuid>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let version = self.catalog.refresh()?;
        if *cluster.shown.lock() == version {
            return Ok(version);
        }
        let (mut created, mut deleted) = (Vec::new(), Vec::new());
        {
            let mut slots = self.slots.write();
            let entries = self.catalog.entries()?.into_iter().map(|entry| (entry.name.clone(), entry));
            let mut entries: BTreeMap<String, CatalogEntry> = entries.collect();
            slots.retain(|name, slot| match entries.remove_entry(name) {
                Some((_, entry)) if entry.instance_id == slot.entry.instance_id => {
                    *slot.settings.lock() = entry.settings();
                    true
                }
                // It was deleted, and perhaps created again.
                other => {
                    entries.extend(other);
                    deleted.push(slot.clone());
                    false
                }
            });
            for (name, entry) in entries {
                created.push(entry.clone());
                slots.insert(name, DatabaseSlot::new(entry));
            }
        }
        *cluster.shown.lock() = version;
        cluster.changed.send_replace(());
        let is_shown = |entry: &CatalogEntry| entry.check_is_no_shard().is_ok();
        let deletions = deleted.iter().map(|slot| (&slot.entry, "deleted"));
        for (entry, what) in deletions.chain(created.iter().map(|entry| (entry, "created"))) {
            if is_shown(entry) {
                self.updates.record(&entry.name, what);
                self.changed.send_modify(|count| *count += 1);
            }
        }
        cluster.deleted.lock().extend(deleted);
        Ok(version)
    }

    /// Looks at the cluster: closes what was deleted or lost, gives up what others should have, completes deletions.
    /// Blocks.
    fn look_at_cluster(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        self.close_lost();
        self.look_at_members(cluster)?;
        self.refresh()?;
        for slot in std::mem::take(&mut *cluster.deleted.lock()) {
            self.close_slot(&slot);
            if slot.place.is_claimed.load(Ordering::Acquire) {
                cluster.give_up(&slot);
            }
            remove(&self.location(&slot.entry)).ok();
        }
        self.complete_log_removals(cluster)?;
        self.give_up_others(cluster).map(drop)
    }

    /// Looks which members there are. Those that are gone have no databases any more.
    fn look_at_members(&self, cluster: &SharedDirectory) -> Result<()> {
        let mut members = cluster.store.members().map_err(|error| unreachable_cluster(&error))?;
        if cluster.is_leaving.load(Ordering::Acquire) {
            members.retain(|member| *member != cluster.store.address());
        }
        for slot in self.slots.read().values() {
            slot.place.elsewhere.lock().take_if(|owner| !members.contains(owner));
        }
        *cluster.members.write() = members;
        Ok(())
    }

    /// Gives all databases to the other members, and leaves the cluster, so that nothing waits for a server that stops.
    /// Its requests are passed on from then on. Returns how long it takes until all members know that; none if there
    /// are no others. Blocks, at most until `deadline` and the requests of the last databases have ended.
    pub(crate) fn hand_over(&self, deadline: Instant) -> Option<Duration> {
        let cluster = self.cluster.as_ref()?;
        let members = cluster.store.members().ok()?;
        if members.iter().all(|member| member == cluster.store.address()) {
            return None;
        }
        cluster.is_leaving.store(true, Ordering::Release);
        // What can't be given up now, others take when this server has left.
        let given_up = self.look_at_members(cluster).and_then(|()| {
            while Instant::now() < deadline && self.give_up_others(cluster)? > 0 {}
            Ok(())
        });
        if let Err(failure) = given_up {
            tracing::warn!(target: "stemma::database", "leaving the cluster: {}", failure.reason());
        }
        cluster.store.leave();
        Some(2 * cluster.look_interval())
    }

    /// Closes the databases that another server may own by now.
    fn close_lost(&self) {
        let open: Vec<_> = self.open_slots.lock().clone();
        for slot in open {
            let is_lost =
                slot.opened.try_lock().is_some_and(|opened| opened.as_ref().is_some_and(|served| !served.is_owned()));
            if is_lost {
                tracing::warn!(target: "stemma::database", "{} belongs to another server now", slot.entry.name);
                self.close_slot(&slot);
                slot.place.is_claimed.store(false, Ordering::Release);
            }
        }
    }

    fn close_slot(&self, slot: &Arc<DatabaseSlot>) {
        self.close_slot_unless(slot, |_| false);
    }

    /// Closes the database of a slot unless `is_used` says otherwise, while no request can begin to use it. Returns
    /// whether it is closed.
    fn close_slot_unless(&self, slot: &Arc<DatabaseSlot>, is_used: impl Fn(&Arc<ServedDatabase>) -> bool) -> bool {
        let closed = {
            let mut opened = slot.opened.lock();
            if opened.as_ref().is_some_and(is_used) {
                return false;
            }
            opened.take()
        };
        self.open_slots.lock().retain(|open| !Arc::ptr_eq(open, slot));
        if let Some(served) = closed {
            served.close();
        }
        true
    }

    /// Adds a database to the cluster with the documents of one in this directory. It is in the catalog once it is
    /// complete; what is left of one that is not is removed by any member. Blocks.
    ///
    /// # Errors
    /// 412 if there is a database of the name; 503 if the cluster does not answer.
    pub(super) fn add_filled(&self, name: &str, new: NewDatabase, directory: &Path) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Err(Failure::internal("there is no cluster")) };
        self.refresh()?;
        if self.contains(name) {
            return Err(already_exists());
        }
        let entry = CatalogEntry::new(name, unique_directory(name));
        let slot = DatabaseSlot::new(CatalogEntry { is_partitioned: new.is_partitioned, kind: new.kind, ..entry });
        self.catalog.begin(&slot.entry)?;
        let added = self.copy_to_cluster(cluster, &slot, directory).and_then(|()| self.catalog.add_begun(&slot.entry));
        if added.is_err() {
            // Otherwise, another look at the cluster removes it.
            self.remove_files(&slot.entry).and_then(|()| self.catalog.removed(&slot.entry)).ok();
        }
        added?;
        self.refresh().map(drop)
    }

    fn copy_to_cluster(&self, cluster: &SharedDirectory, slot: &DatabaseSlot, directory: &Path) -> Result<()> {
        let copy = Database::open_with(directory, self.options.clone())?;
        let log = cluster.claim(slot, None)?.log();
        copy.maintenance().branch_to_store(self.location(&slot.entry), At::Latest, log)?;
        Ok(copy.close()?)
    }

    /// Deletes the logs whose deletion another member has begun and not completed. A log that a member has is being
    /// filled.
    fn complete_log_removals(&self, cluster: &SharedDirectory) -> Result<()> {
        let recorded: HashSet<String> = self.catalog.removals()?.into_iter().collect();
        let due: Vec<String> = {
            let mut seen = cluster.removals.lock();
            seen.retain(|log, _| recorded.contains(log));
            let now = Instant::now();
            let is_due = |log: &&String| {
                let since = *seen.entry((*log).clone()).or_insert(now);
                since.elapsed() > 2 * cluster.store.lease() && cluster.preferred_other(log, &[]).is_none()
            };
            recorded.iter().filter(is_due).cloned().collect()
        };
        for log in due {
            if cluster.store.owner(&log).map_err(|error| unreachable_cluster(&error))?.is_some() {
                continue;
            }
            cluster.remove_log(&log)?;
            self.catalog.completed(&log)?;
        }
        Ok(())
    }

    /// Gives up some of the databases that other members should own, once their requests have ended. Returns how many.
    fn give_up_others(&self, cluster: &SharedDirectory) -> Result<usize> {
        let claimed = |slot: &&Arc<DatabaseSlot>| slot.place.is_claimed.load(Ordering::Acquire);
        let claimed: Vec<_> = self.slots.read().values().filter(claimed).cloned().collect();
        let other_of = |slot: &DatabaseSlot| self.preferred_other(&slot.entry);
        let moving = claimed.into_iter().filter_map(|slot| Some((other_of(&slot)?, slot))).take(MOVES_PER_LOOK);
        let moving: Vec<_> = moving.collect();
        let (count, since) = (moving.len(), Instant::now());
        moving.iter().for_each(|(_, slot)| slot.place.is_moving.store(true, Ordering::Release));
        for (other, slot) in moving {
            let is_used =
                |served: &Arc<ServedDatabase>| Arc::strong_count(served) > 1 && since.elapsed() < MOVING_GRACE;
            while !self.close_slot_unless(&slot, is_used) {
                std::thread::sleep(MOVING_POLL);
            }
            let released = cluster.store.release(&slot.entry.log());
            slot.place.is_claimed.store(false, Ordering::Release);
            *slot.place.elsewhere.lock() = Some(other);
            slot.place.is_moving.store(false, Ordering::Release);
            released.map_err(|error| unreachable_cluster(&error))?;
        }
        Ok(count)
    }
}

/// Looks at the cluster at intervals, until the server stops.
pub(crate) async fn tend_cluster(directory: Arc<Directory>, mut stopped: watch::Receiver<bool>) {
    let Some(interval) = directory.cluster.as_ref().map(SharedDirectory::look_interval) else { return };
    while timeout(interval, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        let directory = directory.clone();
        let looked = blocking(move || directory.look_at_cluster()).await;
        if let Err(failure) = looked {
            tracing::warn!(target: "stemma::database", "{}", failure.reason());
        }
    }
}

/// Removes the copies of databases that the cluster does not have any more.
pub(super) fn remove_others(path: &Path, entries: &[CatalogEntry]) -> Result<()> {
    let copies = path.join(COPIES);
    let failed = |error| io_failure("create", &copies, &error);
    std::fs::create_dir_all(&copies).map_err(failed)?;
    let known: HashSet<&str> = entries.iter().map(|entry| entry.directory.as_str()).collect();
    for entry in copies.read_dir().map_err(failed)?.flatten() {
        if entry.file_name().to_str().is_none_or(|name| !known.contains(name)) {
            remove(&entry.path()).map_err(|error| io_failure("remove", &entry.path(), &error))?;
        }
    }
    Ok(())
}

/// The member that should own the database `name`; none if there are no members. Members that come and go change that
/// for few names.
fn preferred<'a>(members: &'a [String], name: &str) -> Option<&'a str> {
    members.iter().max_by_key(|member| weight(member, name)).map(String::as_str)
}

/// As [`preferred`], for one of some databases that are divided evenly: no member has two more of them than another.
fn preferred_of<'a>(members: &'a [String], name: &str, all: &[String]) -> Option<&'a str> {
    let (each, mut with_one_more) = (all.len() / members.len().max(1), all.len() % members.len().max(1));
    let mut counts = vec![0; members.len()];
    for database in all {
        let has_space = |number: &usize| counts[*number] < each || counts[*number] == each && with_one_more > 0;
        let chosen = (0..members.len()).filter(has_space).max_by_key(|number| weight(&members[*number], database))?;
        if database == name {
            return Some(&members[chosen]);
        }
        with_one_more -= usize::from(counts[chosen] == each);
        counts[chosen] += 1;
    }
    preferred(members, name)
}

fn weight(member: &str, name: &str) -> impl Ord + use<> {
    Sha256::new().chain_update(member).chain_update([0]).chain_update(name).finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_spread_and_few_move_when_members_come_and_go() {
        let members: Vec<String> = (0..4).map(|number| format!("http://10.0.0.{number}:5984")).collect();
        let owners = |members: &[String]| -> Vec<String> {
            (0..1000).map(|number| preferred(members, &format!("db{number}")).unwrap().to_owned()).collect()
        };
        let all = owners(&members);
        for member in &members {
            let count = all.iter().filter(|owner| *owner == member).count();
            assert!((150..350).contains(&count), "{count} of 1,000");
        }
        let fewer = owners(&members[..3]);
        let moved = all.iter().zip(&fewer).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(before, _)| *before == members[3]), "only those of the member that left move");
        assert_eq!(preferred(&[], "db"), None);
    }

    #[test]
    fn shards_are_divided_evenly() {
        let members: Vec<String> = (0..3).map(|number| format!("http://10.0.0.{number}:5984")).collect();
        for count in 0..20 {
            let shards: Vec<String> = (0..count).map(|number| format!("v/shard-{number}")).collect();
            let owners: Vec<_> = shards.iter().map(|shard| preferred_of(&members, shard, &shards).unwrap()).collect();
            let counts = members.iter().map(|member| owners.iter().filter(|owner| **owner == member).count());
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            assert!(most - least <= 1, "{count} shards: from {least} to {most}");
        }
        assert!(preferred_of(&members, "v/shard-9", &["v/shard-1".to_owned()]).is_some(), "one that is not known");
        assert_eq!(preferred_of(&[], "v/shard-1", &["v/shard-1".to_owned()]), None);
    }
}
