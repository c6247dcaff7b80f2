//! The option that says where the log of a database is.

use std::path::Path;
use std::sync::Arc;

use crate::vfs::LogStorage;

/// Where the log of a database is.
#[derive(Clone, Default)]
pub(crate) enum LogStorageOption {
    /// In its directory; in test builds, where `testing::LOG_STORAGE_VARIABLE` says.
    #[default]
    Directory,
    /// In this store.
    Store(Arc<dyn LogStorage>),
}

impl LogStorageOption {
    /// The store of the database at `path`; none if its directory has the log.
    pub(crate) fn of(&self, path: &Path) -> Option<Arc<dyn LogStorage>> {
        match self {
            LogStorageOption::Store(storage) => Some(storage.clone()),
            LogStorageOption::Directory => default_storage(Some(path)),
        }
    }

    /// The store of a new database in memory, which only test builds have.
    pub(crate) fn in_memory() -> Option<Arc<dyn LogStorage>> {
        default_storage(None)
    }
}

#[cfg(any(test, feature = "testing"))]
fn default_storage(path: Option<&Path>) -> Option<Arc<dyn LogStorage>> {
    crate::testing::default_log_storage(path)
}

#[cfg(not(any(test, feature = "testing")))]
fn default_storage(_: Option<&Path>) -> Option<Arc<dyn LogStorage>> {
    None
}

impl std::fmt::Debug for LogStorageOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogStorageOption::Directory => "Directory",
            LogStorageOption::Store(_) => "Store",
        })
    }
}
