//! The scratch directory of a run, and the disk space of files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::Result;

/// A temporary directory for a run's databases, removed at the end.
pub(crate) struct ScratchDirectory {
    root: TempDir,
}

impl ScratchDirectory {
    /// Creates a directory in `parent`, or in the system's temporary directory.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Self> {
        let builder = || tempfile::Builder::new().prefix("stemmadb-bench-").to_owned();
        let root = match parent {
            Some(parent) => {
                std::fs::create_dir_all(parent)
                    .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
                builder().tempdir_in(parent)
            }
            None => builder().tempdir(),
        };
        Ok(ScratchDirectory { root: root.map_err(|error| format!("cannot create a temporary directory: {error}"))? })
    }

    /// Returns the directory's path.
    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Returns a path in it, after removing whatever exists there.
    pub(crate) fn fresh_path(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.path().join(name);
        remove(&path)?;
        Ok(path)
    }
}

/// Removes a file or directory, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Waits for pending writes of earlier contenders, so that the next one does not pay for them.
pub(crate) fn sync_file_system(directory: &Path) {
    // If `sync` is missing, the figures are only noisier.
    Command::new("sync").arg("--file-system").arg(directory).status().ok();
}

/// Returns the bytes allocated for a file or a directory tree, as `du` does.
pub(crate) fn allocated_bytes(path: &Path) -> Result<u64> {
    let fail = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let facts = std::fs::symlink_metadata(path).map_err(fail)?;
    let mut bytes = facts.blocks() * 512;
    if facts.is_dir() {
        for entry in std::fs::read_dir(path).map_err(fail)? {
            bytes += allocated_bytes(&entry.map_err(fail)?.path())?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_paths_are_empty_and_allocated_bytes_are_counted() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let path = scratch.fresh_path("one").unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), vec![1; 100_000]).unwrap();
        sync_file_system(&path);
        let bytes = allocated_bytes(&path).unwrap();
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
        assert!(!scratch.fresh_path("one").unwrap().exists());
    }
}
