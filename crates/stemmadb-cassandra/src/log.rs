//! A log in a cluster.
//!
//! The part that blocks: [`Requests`] has the requests, as futures.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stemmadb::log_storage::{FileId, LogStorage, NameChange, StoredFile, StoredLog};

use crate::cluster::Shared;
use crate::requests::{Requests, Starts};

/// The log of one database in a cluster.
pub struct CassandraLog {
    cluster: Arc<Shared>,
    name: String,
    /// The epoch of this owner; 0 before it has taken the log over.
    epoch: AtomicI64,
    /// What is known of files that were appended to.
    starts: Mutex<HashMap<FileId, Arc<Starts>>>,
}

impl CassandraLog {
    pub(crate) fn new(cluster: Arc<Shared>, name: &str) -> Self {
        CassandraLog { cluster, name: name.to_owned(), epoch: 0.into(), starts: Mutex::default() }
    }

    fn requests(&self) -> Requests {
        Requests::new(&self.cluster, &self.name, self.epoch.load(Ordering::Acquire))
    }

    /// Deletes everything, as the owner.
    pub(crate) fn delete_all(&self, log: StoredLog) -> io::Result<()> {
        let requests = self.requests();
        self.cluster.wait(async move { requests.delete_log(&log).await })
    }

    fn known_starts(&self) -> std::sync::MutexGuard<'_, HashMap<FileId, Arc<Starts>>> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where each epoch began to write a file.
    fn starts_of(&self, file: FileId) -> io::Result<Arc<Starts>> {
        if let Some(starts) = self.known_starts().get(&file) {
            return Ok(starts.clone());
        }
        let requests = self.requests();
        let state = self.cluster.wait(async move { requests.segment_state(file).await })?;
        let starts = Arc::new(state.map(|state| state.starts).unwrap_or_default());
        self.known_starts().insert(file, starts.clone());
        Ok(starts)
    }
}

impl LogStorage for CassandraLog {
    fn take_over(&self) -> io::Result<StoredLog> {
        let mut requests = self.requests();
        let (log, epoch, fenced) = self.cluster.wait(async move {
            let (id, epoch) = requests.advance_epoch().await?;
            requests.epoch = epoch;
            let (log, fenced) = requests.fence(id).await?;
            Ok((log, requests.epoch, fenced))
        })?;
        *self.known_starts() = fenced;
        self.epoch.store(epoch, Ordering::Release);
        Ok(log)
    }

    fn look(&self) -> io::Result<StoredLog> {
        let requests = self.requests();
        let (log, starts) = self.cluster.wait(async move { requests.look().await })?;
        // Those of other files may be from a time when another owner could still append to them.
        *self.known_starts() = starts;
        Ok(log)
    }

    fn length(&self, file: FileId) -> io::Result<Option<u64>> {
        let requests = self.requests();
        let state = self.cluster.wait(async move { requests.segment_state(file).await })?;
        let Some(state) = state else { return Ok(None) };
        let length = state.length as u64;
        self.known_starts().insert(file, Arc::new(state.starts));
        Ok(Some(length))
    }

    fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (requests, bytes) = (self.requests(), bytes.to_vec());
        let is_new = offset == 0 && !self.known_starts().contains_key(&file);
        let epoch = requests.epoch;
        self.cluster.wait(async move { requests.append(file, offset as i64, &bytes, is_new).await })?;
        if is_new {
            self.known_starts().insert(file, Arc::new([(epoch, 0)].into()));
        }
        Ok(())
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (requests, bytes) = (self.requests(), bytes.to_vec());
        self.cluster.wait(async move { requests.write_content(file, offset, &bytes).await })
    }

    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let starts = self.starts_of(file)?;
        let (requests, length) = (self.requests(), buffer.len() as u64);
        let bytes = self.cluster.wait(async move {
            match starts.is_empty() {
                true => requests.read_content(file, offset, length).await,
                false => requests.read_frames(file, offset, length, &starts).await,
            }
        })?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        let (requests, changes, unnamed) = (self.requests(), changes.to_vec(), unnamed.to_vec());
        self.cluster.wait(async move { requests.change_names(&changes, &unnamed).await })
    }

    fn delete(&self, file: &StoredFile) -> io::Result<()> {
        let (requests, file) = (self.requests(), file.clone());
        self.known_starts().remove(&file.id);
        self.cluster.wait(async move { requests.delete(&file).await })
    }
}
