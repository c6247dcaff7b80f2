//! Databases that are copied into the server's directory by hand, as `name.stemma`, also while the server runs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{CatalogEntry, DatabaseSlot, Directory, file_name, io_failure};
use crate::error::Result;
use crate::http::blocking;

/// File systems record the time of a change with less precision than this. A directory that was changed more recently
/// is searched again.
const PRECISION: Duration = Duration::from_secs(1);

impl Directory {
    /// The names of all databases, in order, including those that were copied into the directory.
    ///
    /// # Errors
    /// 503 if the directory can't be read or the catalog can't be written.
    pub(crate) async fn list(self: &Arc<Self>) -> Result<Vec<String>> {
        if self.may_have_changed() || self.cluster.is_some() {
            let this = self.clone();
            blocking(move || {
                this.refresh()?;
                this.search_if_changed()
            })
            .await?;
        }
        Ok(self.names())
    }

    /// Whether there is a directory that a database of this name would have. Costs one system call.
    pub(super) fn may_be_copied(&self, name: &str) -> bool {
        self.cluster.is_none() && self.path.join(file_name::plain_directory(name)).exists()
    }

    /// Whether the directory may have changed since it was last searched. Costs one system call.
    pub(super) fn may_have_changed(&self) -> bool {
        let searched = *self.searched.lock();
        self.cluster.is_none() && (searched.is_none() || searched != self.modified())
    }

    fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok()
    }

    /// Adds databases that were copied into the directory, if it may have changed. Blocks.
    pub(super) fn search_if_changed(&self) -> Result<()> {
        if self.may_have_changed() { self.search() } else { Ok(()) }
    }

    /// Adds databases that were copied into the directory to the catalog. Blocks.
    pub(super) fn search(&self) -> Result<()> {
        // On a full disk they are added later.
        if !self.catalog.takes_writes() {
            return Ok(());
        }
        let modified = self.modified();
        let is_precise = modified.and_then(|modified| modified.elapsed().ok()).is_some_and(|age| age > PRECISION);
        let entries = self.with_descriptors(|| self.path.read_dir());
        let entries = entries.map_err(|error| io_failure("read", &self.path, &error))?;
        let mut is_complete = true;
        let mut candidates = Vec::new();
        for entry in entries.flatten() {
            let Some(directory) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let Some(name) = file_name::database_of(&directory) else { continue };
            candidates.push((name, directory));
        }
        let known: HashSet<String> = self.slots.read().values().map(|slot| slot.entry.directory.clone()).collect();
        for (name, directory) in candidates {
            if !known.contains(&directory) {
                is_complete &= self.adopt(&name, directory)?;
            }
        }
        *self.searched.lock() = modified.filter(|_| is_precise && is_complete);
        Ok(())
    }

    /// Adds a database that was copied into the directory. Returns whether nothing is left to do: a directory without a
    /// log may be in the middle of being copied.
    fn adopt(&self, name: &str, directory: String) -> Result<bool> {
        if !self.path.join(&directory).join("log").is_dir() {
            return Ok(false);
        }
        let mut slots = self.slots.write();
        // It could be another copy of a database, or a directory that is being removed.
        let is_known = slots.values().any(|slot| slot.entry.directory == directory);
        if is_known || slots.contains_key(name) || self.catalog.is_being_removed(&directory)? {
            return Ok(true);
        }
        let entry = CatalogEntry::new(name, directory);
        self.catalog.add(&entry)?;
        slots.insert(name.to_owned(), DatabaseSlot::new(entry));
        drop(slots);
        self.updates.record(name, "created");
        self.changed.send_modify(|count| *count += 1);
        Ok(true)
    }
}
