//! Translation of LMDB errors: each gets a kind, a message and a hint.

use heed::MdbError;

use super::WRITE;
use crate::Error;
use crate::tree::REBUILD;

/// `doing` is the failed operation, as in `read tree/data.mdb`.
pub(super) fn tree_error(doing: &str, error: heed::Error) -> Error {
    match error {
        heed::Error::Io(source) => io_error(doing, source),
        heed::Error::Mdb(source) => mdb_error(doing, source),
        heed::Error::EnvAlreadyOpened => Error::unavailable(format!(
            "cannot {doing}: this process has it open already, or holds one of its snapshots"
        ))
        .with_hint("drop the other database and its snapshots first, or share it"),
        error @ (heed::Error::Encoding(_) | heed::Error::Decoding(_)) => {
            Error::internal(format!("cannot {doing}: {error}"))
        }
    }
}

/// LMDB also returns EIO for a partial write, as on a full disk.
fn io_error(doing: &str, source: std::io::Error) -> Error {
    let may_be_full = doing == WRITE && source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    let error = Error::io(doing, source);
    if may_be_full { error.with_hint("if there is no space, free some; nothing acknowledged is lost") } else { error }
}

fn mdb_error(doing: &str, error: MdbError) -> Error {
    let message = |what: &str| format!("cannot {doing}: {what}");
    let mapped = match error {
        MdbError::PageNotFound
        | MdbError::Corrupted
        | MdbError::CursorFull
        | MdbError::PageFull
        | MdbError::Incompatible
        | MdbError::BadTxn
        | MdbError::Problem => Error::corrupt(message("the file is damaged")).with_hint(REBUILD),
        MdbError::Invalid => Error::corrupt(message("it is not a tree, or its head is damaged")).with_hint(REBUILD),
        MdbError::VersionMismatch => {
            Error::corrupt(message("it was written in another version of the format")).with_hint(REBUILD)
        }
        MdbError::MapFull => Error::unavailable(message("it has grown to the most that may be mapped"))
            .with_hint("open the database with a larger tree_map_bytes"),
        MdbError::ReadersFull => Error::unavailable(message("too many old snapshots are held"))
            .with_hint("drop snapshots and cursors that are no longer needed"),
        MdbError::Panic => Error::closed(message("an earlier write of it failed")).with_hint("reopen the database"),
        MdbError::Other(code) => return io_error(doing, std::io::Error::from_raw_os_error(code)),
        _ => Error::internal(message(&error.to_string())),
    };
    mapped.with_source(error)
}
