//! Reports from a results file: documentation pages, plots, and full tables as Markdown and HTML.

pub(crate) mod charts;
pub(crate) mod columns;
mod headline;
mod html;
mod pages;
mod png;

use std::path::{Path, PathBuf};

use crate::Result;
use crate::commands::{COMMANDS, Command};
use crate::harness::{ResultRow, Results};
use html::Section;

/// Prose of the overview page.
const OVERVIEW: &str = include_str!("../pages/overview.md");

/// Beginning of the full tables of an experiment.
const FULL_TABLES: &str = "# Full benchmark tables: {name}\n\nGenerated. To measure again:\n\n```\n{command}\n```\n\n\
    Figures are median / 99th percentile / spread (the range of the repetitions' medians, as a share of the median).\n\
    Ratios tell how many times better Stemma is; **bold**: the peer is better.\n\n";

/// Returns the beginning of an experiment's full tables, in which `{command}` stands for the command line.
pub(crate) fn opening(command: &Command) -> String {
    FULL_TABLES.replace("{name}", command.name)
}

/// Writes the pages and plots of `file` into `directory`, and the full tables beside `file`.
///
/// Into `directory` go `benchmarks.md` (the overview), `benchmarks-<experiment>.md` and `plots/`. Into the directory
/// named like `file` without its extension go `<experiment>.md` (every row), `targets.md` (every target),
/// `benchmarks.html` (all of it in one page) and `cars.*.d` (DODB's data format).
///
/// Rows of the files `others` are included.
pub(crate) fn write(file: &Path, others: &[PathBuf], how: &str, directory: &Path) -> Result<()> {
    let mut results = Results::read(file)?;
    for other in others {
        results.append(Results::read(other)?);
    }
    let full = file.with_extension("");
    let plots = directory.join("plots");
    std::fs::create_dir_all(&plots)?;
    std::fs::create_dir_all(&full)?;
    let link = relative(directory, &full)?;
    let mut sections = vec![Section { name: "targets", markdown: targets(&results), plots: Vec::new() }];
    for command in &COMMANDS {
        let part = results.for_experiments(command.experiments);
        if part.rows().is_empty() {
            continue;
        }
        let how = format!("{how} {}", command.name);
        let tables = (command.page)(&part, &opening(command), &how);
        put(&full.join(format!("{}.md", command.name)), tables.as_bytes())?;
        let figures = (command.plots)(&part);
        let references: String =
            figures.iter().map(|(name, figure)| format!("\n![{}](plots/{name}.svg)\n", figure.title)).collect();
        let page = format!(
            "{}\n## Results\n\n{}\n[All figures]({link}/{}.md). [Method and marks](benchmarks.md).\n\n{}{references}",
            command.prose,
            part.outcome(),
            command.name,
            pages::tables(command.name, &part)
        );
        put(&directory.join(format!("benchmarks-{}.md", command.name)), page.as_bytes())?;
        let mut pictures = Vec::new();
        for (name, figure) in &figures {
            let svg = figure.to_svg();
            put(&plots.join(format!("{name}.svg")), svg.as_bytes())?;
            put(&plots.join(format!("{name}.png")), &png::draw(&svg)?)?;
            pictures.push((name.clone(), svg));
        }
        sections.push(Section { name: command.name, markdown: tables + &references, plots: pictures });
    }
    columns::write(&results, &full.join("cars"))?;
    put(&full.join("targets.md"), sections[0].markdown.as_bytes())?;
    put(&full.join("benchmarks.html"), html::page(&sections).as_bytes())?;
    put(&directory.join("benchmarks.md"), headline::page(&results, OVERVIEW, &link).as_bytes())
}

/// Returns the path of directory `to` as seen from directory `from`, with slashes.
fn relative(from: &Path, to: &Path) -> Result<String> {
    let (from, to) = (std::path::absolute(from)?, std::path::absolute(to)?);
    let common = from.components().zip(to.components()).take_while(|(one, other)| one == other).count();
    let up = from.components().skip(common).map(|_| PathBuf::from(".."));
    let down = to.components().skip(common).map(|part| PathBuf::from(part.as_os_str()));
    let path: PathBuf = up.chain(down).collect();
    Ok(path.to_string_lossy().replace('\\', "/"))
}

fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(file, bytes).map_err(|error| format!("cannot write {}: {error}", file.display()).into())
}

/// Lists every target with its ratio, its spread, and whether it is met.
fn targets(results: &Results) -> String {
    let mut page = format!("# Benchmark targets\n\n{}\n", results.facts());
    for command in &COMMANDS {
        let part = results.for_experiments(command.experiments);
        let judged: Vec<&ResultRow> = part.rows().iter().filter(|row| row.met.is_some()).collect();
        if judged.is_empty() {
            continue;
        }
        let met_count = judged.iter().filter(|row| row.met == Some(true)).count();
        page.push_str(&format!("\n## {}: {met_count} of {} met\n\n", title(command), judged.len()));
        page.push_str("| row | documents | against | ratio | target | spread | |\n|---|--:|---|--:|--:|--:|---|\n");
        for row in judged {
            for (peer, target) in &row.target {
                let (ratio, spread) = (row.ratio[peer], row.ours.spread.max(row.peers[peer].spread));
                let outcome = if ratio >= *target { "met" } else { "**missed**" };
                page.push_str(&format!(
                    "| {} | {} | {peer} | {ratio} | {target} | {:.0} % | {outcome} |\n",
                    row.row,
                    row.documents,
                    100.0 * spread
                ));
            }
        }
    }
    page
}

fn title(command: &Command) -> String {
    let mut letters = command.name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Heading, Machine, Samples, ScratchDirectory, Unit};

    fn row(experiment: &'static str, name: &str, documents: u64, ours: f64, target: f64) -> ResultRow {
        let heading = Heading {
            experiment,
            row: name.to_owned(),
            documents,
            durability: "none",
            unit: Unit::Microseconds,
            rows: None,
            note: None,
            targets: vec![("bound", target)],
        };
        let (ours, peer) = (Samples::from_costs([ours * 1e3]), Samples::from_costs([10e3]));
        ResultRow::new(heading, &ours, &[("bound", &peer), ("files", &peer)]).with_histograms("stemma", &ours, &[])
    }

    #[test]
    fn report_is_complete_and_self_contained() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let machine = Machine::detect(scratch.path(), "a 1".to_owned(), String::new());
        let mut results = Results::new(machine, "none".to_owned(), None);
        for (documents, ours) in [(1_000, 5.0), (10_000, 20.0)] {
            results.push(row("caches", "index, uncached", documents, ours, 1.0)).unwrap();
        }
        results.push(row("http", "GET, 16 connections: latency", 1, 1.0, 1.0)).unwrap();
        let file = scratch.path().join("results.json");
        results.write(&file).unwrap();
        let read = Results::read(&file).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&results).unwrap());
        let directory = scratch.path().join("report");
        write(&file, &[], "bench", &directory).unwrap();
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        let full = |name: &str| text(&format!("../results/{name}"));
        assert!(full("targets.md").contains("| index, uncached | 10000 | bound | 0.5 | 1 | 0 % | **missed** |"));
        assert!(full("targets.md").contains("## Caches: 1 of 2 met"));
        assert!(full("caches.md").contains("| index, uncached | 10,000 |"));
        assert!(text("benchmarks-caches.md").contains("[All figures](../results/caches.md)"));
        assert!(text("benchmarks-caches.md").contains("| index, uncached | 5 · 20 | 2 · **0.5** † | 2 · **0.5** |"));
        let missed = "| Lookup by a unique value: 150 ns cached, 5 µs uncached | 1 of 2 | 0.5 of 1 |";
        assert!(text("benchmarks.md").contains(missed), "{}", text("benchmarks.md"));
        assert!(text("benchmarks-caches.md").contains("![Finding cars by index](plots/caches-index.svg)"));
        assert_eq!(full("cars.stemma-index.d").lines().count(), 2);
        let png = std::fs::read(directory.join("plots/caches-index.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let html = full("benchmarks.html");
        assert!(html.contains("<svg") && html.contains("<table>") && !html.contains("<img") && !html.contains("src="));
    }
}
