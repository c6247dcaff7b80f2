//! Documentation pages of the experiments: the hand-written prose and condensed tables.
//!
//! A page shows every row's median and ratios, except where it says otherwise. Percentiles and spreads are in the full
//! tables.

use crate::experiments::cluster::{APPENDS, MEMORY, TAKE_OVER};
use crate::experiments::commerce;
use crate::harness::{PeerColumn, ResultRow, Results, SeriesLine, grouped, list, series};

/// Returns a page's tables.
pub(super) fn tables(experiment: &str, results: &Results) -> String {
    let rows: Vec<&ResultRow> = results.rows().iter().collect();
    match experiment {
        "core" => series(&by_size(&rows), CORE_PEERS),
        "queries" => queries(&rows),
        "views" => views(&rows),
        "encodings" => encodings(&rows),
        "batches" => batches(&rows),
        "caches" => caches(&rows),
        "growth" => growth(&rows),
        "commerce" => commerce(&rows),
        "cluster" => format!("{}{}", list(&rows), needs(&rows).unwrap_or_default()),
        "http" => series(&by_number(&rows), &[("limit", &["bound"]), ("plain disk flush", &["disk-flush"])]),
        _ => list(&rows),
    }
}

/// How many processors the nodes of the measured cluster had.
const MEASURED_PROCESSORS: f64 = 2.0;
/// The shards of the examples, and how many servers share them.
const SHARD_COUNTS: [f64; 3] = [100.0, 1_000.0, 10_000.0];
const SERVER_COUNT: f64 = 10.0;
/// The bytes of a database in the catalog, about.
const CATALOG_BYTES: f64 = 300.0;

/// What clusters with many databases need, computed from what was measured with a few.
fn needs(rows: &[&ResultRow]) -> Option<String> {
    let figure = |name: &str| {
        let measured = rows.iter().filter(|row| row.row == name).max_by_key(|row| row.documents);
        measured.map(|row| row.ours.p50)
    };
    let (appends, memory, take_over) = (figure(APPENDS)?, figure(MEMORY)?, figure(TAKE_OVER)?);
    let line = |name: &str, value: &dyn Fn(f64) -> f64| {
        let cells = SHARD_COUNTS.map(|count| shown(value(count)));
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let of_processor = appends / MEASURED_PROCESSORS;
    let lines = [
        line("stored with three copies, TiB", &|count| 3.0 * count / 1_024.0),
        line("processors of the nodes, one append a second and shard", &|count| count / of_processor),
        line("memory of a server for open databases, MiB", &|count| count / SERVER_COUNT * memory / 1_024.0),
        line("until the shards of a lost server are taken over, s", &|count| {
            let of_lost = count / SERVER_COUNT / (SERVER_COUNT - 1.0);
            of_lost * take_over / 1_000.0
        }),
        line("catalog, which each server reads after a change, MiB", &|count| {
            count * CATALOG_BYTES / f64::from(1 << 20)
        }),
    ];
    Some(format!(
        "\n## What many shards need\n\n\
         Computed from the figures above, for shards of 1 GiB on {} servers. An append has one document or\n\
         thousands; it costs the nodes a round of Paxos, of which a processor takes {} a second here. The other\n\
         servers take over the shards of a lost one in turn, each in the time of the row above.\n\n\
         | shards | 100 | 1,000 | 10,000 |\n|---|--:|--:|--:|\n{}\n\
         Taking over limits first, where directories are lost, too: more servers share it. Then the processors of\n\
         the nodes: write in batches, or with many clients for each shard, so that an append has many documents.\n\
         The catalog is next, if databases come and go often: it is one partition, which every server reads\n\
         whole.\n",
        shown(SERVER_COUNT),
        shown(of_processor),
        lines.concat(),
    ))
}

/// A figure with two significant digits below 100.
fn shown(value: f64) -> String {
    match value {
        value if value >= 100.0 => grouped(value.round() as u64),
        value if value >= 10.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

const CORE_PEERS: &[PeerColumn<'_>] = &[
    ("SQLite, 15 indexes", &["sqlite-15-indexes"]),
    ("SQLite, other layout", &["sqlite-2-indexes", "sqlite-without-rowid"]),
    ("limit", &["bound"]),
    ("other", &["disk-flush", "one-writer", "json-text"]),
];

/// Groups rows by name, in order of appearance; each group's rows differ in their document counts.
fn by_size<'r>(rows: &[&'r ResultRow]) -> Vec<SeriesLine<'r>> {
    group(rows, |row| (row.row.clone(), None))
}

/// Groups rows that differ only in a number of writers, connections or agents, which is joined in the line's name.
fn by_number<'r>(rows: &[&'r ResultRow]) -> Vec<SeriesLine<'r>> {
    group(rows, |row| match split_number(&row.row) {
        Some((before, number, after)) => (format!("{before}{PLACEHOLDER}{after}"), Some(number)),
        None if row.durability == "sync" => (row.row.clone(), None),
        None => (format!("{}, unflushed", row.row), None),
    })
}

/// Stands for the numbers in a line's name.
const PLACEHOLDER: char = '\u{1}';

fn group<'r>(rows: &[&'r ResultRow], key: impl Fn(&ResultRow) -> (String, Option<String>)) -> Vec<SeriesLine<'r>> {
    let mut lines: Vec<(SeriesLine<'r>, Vec<String>)> = Vec::new();
    for row in rows {
        let (name, number) = key(row);
        let position = lines.iter().position(|(line, _)| line.name == name).unwrap_or_else(|| {
            lines.push((SeriesLine { name, rows: Vec::new() }, Vec::new()));
            lines.len() - 1
        });
        lines[position].0.rows.push(row);
        lines[position].1.extend(number);
    }
    let finish = |(line, numbers): (SeriesLine<'r>, Vec<String>)| SeriesLine {
        name: line.name.replace(PLACEHOLDER, &numbers.join(" · ")),
        ..line
    };
    lines.into_iter().map(finish).collect()
}

/// Splits `GET, 16 connections: latency` into the texts around the number.
fn split_number(name: &str) -> Option<(String, String, String)> {
    let end = [" writers", " connections", " agents", " agent"].iter().find_map(|unit| name.find(unit))?;
    let start = name[..end].rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    let after = name[end..].replace(" agents", " agent");
    (start < end).then(|| (name[..start].to_owned(), name[start..end].to_owned(), after))
}

fn sizes(lines: &[SeriesLine<'_>]) -> String {
    let longest = lines.iter().max_by_key(|line| line.rows.len());
    let sizes = longest.map_or(Vec::new(), |line| line.rows.iter().map(|row| grouped(row.documents)).collect());
    sizes.join(" · ")
}

const INDEXES: &[&str] = &["sqlite-index", "sqlite-covering"];

fn queries(rows: &[&ResultRow]) -> String {
    let (patterns, queries): (Vec<&ResultRow>, Vec<&ResultRow>) =
        rows.iter().copied().partition(|row| row.experiment == "anti-patterns");
    let lines = by_size(&queries);
    let patterns = by_size(&patterns);
    format!(
        "### Barrel's queries\n\nThe figures of a cell are for {} documents.\n*Best index*: SQLite's ideal index, or \
         the covering one where that is faster. *Table scan*: SQLite without an index.\n\n{}\n### Anti-patterns\n\n\
         The figures of a cell are for {} documents.\n\n{}",
        sizes(&lines),
        series(&lines, &[("best index", INDEXES), ("table scan", &["sqlite-scan"])]),
        sizes(&patterns),
        series(&patterns, &[("equality", &["stemma-equality"])]),
    )
}

fn views(rows: &[&ResultRow]) -> String {
    let lines = by_size(rows);
    let table = series(&lines, &[("SQLite, covering index", &["sqlite-covering"])]);
    format!("The figures of a cell are for {} keys.\n\n{table}", sizes(&lines))
}

const BBOLT: [&str; 6] = ["bbolt-binary", "bbolt-names", "bbolt-json", "bbolt-gob", "bbolt-multikv", "bbolt-nested"];
const LMDB: [&str; 6] = ["lmdb-binary", "lmdb-names", "lmdb-json", "lmdb-gob-like", "lmdb-multikv", "lmdb-hot-fields"];

fn encodings(rows: &[&ResultRow]) -> String {
    let is_power = |row: &&ResultRow| row.documents.ilog10() != row.documents.saturating_sub(1).ilog10();
    // Reads and updates hardly depend on how records were inserted.
    let is_shown = |row: &&ResultRow| {
        !["read", "update"].iter().any(|part| row.row.starts_with(part)) || !row.row.ends_with("bulk")
    };
    let powers: Vec<&ResultRow> =
        rows.iter().copied().filter(|row| row.documents > 1).filter(is_power).filter(is_shown).collect();
    let lines = by_size(&powers);
    let best: &[PeerColumn<'_>] = &[
        ("best bbolt strategy", &[BBOLT[0], BBOLT[1], BBOLT[2], BBOLT[3], BBOLT[4], BBOLT[5], "bbolt's best"]),
        ("best LMDB strategy", &LMDB),
    ];
    format!(
        "### Best strategies\n\nThe figures of a cell are for {} records;\nthe best strategy may differ between \
         them. Plots show each strategy; other record\ncounts, and reads after bulk inserts, are in the full \
         tables.\n\n{}",
        sizes(&lines),
        series(&lines, best)
    )
}

fn batches(rows: &[&ResultRow]) -> String {
    let (checkpoints, others): (Vec<&ResultRow>, Vec<&ResultRow>) =
        rows.iter().copied().partition(|row| row.row.starts_with("checkpoint"));
    let (numbered, single): (Vec<&ResultRow>, Vec<&ResultRow>) =
        others.into_iter().partition(|row| split_number(&row.row).is_some());
    let (delayed, durable): (Vec<&ResultRow>, Vec<&ResultRow>) =
        numbered.into_iter().partition(|row| row.durability == "interval");
    let mut text = format!(
        "### Many documents in one transaction\n\n{}\n### Concurrent writers\n\n{}",
        series(
            &by_number(&single),
            &[
                ("one by one", &["one-by-one"]),
                ("file, one write", &["file"]),
                ("file, one by one", &["file-one-by-one"])
            ]
        ),
        series(&by_number(&durable), &[("no group commit", &["no-group-commit"])])
    );
    let peers: &[PeerColumn<'_>] = &[("flushed", &["group-commit"]), ("unflushed", &["unflushed"])];
    for (heading, table) in [
        ("Delayed commits", (!delayed.is_empty()).then(|| series(&by_number(&delayed), peers))),
        ("Tree writes of a checkpoint", (!checkpoints.is_empty()).then(|| list(&checkpoints))),
    ] {
        text.push_str(&table.map_or_else(String::new, |table| format!("\n### {heading}\n\n{table}")));
    }
    text
}

fn caches(rows: &[&ResultRow]) -> String {
    let (inserts, lookups): (Vec<&ResultRow>, Vec<&ResultRow>) =
        rows.iter().copied().partition(|row| row.row.starts_with("insert"));
    let lines = by_size(&lookups);
    let peers: &[PeerColumn<'_>] = &[
        ("limit", &["bound"]),
        ("files", &["files"]),
        ("files, cached index", &["files-cached-index"]),
        ("maps in memory", &["files-cached", "maps-in-RAM"]),
    ];
    format!(
        "### Lookups\n\nThe figures of a cell are for {} cars.\n\n{}\n### Inserts\n\n{}",
        sizes(&lines),
        series(&lines, peers),
        list(&inserts)
    )
}

/// The rows of the growing database that its page shows.
const GROWTH_ROWS: [&str; 15] = [
    "insert",
    "insert: processor time of a document",
    "bytes on disk",
    "memory: resident",
    "get by id, cache off",
    "get by id, hot",
    "equality, limit 10: documents",
    "range of 1 %, cold: documents",
    "range of 1 %, cold: sum",
    "open",
    "rebuild",
    "mixed load: writes",
    "mixed load: write, longest",
    "mixed load: peak of the tree beside its live bytes",
    "databases: open",
];

/// The sizes that its page shows; rows of one size are always shown.
const GROWTH_SIZES: [u64; 4] = [100_000, 1_000_000, 5_000_000, 10_000_000];

fn growth(rows: &[&ResultRow]) -> String {
    let is_single = |row: &ResultRow| rows.iter().filter(|other| other.row == row.row).count() == 1;
    let is_shown = |row: &ResultRow| {
        GROWTH_ROWS.contains(&row.row.as_str()) && (GROWTH_SIZES.contains(&row.documents) || is_single(row))
    };
    let rows: Vec<&ResultRow> = rows.iter().copied().filter(|row| is_shown(row)).collect();
    let lines = by_size(&rows);
    let table = series(&lines, &[("SQLite", &["sqlite-15-indexes"]), ("target", &["bound"])]);
    format!("Cells: {} documents, or the last size.\n\n{table}", sizes(&lines))
}

fn commerce(rows: &[&ResultRow]) -> String {
    let peers: &[PeerColumn<'_>] = &[
        ("PostgreSQL", &["postgresql", "postgresql-tcp"]),
        ("SQLite", &["sqlite"]),
        ("PostgreSQL, literal", &["postgresql-literal"]),
        ("BonsaiDb", &["bonsaidb", "bonsaidb-websocket"]),
        ("bare flushes", &["bare-flush"]),
    ];
    let mut text =
        "The figures of a cell are for 1 · 2 · 4 agents, except for loads and notifications; bare flushes are for one\n\
         agent. Operations are those of the largest shop, except for the notification.\n"
            .to_owned();
    let (network, embedded): (Vec<&ResultRow>, Vec<&ResultRow>) =
        rows.iter().copied().partition(|row| row.row.starts_with(commerce::NETWORK));
    for (heading, rows) in [("In one process", embedded), ("Over the network", network)] {
        let (totals, steps): (Vec<&ResultRow>, Vec<&ResultRow>) =
            rows.into_iter().partition(|row| row.row.contains("total: "));
        for (part, rows) in [("totals", totals), ("operations", steps)] {
            if rows.is_empty() {
                continue;
            }
            // Of the operations, only the largest size: all of them are in the full tables.
            let largest = rows.iter().map(|row| row.documents).max();
            let is_shown = |row: &&ResultRow| {
                part == "totals" || Some(row.documents) == largest || row.row.contains("notification")
            };
            let rows: Vec<&ResultRow> = rows.iter().copied().filter(is_shown).collect();
            let mut lines = by_number(&rows);
            for line in &mut lines {
                let name = line.name.strip_prefix(commerce::NETWORK).unwrap_or(&line.name);
                let name = name.strip_prefix("total: ").unwrap_or(name);
                line.name = name.split_once(", 1 · ").map_or(name, |(name, _)| name).to_owned();
            }
            text.push_str(&format!("\n### {heading}: {part}\n\n{}", series(&lines, peers)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_split_out_of_names() {
        let split = |name| split_number(name).map(|(before, number, after)| format!("{before}|{number}|{after}"));
        assert_eq!(split("GET, 16 connections: latency").as_deref(), Some("GET, |16| connections: latency"));
        assert_eq!(split("16 writers").as_deref(), Some("|16| writers"));
        assert_eq!(split("total: small balanced, 1 agent"), split("total: small balanced, 1 agents"));
        assert_eq!(split("PUT, 1 connection: latency"), None);
    }
}
