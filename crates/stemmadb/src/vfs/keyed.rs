//! The files of an encrypted database, together with its keys.

use std::io;
use std::sync::Arc;

use super::directory::Directory;
use super::{Vfs, VfsFile, VfsLock};
use crate::cipher::Keyring;

/// A directory whose files are encrypted with these keys. It passes bytes on as they are: who reads and writes a file
/// encrypts it.
pub(crate) struct KeyedVfs {
    inner: Arc<dyn Vfs>,
    keyring: Arc<Keyring>,
}

impl KeyedVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>, keyring: Arc<Keyring>) -> Self {
        KeyedVfs { inner, keyring }
    }
}

impl Vfs for KeyedVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.inner.open(name)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.inner.create(name)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.inner.list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.inner.sync_dir(directory)
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        self.inner.create_dir_all(directory)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.inner.lock(name)
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        self.inner.remove_dir(name)
    }

    fn link_from(&self, source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        self.inner.link_from(source, from, to)
    }

    fn linkable_directory(&self) -> Option<&Directory> {
        self.inner.linkable_directory()
    }

    fn keyring(&self) -> Option<&Arc<Keyring>> {
        Some(&self.keyring)
    }

    fn is_persistent(&self) -> bool {
        self.inner.is_persistent()
    }

    fn keeps_tree_copies(&self) -> bool {
        self.inner.keeps_tree_copies()
    }
}
