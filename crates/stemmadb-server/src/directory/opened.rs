//! Open databases: opening and closing them, their memory, and their recovery on a full disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stemmadb::log_storage::LogOwnership;
use stemmadb::open_files::open_file_count;

use super::{DatabaseKind, DatabaseSlot, Directory, Purpose, ServedDatabase, name as database_name, space};
use crate::error::{Failure, Result};
use crate::http::blocking;

impl Directory {
    /// Returns the database `name`, and opens it if necessary.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_database(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        self.open_for(name, Purpose::Any).await
    }

    /// As [`Directory::open_database`]; `None` if the database is virtual.
    ///
    /// # Errors
    /// 404 if there is none; 403 if it is a shard.
    pub(crate) async fn open_unless_virtual(self: &Arc<Self>, name: &str) -> Result<Option<Arc<ServedDatabase>>> {
        let slot = self.find(name).await?;
        if slot.entry.kind == DatabaseKind::Virtual {
            return Ok(None);
        }
        slot.entry.check_is_plain()?;
        self.open_found(slot, Purpose::Any).await.map(Some)
    }

    /// As [`Directory::open_database`], for a request that frees space: on a full disk, it may use the reserve.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_to_free_space(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        self.open_for(name, Purpose::FreeSpace).await
    }

    /// As [`Directory::open_to_free_space`], for a compaction, which writes before it frees space: on a full disk, it
    /// uses the reserve even if the database itself still takes writes.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_to_compact(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        if !space::has_space(&self.path) {
            let this = self.clone();
            blocking(move || {
                this.release_reserve();
                Ok(())
            })
            .await?;
        }
        self.open_for(name, Purpose::FreeSpace).await
    }

    /// Opens a virtual database's own part, or one of its shards: requests of clients don't come here directly.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_part(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        self.open_found(self.find(name).await?, Purpose::Claim).await
    }

    async fn open_for(self: &Arc<Self>, name: &str, purpose: Purpose) -> Result<Arc<ServedDatabase>> {
        let slot = self.find(name).await?;
        slot.entry.check_is_plain()?;
        self.open_found(slot, purpose).await
    }

    pub(super) async fn find(self: &Arc<Self>, name: &str) -> Result<Arc<DatabaseSlot>> {
        match self.slot(name) {
            Ok(slot) => Ok(slot),
            // It may have been copied into the directory. Names that can't be those of databases are no paths either.
            Err(missing) if database_name::check(name).is_err() => Err(missing),
            Err(missing) if self.cluster.is_none() && !self.may_be_copied(name) => Err(missing),
            Err(_) => {
                let this = self.clone();
                blocking(move || {
                    this.refresh()?;
                    this.search_if_changed()
                })
                .await?;
                self.slot(name)
            }
        }
    }

    pub(super) async fn open_found(
        self: &Arc<Self>,
        slot: Arc<DatabaseSlot>,
        purpose: Purpose,
    ) -> Result<Arc<ServedDatabase>> {
        self.note_use(&slot);
        if let Some(served) = slot.opened.try_lock().and_then(|opened| opened.clone())
            && self.is_usable(&served, purpose)
            && !self.reserve.is_restorable()
        {
            return Ok(served);
        }
        let this = self.clone();
        blocking(move || {
            this.restore_reserve();
            let served = this.open_blocking(&slot, purpose)?;
            this.close_unused();
            Ok(served)
        })
        .await
    }

    pub(super) fn note_use(&self, slot: &DatabaseSlot) {
        slot.last_use.store(self.use_count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether an open database need not be opened again: it takes writes, or would not after that either.
    fn is_usable(&self, served: &ServedDatabase, purpose: Purpose) -> bool {
        served.is_owned()
            && (served.takes_writes()
                || !served.may_be_reopened()
                || purpose != Purpose::FreeSpace && !space::has_space(&self.path))
    }

    pub(super) fn open_blocking(&self, slot: &Arc<DatabaseSlot>, purpose: Purpose) -> Result<Arc<ServedDatabase>> {
        let mut opened = slot.opened.lock();
        match &*opened {
            Some(served) if self.is_usable(served, purpose) => return Ok(served.clone()),
            Some(served) => {
                if purpose == Purpose::FreeSpace && !space::has_space(&self.path) {
                    self.release_reserve();
                }
                served.close();
            }
            None => {}
        }
        *opened = None;
        let ownership = match &self.cluster {
            None => None,
            Some(cluster) => {
                let other = if purpose == Purpose::Claim { None } else { self.preferred_other(&slot.entry) };
                let ownership = cluster.claim(slot, other)?;
                // What the former owner has changed.
                self.refresh()?;
                Some(ownership)
            }
        };
        if !super::is_listed(&self.slots.read(), slot) {
            if let Some(cluster) = &self.cluster {
                cluster.give_up(slot);
            }
            return Err(Failure::no_database());
        }
        let served = self.open_slot(slot, ownership)?;
        served.database().maintenance().set_deletions_only(self.reserve.is_released());
        let served = opened.insert(Arc::new(served)).clone();
        drop(opened);
        let mut open_slots = self.open_slots.lock();
        if !open_slots.iter().any(|other| Arc::ptr_eq(other, slot)) {
            open_slots.push(slot.clone());
        }
        drop(open_slots);
        self.divide_memory();
        Ok(served)
    }

    pub(super) fn open_slot(
        &self,
        slot: &DatabaseSlot,
        ownership: Option<Arc<dyn LogOwnership>>,
    ) -> stemmadb::Result<ServedDatabase> {
        let count = self.open_slots.lock().len();
        let (share, _) = self.budget.divide(count + 1, 0);
        let options = match &slot.index_policy {
            Some(policy) => self.options.clone().index(policy.clone()),
            None => self.options.clone(),
        };
        let (entry, updates) = (slot.current_entry(), &self.updates);
        ServedDatabase::open(&entry, &self.location(&entry), options, share, updates, ownership)
    }

    /// The open databases. One that is being opened or closed is skipped.
    pub(crate) fn opened(&self) -> Vec<Arc<ServedDatabase>> {
        let opened = |slot: &Arc<DatabaseSlot>| slot.opened.try_lock().and_then(|opened| opened.clone());
        self.open_slots.lock().iter().filter_map(opened).collect()
    }

    /// Closes the databases that were not used for longest if too many databases or files are open. One that is in use
    /// stays open.
    pub(super) fn close_unused(&self) {
        let open_count = self.open_slots.lock().len();
        if open_count > self.open_max {
            // A few more than needed, so that not every opening closes one.
            let count = open_count - self.open_max + self.open_max / 16;
            self.close_least_recent(|closed_count| closed_count < count);
        }
        if open_file_count() > self.open_files_max {
            self.close_files(self.open_files_max - self.open_files_max / 16);
        }
    }

    /// Closes half of the open databases, as far as nobody uses them, because no file descriptor is left. Returns how
    /// many were closed. Blocks.
    pub(crate) fn release_descriptors(&self) -> usize {
        let count = self.open_slots.lock().len().div_ceil(2);
        self.close_least_recent(|closed_count| closed_count < count)
    }

    /// Closes unused databases until only `target` files of databases are open. Returns how many were closed. Blocks.
    pub(super) fn close_files(&self, target: usize) -> usize {
        self.close_least_recent(|_| open_file_count() > target)
    }

    /// Closes unused databases as long as `continues` is true of the number of closed ones.
    fn close_least_recent(&self, continues: impl Fn(usize) -> bool) -> usize {
        let mut open = self.open_slots.lock().clone();
        open.retain(|slot| !slot.entry.is_in_memory);
        // Each time of use is read once: a sort panics if what it compares changes.
        open.sort_by_cached_key(|slot| slot.last_use.load(Ordering::Relaxed));
        let mut closed_count = 0;
        for slot in open {
            if !continues(closed_count) {
                break;
            }
            // Each user of a database, such as a request or a replication, has a reference to it.
            let is_unused = |served: &mut Arc<ServedDatabase>| {
                Arc::strong_count(served) == 1 && !served.database().maintenance().is_busy()
            };
            let Some(mut opened) = slot.opened.try_lock() else { continue };
            if let Some(served) = opened.take_if(is_unused) {
                served.close();
                closed_count += 1;
            }
        }
        // One that is locked is being opened or closed.
        self.open_slots.lock().retain(|slot| slot.opened.try_lock().is_none_or(|opened| opened.is_some()));
        closed_count
    }

    /// Divides the server's memory among the open databases. Blocks for a short time.
    pub(super) fn divide_memory(&self) {
        let (_, used_since) = *self.divided_at.lock();
        let open: Vec<_> = self.open_slots.lock().clone();
        let is_used = |slot: &DatabaseSlot| slot.last_use.load(Ordering::Relaxed) > used_since;
        let used_count = open.iter().filter(|slot| is_used(slot)).count();
        let (used, unused) = self.budget.divide(used_count, open.len() - used_count);
        for slot in open {
            if let Some(served) = slot.opened.try_lock().and_then(|opened| opened.clone()) {
                served.set_memory(if is_used(&slot) { used } else { unused });
            }
        }
    }

    /// Divides the memory again: databases that were used since the last call but one count as used. Called at
    /// intervals. Blocks for a short time.
    pub(crate) fn redivide_memory(&self) {
        {
            let mut divided_at = self.divided_at.lock();
            *divided_at = (self.use_count.load(Ordering::Relaxed), divided_at.0);
        }
        self.divide_memory();
    }

    /// Lets requests that free space use the reserve, and refuses all other writes until it is created again.
    pub(super) fn release_reserve(&self) {
        if self.reserve.release() {
            self.set_deletions_only(true);
        }
    }

    /// Creates the reserve again if there is space, and accepts all writes.
    fn restore_reserve(&self) {
        if self.reserve.restore() {
            self.set_deletions_only(false);
            self.complete_forgetting();
        }
    }

    fn set_deletions_only(&self, deletions_only: bool) {
        self.opened().iter().for_each(|served| served.database().maintenance().set_deletions_only(deletions_only));
    }
}
