//! Export of a tree: its files, which never change, for a copy of the database.

use std::sync::Arc;

use super::Tree;
use super::manifest::{Manifest, RunList};
use super::version::TreeSnapshot;
use crate::Result;
use crate::vfs::Vfs;

/// A state of a tree whose files a copy takes over. Keeps them as long as it exists.
pub(crate) struct TreeExport {
    snapshot: TreeSnapshot,
    list: RunList,
    directory: String,
    vfs: Arc<dyn Vfs>,
    manifest_bytes_max: u64,
}

impl Tree {
    /// The newest committed state, for a copy.
    pub(crate) fn export(&self) -> TreeExport {
        let installer = self.installer.lock();
        let version = self.current.read().clone();
        TreeExport {
            list: installer.list(&version),
            snapshot: self.snapshot_of(version),
            directory: self.directory.path.clone(),
            vfs: self.directory.vfs.clone(),
            manifest_bytes_max: self.file_bytes / super::MANIFEST_PART,
        }
    }
}

impl TreeExport {
    /// Where the files are.
    pub(crate) fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    /// The names of the files with their lengths.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        self.snapshot.files().map(|file| (file.path().to_owned(), file.record().byte_count)).collect()
    }

    /// Writes the manifest of the copy in `vfs`, which has all files, flushed with their names.
    pub(crate) fn write_manifest(&self, vfs: Arc<dyn Vfs>) -> Result<()> {
        let (mut manifest, _) = Manifest::open(vfs, &self.directory, self.manifest_bytes_max)?;
        manifest.install(&self.list)
    }
}
