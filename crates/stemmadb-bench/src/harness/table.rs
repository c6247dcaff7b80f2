//! Markdown tables of result rows. Rows in which a peer is better are printed like any other and marked.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::machine::Machine;
use super::row::ResultRow;
use super::summary::Summary;

/// Builds a page: opening, facts of the run, outcome, and every row, with one table per experiment and size.
pub(crate) fn page(opening: &str, machine: &Machine, commit: &str, command: &str, rows: &[ResultRow]) -> String {
    let mut page = opening.replace("{command}", command);
    page.push_str("## The run\n\n");
    page.push_str(&facts(machine, commit));
    page.push_str(&format!("\n{}\n", outcome(rows)));
    let has_rows = rows.iter().any(|row| row.rows.is_some());
    if !has_rows {
        page.push('\n');
        table(rows, &mut page);
        return page;
    }
    for group in rows.chunk_by(|one, next| (&one.experiment, one.documents) == (&next.experiment, next.documents)) {
        let (experiment, documents) = (&group[0].experiment, grouped(group[0].documents));
        write!(page, "\n## {experiment}: {documents} documents\n\n{}\n\n", outcome(group))
            .expect("a string takes everything");
        table(group, &mut page);
    }
    page
}

/// Counts rows, targets, and rows in which a peer is better.
pub(super) fn outcome(rows: &[ResultRow]) -> String {
    let judged: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
    let met_count = judged.iter().filter(|met| **met).count();
    let lost_count = rows.iter().filter(|row| row.ratio.values().any(|ratio| *ratio < 1.0)).count();
    format!(
        "{} rows; {} have a target, {met_count} meet it; in {lost_count} a peer or a bound is better than Stemma.",
        rows.len(),
        judged.len()
    )
}

fn table(rows: &[ResultRow], page: &mut String) {
    let columns = Columns {
        has_rows: rows.iter().any(|row| row.rows.is_some()),
        has_notes: rows.iter().any(|row| row.note.is_some()),
        has_published: rows.iter().any(|row| row.published.is_some()),
    };
    let (head, rule) = match columns.has_rows {
        true => ("| row | rows | unit | Stemma | peer | ratio | target |", "|---|--:|---|--:|---|--:|---|"),
        false => (
            "| row | documents | durability | unit | Stemma | peer | ratio | target |",
            "|---|--:|---|---|--:|---|--:|---|",
        ),
    };
    let (note, note_rule) = if columns.has_notes { (" note |", "---|") } else { ("", "") };
    let (published, published_rule) = if columns.has_published { (PUBLISHED, "---|") } else { ("", "") };
    writeln!(page, "{head}{note}{published}\n{rule}{note_rule}{published_rule}").expect("a string takes everything");
    rows.iter().for_each(|row| table_rows(row, columns, page));
}

/// Column heading for figures measured on other machines.
const PUBLISHED: &str = " published elsewhere |";

/// The optional columns of a table.
#[derive(Clone, Copy, Default)]
struct Columns {
    /// Shows the row count of answers instead of documents and durability.
    has_rows: bool,
    has_notes: bool,
    has_published: bool,
}

impl Columns {
    /// Returns the cells after the figures, for a row's first line.
    fn words(self, row: &ResultRow) -> String {
        let cell = |is_there: bool, text: Option<&str>| match is_there {
            true => format!(" {} |", text.unwrap_or("")),
            false => String::new(),
        };
        cell(self.has_notes, row.note.as_deref()) + &cell(self.has_published, row.published.as_deref())
    }

    /// Returns the same cells, empty, for its other lines.
    fn no_words(self) -> String {
        "  |".repeat(usize::from(self.has_notes) + usize::from(self.has_published))
    }
}

/// Returns the facts of a run as a list.
pub(super) fn facts(machine: &Machine, commit: &str) -> String {
    let facts = [("commit", commit.to_owned())].into_iter().chain(machine.facts());
    facts.map(|(name, fact)| wrapped(&format!("- {name}: {fact}"))).collect()
}

/// Wraps a list item at 120 columns.
fn wrapped(item: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in item.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 120 {
            text.push_str("\n ");
            column = 1;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text + "\n"
}

/// Builds a table with one line per row, named by the part of its name after `: `, and columns for each peer.
pub(crate) fn wide(rows: &[&ResultRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let peers: BTreeSet<&String> = rows.iter().flat_map(|row| row.peers.keys()).collect();
    let mut table = format!("| | Stemma, {} |", first.unit);
    peers.iter().for_each(|peer| table.push_str(&format!(" {peer} | ratio |")));
    let has_published = rows.iter().any(|row| row.published.is_some());
    table.push_str(if has_published { PUBLISHED } else { "" });
    table.push_str("\n|---|--:|");
    peers.iter().for_each(|_| table.push_str("--:|--:|"));
    table.push_str(if has_published { "---|" } else { "" });
    for row in rows {
        let name = row.row.split_once(": ").map_or(row.row.as_str(), |(_, name)| name);
        write!(table, "\n| {name} | {} |", brief(&row.ours)).expect("a string takes everything");
        for peer in &peers {
            let Some(ratio) = row.ratio.get(*peer).copied() else {
                table.push_str(" – | – |");
                continue;
            };
            write!(table, " {} | {} |", brief(&row.peers[*peer]), marked(row, peer, ratio))
                .expect("a string takes everything");
        }
        table.push_str(&Columns { has_published, ..Columns::default() }.words(row));
    }
    table.push('\n');
    table
}

/// Builds a table with one line per row and contender: mean, minimum, quartiles, median and 99th percentile.
pub(crate) fn distributions(rows: &[&ResultRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let has_published = rows.iter().any(|row| row.published.is_some());
    let words = Columns { has_notes: rows.iter().any(|row| row.note.is_some()), has_published, has_rows: false };
    let mut table = format!(
        "| | {} | mean | minimum | lower quartile | median | upper quartile | p99 | ratio |{}{}\n",
        first.unit,
        if words.has_notes { " note |" } else { "" },
        if has_published { PUBLISHED } else { "" }
    );
    let rule = "---|".repeat(usize::from(words.has_notes) + usize::from(has_published));
    writeln!(table, "|---|---|--:|--:|--:|--:|--:|--:|--:|{rule}").expect("a string takes everything");
    for row in rows {
        let name = row.row.split_once(": ").map_or(row.row.as_str(), |(_, name)| name);
        let ours = quantiles(&row.ours);
        writeln!(table, "| {name} | Stemma | {ours} | – |{}", words.words(row)).expect("a string takes everything");
        for (peer, summary) in &row.peers {
            let (figures, ratio) = (quantiles(summary), marked(row, peer, row.ratio[peer]));
            writeln!(table, "| | {peer} | {figures} | {ratio} |{}", words.no_words())
                .expect("a string takes everything");
        }
    }
    table
}

/// Formats mean, minimum, lower quartile, median, upper quartile and 99th percentile as cells.
fn quantiles(summary: &Summary) -> String {
    let [lower, upper] = summary.quartiles.map_or([None; 2], |quartiles| quartiles.map(Some));
    let all = [summary.mean, summary.minimum, lower, Some(summary.p50), upper, Some(summary.p99)];
    all.map(|figure| figure.map_or("–".to_owned(), number)).join(" | ")
}

/// A ratio in bold if the peer is better, with a dagger if it misses its target.
pub(crate) fn marked(row: &ResultRow, peer: &str, ratio: f64) -> String {
    let shown = if ratio < 1.0 { format!("**{}**", number(ratio)) } else { number(ratio) };
    let missed = row.target.get(peer).is_some_and(|target| ratio < *target);
    format!("{shown}{}", if missed { " †" } else { "" })
}

/// Builds a table with one line per row and peer: medians and 99th percentiles, without spreads.
pub(crate) fn list(rows: &[&ResultRow]) -> String {
    let has_published = rows.iter().any(|row| row.published.is_some());
    let synced_differs = rows.windows(2).any(|pair| pair[0].durability != pair[1].durability);
    let (published, published_rule) = if has_published { (PUBLISHED, "---|") } else { ("", "") };
    let mut table = format!("| row | documents | unit | Stemma | peer | its figure | ratio |{published}\n");
    writeln!(table, "|---|--:|---|--:|---|--:|--:|{published_rule}").expect("a string takes everything");
    for row in rows {
        let synced = if synced_differs && row.durability == "sync" { " (flushed)" } else { "" };
        let head = format!("{}{synced} | {} | {} | {}", row.row, grouped(row.documents), row.unit, brief(&row.ours));
        let words = |position: usize| match (has_published, position) {
            (false, _) => String::new(),
            (true, 0) => format!(" {} |", row.published.as_deref().unwrap_or("")),
            (true, _) => " |".to_owned(),
        };
        if row.peers.is_empty() {
            writeln!(table, "| {head} | – | – | – |{}", words(0)).expect("a string takes everything");
        }
        for (position, (name, peer)) in row.peers.iter().enumerate() {
            let head = if position == 0 { &head } else { " | | | " };
            let ratio = marked(row, name, row.ratio[name]);
            writeln!(table, "| {head} | {name} | {} | {ratio} |{}", brief(peer), words(position))
                .expect("a string takes everything");
        }
    }
    table
}

/// One line of a table of series: rows that differ only in size or in a number.
pub(crate) struct SeriesLine<'r> {
    pub(crate) name: String,
    pub(crate) rows: Vec<&'r ResultRow>,
}

/// A column of a table of series: its heading, and the peers of which the best one counts.
pub(crate) type PeerColumn<'p> = (&'p str, &'p [&'p str]);

/// Builds a table with one line per series; each cell holds the series' medians or ratios, separated by `·`.
pub(crate) fn series(lines: &[SeriesLine<'_>], peers: &[PeerColumn<'_>]) -> String {
    let occurs = |names: &[&str]| lines.iter().flat_map(|line| &line.rows).any(|row| best(row, names).is_some());
    let peers: Vec<PeerColumn<'_>> = peers.iter().copied().filter(|(_, names)| occurs(names)).collect();
    let mut units: Vec<&str> = lines.iter().filter_map(|line| line.rows.first()).map(|row| &*row.unit).collect();
    units.dedup();
    let (head, rule) = match units[..] {
        [unit] => (format!("| | Stemma, {unit} |"), "|---|--:|"),
        _ => ("| | unit | Stemma |".to_owned(), "|---|---|--:|"),
    };
    let mut table = head;
    peers.iter().for_each(|(heading, _)| table.push_str(&format!(" {heading} |")));
    table.push('\n');
    table.push_str(rule);
    table.push_str(&"--:|".repeat(peers.len()));
    for SeriesLine { name, rows } in lines {
        let unit = rows.first().filter(|_| units.len() > 1).map_or(String::new(), |row| format!(" {} |", row.unit));
        let ours: Vec<String> = rows.iter().map(|row| number(row.ours.p50)).collect();
        write!(table, "\n| {name} |{unit} {} |", ours.join(" · ")).expect("a string takes everything");
        for (_, names) in &peers {
            let ratio =
                |row: &&ResultRow| best(row, names).map_or("–".to_owned(), |(peer, ratio)| marked(row, peer, ratio));
            let mut ratios: Vec<String> = rows.iter().map(ratio).collect();
            while ratios.len() > 1 && ratios.last().is_some_and(|ratio| ratio == "–") {
                ratios.pop();
            }
            write!(table, " {} |", ratios.join(" · ")).expect("a string takes everything");
        }
    }
    table.push('\n');
    table
}

/// The strongest of some peers: the one with the lowest ratio.
fn best<'r>(row: &'r ResultRow, names: &[&str]) -> Option<(&'r str, f64)> {
    let ratios = row.ratio.iter().filter(|(name, _)| names.contains(&name.as_str()));
    ratios.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(name, ratio)| (name.as_str(), *ratio))
}

/// Formats median and 99th percentile, or a single sample.
fn brief(summary: &Summary) -> String {
    let (p50, p99) = (number(summary.p50), number(summary.p99));
    if p50 == p99 { p50 } else { format!("{p50} / {p99}") }
}

/// Returns the progress line printed during a run.
pub(crate) fn line(row: &ResultRow) -> String {
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

/// Adds a line for each peer; the row's own cells are on the first.
fn table_rows(row: &ResultRow, columns: Columns, page: &mut String) {
    let facts = match columns.has_rows {
        true => row.rows.map_or("–".to_owned(), grouped),
        false => format!("{} | {}", grouped(row.documents), row.durability),
    };
    let empty = if columns.has_rows { " | | | " } else { " | | | | " };
    let head = format!("{} | {facts} | {} | {}", row.row, row.unit, cell(&row.ours));
    let first_words = columns.words(row);
    if row.peers.is_empty() {
        writeln!(page, "| {head} | – | – | – |{first_words}").expect("a string takes everything");
    }
    for (position, (name, peer)) in row.peers.iter().enumerate() {
        let (head, words) = match position {
            0 => (head.as_str(), first_words.clone()),
            _ => (empty, columns.no_words()),
        };
        let ratio = row.ratio[name];
        let shown = if ratio < 1.0 { format!("**{}**", number(ratio)) } else { number(ratio) };
        let target = match row.target.get(name) {
            Some(target) if ratio >= *target => format!("{} met", number(*target)),
            Some(target) => format!("{} **not met**", number(*target)),
            None => "–".to_owned(),
        };
        writeln!(page, "| {head} | {name} {} | {shown} | {target} |{words}", cell(peer))
            .expect("a string takes everything");
    }
}

fn cell(summary: &Summary) -> String {
    let rate = match summary.rows_per_s {
        Some(rate) => format!(" ({} rows/s)", short(rate)),
        None => String::new(),
    };
    if summary.p99 == summary.p50 {
        return format!("{}{rate}", number(summary.p50));
    }
    let figures = format!("{} / {} / {:.0} %", number(summary.p50), number(summary.p99), 100.0 * summary.spread);
    figures + &rate
}

/// Formats a large number with about three digits.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{:.1} M", number / 1e6),
        1e3.. => format!("{:.0} k", number / 1e3),
        _ => format!("{number:.0}"),
    }
}

/// Formats a figure.
pub(crate) fn number(number: f64) -> String {
    if number.abs() >= 1_000.0 { grouped(number.round() as u64) } else { format!("{number}") }
}

/// Groups digits by thousands.
pub(crate) fn grouped(number: u64) -> String {
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

    fn row(ours: f64, theirs: f64) -> ResultRow {
        let heading = Heading {
            experiment: "core",
            row: "get by id".to_owned(),
            documents: 100_000,
            durability: "none",
            unit: Unit::Nanoseconds,
            rows: None,
            note: None,
            targets: vec![("sqlite", 3.0)],
        };
        ResultRow::new(heading, &Samples::from_costs([ours]), &[("sqlite", &Samples::from_costs([theirs]))])
    }

    #[test]
    fn lost_rows_are_printed_and_marked() {
        let lost = row(4_000.0, 2_000.0);
        let mut page = String::new();
        table_rows(&lost, Columns::default(), &mut page);
        assert_eq!(page, "| get by id | 100,000 | none | ns | 4,000 | sqlite 2,000 | **0.5** | 3 **not met** |\n");
        assert_eq!(line(&lost), "get by id: 4,000 ns · sqlite 2,000 (0.5×) · NOT MET");
    }

    #[test]
    fn pages_state_command_machine_and_outcome() {
        let machine = Machine::detect(std::path::Path::new("."), "stemmadb 1".to_owned(), "none".to_owned());
        let rows = [row(100.0, 400.0), row(100.0, 200.0), row(400.0, 200.0)];
        let page = page("to make it again:\n{command}\n", &machine, "0123abcd", "the command", &rows);
        assert!(page.contains("\nthe command\n") && page.contains("0123abcd") && page.contains("stemmadb 1"));
        assert!(page.contains("3 rows; 3 have a target, 1 meet it; in 1 a peer or a bound is better"), "{page}");
        assert_eq!(page.lines().filter(|line| line.starts_with("| get by id")).count(), 3);
    }

    #[test]
    fn rows_with_row_counts_get_one_table_per_size() {
        let machine = Machine::detect(std::path::Path::new("."), "stemmadb 1".to_owned(), "none".to_owned());
        let mut rows = vec![row(100.0, 400.0), row(100.0, 400.0), row(100.0, 400.0)];
        rows[2].documents = 7;
        for row in &mut rows {
            row.rows = Some(1_000);
            row.note = Some("be careful".to_owned());
            row.published = Some("5 ns".into());
        }
        let page = page("", &machine, "", "", &rows);
        assert!(
            page.contains("## core: 100,000 documents\n\n2 rows") && page.contains("## core: 7 documents"),
            "{page}"
        );
        assert!(
            page.contains("| get by id | 1,000 | ns | 100 | sqlite 400 | 4 | 3 met | be careful | 5 ns |"),
            "{page}"
        );
        assert!(page.contains("| target | note | published elsewhere |"), "{page}");
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!([999.4, 12_345.0, 12_345_678.0].map(short), ["999", "12 k", "12.3 M"]);
    }

    #[test]
    fn wide_tables_have_one_line_per_row_and_mark_missed_targets() {
        let mut rows = [row(100.0, 400.0), row(100.0, 200.0), row(400.0, 200.0)];
        rows.iter_mut().zip(["a", "b", "c"]).for_each(|(row, name)| row.row = format!("get: {name}"));
        let table = wide(&rows.iter().collect::<Vec<_>>());
        let expected = "| | Stemma, ns | sqlite | ratio |\n|---|--:|--:|--:|\n\
            | a | 100 | 400 | 4 |\n| b | 100 | 200 | 2 † |\n| c | 400 | 200 | **0.5** † |\n";
        assert_eq!(table, expected);
        assert_eq!(wide(&[]), "");
    }

    #[test]
    fn distributions_have_a_line_for_each_contender() {
        let (ours, theirs) = (Samples::from_costs([100.0, 300.0, 200.0]), Samples::from_costs([400.0]));
        let mut row = row(200.0, 400.0).with_distributions(&ours, &[("sqlite", &theirs)]);
        row.row = "find: small, 1 agent".to_owned();
        row.note = Some("3 operations".to_owned());
        let expected = "| | ns | mean | minimum | lower quartile | median | upper quartile | p99 | ratio | note |\n\
            |---|---|--:|--:|--:|--:|--:|--:|--:|---|\n\
            | small, 1 agent | Stemma | 200 | 100 | 100 | 200 | 300 | 200 | – | 3 operations |\n\
            | | sqlite | 400 | 400 | 400 | 400 | 400 | 400 | 2 † |  |\n";
        assert_eq!(distributions(&[&row]), expected);
        assert_eq!(distributions(&[]), "");
    }

    #[test]
    fn lists_have_one_line_per_peer() {
        let rows = [row(100.0, 400.0), row(400.0, 200.0)];
        let table = list(&rows.iter().collect::<Vec<_>>());
        let expected = "| row | documents | unit | Stemma | peer | its figure | ratio |\n\
            |---|--:|---|--:|---|--:|--:|\n\
            | get by id | 100,000 | ns | 100 | sqlite | 400 | 4 |\n\
            | get by id | 100,000 | ns | 400 | sqlite | 200 | **0.5** † |\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn series_join_medians_and_the_ratios_of_the_best_peer() {
        let rows = [row(100.0, 400.0), row(100.0, 200.0)];
        let line = SeriesLine { name: "get".to_owned(), rows: rows.iter().collect() };
        let table = series(&[line], &[("best", &["sqlite", "other"]), ("absent", &["none"])]);
        assert_eq!(table, "| | Stemma, ns | best |\n|---|--:|--:|\n| get | 100 · 100 | 4 · 2 † |\n");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(grouped).each_ref().map(|s| &**s)
        );
    }
}
