//! Where backups are stored: the operations that a directory and an object store have in common.

use std::io::Read;

use crate::Result;
use crate::vfs::Vfs;

/// A place for backups: named objects, such as the files of a [directory](super::DirectoryTarget) or the objects of a
/// bucket.
///
/// Names are relative, with `/` between components. Every method may be called from any thread.
pub trait Target: Send + Sync {
    /// Describes the place in messages.
    fn describe(&self) -> String;

    /// Excludes other writers until the returned value is dropped, where that is possible. Writers that are not
    /// excluded are found by [`Target::put_new`].
    ///
    /// # Errors
    /// `Locked` if there is another writer.
    fn lock(&self) -> Result<Box<dyn Send>> {
        Ok(Box::new(()))
    }

    /// Creates the object `name` if there is none, completely and durably; returns false if there is one. The check and
    /// the creation are one step.
    ///
    /// # Errors
    /// `Unavailable` if it is unknown whether the object was created.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Creates or replaces the object `name`, durably after the next [`Target::flush`].
    ///
    /// # Errors
    /// `Unavailable` if the content can't be read or written.
    fn put(&self, name: &str, content: &mut dyn Read) -> Result<()>;

    /// Creates the object `name` without copying, if it can share a file of this machine. The file never changes.
    ///
    /// # Errors
    /// `NotFound` if the file has been removed; `Unavailable` if the object can't be created.
    fn put_linked(&self, name: &str, file: &LocalFile<'_>) -> Result<bool> {
        let (_, _) = (name, file);
        Ok(false)
    }

    /// Makes earlier changes durable, if they are not.
    ///
    /// # Errors
    /// `Unavailable` if that fails.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Reads the object `name`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Unavailable` if it can't be read.
    fn get(&self, name: &str) -> Result<Box<dyn Read + Send>>;

    /// The names of all objects that begin with `prefix`, in no order.
    ///
    /// # Errors
    /// `Unavailable` if they can't be listed.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// Deletes the object `name`; does nothing if there is none.
    ///
    /// # Errors
    /// `Unavailable` if it can't be deleted.
    fn delete(&self, name: &str) -> Result<()>;
}

/// A file of a database that a [`Target`] may share.
pub struct LocalFile<'a> {
    pub(super) vfs: &'a dyn Vfs,
    pub(super) name: &'a str,
}

impl std::fmt::Debug for LocalFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
