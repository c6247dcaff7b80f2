//! Results for people: a page of Markdown for each experiment, plots as SVG and PNG, and one page of HTML that needs nothing else.

pub(crate) mod charts;
pub(crate) mod columns;
mod html;
mod png;

use std::path::Path;

use crate::Result;
use crate::commands::{COMMANDS, Command};
use crate::harness::{Results, Row};
use html::Section;

/// Writes everything that `results` say into `directory`, as `docs/` has it: `benchmarks.md` (the core), `benchmarks-<experiment>.md`,
/// `benchmarks-summary.md`, `plots/`, and all of it in `benchmarks.html`.
pub(crate) fn write(results: &Results, how: &str, directory: &Path) -> Result<()> {
    let plots = directory.join("plots");
    std::fs::create_dir_all(&plots)?;
    let mut sections = vec![Section { name: "summary", markdown: summary(results), plots: Vec::new() }];
    for command in &COMMANDS {
        let part = results.of(command.experiments);
        if part.rows().is_empty() {
            continue;
        }
        let figures = (command.plots)(&part);
        let mut page = (command.page)(&part, command.opening, &format!("{how} {}", command.name));
        if command.name != "commerce" && !figures.is_empty() {
            page.push_str("\n## Plots\n\n");
            figures
                .iter()
                .for_each(|(name, figure)| page.push_str(&format!("![{}](plots/{name}.svg)\n\n", figure.title)));
        }
        put(&directory.join(page_name(command.name)), page.as_bytes())?;
        let mut pictures = Vec::new();
        for (name, figure) in &figures {
            let svg = figure.to_svg();
            put(&plots.join(format!("{name}.svg")), svg.as_bytes())?;
            put(&plots.join(format!("{name}.png")), &png::draw(&svg)?)?;
            pictures.push((name.clone(), svg));
        }
        sections.push(Section { name: command.name, markdown: page, plots: pictures });
    }
    columns::write(results, &plots.join("cars"))?;
    put(&directory.join(page_name("summary")), sections[0].markdown.as_bytes())?;
    put(&directory.join("benchmarks.html"), html::page(&sections).as_bytes())
}

fn page_name(section: &str) -> String {
    if section == "core" { "benchmarks.md".to_owned() } else { format!("benchmarks-{section}.md") }
}

fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(file, bytes).map_err(|error| format!("cannot write {}: {error}", file.display()).into())
}

/// Every target: met or missed, by how much, with the spread.
fn summary(results: &Results) -> String {
    let mut page = format!("# Benchmarks: every target\n\n{}\n", results.facts());
    for command in &COMMANDS {
        let part = results.of(command.experiments);
        let judged: Vec<&Row> = part.rows().iter().filter(|row| row.met.is_some()).collect();
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
    use crate::harness::{Heading, Machine, Place, Samples, Unit};

    fn row(experiment: &'static str, name: &str, documents: u64, ours: f64, target: f64) -> Row {
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
        let (ours, peer) = (Samples::of([ours * 1e3]), Samples::of([10e3]));
        Row::new(heading, &ours, &[("bound", &peer), ("files", &peer)]).with_histograms("stemma", &ours, &[])
    }

    #[test]
    fn a_report_is_whole_and_needs_no_network() {
        let place = Place::new(None).unwrap();
        let machine = Machine::look(place.path(), "a 1".to_owned(), String::new());
        let mut results = Results::new(machine, "none".to_owned(), None);
        for (documents, ours) in [(1_000, 5.0), (10_000, 20.0)] {
            results.push(row("caches", "index, uncached", documents, ours, 1.0)).unwrap();
        }
        results.push(row("http", "GET, 16 connections: an answer", 1, 1.0, 1.0)).unwrap();
        let file = place.path().join("results.json");
        results.write(&file).unwrap();
        let read = Results::read(&file).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&results).unwrap());
        let directory = place.path().join("report");
        write(&read, "bench", &directory).unwrap();
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(
            text("benchmarks-summary.md").contains("| index, uncached | 10000 | bound | 0.5 | 1 | 0 % | **missed** |")
        );
        assert!(text("benchmarks-summary.md").contains("## Caches: 1 of 2 met"));
        assert!(text("benchmarks-caches.md").contains("![Finding cars by index](plots/caches-index.svg)"));
        assert_eq!(text("plots/cars.stemma-index.d").lines().count(), 2);
        let png = std::fs::read(directory.join("plots/caches-index.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let html = text("benchmarks.html");
        assert!(html.contains("<svg") && html.contains("<table>") && !html.contains("<img") && !html.contains("src="));
    }
}
