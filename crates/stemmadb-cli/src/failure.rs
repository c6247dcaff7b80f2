//! What does the user read, and which exit status does a script see, when something goes wrong?
//!
//! One `error: …` line and any number of `hint: …` lines on standard error; the exit status says what kind it was.

use std::fmt;
use std::io::Write as _;

use stemmadb::ErrorKind;

/// The result of everything in this crate that can fail.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The exit status of the process: part of the command's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Done = 0,
    /// There is no such document, or it changed meanwhile, or another one has its unique value.
    NotFound = 1,
    /// The command line or the input is wrong.
    Usage = 2,
    /// Stored bytes are damaged.
    Corrupt = 3,
    /// The environment refuses: full, read-only.
    Unavailable = 4,
    /// A bug in Stemma.
    Internal = 5,
    /// Another process has the database open.
    Locked = 6,
}

/// Why a command stopped.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hints: Vec<String>,
    /// Nobody reads our output any more: say nothing.
    quiet: bool,
    /// The disk takes no writes.
    read_only: bool,
}

impl Failure {
    /// A failure of the given kind; `message` is lower-case and has no full stop.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), hints: Vec::new(), quiet: false, read_only: false }
    }

    /// The command line or the input is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// There is no such document.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// Everything needed was already said; only the exit status is left to give.
    pub(crate) fn silent(exit: Exit) -> Self {
        Failure { exit, message: String::new(), hints: Vec::new(), quiet: true, read_only: false }
    }

    /// What happened when standard output was written: a closed pipe is no failure, the reader has seen enough.
    pub(crate) fn output(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::silent(Exit::Done);
        }
        Self::new(Exit::Unavailable, format!("cannot write the output: {error}"))
    }

    /// The same failure with one more line that says what to do.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same failure with `context: ` before its message.
    #[must_use]
    pub(crate) fn within(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// The same failure, of another kind.
    #[must_use]
    pub(crate) fn of_kind(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Whether the disk, or the rights on it, let nobody write.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The exit status this failure asks for.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Writes the failure to standard error.
    pub(crate) fn print(&self) {
        if self.quiet {
            return;
        }
        let (red, cyan, reset) = ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m");
        let mut stderr = anstream::stderr().lock();
        // Where standard error is closed there is nobody left to tell.
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
        let exit = match error.kind() {
            ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::Corrupt => Exit::Corrupt,
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Stopped => Exit::Unavailable,
            ErrorKind::Locked => Exit::Locked,
            _ => Exit::Internal,
        };
        let mut failure = Failure::new(exit, error.message());
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
        failure.read_only = source.is_some_and(|source| {
            matches!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied)
        });
        match error.hint() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

/// What clap says of a wrong command line, in our form: one message, the rest as hints.
pub(crate) fn of_usage(text: &str) -> Failure {
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

/// Writes a line to standard error, for what is worth knowing but is no data.
pub(crate) fn remark(text: impl fmt::Display) {
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "{text}").ok();
}

/// Writes a `hint: …` line to standard error, for what is worth knowing though nothing went wrong.
pub(crate) fn hint(text: impl fmt::Display) {
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "\x1b[1;36mhint:\x1b[0m {text}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_exit_status() {
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
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::output(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(failure.exit(), Exit::Done);
        assert!(failure.quiet);
    }
}
