//! Plots of each experiment: cost by size, distributions, and ratios.

use std::collections::BTreeMap;

use crate::experiments::growth::EACH_CHUNK;
use crate::harness::{Axis, Figure, Panel, ResultRow, Results, Scale, Series};

/// Stemma's series name.
const OURS: &str = "stemma";
/// Peers that are fixed bounds rather than contenders.
const BOUNDS: [&str; 2] = ["bound", "bbolt's best"];

/// Returns an axis that covers `values`, with margins.
fn axis(label: &str, scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let range = match scale {
        _ if low > high => (1.0, 10.0),
        Scale::Logarithmic => (low.max(1e-9) / 1.2, high.max(1e-9) * 1.2),
        Scale::Linear => (0.0_f64.min(low), if high > 0.0 { 1.05 * high } else { 1.0 }),
    };
    Axis { label: label.to_owned(), scale, range, ticks: Vec::new() }
}

/// Builds adjacent panels with common axes.
fn figure(title: &str, x: (&str, Scale), y: (&str, Scale), panels: Vec<(String, Vec<Series>)>) -> Option<Figure> {
    let points = || panels.iter().flat_map(|(_, series)| series).flat_map(|one| one.points.iter().copied());
    points().next()?;
    let (x, y) = (axis(x.0, x.1, points().map(|(x, _)| x)), axis(y.0, y.1, points().map(|(_, y)| y)));
    let panel = |(title, series)| Panel { title, x: x.clone(), y: y.clone(), series };
    Some(Figure { title: title.to_owned(), panels: panels.into_iter().map(panel).collect() })
}

/// Returns each contender's medians by x position, for the contenders that `is_included` accepts.
fn medians<'r>(rows: impl Iterator<Item = (f64, &'r ResultRow)>, is_included: impl Fn(&str) -> bool) -> Vec<Series> {
    let mut series: BTreeMap<(bool, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for (x, row) in rows {
        series.entry((false, OURS)).or_default().push((x, row.ours.p50));
        for (name, peer) in row.peers.iter().filter(|(name, _)| !BOUNDS.contains(&name.as_str()) && is_included(name)) {
            series.entry((true, name)).or_default().push((x, peer.p50));
        }
    }
    let finish = |((_, name), mut points): ((bool, &str), Vec<(f64, f64)>)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Series { name: name.to_owned(), points, is_steps: false }
    };
    series.into_iter().map(finish).collect()
}

/// Returns the rows called `name`, by document count.
fn sizes<'r>(rows: &'r [ResultRow], name: &str) -> Vec<(f64, &'r ResultRow)> {
    rows.iter().filter(|row| row.row == name).map(|row| (row.documents as f64, row)).collect()
}

/// Returns the rows whose names contain a number (`16 writers`, `GET, 16 connections`), by that number.
fn numbered<'r>(rows: &'r [ResultRow], before: &str, after: &str) -> Vec<(f64, &'r ResultRow)> {
    let number = |row: &ResultRow| row.row.strip_prefix(before)?.strip_suffix(after)?.parse().ok();
    rows.iter().filter_map(|row| Some((number(row)?, row))).collect()
}

/// Returns each row's cumulative distribution for a contender.
fn distributions<'r>(rows: impl Iterator<Item = (String, &'r ResultRow)>, contender: &str) -> Vec<Series> {
    let series = rows.filter_map(|(name, row)| {
        let shares = row.histograms.get(contender)?.cumulated();
        Some(Series {
            name,
            points: shares.into_iter().map(|(x, share)| (x, 100.0 * share)).collect(),
            is_steps: false,
        })
    });
    series.collect()
}

fn named(figures: Vec<(String, Option<Figure>)>) -> Vec<(String, Figure)> {
    figures.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect()
}

/// Plots the ratio to SQLite's ideal index for all queries, in ascending order.
pub(crate) fn queries(results: &Results) -> Vec<(String, Figure)> {
    let mut sizes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in results.rows().iter().filter(|row| row.experiment == "queries") {
        if let Some(ratio) = row.ratio.get("sqlite-index") {
            sizes.entry(row.documents).or_default().push(*ratio);
        }
    }
    let series = sizes.into_iter().map(|(size, mut ratios)| {
        ratios.sort_by(f64::total_cmp);
        let points = ratios.into_iter().enumerate().map(|(at, ratio)| ((at + 1) as f64, ratio)).collect();
        Series { name: format!("{size} documents"), points, is_steps: false }
    });
    let panels = vec![("all queries, slowest first".to_owned(), series.collect())];
    let title = "Times faster than SQLite's ideal index";
    let figure = figure(title, ("query", Scale::Linear), ("times faster", Scale::Logarithmic), panels);
    named(vec![("queries-ratios".to_owned(), figure)])
}

/// Plots the time of a sum by number of rows.
pub(crate) fn views(results: &Results) -> Vec<(String, Figure)> {
    let names = ["sum of half", "sum of 1 of 100", "sum of 10 keys"];
    let panels = names.map(|name| (name.to_owned(), medians(sizes(results.rows(), name).into_iter(), |_| true)));
    let figure =
        figure("Sums of ranges", ("rows", Scale::Logarithmic), ("microseconds", Scale::Logarithmic), panels.into());
    named(vec![("views-sums".to_owned(), figure)])
}

/// Plots the cost of each operation by number of records, for bbolt and LMDB separately.
pub(crate) fn encodings(results: &Results) -> Vec<(String, Figure)> {
    let operations = ["insert", "read", "read many", "field sum", "update", "storage"];
    let mut figures = Vec::new();
    for operation in operations {
        let unit = if operation == "storage" { "bytes per record" } else { "microseconds per record" };
        for engine in ["bbolt", "lmdb"] {
            let panel = |mode: &str| {
                let rows = sizes(results.rows(), &format!("{operation}, inserted {mode}"));
                (format!("inserted {mode}"), medians(rows.into_iter(), |name| name.starts_with(engine)))
            };
            let title = format!("{operation}, compared with {engine}");
            let panels = vec![panel("single"), panel("bulk")];
            let figure = figure(&title, ("records", Scale::Logarithmic), (unit, Scale::Logarithmic), panels);
            figures.push((format!("encodings-{}-{engine}", operation.replace(' ', "-")), figure));
        }
    }
    named(figures)
}

/// Plots the writers' total rate, documents per flush, and latency.
pub(crate) fn batches(results: &Results) -> Vec<(String, Figure)> {
    let rows = results.rows();
    let by_writers = |after: &str| medians(numbered(rows, "", after).into_iter(), |_| true);
    let writers = ("writers", Scale::Logarithmic);
    let rate = vec![("durable inserts".to_owned(), by_writers(" writers"))];
    let flushes = vec![("durable inserts".to_owned(), by_writers(" writers: documents per flush"))];
    let spread = |contender: &str| {
        let rows = numbered(rows, "", " writers: latency")
            .into_iter()
            .filter(|(count, _)| [1.0, 4.0, 16.0, 64.0, 256.0].contains(count));
        distributions(rows.map(|(count, row)| (format!("{count} writers"), row)), contender)
    };
    let spread =
        vec![("group commit".to_owned(), spread(OURS)), ("no group commit".to_owned(), spread("no-group-commit"))];
    let share = ("% of samples", Scale::Linear);
    named(vec![
        ("batches-rate".to_owned(), figure("Documents per second", writers, ("documents/s", Scale::Logarithmic), rate)),
        (
            "batches-flushes".to_owned(),
            figure("Documents per flush", writers, ("documents", Scale::Logarithmic), flushes),
        ),
        (
            "batches-latency".to_owned(),
            figure("Latency of an insert", ("microseconds", Scale::Logarithmic), share, spread),
        ),
    ])
}

/// The modes of lookups, with the peer of each: files and links, or maps.
const CACHE_MODES: [(&str, &str); 4] = [
    ("uncached", "files"),
    ("cached index", "files-cached-index"),
    ("cached", "files-cached"),
    ("RAM only", "maps-in-RAM"),
];

/// Plots the time of lookups by number of matching cars (for unique names, by number of cars), and of inserts by number
/// of cars.
pub(crate) fn caches(results: &Results) -> Vec<(String, Figure)> {
    let rows = results.rows();
    let kinds = ["index", "partition", "tag"];
    let mut figures: Vec<(String, Option<Figure>)> =
        kinds.map(|kind| (format!("caches-{kind}"), lookups_by_mode(rows, kind))).into();
    figures.extend(kinds.map(|kind| (format!("caches-{kind}-original"), lookups_as_published(rows, kind))));
    let inserts =
        |mode: &str| (mode.to_owned(), medians(sizes(rows, &format!("insert, {mode}")).into_iter(), |_| true));
    let (x, y) = (("cars", Scale::Logarithmic), ("microseconds", Scale::Logarithmic));
    figures.push((
        "caches-inserts".to_owned(),
        figure("Inserting a car", x, y, filled(["cached", "RAM only"].map(inserts))),
    ));
    named(figures)
}

/// Drops panels without data.
fn filled(panels: impl IntoIterator<Item = (String, Vec<Series>)>) -> Vec<(String, Vec<Series>)> {
    panels.into_iter().filter(|(_, series)| !series.is_empty()).collect()
}

/// Returns the lookups of a kind in a mode, by the number that DODB plots them against.
fn lookups<'r>(rows: &'r [ResultRow], kind: &str, mode: &str) -> impl Iterator<Item = (f64, &'r ResultRow)> {
    let is_unique = kind == "index";
    let matches = move |(size, row): (f64, &'r ResultRow)| match row.rows {
        Some(matches) if !is_unique => (matches as f64, row),
        _ => (size, row),
    };
    sizes(rows, &format!("{kind}, {mode}")).into_iter().map(matches)
}

fn lookup_axis(kind: &str) -> &'static str {
    if kind == "index" { "cars in the database" } else { "cars that match" }
}

/// Compares the contenders within each mode.
fn lookups_by_mode(rows: &[ResultRow], kind: &str) -> Option<Figure> {
    let panel = |(mode, _): (&str, &str)| (mode.to_owned(), medians(lookups(rows, kind, mode), |_| true));
    let (x, y) = ((lookup_axis(kind), Scale::Logarithmic), ("nanoseconds", Scale::Logarithmic));
    figure(&format!("Finding cars by {kind}"), x, y, filled(CACHE_MODES.map(panel)))
}

/// Draws the original's chart, with its axes, for Stemma and for files and links: a line for each mode.
fn lookups_as_published(rows: &[ResultRow], kind: &str) -> Option<Figure> {
    let (unit, divisor) = if kind == "index" { ("microseconds", 1e3) } else { ("milliseconds", 1e6) };
    let line = |mode: &str, contender: &str| {
        let points = lookups(rows, kind, mode).filter_map(|(x, row)| {
            let summary = if contender == OURS { Some(&row.ours) } else { row.peers.get(contender) };
            Some((x, summary?.p50 / divisor))
        });
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Series { name: mode.to_owned(), points, is_steps: false }
    };
    let lines = |contender: Option<&str>| -> Vec<Series> {
        let all = CACHE_MODES.map(|(mode, peer)| line(mode, contender.unwrap_or(peer)));
        all.into_iter().filter(|series| !series.points.is_empty()).collect()
    };
    let panels = [("Stemma".to_owned(), lines(Some(OURS))), ("files and links".to_owned(), lines(None))];
    let title = format!("Finding cars by {kind}, as DODB plots it");
    figure(&title, (lookup_axis(kind), Scale::Linear), (unit, Scale::Linear), filled(panels))
}

/// Plots request rates and latencies by number of connections.
pub(crate) fn http(results: &Results) -> Vec<(String, Figure)> {
    let rows = results.rows();
    let kinds = ["GET", "PUT"];
    let rate = |kind: &str| {
        (kind.to_owned(), medians(numbered(rows, &format!("{kind}, "), " connections").into_iter(), |_| false))
    };
    let spread = |kind: &str| {
        let rows = numbered(rows, &format!("{kind}, "), " connections: latency");
        (
            kind.to_owned(),
            distributions(rows.into_iter().map(|(count, row)| (format!("{count} connections"), row)), OURS),
        )
    };
    let rates = figure(
        "Requests per second",
        ("connections", Scale::Logarithmic),
        ("requests/s", Scale::Logarithmic),
        kinds.map(rate).into(),
    );
    let spreads = figure(
        "Latency of a response",
        ("microseconds", Scale::Logarithmic),
        ("% of samples", Scale::Linear),
        kinds.map(spread).into(),
    );
    named(vec![("http-rates".to_owned(), rates), ("http-latency".to_owned(), spreads)])
}

/// Plots the insert rate by number of documents. From 1,000,000 documents on, each point is that of 500,000 inserts.
pub(crate) fn growth(results: &Results) -> Vec<(String, Figure)> {
    const EACH_FROM: f64 = 1_000_000.0;
    let series = |row: &str, each: &str| {
        let steps = sizes(results.rows(), row).into_iter().filter(|(size, _)| *size < EACH_FROM);
        medians(steps.chain(sizes(results.rows(), each)), |_| true)
    };
    let panels = vec![("durable batches of 1,000".to_owned(), series("insert", EACH_CHUNK))];
    let documents = ("documents", Scale::Logarithmic);
    let figure = figure("Inserts by size of the database", documents, ("documents/s", Scale::Logarithmic), panels);
    named(vec![("growth-inserts".to_owned(), figure)])
}
