//! The limit of file descriptors of this process, and what happens when databases take too many of them.
//!
//! Databases share half of the descriptors; connections need the rest. Above that, or when a file can't be opened, the
//! library has those closed that were not used for longest ([`Directory::limit_open_files`]).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stemmadb::open_files::{OpenFileLimit, is_exhausted};

use super::Directory;

/// Files of databases take at most this part of all descriptors; connections need the rest.
const DATABASES_SHARE: u64 = 2;

/// How often an operation on files of the server itself is tried, and the pause after nothing could be closed.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Raises the soft limit of file descriptors of this process to the hard limit, and returns it; `None` if there is no
/// limit. Servers need many descriptors: for connections, and for the files of databases.
///
/// Call it when the program starts.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If that is refused, the server has to do with the soft limit.
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
    }
    getrlimit(Resource::Nofile).current
}

/// The most files that databases may have open, so that descriptors are left for connections.
pub(super) fn open_files_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / DATABASES_SHARE).unwrap_or(usize::MAX)
}

impl Directory {
    /// Closes unused databases from now on when too many files are open, or one can't be opened.
    pub(crate) fn limit_open_files(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        let close = move |target| this.upgrade().map_or(0, |directory| directory.close_files(target));
        match OpenFileLimit::new(self.open_files_max, close) {
            Ok(limit) => *self.open_file_limit.lock() = Some(limit),
            Err(error) => tracing::warn!(target: "stemma::database", "starting a thread: {error}"),
        }
    }

    /// Repeats an operation of the server itself if no descriptor is left, after closing unused databases. Blocks.
    pub(super) fn with_descriptors<T>(&self, mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        for _ in 1..ATTEMPTS {
            match operation() {
                Err(error) if is_exhausted(&error) => {
                    if self.release_descriptors() == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
                outcome => return outcome,
            }
        }
        operation()
    }
}
