//! What went wrong, and what should the caller do about it?

use std::error::Error as StdError;
use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is: it says what the caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The document changed since it was read: read it again and decide.
    Conflict,
    /// Another document has a value that is declared unique: choose another value. Trying again does not help.
    Duplicate,
    /// There is no such document or revision.
    NotFound,
    /// The request itself is wrong and will fail again: correct it.
    Invalid,
    /// The environment refuses (disk full, read-only): mend it, then retry or reopen.
    Unavailable,
    /// It met a limit that was set for it (time, rows, memory), or was cancelled: ask for less, or allow more.
    Stopped,
    /// The database is open elsewhere: try again when it is closed there.
    Locked,
    /// Stored bytes are damaged: run `check`, then `rebuild` or restore.
    Corrupt,
    /// The database was closed, or refuses writes after a failed write or flush: reopen it.
    Closed,
    /// A bug in Stemma: please report it.
    Internal,
}

/// The one error type of this crate: a kind to act on, a message for people, often a hint, and the source if there is one.
///
/// One pointer wide, so that returning it costs nothing on the good path.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error of `kind`; `message` is lower-case and has no full stop.
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

    /// [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// What went wrong with a file: `doing` names the act and the file, as in `write log/0000000001.log`.
    pub fn io(doing: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let hint = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => {
                Some("free some space, then reopen the database; nothing acknowledged is lost")
            }
            Io::ReadOnlyFilesystem | Io::PermissionDenied => Some("make the directory writable for this user"),
            Io::NotFound => Some("check the path"),
            _ => None,
        };
        let error = Self::unavailable(format!("cannot {doing}: {source}")).with_source(source);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Why a thread could not be started, and what to do about it.
    pub fn no_thread(source: std::io::Error) -> Self {
        Self::io("start a thread", source)
            .with_hint("more threads must be allowed: `ulimit -u`, TasksMax of a unit, or the container's pids limit")
    }

    /// The same error with one line that says what to do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error with `context: ` before its message.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// What the caller should do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// One line that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The same error again, for each of several callers that wait for one act; the source stays with the first.
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

/// For code that reads the content of files ([`crate::BlobReader`]) and answers with a [`Result`].
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
