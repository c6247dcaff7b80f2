//! The `caches` results in DODB's own data format: one file per lookup kind with thirteen columns, as DODB's scripts
//! expect.
//!
//! The first column is the size: cars divided by five, cars with the color divided by two, cars with the keyword. Then
//! follow lower quartile, median and upper quartile in nanoseconds for: RAM only, cached, cached index only, uncached.
//! Modes that were not measured are `nan`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::harness::{ResultRow, Results, Summary};

/// Lookup kinds by our names and by DODB's file names.
const KINDS: [(&str, &str); 3] = [("index", "index"), ("partition", "partitions"), ("tag", "tags")];

/// For each column group: the mode, and the peer whose figures it holds (`None`: Stemma).
type Columns = [Option<(&'static str, Option<&'static str>)>; 4];

const CACHED_INDEX: &str = "cached index";

const CONTENDERS: [(&str, Columns); 2] = [
    (
        "stemma",
        [Some(("RAM only", None)), Some(("cached", None)), Some((CACHED_INDEX, None)), Some(("uncached", None))],
    ),
    (
        "files",
        [
            Some(("RAM only", Some("maps-in-RAM"))),
            Some(("cached", Some("files-cached"))),
            Some((CACHED_INDEX, Some("files-cached-index"))),
            Some(("uncached", Some("files"))),
        ],
    ),
];

/// Writes the files beside `json`, as `<name>.stemma-index.d`. Writes nothing if the results contain no cars.
pub(crate) fn write(results: &Results, json: &Path) -> Result<()> {
    for (file, text) in files(results, json) {
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

/// Removes these files, if they exist.
pub(crate) fn remove(json: &Path) {
    for (who, _) in CONTENDERS {
        for (_, name) in KINDS {
            std::fs::remove_file(path(json, who, name)).ok();
        }
    }
}

fn path(json: &Path, who: &str, name: &str) -> PathBuf {
    json.with_extension(format!("{who}-{name}.d"))
}

fn files(results: &Results, json: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for (who, columns) in CONTENDERS {
        for (kind, name) in KINDS {
            let text = table(results.rows(), kind, &columns);
            if !text.is_empty() {
                files.push((path(json, who, name), text));
            }
        }
    }
    files
}

fn table(rows: &[ResultRow], kind: &str, columns: &Columns) -> String {
    let find_row = |mode: &str, documents: u64| {
        rows.iter().find(|row| {
            row.experiment == "caches" && row.documents == documents && row.row == format!("{kind}, {mode}")
        })
    };
    let mut sizes: Vec<u64> = rows
        .iter()
        .filter(|row| row.experiment == "caches" && row.row.starts_with(&format!("{kind}, ")))
        .map(|row| row.documents)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut text = String::new();
    for documents in sizes {
        let figures: Vec<Option<&Summary>> = columns
            .iter()
            .map(|column| {
                let (mode, peer) = (*column)?;
                // In older results, the peer with a cached index is in the uncached row.
                let older = peer.filter(|_| mode == CACHED_INDEX).and_then(|_| find_row("uncached", documents));
                let row = find_row(mode, documents).or(older)?;
                peer.map_or(Some(&row.ours), |peer| row.peers.get(peer))
            })
            .collect();
        let matches = find_row("uncached", documents)
            .or_else(|| find_row("cached", documents))
            .and_then(|row| row.rows)
            .unwrap_or(0);
        let size = match kind {
            "index" => documents / 5,
            "partition" => matches / 2,
            _ => matches,
        };
        write!(text, "{size}").expect("a string takes everything");
        for figure in figures {
            match figure.and_then(|figure| Some((figure.quartiles?, figure.p50))) {
                Some(([low, high], median)) => write!(text, " {low} {median} {high}"),
                None => write!(text, " nan nan nan"),
            }
            .expect("a string takes everything");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Heading, Machine, Samples, ScratchDirectory, Unit};

    #[test]
    fn lines_have_thirteen_columns_in_dodb_order() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let machine = Machine::detect(scratch.path(), String::new(), String::new());
        let mut results = Results::new(machine, "none".to_owned(), None);
        let samples = |median: f64| Samples::from_costs([median / 2.0, median, 2.0 * median]);
        for (mode, ours, peers) in [
            ("RAM only", 10.0, vec![("maps-in-RAM", 100.0)]),
            ("cached", 20.0, vec![("files-cached", 200.0)]),
            ("cached index", 30.0, vec![("files-cached-index", 300.0)]),
            ("uncached", 40.0, vec![("files", 400.0)]),
        ] {
            let heading = Heading {
                experiment: "caches",
                row: format!("partition, {mode}"),
                documents: 1_000,
                durability: "none",
                unit: Unit::Nanoseconds,
                rows: Some(40),
                note: None,
                targets: vec![],
            };
            let peers: Vec<(&str, Samples)> = peers.into_iter().map(|(name, median)| (name, samples(median))).collect();
            let peers: Vec<(&str, &Samples)> = peers.iter().map(|(name, samples)| (*name, samples)).collect();
            results
                .push(ResultRow::new(heading, &samples(ours), &peers).with_distributions(&samples(ours), &peers))
                .unwrap();
        }
        let json = scratch.path().join("cars.json");
        write(&results, &json).unwrap();
        let text = |name: &str| std::fs::read_to_string(scratch.path().join(name)).unwrap();
        assert_eq!(text("cars.stemma-partitions.d"), "20 5 10 20 10 20 40 15 30 60 20 40 80\n");
        assert_eq!(text("cars.files-partitions.d"), "20 50 100 200 100 200 400 150 300 600 200 400 800\n");
        assert!(!scratch.path().join("cars.stemma-tags.d").exists());
        remove(&json);
        assert!(!scratch.path().join("cars.files-partitions.d").exists());
    }
}
