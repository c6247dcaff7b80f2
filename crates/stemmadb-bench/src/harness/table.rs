//! Rows as Markdown. Rows that we lose are printed like any other, and marked.

use std::fmt::Write as _;

use super::machine::Machine;
use super::row::Row;
use super::summary::Summary;

/// The prose that every page begins with.
const OPENING: &str = include_str!("page.md");

/// A page: how it was made, on what, what it comes to, and every row.
pub(crate) fn page(machine: &Machine, commit: &str, command: &str, rows: &[Row]) -> String {
    let mut page = OPENING.replace("{command}", command);
    page.push_str("## The run\n\n");
    for (name, fact) in [("commit", commit.to_owned())].into_iter().chain(machine.facts()) {
        writeln!(page, "- {name}: {fact}").expect("a string takes everything");
    }
    let judged: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
    let met_count = judged.iter().filter(|met| **met).count();
    let lost_count = rows.iter().filter(|row| row.ratio.values().any(|ratio| *ratio < 1.0)).count();
    write!(
        page,
        "\n{} rows; {} have a target, {met_count} meet it; in {lost_count} a peer or a bound is better than we are.\n\n",
        rows.len(),
        judged.len()
    )
    .expect("a string takes everything");
    page.push_str("| row | documents | durability | unit | Stemma | peer | ratio | target |\n");
    page.push_str("|---|--:|---|---|--:|---|--:|---|\n");
    rows.iter().for_each(|row| table_rows(row, &mut page));
    page
}

/// One line for the terminal while a run goes on.
pub(crate) fn line(row: &Row) -> String {
    let mut line = format!("{}: {} {}", row.row, number(row.ours.p50), row.unit);
    for (name, peer) in &row.peers {
        write!(line, " · {name} {} ({}×)", number(peer.p50), number(row.ratio[name]))
            .expect("a string takes everything");
    }
    match row.met {
        Some(true) => line.push_str(" · met"),
        Some(false) => line.push_str(" · NOT MET"),
        None => {}
    }
    line
}

/// A line of the table for each peer, the row's own facts on the first.
fn table_rows(row: &Row, page: &mut String) {
    let head =
        format!("{} | {} | {} | {} | {}", row.row, grouped(row.documents), row.durability, row.unit, cell(&row.ours));
    if row.peers.is_empty() {
        writeln!(page, "| {head} | – | – | – |").expect("a string takes everything");
    }
    for (position, (name, peer)) in row.peers.iter().enumerate() {
        let head = if position == 0 { head.as_str() } else { " | | | | " };
        let ratio = row.ratio[name];
        let shown = if ratio < 1.0 { format!("**{}**", number(ratio)) } else { number(ratio) };
        let target = match row.target.get(name) {
            Some(target) if ratio >= *target => format!("{} met", number(*target)),
            Some(target) => format!("{} **not met**", number(*target)),
            None => "–".to_owned(),
        };
        writeln!(page, "| {head} | {name} {} | {shown} | {target} |", cell(peer)).expect("a string takes everything");
    }
}

fn cell(summary: &Summary) -> String {
    if summary.p99 == summary.p50 {
        return number(summary.p50);
    }
    format!("{} / {} / {:.0} %", number(summary.p50), number(summary.p99), 100.0 * summary.spread)
}

fn number(number: f64) -> String {
    if number.abs() >= 1_000.0 { grouped(number.round() as u64) } else { format!("{number}") }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::row::Heading;
    use super::super::summary::{Samples, Unit};
    use super::*;

    fn row(ours: f64, theirs: f64) -> Row {
        let heading = Heading {
            experiment: "core",
            row: "get by id".to_owned(),
            documents: 100_000,
            durability: "none",
            unit: Unit::Nanoseconds,
            targets: vec![("sqlite", 3.0)],
        };
        Row::new(heading, &Samples::of([ours]), &[("sqlite", &Samples::of([theirs]))])
    }

    #[test]
    fn a_row_we_lose_is_printed_and_marked() {
        let lost = row(4_000.0, 2_000.0);
        let mut page = String::new();
        table_rows(&lost, &mut page);
        assert_eq!(page, "| get by id | 100,000 | none | ns | 4,000 | sqlite 2,000 | **0.5** | 3 **not met** |\n");
        assert_eq!(line(&lost), "get by id: 4,000 ns · sqlite 2,000 (0.5×) · NOT MET");
    }

    #[test]
    fn a_page_says_how_to_make_it_again_and_what_it_comes_to() {
        let machine = Machine::look(std::path::Path::new("."), "stemmadb 1".to_owned(), "none".to_owned());
        let rows = [row(100.0, 400.0), row(100.0, 200.0), row(400.0, 200.0)];
        let page = page(&machine, "0123abcd", "the command", &rows);
        assert!(page.contains("\nthe command\n") && page.contains("0123abcd") && page.contains("stemmadb 1"));
        assert!(page.contains("3 rows; 3 have a target, 1 meet it; in 1 a peer or a bound is better"), "{page}");
        assert_eq!(page.lines().filter(|line| line.starts_with("| get by id")).count(), 3);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(grouped).each_ref().map(|s| &**s)
        );
    }
}
