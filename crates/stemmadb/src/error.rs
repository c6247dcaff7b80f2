//! The error type of the crate, classified by what the caller should do.

use std::error::Error as StdError;
use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which determines what the caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The document changed since it was read: read it again and decide.
    Conflict,
    /// Another document has a value that is declared unique: choose another value. Trying again does not help.
    Duplicate,
    /// The document or revision does not exist.
    NotFound,
    /// The request is invalid and will fail again: correct it.
    Invalid,
    /// The user may not do this: authenticate, or have an administrator grant the right. Only servers return it.
    Forbidden,
    /// The environment prevents the operation (disk full, read-only): fix it, then retry or reopen.
    Unavailable,
    /// The operation exceeded a limit that was set for it (time, rows, memory), or was canceled: request less, or raise
    /// the limit.
    Stopped,
    /// The database is open in another process or handle: retry when it is closed there.
    Locked,
    /// Stored bytes are damaged: run `check`, then `rebuild` or restore.
    Corrupt,
    /// The database is encrypted, and no key was given: give it, with
    /// [`Options::encryption`](crate::Options::encryption).
    KeyRequired,
    /// The key is not that of the database: give the right one.
    WrongKey,
    /// The database was closed, or refuses writes after a failed write or flush: reopen it.
    Closed,
    /// A bug in Stemma: please report it.
    Internal,
}

/// The source of I/O errors of a database that was closed.
#[derive(Debug)]
pub(crate) struct DatabaseClosed;

impl fmt::Display for DatabaseClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the database is closed")
    }
}

impl StdError for DatabaseClosed {}

/// The error type of this crate: a kind for programs, a message for people, often a hint, and the source if there is
/// one.
///
/// It is one pointer wide, so that a `Result` stays small on the success path.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error of this kind. Messages are lower case and have no full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), hint: None, source: None }))
    }

    /// [`ErrorKind::Conflict`].
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    /// [`ErrorKind::Duplicate`].
    pub fn duplicate_value(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Duplicate, message)
    }

    /// [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// [`ErrorKind::Stopped`].
    pub fn stopped(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Stopped, message)
    }

    /// [`ErrorKind::Locked`].
    pub fn locked(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Locked, message)
    }

    /// [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// [`ErrorKind::Closed`].
    pub fn closed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, message)
    }

    /// The error for an operation on a database that was closed.
    pub(crate) fn database_closed() -> Self {
        Self::closed(DatabaseClosed.to_string())
    }

    /// [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The error of the operating system that caused this one, if there is one.
    ///
    /// # Examples
    /// ```
    /// let error = stemmadb::Error::io("write a file", std::io::ErrorKind::StorageFull.into());
    /// assert_eq!(error.io_cause().unwrap().kind(), std::io::ErrorKind::StorageFull);
    /// ```
    pub fn io_cause(&self) -> Option<&std::io::Error> {
        StdError::source(self).and_then(|source| source.downcast_ref())
    }

    /// An I/O error. `operation` names the operation and the file, such as `write log/0000000001.log`.
    pub fn io(operation: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        if source.get_ref().is_some_and(|inner| inner.is::<DatabaseClosed>()) {
            return Self::database_closed();
        }
        let hint = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => {
                Some("free some space, then reopen the database; nothing acknowledged is lost")
            }
            Io::ReadOnlyFilesystem | Io::PermissionDenied => Some("make the directory writable for this user"),
            Io::NotFound => Some("check the path"),
            _ => None,
        };
        let error = Self::unavailable(format!("cannot {operation}: {source}")).with_source(source);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// The error for a thread that could not be started.
    pub fn no_thread(source: std::io::Error) -> Self {
        Self::io("start a thread", source)
            .with_hint("more threads must be allowed: `ulimit -u`, TasksMax of a unit, or the container's pids limit")
    }

    /// Adds a one-line suggestion for resolving the error.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Prefixes the message with `context: `.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message, without kind and hint.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// A one-line suggestion for resolving the error, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Copies the error without its source, for several callers that wait for the same operation.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Error(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            hint: self.0.hint.clone(),
            source: None,
        }))
    }
}

/// Converts I/O errors of reading file contents ([`crate::BlobReader`]).
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::InvalidData => Error::corrupt(error.to_string()),
            _ => Error::io("read or write", error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        if let Some(hint) = &self.0.hint {
            write!(f, " (hint: {hint})")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
