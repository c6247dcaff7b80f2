//! The overview page: headline figures, outcome of each experiment, and every missed target.

use crate::commands::COMMANDS;
use crate::harness::{ResultRow, Results, grouped, marked, number};

/// A headline figure: label, experiment, row, peer, and the peer's display name.
type Headline = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Selected rows, at the largest size at which they were measured. Rows in which a peer is better belong here too.
const HEADLINES: [Headline; 24] = [
    ("Bulk insert, every field indexed", "core", "bulk insert", "sqlite-15-indexes", "SQLite, 15 indexes"),
    ("", "core", "bulk insert", "sqlite-2-indexes", "SQLite, 2 indexes"),
    ("Durable inserts, 1 writer", "core", "single insert, 1 writer", "sqlite-15-indexes", "SQLite, 15 indexes"),
    ("", "core", "single insert, 1 writer", "disk-flush", "the disk's flush rate"),
    ("Durable inserts, 100 writers", "core", "single insert, 100 writers", "sqlite-15-indexes", "SQLite, 15 indexes"),
    ("Disk space", "core", "bytes on disk", "sqlite-15-indexes", "SQLite, 15 indexes"),
    ("", "core", "bytes on disk", "json-text", "the JSON text alone"),
    ("Read by id, cached", "core", "get by id, cached: document", "sqlite-without-rowid", "SQLite"),
    ("Read by id, cache off", "core", "get by id, cache off: document", "sqlite-without-rowid", "SQLite"),
    ("Equality, 1 of 1,000: ids", "core", "equality, 1 of 1,000, ids", "sqlite-15-indexes", "SQLite's index"),
    (
        "Equality, 1 of 10: documents as JSON",
        "core",
        "equality, 1 of 10, documents as JSON",
        "sqlite-15-indexes",
        "SQLite's index",
    ),
    ("Equality, 1 of 10: count", "core", "equality, 1 of 10, count", "sqlite-15-indexes", "SQLite's index"),
    (
        "Filter, newest 10 documents",
        "queries",
        "order_by_limit: type = user, newest first, limit 10; documents",
        "sqlite-index",
        "SQLite's ideal index",
    ),
    (
        "Sort by another field, limit 10",
        "anti-patterns",
        "sort with a filter of a tenth, limit 10",
        "stemma-equality",
        "an equality in Stemma",
    ),
    ("Sum over half of the keys, by a view", "views", "sum of half", "sqlite-covering", "SQLite's covering index"),
    ("Commit to live-query delta", "live", "commit to delta, waiting thread", "bound", "the limit"),
    ("Write beside 10,000 watchers", "live", "write beside 10,000 watchers: two conditions", "no-watchers", "without"),
    ("Random read of a record", "encodings", "read, inserted bulk", "bbolt-binary", "bbolt, binary records"),
    ("Field sum over all records", "encodings", "field sum, inserted bulk", "bbolt's best", "bbolt's best"),
    ("Cached lookup by a unique value", "caches", "index, cached", "files-cached", "a hash map of pointers"),
    ("Shop, durable, 4 agents", "commerce", "total: everything, 4 agents", "postgresql", "PostgreSQL 15"),
    (
        "Shop over the network, 4 agents",
        "commerce",
        "network total: everything, 4 agents",
        "postgresql-tcp",
        "PostgreSQL, TCP",
    ),
    ("HTTP GET, 64 connections", "http", "GET, 64 connections", "bound", "the limit"),
    ("HTTP PUT, durable, 1 connection", "http", "PUT, 1 connection: latency", "disk-flush", "one disk flush"),
];

/// A group of related targets, with the reason why some of them are missed.
struct TargetGroup {
    title: &'static str,
    includes: fn(&ResultRow, &str) -> bool,
    reason: &'static str,
}

/// The groups; a target belongs to the first one that includes it.
const GROUPS: [TargetGroup; 25] = [
    TargetGroup {
        title: "Bulk insert: 10 × SQLite with 15 indexes",
        includes: |row, peer| row.row == "bulk insert" && peer == "sqlite-15-indexes",
        reason: "processor time: 14 µs per document for parsing, hashing and 15 index terms",
    },
    TargetGroup {
        title: "Bulk insert: 1 × SQLite with 2 indexes",
        includes: |row, _| row.row == "bulk insert",
        reason: "SQLite with two indexes does an eighth of the work",
    },
    TargetGroup {
        title: "100 durable writers: 30 × one writer",
        includes: |row, _| row.row == "single insert, 100 writers",
        reason: "one writer already reaches the disk's flush rate; two cores limit the rest",
    },
    TargetGroup {
        title: "Read by id, cache off: 3 × SQLite",
        includes: |row, _| row.row.starts_with("get by id, cache off"),
        reason: "half of the time is one `pread`; SQLite reads mapped memory",
    },
    TargetGroup {
        title: "Cached read: 200 ns",
        includes: |row, peer| row.row.starts_with("get by id, cached") && peer == "bound",
        reason: "two memory accesses that miss the processor's caches",
    },
    TargetGroup {
        title: "Table scan with limit 10: 50 × SQLite",
        includes: |row, peer| peer == "sqlite-scan" && row.row.contains("limit"),
        reason: "SQLite's scan stops at its tenth row, after 5 to 20 µs",
    },
    TargetGroup {
        title: "Table scan: 50 × SQLite",
        includes: |_, peer| peer == "sqlite-scan",
        reason: "both return the same thousands of rows: 10 to 15 ns per id, 60 ns per document",
    },
    TargetGroup {
        title: "Documents as JSON: 1 to 5 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.ends_with("documents as JSON"),
        reason: "packed documents are printed, 150 ns each; SQLite returns the stored text",
    },
    TargetGroup {
        title: "Documents: 1 to 5 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.ends_with("documents"),
        reason: "beyond the cache, each document costs one `pread`",
    },
    TargetGroup {
        title: "Pages: 5 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.contains("pages of"),
        reason: "each page is a query: its token is parsed and it is planned",
    },
    TargetGroup {
        title: "Ids, limit 10: 1 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.contains("limit") && row.row.ends_with("ids"),
        reason: "within 5 % of a covering index",
    },
    TargetGroup {
        title: "Ids: 5 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.ends_with("ids"),
        reason: "10 to 15 ns per id, mostly memory latency; missed against covering indexes",
    },
    TargetGroup {
        title: "Counts: 50 × SQLite's index",
        includes: |row, _| is_query(row) && row.row.ends_with("count"),
        reason: "a query costs 1 to 3 µs; SQLite counts few rows in 20 to 90 µs",
    },
    TargetGroup {
        title: "Pattern over distinct values: 3 × an equality's time",
        includes: |row, _| row.experiment == "anti-patterns" && row.row.starts_with("regex"),
        reason: "the text of all keys is searched, at 10 GB/s",
    },
    TargetGroup {
        title: "Sort by another field: 3 × an equality's time",
        includes: |row, _| row.experiment == "anti-patterns" && row.row.starts_with("sort"),
        reason: "such an order touches every chunk of documents",
    },
    TargetGroup {
        title: "Other anti-patterns: 3 × an equality's time",
        includes: |row, _| row.experiment == "anti-patterns",
        reason: "",
    },
    TargetGroup {
        title: "Field sum: 5 × bbolt's best strategy",
        includes: |row, _| row.row.starts_with("field sum"),
        reason: "up to 1,000 records, a query costs as much as bbolt's whole scan",
    },
    TargetGroup {
        title: "Lookup by a unique value: 150 ns cached, 5 µs uncached",
        includes: |row, _| row.experiment == "caches",
        reason: "missed at one size of nine each, where all contenders were slower",
    },
    TargetGroup {
        title: "Shop in total: 5 × PostgreSQL",
        includes: |row, _| row.row.starts_with("total: "),
        reason: "each writing step costs one flush in both; flushes are 4.4 of our 4.8 s",
    },
    TargetGroup {
        title: "Shop over the network in total: 1.5 × PostgreSQL over TCP",
        includes: |row, _| row.row.starts_with("network total: "),
        reason: "each writing step costs one flush in both",
    },
    TargetGroup {
        title: "Shop over the network, notification: 1 × PostgreSQL",
        includes: |row, _| row.row.starts_with("network notification: "),
        reason: "most of it is the write itself",
    },
    TargetGroup {
        title: "Shop over the network, operations: 1 to 2 × PostgreSQL over TCP",
        includes: |row, _| row.row.starts_with("network "),
        reason: "as above",
    },
    TargetGroup {
        title: "Durable PUT: at most two flushes",
        includes: |row, _| row.row.starts_with("PUT"),
        reason: "a flush, and cores woken from idle twice",
    },
    TargetGroup {
        title: "Growth to millions of documents",
        includes: |row, _| row.experiment == "growth",
        reason: "one read of disk for each document of a range; a rebuild extracts terms on one core",
    },
    TargetGroup { title: "Other targets", includes: |_, _| true, reason: "" },
];

fn is_query(row: &ResultRow) -> bool {
    row.experiment == "core" || row.experiment == "queries"
}

/// Returns the page; `prose` is its hand-written beginning, `full` the link prefix of the full tables.
pub(super) fn page(results: &Results, prose: &str, full: &str) -> String {
    format!(
        "{prose}{}\n## Experiments\n\n{}\n## Missed targets\n\n{}\n## The run\n\n{}",
        headlines(results.rows()),
        experiments(results),
        missed(results.rows(), full),
        results.facts()
    )
}

fn headlines(rows: &[ResultRow]) -> String {
    let mut table =
        "| | documents | unit | Stemma | peer | its figure | ratio |\n|---|--:|---|--:|---|--:|--:|\n".to_owned();
    for (label, experiment, name, peer, peer_name) in HEADLINES {
        let found = rows.iter().filter(|row| row.experiment == experiment && row.row == name);
        let Some(row) = found.max_by_key(|row| row.documents) else { continue };
        let (Some(theirs), Some(ratio)) = (row.peers.get(peer), row.ratio.get(peer)) else { continue };
        let ours = if label.is_empty() { String::new() } else { number(row.ours.p50) };
        let (documents, unit) = match label {
            "" => (String::new(), ""),
            _ => (grouped(row.documents), &*row.unit),
        };
        table.push_str(&format!(
            "| {label} | {documents} | {unit} | {ours} | {peer_name} | {} | {} |\n",
            number(theirs.p50),
            marked(row, peer, *ratio)
        ));
    }
    table
}

fn experiments(results: &Results) -> String {
    let mut table =
        "| experiment | rows | with a target | met | a peer is better in |\n|---|--:|--:|--:|--:|\n".to_owned();
    for command in &COMMANDS {
        let part = results.for_experiments(command.experiments);
        let rows = part.rows();
        if rows.is_empty() {
            continue;
        }
        let name = command.name;
        table.push_str(&format!(
            "| [{name}](benchmarks-{name}.md): {} | {} | {} | {} | {} |\n",
            command.title,
            rows.len(),
            rows.iter().filter(|row| row.met.is_some()).count(),
            rows.iter().filter(|row| row.met == Some(true)).count(),
            rows.iter().filter(|row| row.ratio.values().any(|ratio| *ratio < 1.0)).count(),
        ));
    }
    table
}

/// Lists every group with missed targets, with the range of the missed ratios and of their targets.
fn missed(rows: &[ResultRow], full: &str) -> String {
    let mut table = format!(
        "Every missed target belongs to one of these groups; *missed* counts row and peer. Each one is listed in\n\
         [targets.md]({full}/targets.md). [What was tried and what would help](../results/missed-targets.md).\n\n\
         | target | missed | ratio reached | reason |\n|---|--:|--:|---|\n"
    );
    let all: Vec<(&ResultRow, &str, f64)> = rows
        .iter()
        .flat_map(|row| row.target.iter().map(move |(peer, target)| (row, peer.as_str(), *target)))
        .collect();
    for (position, group) in GROUPS.iter().enumerate() {
        let is_first =
            |row: &ResultRow, peer: &str| GROUPS.iter().position(|group| (group.includes)(row, peer)) == Some(position);
        let targets = all.iter().filter(|(row, peer, _)| is_first(row, peer));
        let (missed, met): (Vec<_>, Vec<_>) = targets.partition(|(row, peer, target)| row.ratio[*peer] < *target);
        if missed.is_empty() {
            continue;
        }
        let range = |values: Vec<f64>| {
            let (low, high) =
                values.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
            if low == high { number(low) } else { format!("{} to {}", number(low), number(high)) }
        };
        table.push_str(&format!(
            "| {} | {} of {} | {} of {} | {} |\n",
            group.title,
            missed.len(),
            missed.len() + met.len(),
            range(missed.iter().map(|(row, peer, _)| row.ratio[*peer]).collect()),
            range(missed.iter().map(|(.., target)| *target).collect()),
            group.reason
        ));
    }
    table
}
