//! The experiments: Stemma beside its peers, in the same run on the same machine, answers compared before a row is written.
//!
//! ```text
//! harness      how is it measured?      samples, turns, memory, disk, rows, tables
//! workload     what on?                 documents and questions as data, and the truth about them
//! engine       who?                     Stemma and its peers, asked the same way
//! served       over HTTP?            Stemma's server as a process of its own, and a client that costs little
//! experiments  what is found out?       groups of rows
//! commands     what is there to run?    each with its page and its plots
//! run, report  and all of it?           one after the other; pages, plots, one page of HTML
//! ```
//!
//! `harness` knows nothing of databases; `workload` knows no engine; nothing but `commands` knows the experiments.

mod commands;
mod engine;
mod experiments;
mod harness;
mod report;
mod run;
mod served;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use commands::Command;
use experiments::Bench;
use harness::{Clock, Machine, Place, Results};
use report::columns;
use stemmadb_server::script;

/// As the command has it; for peers within the process too.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    /// All experiments, or those that are named, one after the other; what was broken off goes on
    Run {
        /// Their names, as the commands are called
        experiments: Vec<String>,
        #[command(flatten)]
        run: Run,
        /// Where results are written to
        #[arg(long, value_name = "DIRECTORY", default_value = "results")]
        results: PathBuf,
        /// What the file of results is called [default: the date]
        #[arg(long)]
        name: Option<String>,
    },
    /// Pages, plots as SVG and PNG, and one page of HTML of results
    Report {
        /// A file that a run wrote
        results: PathBuf,
        /// Where the report is written to
        directory: PathBuf,
    },
    /// Inserts, reads by id, queries, room and memory, beside SQLite
    Core(Run),
    /// Live queries: from a write to who waits for it, and what watchers cost a write
    Live(Run),
    /// Every query of Barrel's benchmark beside SQLite with and without indexes, and what it advises against
    Queries(Run),
    /// The rest of Barrel's suite: documents, changes and subscriptions, by the library and over HTTP
    Barrel(Run),
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
    ServeChild { directory: PathBuf, durability: String },
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

// The command of that name has a group of its own.
#[derive(clap::Args)]
#[group(skip)]
struct Run {
    /// How much is measured: up to 100,000 documents, or up to 1,000,000; of shoppers, 100 or 1,000
    #[arg(long, value_enum, default_value_t = ScaleChoice::Small)]
    scale: ScaleChoice,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Don't print the page about them
    #[arg(long)]
    quiet: bool,
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
    /// For tests of the program itself
    #[value(hide = true)]
    Tiny,
    Small,
    Full,
}

impl ScaleChoice {
    fn scale(self) -> experiments::Scale {
        match self {
            ScaleChoice::Tiny => experiments::TINY,
            ScaleChoice::Small => experiments::SMALL,
            ScaleChoice::Full => experiments::FULL,
        }
    }
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
        Experiment::Run { experiments, run, results, name } => {
            let name = match name {
                Some(name) => name.clone(),
                None => today()?,
            };
            run::run(experiments, run, results, &name).map(|_| ())
        }
        Experiment::Report { results, directory } => {
            let how = "cargo run --release -p stemmadb-bench --";
            report::write(&Results::read(results)?, how, directory)
        }
        Experiment::Core(run) => measure(run, "core"),
        Experiment::Live(run) => measure(run, "live"),
        Experiment::Queries(run) => measure(run, "queries"),
        Experiment::Barrel(run) => measure(run, "barrel"),
        Experiment::Views(run) => measure(run, "views"),
        Experiment::Commerce(run) => measure(run, "commerce"),
        Experiment::Http(run) => measure(run, "http"),
        Experiment::Batches(run) => measure(run, "batches"),
        Experiment::BatchChild { path, count, writer_count, shares_flushes } => {
            experiments::batch_child(path.clone(), *count, *writer_count, *shares_flushes)
        }
        Experiment::Encodings(run) => measure(run, "encodings"),
        Experiment::Caches(run) => measure(run, "caches"),
        Experiment::ServeChild { directory, durability } => served::run_child(directory.clone(), durability),
        Experiment::ImportChild { path, count } => experiments::import_child(path, *count),
    }
}

fn measure(run: &Run, name: &str) -> Result<()> {
    let experiment = Command::of(name).ok_or_else(|| format!("no experiment is called {name}"))?;
    let scale = run.scale.scale();
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
    if !run.quiet {
        print!("{page}");
    }
    if let Some(json) = &run.json {
        columns::write(&bench.results, json)?;
    }
    let Some(file) = &run.markdown else { return Ok(()) };
    std::fs::write(file, page).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    experiment.write_plots(&bench.results, &file.with_file_name("plots"))
}

/// The date, as files are called by it.
fn today() -> Result<String> {
    let output = std::process::Command::new("date").args(["-u", "+%F"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
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
