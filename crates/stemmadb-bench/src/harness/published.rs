//! What was measured elsewhere, by those whose experiments are repeated here. It is printed beside our figures and never compared with
//! them: other machines, other years, often another question than the row's.

/// Experiment, beginning of the row's name, documents or `-`, and the figure, by tabs.
const TABLE: &str = include_str!("published.tsv");

/// The figure for a row, if there is one: that of the longest beginning of its name.
pub(super) fn of(experiment: &str, row: &str, documents: u64) -> Option<&'static str> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let cells = lines.filter_map(|line| {
        let mut cells = line.split('\t');
        Some((cells.next()?, cells.next()?, cells.next()?, cells.next()?))
    });
    cells
        .filter(|(of, begin, at, _)| {
            *of == experiment && row.starts_with(begin) && (*at == "-" || at.parse() == Ok(documents))
        })
        .max_by_key(|(_, begin, ..)| begin.len())
        .map(|(.., figure)| figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_the_longest_beginning_at_its_size() {
        assert_eq!(
            of("queries", "prefix_limit: name begins with User 1, limit 10; ids", 5_000),
            Some("23 us, an empty answer")
        );
        assert_eq!(of("queries", "prefix_limit: name begins with User 1, limit 10; ids", 100_000), None);
        assert!(of("encodings", "insert, inserted bulk", 1_000_000).is_some_and(|figure| figure.contains("Binary 4,")));
        assert_eq!(of("core", "get by id", 5_000), None);
    }

    #[test]
    fn every_line_has_its_cells() {
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{line}");
            assert!(cells[2] == "-" || cells[2].parse::<u64>().is_ok(), "{line}");
        }
    }
}
