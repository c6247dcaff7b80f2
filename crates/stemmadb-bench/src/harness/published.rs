//! Figures published elsewhere by the authors of the repeated experiments. They are printed beside ours but never
//! compared: the machines and years differ, and often what was measured too.

/// Tab-separated: experiment, row name prefix, documents or `-`, figure.
const TABLE: &str = include_str!("published.tsv");

/// Returns the figure for a row: the one with the longest matching prefix.
pub(super) fn figure_for(experiment: &str, row: &str, documents: u64) -> Option<&'static str> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let cells = lines.filter_map(|line| {
        let mut cells = line.split('\t');
        Some((cells.next()?, cells.next()?, cells.next()?, cells.next()?))
    });
    cells
        .filter(|(of_experiment, prefix, size, _)| {
            *of_experiment == experiment && row.starts_with(prefix) && (*size == "-" || size.parse() == Ok(documents))
        })
        .max_by_key(|(_, prefix, ..)| prefix.len())
        .map(|(.., figure)| figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_match_the_longest_prefix_and_the_size() {
        assert_eq!(
            figure_for("queries", "prefix_limit: name begins with User 1, limit 10; ids", 5_000),
            Some("23 us, an empty answer")
        );
        assert_eq!(figure_for("queries", "prefix_limit: name begins with User 1, limit 10; ids", 100_000), None);
        assert!(
            figure_for("encodings", "insert, inserted bulk", 1_000_000)
                .is_some_and(|figure| figure.contains("Binary 4,"))
        );
        assert_eq!(figure_for("core", "get by id", 5_000), None);
    }

    #[test]
    fn every_line_has_four_cells() {
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{line}");
            assert!(cells[2] == "-" || cells[2].parse::<u64>().is_ok(), "{line}");
        }
    }
}
