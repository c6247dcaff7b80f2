//! A gate in front of a database's files: once the database is closed, nothing reads or writes them any more.
//!
//! The lock of a closed database is released, so another handle may write its files. What is left of the old one, such
//! as a snapshot or an iterator, must then not read them: they may be reused for something else.
//!
//! Invariant: after [`Gate::close`] has returned, no call of the gated files is running, and later ones fail.
//!
//! Concurrency: the calls count themselves in an atomic, so that they don't wait for each other.

use std::io;
use std::sync::Arc;

use super::directory::Directory;
use super::{Vfs, VfsFile, VfsLock};
use crate::error::DatabaseClosed;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};

/// Set in the count of running calls once the gate is closed.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Counts the running calls of a database's files, and refuses later ones once it is closed.
#[derive(Default)]
pub(crate) struct Gate {
    running: AtomicUsize,
    lock: Mutex<()>,
    /// Signaled when the last call ends after the gate was closed.
    ended: Condvar,
}

/// A running call.
struct RunningCall<'a>(&'a Gate);

impl Gate {
    fn enter(&self) -> io::Result<RunningCall<'_>> {
        let call = RunningCall(self);
        if self.running.fetch_add(1, Ordering::AcqRel) & CLOSED != 0 {
            return Err(io::Error::other(DatabaseClosed));
        }
        Ok(call)
    }

    /// Refuses all calls from now on, and waits for those that are running.
    pub(crate) fn close(&self) {
        self.running.fetch_or(CLOSED, Ordering::AcqRel);
        let mut lock = self.lock.lock();
        while self.running.load(Ordering::Acquire) != CLOSED {
            self.ended.wait(&mut lock);
        }
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            let _lock = self.0.lock.lock();
            self.0.ended.notify_all();
        }
    }
}

/// Files behind a gate.
pub(crate) struct GatedVfs<V> {
    inner: V,
    gate: Arc<Gate>,
}

impl<V: Vfs> GatedVfs<V> {
    pub(crate) fn new(inner: V) -> Self {
        GatedVfs { inner, gate: Arc::default() }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    fn gated(&self, file: Arc<dyn VfsFile>) -> Arc<dyn VfsFile> {
        Arc::new(GatedFile { inner: file, gate: self.gate.clone() })
    }
}

impl<V: Vfs> Vfs for GatedVfs<V> {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let _running = self.gate.enter()?;
        Ok(self.gated(self.inner.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let _running = self.gate.enter()?;
        Ok(self.gated(self.inner.create(name)?))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let _running = self.gate.enter()?;
        self.inner.list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.remove(name)
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.sync_dir(directory)
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.create_dir_all(directory)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.inner.lock(name)
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.remove_dir(name)
    }

    fn link_from(&self, source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        let _running = self.gate.enter()?;
        self.inner.link_from(source, from, to)
    }

    fn linkable_directory(&self) -> Option<&Directory> {
        self.inner.linkable_directory()
    }

    fn is_persistent(&self) -> bool {
        self.inner.is_persistent()
    }

    fn keeps_tree_copies(&self) -> bool {
        self.inner.keeps_tree_copies()
    }
}

struct GatedFile {
    inner: Arc<dyn VfsFile>,
    gate: Arc<Gate>,
}

impl VfsFile for GatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _running = self.gate.enter()?;
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let _running = self.gate.enter()?;
        self.inner.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        let _running = self.gate.enter()?;
        self.inner.len()
    }

    fn is_shared(&self) -> io::Result<bool> {
        let _running = self.gate.enter()?;
        self.inner.is_shared()
    }
}
