//! JavaScript functions of design documents, run in worker processes.
//!
//! *Workers* are processes of this same program. Each has one engine (QuickJS) for one design document at a time,
//! without files, network, or a clock finer than a millisecond, and with limits on time and memory. A worker that fails
//! is killed; the server is not affected.
//!
//! ```text
//! pool      choice of a worker             child     the server's side of a worker: pipes and watchdog
//! worker    the worker process             engine    QuickJS, and the limits of a call
//! wire      frames on the pipes            prelude   the functions' environment
//! ```
//!
//! Invariants: an engine serves one context (a database and a revision of its design document, or the functions of one
//! view) and is discarded with it; a worker that failed is never used again; no effect of a function outlives its
//! context.
//!
//! Concurrency: a call blocks its thread, at most for the time limit of each call of a batch.

mod child;
mod engine;
mod pool;
mod wire;
mod worker;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use pool::Scripts;
pub use worker::run as run_worker;

/// The hidden subcommand that runs a worker.
pub const WORKER_SUBCOMMAND: &str = "script-worker";

/// The command that starts a worker: a program that calls [`run_worker`] with the arguments that follow these.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// This program with the hidden subcommand.
    ///
    /// # Errors
    /// If the operating system does not report the path of this program.
    pub fn this_program() -> std::io::Result<Self> {
        // Without /proc, as in an empty root directory, the path with which it was started.
        let started_as = || std::env::args_os().next().map(PathBuf::from).filter(|path| path.is_absolute());
        let program = std::env::current_exe().or_else(|error| started_as().ok_or(error))?;
        Ok(WorkerCommand { program, arguments: vec![WORKER_SUBCOMMAND.into()] })
    }
}

/// The limits of functions and workers.
#[derive(Debug, Clone, Copy)]
pub struct ScriptLimits {
    /// The time limit of a call.
    pub time: Duration,
    /// The memory limit of an engine, in bytes.
    pub memory_bytes: usize,
    /// The maximum number of workers.
    pub worker_count: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ScriptLimits {
            time: Duration::from_secs(5),
            memory_bytes: 64 << 20,
            worker_count: (processors * 2).clamp(2, 16),
        }
    }
}

/// The context of calls: the functions of one design document, or of one of its views.
#[derive(Debug, Clone)]
pub struct Context {
    /// The identity of the context: the database and the revision of the design document.
    pub key: Arc<str>,
    /// The design document as JSON, or the part of it that functions may see.
    pub design: Arc<str>,
}

/// The kind of a call: the arguments and the result of the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// `(document)` returns its rows, `[[key, value], …]`.
    Map,
    /// `(keys, values)` returns their reduction.
    Reduce,
    /// `(values)` returns the reduction of reductions.
    Rereduce,
    /// `(document, request)` returns whether the document passes.
    Filter,
    /// `(document)` returns whether the document has rows.
    ViewFilter,
    /// `(document, previous document, user, security)` returns true unless it throws.
    Validate,
    /// `(document, request)` returns `[document, response]`.
    Update,
    /// `(document, request)` returns the response: an object with `code`, `headers`, and `body`, `json` or `base64`.
    Show,
    /// `(head, request, rows)`, where `rows` has the JSON of a row in each line, returns the response.
    List,
    /// `(document, event)` returns the documents to write.
    Trigger,
    /// `(versions, ancestor)` returns the document that they become.
    Conflict,
    /// `(request)` returns the request to handle instead, or a response.
    Rewrite,
}

impl CallKind {
    fn name(self) -> &'static str {
        match self {
            CallKind::Map => "map",
            CallKind::Reduce => "reduce",
            CallKind::Rereduce => "rereduce",
            CallKind::Filter => "filter",
            CallKind::ViewFilter => "view_filter",
            CallKind::Validate => "validate",
            CallKind::Update => "update",
            CallKind::Show => "show",
            CallKind::List => "list",
            CallKind::Trigger => "trigger",
            CallKind::Conflict => "conflict",
            CallKind::Rewrite => "rewrite",
        }
    }
}

/// An exception that a function threw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrownError {
    /// Its name: `forbidden`, `unauthorized`, `TypeError` …
    pub error: String,
    /// Its message.
    pub reason: String,
}

/// An error of calling functions, as opposed to an exception of a function.
#[derive(Debug)]
pub enum ScriptError {
    /// There is no such function, or it can't be compiled.
    Uncallable(ThrownError),
    /// A call exceeded this time limit.
    Timeout(Duration),
    /// A call exceeded the memory limit, or its arguments or result were too large.
    TooLarge,
    /// All workers were busy until a timeout.
    Busy,
    /// The worker ended.
    Crashed(String),
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptError::Uncallable(ThrownError { error, reason }) => write!(f, "{error}: {reason}"),
            ScriptError::Timeout(limit) => write!(f, "a function took longer than {} s and was ended", limit.as_secs()),
            ScriptError::TooLarge => f.write_str("a function took more memory than it may and was ended"),
            ScriptError::Busy => f.write_str("all script workers are busy"),
            ScriptError::Crashed(why) => write!(f, "a script worker failed: {why}"),
        }
    }
}

impl std::error::Error for ScriptError {}
