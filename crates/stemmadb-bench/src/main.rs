//! Stemma's benchmarks: every experiment runs Stemma and its peers in one process and one run, and compares their
//! answers before it records a row.
//!
//! ```text
//! harness      samples, alternating turns, memory, disk space, result rows, tables, plots
//! workload     documents and queries as data, and their expected results
//! engine       Stemma and its peers behind one interface
//! server       Stemma's server as a child process, and a lightweight client
//! experiments  the measurements: groups of rows
//! commands     the table of experiments, with their pages and plots
//! run, report  running several experiments; pages, plots and HTML from results
//! ```
//!
//! `harness` does not depend on databases, `workload` does not depend on engines, and only `commands` and `report`
//! depend on `experiments`.

mod commands;
mod engine;
mod experiments;
mod harness;
mod report;
mod run;
mod server;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use commands::Command;
use experiments::{Bench, growth};
use harness::{Clock, Machine, Results, ScratchDirectory};
use report::columns;
use stemmadb_server::script;

/// The same allocator as the `stemma` command; peers within this process use it too.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// An error that ends a run.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

/// Stemma's benchmarks, compared with other databases
#[derive(Parser)]
#[command(name = "stemmadb-bench", version)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Run several experiments, or all of them; resumes an interrupted run
    Run {
        /// Names of the experiments; all except `growth` if empty
        experiments: Vec<String>,
        #[command(flatten)]
        run: Run,
        /// Directory for the results
        #[arg(long, value_name = "DIRECTORY", default_value = "results")]
        results: PathBuf,
        /// Name of the results file [default: the date]
        #[arg(long)]
        name: Option<String>,
    },
    /// Write benchmark pages, plots and full tables from a results file
    Report {
        /// Results file written by `run`
        results: PathBuf,
        /// Directory for the pages and plots; full tables go beside the results file, into a directory of the same name
        directory: PathBuf,
        /// Another results file whose rows are included, such as that of `growth`
        #[arg(long, value_name = "RESULTS")]
        also: Vec<PathBuf>,
    },
    /// Inserts, reads by id, queries, disk space and memory, compared with SQLite
    Core(Run),
    /// Live queries: notification latency, and the cost of watchers to writes
    Live(Run),
    /// Barrel's queries compared with SQLite with and without indexes, and Barrel's list of anti-patterns
    Queries(Run),
    /// The rest of Barrel's suite: documents, changes and subscriptions, by the library and over HTTP
    Barrel(Run),
    /// Views: sums over ranges of 1,000 to 1,000,000 keys, compared with SQLite's index scans
    Views(Run),
    /// A shop, compared with PostgreSQL 15 and SQLite, durable everywhere
    Commerce(Run),
    /// The server: request rates with 1 to 256 clients, durable writes, JavaScript views, memory
    Http(Run),
    /// CouchDB's batch experiment: batched and single inserts, 1 to 256 writers with and without group commit, system
    /// calls
    Batches(Run),
    /// The BoltDB study: six record encodings on bbolt and LMDB, compared with Stemma's packed records
    Encodings(Run),
    /// DODB's experiment: lookups of cars uncached, cached and in memory, compared with files and links
    Caches(Run),
    /// The cost of keeping the past; reads as of a sequence, backups, branches, restores
    History(Run),
    /// Many databases as one: federated queries, virtual databases, and a split while clients read and write
    Many(Run),
    /// A log in a Cassandra cluster; `STEMMA_CASSANDRA` names a node
    Cluster(Run),
    /// Growth of one database to millions of documents: inserts, reads, opening, rebuilding, mixed load; many databases
    Growth {
        #[command(flatten)]
        run: Run,
        #[command(flatten)]
        options: growth::Options,
    },
    /// Serve the databases in a directory until stdin ends
    #[command(hide = true)]
    ServeChild { directory: PathBuf, durability: String },
    /// Own a database whose log is in a cluster, and insert
    #[command(hide = true)]
    OwnerChild { path: PathBuf, writer_count: usize, document_count: u64 },
    /// Insert with concurrent writers, for counting system calls
    #[command(hide = true)]
    BatchChild {
        path: PathBuf,
        count: usize,
        writer_count: usize,
        #[arg(action = clap::ArgAction::Set)]
        shares_flushes: bool,
    },
    /// Import documents, for measuring memory
    #[command(hide = true)]
    ImportChild { path: PathBuf, count: u64 },
    /// Measure one engine of `growth`
    #[command(hide = true)]
    GrowthChild { request: String },
}

// The `run` command has an argument group of the same name.
#[derive(clap::Args)]
#[group(skip)]
struct Run {
    /// Amount of work: up to 100,000 documents and 100 shoppers, or up to 1,000,000 and 1,000;
    /// `growth` has 5,000,000 documents at full scale
    #[arg(long, value_enum, default_value_t = ScaleChoice::Small)]
    scale: ScaleChoice,
    /// Documents in each database, instead of the scale's sizes; an experiment that needs more rounds it up
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(100..))]
    documents: Option<u64>,
    /// Repetitions of each measurement, instead of the scale's; in `commerce`, shoppers of each run
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    iterations: Option<u16>,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Don't print the full tables
    #[arg(long)]
    quiet: bool,
    /// Also write the full tables to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Clock for timing reads: wall-clock time, or the processor time of the thread, which excludes other processes on
    /// a busy machine
    #[arg(long, value_enum, default_value_t = ClockChoice::Wall)]
    clock: ClockChoice,
    /// Run only rows whose name contains one of these strings
    #[arg(long, value_name = "ROW", num_args = 1..)]
    only: Vec<String>,
    /// Also measure BonsaiDb in `commerce`; builds it first, from 300 crates that cargo downloads
    #[arg(long)]
    bonsaidb: bool,
    /// Directory for the databases during the run [default: the system's temporary directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScaleChoice {
    /// For tests of this program
    #[value(hide = true)]
    Tiny,
    Small,
    Full,
    /// As full, with 10,000,000 documents for `growth`
    Huge,
}

impl Run {
    /// Returns the amount of work: the scale, with what the options change in it.
    fn scale(&self) -> experiments::Scale {
        let scale = self.scale.scale();
        let scale = self.documents.map_or(scale, |count| scale.with_documents(count));
        self.iterations.map_or(scale, |count| scale.with_iterations(usize::from(count)))
    }

    /// Returns the options that [`Run::scale`] depends on, as arguments.
    fn scale_arguments(&self) -> Vec<String> {
        let options = [
            ("--documents", self.documents.map(|count| count.to_string())),
            ("--iterations", self.iterations.map(|count| count.to_string())),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten();
        ["--scale".to_owned(), self.scale.scale().name.to_owned()].into_iter().chain(given).collect()
    }
}

impl ScaleChoice {
    fn scale(self) -> experiments::Scale {
        match self {
            ScaleChoice::Tiny => experiments::TINY,
            ScaleChoice::Small => experiments::SMALL,
            ScaleChoice::Full => experiments::FULL,
            ScaleChoice::Huge => experiments::HUGE,
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
    if arguments.next().as_deref() == Some(script::WORKER_SUBCOMMAND) {
        // The measured server starts its script workers from this program.
        return script::run_worker(&arguments.collect::<Vec<_>>());
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            // Some errors leave the details to their source.
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
            let name = name.clone().unwrap_or_else(today);
            run::run(experiments, run, results, &name).map(|_| ())
        }
        Experiment::Report { results, directory, also } => {
            let how = "cargo run --release -p stemmadb-bench --";
            report::write(results, also, how, directory)
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
        Experiment::OwnerChild { path, writer_count, document_count } => {
            experiments::owner_child(path, *writer_count, *document_count)
        }
        Experiment::Encodings(run) => measure(run, "encodings"),
        Experiment::Caches(run) => measure(run, "caches"),
        Experiment::History(run) => measure(run, "history"),
        Experiment::Many(run) => measure(run, "many"),
        Experiment::Cluster(run) => measure(run, "cluster"),
        Experiment::ServeChild { directory, durability } => server::run_child(directory.clone(), durability),
        Experiment::Growth { run, options } => measure_with(run, "growth", options),
        Experiment::GrowthChild { request } => experiments::growth_child(request),
        Experiment::ImportChild { path, count } => experiments::import_child(path, *count),
    }
}

fn measure(run: &Run, name: &str) -> Result<()> {
    measure_with(run, name, &growth::Options::default())
}

/// Runs an experiment; the options matter only to `growth`.
fn measure_with(run: &Run, name: &str, growth: &growth::Options) -> Result<()> {
    let experiment = Command::by_name(name).ok_or_else(|| format!("no experiment is called {name}"))?;
    let scale = run.scale();
    if cfg!(debug_assertions) {
        eprintln!("warning: this build is not optimized, so its figures are meaningless; build with --release");
    }
    let scratch = ScratchDirectory::new(run.directory.as_deref())?;
    let versions = format!("stemmadb {}, SQLite {}", env!("CARGO_PKG_VERSION"), rusqlite::version());
    let (clock, clock_name) = match run.clock {
        ClockChoice::Wall => (Clock::Wall, "the wall clock"),
        ClockChoice::Thread => (Clock::Thread, "the processor time of the thread that reads"),
    };
    let settings = format!("{}; reads timed by {clock_name}", (experiment.settings)());
    let machine = Machine::detect(scratch.path(), versions, settings);
    let results = Results::new(machine, harness::commit(), run.json.as_deref());
    let mut bench = Bench::new(scale, scratch, results, clock, run.only.clone());
    bench.growth = growth.clone();
    bench.with_bonsaidb = run.bonsaidb;
    (experiment.run)(&mut bench)?;
    if bench.results.rows().is_empty() {
        return Err(format!("no row is called {}", run.only.join(" or ")).into());
    }
    let command = command(experiment.name, run) + &growth.to_arguments();
    let page = (experiment.page)(&bench.results, &report::opening(experiment), &command);
    if !run.quiet {
        print!("{page}");
    }
    if let Some(json) = &run.json {
        columns::write(&bench.results, json)?;
    }
    let Some(file) = &run.markdown else { return Ok(()) };
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(file, page).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    experiment.write_plots(&bench.results, &file.with_file_name("plots"))
}

/// Returns today's date (UTC), the default name of a results file.
fn today() -> String {
    harness::now().chars().take_while(|letter| *letter != 'T').collect()
}

/// Returns the command line that repeats this run. The scratch directory is omitted, as it is specific to this machine.
fn command(name: &str, run: &Run) -> String {
    let mut command = format!("cargo run --release -p stemmadb-bench -- {name} {}", run.scale_arguments().join(" "));
    if matches!(run.clock, ClockChoice::Thread) {
        command.push_str(" --clock thread");
    }
    if run.bonsaidb {
        command.push_str(" --bonsaidb");
    }
    for row in &run.only {
        command.push_str(&format!(" --only '{row}'"));
    }
    command
}
