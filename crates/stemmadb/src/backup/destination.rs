//! The directory of a new database: it is filled under another name and then renamed, so that it exists completely or
//! not at all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::cipher::Keyring;
use crate::engine::{CheckReport, Store, Upkeeper, directory, identity, key_file};
use crate::options::{Options, Progress};
use crate::revision::Sequence;
use crate::vfs::{DiskVfs, KeyedVfs, Subdirectory, Vfs, remove_recursively};
use crate::{Error, Result};

/// A directory that does not exist yet, or is replaced.
pub(super) struct Destination {
    parent: Arc<dyn Vfs>,
    /// Its name in the parent.
    name: String,
}

impl Destination {
    /// The directory at `path`. Its parent is created if it does not exist.
    pub(super) fn on_disk(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(format_args!("open the directory of {}", path.display()), error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let name = absolute.file_name().and_then(|name| name.to_str());
        let (Some(parent), Some(name)) = (absolute.parent(), name) else {
            return Err(Error::invalid(format!("{} can't be the directory of a database", path.display()))
                .with_hint("name a directory that does not exist yet"));
        };
        Ok(Self::within(Arc::new(DiskVfs::new(parent).map_err(failed)?), name))
    }

    pub(super) fn within(parent: Arc<dyn Vfs>, name: &str) -> Self {
        Destination { parent, name: name.to_owned() }
    }

    /// Its name until it is complete.
    fn unfinished(&self) -> String {
        format!(".{}.unfinished", self.name)
    }

    /// The name of what it replaces, until that is deleted.
    fn replaced(&self) -> String {
        format!(".{}.replaced", self.name)
    }

    /// Fills the directory by `work`, gives the database an identity of its own, flushes all names, and puts it in its
    /// place. With `replaces`, a database that exists there is deleted afterwards.
    ///
    /// # Errors
    /// `Invalid` if there is something that must not be replaced; those of `work`.
    pub(super) fn fill<T>(&self, replaces: bool, work: impl FnOnce(&Arc<dyn Vfs>) -> Result<T>) -> Result<T> {
        self.restore_replaced()?;
        let exists = self.refuse_existing(replaces)?;
        self.remove(&self.unfinished())?;
        let filled = self.fill_unfinished(work);
        if filled.is_err() {
            // What can't be removed now is removed before the next attempt.
            self.remove(&self.unfinished()).ok();
            return filled;
        }
        if exists {
            self.rename(&self.name, &self.replaced())?;
        }
        self.rename(&self.unfinished(), &self.name)?;
        self.parent.sync_dir("").map_err(|error| Error::io(format_args!("flush the name of {}", self.name), error))?;
        self.remove(&self.replaced())?;
        filled
    }

    /// What was filled.
    pub(super) fn open_filled(&self) -> Arc<dyn Vfs> {
        Arc::new(Subdirectory::new(self.parent.clone(), &self.name))
    }

    /// Removes what was filled.
    pub(super) fn remove_filled(&self) -> Result<()> {
        self.remove(&self.name)
    }

    fn fill_unfinished<T>(&self, work: impl FnOnce(&Arc<dyn Vfs>) -> Result<T>) -> Result<T> {
        let name = self.unfinished();
        self.parent.create_dir_all(&name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
        let vfs: Arc<dyn Vfs> = Arc::new(Subdirectory::new(self.parent.clone(), &name));
        fill(&vfs, work)
    }

    /// Puts back what was replaced by an attempt that was interrupted before the new database was in its place.
    fn restore_replaced(&self) -> Result<()> {
        let list = |name: &str| self.parent.list(name).unwrap_or_default();
        if list(&self.replaced()).is_empty() {
            return Ok(());
        }
        if list(&self.name).is_empty() {
            self.rename(&self.replaced(), &self.name)
        } else {
            self.remove(&self.replaced())
        }
    }

    /// Whether a database exists that is replaced.
    fn refuse_existing(&self, replaces: bool) -> Result<bool> {
        let exists = |what: &str| Error::invalid(format!("{} {what}", self.name));
        let names = match self.parent.list(&self.name) {
            Ok(names) => names,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(exists("is a file").with_hint("name a directory that does not exist yet"));
            }
            Err(error) => return Err(Error::io(format_args!("list {}", self.name), error)),
        };
        if names.is_empty() {
            return Ok(false);
        }
        if !names.iter().any(|name| name == "log") {
            return Err(exists("exists and is not a database").with_hint("name a directory that does not exist yet"));
        }
        match replaces {
            true => Ok(true),
            false => Err(exists("exists already")
                .with_hint("name another directory; only a restore can replace a database (`force`, `--force`)")),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.parent.rename(from, to).map_err(|error| Error::io(format_args!("rename {from} to {to}"), error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        remove_recursively(&*self.parent, name).map_err(|error| Error::io(format_args!("remove {name}"), error))
    }
}

/// Fills `vfs` by `work`, gives the database an identity of its own, and flushes all names.
pub(super) fn fill<T>(vfs: &Arc<dyn Vfs>, work: impl FnOnce(&Arc<dyn Vfs>) -> Result<T>) -> Result<T> {
    identity::write_new(vfs)?;
    let done = work(vfs)?;
    vfs.sync_dir("").map_err(|error| Error::io("flush the names of a database", error))?;
    Ok(done)
}

/// The files of a copy in `vfs` of a database with these keys. Writes the key file of the copy, flushed but for its
/// name.
pub(super) fn with_keys(vfs: &Arc<dyn Vfs>, keyring: &Keyring) -> Result<Arc<dyn Vfs>> {
    let keyring = keyring.of_copy()?;
    key_file::write(&**vfs, &keyring.encode()?)?;
    Ok(Arc::new(KeyedVfs::new(vfs.clone(), Arc::new(keyring))))
}

/// Creates the directories of these files.
pub(super) fn create_directories<'a>(vfs: &dyn Vfs, files: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let directories: BTreeSet<&str> = files.filter_map(|name| Some(name.rsplit_once('/')?.0)).collect();
    for name in &directories {
        vfs.create_dir_all(name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
    }
    Ok(directories.into_iter().map(str::to_owned).collect())
}

/// Flushes the names in these directories.
pub(super) fn flush_directories(vfs: &dyn Vfs, directories: &[String]) -> Result<()> {
    directories
        .iter()
        .try_for_each(|name| vfs.sync_dir(name).map_err(|error| Error::io(format_args!("flush {name}"), error)))
}

/// Opens a copied database, which repairs its log and rebuilds its tree, and checks it if `checks`; returns its newest
/// sequence.
///
/// # Errors
/// `Corrupt` if it is not complete, or the check finds damage.
pub(super) fn open_copy(
    vfs: &Arc<dyn Vfs>,
    checks: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Sequence, Option<CheckReport>)> {
    let options = Options::new().background(false);
    let tree = directory::open_tree(vfs.clone(), &options)?;
    let store = Store::open(vfs.clone(), tree, options, progress)?;
    let upkeeper = Upkeeper::start(&store)?;
    let report = if checks { store.check(progress).map(Some) } else { Ok(None) };
    let sequence = store.parts.publisher.published();
    let closed = upkeeper.stop(&store);
    let report = report?;
    closed?;
    match report.as_ref().and_then(|report| report.damages.first()) {
        Some(damage) => Err(Error::corrupt(format!("the copy is damaged: {}", damage.what))
            .with_hint("verify the backups; an earlier one may be intact")),
        None => Ok((sequence, report)),
    }
}
