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
            Some("39,354/s, 23 us, an empty answer; 1.x: 17,073/s, 55 us")
        );
        assert_eq!(figure_for("queries", "prefix_limit: name begins with User 1, limit 10; ids", 100_000), None);
        assert!(
            figure_for("encodings", "insert, inserted bulk", 1_000_000)
                .is_some_and(|figure| figure.contains("Binary 4,"))
        );
        assert_eq!(figure_for("core", "get by id", 5_000), None);
        let per_flush = |writers| figure_for("batches", &format!("{writers} writers: documents per flush"), 2_000);
        assert_eq!(per_flush(100), Some("CouchDB: 20 to 30 documents collected per write"));
        assert_eq!(per_flush(10), None);
    }

    #[test]
    fn throughputs_percentiles_and_overheads_of_barrel_are_complete() {
        let text: String =
            TABLE.lines().filter(|line| line.starts_with("barrel") || line.starts_with("quer")).collect();
        // The page's throughputs, its 99th percentiles in microseconds, and its overheads in percent.
        let rates = "5,785 111,111 118,343 5,660 39,354 44,033 27,800 6,222 2,101 3,889 488 55 82 4,906 3,163 2,857 \
            13,823 8,223 1,206 18,900 790 38,066 1,124 2,786 838 991 370 1,019 425 7,176 5,827 4,381 3,647 4,831 4,130 \
            1,226 703 1,100 85";
        let missing: Vec<_> = rates.split_whitespace().filter(|rate| !text.contains(*rate)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for p99 in ["252 us", "22 us", "21 us", "20 us", "1,200 us", "1,400 us", "15.2 ms"] {
            assert!(text.contains(&format!("p99 {p99}")), "{p99}");
        }
        for overhead in [85, 96, 97, 70, 63, 58, 43, 19, 17, 15] {
            assert!(text.contains(&format!("{overhead} % overhead")), "{overhead}");
        }
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
