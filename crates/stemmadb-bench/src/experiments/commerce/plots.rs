//! Plots of the shop experiment: latency distributions and total times.

use std::collections::BTreeMap;

use super::{AGENT_COUNTS, BARE_FLUSH, CONTENDERS, EVERYTHING, KINDS, NETWORK, SERVERS, TOTAL, agents};
use crate::harness::{Axis, Figure, Histogram, Panel, ResultRow, Results, Scale, Series};
use crate::workload::shop::{OPERATIONS, Operation};

/// Returns every plot with its file name.
pub(crate) fn figures(results: &Results) -> Vec<(String, Figure)> {
    let mut figures = vec![("commerce-overview".to_owned(), overview(results.rows()))];
    let one = |operation| (format!("commerce-{}", file_name(operation)), distribution(operation, results.rows()));
    figures.extend(OPERATIONS.map(one));
    figures.extend(as_published(results).map(|figure| ("commerce-as-published".to_owned(), figure)));
    figures
}

/// Draws BonsaiDb's published plot: the time of finding products in the large shop, write-heavy, with two agents per
/// core; by name, as published, and by id, in one process and over the network.
fn as_published(results: &Results) -> Option<Figure> {
    let agents = agents(2 * results.core_count());
    let panel = |(title, prefix, operation): (&str, &str, Operation)| {
        let name = format!("{prefix}{}: large writeheavy, {agents}", operation.name());
        let row = results.rows().iter().find(|row| row.row == name)?;
        let histograms = row.histograms.iter().map(|(name, histogram)| (name.as_str(), histogram.clone())).collect();
        Some((format!("{title}, {agents}"), histograms))
    };
    let panels: Vec<(String, BTreeMap<&str, Histogram>)> = [
        ("by name", "", Operation::FindProduct),
        ("by id", "", Operation::LookupProduct),
        ("network, by name", NETWORK, Operation::FindProduct),
        ("network, by id", NETWORK, Operation::LookupProduct),
    ]
    .into_iter()
    .filter_map(panel)
    .collect();
    let title = "Finding a product in the large shop, write-heavy".to_owned();
    (!panels.is_empty()).then(|| share_figure(title, panels))
}

pub(super) fn file_name(operation: Operation) -> String {
    operation.name().replace(' ', "-")
}

/// Plots an operation's latency over all sizes and plans, with a panel for each number of agents.
fn distribution(operation: Operation, rows: &[ResultRow]) -> Figure {
    let panels = AGENT_COUNTS.map(|count| (agents(count), histograms(operation, count, rows)));
    share_figure(format!("{}: time taken, all sizes and plans", operation.name()), panels.into())
}

/// Plots shares of operations by their time, one panel beside the other, with the same axes.
fn share_figure(title: String, panels: Vec<(String, BTreeMap<&str, Histogram>)>) -> Figure {
    let all: Vec<Vec<(f64, f64)>> = panels.iter().flat_map(|(_, one)| one.values().map(Histogram::shares)).collect();
    let seen = || all.iter().flatten();
    let low = seen().map(|(x, _)| *x).fold(f64::MAX, f64::min);
    let high = seen().map(|(x, _)| *x).fold(low * 10.0, f64::max);
    let top = seen().map(|(_, share)| 100.0 * share).fold(1.0, f64::max);
    let x = Axis { label: "microseconds".to_owned(), scale: Scale::Logarithmic, range: (low, high), ticks: Vec::new() };
    let y =
        Axis { label: "% of operations".to_owned(), scale: Scale::Linear, range: (0.0, 1.05 * top), ticks: Vec::new() };
    let panel = |(title, histograms): (String, BTreeMap<&str, Histogram>)| Panel {
        title,
        x: x.clone(),
        y: y.clone(),
        series: in_order(|name| {
            let shares = histograms.get(name)?.shares();
            Some((shares.into_iter().map(|(x, share)| (x, 100.0 * share)).collect(), true))
        }),
    };
    Figure { title, panels: panels.into_iter().map(panel).collect() }
}

fn histograms(operation: Operation, agent_count: usize, rows: &[ResultRow]) -> BTreeMap<&str, Histogram> {
    let mut all: BTreeMap<&str, Histogram> = BTreeMap::new();
    let (begin, end) = (format!("{}: ", operation.name()), format!(", {}", agents(agent_count)));
    for row in rows.iter().filter(|row| row.row.starts_with(&begin) && row.row.ends_with(&end)) {
        for (name, histogram) in &row.histograms {
            all.entry(name).or_default().merge(histogram);
        }
    }
    all
}

/// Plots the total time by number of agents, over everything and for each plan.
fn overview(rows: &[ResultRow]) -> Figure {
    let everything = [("everything".to_owned(), format!("{TOTAL}: {EVERYTHING}"))];
    let kinds = KINDS.map(|kind| (kind.name.to_owned(), format!(" {}", kind.name)));
    let panels: Vec<(String, Seconds<'_>)> =
        everything.into_iter().chain(kinds).map(|(title, part)| (title, seconds(rows, &part))).collect();
    let all = || panels.iter().flat_map(|(_, one)| one.values().flatten()).map(|(_, y)| *y);
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(1e-3, f64::max));
    let counts = AGENT_COUNTS.map(|count| count as f64).to_vec();
    let x = Axis { label: "agents".to_owned(), scale: Scale::Logarithmic, range: (0.9, 4.4), ticks: counts };
    let y = Axis {
        label: "seconds".to_owned(),
        scale: Scale::Logarithmic,
        range: (low / 1.5, 1.5 * high),
        ticks: Vec::new(),
    };
    let panel = |(title, seconds): (String, Seconds<'_>)| Panel {
        title,
        x: x.clone(),
        y: y.clone(),
        series: in_order(|name| Some((seconds.get(name)?.clone(), false))),
    };
    Figure { title: "Wall time of serving everyone".to_owned(), panels: panels.into_iter().map(panel).collect() }
}

/// Points (agents, seconds) by contender.
type Seconds<'a> = BTreeMap<&'a str, Vec<(f64, f64)>>;

/// Sums the totals whose names contain `part`, by contender and number of agents.
fn seconds<'a>(rows: &'a [ResultRow], part: &str) -> Seconds<'a> {
    let mut seconds = Seconds::new();
    for count in AGENT_COUNTS {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        let end = format!("{part}, {}", agents(count));
        for row in rows.iter().filter(|row| row.row.starts_with(TOTAL) && row.row.ends_with(&end)) {
            let ours = (CONTENDERS[0].name(), &row.ours);
            let peers = row.peers.iter().map(|(name, peer)| (name.as_str(), peer));
            let contenders = peers.filter(|(name, _)| *name != BARE_FLUSH);
            for (name, one) in contenders.chain([ours]) {
                *sums.entry(name).or_default() += one.p50 / 1e3;
            }
        }
        for (name, sum) in sums {
            seconds.entry(name).or_default().push((count as f64, sum));
        }
    }
    seconds
}

/// Builds the contenders' series in a fixed order.
fn in_order(points: impl Fn(&str) -> Option<(Vec<(f64, f64)>, bool)>) -> Vec<Series> {
    let series = CONTENDERS.iter().chain(&SERVERS).filter_map(|contender| {
        let (points, is_steps) = points(contender.name())?;
        Some(Series { name: contender.name().to_owned(), points, is_steps })
    });
    series.collect()
}
