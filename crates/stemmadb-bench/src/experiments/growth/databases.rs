//! Many databases in one process: how many can be open, what they occupy, and what they cost when nobody uses them.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stemmadb::{Database, Durability};

use super::SEED;
use super::inserts::memory;
use super::request::{Figure, FigureUnit, Request};
use super::subject::settle;
use crate::Result;
use crate::engine::insert_json;
use crate::harness::{Samples, processor_ns};
use crate::workload::{Corpus, Events};

/// Databases closed after one could not be opened.
const SPARE_COUNT: usize = 20;

/// Creates `count` databases with a document each, keeps all of them open, closes them, and opens them again.
pub(super) fn open(request: &Request, count: usize) -> Result<Vec<Figure>> {
    std::fs::create_dir_all(&request.path)?;
    let limit = raise_open_files();
    let (mut databases, created, error) = open_all(&request.path, count, true)?;
    let opened = databases.len();
    let mut note = match limit {
        Some(limit) => format!("limit of open files: {limit}"),
        None => "no limit of open files".to_owned(),
    };
    if let Some(error) = error {
        note = format!("{note}; then: {error}");
        // Measuring needs some file descriptors.
        close_all(databases.split_off(opened.saturating_sub(SPARE_COUNT)))?;
    }
    let open = Figure::single("databases: open", FigureUnit::Databases, opened as f64);
    let mut figures = vec![
        Figure { note: Some(note), ..open },
        Figure::new("databases: create one, insert a document", FigureUnit::Milliseconds, created),
    ];
    settle(|| Ok(()))?;
    for (row, directory) in [("file descriptors", "/proc/self/fd"), ("threads", "/proc/self/task")] {
        let count = std::fs::read_dir(directory)?.count();
        figures.push(Figure::single(format!("databases: {row}"), FigureUnit::Count, count as f64));
    }
    memory("databases: memory", &mut figures)?;
    close_all(databases)?;
    let (databases, reopened, _) = open_all(&request.path, opened.saturating_sub(SPARE_COUNT).max(1), false)?;
    figures.push(Figure::new("databases: open one", FigureUnit::Milliseconds, reopened));
    close_all(databases)?;
    Ok(figures)
}

/// Opens databases and measures the processor time of this process while it does nothing.
pub(super) fn idle(request: &Request, count: usize, seconds: u64) -> Result<Vec<Figure>> {
    std::fs::create_dir_all(&request.path)?;
    raise_open_files();
    let (databases, _, error) = open_all(&request.path, count, true)?;
    if let Some(error) = error {
        return Err(format!("cannot open {count} databases: {error}").into());
    }
    settle(|| Ok(()))?;
    let begin_ns = processor_ns();
    std::thread::sleep(Duration::from_secs(seconds));
    let used_ns = processor_ns() - begin_ns;
    close_all(databases)?;
    // This thread's own sleep takes some microseconds.
    let row = format!("databases: processor time of idle ones in {seconds} s");
    Ok(vec![Figure::single(row, FigureUnit::Milliseconds, used_ns as f64)])
}

/// Opens databases until there are `count` or one fails; returns them, the time of each, and the error.
fn open_all(directory: &Path, count: usize, with_insert: bool) -> Result<(Vec<Database>, Samples, Option<String>)> {
    let (mut databases, mut samples) = (Vec::with_capacity(count), Samples::default());
    for number in 0..count {
        let event = Corpus::generate_range(Events::new(SEED), number as u64..number as u64 + 1);
        let start = Instant::now();
        let opened = Database::open(directory.join(number.to_string()));
        let database = match opened {
            Ok(database) => database,
            Err(error) => return Ok((databases, samples, Some(error.to_string()))),
        };
        if with_insert && let Err(error) = insert_json(&database, Durability::Sync, &event.documents(0..1)) {
            return Ok((databases, samples, Some(error.to_string())));
        }
        samples.push(start.elapsed().as_nanos() as f64);
        databases.push(database);
        if (number + 1).is_multiple_of(1_000) {
            eprintln!("databases: {} open", number + 1);
        }
    }
    Ok((databases, samples, None))
}

fn close_all(databases: Vec<Database>) -> Result<()> {
    Ok(databases.into_iter().try_for_each(Database::close)?)
}

/// Raises this process's limit of open files as far as the system permits, and returns it.
fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}
