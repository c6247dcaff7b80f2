//! Growth: how the cost of inserts, reads, opening and mixed load changes while one database grows to 10,000,000
//! documents, and what many open databases cost.
//!
//! At each size Stemma and SQLite take turns. Each turn is a child process that opens the database, because memory,
//! processor time and caches belong to a process.

mod compression;
mod databases;
mod inserts;
mod mixed;
mod reads;
mod request;
mod subject;
mod updates;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{BATCH_COUNT, Bench, SEED};
use crate::Result;
use crate::harness::{Clock, Heading, ResultRow, Samples, grouped, remove, sync_file_system};
use request::{Chunk, EngineName, Figure, FigureUnit, Reply, Request, Task};

pub(crate) use request::run_child;

/// The peer's name in results.
const SQLITE: &str = "sqlite-15-indexes";
/// Documents after which the insert rate is recorded.
const CHUNK_COUNT: u64 = 500_000;
/// The sizes at which everything is measured, as far as the scale goes.
const SIZES: [u64; 6] = [10_000, 100_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000];
/// The size from which targets apply.
const TARGETS_FROM: u64 = 5_000_000;
/// Databases that are measured while nobody uses them.
const IDLE_COUNT: usize = 50;

/// Options of this experiment.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct Options {
    /// Parts to run, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    parts: Vec<Part>,
    /// Duration of the mixed load, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    mixed_seconds: Option<u64>,
    /// Number of databases open at the same time [default: 500 at small scale, else 10,000]
    #[arg(long, value_name = "COUNT")]
    databases: Option<usize>,
    /// Stop SQLite for good when its inserts up to a size take longer; 0 leaves SQLite out [default: 600]
    #[arg(long, value_name = "SECONDS")]
    sqlite_seconds: Option<u64>,
    /// Keep the databases in this directory, and continue with those in it
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Insert rates and processor time
    Inserts,
    /// Time until upkeep is quiet, disk space, memory
    Space,
    /// Reads by id, queries, aggregates
    Reads,
    /// Opening, and the first operations
    Reopen,
    /// Rebuilding the tree from the log, at the last size
    Rebuild,
    /// 32 threads that write and read, at the last size
    Mixed,
    /// Few documents that are updated often
    Updates,
    /// Inserts, disk space and reads by id with each compression, up to 1,000,000 documents
    Compression,
    /// Many databases in one process
    Databases,
}

impl Options {
    /// Returns the options as they were given. Directories are omitted, as they are specific to a machine.
    pub(crate) fn to_arguments(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|part| format!("{part:?}").to_lowercase()).collect();
        let options = [
            ("parts", (!parts.is_empty()).then(|| parts.join(","))),
            ("mixed-seconds", self.mixed_seconds.map(|seconds| seconds.to_string())),
            ("databases", self.databases.map(|count| count.to_string())),
            ("sqlite-seconds", self.sqlite_seconds.map(|seconds| seconds.to_string())),
        ];
        options.into_iter().filter_map(|(name, value)| Some(format!(" --{name} {}", value?))).collect()
    }

    fn includes(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Runs the experiment.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let options = bench.growth.clone();
    let needs_documents = [Part::Inserts, Part::Space, Part::Reads, Part::Reopen, Part::Rebuild, Part::Mixed];
    if needs_documents.iter().any(|part| options.includes(*part)) {
        Growth::new(bench, options.clone())?.run()?;
    }
    if options.includes(Part::Updates) {
        updates(bench)?;
    }
    if options.includes(Part::Compression) {
        compression::run(bench)?;
    }
    if options.includes(Part::Databases) {
        many_databases(bench, &options)?;
    }
    Ok(())
}

/// Returns the sizes at which everything is measured; the last one is `count`.
fn sizes(count: u64, first: u64) -> Vec<u64> {
    let steps = SIZES.into_iter().filter(|size| *size >= first && *size < count);
    steps.chain([count]).collect()
}

/// One database of an engine while it grows.
struct Contender {
    engine: EngineName,
    path: PathBuf,
    document_count: u64,
    /// All inserts of this run.
    chunks: Vec<Chunk>,
    /// Why this engine's later sizes are missing.
    stopped: Option<String>,
}

struct Growth<'b> {
    bench: &'b mut Bench,
    options: Options,
    sizes: Vec<u64>,
    ours: Contender,
    theirs: Contender,
}

impl<'b> Growth<'b> {
    fn new(bench: &'b mut Bench, options: Options) -> Result<Self> {
        let scale = &bench.scale;
        let sizes = sizes(scale.growth_count, scale.growth_count.min(SIZES[0]));
        let directory = match &options.keep {
            Some(directory) => {
                std::fs::create_dir_all(directory)
                    .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
                directory.clone()
            }
            None => bench.scratch.path().to_owned(),
        };
        let contender = |engine, name: &str| Contender {
            engine,
            path: directory.join(name),
            document_count: 0,
            chunks: Vec::new(),
            stopped: None,
        };
        let (ours, mut theirs) =
            (contender(EngineName::Stemma, "growth.stemma"), contender(EngineName::Sqlite, "growth.sqlite"));
        if options.sqlite_seconds == Some(0) {
            theirs.stopped = Some("SQLite was left out".to_owned());
        }
        Ok(Growth { bench, options, sizes, ours, theirs })
    }

    fn run(mut self) -> Result<()> {
        for size in self.sizes.clone() {
            self.insert(size)?;
            for (part, task) in [(Part::Reads, Task::Read), (Part::Reopen, Task::Reopen)] {
                if self.options.includes(part) {
                    self.measure(size, task)?;
                }
            }
        }
        let size = self.ours.document_count;
        if self.options.includes(Part::Rebuild) {
            eprintln!("rebuilding the tree");
            let reply = self.ours.request(self.bench, Task::Rebuild).execute()?;
            push_all(self.bench, size, reply.figures, None)?;
        }
        if self.options.includes(Part::Mixed) {
            self.mixed(size)?;
        }
        if self.options.keep.is_none() {
            remove(&self.ours.path)?;
            remove(&self.theirs.path)?;
        }
        Ok(())
    }

    /// Grows both databases to `size` documents and records the cost.
    fn insert(&mut self, size: u64) -> Result<()> {
        let scratch = self.bench.scratch.path().to_owned();
        sync_file_system(&scratch);
        let ours = self.ours.request(self.bench, Task::Insert { count: size, seconds_max: None }).execute()?;
        self.ours.record(&ours, size);
        let mut theirs = None;
        if self.theirs.stopped.is_none() {
            sync_file_system(&scratch);
            let seconds_max = Some(self.options.sqlite_seconds.unwrap_or(600));
            let reply = self.theirs.request(self.bench, Task::Insert { count: size, seconds_max }).execute()?;
            self.theirs.record(&reply, size);
            theirs = Some(reply);
        }
        if self.ours.document_count != size {
            return Ok(());
        }
        if self.options.includes(Part::Inserts) {
            let chunks = theirs.as_ref().map_or(&[][..], |reply| &reply.chunks);
            self.insert_rows(size, &ours.chunks, chunks)?;
        }
        if self.options.includes(Part::Space) {
            let note = self.theirs.stopped.clone();
            let figures = ours.figures.into_iter().map(|figure| Figure { note: note.clone(), ..figure }).collect();
            push_all(self.bench, size, figures, theirs)?;
        }
        Ok(())
    }

    fn insert_rows(&mut self, size: u64, ours: &[Chunk], theirs: &[Chunk]) -> Result<()> {
        let reply =
            |chunks: &[Chunk], names: &[String; 3]| Reply { figures: figures(chunks, names), ..Reply::default() };
        let names = ["insert", "insert: processor time of a document", "insert: longest batch"].map(str::to_owned);
        let note = self.theirs.stopped.clone();
        let with_note = |figures: Vec<Figure>| {
            figures.into_iter().map(|figure| Figure { note: note.clone(), ..figure }).collect::<Vec<_>>()
        };
        push_all(self.bench, size, with_note(figures(ours, &names)), Some(reply(theirs, &names)))?;
        let names = ["", ": processor time of a document", ": longest batch"].map(|part| format!("{EACH_CHUNK}{part}"));
        for chunk in ours.iter().filter(|chunk| chunk.end - chunk.first == CHUNK_COUNT) {
            let theirs: Vec<Chunk> =
                theirs.iter().filter(|one| (one.first, one.end) == (chunk.first, chunk.end)).copied().collect();
            push_all(self.bench, chunk.end, figures(&[*chunk], &names), Some(reply(&theirs, &names)))?;
        }
        for (row, last_count, first_count) in [
            (LAST_CHUNK, CHUNK_COUNT, 100_000),
            ("insert: last 1,000,000 beside the first 1,000,000", 1_000_000, 1_000_000),
        ] {
            let figure = |contender: &Contender| {
                let share = share(&contender.chunks, size, last_count, first_count)?;
                Some(Figure::single(row, FigureUnit::Share, share))
            };
            if let Some(ours) = figure(&self.ours).filter(|_| size >= last_count + first_count) {
                let theirs = Reply { figures: figure(&self.theirs).into_iter().collect(), ..Reply::default() };
                push_all(self.bench, size, vec![ours], Some(theirs))?;
            }
        }
        Ok(())
    }

    /// Runs a task of both engines and adds its rows.
    fn measure(&mut self, size: u64, task: Task) -> Result<()> {
        if self.ours.document_count != size {
            return Ok(());
        }
        let what = if matches!(task, Task::Reopen) { "opening" } else { "reads" };
        eprintln!("{what} at {} documents", grouped(size));
        let ours = self.ours.request(self.bench, task).execute()?;
        let theirs = match self.theirs.document_count == size {
            true => Some(self.theirs.request(self.bench, task).execute()?),
            false => None,
        };
        push_all(self.bench, size, ours.figures, theirs)
    }

    /// Runs the mixed load on copies, because it changes the databases.
    fn mixed(&mut self, size: u64) -> Result<()> {
        let seconds = self.options.mixed_seconds.unwrap_or(self.bench.scale.mixed_seconds);
        let mut replies = Vec::new();
        for contender in [&self.ours, &self.theirs] {
            if contender.document_count != size {
                continue;
            }
            eprintln!("mixed load of {:?} for {seconds} s", contender.engine);
            let path = contender.path.with_extension("mixed");
            remove(&path)?;
            copy(&contender.path, &path)?;
            sync_file_system(&path);
            let request = contender.request(self.bench, Task::Mixed { seconds });
            replies.push(Request { path: path.clone(), ..request }.execute()?);
            remove(&path)?;
        }
        let mut replies = replies.into_iter();
        let ours = replies.next().map_or(Vec::new(), |reply| reply.figures);
        push_all(self.bench, size, ours, replies.next())
    }
}

impl Contender {
    fn request(&self, bench: &Bench, task: Task) -> Request {
        request(bench, self.engine, &self.path, task)
    }

    fn record(&mut self, reply: &Reply, size: u64) {
        self.document_count = reply.document_count;
        self.chunks.extend(&reply.chunks);
        if reply.document_count < size {
            let note = format!("SQLite stopped at its time limit, with {} documents", grouped(reply.document_count));
            eprintln!("{note}");
            self.stopped = Some(note);
        }
    }
}

fn request(bench: &Bench, engine: EngineName, path: &Path, task: Task) -> Request {
    Request {
        engine,
        path: path.to_owned(),
        uses_thread_clock: bench.clock == Clock::Thread,
        repetition_count: bench.scale.repetition_count,
        compression: None,
        task,
    }
}

fn updates(bench: &mut Bench) -> Result<()> {
    let (path, count) = (bench.scratch.fresh_path("updates")?, bench.scale.update_count);
    let reply = request(bench, EngineName::Stemma, &path, Task::Update { count }).execute()?;
    remove(&path)?;
    push_all(bench, count, reply.figures, None)
}

fn many_databases(bench: &mut Bench, options: &Options) -> Result<()> {
    let count = options.databases.unwrap_or(bench.scale.open_count);
    let (open, idle) = (bench.scratch.fresh_path("open")?, bench.scratch.fresh_path("idle")?);
    eprintln!("opening {count} databases");
    let reply = request(bench, EngineName::Stemma, &open, Task::Open { count }).execute()?;
    remove(&open)?;
    push_all(bench, count as u64, reply.figures, None)?;
    let task = Task::Idle { count: IDLE_COUNT, seconds: bench.scale.idle_seconds };
    eprintln!("watching {IDLE_COUNT} idle databases for {} s", bench.scale.idle_seconds);
    let reply = request(bench, EngineName::Stemma, &idle, task).execute()?;
    remove(&idle)?;
    push_all(bench, IDLE_COUNT as u64, reply.figures, None)
}

/// Copies a file, or a directory with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        std::fs::copy(from, to)?;
        return Ok(());
    }
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The row with the insert rate of each chunk; its size is that after the chunk.
pub(crate) const EACH_CHUNK: &str = "insert, each 500,000";
/// The row with the log's size after many updates.
const UPDATED_SEGMENTS: &str = "updates: log beside a segment of 64 MiB";
const LAST_CHUNK: &str = "insert: last 500,000 beside the first 100,000";

/// Returns rate, processor time and longest batch of consecutive chunks, if there are any.
fn figures(chunks: &[Chunk], [rate, processor, longest]: &[String; 3]) -> Vec<Figure> {
    let sum = |of: fn(&Chunk) -> f64| chunks.iter().map(of).sum::<f64>();
    let count = sum(|chunk| (chunk.end - chunk.first) as f64);
    if count == 0.0 {
        return Vec::new();
    }
    let longest_ns = chunks.iter().map(|chunk| chunk.longest_batch_ns).fold(0.0, f64::max);
    vec![
        Figure::single(rate, FigureUnit::DocumentsPerSecond, sum(|chunk| chunk.elapsed_ns) / count),
        Figure::single(processor, FigureUnit::Microseconds, sum(|chunk| chunk.processor_ns) / count),
        Figure::single(longest, FigureUnit::Milliseconds, longest_ns),
    ]
}

/// Returns the insert rate of the last `last_count` of `size` documents, divided by that of the first `first_count`;
/// nothing if this run did not insert exactly these.
fn share(chunks: &[Chunk], size: u64, last_count: u64, first_count: u64) -> Option<f64> {
    let cost = |first: u64, end: u64| {
        let within: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.first >= first && chunk.end <= end).collect();
        let count: u64 = within.iter().map(|chunk| chunk.end - chunk.first).sum();
        (count == end - first).then(|| within.iter().map(|chunk| chunk.elapsed_ns).sum::<f64>() / count as f64)
    };
    Some(cost(0, first_count)? / cost(size.checked_sub(last_count)?, size)?)
}

/// Returns the target of a row, in the unit of its samples, if it has one at this size.
fn target(row: &str, size: u64) -> Option<f64> {
    const MS: f64 = 1e6;
    // For these rows, the size is the number of databases or updates.
    match row {
        "databases: open" => return (size >= 10_000).then_some(10_000.0),
        // Zero would have no ratio.
        _ if row.starts_with("databases: processor time of idle ones") => return Some(MS),
        UPDATED_SEGMENTS => return (size >= 2_000_000).then_some(2.0),
        _ => {}
    }
    let target = match row {
        LAST_CHUNK => 0.75,
        "insert: last 1,000,000 beside the first 1,000,000" => 0.67,
        "insert, each 500,000: processor time of a document" => 14e3,
        "bytes on disk" => 330.0,
        "tree beside its live bytes, at rest" => 1.25,
        "mixed load: peak of the tree beside its live bytes" => 2.0,
        // The memtables, the caches, and a fifth.
        "memory: resident" | "memory after reads: resident" => 1.2 * (64.0 + 256.0),
        "open" => 30.0 * MS,
        "open: first query" => 3.0 * MS,
        "range of 1 %, cold: documents" => 100.0 * MS,
        "range of 1 %, cold: sum" | "range of 1 %, warm: sum" => 10.0 * MS,
        "rebuild" => 12.0,
        "mixed load: write, longest" => 100.0 * MS,
        _ => return None,
    };
    (size >= TARGETS_FROM).then_some(target)
}

/// Adds a row for each figure of ours, with SQLite's figure of the same name. Fails if their answers differ.
fn push_all(bench: &mut Bench, size: u64, ours: Vec<Figure>, theirs: Option<Reply>) -> Result<()> {
    let theirs = theirs.unwrap_or_default().figures;
    for figure in ours {
        if !bench.is_selected(&figure.row) {
            continue;
        }
        let peer = theirs.iter().find(|peer| peer.row == figure.row);
        if let Some(peer) = peer {
            compare(&figure, peer)?;
        }
        let bound = target(&figure.row, size).map(|target| Samples::from_costs([target]));
        let peer = peer.map(|peer| (SQLITE, &peer.samples));
        let peers: Vec<_> = peer.into_iter().chain(bound.as_ref().map(|bound| ("bound", bound))).collect();
        let heading = Heading {
            experiment: "growth",
            row: figure.row,
            documents: size,
            durability: "sync",
            unit: figure.unit.unit(),
            rows: None,
            note: figure.note,
            targets: bound.iter().map(|_| ("bound", 1.0)).collect(),
        };
        bench.push(ResultRow::new(heading, &figure.samples, &peers))?;
    }
    Ok(())
}

/// Compares the answers to the queries that both engines had time for.
fn compare(ours: &Figure, theirs: &Figure) -> Result<()> {
    let answers: BTreeMap<usize, i64> = theirs.answers.iter().copied().collect();
    for (query, answer) in &ours.answers {
        if let Some(other) = answers.get(query).filter(|other| *other != answer) {
            return Err(format!("{}: query {query} returned {answer}, SQLite returned {other}", ours.row).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::tiny;
    use super::*;

    #[test]
    fn growth_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.growth.databases = Some(5);
        bench.growth().unwrap();
        let rows = bench.results.rows();
        for part in [
            "insert",
            "time until",
            "bytes",
            "memory",
            "get",
            "equality",
            "sort",
            "group",
            "range",
            "open",
            "rebuild",
            "updates",
            "compressed by lz4",
            "compressed by zstd",
        ] {
            assert!(rows.iter().any(|row| row.row.starts_with(part)), "no row of {part}");
        }
        let both = ["insert", "bytes on disk", "get by id, hot", "range of 1 %, cold: sum", "mixed load: writes"];
        for name in both {
            let row = rows.iter().find(|row| row.row == name).unwrap();
            assert!(row.ours.p50 > 0.0 && row.peers[SQLITE].p50 > 0.0, "{name}");
        }
        let open = rows.iter().find(|row| row.row == "databases: open").unwrap();
        assert_eq!((open.ours.p50, open.documents), (5.0, 5));
    }

    #[test]
    fn sizes_end_with_the_requested_count() {
        assert_eq!(sizes(300_000, 10_000), [10_000, 100_000, 300_000]);
        assert_eq!(sizes(1_000_000, 10_000), [10_000, 100_000, 1_000_000]);
        assert_eq!(sizes(2_000, 2_000), [2_000]);
    }

    #[test]
    fn rates_compare_the_last_with_the_first_documents() {
        let chunk = |first, end, each: f64| Chunk {
            first,
            end,
            elapsed_ns: each * (end - first) as f64,
            processor_ns: 0.0,
            longest_batch_ns: 0.0,
        };
        let chunks = [
            chunk(0, 10_000, 10.0),
            chunk(10_000, 100_000, 10.0),
            chunk(100_000, 500_000, 12.0),
            chunk(500_000, 1_000_000, 20.0),
        ];
        assert_eq!(share(&chunks, 1_000_000, 500_000, 100_000), Some(0.5));
        assert_eq!(share(&chunks[1..], 1_000_000, 500_000, 100_000), None);
        assert_eq!(share(&chunks[..2], 100_000, 500_000, 100_000), None);
    }

    #[test]
    fn different_answers_are_errors() {
        let figure = |answers| Figure { answers, ..Figure::single("count", FigureUnit::Microseconds, 1.0) };
        assert!(compare(&figure(vec![(0, 5), (1, 6)]), &figure(vec![(1, 6), (2, 7)])).is_ok());
        let error = compare(&figure(vec![(1, 6)]), &figure(vec![(1, 7)])).unwrap_err().to_string();
        assert_eq!(error, "count: query 1 returned 6, SQLite returned 7");
    }
}
