//! Compression: the same documents inserted with each setting, the space they take at rest, and uncached reads.

use std::path::Path;

use super::request::{EngineName, Figure, Request, Task};
use super::{figures, request};
use crate::Result;
use crate::experiments::Bench;
use crate::harness::{Heading, ResultRow, Samples, remove, sync_file_system};

/// The peer's name in results.
const NONE: &str = "stemma-uncompressed";
/// At most so many documents.
const COUNT_MAX: u64 = 1_000_000;
/// The target of the space with LZ4 for runs and zstd for documents, in bytes for each of [`COUNT_MAX`] documents.
const BYTES_MAX: f64 = 270.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let count = bench.scale.growth_count.min(COUNT_MAX);
    let none = measure(bench, "none", count)?;
    for name in ["lz4", "zstd"] {
        let compressed = measure(bench, name, count)?;
        for figure in compressed {
            let peer = none.iter().find(|peer| peer.row == figure.row).map(|peer| (NONE, &peer.samples));
            let has_bound = name == "zstd" && figure.row == "bytes on disk" && count == COUNT_MAX;
            let bound = has_bound.then(|| Samples::from_costs([BYTES_MAX]));
            let heading = Heading {
                experiment: "growth",
                row: format!("compressed by {name}: {}", figure.row),
                documents: count,
                durability: "sync",
                unit: figure.unit.unit(),
                rows: None,
                note: None,
                targets: bound.iter().map(|_| ("bound", 1.0)).collect(),
            };
            let peers: Vec<_> = peer.into_iter().chain(bound.as_ref().map(|bound| ("bound", bound))).collect();
            bench.push(ResultRow::new(heading, &figure.samples, &peers))?;
        }
    }
    Ok(())
}

/// The figures of one setting.
fn measure(bench: &Bench, name: &str, count: u64) -> Result<Vec<Figure>> {
    eprintln!("compression {name}");
    let path = bench.scratch.fresh_path(&format!("{name}.stemma"))?;
    sync_file_system(bench.scratch.path());
    let of_task = |path: &Path, task| Request {
        compression: Some(name.to_owned()),
        ..request(bench, EngineName::Stemma, path, task)
    };
    let inserted = of_task(&path, Task::Insert { count, seconds_max: None }).execute()?;
    let names = ["insert", "insert: processor time of a document", "insert: longest batch"].map(str::to_owned);
    let mut found = figures(&inserted.chunks, &names);
    found.extend(inserted.figures.into_iter().filter(|figure| figure.row.starts_with("bytes on disk")));
    found.extend(of_task(&path, Task::Get).execute()?.figures);
    remove(&path)?;
    Ok(found)
}
