//! Where the log of a database is kept, if not in its directory: the trait that such stores implement.

use std::io;

/// A store that keeps the log of one database: its segments, history, attachment contents and keys.
///
/// A database with a log storage keeps only derived data in its directory, and copies of what it read: the directory
/// may be lost at any time. [`Options::log_storage`](crate::Options::log_storage) opens one.
///
/// The log is a set of *files*: named sequences of bytes that are only ever appended to, or written once. A file is
/// identified by its [`FileId`]; names are given and taken by [`LogStorage::change_names`], all or none of a call's.
///
/// # Ownership
/// One process at a time owns a log: the one that called [`LogStorage::take_over`] last. The store enforces that, not
/// clocks: once `take_over` has returned, [`append`](LogStorage::append), [`change_names`](LogStorage::change_names)
/// of earlier owners fail with [`Deposed`], including calls that were made before and arrive late.
///
/// # Errors
/// An error of `append` or `change_names` means that it is unknown whether the call took effect; the database is then
/// closed for writing. Implementations resolve uncertain outcomes, such as timeouts, by asking the store, as long as
/// that is reasonable.
///
/// # Replicas
/// Any number of processes may read the log without owning it: see [`replica`](crate::replica). They call only
/// [`look`](LogStorage::look), [`length`](LogStorage::length) and [`read`](LogStorage::read).
///
/// Methods may be called from any thread, and may block.
pub trait LogStorage: Send + Sync {
    /// Makes the caller the owner of the log, and returns what it holds. A log that does not exist is created.
    ///
    /// # Errors
    /// Errors of the store.
    fn take_over(&self) -> io::Result<StoredLog>;

    /// Returns what the log holds, without taking it over: all changes of names, and everything appended, that were
    /// acknowledged before the call.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the log does not exist; errors of the store.
    fn look(&self) -> io::Result<StoredLog>;

    /// Returns the length of a file that is or was appended to, with everything that was acknowledged before the call;
    /// none if its bytes were deleted. Replicas call it at each poll: it should cost one request.
    ///
    /// # Errors
    /// Errors of the store.
    fn length(&self, file: FileId) -> io::Result<Option<u64>>;

    /// Appends a group of frames to a file that is not sealed, durably and at once: after a crash, all of `bytes` are
    /// there or none. `offset` is the length of the file before.
    ///
    /// # Errors
    /// [`Deposed`] if another process owns the log; errors of the store.
    fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes part of a file that is written only once, durably; parts come in ascending order. Calls of a deposed
    /// owner may succeed: they change no file that a name leads to.
    ///
    /// # Errors
    /// Errors of the store.
    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads up to `buffer.len()` bytes and returns how many: fewer only at the end of the file.
    ///
    /// # Errors
    /// Errors of the store.
    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Gives names to files, and takes them away: all changes or none, durably. `unnamed` are the files that lose their
    /// last name: if the caller does not delete them, the next owner does.
    ///
    /// # Errors
    /// [`Deposed`] if another process owns the log; errors of the store.
    fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()>;

    /// Deletes the bytes of a file that has no name. Does nothing if there are none.
    ///
    /// # Errors
    /// Errors of the store.
    fn delete(&self, file: &StoredFile) -> io::Result<()>;
}

/// Identifies the bytes of a file, whatever its name; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub uuid::Uuid);

impl FileId {
    /// A new id.
    pub(super) fn new() -> Self {
        FileId(uuid::Uuid::new_v4())
    }
}

/// A log as its new owner or a replica finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLog {
    /// Identifies the log: another one, even with the same name, has another id.
    pub id: uuid::Uuid,
    /// Its files.
    pub files: Vec<StoredFile>,
}

/// A file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// The name, with `/` between its parts; of a file without a name, the last that it had.
    pub name: String,
    /// What identifies its bytes.
    pub id: FileId,
    /// The length in bytes.
    pub bytes: u64,
    /// How it is written.
    pub state: FileState,
}

/// How a file of a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// Its owner appends to it: the store keeps the length, and refuses earlier owners.
    Open,
    /// Nothing is appended any more. It was [`FileState::Open`].
    Sealed,
    /// It is written once, by [`LogStorage::write`], before its length is set together with its name.
    Whole,
}

/// A change of the names of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameChange {
    /// The name leads to this file from now on; `bytes` is stored unless the file is [`FileState::Open`].
    Set(StoredFile),
    /// The name leads to no file.
    Remove(String),
}

/// The cause of an [`io::Error`]: another process has taken the log over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposed;

impl std::fmt::Display for Deposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another process has taken over the log of this database")
    }
}

impl std::error::Error for Deposed {}

impl From<Deposed> for io::Error {
    fn from(deposed: Deposed) -> Self {
        io::Error::other(deposed)
    }
}
