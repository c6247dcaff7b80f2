//! The experiments: Stemma beside its peers, in the same run on the same machine, answers compared before a row is written.
//!
//! ```text
//! harness      how is it measured?      samples, turns, memory, disk, rows, tables
//! workload     what on?                 documents and questions as data, and the truth about them
//! engine       who?                     Stemma and its peers, asked the same way
//! experiments  what is found out?       groups of rows
//! ```
//!
//! `harness` knows nothing of databases; `workload` knows no engine; nothing knows the experiments.

mod engine;
mod experiments;
mod harness;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use experiments::Bench;
use harness::{Clock, Machine, Place, Results};

/// What stops a run.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

/// Stemma's experiments, beside their peers.
#[derive(Parser)]
#[command(name = "stemmadb-bench", version)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Inserts, reads by id, queries, room and memory, beside SQLite
    Core(Run),
    /// Live queries: from a write to who waits for it, and what watchers cost a write
    Live(Run),
    /// Every query of Barrel's benchmark beside SQLite with and without indexes, and what it advises against
    Queries(Run),
    /// Views: sums of ranges of a thousand to a million keys, beside SQLite's walk over an index
    Views(Run),
    /// One import, for its memory
    #[command(hide = true)]
    ImportChild { path: PathBuf, count: u64 },
}

#[derive(clap::Args)]
struct Run {
    /// How much is measured: up to 100,000 documents, or up to 1,000,000
    #[arg(long, value_enum, default_value_t = ScaleChoice::Small)]
    scale: ScaleChoice,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the page about them to this file as Markdown; it is printed all the same
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// What reads are timed by: the clock on the wall, or the processor time of the thread, which on a busy machine leaves out
    /// what others took
    #[arg(long, value_enum, default_value_t = ClockChoice::Wall)]
    clock: ClockChoice,
    /// Only rows whose name contains one of these
    #[arg(long, value_name = "ROW", num_args = 1..)]
    only: Vec<String>,
    /// Where the databases lie meanwhile [default: the system's temporary directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScaleChoice {
    Small,
    Full,
}

#[derive(Clone, Copy, ValueEnum)]
enum ClockChoice {
    Wall,
    Thread,
}

/// The prose that pages begin with.
const CORE_PAGE: &str = include_str!("pages/core.md");
const QUERIES_PAGE: &str = include_str!("pages/queries.md");
const VIEWS_PAGE: &str = include_str!("pages/views.md");

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.experiment {
        Experiment::Core(run) => measure("core", run, CORE_PAGE, Bench::fundamentals),
        Experiment::Live(run) => measure("live", run, CORE_PAGE, Bench::live),
        Experiment::Queries(run) => measure("queries", run, QUERIES_PAGE, Bench::queries),
        Experiment::Views(run) => measure("views", run, VIEWS_PAGE, Bench::views),
        Experiment::ImportChild { path, count } => experiments::import_child(path, *count),
    }
}

fn measure(name: &str, run: &Run, opening: &str, experiment: fn(&mut Bench) -> Result<()>) -> Result<()> {
    let scale = match run.scale {
        ScaleChoice::Small => experiments::SMALL,
        ScaleChoice::Full => experiments::FULL,
    };
    if cfg!(debug_assertions) {
        eprintln!("warning: this build is not optimised, so its figures mean nothing; build with --release");
    }
    let place = Place::new(run.directory.as_deref())?;
    let versions = format!("stemmadb {}, SQLite {}", env!("CARGO_PKG_VERSION"), rusqlite::version());
    let (clock, clock_name) = match run.clock {
        ClockChoice::Wall => (Clock::Wall, "the wall clock"),
        ClockChoice::Thread => (Clock::Thread, "the processor time of the thread that reads"),
    };
    let settings = format!("{}; reads timed by {clock_name}", engine::SETTINGS);
    let machine = Machine::look(place.path(), versions, settings);
    let results = Results::new(machine, harness::commit(), run.json.as_deref());
    let mut bench = Bench::new(scale, place, results, clock, run.only.clone());
    experiment(&mut bench)?;
    if bench.results.rows().is_empty() {
        return Err(format!("no row is called {}", run.only.join(" or ")).into());
    }
    let page = bench.results.to_markdown(opening, &command(name, scale.name, run));
    print!("{page}");
    match &run.markdown {
        Some(file) => {
            std::fs::write(file, page).map_err(|error| format!("cannot write {}: {error}", file.display()).into())
        }
        None => Ok(()),
    }
}

/// How this run is made again; where its files lay belongs to this machine alone.
fn command(name: &str, scale: &str, run: &Run) -> String {
    let mut command = format!("cargo run --release -p stemmadb-bench -- {name} --scale {scale}");
    if matches!(run.clock, ClockChoice::Thread) {
        command.push_str(" --clock thread");
    }
    for row in &run.only {
        command.push_str(&format!(" --only '{row}'"));
    }
    command
}
