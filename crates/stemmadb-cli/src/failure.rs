//! Errors of the command: messages for the user and exit statuses for scripts.
//!
//! An error is an `error: …` line and any number of `hint: …` lines on standard error. The exit status is its kind.

use std::fmt;
use std::io::{ErrorKind as IoErrorKind, Write as _};

use stemmadb::ErrorKind;

/// Result type of this crate.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit status of the process. The values are part of the command's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Done = 0,
    /// A document was not found, a revision was not current, or a unique value already exists.
    NotFound = 1,
    /// Invalid command line or input.
    Usage = 2,
    /// Stored data is damaged.
    Corrupt = 3,
    /// The system refused an operation: disk full, read-only file system, unreachable server.
    Unavailable = 4,
    /// A bug in Stemma.
    Internal = 5,
    /// Another process has the database open.
    Locked = 6,
    /// The key of an encrypted database is missing or wrong.
    Key = 7,
    /// Interrupted by Ctrl-C, as shells report it.
    Interrupted = 130,
}

/// Why a disk takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteObstacle {
    /// The file system is read-only, or permission was denied.
    Forbidden,
    /// No space is left.
    Full,
}

/// An error with its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hints: Vec<String>,
    /// Print nothing.
    quiet: bool,
    /// Why the disk takes no writes, if that is the cause.
    write_obstacle: Option<WriteObstacle>,
}

impl Failure {
    /// Creates a failure; `message` begins in lower case and has no full stop.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), hints: Vec::new(), quiet: false, write_obstacle: None }
    }

    /// Invalid command line or input.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A document or attachment was not found.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// A failure that prints nothing and only sets the exit status.
    pub(crate) fn silent(exit: Exit) -> Self {
        Failure { exit, message: String::new(), hints: Vec::new(), quiet: true, write_obstacle: None }
    }

    /// An error writing to standard output. A closed pipe counts as success: the reader needs no more data.
    pub(crate) fn output(error: std::io::Error) -> Self {
        if error.kind() == IoErrorKind::BrokenPipe {
            return Self::silent(Exit::Done);
        }
        Self::new(Exit::Unavailable, format!("cannot write the output: {error}"))
    }

    /// Adds a `hint:` line, which says what the user can do.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Prefixes the message with `context: `.
    #[must_use]
    pub(crate) fn with_context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Replaces the exit status.
    #[must_use]
    pub(crate) fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Why the disk takes no writes, if that is the cause.
    pub(crate) fn write_obstacle(&self) -> Option<WriteObstacle> {
        self.write_obstacle
    }

    /// The exit status.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the failure to standard error.
    pub(crate) fn print(&self) {
        if self.quiet {
            return;
        }
        let (red, cyan, reset) = ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m");
        let mut stderr = anstream::stderr().lock();
        // If standard error is closed, the message cannot be delivered.
        writeln!(stderr, "{red}error:{reset} {}", self.message).ok();
        for hint in &self.hints {
            writeln!(stderr, "{cyan}hint:{reset} {hint}").ok();
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<stemmadb::Error> for Failure {
    fn from(error: stemmadb::Error) -> Self {
        Failure::of(&error)
    }
}

impl Failure {
    /// The failure for an error of the library.
    pub(crate) fn of(error: &stemmadb::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::Corrupt => Exit::Corrupt,
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Stopped | ErrorKind::Forbidden => Exit::Unavailable,
            ErrorKind::Locked => Exit::Locked,
            ErrorKind::KeyRequired | ErrorKind::WrongKey => Exit::Key,
            _ => Exit::Internal,
        };
        let mut failure = Failure::new(exit, error.message());
        failure.write_obstacle = error.io_cause().and_then(|cause| match cause.kind() {
            IoErrorKind::ReadOnlyFilesystem | IoErrorKind::PermissionDenied => Some(WriteObstacle::Forbidden),
            IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => Some(WriteObstacle::Full),
            _ => None,
        });
        match error.hint() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

/// Converts an error message of clap: its first paragraph becomes the message, tips and usage become hints.
pub(crate) fn from_clap(text: &str) -> Failure {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut message = lines.next().unwrap_or("wrong usage").trim_start_matches("error: ").to_owned();
    let mut hints = Vec::new();
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ") {
            hints.push(tip.to_owned());
        } else if let Some(usage) = line.strip_prefix("Usage: ") {
            hints.push(format!("usage: {usage}"));
        } else if !line.starts_with("For more information") {
            message.push(' ');
            message.push_str(line);
        }
    }
    hints.into_iter().fold(Failure::usage(message), Failure::with_hint)
}

/// Prints a line to standard error: information that is not data.
pub(crate) fn notice(text: impl fmt::Display) {
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "{text}").ok();
}

/// Prints a `hint: …` line to standard error without failing.
pub(crate) fn hint(text: impl fmt::Display) {
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "\x1b[1;36mhint:\x1b[0m {text}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_kinds_map_to_exit_statuses() {
        let exit = |error: stemmadb::Error| Failure::from(error).exit();
        assert_eq!(exit(stemmadb::Error::not_found("x")), Exit::NotFound);
        assert_eq!(exit(stemmadb::Error::conflict("x")), Exit::NotFound);
        assert_eq!(exit(stemmadb::Error::duplicate_value("x")), Exit::NotFound);
        assert_eq!(exit(stemmadb::Error::invalid("x")), Exit::Usage);
        assert_eq!(exit(stemmadb::Error::corrupt("x")), Exit::Corrupt);
        assert_eq!(exit(stemmadb::Error::unavailable("x")), Exit::Unavailable);
        assert_eq!(exit(stemmadb::Error::closed("x")), Exit::Unavailable);
        assert_eq!(exit(stemmadb::Error::locked("x")), Exit::Locked);
        assert_eq!(exit(stemmadb::Error::internal("x")), Exit::Internal);
        assert_eq!(exit(stemmadb::Error::new(ErrorKind::KeyRequired, "x")), Exit::Key);
        assert_eq!(exit(stemmadb::Error::new(ErrorKind::WrongKey, "x")), Exit::Key);
    }

    #[test]
    fn closed_pipe_is_success() {
        let failure = Failure::output(IoErrorKind::BrokenPipe.into());
        assert_eq!(failure.exit(), Exit::Done);
        assert!(failure.quiet);
    }
}
