//! A directory within another one, seen as a directory of its own.

use std::io;
use std::sync::Arc;

use super::{Vfs, VfsFile, VfsLock};

/// The directory `name` of another one. It need not exist yet.
pub(crate) struct Subdirectory {
    parent: Arc<dyn Vfs>,
    name: String,
}

impl Subdirectory {
    pub(crate) fn new(parent: Arc<dyn Vfs>, name: &str) -> Self {
        Subdirectory { parent, name: name.to_owned() }
    }

    fn path(&self, name: &str) -> String {
        match name {
            "" => self.name.clone(),
            _ => format!("{}/{name}", self.name),
        }
    }
}

impl Vfs for Subdirectory {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.parent.open(&self.path(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.parent.create(&self.path(name))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.parent.list(&self.path(directory))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.parent.rename(&self.path(from), &self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.parent.remove(&self.path(name))
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.parent.sync_dir(&self.path(directory))
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        self.parent.create_dir_all(&self.path(directory))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.parent.lock(&self.path(name))
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        self.parent.remove_dir(&self.path(name))
    }

    fn link_from(&self, source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        self.parent.link_from(source, from, &self.path(to))
    }

    fn is_persistent(&self) -> bool {
        self.parent.is_persistent()
    }
}

/// Removes a file, or a directory with everything in it. Does nothing if there is none.
pub(crate) fn remove_recursively(vfs: &dyn Vfs, name: &str) -> io::Result<()> {
    // Listing a file is an error, or finds nothing.
    for child in vfs.list(name).unwrap_or_default() {
        remove_recursively(vfs, &format!("{name}/{child}"))?;
    }
    match vfs.remove(name) {
        Ok(()) => Ok(()),
        Err(failed) => match vfs.remove_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
    }
}
