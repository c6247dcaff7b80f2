//! What is drawn of the rows of each experiment: how costs grow with sizes, how they are spread, who is how many times better.

use std::collections::BTreeMap;

use crate::harness::{Axis, Figure, Panel, Results, Row, Scale, Series};

/// Ours, as series are called.
const OURS: &str = "stemma";
/// What is a number and nobody who takes part.
const BOUNDS: [&str; 2] = ["bound", "bbolt's best"];

/// An axis that holds all of `values`, with room at both ends.
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

/// Panels beside each other with the same axes.
fn figure(title: &str, x: (&str, Scale), y: (&str, Scale), panels: Vec<(String, Vec<Series>)>) -> Option<Figure> {
    let points = || panels.iter().flat_map(|(_, series)| series).flat_map(|one| one.points.iter().copied());
    points().next()?;
    let (x, y) = (axis(x.0, x.1, points().map(|(x, _)| x)), axis(y.0, y.1, points().map(|(_, y)| y)));
    let panel = |(title, series)| Panel { title, x: x.clone(), y: y.clone(), series };
    Some(Figure { title: title.to_owned(), panels: panels.into_iter().map(panel).collect() })
}

/// The medians of everybody in some rows, each row at its place on the x axis; only contenders that are wanted.
fn medians<'r>(rows: impl Iterator<Item = (f64, &'r Row)>, is_wanted: impl Fn(&str) -> bool) -> Vec<Series> {
    let mut series: BTreeMap<(bool, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for (x, row) in rows {
        series.entry((false, OURS)).or_default().push((x, row.ours.p50));
        for (name, peer) in row.peers.iter().filter(|(name, _)| !BOUNDS.contains(&name.as_str()) && is_wanted(name)) {
            series.entry((true, name)).or_default().push((x, peer.p50));
        }
    }
    let finish = |((_, name), mut points): ((bool, &str), Vec<(f64, f64)>)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Series { name: name.to_owned(), points, is_steps: false }
    };
    series.into_iter().map(finish).collect()
}

/// Rows of one name at all their sizes.
fn sizes<'r>(rows: &'r [Row], name: &str) -> Vec<(f64, &'r Row)> {
    rows.iter().filter(|row| row.row == name).map(|row| (row.documents as f64, row)).collect()
}

/// Rows called by a number (`16 writers`, `GET, 16 connections`) at that number.
fn numbered<'r>(rows: &'r [Row], before: &str, after: &str) -> Vec<(f64, &'r Row)> {
    let number = |row: &Row| row.row.strip_prefix(before)?.strip_suffix(after)?.parse().ok();
    rows.iter().filter_map(|row| Some((number(row)?, row))).collect()
}

/// Distributions: of each row, how large a share of the samples took no longer.
fn spreads<'r>(rows: impl Iterator<Item = (String, &'r Row)>, contender: &str) -> Vec<Series> {
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

/// How many times faster each query is than the ideal index, in order.
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

/// What a sum takes, by the number of rows.
pub(crate) fn views(results: &Results) -> Vec<(String, Figure)> {
    let names = ["sum of half", "sum of 1 of 100", "sum of 10 keys"];
    let panels = names.map(|name| (name.to_owned(), medians(sizes(results.rows(), name).into_iter(), |_| true)));
    let figure =
        figure("Sums of ranges", ("rows", Scale::Logarithmic), ("microseconds", Scale::Logarithmic), panels.into());
    named(vec![("views-sums".to_owned(), figure)])
}

/// What each operation takes, by the number of records; bbolt's strategies and LMDB's apart.
pub(crate) fn encodings(results: &Results) -> Vec<(String, Figure)> {
    let operations = ["insert", "read", "read many", "field sum", "update", "storage"];
    let mut figures = Vec::new();
    for operation in operations {
        let unit = if operation == "storage" { "bytes a record" } else { "microseconds a record" };
        for engine in ["bbolt", "lmdb"] {
            let panel = |mode: &str| {
                let rows = sizes(results.rows(), &format!("{operation}, inserted {mode}"));
                (format!("inserted {mode}"), medians(rows.into_iter(), |name| name.starts_with(engine)))
            };
            let title = format!("{operation}, beside {engine}");
            let panels = vec![panel("single"), panel("bulk")];
            let figure = figure(&title, ("records", Scale::Logarithmic), (unit, Scale::Logarithmic), panels);
            figures.push((format!("encodings-{}-{engine}", operation.replace(' ', "-")), figure));
        }
    }
    named(figures)
}

/// What writers come to together, and what each waits for.
pub(crate) fn batches(results: &Results) -> Vec<(String, Figure)> {
    let rows = results.rows();
    let by_writers = |after: &str| medians(numbered(rows, "", after).into_iter(), |_| true);
    let writers = ("writers", Scale::Logarithmic);
    let rate = vec![("durable inserts".to_owned(), by_writers(" writers"))];
    let flushes = vec![("durable inserts".to_owned(), by_writers(" writers: documents per flush"))];
    let spread = |contender: &str| {
        let rows = numbered(rows, "", " writers: an insert")
            .into_iter()
            .filter(|(count, _)| [1.0, 4.0, 16.0, 64.0, 256.0].contains(count));
        spreads(rows.map(|(count, row)| (format!("{count} writers"), row)), contender)
    };
    let spread =
        vec![("group commit".to_owned(), spread(OURS)), ("no group commit".to_owned(), spread("no-group-commit"))];
    let share = ("% took no longer", Scale::Linear);
    named(vec![
        ("batches-rate".to_owned(), figure("Documents a second", writers, ("documents/s", Scale::Logarithmic), rate)),
        (
            "batches-flushes".to_owned(),
            figure("Documents a flush", writers, ("documents", Scale::Logarithmic), flushes),
        ),
        (
            "batches-latency".to_owned(),
            figure("What an insert takes", ("microseconds", Scale::Logarithmic), share, spread),
        ),
    ])
}

/// What it takes to find cars, by how many there are.
pub(crate) fn caches(results: &Results) -> Vec<(String, Figure)> {
    let figure = |kind: &str| {
        let panel = |mode: &str| {
            let rows = sizes(results.rows(), &format!("{kind}, {mode}"));
            (mode.to_owned(), medians(rows.into_iter(), |_| true))
        };
        let panels = ["uncached", "cached", "RAM only"].map(panel).into();
        let title = format!("Finding cars by {kind}");
        figure(&title, ("cars", Scale::Logarithmic), ("nanoseconds", Scale::Logarithmic), panels)
    };
    named(["index", "partition", "tag"].map(|kind| (format!("caches-{kind}"), figure(kind))).into())
}

/// Requests a second by connections, and what an answer takes.
pub(crate) fn http(results: &Results) -> Vec<(String, Figure)> {
    let rows = results.rows();
    let kinds = ["GET", "PUT"];
    let rate = |kind: &str| {
        (kind.to_owned(), medians(numbered(rows, &format!("{kind}, "), " connections").into_iter(), |_| false))
    };
    let spread = |kind: &str| {
        let rows = numbered(rows, &format!("{kind}, "), " connections: an answer");
        (kind.to_owned(), spreads(rows.into_iter().map(|(count, row)| (format!("{count} connections"), row)), OURS))
    };
    let rates = figure(
        "Requests a second",
        ("connections", Scale::Logarithmic),
        ("requests/s", Scale::Logarithmic),
        kinds.map(rate).into(),
    );
    let spreads = figure(
        "What an answer takes",
        ("microseconds", Scale::Logarithmic),
        ("% took no longer", Scale::Linear),
        kinds.map(spread).into(),
    );
    named(vec![("http-rates".to_owned(), rates), ("http-latency".to_owned(), spreads)])
}
