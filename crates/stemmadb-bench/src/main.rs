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

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use experiments::{Bench, commerce};
use harness::{Clock, Machine, Place, Results};
use stemmadb_server::script;

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
    /// A shop: what its customers do, beside PostgreSQL 15 and SQLite, durable everywhere
    Commerce(Run),
    /// The server: requests in a second with 1 to 256 clients, writes beside the disk's flushes, views in JavaScript, memory
    Http(Run),
    /// CouchDB's experiment: documents one by one beside many at once, 1 to 256 writers with and without group commit, system calls
    Batches(Run),
    /// BoltDB's study: six ways to keep a record, on bbolt and LMDB, beside Stemma's packed records
    Encodings(Run),
    /// DODB's experiment: cars found by a unique value, a colour, a keyword; uncached, cached, in memory only; beside files and links
    Caches(Run),
    /// A server of the databases in a directory, until its input ends
    #[command(hide = true)]
    ServeChild { directory: PathBuf },
    /// One crowd of writers, for its system calls
    #[command(hide = true)]
    BatchChild {
        path: PathBuf,
        count: usize,
        writer_count: usize,
        #[arg(action = clap::ArgAction::Set)]
        shares_flushes: bool,
    },
    /// One import, for its memory
    #[command(hide = true)]
    ImportChild { path: PathBuf, count: u64 },
}

#[derive(clap::Args)]
struct Run {
    /// How much is measured: up to 100,000 documents, or up to 1,000,000; of shoppers, 100 or 1,000
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

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(script::WORKER_VERB) {
        // The server that is measured starts its workers from this program.
        return script::run_worker(&arguments.collect::<Vec<_>>());
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            // Some errors leave it to their source to tell what happened.
            let mut next = error.source();
            while let Some(source) = next {
                eprint!(": {source}");
                next = source.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.experiment {
        Experiment::Core(run) => measure(run, &CORE),
        Experiment::Live(run) => measure(run, &LIVE),
        Experiment::Queries(run) => measure(run, &QUERIES),
        Experiment::Views(run) => measure(run, &VIEWS),
        Experiment::Commerce(run) => measure(run, &COMMERCE),
        Experiment::Http(run) => measure(run, &HTTP),
        Experiment::Batches(run) => measure(run, &BATCHES),
        Experiment::BatchChild { path, count, writer_count, shares_flushes } => {
            experiments::batch_child(path.clone(), *count, *writer_count, *shares_flushes)
        }
        Experiment::Encodings(run) => measure(run, &ENCODINGS),
        Experiment::Caches(run) => measure(run, &CACHES),
        Experiment::ServeChild { directory } => experiments::serve_child(directory.clone()),
        Experiment::ImportChild { path, count } => experiments::import_child(path, *count),
    }
}

/// A command: what it runs, and what it shows.
struct Command {
    name: &'static str,
    run: fn(&mut Bench) -> Result<()>,
    settings: fn() -> String,
    /// The prose that its page begins with.
    opening: &'static str,
    page: fn(&Results, &str, &str) -> String,
    /// Writes plots into the directory beside the page.
    plot: fn(&Results, &Path) -> Result<()>,
}

const CORE: Command = Command {
    name: "core",
    run: Bench::fundamentals,
    settings: || engine::SETTINGS.to_owned(),
    opening: include_str!("pages/core.md"),
    page: Results::to_markdown,
    plot: |_, _| Ok(()),
};
const LIVE: Command = Command { name: "live", run: Bench::live, ..CORE };
const QUERIES: Command =
    Command { name: "queries", run: Bench::queries, opening: include_str!("pages/queries.md"), ..CORE };
const VIEWS: Command = Command { name: "views", run: Bench::views, opening: include_str!("pages/views.md"), ..CORE };
const BATCHES: Command =
    Command { name: "batches", run: Bench::batches, opening: include_str!("pages/batches.md"), ..CORE };
const CACHES: Command =
    Command { name: "caches", run: Bench::caches, opening: include_str!("pages/caches.md"), ..CORE };
const ENCODINGS: Command =
    Command { name: "encodings", run: Bench::encodings, opening: include_str!("pages/encodings.md"), ..CORE };
const COMMERCE: Command = Command {
    name: "commerce",
    run: Bench::commerce,
    settings: engine::shop::settings,
    opening: include_str!("pages/commerce.md"),
    page: commerce::page,
    plot: commerce::write_plots,
};

const HTTP: Command = Command {
    name: "http",
    run: Bench::http,
    settings: || {
        "the server as it starts, `Durability::Sync`; clients are threads beside it that keep their connections"
            .to_owned()
    },
    opening: include_str!("pages/http.md"),
    ..CORE
};

fn measure(run: &Run, experiment: &Command) -> Result<()> {
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
    let settings = format!("{}; reads timed by {clock_name}", (experiment.settings)());
    let machine = Machine::look(place.path(), versions, settings);
    let results = Results::new(machine, harness::commit(), run.json.as_deref());
    let mut bench = Bench::new(scale, place, results, clock, run.only.clone());
    (experiment.run)(&mut bench)?;
    if bench.results.rows().is_empty() {
        return Err(format!("no row is called {}", run.only.join(" or ")).into());
    }
    let page = (experiment.page)(&bench.results, experiment.opening, &command(experiment.name, scale.name, run));
    print!("{page}");
    let Some(file) = &run.markdown else { return Ok(()) };
    std::fs::write(file, page).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    (experiment.plot)(&bench.results, &file.with_file_name("plots"))
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
