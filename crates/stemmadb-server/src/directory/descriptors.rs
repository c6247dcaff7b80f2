//! The limit of file descriptors of this process, and errors of a process that has none left.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// An open database has up to about this many files open while it is used: those of its log, its directories, and the
/// runs of its tree, of which there are several before they are merged.
const PER_DATABASE: u64 = 16;

/// Databases take at most this part of all descriptors; connections need the rest.
const DATABASES_SHARE: u64 = 2;

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

/// The most databases that may be open while nobody uses them, so that descriptors are left for connections.
pub(super) fn open_databases_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / (PER_DATABASE * DATABASES_SHARE)).unwrap_or(usize::MAX).max(1)
}

/// Whether an operation failed because the process or the system has no file descriptor left.
pub(super) fn is_exhausted(error: &stemmadb::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    let code = source.and_then(std::io::Error::raw_os_error);
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
}
