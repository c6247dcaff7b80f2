//! The functions of design documents, in JavaScript.
//!
//! They run in *workers*: processes of this same program, each with one engine (QuickJS) for one design document at a time, without
//! files, network, or a clock finer than a millisecond, bounded in time and memory. What goes wrong in a worker ends the worker.
//!
//! ```text
//! pool      which worker is asked          child     the server's side of one: pipes, and the watchdog that ends it
//! worker    the process itself             engine    QuickJS, and the bounds of a call
//! wire      frames on the pipes            prelude   what functions find around them
//! ```
//!
//! Invariants: an engine serves one context (a database and a revision of its design document, or of one view's functions) and is
//! thrown away with it; a worker that failed is never asked again; nothing a function does outlives its context.
//!
//! Concurrency: every call blocks the thread that makes it, for no longer than the bound on time for each call of a batch.

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

/// The hidden first argument that makes the program a worker.
pub const WORKER_VERB: &str = "script-worker";

/// What starts a worker: a program that calls [`run_worker`] with the arguments after these.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<OsString>,
}

impl Launch {
    /// This same program with the hidden verb.
    ///
    /// # Errors
    /// If the operating system doesn't tell which program this is.
    pub fn this_program() -> std::io::Result<Self> {
        Ok(Launch { program: std::env::current_exe()?, arguments: vec![WORKER_VERB.into()] })
    }
}

/// What functions are bounded by.
#[derive(Debug, Clone, Copy)]
pub struct Bounded {
    /// How long one call may take.
    pub time: Duration,
    /// How much memory one engine may take, in bytes.
    pub memory_bytes: usize,
    /// How many workers there may be.
    pub worker_count: usize,
}

impl Default for Bounded {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Bounded { time: Duration::from_secs(5), memory_bytes: 64 << 20, worker_count: (processors * 2).clamp(2, 16) }
    }
}

/// What a worker is to have open: the functions of one design document, or of one of its views.
#[derive(Debug, Clone)]
pub struct Context {
    /// What tells contexts apart: database and revision of the design document.
    pub key: Arc<str>,
    /// The design document, as JSON, or what is to be seen of it.
    pub design: Arc<str>,
}

/// What is done with a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `(document)`: its rows, `[[key, value], …]`.
    Map,
    /// `(keys, values)`: what they come to.
    Reduce,
    /// `(values)`: what reductions come to.
    Rereduce,
    /// `(document, request)`: whether it passes.
    Filter,
    /// `(document)`: whether it has rows.
    ViewFilter,
    /// `(document, the one before, user, security)`: true unless it throws.
    Validate,
    /// `(document, request)`: `[document, response]`.
    Update,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::Map => "map",
            Verb::Reduce => "reduce",
            Verb::Rereduce => "rereduce",
            Verb::Filter => "filter",
            Verb::ViewFilter => "view_filter",
            Verb::Validate => "validate",
            Verb::Update => "update",
        }
    }
}

/// What a function threw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thrown {
    /// What it is called: `forbidden`, `unauthorized`, `TypeError` …
    pub error: String,
    /// Why.
    pub reason: String,
}

/// Why functions could not be called.
#[derive(Debug)]
pub enum ScriptError {
    /// There is no such function, or it can't be compiled.
    Uncallable(Thrown),
    /// A call took longer than this.
    Timeout(Duration),
    /// A call took more memory than it may, or what it was given or gave was too large.
    TooLarge,
    /// All workers were busy for long.
    Busy,
    /// The worker ended.
    Crashed(String),
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptError::Uncallable(Thrown { error, reason }) => write!(f, "{error}: {reason}"),
            ScriptError::Timeout(bound) => write!(f, "a function took longer than {} s and was ended", bound.as_secs()),
            ScriptError::TooLarge => f.write_str("a function took more memory than it may and was ended"),
            ScriptError::Busy => f.write_str("all script workers are busy"),
            ScriptError::Crashed(why) => write!(f, "a script worker failed: {why}"),
        }
    }
}

impl std::error::Error for ScriptError {}
