//! The page about the shop.

use super::plots::file_name;
use super::{EVERYTHING, LOAD, NETWORK, TOTAL};
use crate::harness::{Results, Row, wide};
use crate::workload::shop::OPERATIONS;

/// The page: `opening`, in which `{command}` stands for the command; on what it was made, what it comes to, and every row.
pub(crate) fn page(results: &Results, opening: &str, command: &str) -> String {
    let rows = results.rows();
    let judged: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
    let mut page = opening.replace("{command}", command);
    page.push_str(&format!("## The run\n\n{}\n", results.facts()));
    page.push_str(&format!(
        "{} rows, of which {} have a target: all together five times faster than PostgreSQL: {}; no operation slower than there or in SQLite: {}; over the network, all together twice as fast: {}; no operation slower: {}.\n",
        rows.len(),
        judged.len(),
        met(rows, false, true),
        met(rows, false, false),
        met(rows, true, true),
        met(rows, true, false),
    ));
    let everything = format!("{TOTAL}: {EVERYTHING}");
    let begins = |begin: &str| -> Vec<&Row> { rows.iter().filter(|row| row.row.starts_with(begin)).collect() };
    section(&mut page, "Everything", "overview", &begins(&everything));
    let totals: Vec<&Row> =
        begins(&format!("{TOTAL}: ")).into_iter().filter(|row| !row.row.starts_with(&everything)).collect();
    section(&mut page, "Each size and plan", "", &totals);
    for operation in OPERATIONS {
        let name = operation.name();
        let heading = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        section(&mut page, &heading, &file_name(operation), &begins(&format!("{name}: ")));
    }
    section(&mut page, "Load", "", &begins(&format!("{LOAD}: ")));
    for (heading, name) in [("totals", TOTAL), ("a new cart is noticed", "notice")] {
        let rows = begins(&format!("{NETWORK}{name}: "));
        section(&mut page, &format!("Over the network: {heading}"), "", &rows);
    }
    for operation in OPERATIONS {
        let name = operation.name();
        section(&mut page, &format!("Over the network: {name}"), "", &begins(&format!("{NETWORK}{name}: ")));
    }
    section(&mut page, "Over the network: load", "", &begins(&format!("{NETWORK}{LOAD}: ")));
    page
}

fn met(rows: &[Row], is_of_network: bool, is_total: bool) -> String {
    let is_wanted = |row: &&Row| {
        let name = row.row.strip_prefix(NETWORK);
        name.is_some() == is_of_network && name.unwrap_or(&row.row).starts_with(TOTAL) == is_total
    };
    let judged: Vec<bool> = rows.iter().filter(is_wanted).filter_map(|row| row.met).collect();
    format!("{} of {} rows", judged.iter().filter(|met| **met).count(), judged.len())
}

fn section(page: &mut String, heading: &str, plot: &str, rows: &[&Row]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(&format!("\n## {heading}\n\n"));
    if !plot.is_empty() {
        page.push_str(&format!("![{heading}](plots/commerce-{plot}.svg)\n\n"));
    }
    page.push_str(&wide(rows));
}
