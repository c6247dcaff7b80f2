//! Requests to the child processes that measure. Each task of an engine has a process of its own, so that caches are
//! cold, and memory and processor time belong to that engine alone.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::{databases, inserts, mixed, reads, updates};
use crate::Result;
use crate::harness::{Clock, Samples, Unit};

/// The engine that a task measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EngineName {
    Stemma,
    Sqlite,
}

/// A task for a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) engine: EngineName,
    pub(super) path: PathBuf,
    /// Whether reads are timed by the processor time of their thread.
    pub(super) uses_thread_clock: bool,
    /// Repetitions of reads.
    pub(super) repetition_count: usize,
    /// The name of the compression to insert with; none: as the database has it.
    pub(super) compression: Option<String>,
    pub(super) task: Task,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Insert documents until there are `count`, but for at most `seconds_max`; then measure memory and disk space.
    Insert { count: u64, seconds_max: Option<u64> },
    /// Time reads.
    Read,
    /// Time reads by id without caches.
    Get,
    /// Time opening, and the first operations afterwards.
    Reopen,
    /// Time rebuilding the tree from the log.
    Rebuild,
    /// Run concurrent writes and reads.
    Mixed { seconds: u64 },
    /// Update few documents many times.
    Update { count: u64 },
    /// Open many databases.
    Open { count: usize },
    /// Measure the processor time of databases that are not used.
    Idle { count: usize, seconds: u64 },
}

/// The result of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) document_count: u64,
    /// Inserted documents, in chunks.
    pub(super) chunks: Vec<Chunk>,
    pub(super) figures: Vec<Figure>,
}

/// Measurements of consecutive inserts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Chunk {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) elapsed_ns: f64,
    pub(super) processor_ns: f64,
    pub(super) longest_batch_ns: f64,
}

/// The samples of one row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) row: String,
    pub(super) unit: FigureUnit,
    pub(super) samples: Samples,
    pub(super) note: Option<String>,
    /// Answers with the numbers of their queries, to be compared between engines.
    pub(super) answers: Vec<(usize, i64)>,
}

/// The unit of a figure. Samples of times and rates are nanoseconds per operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FigureUnit {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    DocumentsPerSecond,
    OperationsPerSecond,
    BytesPerDocument,
    Mebibytes,
    SecondsPerGibibyte,
    /// A ratio of which less is better.
    Times,
    /// A ratio of which more is better.
    Share,
    /// A number of which less is better.
    Count,
    Databases,
}

impl FigureUnit {
    pub(super) fn unit(self) -> Unit {
        match self {
            FigureUnit::Nanoseconds => Unit::Nanoseconds,
            FigureUnit::Microseconds => Unit::Microseconds,
            FigureUnit::Milliseconds => Unit::Milliseconds,
            FigureUnit::DocumentsPerSecond => Unit::PerSecond("documents/s"),
            FigureUnit::OperationsPerSecond => Unit::PerSecond("operations/s"),
            FigureUnit::BytesPerDocument => Unit::Amount("bytes/document"),
            FigureUnit::Mebibytes => Unit::Amount("MiB"),
            FigureUnit::SecondsPerGibibyte => Unit::Amount("s/GiB"),
            FigureUnit::Times => Unit::Amount("times"),
            FigureUnit::Share => Unit::Share("times"),
            FigureUnit::Count => Unit::Amount("count"),
            FigureUnit::Databases => Unit::Share("databases"),
        }
    }
}

impl Figure {
    /// Creates a figure with one sample.
    pub(super) fn single(row: impl Into<String>, unit: FigureUnit, sample: f64) -> Self {
        Self::new(row, unit, Samples::from_costs([sample]))
    }

    pub(super) fn new(row: impl Into<String>, unit: FigureUnit, samples: Samples) -> Self {
        Figure { row: row.into(), unit, samples, note: None, answers: Vec::new() }
    }
}

impl Request {
    pub(super) fn clock(&self) -> Clock {
        if self.uses_thread_clock { Clock::Thread } else { Clock::Wall }
    }

    /// Runs the task in a child process. Tests, which have no such process, run it in their own.
    pub(super) fn execute(&self) -> Result<Reply> {
        if cfg!(test) {
            return self.perform();
        }
        let output = Command::new(std::env::current_exe()?)
            .arg("growth-child")
            .arg(serde_json::to_string(self)?)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("{:?} of {:?} failed: {}", self.task, self.engine, output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn perform(&self) -> Result<Reply> {
        let figures = match self.task {
            Task::Insert { count, seconds_max } => return inserts::run(self, count, seconds_max),
            Task::Rebuild => inserts::rebuild(self)?,
            Task::Read => reads::run(self)?,
            Task::Get => reads::get_uncached(self)?,
            Task::Reopen => reads::reopen(self)?,
            Task::Mixed { seconds } => mixed::run(self, seconds)?,
            Task::Update { count } => updates::run(self, count)?,
            Task::Open { count } => databases::open(self, count)?,
            Task::Idle { count, seconds } => databases::idle(self, count, seconds)?,
        };
        Ok(Reply { figures, ..Reply::default() })
    }
}

/// Entry point of the child process: runs the request, which is JSON, and prints the reply.
pub(crate) fn run_child(request: &str) -> Result<()> {
    let request: Request = serde_json::from_str(request)?;
    println!("{}", serde_json::to_string(&request.perform()?)?);
    Ok(())
}
