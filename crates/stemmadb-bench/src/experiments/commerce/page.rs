//! The full tables of the shop experiment.

use super::{EVERYTHING, LOAD, NETWORK, TOTAL};
use crate::harness::{ResultRow, Results, distributions, wide};
use crate::workload::shop::OPERATIONS;

/// Builds the page from `opening` (in which `{command}` is replaced), the facts of the run, and every row.
pub(crate) fn page(results: &Results, opening: &str, command: &str) -> String {
    let rows = results.rows();
    let with_target: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
    let mut page = opening.replace("{command}", command);
    page.push_str(&format!("## The run\n\n{}\n", results.facts()));
    page.push_str(&format!(
        "{} rows, of which {} have a target.\n\n- total time 5 × faster than PostgreSQL: met in {}\n\
         - no operation slower than in PostgreSQL or SQLite: met in {}\n\
         - over the network, total time 2 × faster than PostgreSQL: met in {}\n\
         - over the network, no operation slower than in PostgreSQL: met in {}\n",
        rows.len(),
        with_target.len(),
        met(rows, false, true),
        met(rows, false, false),
        met(rows, true, true),
        met(rows, true, false),
    ));
    let everything = format!("{TOTAL}: {EVERYTHING}");
    let begins = |begin: &str| -> Vec<&ResultRow> { rows.iter().filter(|row| row.row.starts_with(begin)).collect() };
    section(&mut page, "Everything", &begins(&everything));
    let totals: Vec<&ResultRow> =
        begins(&format!("{TOTAL}: ")).into_iter().filter(|row| !row.row.starts_with(&everything)).collect();
    section(&mut page, "Each size and plan", &totals);
    for operation in OPERATIONS {
        let name = operation.name();
        let heading = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        operations(&mut page, &heading, &begins(&format!("{name}: ")));
    }
    section(&mut page, "Load", &begins(&format!("{LOAD}: ")));
    for (heading, name) in [("totals", TOTAL), ("notification of a new cart", "notification")] {
        let rows = begins(&format!("{NETWORK}{name}: "));
        section(&mut page, &format!("Over the network: {heading}"), &rows);
    }
    for operation in OPERATIONS {
        let name = operation.name();
        operations(&mut page, &format!("Over the network: {name}"), &begins(&format!("{NETWORK}{name}: ")));
    }
    section(&mut page, "Over the network: load", &begins(&format!("{NETWORK}{LOAD}: ")));
    page
}

fn met(rows: &[ResultRow], is_of_network: bool, is_total: bool) -> String {
    let is_included = |row: &&ResultRow| {
        let name = row.row.strip_prefix(NETWORK);
        name.is_some() == is_of_network && name.unwrap_or(&row.row).starts_with(TOTAL) == is_total
    };
    let with_target: Vec<bool> = rows.iter().filter(is_included).filter_map(|row| row.met).collect();
    format!("{} of {} rows", with_target.iter().filter(|met| **met).count(), with_target.len())
}

fn section(page: &mut String, heading: &str, rows: &[&ResultRow]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(&format!("\n## {heading}\n\n"));
    page.push_str(&wide(rows));
}

/// Adds a table with each contender's distribution.
fn operations(page: &mut String, heading: &str, rows: &[&ResultRow]) {
    if !rows.is_empty() {
        page.push_str(&format!("\n## {heading}\n\n{}", distributions(rows)));
    }
}
