//! Export of a tree: its files, which never change, for a copy of the database or a backup.

use std::sync::Arc;

use super::directory::TreeDirectory;
use super::manifest::{self, Manifest, RunList};
use super::run_file::{self, FileRecord, RunFile};
use super::version::TreeSnapshot;
use super::{REBUILD, Tree};
use crate::vfs::{KeyedVfs, MemoryVfs, Vfs, read_whole};
use crate::{Error, Result};

/// A state of a tree whose files a copy takes over. Keeps them as long as it exists.
pub(crate) struct TreeExport {
    snapshot: TreeSnapshot,
    list: RunList,
    directory: String,
    vfs: Arc<dyn Vfs>,
    manifest_bytes_max: u64,
}

/// A file of a tree.
pub(crate) struct IdentifiedFile {
    pub(crate) path: String,
    pub(crate) number: u64,
    pub(crate) byte_count: u64,
    /// Files with the same number and checksum are the same.
    pub(crate) checksum: u128,
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

    /// The files, each with what identifies its bytes.
    pub(crate) fn identified_files(&self) -> Vec<IdentifiedFile> {
        let identified = |file: &RunFile| {
            let record = file.record();
            IdentifiedFile {
                path: file.path().to_owned(),
                number: record.number,
                byte_count: record.byte_count,
                checksum: record.checksum,
            }
        };
        self.snapshot.files().map(identified).collect()
    }

    /// The rows of the copy.
    pub(crate) fn snapshot(&self) -> &TreeSnapshot {
        &self.snapshot
    }

    /// Writes the manifest of the copy in `vfs`, which has all files, flushed with their names.
    pub(crate) fn write_manifest(&self, vfs: Arc<dyn Vfs>) -> Result<()> {
        let (mut manifest, _) = Manifest::open(vfs, &self.directory, self.manifest_bytes_max)?;
        manifest.install(&self.list)
    }

    /// The manifest of a copy, and its name. It is encrypted if the tree is.
    pub(crate) fn manifest(&self) -> Result<(String, Vec<u8>)> {
        let path = format!("{}/{}", self.directory, manifest::NAME);
        let memory: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let created = memory.create_dir_all(&self.directory);
        created.map_err(|error| Error::io(format_args!("create {}", self.directory), error))?;
        self.write_manifest(match self.vfs.keyring() {
            Some(keyring) => Arc::new(KeyedVfs::new(memory.clone(), keyring.clone())),
            None => memory.clone(),
        })?;
        let read = memory.open(&path).and_then(|file| read_whole(&*file));
        Ok((path.clone(), read.map_err(|error| Error::io(format_args!("read {path}"), error))?))
    }
}

/// The path of the run file with this number, in the tree's directory.
pub(crate) fn run_path(directory: &str, number: u64) -> String {
    format!("{directory}/{}", run_file::file_name(number))
}

/// The path of the manifest in the tree's directory.
pub(crate) fn manifest_path(directory: &str) -> String {
    format!("{directory}/{}", manifest::NAME)
}

/// Whether this is the name of a run file or of the manifest, within the tree's directory.
pub(crate) fn is_file_name(name: &str) -> bool {
    name == manifest::NAME || run_file::number_of(name).is_some_and(|number| run_file::file_name(number) == name)
}

/// The run files that the manifest of a copy lists.
pub(crate) struct ListedFiles(Vec<FileRecord>);

impl ListedFiles {
    /// Decodes a manifest that is not encrypted.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged.
    pub(crate) fn decode(manifest: &[u8]) -> Result<Self> {
        let newest = manifest::newest_list(manifest, None);
        let newest = newest.ok_or_else(|| Error::corrupt("the list of the tree's files is damaged"))?;
        Ok(ListedFiles(newest.list.runs.into_iter().flat_map(|run| run.slices).map(|slice| slice.file).collect()))
    }

    /// Verifies the checksums of every block of a listed file. Reads at about the speed of the disk.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged, or not listed; `Unavailable` if it can't be read.
    pub(crate) fn verify(&self, vfs: Arc<dyn Vfs>, path: &str) -> Result<()> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let record = self.0.iter().find(|record| run_file::file_name(record.number) == name);
        let Some(record) = record else {
            return Err(Error::corrupt(format!("{path} is not in the list of files")).with_hint(REBUILD));
        };
        let file = RunFile::new(Arc::new(TreeDirectory::new(vfs, directory, 0)), record.clone());
        (0..file.index()?.block_count()).try_for_each(|number| file.read_block(number).map(|_| ()))
    }
}
