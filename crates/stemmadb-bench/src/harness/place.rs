//! Where databases lie while they are measured, and how much room they take.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::Result;

/// A directory for a run's databases; everything in it is removed at the end.
pub(crate) struct Place {
    root: TempDir,
}

impl Place {
    /// A new directory in `parent`, or where the system keeps temporary files.
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
        Ok(Place { root: root.map_err(|error| format!("cannot create a temporary directory: {error}"))? })
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// A path in it where nothing lies; what lay there is removed.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.path().join(name);
        remove(&path)?;
        Ok(path)
    }
}

/// Removes a file or a directory, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Lets the system write back what earlier contenders left dirty, so that the next one does not pay for it.
pub(crate) fn settle(directory: &Path) {
    // Without `sync` the figures are noisier, not wrong.
    Command::new("sync").arg("--file-system").arg(directory).status().ok();
}

/// The bytes that are allocated on the disk for a file, or for everything below a directory: what `du` says.
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
    fn a_fresh_path_is_empty_and_its_bytes_are_counted() {
        let place = Place::new(None).unwrap();
        let path = place.fresh("one").unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), vec![1; 100_000]).unwrap();
        settle(&path);
        let bytes = allocated_bytes(&path).unwrap();
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
        assert!(!place.fresh("one").unwrap().exists());
    }
}
